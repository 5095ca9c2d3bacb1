"""The comment on a night, in at most 15 KB: what changed, by cause, and one table of the suites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfdash.detect.comparison import ComparedRuns, compare
from perfdash.detect.nights import other_machines
from perfdash.history.failures import reason
from perfdash.history.pass_rates_and_means import grouped, setting_of, summarize
from perfdash.history.results import Imported
from perfdash.records import DEFAULT_CONFIGURATION, PASSING, Status
from perfdash.report import dashboard_tables, site_links
from perfdash.report.alert_text import model_of, short_name
from perfdash.report.cause_text import FAILING, ReportedCause
from perfdash.report.changes import (
    BAD,
    GROUPS,
    NEW_FAILURE,
    SUSPECTED,
    VANISHED,
    Machine,
    RunChange,
)
from perfdash.report.comment_splitting import size
from perfdash.report.full_tables import full_tables
from perfdash.report.markdown import code, document, escaped, fenced, folded, in_html, link, plain, table
from perfdash.report.night import (
    RUN_BEFORE,
    Night,
    compared_with,
    headline,
    noise_floor,
    not_tonight,
)
from perfdash.report.number_format import percent_change
from perfdash.report.reproduce import command_of_run
from perfdash.stats.speedup import null_warning

LARGEST = 15_000  # bytes; GitHub shows it at once, and a person reads it in two minutes
_WHY = 400  # characters of the sentence on why it changed
_CAUSES = 10  # that have a line of their own, at most
_SUITES = 30  # rows of the table of suites, at most
# Members and commands, causes, and suites shown: the first that fits in the comment.
_SHOWN = (
    *((members, _CAUSES, _SUITES) for members in (30, 15, 8, 4, 2, 0)),
    (0, _CAUSES, 10), (0, 5, 10), (0, 3, 3),
)  # fmt: skip
_NOT_RUN = {str(status) for status in (*PASSING, Status.SKIPPED, Status.NOT_TONIGHT)}


def comment(night: Night, *, site_url: str | None = None, fold: bool = True) -> str:
    """Write the comment in GitHub Markdown, of at most LARGEST bytes.

    `site_url`: the site's address, for links to its pages; fold False: nothing is hidden behind a click.
    """
    site = site_url.rstrip("/") + "/" if site_url else None
    changes = _changes_of_means(night)
    text = ""
    for shown, causes, suites in _SHOWN:
        parts = [*_head(night, site), *_causes(night, site, fold, shown, causes)]
        parts += [*_configurations(night, changes, site, fold, suites), *_not_tonight(night, fold, shown)]
        parts += _failures(night, fold, shown)
        parts.append(_more(night, site, suites))
        text = "\n\n".join(part for part in parts if part) + "\n"
        if size(text) <= LARGEST:
            break
    return text


def whole_report(night: Night, *, site_url: str | None = None, fold: bool = True) -> str:
    """The comment followed by all tables."""
    tables = full_tables(night, site_url=site_url, fold=fold)
    text = comment(night, site_url=site_url, fold=fold)
    return f"{text}\n{tables}" if tables else text


def page(night: Night, *, site_url: str | None = None, style: str | None = None) -> str:
    """The comment and all tables as one HTML file without scripts.

    `style`: the address of its style sheet (markdown.STYLE); without one the page holds it.
    """
    text = whole_report(night, site_url=site_url)
    return document(f"{headline(night)}: {night.run.name}", text, style=style)


def _head(night: Night, site: str | None) -> list[str]:
    run = night.run
    parts = [f"# {headline(night)}"]
    if warning := null_warning((run.noise.get("null") or {}).get("worst")):
        parts.append(f"**WARNING: {escaped(warning)}.**")
    if night.nightly:
        parts.append(f"**{escaped(night.nightly)}.**")
    if not night.rows:
        parts.append(f"Nothing was measured: {code(run.name)} ({escaped(run.state)}) has no result.")
        return parts
    parts += map(escaped, compared_with(night))
    count, expected = len(night.rows), run.expected
    planned = f" of {expected}" if expected and expected != count else ""
    build = run.torch_build
    parts.append(
        f"Run {code(run.name)} ({escaped(run.state)}) on {escaped(run.host_class)}"
        + (f", torch {code(build)}" if build else "")
        + f": {count} case{'s' * (count != 1)}{planned}. Noise of this run: {noise_floor(run)}."
    )
    if site:
        pages = (
            ("dashboard", site_links.OVERVIEW),
            ("regressions", site_links.REGRESSIONS),
            ("compare", site_links.COMPARE),
            ("what the numbers mean", site_links.METHOD),
        )
        parts.append(" · ".join(link(title, site + page) for title, page in pages))
    return parts


def _causes(night: Night, site: str | None, fold: bool, shown: int, most: int) -> list[str]:
    """A table with a line for each cause; then the members and commands that are folded."""
    parts = []
    loud = [cause for cause in night.causes if not cause.acknowledged]
    quiet = [cause for cause in night.causes if cause.acknowledged]
    if loud:
        listed = loud[:most]
        rows = [_line(cause, site) for cause in listed]
        head = ["", "what changed", "since", "between", "evidence", "what moved it"]
        used = [place for place in range(len(head)) if any(row[place] for row in rows)]
        parts.append(table([head[place] for place in used], [[row[p] for p in used] for row in rows], ""))
        hidden = loud[most:]
        if hidden:
            groups = [cause.group for cause in hidden]
            rest = ", ".join(f"{groups.count(group)} {group.lower()}" for group in GROUPS if group in groups)
            where = link("the site", site + site_links.REGRESSIONS) if site else "`perfdash regressions`"
            parts.append(f"And {len(hidden)} smaller ones ({rest}): {where} has all.")
        for cause in listed:
            if len(cause.members) > 1 and shown:
                parts.append(_folded(_title(cause), _members(cause.members, night, site, shown), fold))
    if quiet:
        lines = "\n".join(f"- {escaped(cause.headline)}" for cause in quiet[:most])
        lines += f"\n- and {len(quiet) - most} more" if len(quiet) > most else ""
        parts.append(_folded(f"{len(quiet)} acknowledged", lines, fold))
    again = [
        member.case
        for cause in loud
        if cause.group in (*BAD, SUSPECTED) and cause.group != VANISHED
        for member in cause.of_run
        if member.case
    ]
    commands = list(dict.fromkeys(plain(command_of_run(case, night.run), 2000) for case in again))
    if commands and shown:
        more = [f"# and {len(commands) - shown} more"] if len(commands) > shown else []
        body = fenced("\n".join([*commands[:shown], *more]))
        parts.append(_folded("Measure what got worse again", body, fold))
    return parts


def _folded(title: str, body: str, fold: bool) -> str:
    return folded(in_html(title), body) if fold else f"**{escaped(title)}**\n\n{body}"


def _title(cause: ReportedCause) -> str:
    return f"{plain(cause.headline, 200)}: {len(cause.members)} changes"


_WORDS = {
    "Regressions": "regression", "Improvements": "improvement", "New failures": "new failure",
    "Fixed": "fixed", "Appeared": "appeared", "Vanished": "vanished",
    "Suspected regressions": "suspected", "Suspected improvements": "suspected improvement",
}  # fmt: skip


def _line(cause: ReportedCause, site: str | None) -> list[str]:
    text = f"**{escaped(cause.headline, 250)}**"
    if site and cause.number is not None:
        text = link(text, site + site_links.cause_page(cause.number))
    notes = [escaped(culprit, 200) for culprit in cause.culprits[:2]]
    if len(cause.members) == 1:
        member = cause.members[0]
        levels = f"{escaped(member.before)} to {escaped(member.after)}" if member.after else ""
        around = member.interval
        sizes = f"{percent_change(around[0])} to {percent_change(around[1])}" if around else ""
        notes = [part for part in (levels if member.what != "status" else "", sizes) if part] + notes
        notes += [escaped(note, 200) for note in member.notes if note not in member.culprits][:2]
    if cause.why:
        notes.append(escaped(cause.why, _WHY))
    if len(cause.machines) > 1:
        several = len({member.machine.host_class for member in cause.members if member.machine})
        settings = f"one machine with {len(cause.machines)} settings"
        notes.append(f"seen on {several} machines" if several > 1 else f"seen on {settings}")
    word = _WORDS.get(cause.group, cause.group.lower())
    if cause.group == NEW_FAILURE:
        word = word if cause.fresh else FAILING
    elif cause.fresh and cause.group in BAD:
        word += " (new)"
    return [
        word,
        "<br>".join([text, *notes]),
        cause.bad.started[:10] if cause.bad else "",
        _builds(cause),
        escaped(cause.evidence),
        cause.attribution,
    ]


def _builds(cause: ReportedCause) -> str:
    """The builds between which it changed: of torch, or of the packages that changed."""
    if cause.bad is None:
        return ""
    return "<br>".join(
        link(code(one.new) if one.is_empty else f"{code(one.old)} .. {code(one.new)}", one.address)
        for one in cause.between
    )


def _members(members: Sequence[RunChange], night: Night, site: str | None, shown: int) -> str:
    own = Machine(night.testbed, night.run.host_class, night.run.host_class)
    several = len({(change.machine or own).testbed for change in members}) > 1
    rows = []
    for change in members[:shown]:
        machine = change.machine or own
        page = site + site_links.model_page(machine.testbed, change.case) if site and change.case else None
        low, high = change.interval or (None, None)
        notes = [f"alert {change.alert}, {change.state}"] if change.alert else []
        rows.append(
            [
                link(code(model_of(change.case)), page),
                escaped(change.what),
                escaped(change.before),
                escaped(change.after),
                percent_change(change.change),
                f"{percent_change(low)} .. {percent_change(high)}" if change.interval else "",
                escaped(machine.name) if several else "",
                escaped("; ".join((*notes, *change.notes)), 200),
            ]
        )
    head = ["model", "what", "before", "after", "change", "95 % interval", "machine", "more"]
    used = [place for place in range(len(head)) if any(row[place] for row in rows)]
    align = "".join("llrrrrll"[place] for place in used)
    text = table([head[place] for place in used], [[row[place] for place in used] for row in rows], align)
    return f"{text}\n\nand {len(members) - shown} more" if len(members) > shown else text


def _configurations(
    night: Night, changes: Mapping[tuple[Any, ...], str], site: str | None, fold: bool, most: int
) -> list[str]:
    """The table of suites; of several configurations a small one, and that of suites folded below it.

    `changes`: as of _changes_of_means.
    """
    suites = _suites(night, changes, site, most)
    if not suites or not dashboard_tables.several_configurations(row.case for row in night.rows):
        return suites
    groups = grouped(night.rows)
    names = dashboard_tables.compilers([setting[1:] for setting in groups])
    columns = list(dict.fromkeys(setting[0] for setting in groups))
    lines: dict[str, dict[str, str]] = {}
    for (setting, rows), name in zip(groups.items(), names, strict=True):
        summary = summarize(rows)
        texts = [dashboard_tables.pass_rate(summary).split(",")[0]]
        if summary.speedup is not None:
            change = changes.get(setting_of(rows[0]), "").partition(" ")[0]
            texts.append(f"{summary.speedup:.3f}x" + (f" ({change})" if change else ""))
        lines.setdefault(name, {})[setting[0]] = ", ".join(texts)
    lines = dict(sorted(lines.items(), key=lambda line: (DEFAULT_CONFIGURATION not in line[0], line[0])))
    body = [[escaped(name), *(cells.get(suite, "") for suite in columns)] for name, cells in lines.items()]
    page = link("beside each other", site + site_links.configurations_page(night.testbed)) if site else ""
    head = ["pass rate, mean speedup (change)", *(escaped(short_name(suite)) for suite in columns)]
    more = f"\n\nand {len(body) - most} more" if len(body) > most else ""
    small = table(head, body[:most], "l" + "r" * len(columns)) + more
    small += f"\n\nModels {page}." if page else ""
    return [small, *(_folded("Suites and configurations", text, fold) for text in suites)]


def _not_tonight(night: Night, fold: bool, shown: int) -> list[str]:
    """The cases that the hours of the run left out, in one line that unfolds."""
    rows = [row for row in night.rows if row.status == Status.NOT_TONIGHT]
    if not rows:
        return []
    lines = [f"- {code(model_of(row.case))}: {escaped(reason(row))}" for row in rows[:shown]]
    lines += [f"- and {len(rows) - shown} more"] if len(rows) > shown else []
    return [_folded(not_tonight(night), "\n".join(lines), fold)]


def _suites(night: Night, changes: Mapping[tuple[Any, ...], str], site: str | None, most: int) -> list[str]:
    """One table: pass rate, mean speedup and its change, compilation latency, memory of each suite.

    `changes`: as of _changes_of_means.
    """
    groups = grouped(night.rows)
    if not groups:
        return []
    names = dashboard_tables.compilers([setting[1:] for setting in groups])
    rows = []
    for (setting, of_suite), name in zip(groups.items(), names, strict=True):
        summary = summarize(of_suite)
        page = site_links.suite_page(night.testbed, of_suite[0].case)
        rows.append(
            [
                link(escaped(short_name(setting[0])), site + page if site else None),
                escaped(name),
                dashboard_tables.pass_rate(summary),
                dashboard_tables.speedup(summary),
                changes.get(setting_of(of_suite[0]), ""),
                dashboard_tables.compilation(summary),
                "-" if summary.compression_ratio is None else f"{summary.compression_ratio:.3f}x",
            ]
        )
    before = f"against {_title_of_baseline(night)}"
    head = ["suite", "compiler", "pass rate", "geometric mean speedup", before,
            "mean compilation latency (s)", "peak memory compression ratio"]  # fmt: skip
    more = f"\n\nand {len(rows) - most} more" if len(rows) > most else ""
    return [table(head, rows[:most], "llrrrrr") + more]


def _title_of_baseline(night: Night) -> str:
    return night.baseline.title if night.baseline else RUN_BEFORE


def _changes_of_means(night: Night) -> dict[tuple[Any, ...], str]:
    """The change of the mean speedup of each setting over the models that pass on both sides.

    Without settings of which the two sides measured speedups by different methods.
    """
    before: dict[tuple[Any, ...], list[Imported]] = {}
    for imported in night.baseline.runs if night.baseline else ():
        for rows in grouped(imported.rows).values():
            before.setdefault(setting_of(rows[0]), []).append(replace(imported, rows=tuple(rows)))
    changes = {}
    for rows in grouped(night.rows).values():
        setting = setting_of(rows[0])
        old = ComparedRuns("", tuple(before.get(setting, ())))
        new = ComparedRuns("", (Imported(night.run, tuple(rows)),))
        compared = compare(old, new).means if old.runs else ()
        if means := next((item for item in compared if item.metric == "speedup"), None):
            words = other_machines([imported.run for imported in old.runs], [night.run])
            machines = f" {escaped(words)}" if words else ""
            changes[setting] = f"{means.ratio[0] - 1:+.1%} ({means.cases}){machines}"
    return changes


def _failures(night: Night, fold: bool, shown: int) -> list[str]:
    """The cases that do not pass, with the reason of each."""
    failures = [change for change in night.changes if change.group == NEW_FAILURE and change.of_run]
    fresh = {change.case for change in failures if change.fresh}
    failed = [row for row in night.rows if str(row.status) not in _NOT_RUN]
    failed.sort(key=lambda row: row.case not in fresh)
    if not failed:
        return []
    lines = [
        f"- {code(model_of(row.case))}: {escaped(row.status)}"
        + (f": {code(why, 160)}" if (why := reason(row)) else "")
        for row in failed[:shown]
    ]
    if len(failed) > shown:
        lines.append(f"- and {len(failed) - shown} more")
    new = sum(row.case in fresh for row in failed)
    since = f", {new} since {_title_of_baseline(night)}" if new else ""
    listed = {change.case for change in failures}
    others = sum(row.case not in listed for row in failed) if failures else 0
    rest = f", {others} not among the changes above" if others else ""
    title = f"{len(failed)} case{'s' * (len(failed) != 1)} failing{since}{rest}"
    return [_folded(title, "\n".join(lines), fold)]


def _more(night: Night, site: str | None, suites: int) -> str:
    """Where every number is: on the pages of the suites, if the table above has a link to each."""
    if not night.rows:
        return ""
    tables = "Every number, with its interval: "
    if site:
        pages = dict.fromkeys(site_links.suite_page(night.testbed, row.case) for row in night.rows)
        if len(pages) <= suites:
            return tables + "the pages of the suites above."
    return tables + "`night.html` among the files of this run, `perfdash report --format markdown|csv`."
