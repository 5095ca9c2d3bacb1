"""Times per kernel and operator of a case, the buffers alive at its memory peak, the operators of eager.

The times are measured beside the plain call, round by round, on a second view of the same compiled code: a
clock around each kernel and library call (generated_wrappers), and of eager around each operator below
autograd. What the clocks cost is measured too: the plain call and the one with clocks take turns. Memory
and the trace come from torch.profiler, in one further call. Which operators eager calls, and which of them
Python code replaces, is found in a call that nothing times.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import random
import re
import resource
import statistics
import sys
import time
from collections import Counter
from typing import Any, Callable, ContextManager, FrozenSet, Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfdash.records import Job
from perfdash.worker import generated_wrappers, latency_sampling
from perfdash.worker.device import Cpu, Cuda
from perfdash.worker.generated_wrappers import Calls

FILE = "profile.json"
CONSTANTS = "constants.pt"
_ROUNDS = 15
_FEWEST_ROUNDS = 4
_BLOCK_NS = 4_000_000  # of calls in a row, at least one call
_BUDGET_S = 6.0  # a side
_MOST_CALLS = 100_000  # marks that are kept of one block
_MOST_OPERATORS = 200  # operators and implementations that are recorded
# The allocation belongs to the operator that asked for it.
_ALLOCATING = ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_", "aten::new_empty")


class _ProfileClock:
    """The device's clock; of one thread on the CPU its CPU time, which other programs do not lengthen.

    A step that gives the core up itself (it sleeps, it reads) is timed by the wall's clock all the same.
    """

    def __init__(self, device: Cpu | Cuda) -> None:
        self.device = device
        self.name = "wall" if device.kind == "cpu" else "gpu"
        self._has_both = device.kind == "cpu" and torch.get_num_threads() == 1
        self._place = 0
        self.mark: Callable[[], Any] = _both if self._has_both else device.mark

    def choose(self, waits: list[float]) -> None:
        """Choose the clock; `waits`: how often each block gave the core up by itself, a call."""
        if self._has_both:
            self._place = 0 if statistics.median(waits) >= 1 else 1
            self.name = ("wall", "cpu")[self._place]

    def between(self, start: Any, end: Any) -> float:
        """Nanoseconds from one mark to another."""
        if self._has_both:
            return float(end[self._place] - start[self._place])
        return self.device.between(start, end)


def _both() -> tuple[int, int]:
    return time.perf_counter_ns(), time.thread_time_ns()


class Operators(TorchDispatchMode):
    """Every operator below autograd goes through `Calls.around`."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._calls.around(str(func), func, tuple(args), dict(kwargs or {}))


def of_case(
    eager_step: Callable[[], Any],
    compiled_step: Callable[[], Any],
    device: Cpu | Cuda,
    job: Job,
) -> list[str]:
    """Profile both sides into the job's folder: profile.json, traces and constants. Returns the notes."""
    folder = job.folder
    os.makedirs(folder, exist_ok=True)
    notes: list[str] = []
    sides: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    wrappers = generated_wrappers.loaded()
    for name, step in (("eager", eager_step), ("compiled", compiled_step)):
        clock = _ProfileClock(device)
        calls = Calls(clock.mark)
        kernels: dict[str, Any] = {}
        within: ContextManager[Any] = Operators(calls)
        if name == "compiled":
            if not wrappers:
                notes.append("no generated wrapper of inductor is loaded: the compiled side has no kernels")
                within = contextlib.nullcontext()
            else:
                within = generated_wrappers.Instrumented(calls, wrappers)
                kernels = within.kernels
                if not kernels:
                    notes.append("the generated code has no kernels that Python calls: none is timed")
        side = _times(step, calls, within, clock, job.seed)
        side["kernels"] = kernels
        side["replays_graphs"] = name == "compiled" and device.account(step).get("graph_launches", 0) > 0
        if side["replays_graphs"]:
            notes.append(
                "CUDA graphs are replayed in the compiled call: no kernel within them is timed, and a replay "
                "allocates nothing"
            )
        elif kernels and not any(call["label"] in kernels for call in side["calls"]):
            notes.append("Python calls none of the generated kernels in the compiled call: none is timed")
        try:
            trace = os.path.join(folder, f"{name}.trace.json")
            side["memory"] = _memory(step, calls, within, device, trace)
        except Exception as error:
            side["memory"] = None
            notes.append(f"torch.profiler gives no memory of {name}: {type(error).__name__}: {error}"[:300])
        constants[name] = calls.constants
        sides[name] = side
    document = {
        "torch": torch.__version__,
        "git": torch.version.git_version,
        "settings": {
            "mode": job.compile_mode,
            "config": job.inductor_config,
            "tf32": job.tf32 if device.kind == "cuda" else None,
        },
        "threads": torch.get_num_threads(),
        "sides": sides,
        "notes": notes,
    }
    torch.save(constants, os.path.join(folder, CONSTANTS))
    with open(os.path.join(folder, FILE), "w", encoding="utf-8") as file:
        json.dump(document, file)
    return notes


