"""The tables of the reference dashboard: models by compilers, and means by suite."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prettytable import PrettyTable

from perfdash.history.failures import failure
from perfdash.history.pass_rates_and_means import (
    Summary,
    grouped,
    is_counted,
    remark,
    summarize,
)
from perfdash.history.results import Row, is_cpu_time
from perfdash.records import DEFAULT_CONFIGURATION, PASSING, Case, Status, variation, variation_in_words
from perfdash.report.markdown import plain
from perfdash.report.number_format import CPU_TIME_NOTE, mark_cpu_time
from perfdash.report.step_sizes import batch_in_words

_PASSING = {str(status) for status in PASSING}


def several_configurations(cases: Iterable[Case]) -> bool:
    """Whether cases ran under more than one configuration: only then is its name shown."""
    return len({(case.configuration, case.settings) for case in cases}) > 1


def backend_of(case: Case, several: bool) -> str:
    """The back end, with the name of the configuration where there are several."""
    return f"{case.backend} ({case.configuration})" if several else case.backend


def model_names(cases: Iterable[Case]) -> dict[tuple[str, str], str]:
    """The name of each (suite, model), with the suite where several suites have a model of that name."""
    models = dict.fromkeys((case.suite, case.model) for case in cases)
    suites = Counter(model for _, model in models)
    return {(suite, model): f"{suite}/{model}" if suites[model] > 1 else model for suite, model in models}


def dtype_words(dtype: str, amp_dtype: str | None) -> str:
    """The dtype, with that of autocast where it has one."""
    return f"amp ({amp_dtype})" if amp_dtype else dtype


@dataclass(frozen=True)
class DashboardSetting:
    """What all models below one title share; suites and compilers differ."""

    device: str
    dtype: str
    threads: int
    scenario: str
    dynamic: bool
    is_whole_socket: bool = False
    configuration: str = DEFAULT_CONFIGURATION
    settings: str = ""

    @classmethod
    def of(cls, row: Row) -> DashboardSetting:
        case, conditions = row.case, row.details.get("conditions") or {}
        is_whole = case.device == "cpu" and case.threads > 1 and bool(conditions.get("whole_socket"))
        return cls(
            case.device,
            dtype_words(case.dtype, case.amp_dtype),
            case.threads,
            case.scenario,
            case.dynamic,
            is_whole,
            case.configuration,
            case.settings,
        )

    @property
    def title(self) -> str:
        """As the reference dashboard has it, and what differs from it."""
        several = (
            f"Single-socket Multi-threads ({self.threads})"
            if self.is_whole_socket
            else (f"{self.threads} threads")
        )
        words = ["Single-core Single-thread" if self.threads == 1 else several]
        words += [plain(self.device, 20)] if self.device != "cpu" else []
        words += [plain(self.scenario, 20)] if self.scenario != "inference" else []
        words += [plain(word, 80) for word in variation_in_words(self.configuration, self.dynamic)]
        return f"Performance Dashboard for {plain(self.dtype, 30)} precision -- {', '.join(words)}"


def settings(rows: Iterable[Row]) -> dict[DashboardSetting, list[Row]]:
    """Group rows by setting, in the order of their first row.

    Only a row that was timed records whether it had a whole socket: where one had, its whole group had.
    """
    groups: dict[DashboardSetting, list[Row]] = {}
    for row in rows:
        groups.setdefault(replace(DashboardSetting.of(row), is_whole_socket=False), []).append(row)
    return {
        replace(
            setting, is_whole_socket=any(DashboardSetting.of(row).is_whole_socket for row in group)
        ): group
        for setting, group in groups.items()
    }


def four_tables(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(title, table) of speedup, accuracy, compilation latency and compression for one suite.

    As in the reference a speedup that was not measured is 0.0, another number nan. What does not count in
    the means has an asterisk and stands below.
    """
    compilers = list(dict.fromkeys(row.case.backend for row in rows))
    models: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        models.setdefault((row.case.model, row.case.batch_size), {})[row.case.backend] = row
    tables = []
    for title, cell, rank in (
        ("Performance speedup", _number("speedup", "0.0"), _largest("speedup")),
        ("Accuracy", status, _failed_first),
        ("Compilation latency (sec)", _number("compilation_s", "nan"), _largest("compilation_s")),
        ("Peak Memory Compression Ratio", _number("compression_ratio", "nan"), _largest("compression_ratio")),
    ):
        # Like the reference by the first compiler; then by name.
        lines = sorted(models.items(), key=lambda item: (item[0][0].lower(), item[0]))
        lines.sort(key=lambda item: rank(item[1].get(compilers[0])))
        table = PrettyTable(["name", "bs", *map(plain, compilers)])
        for (model, _), of_model in lines:
            size = batch_in_words(next(iter(of_model.values())))
            table.add_row([plain(model), size, *(cell(of_model.get(compiler)) for compiler in compilers)])
        tables.append((title, str(table.get_string())))
    return tables


