"""The registry of metrics: column, title, unit, direction, threshold and chart of each number.

A metric with a threshold is judged every night and can raise an alert. A metric without one is evidence: it
is stored, shown beside alerts, and never raises one. Python 3.9 syntax, standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MINIMUM_CHANGE = 0.02  # the smallest change of interest, as a fraction
EQUIVALENCE_MARGIN = 0.03  # so far from 1.00x a speedup counts as equivalent, unless the run says otherwise
_PART_CHANGE = 0.05  # parts of a step are noisier than the step
_CPU_CHANGE = 0.10
EVIDENCE = math.inf  # no change is large enough to be judged

Kind = Literal["latency", "time", "memory", "ratio", "deviation", "count", "status"]
Comparison = Literal["ratio", "count", "status"]
_UNITS = {"latency": "ms", "time": "s", "memory": "MB", "ratio": "x"}


@dataclass(frozen=True)
class Chart:
    """The chart of a metric on a model's page: position, title and hint."""

    place: int
    title: str
    hint: str


@dataclass(frozen=True)
class Metric:
    """A number of a result, or its status.

    `column`: its name in the history, in JSON and CSV; "" for the output of a user's command. `name`: its
    name in `perfdash bisect --metric`; "" where it cannot be bisected. `threshold`: the smallest relative
    change that is judged; 0 for counts, of which every change is judged; EVIDENCE otherwise. `methods`: the
    entries of perfdash.methods that its numbers depend on. `part_of`: the metric that contains it;
    `scenario`: the only one that measures it.
    """

    column: str
    title: str
    kind: Kind
    name: str = ""
    more_is_worse: bool | None = True
    threshold: float = EVIDENCE
    methods: tuple[str, ...] = ()
    of_eager: bool = False
    part_of: str | None = None
    scenario: str | None = None
    has_interval: bool = False
    chart: Chart | None = None

    @property
    def unit(self) -> str:
        return _UNITS.get(self.kind, "")

    @property
    def scale(self) -> float:
        """The factor from a stored value to one in `unit`."""
        return 1e-6 if self.kind == "memory" else 1.0

    @property
    def is_integer(self) -> bool:
        return self.kind in ("memory", "count")

    @property
    def is_evidence(self) -> bool:
        """Whether it is stored and shown, and never raises an alert."""
        return self.threshold == EVIDENCE

    @property
    def comparison(self) -> Comparison:
        """How two values are compared: by their ratio, by their difference, or as words."""
        if self.kind == "count":
            return "count"
        return "status" if self.kind == "status" else "ratio"

    @property
    def is_answer(self) -> bool:
        """Whether its value is a word, such as a status, which is compared without statistics."""
        return self.kind == "status"

    @property
    def bisect_title(self) -> str:
        """Its title without the context of a table: parts belong to the compiled step."""
        return f"compiled {self.title}" if self.part_of else self.title


def _interval(column: str, title: str, kind: Kind, methods: tuple[str, ...]) -> list[Metric]:
    return [
        Metric(f"{column}_{end}", f"{title}, {end} bound", kind, methods=methods) for end in ("low", "high")
    ]


def _latency(column: str, title: str, name: str, *, of_eager: bool, chart: Chart) -> list[Metric]:
    metric = Metric(
        column, title, "latency", name, threshold=MINIMUM_CHANGE, methods=("latency",), of_eager=of_eager,
        has_interval=True, chart=chart,
    )  # fmt: skip
    return [metric, *_interval(column, title, "latency", ("latency",))]


def _part(column: str, title: str, scenario: str, chart: Chart) -> Metric:
    return Metric(
        column, title, "latency", column[: -len("_ms")], threshold=_PART_CHANGE, methods=("latency",),
        part_of="backend_ms", scenario=scenario, chart=chart,
    )  # fmt: skip


def _memory(
    column: str,
    title: str,
    name: str = "",
    *,
    threshold: float = EVIDENCE,
    of_eager: bool = False,
    chart: Chart | None = None,
) -> Metric:
    return Metric(
        column,
        title,
        "memory",
        name,
        threshold=threshold,
        methods=("memory",),
        of_eager=of_eager,
        chart=chart,
    )  # fmt: skip