def _times(
    step: Callable[[], Any],
    calls: Calls,
    within: ContextManager[Any],
    clock: _ProfileClock,
    seed: int,
) -> dict[str, Any]:
    """Nanoseconds a call, plain and with clocks, in rounds; and of each kernel or operator.

    `calls`: in the order of the step, {label, count, ns: a number for each round, invocation}. A number is
    the median of the round's calls at each place in the step, added up over the places of a label. Where
    steps differ in what they call (`steady` is False) it is the mean a step.
    """
    best = latency_sampling.warm_up(step, clock.device, budget_s=1.0)
    with within:
        calls.around = calls.describe
        step()
        calls.around = calls.timed
        step()  # what is found once: attributes of the namespaces
        calls.marks.clear()
    described = calls.described
    repeats = max(1, min(math.ceil(_BLOCK_NS / max(best, 1.0)), _MOST_CALLS // max(1, len(described))))
    order = random.Random(seed)
    plain: list[list[Any]] = []  # the marks of each block
    instrumented: list[list[Any]] = []
    waits: list[float] = []
    rounds: list[list[tuple[str, Any, Any]]] = []
    gc.collect()
    gc.disable()
    start = time.monotonic()
    try:
        for number in range(_ROUNDS):
            for clocks in (True, False) if order.randrange(2) else (False, True):
                if not clocks:
                    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
                    plain.append(_block(step, repeats, clock))
                    after = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
                    waits.append((after - before) / repeats)
                    continue
                calls.marks = []
                with within:
                    instrumented.append(_block(step, repeats, clock))
                rounds.append(calls.marks)
            if time.monotonic() - start > _BUDGET_S and number + 1 >= _FEWEST_ROUNDS:
                break
    finally:
        gc.enable()
        calls.around = calls.run
    clock.choose(waits)
    sequence = [str(call["name"]) for call in described]
    steady = all([name for name, _, _ in marks] == sequence * repeats for marks in rounds)
    # The label of each position in the step; where steps differ, of each name.
    labels = [_label(call, calls) for call in described] if steady else sequence
    by_label: dict[str, dict[str, Any]] = {}
    for name, call in zip(labels, described):
        row = by_label.setdefault(name, {"label": name, "count": 0, "ns": [0.0] * len(rounds)})
        row["count"] += 1
        row.setdefault("invocation", call)
    for number, marks in enumerate(rounds):
        ns = [clock.between(begun, ended) for _, begun, ended in marks]
        if steady:
            for place, name in enumerate(labels):
                by_label[name]["ns"][number] += statistics.median(ns[place :: len(labels)])
            continue
        for (name, _, _), value in zip(marks, ns):
            row = by_label.setdefault(name, {"label": name, "count": 0, "ns": [0.0] * len(rounds)})
            row["ns"][number] += value / repeats
    return {
        "clock": clock.name,
        "plain_ns": [_median_call(marks, clock) for marks in plain],
        "instrumented_ns": [_median_call(marks, clock) for marks in instrumented],
        "repeats": repeats,
        "steady": steady,
        "calls": list(by_label.values()),
        "tensors": calls.tensors,
    }


def _block(step: Callable[[], Any], repeats: int, clock: _ProfileClock) -> list[Any]:
    """The marks before, between and after calls in a row."""
    marks = [clock.mark()]
    for _ in range(repeats):
        step()
        marks.append(clock.mark())
    clock.device.synchronize()
    return marks


def _median_call(marks: list[Any], clock: _ProfileClock) -> float:
    """Nanoseconds a call, the median: an interrupted call does not move it."""
    return statistics.median(clock.between(start, end) for start, end in zip(marks, marks[1:]))


def _label(call: dict[str, Any], calls: Calls) -> str:
    is_library = "." in str(call["name"])
    return generated_wrappers.label(call, calls.tensors) if is_library else str(call["name"])


def _memory(
    step: Callable[[], Any],
    calls: Calls,
    within: ContextManager[Any],
    device: Cpu | Cuda,
    trace: str,
) -> dict[str, Any]:
    """The buffers at the peak of one call, as `peak` returns them; writes the Chrome trace."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device.kind == "cuda":
        activities.append(ProfilerActivity.CUDA)
    calls.around = calls.traced
    try:
        # Of eager the ranges of the profiler's own operators suffice.
        with (
            within if not isinstance(within, Operators) else contextlib.nullcontext(),
            profile(activities=activities, profile_memory=True, record_shapes=True) as profiled,
        ):
            step()
            device.synchronize()
    finally:
        calls.around = calls.run
    profiled.export_chrome_trace(trace)
    kineto: Any = profiled.profiler
    events = list(_allocations(kineto.kineto_results.experimental_event_tree(), (), device.kind))
    return {**peak(events, calls.buffers), "trace": os.path.basename(trace)}


def _allocations(
    nodes: Any, parents: tuple[str, ...], kind: str
) -> Iterator[tuple[int, int, int, tuple[str, ...]]]:
    """(time, address, bytes, names of the operators around it) of each allocation and each release."""
    for node in nodes:
        fields = node.extra_fields
        is_allocation = hasattr(fields, "alloc_size")
        if is_allocation and getattr(getattr(fields, "device", None), "type", kind) == kind:
            yield node.start_time_ns, int(fields.ptr), int(fields.alloc_size), parents
        yield from _allocations(node.children, (*parents, str(node.name)), kind)


def peak(
    events: list[tuple[int, int, int, tuple[str, ...]]], buffers: list[dict[str, Any]]
) -> dict[str, Any]:
    """What is alive when the events' memory is largest: {peak_bytes, buffers: [{name, bytes, count}]}.

    Each buffer has the name of the operator that allocated it; one of a generated wrapper that of the kernel
    that writes it. Releases of what was allocated before count, so the peak is that above the start.
    """
    alive: dict[int, tuple[int, str]] = {}
    total, highest = 0, 0
    at_peak: list[tuple[int, str]] = []
    for _, address, size, parents in sorted(events, key=lambda event: event[0]):
        total += size
        if size > 0:
            alive[address] = (size, _allocated_by(parents, buffers))
        else:
            alive.pop(address, None)
        if total > highest:
            highest, at_peak = total, list(alive.values())
    by_name: dict[str, dict[str, Any]] = {}
    for size, name in at_peak:
        row = by_name.setdefault(name, {"name": name, "bytes": 0, "count": 0})
        row["bytes"] += size
        row["count"] += 1
    rows = sorted(by_name.values(), key=lambda row: -row["bytes"])
    return {"peak_bytes": highest, "buffers": rows}


def _allocated_by(parents: tuple[str, ...], buffers: list[dict[str, Any]]) -> str:
    for name in reversed(parents):
        if name.startswith(generated_wrappers.BUFFER):
            buffer = buffers[int(name[len(generated_wrappers.BUFFER) :])]
            shape = "x".join(map(str, buffer["shape"]))
            return f"{buffer['name'] or 'a buffer of the wrapper'} ({shape})"
        if name not in _ALLOCATING:
            return name
    return parents[-1] if parents else "outside of operators"


class _CountedOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


class RegisteredOperators:
    """The operators there are before a model is loaded, and those that Python code implements.

    What libraries register for operators of their own, as they are imported, is nothing of the model's.
    """

    def __init__(self, loader: Any, job: Any) -> None:
        self._operators = frozenset(torch._C._dispatch_get_all_op_names())
        self._implementations = _implementations()
        self._is_own = lambda file: hasattr(loader, "is_own") and loader.is_own(job, file)

    def since(self) -> list[str]:
        """What Python code implements since then, as `aten::gelu for CPU`.

        Only of operators that were there, and of those that a file of the model's own defines.
        """
        names = [name.rsplit("/", 1) for name in _implementations() - self._implementations]
        new = [(operator.replace("/", "::", 1), key) for operator, key in names]
        listed = [
            f"{operator} for {key}"
            for operator, key in new
            if operator in self._operators or self._is_own(_defined_in(operator))
        ]
        return sorted(listed)[:_MOST_OPERATORS]


def _implementations() -> FrozenSet[str]:
    """The implementations of operators that Python code has registered: aten/gelu/CPU."""
    return frozenset(getattr(torch.library, "_impls", ()))


def _defined_in(operator: str) -> str:
    """The file of Python code that defines an operator, as far as torch tells; empty for any other."""
    decorated = getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", {})
    code = getattr(getattr(decorated.get(operator), "_init_fn", None), "__code__", None)
    if code is not None:
        return str(code.co_filename)
    found = re.search(r"^debug: registered at (.+):\d+", torch._C._dispatch_dump(operator), re.MULTILINE)
    return found.group(1) if found else ""


def eager_operators(step: Callable[[], Any], before: RegisteredOperators) -> dict[str, Any]:
    """What an eager step calls below autograd, and what is registered since `before`: {calls, registered}.

    calls is None where they cannot be watched.
    """
    registered = before.since()
    try:
        return {"calls": operators_of(step), "registered": registered}
    except Exception as error:  # evidence only: it never costs the case its numbers
        print(f"perfdash: eager's operators cannot be counted: {error}", file=sys.stderr, flush=True)
        return {"calls": None, "registered": registered}


def operators_of(step: Callable[[], Any]) -> dict[str, int]:
    """Calls of each operator in one step, by name with overload."""
    with _CountedOperators() as count:
        step()
    return dict(sorted(count.calls.most_common(_MOST_OPERATORS)))
