"""Tables for the terminal: a run's cases, the history's runs and series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from prettytable import PrettyTable

from perfdash.history.acts import RENAME, Act
from perfdash.history.queries import Point, RunLine
from perfdash.history.results import Row
from perfdash.methods import changes
from perfdash.records import DEFAULT_CONFIGURATION, PASSING, Case, Result, variation
from perfdash.report.dashboard_tables import (
    backend_of,
    cpu_time_notes,
    settings,
    several_configurations,
    status,
)
from perfdash.report.markdown import plain
from perfdash.report.number_format import mark_cpu_time
from perfdash.report.published_totals import published
from perfdash.report.step_sizes import batch_in_words

_NAMES = 8  # of kernels and library calls of one model, and of numbers without a column


def phase_table(results: Sequence[Result]) -> str:
    """The seconds of each phase of each case; `own` is what perfdash itself took."""
    phases = list(dict.fromkeys(name for result in results for name in result.phases_s))
    table = _table(["name", "backend", "wall", *phases, "own"])
    table.align["name"] = "l"
    several = several_configurations(result.case for result in results)
    for result in results:
        table.add_row(
            [
                result.case.model,
                backend_of(result.case, several),
                f"{result.wall_s:.2f}",
                *(f"{result.phases_s[p]:.2f}" if p in result.phases_s else "" for p in phases),
                f"{own_cost(result):.2f}",
            ]
        )
    return str(table.get_string())


def own_cost(result: Result) -> float:
    """Seconds of a case outside all phases: process start, journal, waiting."""
    return result.wall_s - sum(result.phases_s.values())


# Of a case without a configuration.
_USUAL = (("settings", ""), ("configuration", DEFAULT_CONFIGURATION))


def details(result: Result) -> str:
    """One case in full, without its samples."""
    from perfdash.records import to_json

    lines = [f"{result.case.model}: {status_text(result)}"]

    def walk(value: object, indent: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if key == "samples" or item in (None, {}, []) or (key, item) in _USUAL:
                    continue
                if key == "compile_phases_s":
                    lines.append(f"{indent}{key}: {_seconds_by_phase(item)}")
                elif key == "structure":
                    lines.extend(f"{indent}{line}" for line in _structure_lines(item))
                elif isinstance(item, dict):
                    lines.append(f"{indent}{key}:")
                    walk(item, indent + "  ")
                elif key == "tail":
                    lines.append(f"{indent}{key}:")
                    lines.extend(f"{indent}  | {line}" for line in item)
                else:
                    lines.append(f"{indent}{key}: {item}")

    walk(to_json(result), "  ")
    return "\n".join(lines)


def _seconds_by_phase(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{phase} {value:.2f}" for phase, value in seconds.items())


def _structure_lines(structure: Mapping[str, Any]) -> list[str]:
    """What compiling produced: the counts, then the names of kernels and library calls."""
    kernels, library = structure.get("kernels"), structure.get("library_calls")
    counts = {
        "kernels": None if kernels is None else len(kernels),
        "library calls": None if library is None else sum(library.values()),
        "guards": structure.get("guards"),
        "graph nodes": structure.get("graph_nodes"),
        "recompiles": structure.get("recompiles"),
        "bytes of code": structure.get("code_bytes"),
    }
    parts = [f"{count:,} {what}" for what, count in counts.items() if count is not None]
    if structure.get("fingerprint"):
        parts.append(f"fingerprint {structure['fingerprint']}")
    lines = [f"structure: {', '.join(parts)}"]
    if kernels:
        lines.append(f"  kernels: {_first([kernel['name'] for kernel in kernels])}")
    if library:
        lines.append(f"  library calls: {_first([f'{count} {name}' for name, count in library.items()])}")
    if given_up := structure.get("frames_given_up"):
        lines.append(f"  frames given up: {_first([f'{count} {why}' for why, count in given_up.items()])}")
    return lines


def _first(names: Sequence[str]) -> str:
    more = f", {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more


def one_line(result: Result) -> str:
    """A finished case as one line of a log."""
    text = f"{result.case.model}{_way(result.case)}: {status_text(result)}"
    if result.speedup:
        speed = result.speedup
        text += f", {speed.value:.3f}x"
        if speed.ci_low is not None and speed.ci_high is not None:
            text += f" [{speed.ci_low:.3f}, {speed.ci_high:.3f}]"
        text += f" {verdict_text(result)}".rstrip()
    if result.compilation_s is not None:
        text += f", compile {result.compilation_s:.1f} s"
    if result.compression_ratio:
        text += f", memory {result.compression_ratio:.3f}x"
    if result.error:
        text += f" in {result.failed_phase}: {result.error.message.splitlines()[0][:160]}"
    if result.skip_reason:
        text += f": {result.skip_reason}"
    return f"{text}  ({result.wall_s:.0f} s)"


def _way(case: Case) -> str:
    """What differs from the defaults in a case: ` (bs 16, torchscript)`."""
    parts = [f"bs {case.batch_size}"] if case.batch_size != 1 else []
    parts += [case.backend] if case.backend != "inductor" else []
    parts += [word for word in [variation(case.configuration, case.dynamic)] if word]
    parts += (
        [f"amp-{case.amp_dtype}" if case.dtype == "amp" else case.dtype] if case.dtype != "float32" else []
    )
    return f" ({', '.join(parts)})" if parts else ""


def status_text(result: Result) -> str:
    """The status, marked where nothing was captured: such a 1.00x means nothing."""
    return result.marked_status


def verdict_text(result: Result) -> str:
    """The verdict and the basis of its interval; empty for a wrong result."""
    if not result.speedup or result.status not in PASSING:
        return ""
    basis = result.speedup.basis
    return result.speedup.verdict + ("" if basis == "processes" else f" ({basis})")


def _table(columns: list[str]) -> PrettyTable:
    table = PrettyTable()
    table.field_names = columns
    return table


def run_table(runs: Sequence[RunLine]) -> str:
    """A table of runs, one line each."""
    if not runs:
        return "No runs"
    table = PrettyTable(["run", "started", "state", "results", "torch", "host", "host class", "origin"])
    table.align = "l"
    table.align["results"] = "r"
    for run in runs:
        table.add_row(
            [
                run.name if run.excluded is None else struck_through(run.name),
                run.started,
                run.state if run.excluded is None else f"{run.state}, excluded",
                f"{run.results}/{run.expected}" if run.expected else run.results,
                run.torch or "",
                run.host,
                _testbed(run),
                run.origin,
            ]
        )
    reasons = [f"{run.name} is excluded: {plain(run.excluded)}" for run in runs if run.excluded is not None]
    return "\n".join([str(table.get_string()), *reasons])


def act_table(acts: Sequence[Act]) -> str:
    """A table of what people did to the history and its alerts, oldest first."""
    if not acts:
        return "Nobody has changed this history or its alerts by hand"
    table = PrettyTable(["when", "who", "act", "what", "why"])
    table.align = "l"
    for act in acts:
        table.add_row([act.at, plain(act.person), act.act, plain(_subject(act)), plain(act.why or "", 500)])
    return str(table.get_string())


def _subject(act: Act) -> str:
    details = act.details
    if act.act == RENAME:
        return f"{act.subject} -> {details.get('name')}"
    words = [f"{name} {details[name]}" for name in ("until", "suite", "model", "metric") if details.get(name)]
    return ", ".join([act.subject, *words])


def struck_through(text: str) -> str:
    """The text between tildes, as Markdown strikes it through; every terminal can show it."""
    return f"~~{text}~~"


def _testbed(run: RunLine) -> str:
    setting = ", ".join(f"{name} {value}" for name, value in sorted(run.setting.items()))
    return f"{run.host_class} ({setting})" if setting else run.host_class


def run_rows(run: RunLine, rows: Sequence[Row]) -> str:
    """The results of a run; marking CPU time and the recompile limit needs `rows` with their details."""
    table = PrettyTable(
        ["suite", "model", "bs", "dtype", "backend", "status", "speedup", "eager ms", "backend ms",
         "compile s", "memory ratio"]
    )  # fmt: skip
    table.align = "r"
    for name in ("suite", "model", "dtype", "backend", "status"):
        table.align[name] = "l"
    several = several_configurations(row.case for row in rows)
    for row in rows:
        case = row.case
        table.add_row(
            [
                case.suite,
                case.model,
                batch_in_words(row),
                case.dtype,
                backend_of(case, several),
                status(row),
                _number(row.values.get("speedup"), ".3f", "x"),
                mark_cpu_time(_number(row.values.get("eager_ms"), ".3f"), row),
                mark_cpu_time(_number(row.values.get("backend_ms"), ".3f"), row),
                _number(row.values.get("compilation_s"), ".1f"),
                _number(row.values.get("compression_ratio"), ".3f"),
            ]
        )
    title = f"{run.name} ({run.state}), started {run.started}, {run.host_class}, torch {run.torch or '?'}"
    excluded = [f"Excluded from judging: {plain(run.excluded)}"] if run.excluded is not None else []
    notes = [*cpu_time_notes(rows), *_note_of_others(rows)]
    parts = ["\n".join([title, *excluded, str(table.get_string()), *notes])]
    of_settings = settings(rows)
    for setting, group in of_settings.items():
        if own := published(run.facts, group, setting):
            where = f": {setting.title}" if len(of_settings) > 1 else ""
            parts.append(f"What the source published{where}\n{own}")
    return "\n\n".join(parts)


def _note_of_others(rows: Sequence[Row]) -> list[str]:
    """A line that names the numbers without a column, if there are any; `rows` have their details."""
    names = sorted({name for row in rows for name in row.others})
    if not names:
        return []
    count = sum(bool(row.others) for row in rows)
    several = f"{count} results have" if count > 1 else "1 result has"
    shown = ", ".join(plain(name) for name in names[:_NAMES])
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return [f"{several} numbers without a column, which --json prints: {shown}{more}"]


def series_table(case: Case, metrics: Sequence[str], points: Sequence[Sequence[Point]]) -> str:
    """A case over time, a line per night; `points[k]` belong to `metrics[k]`.

    Below it, which nights are excluded, and from which night on a metric is measured by another method.
    """
    table = PrettyTable(["run", "started", "status", *metrics, "torch", "commit"])
    table.align = "r"
    for name in ("run", "started", "status", "torch", "commit"):
        table.align[name] = "l"
    for night in zip(*points, strict=True):
        first = night[0]
        values = [_number(point.value, ".6g") for point in night]
        commit = (first.torch_git_version or "")[:10]
        name = first.run if first.excluded is None else struck_through(first.run)
        words = f"{first.status} ({first.remark})" if first.remark else first.status
        table.add_row([name, first.started, words, *values, first.torch or "", commit])
    excluded = [
        f"{night[0].run} is excluded: {plain(night[0].excluded)}"
        for night in zip(*points, strict=True)
        if night[0].excluded is not None
    ]
    return "\n".join([case.name, str(table.get_string()), *excluded, *_by_another_method(metrics, points)])


def _by_another_method(metrics: Sequence[str], points: Sequence[Sequence[Point]]) -> list[str]:
    return [
        f"{metric}: another method from {after.run} on ({', '.join(other)}), not comparable with before"
        for metric, nights in zip(metrics, points, strict=True)
        for before, after in pairwise(nights)
        if (other := changes(before.method, after.method))  # they are those of this metric and case
    ]


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"
