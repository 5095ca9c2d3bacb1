"""The small tables over suites that stand on top of everything: a row a compiler, a column a suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prettytable import PrettyTable

from perfdash.history.rows import Row
from perfdash.history.summing import Summary, grouped, setting_of, summarize
from perfdash.records import Status
from perfdash.report.markdown import plain

Cell = Callable[[Summary], str]
_APART = {
    Status.SKIPPED: "skipped",
    Status.PASS_DUE_TO_SKIP: "not checked",
    Status.NO_FINITE_OUTPUT: "without a finite output",
}


def pass_rate(of: Summary) -> str:
    """Passed over attempted; what was skipped or not checked is neither, and stands beside it."""
    counts = [(word, of.statuses.get(str(status), 0)) for status, word in _APART.items()]
    extra = "".join(f" (+{count} {word})" for word, count in counts if count)
    if not of.attempted:
        return f"0 attempted{extra}"
    percent = 100 if of.passed == of.attempted else min(99, round(100 * of.passed / of.attempted))
    return f"{percent}%, {of.passed}/{of.attempted}{extra}"


def speedup(of: Summary) -> str:
    """The geometric mean, not clipped, with its interval over models."""
    if of.speedup is None:
        return "-"
    if of.measured < 2:
        return f"{of.speedup:.3f}x"  # of one model there is no spread
    return f"{of.speedup:.3f}x [{of.speedup_low:.3f}, {of.speedup_high:.3f}]"


def clipped(of: Summary) -> str:
    return "-" if of.speedup_clipped is None else f"{of.speedup_clipped:.3f}x"


def compilation(of: Summary) -> str:
    return "-" if of.compilation_s is None else f"{of.compilation_s:.2f}"


def compression(of: Summary) -> str:
    """The geometric mean, and in brackets the arithmetic one of the old dashboard."""
    if of.compression_ratio is None:
        return "-"
    return f"{of.compression_ratio:.3f}x ({of.compression_ratio_arithmetic:.3f}x)"


TABLES: tuple[tuple[str, Cell], ...] = (
    ("Pass rate (of the cases attempted)", pass_rate),
    ("Geometric mean speedup, with its 95 % interval over models", speedup),
    ("The same clipped (slower counts as 1.00x: the old dashboard's number)", clipped),
    ("Mean compilation latency (seconds, cold caches)", compilation),
    ("Peak memory compression ratio, geometric mean (arithmetic)", compression),
)


def by_suite(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(title, table) of each of TABLES: what differs beside suite and model makes rows of their own."""
    suites = list(dict.fromkeys(row.case.suite for row in rows))
    settings = list(dict.fromkeys(setting_of(row)[1:] for row in rows))
    found = {setting: summarize(group) for setting, group in grouped(rows).items()}
    empty = summarize([])
    names = compilers(settings)
    tables = []
    for title, cell in TABLES:
        table = PrettyTable(["Compiler", *map(plain, suites)])
        for setting, name in zip(settings, names, strict=True):
            cells = [cell(found.get((suite, *setting), empty)) for suite in suites]
            table.add_row([name, *(text if text != "0 attempted" else "-" for text in cells)])
        tables.append((title, str(table.get_string())))
    return tables


def compilers(settings: Sequence[tuple[object, ...]]) -> list[str]:
    """The back end of each setting, and of what else differs between them as much as tells them apart."""
    device, dtype, threads, scenario, _, dynamic = (
        len({setting[place] for setting in settings}) > 1 for place in range(6)
    )
    names = []
    for one in settings:
        words = [str(one[4])]
        words += [str(one[1])] if dtype else []
        words += [str(one[0])] if device else []
        words += [f"{one[2]} threads"] if threads else []
        words += [str(one[3])] if scenario else []
        words += ["dynamic" if one[5] else "static"] if dynamic else []
        names.append(plain(" ".join(words)))
    return names
