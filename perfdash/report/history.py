"""What the history holds, as plain text tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from prettytable import PrettyTable

from perfdash.history.queries import Point, RunLine
from perfdash.history.rows import Row
from perfdash.methods import changes
from perfdash.records import Case
from perfdash.report.dashboard import cpu_time_notes, settings
from perfdash.report.published import published
from perfdash.report.quantities import marked_clock


def run_table(runs: Sequence[RunLine]) -> str:
    """One line a run."""
    if not runs:
        return "No runs"
    table = PrettyTable(["run", "started", "state", "results", "torch", "host", "host class", "origin"])
    table.align = "l"
    table.align["results"] = "r"
    for run in runs:
        table.add_row(
            [
                run.name,
                run.started,
                run.state,
                f"{run.results}/{run.expected}" if run.expected else run.results,
                run.torch or "",
                run.host,
                _testbed(run),
                run.origin,
            ]
        )
    return str(table.get_string())


def _testbed(run: RunLine) -> str:
    setting = ", ".join(f"{name} {value}" for name, value in sorted(run.setting.items()))
    return f"{run.host_class} ({setting})" if setting else run.host_class


def run_rows(run: RunLine, rows: Sequence[Row]) -> str:
    """A run's results; `rows` with their details, or no latency is marked as CPU time."""
    table = PrettyTable(
        ["suite", "model", "bs", "dtype", "backend", "status", "speedup", "eager ms", "backend ms",
         "compile s", "memory ratio"]
    )  # fmt: skip
    table.align = "r"
    for name in ("suite", "model", "dtype", "backend", "status"):
        table.align[name] = "l"
    for row in rows:
        case = row.case
        table.add_row(
            [
                case.suite,
                case.model,
                case.batch_size,
                case.dtype,
                case.backend,
                row.status,
                _number(row.values.get("speedup"), ".3f", "x"),
                marked_clock(_number(row.values.get("eager_ms"), ".3f"), row),
                marked_clock(_number(row.values.get("backend_ms"), ".3f"), row),
                _number(row.values.get("compilation_s"), ".1f"),
                _number(row.values.get("compression_ratio"), ".3f"),
            ]
        )
    title = f"{run.name} ({run.state}), started {run.started}, {run.host_class}, torch {run.torch or '?'}"
    parts = ["\n".join([title, str(table.get_string()), *cpu_time_notes(rows)])]
    of_settings = settings(rows)
    for setting, some in of_settings.items():
        if own := published(run.facts, some, setting.title):
            where = f": {setting.title}" if len(of_settings) > 1 else ""
            parts.append(f"What the source published{where}\n{own}")
    return "\n\n".join(parts)


def series_table(case: Case, metrics: Sequence[str], points: Sequence[Sequence[Point]]) -> str:
    """One line a night, a column a metric; `points[k]` are those of `metrics[k]`, night by night.

    Below it, from which night on a metric is measured by another method.
    """
    table = PrettyTable(["run", "started", "status", *metrics, "torch", "commit"])
    table.align = "r"
    for name in ("run", "started", "status", "torch", "commit"):
        table.align[name] = "l"
    for night in zip(*points, strict=True):
        first = night[0]
        values = [_number(point.value, ".6g") for point in night]
        commit = (first.torch_git_version or "")[:10]
        table.add_row([first.run, first.started, first.status, *values, first.torch or "", commit])
    return "\n".join([case.name, str(table.get_string()), *_by_another_method(metrics, points)])


def _by_another_method(metrics: Sequence[str], points: Sequence[Sequence[Point]]) -> list[str]:
    return [
        f"{metric}: another method from {after.run} on ({', '.join(other)}), not comparable with before"
        for metric, nights in zip(metrics, points, strict=True)
        for before, after in pairwise(nights)
        if (other := changes(before.method, after.method, metric))
    ]


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"
