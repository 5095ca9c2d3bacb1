"""The first compiled calls: what compiling takes, the memory it keeps, and what dynamo captured."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import statistics
import sys
import time
from collections import Counter
from typing import Any, Callable, Collection, Iterator, NamedTuple, Optional, Sequence

import torch

from perfdash.records import Job
from perfdash.worker import compile_phases, compiler_caches, linux

_CALLS = 3  # after the first; more where the last one still compiles
_MOST_CALLS = 16  # dynamo gives up after 8 recompiles
_MOST_S = 120.0  # of these calls together: a slow model must not reach a time limit here
# By the CPU seconds of this thread, which grow neither with a busy core nor with a swapped page.
_COMPILES_TIMES = 3.0  # a call compiles if it takes so many times as long as the shortest
_COMPILES_S = 0.02  # and so many seconds more
_COMPILES_SHARE = 0.1  # of the first call's seconds; with several threads, which spin while they wait
_REASONS = 20  # how many reasons for graph breaks are kept
_REASON_CHARS = 300
_PLACES = 5  # of one reason
# "cache_size_limit reached" (torch 2.4), "recompile_limit reached", "Dynamo recompile limit exceeded".
_LIMIT = re.compile(r"(cache_size|recompile)[_ ]limit")


class Call(NamedTuple):
    """A call after the first: its wall and CPU seconds, and whether dynamo compiled in it."""

    wall_s: float
    thread_cpu_s: float  # of this thread
    cpu_s: float  # of this process
    tree_cpu_s: float  # with all its descendants, which compile; in ticks of 10 ms
    compiled: bool


class BeginAnew(Exception):
    """The first call of `step` failed, as its next one will not: nothing of the attempt is to count."""

    def __init__(self, step: Callable[[], Any]) -> None:
        super().__init__("begin anew")
        self.step = step


def captured_first_call(
    begin: Callable[[bool], None],
    make_step: Callable[[], Callable[[], Any]],
    synchronize: Callable[[], None],
    after_two: Callable[[], None] = lambda: None,
    cores: Collection[int] = (),
    compilers: Optional[int] = None,
) -> Any:
    """first_call on these cores, if any, and what was captured; returns (step, figures, capture).

    `compilers`: the number of them that the options of inductor ask for (on_cores).

    `begin` is called before each attempt: with False before the first, with True where a step raised
    BeginAnew and all that its attempt has left is to go.
    """
    with on_cores(cores, compilers) as number:
        if cores:
            start_compilers(number)
        begin(False)
        try:
            with capture_figures() as capture:
                step, figures = first_call(make_step, synchronize, after_two, capture.end)
        except BeginAnew as anew:
            failed = anew.step
        else:
            return step, figures, capture
        begin(True)
        with capture_figures() as capture:
            step, figures = first_call(lambda: failed, synchronize, after_two, capture.end)
        return step, figures, capture


def first_call(
    make_step: Callable[[], Callable[[], Any]],
    synchronize: Callable[[], None],
    after_two: Callable[[], None] = lambda: None,
    before_more: Callable[[], None] = lambda: None,
) -> Any:
    """Build the compiled step and call it until it is steady; returns (step, figures).

    `after_two` is called after the second call, when garbage has been collected; `before_more` before the
    calls that only a model needs which still compiles.

    compilation_s is the time of the first call, at least that of the build, and of the further calls that
    compile (_compiling), each minus the median of the steady calls; compilation_cpu_s is the same in CPU
    seconds of this process and all its descendants. build_s is the part of first_call_s before the call
    itself. `clock` has timed the phases of all calls.
    """
    linux.malloc_trim()
    is_reset = linux.reset_high_water_mark()
    before = linux.memory_status()
    cpu = linux.tree_cpu_s(os.getpid())
    with compile_phases.timed() as clock:
        start = time.perf_counter()
        step = make_step()
        made_s = time.perf_counter() - start
        step()
        synchronize()
        first_s = time.perf_counter() - start
        first_cpu_s = linux.tree_cpu_s(os.getpid()) - cpu
        peak = linux.memory_status()["VmHWM"]

        calls: list[Call] = []
        while len(calls) < _CALLS or _needs_more(calls):
            if len(calls) == _CALLS:
                before_more()
            if len(calls) < 2:  # else a call may collect the garbage of compiling
                gc.collect()
            if len(calls) == 1:
                after_two()
            calls.append(_timed_call(step, synchronize))
    linux.malloc_trim()
    held = linux.memory_status()["RssAnon"] - before["RssAnon"]
    compiling = _compiling(calls, first_s)
    steady = [call for call in calls if call not in compiling] or [min(calls)]  # by wall_s
    steady_s = statistics.median(call.wall_s for call in steady)
    steady_cpu_s = statistics.median(call.cpu_s for call in steady)
    later_s = sum(max(0.0, call.wall_s - steady_s) for call in compiling)
    later_cpu_s = sum(max(0.0, call.tree_cpu_s - steady_cpu_s) for call in compiling)
    later = f"{len(compiling)} of the calls after the first compiled as well: {later_s:.2g} s of compiling"
    return step, {
        "first_call_s": first_s,
        "build_s": made_s,
        # A conversion before the first call is timed by itself, however much that call varies.
        "compilation_s": max(made_s, first_s - steady_s) + later_s,
        "compilation_cpu_s": max(0.0, first_cpu_s - steady_cpu_s) + later_cpu_s,
        "compile_peak_bytes": peak if is_reset else None,
        "compile_held_bytes": max(0, held),
        "clock": clock,
        "notes": [later] if compiling else [],
    }


def _timed_call(step: Callable[[], Any], synchronize: Callable[[], None]) -> Call:
    graphs, tree_cpu_s = compiled_graphs(), linux.tree_cpu_s(os.getpid())
    cpu_s, thread_cpu_s, start = time.process_time(), time.thread_time(), time.perf_counter()
    step()
    synchronize()
    wall_s, thread_cpu_s = time.perf_counter() - start, time.thread_time() - thread_cpu_s
    cpu_s, tree_cpu_s = time.process_time() - cpu_s, linux.tree_cpu_s(os.getpid()) - tree_cpu_s
    return Call(wall_s, thread_cpu_s, cpu_s, tree_cpu_s, compiled_graphs() > graphs)


def _needs_more(calls: Sequence[Call]) -> bool:
    """Whether the last call still compiled, and there is time for another."""
    return calls[-1].compiled and len(calls) < _MOST_CALLS and sum(call.wall_s for call in calls) < _MOST_S


def _compiling(calls: Sequence[Call], first_s: float) -> list[Call]:
    """The calls that compile: dynamo did, or they clearly took more CPU time than the shortest.

    TorchScript optimises in its second call, and CUDA graphs are recorded there. A steady call that is slow
    by chance must not count: of noise only what is above zero would be added.
    """
    least = min(call.thread_cpu_s for call in calls)
    by_chance_s = max(_COMPILES_S, _COMPILES_SHARE * first_s if torch.get_num_threads() > 1 else 0.0)
    most = max(_COMPILES_TIMES * least, least + by_chance_s)
    return [call for call in calls if call.compiled or call.thread_cpu_s > most]


@contextlib.contextmanager
def on_cores(cores: Collection[int], compilers: Optional[int] = None) -> Iterator[int]:
    """Run the block on more cores than the case's own, with torch's compilers on them; yields their number.

    That is the number that torch itself chooses on these cores: one for each up to a limit, or that of its
    variable. `compilers`, from the options of inductor, holds instead. Without `cores` nothing changes.
    Triton's compilers are processes that import torch first: they are started before the block, as importing
    torch starts them for a user.
    """
    before = os.sched_getaffinity(0)
    if not cores:
        yield len(before)
        return
    import torch._inductor.config as inductor_config

    linux.bind_threads(cores)
    threads = compilers or inductor_config.compile_threads
    number = compilers or inductor_config.decide_compile_threads()
    inductor_config.compile_threads = number
    try:
        yield number
    finally:
        inductor_config.compile_threads = threads
        linux.bind_threads(before)


def start_compilers(number: int) -> None:
    """Start inductor's pool of compilers, and wait a minute at most until it answers.

    A torch without one starts none.
    """
    if number < 2:
        return
    from torch._inductor.async_compile import AsyncCompile

    warm_pool = getattr(AsyncCompile, "warm_pool", None)
    if warm_pool is None:
        return
    warm_pool()
    is_ready = getattr(AsyncCompile, "use_process_pool", lambda: True)
    deadline = time.monotonic() + 60
    while not is_ready() and time.monotonic() < deadline:
        time.sleep(0.05)


def begin_after_eager(step: Callable[[], Any], synchronize: Callable[[], None], job: Job) -> None:
    """Call eager's step, and forget what it has compiled, so that a replica compiles as the main process.

    On a GPU that has run eager before it compiles. There the first calls in a process load CUDA's libraries
    and the code of each kernel, which must not count as compiling in the one and not in the other.
    """
    step()
    synchronize()
    if model_compiles_itself():
        compiler_caches.begin_anew(job.scratch, job.machine_cache, on_disk=False)


class Capture(dict[str, Any]):
    """The counters of dynamo and inductor since capture_figures began, once it has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.fallbacks: dict[str, int] = {}

    def end(self) -> None:
        """Read the counters; what follows does not count."""
        from torch._dynamo.utils import counters

        if not self:
            breaks = _breaks()
            self.update(
                graphs=int(counters["stats"]["unique_graphs"]),
                calls_captured=int(counters["stats"]["calls_captured"]),
                graph_breaks=int(sum(breaks.values())),
                unique_graph_breaks=len(breaks),
                break_reasons={str(r)[:_REASON_CHARS]: n for r, n in list(breaks.items())[:_REASONS]},
                break_places=_places(),
                fallbacks=dict(self.fallbacks),
                cache_hits=int(
                    counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
                ),
                autograd_captures=int(counters["compiled_autograd"]["captures"]),
                autograd_compiles=int(counters["compiled_autograd"]["compiles"]),
                cudagraph_skips=int(counters["inductor"]["cudagraph_skips"]),
            )


