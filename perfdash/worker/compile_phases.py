"""How long each phase of a compilation takes, as exclusive wall seconds.

Functions of dynamo, AOTAutograd and inductor are wrapped while the first calls run. The clock charges the
innermost one, so that the phases add up. Only the thread that compiles counts: while the compilers of a pool
work, it waits for them, and that wait is the phase `compiler`. A function that this torch does not have
leaves its time in the phase around it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from typing import Any, Callable, Iterator, Optional

# The phases in order. `rest`: what is in the compilation latency and in none of them.
PHASES = ("dynamo", "aot_autograd", "cache", "lowering", "code_generation", "compiler", "load")
REST = "rest"
# (phase, module, function) for every torch from 2.4 on; a module that is not imported is left out.
_FUNCTIONS = (
    ("dynamo", "torch._dynamo.convert_frame", "_compile"),
    ("aot_autograd", "torch._inductor.compile_fx", "compile_fx"),
    ("aot_autograd", "torch._dynamo.backends.common", "AotAutograd.__call__"),
    # The keys of inductor's caches: hashes of graphs, of torch's and Triton's sources.
    ("cache", "torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key"),
    ("cache", "torch._inductor.codecache", "compiled_fx_graph_hash"),
    ("cache", "torch._inductor.codecache", "FxGraphCache._save_graph"),
    ("cache", "torch._inductor.codecache", "CacheBase.get_system"),
    ("lowering", "torch._inductor.compile_fx", "_recursive_pre_grad_passes"),
    ("lowering", "torch._inductor.compile_fx", "_recursive_joint_graph_passes"),
    ("lowering", "torch._inductor.compile_fx", "fx_codegen_and_compile"),
    ("lowering", "torch._inductor.scheduler", "Scheduler.__init__"),
    ("code_generation", "torch._inductor.graph", "GraphLowering.compile_to_module"),
    ("code_generation", "torch._inductor.graph", "GraphLowering.codegen"),
    ("code_generation", "torch._inductor.graph", "GraphLowering.codegen_with_cpp_wrapper"),
    ("compiler", "torch._inductor.async_compile", "AsyncCompile.wait"),
    ("compiler", "torch._inductor.codecache", "_worker_compile_cpp"),
    ("compiler", "torch._inductor.codecache", "compile_file"),
    ("compiler", "torch._inductor.cpp_builder", "run_compile_cmd"),
    ("compiler", "torch._inductor.cpp_builder", "CppBuilder.build"),
    ("compiler", "torch._inductor.runtime.triton_heuristics", "CachingAutotuner.precompile"),
    ("load", "torch._inductor.codecache", "PyCodeCache.load_by_key_path"),
    ("load", "torch._inductor.codecache", "CppCodeCache._load_library"),
)


class PhaseClock:
    """Charges wall seconds to the innermost phase of the one thread that compiles."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self.missing: list[str] = []  # the phases of which this torch has no function
        self._now = now
        self._open: list[str] = []
        self._thread: Optional[int] = None
        self._since = 0.0

    def enter(self, phase: str) -> bool:
        """Begin a phase. False in another thread than the one that compiles: nothing is charged."""
        thread = threading.get_ident()
        if self._open and thread != self._thread:
            return False
        self._charge()
        self._thread = thread
        self._open.append(phase)
        return True

    def leave(self) -> None:
        """End the innermost phase."""
        self._charge()
        self._open.pop()

    def _charge(self) -> None:
        now = self._now()
        if self._open:
            phase = self._open[-1]
            self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now

    def figures(self, compilation_s: float) -> Optional[dict[str, float]]:
        """The seconds by phase, with the rest of the compilation latency; None where nothing was compiled.

        The rest is below zero where the steady calls that are subtracted took longer than the first one.
        """
        if not self.seconds:
            return None
        known = {phase: self.seconds[phase] for phase in PHASES if phase in self.seconds}
        return {**known, REST: compilation_s - sum(known.values())}

    def notes(self) -> list[str]:
        """What readers of the figures must know."""
        if not self.seconds or not self.missing:
            return []
        names = ", ".join(self.missing)
        return [f"this torch has no function that times {names} of compiling: the phase around contains them"]


@contextlib.contextmanager
def timed(clock: Optional[PhaseClock] = None) -> Iterator[PhaseClock]:
    """A clock that runs through the phases of whatever compiles in the block."""
    clock = clock or PhaseClock()
    undo: list[Callable[[], None]] = []
    wrapped = set()
    for phase, module, path in _FUNCTIONS:
        try:
            undo.append(_wrap(clock, phase, module, path))
            wrapped.add(phase)
        except (AttributeError, TypeError):
            continue
    clock.missing = [phase for phase in PHASES if phase not in wrapped]
    try:
        yield clock
    finally:
        for restore in reversed(undo):
            restore()


def _wrap(clock: PhaseClock, phase: str, module: str, path: str) -> Callable[[], None]:
    """Let a function enter its phase; returns what puts the original back. AttributeError without it."""
    owner: Any = sys.modules.get(module)
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    original = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
    kind = type(original) if isinstance(original, (staticmethod, classmethod)) else None
    function = original.__func__ if kind else original
    if not callable(function):
        raise TypeError(f"{module}.{path} is no function")

    @functools.wraps(function)
    def in_phase(*args: Any, **kwargs: Any) -> Any:
        entered = clock.enter(phase)
        try:
            return function(*args, **kwargs)
        finally:
            if entered:
                clock.leave()

    setattr(owner, name, kind(in_phase) if kind else in_phase)
    return lambda: setattr(owner, name, original)
