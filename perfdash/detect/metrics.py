"""What is judged of a case from night to night."""

from __future__ import annotations

from dataclasses import dataclass

from perfdash.history.rows import PARTS
from perfdash.stats import alarm


@dataclass(frozen=True)
class Metric:
    """A judged metric, of which more is worse; changes below `minimum` (a fraction) are of no interest.

    `whole`: the metric that it is a part of, which says what the whole host did.
    """

    name: str
    title: str
    minimum: float = alarm.MINIMUM_CHANGE
    of_eager: bool = False
    whole: str | None = None


METRICS = {
    metric.name: metric
    for metric in (
        Metric("eager_ms", "eager latency", of_eager=True),
        Metric("backend_ms", "compiled latency"),
        Metric("compilation_cpu_s", "compilation CPU seconds", 0.10),
        Metric("eager_peak_bytes", "eager peak memory", of_eager=True),
        Metric("backend_peak_bytes", "compiled peak memory"),
        *(Metric(name, title, 0.05, whole="backend_ms") for name, title in PARTS.items()),
    )
}
# Whole numbers that do not scatter: any change is one.
COUNTS = {"graph_breaks": "graph breaks", "fallbacks": "fallbacks to eager kernels"}
