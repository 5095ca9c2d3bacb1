"""The summary of a run on the terminal: a card for one result, else a table of results and their means. Pure.

A width limits the table: columns that matter least are left out, and a line below names them.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfdash.history.pass_rates_and_means import (
    SETTING,
    Summary,
    gave_up,
    grouped,
    nothing_captured,
    summarize,
)
from perfdash.history.results import Row, from_result, is_cpu_time
from perfdash.records import PASSING, Result, RunInfo, Status
from perfdash.report import dashboard_tables as dashboard
from perfdash.report.markdown import plain
from perfdash.report.model_card import card, wrapped
from perfdash.report.number_format import CPU_TIME_NOTE, digits, mark_cpu_time
from perfdash.report.step_sizes import batch_in_words, size_in_words
from perfdash.stats.speedup import null_warning

# What a reader must know first: wrong outputs, then what failed, then what became slower.
_WRONG, _FAILED, _SLOWER, _UNKNOWN, _EQUIVALENT, _FASTER, _NOT_RUN = range(7)
_GAP = 2  # spaces between columns
_SHORTEST = 12  # characters that a cell is cut to


@dataclass(frozen=True)
class Column:
    """A column of a table; the highest `rank` is left out first where it is too wide, 0 never."""

    name: str
    rank: int
    cells: Sequence[str]
    is_text: bool = False

    @property
    def width(self) -> int:
        return max(map(len, [self.name, *self.cells]))

    def shortened(self, width: int) -> Column:
        """The column with its cells cut in the middle, so that both ends of a name can be read."""
        half = (width - 2) // 2
        cut = [c if len(c) <= width else f"{c[: width - 2 - half]}..{c[-half:]}" for c in self.cells]
        return replace(self, cells=cut)


def summary(
    results: Sequence[Result], info: RunInfo, width: int | None = None, folder: Path | None = None
) -> str:
    """The results of a run; width None: all columns, nothing is wrapped.

    `folder`: of the run, for commands that show more; without it they name the run's id.
    """
    run = str(folder or info.id)
    if len(results) == 1 and info.cases == 1:
        warnings = [wrapped(line, width) for line in _warnings(info)]
        return "\n".join([*warnings, card(results[0], _place(results[0], info), run, width)])
    rows = [from_result(result) for result in results]
    case = results[0].case
    head = [
        f"Run {info.id} ({info.state}): {len(results)} of {info.cases} cases, {case.scenario}{_shared(rows)}",
        *(f"{label.capitalize()}: {text}" for label, text in _place(results[0], info)),
        *_warnings(info),
    ]
    results_part, hidden = results_table(rows, width)
    means_part, hidden_means = means_table(rows, width)
    hidden = list(dict.fromkeys([*hidden, *hidden_means]))
    names = _names(rows)
    parts = [
        *(wrapped(line, width) for line in head),
        "",
        results_part,
        "",
        means_part,
        *_failures(results, names, width),
        *_notes(results, names, width),
        *(["", _left_out(hidden, run, width)] if hidden and width else []),
    ]
    return "\n".join(parts)


def results_table(rows: Sequence[Row], width: int | None) -> tuple[str, list[str]]:
    """A table with a line for each result, the worst first; and the columns that were left out."""
    rows = sorted(rows, key=_what_matters)
    alike = () if width is None else _alike(rows)
    cells: Sequence[tuple[str, int, bool, Callable[[Row], str]]] = (
        ("suite", 0, True, lambda row: plain(row.case.suite)),
        ("model", 0, True, lambda row: plain(row.case.model)),
        ("batch", 0, False, batch_in_words),
        ("dtype", 0, True, _dtype),
        ("compiler", 0, True, _compiler(rows)),
        ("result", 0, True, _outcome),
        ("speedup", 0, False, lambda row: dashboard.shown(row.values.get("speedup"), ".3f", "x")),
        ("95 % interval", 1, False, dashboard.interval),
        ("eager ms", 3, False, lambda row: _milliseconds(row, "eager_ms")),
        ("compiled ms", 2, False, lambda row: _milliseconds(row, "backend_ms")),
        ("compile s", 4, False, lambda row: dashboard.shown(row.values.get("compilation_s"), ".1f")),
        ("memory ratio", 5, False, lambda row: dashboard.shown(row.values.get("compression_ratio"), ".3f")),
        ("breaks", 6, False, lambda row: dashboard.shown(row.values.get("graph_breaks"), ".0f")),
        ("graphs", 7, False, lambda row: dashboard.shown(row.values.get("graphs"), ".0f")),
        ("eager MB", 8, False, lambda row: _megabytes(row, "eager_peak_bytes")),
        ("compiled MB", 8, False, lambda row: _megabytes(row, "backend_peak_bytes")),
        ("compile CPU s", 9, False, lambda row: dashboard.shown(row.values.get("compilation_cpu_s"), ".1f")),
    )  # fmt: skip
    columns = [
        Column(name, rank, [cell(row) for row in rows], words)
        for name, rank, words, cell in cells
        if name not in alike
    ]
    note = [CPU_TIME_NOTE] if any("backend_ms" in row.values and is_cpu_time(row) for row in rows) else []
    table, left_out = _fitted(columns, width)
    return "\n".join([table, *note]), left_out


def means_table(rows: Sequence[Row], width: int | None) -> tuple[str, list[str]]:
    """A table of the means of each suite and compiler; and the columns that were left out."""
    groups = grouped(rows)
    names = dashboard.compilers([setting[1:] for setting in groups])
    means = [summarize(group) for group in groups.values()]
    suites = [plain(str(setting[SETTING.index("suite")])) for setting in groups]
    numbers: Sequence[tuple[str, int, Callable[[Summary], str]]] = (
        ("pass", 0, dashboard.pass_rate),
        ("mean speedup", 0, dashboard.speedup),
        ("compile s", 2, dashboard.compilation),
        ("memory ratio", 3, lambda of: dashboard.shown(of.compression_ratio, ".3f", "x")),
        ("clipped mean", 4, dashboard.clipped),
    )
    columns = [Column("means of", 0, suites, True)]
    if width is None or len(set(names)) > 1:
        columns.append(Column("compiler", 0, names, True))
    columns += [Column(name, rank, [cell(of) for of in means]) for name, rank, cell in numbers]
    return _fitted(columns, width)


def _fitted(columns: Sequence[Column], width: int | None) -> tuple[str, list[str]]:
    """A table of the columns that fit, and the names of the others. Columns without any text are left out."""
    kept = [column for column in columns if any(column.cells)]
    left_out: list[str] = []
    while width is not None and sum(column.width + _GAP for column in kept) - _GAP > width:
        last = max(reversed(kept), key=lambda column: column.rank)
        if not last.rank:
            break
        kept.remove(last)
        left_out.append(last.name)
    if width is not None and (excess := sum(column.width + _GAP for column in kept) - _GAP - width) > 0:
        longest = max(kept, key=lambda column: (column.is_text, column.width))
        kept[kept.index(longest)] = longest.shortened(max(_SHORTEST, longest.width - excess))
    lines = [[column.name for column in kept], *zip(*(column.cells for column in kept), strict=True)]
    texts = [
        (" " * _GAP)
        .join(
            cell.ljust(column.width) if column.is_text else cell.rjust(column.width)
            for column, cell in zip(kept, line, strict=True)
        )
        .rstrip()
        for line in lines
    ]
    return "\n".join(texts), left_out


def _alike(rows: Sequence[Row]) -> dict[str, str]:
    """What all results share, in words, by the columns that would say it in every line."""
    words = {
        "suite": {f"suite {plain(row.case.suite)}" for row in rows},
        "batch": {size_in_words(row) for row in rows},
        "dtype": {_dtype(row) for row in rows},
        "compiler": set(map(_compiler(rows), rows)),
    }
    return {name: next(iter(texts)) for name, texts in words.items() if len(texts) == 1}


def _shared(rows: Sequence[Row]) -> str:
    return "".join(f", {text}" for text in _alike(rows).values())


def _compiler(rows: Sequence[Row]) -> Callable[[Row], str]:
    several = dashboard.several_configurations(row.case for row in rows)
    return lambda row: plain(dashboard.backend_of(row.case, several))


def _what_matters(row: Row) -> tuple[Any, ...]:
    """A sort key: wrong outputs and failures first, then from the slowest to the fastest."""
    speedup = row.values.get("speedup", 0.0)
    by_verdict = {"slower": _SLOWER, "equivalent": _EQUIVALENT, "faster": _FASTER}
    if row.status == Status.FAIL_ACCURACY:
        group = _WRONG
    elif row.status in (Status.SKIPPED, Status.NOT_TONIGHT):
        group = _NOT_RUN
    elif row.status not in PASSING:
        group = _FAILED
    else:
        group = by_verdict.get(row.verdict or "", _UNKNOWN)
    return group, speedup, row.case.model.lower(), row.case.name


def _outcome(row: Row) -> str:
    """The verdict of a result that passed, else its status; marked where not all of it was compiled."""
    if row.status == Status.PASS and nothing_captured(row):
        return "nothing captured"
    if row.status == Status.PASS and (verdict := dashboard.verdict(row)):
        return f"{verdict} (recompile limit)" if gave_up(row) else verdict
    return dashboard.status(row)


def _dtype(row: Row) -> str:
    return plain(f"amp-{row.case.amp_dtype}" if row.case.amp_dtype else row.case.dtype)


def _milliseconds(row: Row, name: str) -> str:
    value = row.values.get(name)
    return "" if value is None else mark_cpu_time(digits(value), row)


def _megabytes(row: Row, name: str) -> str:
    return dashboard.shown(row.values.get(name), ".1f", "", 1e-6)


def _left_out(names: Sequence[str], run: str, width: int) -> str:
    text = wrapped(f"Not shown in {width} columns: {', '.join(names)}. To see them:", width)
    return f"{text}\n  {shlex.join(['perfdash', 'show', run, '--wide'])}"


def _failures(results: Sequence[Result], names: Sequence[str], width: int | None) -> list[str]:
    """Why models failed or were skipped, a line each."""
    lines = []
    for result, name in zip(results, names, strict=True):
        error = " ".join(result.error.message.split()) if result.error else ""
        reason = result.skip_reason or error or str(result.accuracy.get("detail") or "")
        if result.status not in PASSING and reason:
            where = f" in {result.failed_phase}" if result.failed_phase else ""
            lines.append(f"{name}: {result.marked_status}{where}: {plain(reason, 1000)}")
    return ["", "Why", *(wrapped(f"  {line}", width, "    ") for line in lines)] if lines else []


def _notes(results: Sequence[Result], names: Sequence[str], width: int | None) -> list[str]:
    """The notes of the results, the models with the same note together."""
    noted: dict[str, list[tuple[str, str]]] = {}
    name_of = dashboard.model_names(result.case for result in results)
    models = [plain(name_of[result.case.suite, result.case.model]) for result in results]
    count = Counter(models)
    for result, model, name in zip(results, models, names, strict=True):
        for note in dict.fromkeys(result.notes):
            noted.setdefault(note, []).append((model, name))
    lines = []
    for note, named in noted.items():
        noted_count = Counter(model for model, _ in named)
        words = [model if noted_count[model] == count[model] else name for model, name in named]
        lines.append(f"{', '.join(dict.fromkeys(words))}: {note}")
    return ["", "Notes", *(wrapped(f"  {line}", width, "    ") for line in lines)] if lines else []


def _names(rows: Sequence[Row]) -> list[str]:
    """The model of each result, as `model_names` has it; of several results also what not all share."""
    alike, count = _alike(rows), Counter((row.case.suite, row.case.model) for row in rows)
    cells = {"batch": size_in_words, "dtype": _dtype, "compiler": _compiler(rows)}
    name_of = dashboard.model_names(row.case for row in rows)
    names = []
    for row in rows:
        model = row.case.suite, row.case.model
        words = [cell(row) for column, cell in cells.items() if column not in alike]
        is_one = count[model] == 1 or not words
        names.append(plain(name_of[model]) + ("" if is_one else f" with {' '.join(words)}"))
    return names


def _place(result: Result, info: RunInfo) -> list[tuple[str, str]]:
    """(label, text) of where it was measured, and how noisy that machine was; of a run without, nothing."""
    environment = info.environment
    if not environment:  # no worker was started
        return []
    worker = environment.get("worker", {})
    versions, commits = worker.get("packages", {}), worker.get("commits") or {}
    own = "".join(f", {name} {versions.get(name)} {commit[:10]}" for name, commit in commits.items())
    processor = environment.get("cpu", "?")
    if result.case.device != "cpu":
        processor = ", ".join(map(str, environment.get("gpus") or [])) or result.case.device
    where = f"{_threads(result.case.threads)} {_where(info)}"
    return [
        ("on", f"{processor}, {where}"),
        ("with", f"torch {worker.get('torch', '?')}{own}"),
        ("noise", _noise(info)),
    ]


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _where(info: RunInfo) -> str:
    """Where the last session that had cases left measured: its cores, or its slots on hosts."""
    session: dict[str, Any] = next((of for of in reversed(info.sessions) if of.get("slots")), {})
    slots = session.get("slots", [])
    if not slots:
        cores = info.configuration.get("cores")
        return f"on core {', '.join(map(str, cores))}" if isinstance(cores, list) else "on no slot"
    hosts = {slot["host"] for slot in slots}
    at_once = session.get("at_once", len(slots))
    count = f"{len(slots)} slots" if at_once == len(slots) else f"{at_once} of {len(slots)} slots"
    if len(hosts) > 1:
        return f"in {count} on {len(hosts)} hosts"
    places = " + ".join(", ".join(map(str, slot["cores"])) for slot in slots)
    return f"on core {places}" if len(slots) == 1 else f"in {count}, cores {places}"


def _noise(info: RunInfo) -> str:
    worst = info.noise.get("null", {}).get("worst")
    between = info.noise.get("between_processes", {}).get("relative_sd")
    parts = []
    if worst is not None:
        parts.append(f"a model compared with itself differs by at most {worst:.2%}")
    if between is not None:
        parts.append(f"processes differ by {between:.2%} (standard deviation)")
    return "; ".join(parts) or "not measured"


def _warnings(info: RunInfo) -> list[str]:
    warning = null_warning(info.noise.get("null", {}).get("worst"))
    return [f"WARNING: {warning}"] if warning else []
