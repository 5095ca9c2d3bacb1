"""The totals that an imported file publishes, beside those that perfdash computes from its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from prettytable import PrettyTable

from perfdash.history.pass_rates_and_means import summarize
from perfdash.history.results import Row
from perfdash.records import PASSING, Status
from perfdash.report import dashboard_tables
from perfdash.report.dashboard_tables import DashboardSetting, dtype_words
from perfdash.report.markdown import plain
from perfdash.stats.means import arithmetic_mean, clipped_geometric_mean, geometric_mean

_PASSING = {str(status) for status in PASSING}
Sum = Callable[[Sequence[Row]], str]


Cells = Mapping[str, Mapping[str, str]]  # by suite and compiler


class _Meaning(NamedTuple):
    """A published table's total: by the dynamo dashboard's rules and by perfdash's."""

    name: str
    theirs: Sum
    ours: Sum


class Published(NamedTuple):
    """One total of a suite and back end in words: as published, and computed.

    `name`: pass | speedup | compilation | compression; "" for another kind of table, which has no computed
    total.
    """

    name: str
    title: str
    published: str
    theirs: str
    ours: str


def of_suite(
    environment: Mapping[str, Any],
    setting: DashboardSetting,
    suite: str,
    backend: str,
    rows: Sequence[Row] = (),
) -> list[Published]:
    """The published totals of one suite and back end; `rows` are its results.

    `environment` is the run's. Empty where the source publishes no sums.
    """
    published_sums = []
    for title, cells in _tables(environment, setting):
        for compiler, text in cells.get(suite, {}).items():
            if _ours(compiler) != backend:
                continue
            meaning = _meaning(title)
            name = meaning.name if meaning else ""
            sums = (meaning.theirs(rows), meaning.ours(rows)) if meaning else ("", "")
            published_sums.append(Published(name, plain(title), plain(text), *sums))
    return published_sums


def published(
    environment: Mapping[str, Any], rows: Sequence[Row], setting: DashboardSetting | None = None
) -> str:
    """A table of each published total beside the totals computed from the rows.

    `environment` is the run's; with `setting` only the totals of its section. Empty where the source
    publishes no sums.
    """
    tables = _tables(environment, setting)
    suites = list(dict.fromkeys(row.case.suite for row in rows))
    if not tables or not suites:
        return ""
    text_table = PrettyTable(["what", "by", *map(plain, suites)])
    text_table.align = "l"
    for title, cells in tables:
        for compiler in dict.fromkeys(name for of_suite in cells.values() for name in of_suite):
            rows_by_suite = {
                suite: [row for row in rows if (row.case.suite, row.case.backend) == (suite, _ours(compiler))]
                for suite in suites
            }
            first = plain(title if len({*_compilers(cells)}) == 1 else f"{title}, {compiler}")
            text_table.add_row(
                [first, "published", *(plain(cells.get(suite, {}).get(compiler, "-")) for suite in suites)]
            )
            meaning = _meaning(title)
            if meaning:
                text_table.add_row(
                    ["", "its rules, its rows", *(meaning.theirs(rows_by_suite[suite]) for suite in suites)]
                )
                text_table.add_row(
                    ["", "perfdash", *(meaning.ours(rows_by_suite[suite]) for suite in suites)]
                )
    return f"{text_table.get_string()}\n{why(rows)}"


def _tables(environment: Mapping[str, Any], setting: DashboardSetting | None) -> list[tuple[str, Cells]]:
    """(title, cells) of each published table; with `setting` only those of its section."""
    published = environment.get("published")
    if isinstance(published, list):
        sections = [_mapping(section) for section in published]
        of_setting = [
            _mapping(section.get("tables"))
            for section in sections
            if setting is None or _is_of(section, setting)
        ]
    else:  # imported before the setting was stored: by the words of each section's headings
        words = "" if setting is None else setting.title
        by_heading = _mapping(published)
        of_setting = [
            _mapping(tables) for name, tables in by_heading.items() if len(by_heading) == 1 or words in name
        ]
    return [
        (title, {suite: {name: str(cell) for name, cell in _mapping(line).items()} for suite, line in cells})
        for tables in of_setting
        for title, table in tables.items()
        if (cells := _mapping(table).items())
    ]


def _is_of(section: Mapping[str, Any], setting: DashboardSetting) -> bool:
    """Whether a section's cases have this setting."""
    dtype = dtype_words(section.get("dtype", ""), section.get("amp_dtype"))
    own = section.get("device"), dtype, section.get("threads"), section.get("scenario")
    return own == (setting.device, setting.dtype, setting.threads, setting.scenario)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _compilers(cells: Cells) -> list[str]:
    return [name for of_suite in cells.values() for name in of_suite]


def _ours(compiler: str) -> str:
    return compiler.replace("_", "-")


def _counted(rows: Sequence[Row]) -> list[Row]:
    """The rows that the source counts as passed: timed, accuracy passed or unchecked."""
    return [row for row in rows if str(row.status) in _PASSING and "speedup" in row.values]


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [row.values[name] for row in _counted(rows) if name in row.values]


def _their_rate(rows: Sequence[Row]) -> str:
    return f"{len(_counted(rows))}/{len(rows)}"


def _their_speedup(rows: Sequence[Row]) -> str:
    values = _values(rows, "speedup")
    if not values:
        return "-"
    return f"{clipped_geometric_mean(values):.2f}x clipped, {geometric_mean(values):.3f}x not"


def _their_compilation(rows: Sequence[Row]) -> str:
    values = _values(rows, "compilation_s")
    return f"{arithmetic_mean(values):.2f}" if values else "-"


def _their_compression(rows: Sequence[Row]) -> str:
    values = _values(rows, "compression_ratio")
    return f"{arithmetic_mean(values):.2f}x" if values else "-"


def _our_speedup(rows: Sequence[Row]) -> str:
    summary = summarize(rows)
    return "-" if summary.speedup is None else f"{summary.speedup:.3f}x ({summary.measured} cases)"


_MEANINGS = (
    _Meaning("pass", _their_rate, lambda rows: dashboard_tables.pass_rate(summarize(rows))),
    _Meaning("speedup", _their_speedup, _our_speedup),
    _Meaning("compilation", _their_compilation, lambda rows: dashboard_tables.compilation(summarize(rows))),
    _Meaning("compression", _their_compression, lambda rows: dashboard_tables.compression(summarize(rows))),
)


def _meaning(title: str) -> _Meaning | None:
    return next((meaning for meaning in _MEANINGS if meaning.name in title.lower()), None)


def why(rows: Sequence[Row]) -> str:
    """Explain why published totals differ from those that perfdash computes."""
    unchecked = sum(row.status == Status.PASS_DUE_TO_SKIP for row in _counted(rows))
    parts = [
        "The source takes a slowdown for 1.00x in its mean speedup (clipped), and means of ratios for "
        "compression are arithmetic; perfdash's means are geometric and not clipped."
    ]
    if unchecked:
        parts.append(
            f"The source counts {unchecked} cases as passed whose outputs were not checked "
            f"({Status.PASS_DUE_TO_SKIP}); perfdash leaves them out of pass rate and means."
        )
    return " ".join(parts)