# In the order of the columns of the history and of CSV files. Parts belong to the compiled step, which is a
# training step (worker.scenarios.training) or a generation (worker.scenarios.generation).
_REGISTRY: tuple[Metric, ...] = (
    *_latency(
        "eager_ms", "eager latency", "eager", of_eager=True,
        chart=Chart(3, "Eager latency", "lower is better"),
    ),
    *_latency(
        "backend_ms", "compiled latency", "backend", of_eager=False,
        chart=Chart(2, "Compiled latency", "lower is better"),
    ),
    Metric(
        "speedup", "speedup", "ratio", "speedup", more_is_worse=False, methods=("speedup", "latency"),
        has_interval=True, chart=Chart(1, "Speedup", "eager / compiled; higher is better"),
    ),
    *_interval("speedup", "speedup", "ratio", ("speedup", "latency")),
    Metric("speedup_sd", "speedup, standard deviation", "deviation", methods=("speedup", "latency")),
    Metric(
        "compilation_s", "compilation latency", "time", "compile", methods=("compilation",),
        chart=Chart(4, "Compilation", "wall seconds, cold caches"),
    ),
    Metric(
        "compilation_cpu_s", "compilation CPU seconds", "time", "compile-cpu", threshold=_CPU_CHANGE,
        methods=("compilation",), chart=Chart(5, "Compilation, CPU seconds", "of the whole process tree"),
    ),
    Metric("first_call_s", "first call", "time", methods=("compilation",)),
    Metric("warm_compilation_s", "warm compilation latency", "time", methods=("compilation",)),
    Metric(
        "compression_ratio", "memory compression ratio", "ratio", "compression", more_is_worse=False,
        methods=("memory",), chart=Chart(8, "Memory compression", "eager / compiled; higher is better"),
    ),
    Metric("wall_s", "wall time of the case", "time"),
    _part(
        "forward_ms", "forward pass", "training",
        Chart(9, "Compiled forward pass", "with the loss; lower is better"),
    ),
    _part("backward_ms", "backward pass", "training", Chart(10, "Compiled backward pass", "lower is better")),
    _part("optimizer_ms", "optimizer step", "training", Chart(11, "Optimizer step", "lower is better")),
    _part(
        "prefill_ms", "prefill", "generation",
        Chart(12, "Compiled prefill", "time to the first token; lower is better"),
    ),
    _part(
        "decode_ms", "decoding", "generation",
        Chart(13, "Compiled decoding", "of all further tokens; lower is better"),
    ),
    _memory(
        "eager_peak_bytes", "eager peak memory", threshold=MINIMUM_CHANGE, of_eager=True,
        chart=Chart(7, "Eager peak memory", "lower is better"),
    ),
    _memory(
        "backend_peak_bytes", "compiled peak memory", "memory", threshold=MINIMUM_CHANGE,
        chart=Chart(6, "Compiled peak memory", "lower is better"),
    ),
    _memory("compile_peak_bytes", "peak memory while compiling"),
    _memory("compile_held_bytes", "memory held after compiling"),
    _memory("weights_bytes", "weights"),
    Metric("graphs", "graphs", "count", more_is_worse=None, methods=("capture",)),
    Metric("graph_breaks", "graph breaks", "count", "graph-breaks", threshold=0.0, methods=("capture",)),
    Metric(
        "calls_captured", "captured calls", "count", more_is_worse=False, threshold=0.0, methods=("capture",)
    ),
    Metric("fallbacks", "fallbacks to eager kernels", "count", threshold=0.0, methods=("capture",)),
    Metric("recompiles", "recompiles", "count", "recompiles", threshold=0.0, methods=("capture",)),
    *(
        Metric(f"{side}_instructions", f"instructions per {title} call", "count", of_eager=side == "eager")
        for side, title in (("eager", "eager"), ("backend", "compiled"))
    ),
    Metric("accuracy", "accuracy", "status", "accuracy", more_is_worse=None, methods=("accuracy",)),
    # A pass without captured calls does not count as one, so the status depends on how captures are counted.
    Metric("status", "status", "status", "status", more_is_worse=None, methods=("accuracy", "capture")),
)  # fmt: skip
METRICS: dict[str, Metric] = {metric.column: metric for metric in _REGISTRY}


def _columns(metrics: Iterable[Metric]) -> dict[str, Metric]:
    return {metric.column: metric for metric in metrics}


# The numbers of a result, each with a column of its own in the history.
NUMBERS = _columns(metric for metric in _REGISTRY if metric.kind != "status")
# The numbers with noise that are judged every night; parts come after the metric that contains them.
JUDGED = _columns(
    sorted(
        (metric for metric in NUMBERS.values() if metric.kind != "count" and not metric.is_evidence),
        key=lambda metric: metric.part_of is not None,
    )
)
# The numbers without noise that are judged every night: every change counts.
JUDGED_COUNTS = _columns(
    metric for metric in NUMBERS.values() if metric.kind == "count" and not metric.is_evidence
)
PARTS = _columns(metric for metric in NUMBERS.values() if metric.part_of)
CHARTS: dict[str, Chart] = dict(
    sorted(
        ((metric.column, metric.chart) for metric in NUMBERS.values() if metric.chart),
        key=lambda item: item[1].place,
    )
)


def title_of(column: str) -> str:
    """The title of a metric; the column itself for a metric that is not registered."""
    return METRICS[column].title if column in METRICS else column


def is_sampled(column: str) -> bool:
    """Whether a column comes from the timed samples, which other programs can spoil."""
    return column in METRICS and not {"latency", "speedup"}.isdisjoint(METRICS[column].methods)
