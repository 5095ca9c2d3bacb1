"""The report of a bisection in Markdown and HTML: the culprit, how sure, the evidence."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from perfdash.bisection.result import NOT_FINISHED, Account, Change, Culprit, Range
from perfdash.bisection.sources import Revision
from perfdash.report.bisection_chart import svg, text_chart
from perfdash.report.markdown import code, document, escaped, fenced, folded, link, plain, table
from perfdash.report.number_format import with_unit

_SKIPPED = 50  # of which the report tells


def headline(account: Account) -> str:
    """The result in a few words of plain text."""
    what = f"{account.title} of {subject(account)}"
    fallen = [one for one in account.culprits if one.confirmed == "not confirmed"]
    stand = [one for one in account.culprits if one not in fallen]
    said = [f"found {_named(stand)}"] if stand else []
    said += [f"{_named(fallen)} was found and did not stand being measured again"] if fallen else []
    return f"{what}: {'; '.join(said) or account.word}"


def _named(culprits: Sequence[Culprit]) -> str:
    return ", ".join(
        one.revisions[-1].label if len(one.revisions) == 1 else f"one of {len(one.revisions)}"
        for one in culprits
    )


def subject(account: Account) -> str:
    """What was measured, in plain text."""
    case = account.case
    if not case:
        return shlex.join(account.command or ())
    words = [f"{case['suite']}/{case['model']}"]
    for name, usual in (("backend", "inductor"), ("dtype", "float32"), ("device", "cpu")):
        if case.get(name) not in (usual, account.metric):  # eager latency is of eager
            words.append(str(case.get("amp_dtype") or case.get(name)))
    return " ".join(words)


def markdown(account: Account) -> str:
    """The report in GitHub Markdown; foreign text is escaped."""
    return _text(account, as_page=False)


def page(account: Account) -> str:
    """The report as one HTML file with its charts and without scripts."""
    return document(f"perfdash bisect: {plain(headline(account))}", _text(account, as_page=True))


def _text(account: Account, as_page: bool) -> str:
    parts = [f"### {escaped(headline(account))}"]
    parts += [_culprit(account, one) for one in account.culprits] or [_without(account)]
    if account.unexplained:
        parts.append("Not told: " + escaped("; ".join(account.unexplained)) + ".")
    parts += [_range(account, one, as_page) for one in account.ranges]
    parts.append(_facts(account))
    if account.notes:
        parts.append("\n".join(f"- {escaped(note)}" for note in account.notes))
    if account.line:
        parts.append(f"The command that repeats it:\n\n{fenced(plain(shlex.join(account.line), 2000))}")
    return "\n\n".join(parts) + "\n"


def _culprit(account: Account, one: Culprit) -> str:
    if len(one.revisions) == 1:
        lines = [_commit(one.revisions[0])]
    else:
        known = f"One of these {len(one.revisions)}, between which nothing could be measured:"
        lines = [known, "", *(f"- {_commit(each)}" for each in one.revisions[:_SKIPPED])]
    effect = _effect(account, one.change)
    lines += ["", f"- {escaped(account.title)}: {effect}" if effect else f"- {_words(account, one)}"]
    lines.append(
        f"- how sure: {_percent(one.probability)} that it is "
        + ("this" if len(one.revisions) == 1 else "one of these")
    )
    if one.confirmed:
        lines.append(f"- {_confirmed(account, one)}")
    if one.eager and one.eager.ratio:
        lines.append(f"- eager beside it: {_ratio(one.eager)}" + _blame(one))
    if one.reverted:
        lines.append(f"- {_reverted(account, one)}")
    lines += [f"- {escaped(more)}" for more in one.more]
    return "\n".join(lines)


def _commit(revision: Revision) -> str:
    name = link(code(revision.label), revision.link if _is_safe(revision.link) else None)
    by = ", ".join(filter(None, [escaped(revision.author, 80), revision.date[:10]]))
    title = f" {escaped(revision.title)}" if revision.title else ""
    return f"**{name}**{title}{f' ({by})' if by else ''}"


def _is_safe(address: str | None) -> bool:
    return (
        bool(address)
        and str(address).startswith(("https://", "http://"))
        and not set(str(address)) & set("()<> \n")
    )


def _words(account: Account, one: Culprit) -> str:
    """For a metric of words: the answers before and since the change."""
    for each in account.ranges:
        if each.number == one.stage:
            before, after = (
                escaped(", ".join(sorted({word for t in each.tested if t.side == side for word in t.said})))
                for side in ("good", "bad")
            )
            return f"{escaped(account.title)}: {before} before, {after} since"
    return escaped(account.title)


def _effect(account: Account, change: Change) -> str:
    if change.ratio is None:
        return ""
    levels = f"{_level(account, change.before)} → {_level(account, change.after)}"
    if account.kind != "ratio":
        return levels
    better, low, high = "", change.low, change.high
    if account.more_is_worse is not None and low is not None and high is not None and (low > 1 or high < 1):
        better = ", worse" if (change.ratio > 1) == account.more_is_worse else ", better"
    return f"**{_ratio(change)}**{better}; {levels}"


def _ratio(change: Change) -> str:
    if change.ratio is None or change.low is None or change.high is None:
        return ""
    return f"{change.ratio - 1:+.2%} ({change.low - 1:+.2%} to {change.high - 1:+.2%})"


def _level(account: Account, value: float | None) -> str:
    if value is None:
        return "?"
    return with_unit(account.column, value) if account.column else f"{value:.5g}"


def _percent(probability: float) -> str:
    return f"{min(probability, 0.9999):.2%}" if probability > 0.99 else f"{probability:.1%}"


def _confirmed(account: Account, one: Culprit) -> str:
    against = f"against {code(one.parent.label)} in environments made anew"
    if one.confirmed == "more":
        return f"not yet confirmed {against}"
    if one.confirmed_why:
        return f"confirming {against}: {one.confirmed}: {escaped(one.confirmed_why)}"
    ratio = f": {_ratio(one.confirmed_change)}" if account.kind == "ratio" else ""
    return f"{one.confirmed} {against}{ratio}, {one.confirmed_pairs} pairs"


def _reverted(account: Account, one: Culprit) -> str:
    """The effect of reverting the culprit on top of the bad end."""
    if one.reverted == "found":
        change = _effect(account, one.reverted_change)
        return "taken back on top of the bad end: " + (change or "the fault is gone")
    nothing = (
        "it makes no difference that could be told" if one.reverted == "not reproduced" else one.reverted
    )
    return f"taken back on top of the bad end: {escaped(nothing)}"


def _blame(one: Culprit) -> str:
    """Say whether eager changed alike, so that the back end is not the cause."""
    eager, ratio = one.eager, one.change.ratio
    if not eager or not eager.low or not eager.high or not eager.ratio or not ratio:
        return ""
    if not (eager.low > 1 or eager.high < 1):
        return ": unchanged as far as can be told"
    alike = (eager.ratio > 1) == (ratio > 1) and abs(eager.ratio - 1) > abs(ratio - 1) / 2
    return ": it moved as well, so the change is in what both share" if alike else ""


def _without(account: Account) -> str:
    """The result of a bisection that found no culprit."""
    if not account.ranges:
        return "Nothing was measured."
    top = account.ranges[0]
    if account.word == NOT_FINISHED:
        now = next((r for r in account.ranges if r.verdict == NOT_FINISHED), top)
        at = f"Not finished: {now.standing.phase}"
        if now.standing.first:
            left = now.standing.last - now.standing.first + 1
            at += f"; {left} of {now.last} revisions left, with {_percent(now.standing.probability)}"
        return at + "."
    if account.word == "end not measured":
        whys = [
            f"{code(s.label)}: {escaped(s.why)}" for s in top.skipped if s.id in (top.good.id, top.bad.id)
        ]
        return "An end of the range could not be measured: " + "; ".join(whys) + "."
    effect = _effect(account, top.change)
    said = f" {escaped(account.title)} from good to bad: {effect}." if effect else ""
    noise = f" One measurement scatters by {top.sd:.2%}." if top.sd and account.kind == "ratio" else ""
    reason = {
        "not reproduced": "**Not reproduced**: on this host the two ends do not differ, or by less than the "
        "noise lets tell.",
        "undecided": "**Undecided**: whether the two ends differ cannot be told with so many measurements.",
        "cannot tell": "**Cannot tell** which revision it was.",
    }.get(account.word, account.word)
    return f"{reason}{said}{noise} Probability that nothing changed: {_percent(top.none)}."


def _range(account: Account, each: Range, as_page: bool) -> str:
    how = f" {each.how}" if each.how else ""
    title = f"{each.recipe}{how}: {each.good.label} .. {each.bad.label}, {each.revisions} revisions"
    parts = [f"**{escaped(title)}**"]
    if each.tested:
        parts.append(svg(account, each) if as_page else fenced(text_chart(account, each)))
    if each.skipped:
        rows = [(code(s.label), escaped(s.why)) for s in each.skipped[:_SKIPPED]]
        more = len(each.skipped) - len(rows)
        body = table(("revision", "why"), rows) + (f"\n\nand {more} more" if more else "")
        parts.append(folded(f"{len(each.skipped)} skipped", body))
    return "\n\n".join(parts)


def _facts(account: Account) -> str:
    counts = account.counts
    builds = f"{counts['builds']} builds ({_hours(counts['build_s'])})"
    if counts["reused"]:
        builds += f", {counts['reused']} taken from the cache"
    if counts["failed"]:
        builds += f", {counts['failed']} that failed"
    again = f", {counts['confirming']} of them to confirm" if counts["confirming"] else ""
    measurements = f"{counts['measurements'] + counts['confirming']} measurements{again}"
    rows: Sequence[tuple[str, str]] = [
        ("measured", code(subject(account), 400)),
        ("work", f"{builds}; {measurements} ({_hours(counts['measure_s'])})"),
        ("host", escaped(f"{account.host}, {account.host_class}")),
        ("when", f"{account.began} to {account.ended}" if account.ended else account.began),
    ]
    return table(("", ""), rows)


def _hours(seconds: float) -> str:
    return (
        f"{seconds / 3600:.1f} h"
        if seconds >= 3600
        else f"{seconds / 60:.1f} min"
        if seconds >= 60
        else f"{seconds:.0f} s"
    )
