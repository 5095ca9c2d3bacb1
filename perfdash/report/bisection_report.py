"""The report of a bisection in Markdown and HTML: the culprit, its probability, the evidence.

That of `perfdash bisect --all-alerts` has each cause with its culprit, or its failure.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from perfdash.bisection.alert_culprits import shown_change
from perfdash.bisection.all_alerts import BISECTED, FAILED, IN_PASSING, KNOWN, GroupOutcome
from perfdash.bisection.result import (
    FOUND,
    NOT_FINISHED,
    BisectionResult,
    Culprit,
    MetricChange,
    RefutedRevision,
    StageResult,
)
from perfdash.bisection.sources import Revision
from perfdash.report.alert_text import OTHER_CHANGE
from perfdash.report.bisection_chart import svg, text_chart
from perfdash.report.markdown import code, document, escaped, escaped_hint, fenced, folded, link, plain, table
from perfdash.report.number_format import with_unit

_WHY = 600  # characters
_SKIPPED = 50  # revisions that the report lists at most


def headline(result: BisectionResult) -> str:
    """The result in a few words of plain text."""
    what = f"{result.title} of {subject(result)}"
    refuted = [culprit for culprit in result.culprits if culprit.confirmed == "not confirmed"]
    others = [culprit for culprit in result.culprits if culprit not in refuted]
    is_finished = result.word != NOT_FINISHED
    parts = [f"found {'' if is_finished else 'so far '}{_labels(others)}"] if others else []
    parts += [f"{_labels(refuted)} was found, and refuted by re-measurement"] if refuted else []
    parts += [result.word] if parts and not is_finished else []
    return f"{what}: {'; '.join(parts) or result.word}"


def _labels(culprits: Sequence[Culprit]) -> str:
    return ", ".join(
        culprit.revisions[-1].label if len(culprit.revisions) == 1 else f"one of {len(culprit.revisions)}"
        for culprit in culprits
    )


def subject(result: BisectionResult) -> str:
    """What was measured, in plain text."""
    case = result.case
    if not case:
        return shlex.join(result.command or ())
    words = [f"{case['suite']}/{case['model']}"]
    for name, usual in (("backend", "inductor"), ("dtype", "float32"), ("device", "cpu")):
        if case.get(name) not in (usual, result.metric):  # eager latency is of eager
            words.append(str(case.get("amp_dtype") or case.get(name)))
    return " ".join(words)


def markdown(result: BisectionResult) -> str:
    """The report in GitHub Markdown; foreign text is escaped."""
    return _text(result, as_page=False)


def page(result: BisectionResult) -> str:
    """The report as one HTML file with its charts and without scripts."""
    return document(f"perfdash bisect: {plain(headline(result))}", _text(result, as_page=True))


def main_text(result: BisectionResult) -> str:
    """The culprits in GitHub Markdown, and what they leave unexplained; why there is none, without one."""
    parts = [_culprit(result, culprit) for culprit in result.culprits] or [_without(result)]
    if result.unexplained:
        parts.append(f"Unexplained: {'; '.join(escaped_hint(text, _WHY) for text in result.unexplained)}.")
    if result.culprits and result.word == NOT_FINISHED:
        parts.append(f"{_unfinished(result)} `--resume` continues it.")
    return "\n\n".join(parts)


def _text(result: BisectionResult, as_page: bool) -> str:
    parts = [f"### {escaped(headline(result))}"]
    parts.append(main_text(result))
    parts += [_refuted(result, refuted) for refuted in result.refuted]
    parts += [_stage(result, stage, as_page) for stage in result.ranges]
    parts.append(_facts(result))
    if result.notes:
        parts.append("\n".join(f"- {escaped_hint(note)}" for note in result.notes))
    if result.line:
        parts.append(f"The command that repeats it:\n\n{fenced(plain(shlex.join(result.line), 2000))}")
    return "\n\n".join(parts) + "\n"


def _culprit(result: BisectionResult, culprit: Culprit) -> str:
    if len(culprit.revisions) == 1:
        lines = [_commit(culprit.revisions[0])]
    else:
        title = f"One of these {len(culprit.revisions)}, between which nothing could be measured:"
        lines = [title, "", *(f"- {_commit(revision)}" for revision in culprit.revisions[:_SKIPPED])]
    effect = _effect(result, culprit.change)
    lines += ["", f"- {escaped(result.title)}: {effect}" if effect else f"- {_words(result, culprit)}"]
    if result.went_back:
        without = _effect(result, shown_change(result, culprit))
        lines.append(
            f"- the nights of alert {result.alert} went back to a revision without it"
            + (f": {escaped(result.title)} {without}" if without else "")
        )
    lines.append(
        f"- how sure: {_percent(culprit.probability)} that it is "
        + ("this" if len(culprit.revisions) == 1 else "one of these")
    )
    if culprit.confirmed:
        lines.append(f"- {_confirmed(result, culprit)}")
    if culprit.eager and culprit.eager.ratio:
        lines.append(f"- eager beside it: {_ratio(culprit.eager)}" + _blame(result, culprit))
    if culprit.reverted:
        lines.append(f"- {_reverted(result, culprit)}")
    lines += [f"- why: {escaped(culprit.why, _WHY)}"] if culprit.why else []
    lines += [f"- {escaped_hint(more)}" for more in culprit.more]
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


def _words(result: BisectionResult, culprit: Culprit) -> str:
    """The statuses before and since the change, for a metric without numbers."""
    for stage in result.ranges:
        if stage.number == culprit.stage:
            before, after = (
                escaped(", ".join(sorted({word for t in stage.tested if t.side == side for word in t.said})))
                for side in ("good", "bad")
            )
            return f"{escaped(result.title)}: {before} before, {after} since"
    return escaped(result.title)


def _effect(result: BisectionResult, change: MetricChange) -> str:
    if change.ratio is None:
        return ""
    levels = f"{_level(result, change.before)} → {_level(result, change.after)}"
    if result.kind != "ratio":
        return levels
    better, low, high = "", change.low, change.high
    if result.more_is_worse is not None and low is not None and high is not None and (low > 1 or high < 1):
        better = ", worse" if (change.ratio > 1) == result.more_is_worse else ", better"
    return f"**{_ratio(change)}**{better}; {levels}"


def _ratio(change: MetricChange) -> str:
    if change.ratio is None or change.low is None or change.high is None:
        return ""
    return f"{change.ratio - 1:+.2%} ({change.low - 1:+.2%} to {change.high - 1:+.2%})"


def _level(result: BisectionResult, value: float | None) -> str:
    if value is None:
        return "?"
    return with_unit(result.column, value) if result.column else f"{value:.5g}"


def _percent(probability: float) -> str:
    return f"{min(probability, 0.9999):.2%}" if probability > 0.99 else f"{probability:.1%}"


def _confirmed(result: BisectionResult, culprit: Culprit) -> str:
    against = f"against {code(culprit.parent.label)} in environments built a second time"
    if culprit.confirmed == "more":
        return f"not yet confirmed {against}"
    if culprit.confirmed_why:
        return f"confirming {against}: {culprit.confirmed}: {escaped(culprit.confirmed_why)}"
    ratio = f": {_ratio(culprit.confirmed_change)}" if result.kind == "ratio" else ""
    wanted = ""
    if culprit.confirmed_wanted:
        wanted = f"; about {culprit.confirmed_wanted} pairs would decide (`--resume` with `--until-sure`)"
    return f"{culprit.confirmed} {against}{ratio}, {culprit.confirmed_pairs} pairs{wanted}"


def _refuted(result: BisectionResult, refuted: RefutedRevision) -> str:
    """A culprit that the search gave up, in one line."""
    ratio = f": {_ratio(refuted.confirmed_change)}" if result.kind == "ratio" else ""
    before = f" instead of {_ratio(refuted.change)}" if ratio and refuted.change.ratio else ""
    return (
        f"Found first and refuted: {code(refuted.label)} {escaped(refuted.title)}. {refuted.pairs} pairs of "
        f"fresh builds against {code(refuted.parent)}{ratio}{before}. The search continued with them."
    )


def _reverted(result: BisectionResult, culprit: Culprit) -> str:
    """The effect of reverting the culprit on top of the bad end."""
    if culprit.reverted == "found":
        change = _effect(result, culprit.reverted_change)
        return "reverted on top of the bad end: " + (change or "the fault is gone")
    nothing = (
        "it makes no measurable difference" if culprit.reverted == "not reproduced" else culprit.reverted
    )
    return f"reverted on top of the bad end: {escaped(nothing)}"


def _blame(result: BisectionResult, culprit: Culprit) -> str:
    """Say whether eager changed too, so that the back end is not the cause."""
    eager, change = culprit.eager, culprit.change
    if not (
        eager and eager.ratio and eager.low and eager.high and change.ratio and change.low and change.high
    ):
        return ""
    if not (eager.low > 1 or eager.high < 1):
        return ": no measurable change"
    compiled = change.ratio
    if result.metric == "speedup":
        compiled = eager.ratio / change.ratio
        is_unmoved = eager.low / change.high <= 1 <= eager.high / change.low
        if is_unmoved and abs(compiled - 1) < abs(eager.ratio - 1) / 2:
            became = "slower" if eager.ratio > 1 else "faster"
            return f": it became {became}, and compiled has no measurable change"
    alike = (eager.ratio > 1) == (compiled > 1) and abs(eager.ratio - 1) > abs(compiled - 1) / 2
    return ": it moved as well, so the change is in what both share" if alike else ""


def _without(result: BisectionResult) -> str:
    """The result of a bisection that found no culprit."""
    if not result.ranges:
        return "Nothing was measured."
    top = result.ranges[0]
    if result.word == NOT_FINISHED:
        return _unfinished(result)
    if result.word == "end not measured":
        whys = [
            f"{code(s.label)}: {escaped(s.why)}" for s in top.skipped if s.id in (top.good.id, top.bad.id)
        ]
        return "An end of the range could not be measured: " + "; ".join(whys) + "."
    effect = _effect(result, top.change)
    change = f" {escaped(result.title)} from good to bad: {effect}." if effect else ""
    noise = f" One measurement scatters by {top.sd:.2%}." if top.sd and result.kind == "ratio" else ""
    reason = {
        "not reproduced": "**Not reproduced**: on this host the two ends do not differ, or by less than the "
        "noise or `--minimum-change`.",
        "undecided": "**Undecided**: these measurements do not show whether the two ends differ.",
        "cannot tell": "**Cannot tell** which revision it was.",
    }.get(result.word, result.word)
    return f"{reason}{change}{noise} Probability that nothing changed: {_percent(top.none)}."


def _unfinished(result: BisectionResult) -> str:
    """How far a bisection that is not finished came."""
    now = next((stage for stage in result.ranges if stage.verdict == NOT_FINISHED), None)
    if now is None:
        return "Not finished: a search inside what was found, or its confirmation, is left."
    at = "Not finished: " + " ".join(filter(None, [now.standing.phase, escaped(now.how)]))
    if now.standing.first:
        left = now.standing.last - now.standing.first + 1
        at += f"; {left} of {now.last} revisions left, with {_percent(now.standing.probability)}"
    return at + "."


def _stage(result: BisectionResult, stage: StageResult, as_page: bool) -> str:
    how = f" {stage.how}" if stage.how else ""
    title = f"{stage.recipe}{how}: {stage.good.label} .. {stage.bad.label}, {stage.revisions} revisions"
    parts = [f"**{escaped(title)}**"]
    if stage.tested:
        parts.append(svg(result, stage) if as_page else fenced(text_chart(result, stage)))
    if stage.skipped:
        rows = [(code(s.label), escaped(s.why)) for s in stage.skipped[:_SKIPPED]]
        more = len(stage.skipped) - len(rows)
        body = table(("revision", "why"), rows) + (f"\n\nand {more} more" if more else "")
        parts.append(folded(f"{len(stage.skipped)} skipped", body))
    return "\n\n".join(parts)


def _facts(result: BisectionResult) -> str:
    counts = result.counts
    builds = f"{counts['builds']} builds ({_hours(counts['build_s'])})"
    if counts["reused"]:
        builds += f", {counts['reused']} taken from the cache"
    if counts["failed"]:
        builds += f", {counts['failed']} that failed"
    again = f", {counts['confirming']} of them to confirm" if counts["confirming"] else ""
    measurements = f"{counts['measurements'] + counts['confirming']} measurements{again}"
    rows: Sequence[tuple[str, str]] = [
        ("measured", code(subject(result), 400)),
        ("work", f"{builds}; {measurements} ({_hours(counts['measure_s'])})"),
        ("host", escaped(f"{result.host}, {result.host_class}")),
        ("when", f"{result.began} to {result.ended}" if result.ended else result.began),
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


def markdown_of_all(outcomes: Sequence[GroupOutcome], left: int = 0) -> str:
    """The report in GitHub Markdown. left: causes that an interruption left out."""
    found = sum(_has_culprit(outcome) for outcome in outcomes)
    failed = sum(outcome.how == FAILED for outcome in outcomes)
    causes = "1 cause" if len(outcomes) + left == 1 else f"{len(outcomes) + left} causes"
    words = [f"{found} with a culprit"]
    words += [f"{failed} failed"] if failed else []
    words += [f"{left} not started"] if left else []
    parts = [f"### Open alerts by cause: {causes}, {', '.join(words)}"]
    rows = [
        (str(outcome.number), escaped(outcome.title), str(len(outcome.alerts)), _cell_of_cause(outcome))
        for outcome in outcomes
    ]
    parts.append(table(("alert", "measured", "alerts of the cause", "result"), rows))
    for outcome in outcomes:
        if text := _text_of_cause(outcome):
            parts += [f"#### Alert {outcome.number}: {escaped(outcome.title)}", text]
    return "\n\n".join(parts) + "\n"


def all_to_json(outcomes: Sequence[GroupOutcome]) -> dict[str, Any]:
    """Plain values, a list of causes; each has the whole result of its bisection."""
    causes = []
    for outcome in outcomes:
        attempt = outcome.attempt
        values = asdict(outcome)
        del values["attempt"], values["exit_code"]
        values["folder"] = attempt.folder if attempt else None
        values["result"] = attempt.result.to_json() if attempt else None
        causes.append(values)
    return {"schema": 1, "causes": causes}


def _has_culprit(outcome: GroupOutcome) -> bool:
    found = outcome.attempt is not None and outcome.attempt.result.word == FOUND and outcome.is_explained
    return outcome.how == KNOWN or found


def _cell_of_cause(outcome: GroupOutcome) -> str:
    """The result of a cause for a cell of the table."""
    if outcome.how == KNOWN:
        return f"found before: {escaped('; '.join(outcome.culprits), 200)}"
    if outcome.attempt is None:
        return f"{outcome.how}: {escaped(plain(outcome.why.splitlines()[0]), 200)}"
    result = outcome.attempt.result
    labels = ", ".join(code(revision.label) for c in result.culprits for revision in c.revisions[:3])
    shared = f" (as alert {outcome.beside})" if outcome.how == IN_PASSING else ""
    word = escaped(result.word) if outcome.is_explained else OTHER_CHANGE.rstrip()
    word += ", found so far" if labels and result.word == NOT_FINISHED else ""
    return f"{word} {labels}".rstrip() + shared


def _text_of_cause(outcome: GroupOutcome) -> str:
    """What is known of a cause's culprit, and where the whole report lies; empty if that is in the table."""
    attempt = outcome.attempt
    if attempt is None:
        return "" if "\n" not in outcome.why else escaped(outcome.why, 2000)
    parts = [main_text(attempt.result)]
    if outcome.how == IN_PASSING:
        parts.append(
            f"Only builds around the culprit of alert {outcome.beside} were measured: it explains this "
            "alert, too."
        )
    elif outcome.how != BISECTED:
        parts.append("It was interrupted. The same command continues.")
    parts.append(f"Report: {code(attempt.folder, 400)}")
    return "\n\n".join(parts)