def _known(row: Row, name: str) -> float:
    """A number above zero; 0 where it was not measured."""
    value = row.values.get(name, 0.0)
    return value if math.isfinite(value) else 0.0


def _largest(name: str) -> Callable[[Row | None], Any]:
    """A sort key: counted results first, then the largest."""

    def rank(row: Row | None) -> tuple[bool, float]:
        return (not is_counted(row), -_known(row, name)) if row else (True, 1.0)

    return rank


def _number(name: str, missing: str) -> Callable[[Row | None], str]:
    def number(row: Row | None) -> str:
        if row is None:
            return "-"
        value = _known(row, name)
        return f"{round(value, 4)}{'' if is_counted(row) else ' *'}" if value else missing

    return number


def status(row: Row | None) -> str:
    """The status, with a remark on a pass that was not compiled completely."""
    if row is None:
        return "-"
    if row.status == Status.CRASH and failure(row).get("type"):
        return plain(f"crash ({failure(row)['type']})", 40)
    if str(row.status) not in _PASSING:
        return plain(row.status, 40)
    if words := remark(row):
        return f"{row.status} ({words})"
    graph_breaks = row.values.get("graph_breaks") or 0.0
    breaks = int(graph_breaks) if math.isfinite(graph_breaks) else 0
    return f"{row.status} ({breaks} graph break{'s' * (breaks > 1)})" if breaks else str(row.status)


def _failed_first(row: Row | None) -> tuple[bool, str]:
    """A sort key: failed results first."""
    return (str(row.status) in _PASSING, str(row.status)) if row else (True, "~")


def all_numbers(rows: Sequence[Row]) -> str:
    """A table of all numbers, a row per case; failed cases last.

    A line below the table explains `cpu` behind a latency.
    """
    table = PrettyTable(
        ["name", "bs", "dtype", "compiler", "status", "speedup", "95 % interval", "verdict", "eager ms",
         "compiled ms", "compile s", "compile CPU s", "memory ratio", "eager MB", "compiled MB", "graphs",
         "breaks"]
    )  # fmt: skip
    table.align = "r"
    for name in ("name", "dtype", "compiler", "status", "verdict"):
        table.align[name] = "l"

    def rank(row: Row) -> tuple[Any, ...]:
        return str(row.status) not in _PASSING, -_known(row, "speedup"), row.case.model, row.case.name

    several = several_configurations(row.case for row in rows)
    for row in sorted(rows, key=rank):
        values = row.values
        table.add_row(
            [
                plain(row.case.model),
                batch_in_words(row),
                plain(f"amp-{row.case.amp_dtype}" if row.case.amp_dtype else row.case.dtype),
                plain(backend_of(row.case, several)),
                status(row),
                shown(values.get("speedup"), ".3f", "x"),
                interval(row),
                verdict(row),
                mark_cpu_time(shown(values.get("eager_ms"), ".3f"), row),
                mark_cpu_time(shown(values.get("backend_ms"), ".3f"), row),
                shown(values.get("compilation_s"), ".1f"),
                shown(values.get("compilation_cpu_s"), ".1f"),
                shown(values.get("compression_ratio"), ".3f"),
                shown(values.get("eager_peak_bytes"), ".1f", scale=1e-6),
                shown(values.get("backend_peak_bytes"), ".1f", scale=1e-6),
                shown(values.get("graphs"), ".0f"),
                shown(values.get("graph_breaks"), ".0f"),
            ]
        )
    return "\n".join([str(table.get_string()), *cpu_time_notes(rows)])


def cpu_time_notes(rows: Sequence[Row]) -> list[str]:
    """The explanation of `cpu` behind a latency; empty where no result has it."""
    return [CPU_TIME_NOTE] if any("backend_ms" in row.values and is_cpu_time(row) for row in rows) else []


def interval(row: Row) -> str:
    """The speedup's 95 % interval; empty where the spread between processes is not known."""
    low, high = row.values.get("speedup_low"), row.values.get("speedup_high")
    return "" if low is None or high is None else f"{low:.3f} .. {high:.3f}"


def verdict(row: Row) -> str:
    """The verdict and the basis of its interval; empty for a wrong result."""
    if not row.verdict or str(row.status) not in _PASSING or "speedup" not in row.values:
        return ""
    return plain(row.verdict if row.basis in (None, "processes") else f"{row.verdict} ({row.basis})", 40)


