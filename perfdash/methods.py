"""The version of the method that measures each metric, which every result record contains.

Numbers of different methods are never compared, so a change of method starts a new baseline. To change a
method, add the meaning of the new version to its list below, and name the change in CHANGELOG.md.
Python 3.9 syntax, standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfdash.metrics import METRICS

# The meaning of each version, from 1 on; the last is the current one.
MEANINGS: dict[str, tuple[str, ...]] = {
    "latency": (
        "median wall time of the clean pairs; of all pairs where fewer than half are clean",
        "median wall time of the clean pairs, where there are 30, or half of a slow model's (3 a process);"
        " else CPU time of all pairs, on one thread; else wall time of all pairs",
    ),
    "speedup": (
        "ratio of those medians; where fewer than half of the pairs are clean, CPU time widens the interval",
        "ratio of those medians and its interval, over the pairs and by the clock that the record names",
        "the same over two processes and more; the interval is that of the truth, no longer of another run,"
        " and each case's spread between processes is estimated with that of all cases",
        "the typical ratio of a pair (Hodges and Lehmann) instead of the ratio of two medians",
    ),
    "compilation": (
        "first compiled call minus a steady one, with cold caches; CPU seconds of the whole process tree",
        "the same without inductor's tests of vector instructions, which it makes once a machine",
        "the same with what later calls compile, which had counted as steady ones",
    ),
    "memory": (
        "held tensors and constants plus the transient high-water mark of steady calls; CUDA: allocator peak",
        "the same after as many calls on both sides, with tensors in plain attributes and the state of an"
        " optimizer; on the CPU no ratio that 1 MiB more or less would move by over 3 %;"
        " CUDA: with what CUDA graphs keep, without the workspaces of cuBLAS that the other side made",
    ),
    "accuracy": (
        "closeness to eager, or to a float64 judge within a factor of eager's; without a judge, cosine 0.99",
        "as before, but without a judge the relative rmse to eager is bounded beside the cosine;"
        " no pass where no output is finite, or where inputs and buffers are left otherwise",
    ),
    "capture": (
        "graphs, breaks and fallbacks by Dynamo's and Inductor's counters while compiling",
        "the same counters while compiling, judging and timing; branches on data are breaks",
    ),
    # Of latencies and speedups of OWN_THREADS with several threads alone; other cases have the same numbers.
    "own_threads": (
        "samples of a back end with threads of its own began while eager's threads still used the cores",
        "each sample begins when all threads sleep, after one uncounted call",
    ),
}  # fmt: skip
CURRENT: dict[str, int] = {name: len(meanings) for name, meanings in MEANINGS.items()}
# The back ends that method 1 of `own_threads` has measured: later ones have only known the next.
OWN_THREADS = ("onnxruntime", "onnxruntime-int8", "openvino")


def has_own_threads(case: Any) -> bool:
    """Whether latencies of a case (records.Case) depend on the method `own_threads` as well."""
    return case.backend in OWN_THREADS and case.device == "cpu" and case.threads > 1


def numbers(method: Mapping[str, int], column: str, own_threads: bool = False) -> dict[str, int]:
    """The versions of the methods that a column (or `status`) depends on, by default 1.

    `own_threads`: has_own_threads of the case.
    """
    names = METRICS[column].methods if column in METRICS else ()
    names += ("own_threads",) if own_threads and "latency" in names else ()
    return {name: method.get(name, 1) for name in names}


def alike(
    method: Mapping[str, int], other: Mapping[str, int], column: str, own_threads: bool = False
) -> bool:
    """Whether two methods measure a column in the same way.

    `own_threads`: has_own_threads of the case.
    """
    if method == other:  # nearly always, and asked millions of times
        return True
    return numbers(method, column, own_threads) == numbers(other, column, own_threads)


def changes(
    old: Mapping[str, int], new: Mapping[str, int], column: str | None = None, own_threads: bool = False
) -> list[str]:
    """The versions that differ, as `latency 1 -> 2`, of one column or of all.

    `own_threads`: has_own_threads of the case.
    """
    names = dict.fromkeys([*CURRENT, *old, *new]) if column is None else numbers(old, column, own_threads)
    pairs = [(name, old.get(name, 1), new.get(name, 1)) for name in names]
    return [f"{name} {before} -> {after}" for name, before, after in pairs if before != after]
