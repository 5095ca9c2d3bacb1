"""Plots of a run and of its history, by matplotlib. `KINDS` lists those made from a run's rows.

A new kind is a file with a function from rows to pictures, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from perfdash.history.results import Row
from perfdash.report.plots.compilation_plot import compilation
from perfdash.report.plots.drawing import Picture, encoded, look
from perfdash.report.plots.memory_plot import memory
from perfdash.report.plots.scaling_plot import latency, throughput
from perfdash.report.plots.speedup_plot import speedup
from perfdash.report.plots.technique_plot import latency_comparison, throughput_comparison
from perfdash.report.plots.trend_plot import TrendPoint, trend

KINDS: dict[str, Callable[[Iterable[Row]], Iterator[Picture]]] = {
    "speedup": speedup,
    "latency": latency,
    "throughput": throughput,
    "memory": memory,
    "compile": compilation,
    "latency_comparison": latency_comparison,
    "throughput_comparison": throughput_comparison,
}


def files_of_rows(kind: str, rows: Sequence[Row]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each file of a kind; empty without data to plot."""
    yield from _files(KINDS[kind](rows))


def files_of_trend(nights: Sequence[TrendPoint]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the plots of means over nights (history.queries.trend)."""
    yield from _files(trend(nights))


def _files(pictures: Iterator[Picture]) -> Iterator[tuple[str, bytes]]:
    while True:
        with look():  # not while the caller works: it is set for the whole process
            picture = next(pictures, None)
            files = encoded(picture) if picture else {}
        if picture is None:
            return
        yield from files.items()