def shown(value: float | None, form: str, unit: str = "", scale: float = 1.0) -> str:
    """A number with its unit; empty where it is not known or not finite."""
    return "" if value is None or not math.isfinite(value) else f"{value * scale:{form}}{unit}"


Cell = Callable[[Summary], str]
_APART = {
    Status.SKIPPED: "skipped",
    Status.NOT_TONIGHT: "not tonight",
    Status.PASS_DUE_TO_SKIP: "not checked",
    Status.NO_FINITE_OUTPUT: "without a finite output",
    Status.INFRA_ERROR: "failed because of the machine",
}


def pass_rate(of: Summary) -> str:
    """Passed over attempted; what was not measured or not checked is counted separately."""
    counts = [(word, of.statuses.get(str(status), 0)) for status, word in _APART.items()]
    extra = "".join(f" (+{count} {word})" for word, count in counts if count)
    if not of.attempted:
        return f"0 attempted{extra}"
    percent = 100 if of.passed == of.attempted else min(99, round(100 * of.passed / of.attempted))
    return f"{percent}%, {of.passed}/{of.attempted}{extra}"


def speedup(of: Summary) -> str:
    """The geometric mean, not clipped, with its interval where each model has one."""
    if of.speedup is None:
        return "-"
    if of.speedup_low is None or of.speedup_high is None:
        return f"{of.speedup:.3f}x"
    return f"{of.speedup:.3f}x [{of.speedup_low:.3f}, {of.speedup_high:.3f}]"


def clipped(of: Summary) -> str:
    return "-" if of.speedup_clipped is None else f"{of.speedup_clipped:.3f}x"


def compilation(of: Summary) -> str:
    return "-" if of.compilation_s is None else f"{of.compilation_s:.2f}"


def compression(of: Summary) -> str:
    """The geometric mean; in parentheses the arithmetic mean of the reference dashboard."""
    if of.compression_ratio is None:
        return "-"
    return f"{of.compression_ratio:.3f}x ({of.compression_ratio_arithmetic:.3f}x)"


TABLES: tuple[tuple[str, Cell], ...] = (
    ("Pass rate (of the cases attempted)", pass_rate),
    ("Geometric mean speedup of these models, with its 95 % interval", speedup),
    ("The same clipped (slower counts as 1.00x: the old dashboard's number)", clipped),
    ("Mean compilation latency (seconds, cold caches)", compilation),
    ("Peak memory compression ratio, geometric mean (arithmetic)", compression),
)


def by_suite(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(title, table) of each of TABLES: a row per compiler, a column per suite."""
    suites = list(dict.fromkeys(row.case.suite for row in rows))
    summaries = {setting: summarize(group) for setting, group in grouped(rows).items()}
    settings = list(dict.fromkeys(setting[1:] for setting in summaries))
    empty = summarize([])
    names = compilers(settings)
    tables = []
    for title, cell in TABLES:
        table = PrettyTable(["Compiler", *map(plain, suites)])
        for setting, name in zip(settings, names, strict=True):
            cells = [cell(summaries.get((suite, *setting), empty)) for suite in suites]
            table.add_row([name, *(text if text != "0 attempted" else "-" for text in cells)])
        tables.append((title, str(table.get_string())))
    return tables


def compilers(settings: Sequence[tuple[object, ...]]) -> list[str]:
    """A name for each setting: the back end, and whatever differs between the settings.

    Of two configurations of one name, as before and after an edit, what they set is in the names.
    """
    device, dtype, threads, scenario = (
        len({setting[place] for setting in settings}) > 1 for place in range(4)
    )
    variations = {variation(str(setting[7]), bool(setting[5])) for setting in settings}
    names, words_of = [], []
    for values in settings:
        words = [str(values[4])]
        words += [str(values[1])] if dtype else []
        words += [str(values[0])] if device else []
        words += [f"{values[2]} threads"] if threads else []
        words += [str(values[3])] if scenario else []
        words_of.append(" ".join(words))
        if len(variations) > 1:
            word = variation(str(values[7]), bool(values[5])) or DEFAULT_CONFIGURATION
            words += [word] if word != values[4] else []
        names.append(" ".join(words))
    times = Counter(name for name, _ in set(zip(names, settings, strict=True)))
    return [
        plain(name)
        if times[name] == 1
        else plain(" ".join([words, *variation_in_words(str(values[7]), bool(values[5]), str(values[6]))]))
        for name, words, values in zip(names, words_of, settings, strict=True)
    ]