@contextlib.contextmanager
def capture_figures() -> Iterator[Capture]:
    """Fill the dict, when the block ends at the latest, with the counters of dynamo and inductor."""
    capture = Capture()
    from torch._dynamo.utils import counters

    counters.clear()
    _break_reasons().clear()
    with _count_fallbacks(capture.fallbacks):
        try:
            yield capture
        finally:
            capture.end()


def compiled_graphs() -> int:
    """How many graphs dynamo has compiled since capture_figures began."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def model_compiles_itself() -> bool:
    """Whether code was generated in this process, where perfdash has compiled nothing yet.

    Dynamo alone generates none: eager's torch.cond and flex_attention are traced by it.
    """
    utils = sys.modules.get("torch._dynamo.utils")  # whatever compiles has imported it
    return utils is not None and bool(utils.counters["aot_autograd"]["total"])


def has_graph_breaks() -> bool:
    """Whether dynamo has met a graph break since capture_figures began."""
    return bool(_breaks())


def _breaks() -> Counter[str]:
    """How often each graph break was met, by its reason."""
    from torch._dynamo.utils import counters

    return Counter(map(_reason, _break_reasons())) or Counter(counters["graph_break"])


def gave_up() -> Optional[str]:
    """Dynamo's message if it reached its limit of recompiles since capture_figures began.

    From then on inputs without compiled code run in eager, without an error.
    """
    from torch._dynamo.utils import counters

    texts = [*counters["unimplemented"], *counters["graph_break"]]
    titles = [str(text).partition("\n")[0] for text in texts]
    return next((title[:_REASON_CHARS] for title in titles if _LIMIT.search(title)), None)


def _break_reasons() -> list[Any]:
    """Why each graph ended before its function did; empty in a torch without this list.

    dynamo's counter, which is used then, lacks branches that depend on data.
    """
    from torch._dynamo import utils

    reasons: list[Any] = getattr(utils, "graph_break_reasons", [])
    return reasons


def _reason(of_break: Any) -> str:
    """The reason in words; for a branch on data, which dynamo does not explain, its place in the code."""
    text = str(of_break.reason)
    if not text.startswith("generic_jump"):
        return text
    frame = of_break.user_stack[-1] if of_break.user_stack else None
    where = f" in {os.path.basename(frame.filename)}:{frame.lineno}" if frame else ""
    return f"a branch that depends on data{where} ({text})"


def _places() -> dict[str, list[str]]:
    """Where in the user's code each reason for a graph break is: `net.py:9 in forward`, by reason."""
    places: dict[str, list[str]] = {}
    for of_break in _break_reasons():
        if not of_break.user_stack:
            continue
        frame = of_break.user_stack[-1]
        place = f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}"
        known = places.setdefault(_reason(of_break)[:_REASON_CHARS], [])
        if place not in known and len(known) < _PLACES:
            known.append(place)
    return dict(list(places.items())[:_REASONS])


@contextlib.contextmanager
def _count_fallbacks(counts: dict[str, int]) -> Iterator[None]:
    """Count the operators for which inductor calls the eager kernel, by name."""
    kernel = getattr(getattr(torch, "_inductor", None), "ir", None)
    fallback = getattr(kernel, "FallbackKernel", None)
    if fallback is None:
        yield
        return
    original = fallback.create

    def create(cls: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        counts[str(operator)] = counts.get(str(operator), 0) + 1
        return original.__func__(cls, operator, *args, **kwargs)

    fallback.create = classmethod(create)
    try:
        yield
    finally:
        fallback.create = original
