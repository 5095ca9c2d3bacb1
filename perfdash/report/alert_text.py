"""Alerts for a terminal and for programs: select open ones, write tables and plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from prettytable import PrettyTable

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.causes import gather_in_causes
from perfdash.detect.change_dates import Dated
from perfdash.detect.nightly_judging import AFTER, SeriesThreshold
from perfdash.history.alert_store import (
    ACCEPTED,
    ACKNOWLEDGED,
    INVALID,
    SHOWN,
    STATES,
    SUSPECTED,
    Alert,
    AlertEvent,
    load,
)
from perfdash.history.queries import RunLine
from perfdash.history.store import Store
from perfdash.metrics import JUDGED, PARTS, title_of
from perfdash.records import Case, variation
from perfdash.report.dashboard_tables import dtype_words
from perfdash.report.markdown import plain
from perfdash.report.number_format import percent_change, with_unit

CULPRIT = "culprit: "  # how a line begins that says whom a bisection found
OTHER_CHANGE = "found another change, which does not explain this alert: "
_DIRECTION = {1: "worse", -1: "better", 0: ""}


def open_alerts(
    store: Store, *, everything: bool = False, worse: bool = False, of_run: Sequence[Alert] | None = None
) -> list[AlertEvidence]:
    """The open alerts with their evidence, then the suspected ones; regressions first, the largest first.

    everything: closed ones too; worse: regressions only; of_run: select from these (gates.alerts_in_run).
    """
    with store.read() as connection:
        states = STATES if everything else SHOWN
        if of_run is None:
            alerts = load(connection, states=states)
        else:
            alerts = [alert for alert in of_run if alert.state in states]
        if worse:
            alerts = [alert for alert in alerts if alert.direction > 0]
        return by_urgency(gather_in_causes(connection, alerts))


def by_urgency(evidence: Sequence[AlertEvidence]) -> list[AlertEvidence]:
    """Sort alerts: suspected ones last, regressions first, the largest first."""
    return sorted(
        evidence,
        key=lambda item: (
            item.alert.state == SUSPECTED,
            -item.alert.direction,
            -abs(item.alert.change or 9.0),
        ),
    )


def alert_list(alerts: Sequence[AlertEvidence]) -> str:
    """A table of alerts, with what changed between the two builds below it, once for all alerts of it."""
    if not alerts:
        return "No alerts"
    table = PrettyTable(["id", "state", "", "model", "what", "before", "after", "change", "since"])
    table.align = "l"
    for name in ("id", "before", "after", "change"):
        table.align[name] = "r"
    numbers: dict[str, list[str]] = {}
    for evidence in alerts:
        alert = evidence.alert
        _, bad = evidence.between
        table.add_row(
            [
                alert.id,
                alert.state,
                _DIRECTION[alert.direction],
                model_of(evidence.case),
                what(alert),
                *_levels(alert),
                bad.started[:10] if bad else "",
            ]
        )
        for text in consequences(evidence):
            numbers.setdefault(text, []).append(str(alert.id))
    lines = [f"{', '.join(of)}: {text}" for text, of in numbers.items()]
    return "\n".join([str(table.get_string()), *lines])


def origin(evidence: AlertEvidence) -> str:
    """The builds between which an alert began, and the p of its test."""
    good, bad = evidence.between
    p = "" if evidence.alert.p is None else f", p = {evidence.alert.p:.1g}"
    return f"torch between {commit(good)} and {commit(bad)}{p}"


def consequences(evidence: AlertEvidence) -> list[str]:
    """What follows from an alert or changed with it, one line each."""
    lines = []
    alert = evidence.alert
    if evidence.speedup:
        lines.append(f"speedup {evidence.speedup[0]:.3f}x -> {evidence.speedup[1]:.3f}x")
    changed = evidence.changed
    if changed:
        lines.append("changed with it (before | after): " + "; ".join(map(str, changed)))
    if again := evidence.remeasured:
        lines.append(
            f"measured again in {again.pairs} pairs: {percent_change(again.ratio)} "
            f"({percent_change(again.low)} to {percent_change(again.high)})"
        )
    if both := evidence.seen_again:
        lines.append(f"measured again: {both[0]} -> {both[1]}")
    if decided := decision(alert):
        lines.append(decided)
    if like := alert.details.get("like_invalid"):
        lines.append(
            f"the same change as alert {like}, which was called invalid: if its level never went back, "
            f"accept it with `perfdash regressions {alert.id} --baseline-from RUN`"
        )
    return [*lines, *culprits(alert)]


def decision(alert: Alert) -> str:
    """What a person decided about an alert, who, when and why; empty if nobody did."""
    act = alert.details.get("act") or {}
    if alert.state not in (ACKNOWLEDGED, INVALID, ACCEPTED) or not act:
        return ""
    until = f" until {act['until']}" if act.get("until") else ""
    why = f": {act['why']}" if act.get("why") else ""
    return plain(f"{alert.state}{until} by {act.get('who')} on {act.get('at')}{why}", 500)


def culprits(alert: Alert) -> list[str]:
    """The culprits that a bisection found for an alert, then its other changes, one line each.

    Titles and names come from other repositories, so the lines are plain text.
    """
    bisection = alert.details.get("bisected") or {}
    is_unfinished = str(bisection.get("word", "")).startswith("not finished")
    so_far = "the search is not finished" if is_unfinished else ""
    lines = [
        plain(f"{beginning}{_culprit(culprit, alert, so_far)}")
        for beginning, key in ((CULPRIT, "culprits"), (OTHER_CHANGE, "others"))
        for culprit in bisection.get(key) or []
    ]
    return lines or ([f"bisected: {bisection['word']}"] if bisection.get("word") else [])


def _culprit(culprit: Mapping[str, Any], alert: Alert, so_far: str) -> str:
    """A culprit by its commit, its signed change, and whether it was confirmed; so_far: a remark."""
    first = (culprit.get("commits") or [{}])[0]
    words = ["no longer has"] if culprit.get("lost") else []
    words += [str(first.get("label") or "?"), str(first.get("title") or "")[:80]]
    by = f" by {first['author']}" if first.get("author") else ""
    others = f", or one of {culprit['of'] - 1} others" if culprit.get("of", 1) > 1 else ""
    change, size = culprit.get("change"), ""
    if change is not None and (culprit.get("kind") or alert.kind) == "count":
        size = f"{change:+.4g}"
    elif change is not None and change > 0:
        size = percent_change(math.log(change))
    measured = " ".join(filter(None, [size, culprit.get("of_metric")]))
    measured = f": {measured}" if measured else ""
    confirmed = culprit.get("confirmed") or ""
    notes = "; ".join(filter(None, ["not yet confirmed" if confirmed == "more" else confirmed, so_far]))
    return f"{' '.join(filter(None, words))}{by}{others}{measured}{f' ({notes})' if notes else ''}"


def life(events: Sequence[AlertEvent]) -> str:
    """The events of an alert, one line each."""
    return "\n".join(
        "  ".join(
            text for text in (event.at, event.state, event.run or "", plain(event.note or "", 500)) if text
        )
        for event in events
    )


def change_list(dated: Sequence[Dated], cases: Mapping[int, Case]) -> str:
    """A table of the lasting changes in the whole history, the largest first."""
    if not dated:
        return "No lasting changes"
    table = PrettyTable(
        ["model", "what", "before", "after", "change", "confidence", "first seen", "between",
         "torch between"]
    )  # fmt: skip
    table.align = "l"
    for item in sorted(dated, key=lambda item: -abs(item.change.change)):
        case, change = cases.get(item.case_id or -1), item.change
        table.add_row(
            [
                model_of(case),
                JUDGED[item.metric].title,
                with_unit(item.metric, change.before) if case else "",
                with_unit(item.metric, change.after) if case else "",
                f"{change.change:+.1%}",
                f"{change.confidence:.4f}",
                item.first.started[:10],
                f"{item.good.started[:10]} .. {item.bad.started[:10]}",
                f"{commit(item.good)} .. {commit(item.bad)}",
            ]
        )
    return str(table.get_string())


def noise_list(listed: Sequence[SeriesThreshold]) -> str:
    """A table of noisy series with the least change that raises an alert in each."""
    if not listed:
        return "No series has enough nights to estimate its noise"
    after = [f"found after {nights} night{'' if nights == 1 else 's'}" for nights in AFTER]
    table = PrettyTable(["model", "what", "nights", "noise of a night", "counts from", *after])
    table.align = "r"
    for name in ("model", "what"):
        table.align[name] = "l"
    for series in listed:
        least = ["" if change is None else f"{change:.1%}" for change in series.least]
        table.add_row(
            [
                model_of(series.case),
                series.metric,
                series.nights,
                f"{series.sd:.2%}",
                f"{series.minimum:.1%}",
                *least,
            ]
        )
    return str(table.get_string())


_OF_RUN = ("run", "started", "torch", "torch_git_version")
# The keys of an alert as plain values, those of its case and runs with a dot, without those of `details`.
ALERT_COLUMNS = (
    "id", "testbed_id", "state", "kind", "direction", *(f"case.{name}" for name in Case.__dataclass_fields__),
    "metric", "side", "before", "after", "change", "p", "speedup",
    *(f"{run}.{name}" for run in ("good", "bad", "last_seen") for name in _OF_RUN),
    "opened", "changed", "events",
)  # fmt: skip


def to_plain(evidence: AlertEvidence, events: Sequence[AlertEvent] = ()) -> dict[str, Any]:
    """An alert as plain values for JSON."""
    alert = evidence.alert
    good, bad = evidence.between
    return {
        "id": alert.id,
        "testbed_id": alert.testbed_id,
        "state": alert.state,
        "kind": alert.kind,
        "direction": _DIRECTION[alert.direction],
        "case": vars(evidence.case) if evidence.case else None,
        "metric": alert.metric,
        "side": side(alert),
        "before": alert.before,
        "after": alert.after,
        "change": alert.change,
        "p": alert.p,
        "speedup": list(evidence.speedup) if evidence.speedup else None,
        "good": _run(good),
        "bad": _run(bad),
        "last_seen": _run(evidence.seen),
        "opened": alert.opened,
        "changed": alert.changed,
        "details": alert.details,
        "events": [vars(event) for event in events],
    }


def _run(run: RunLine | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "run": run.name,
        "started": run.started,
        "torch": run.torch,
        "torch_git_version": run.torch_git_version,
    }


def side(alert: Alert) -> str | None:
    """The measured side of an alert: eager, compiled, or None for both."""
    metric = JUDGED.get(alert.metric or "")
    if metric is None or alert.kind not in ("metric", "host", "drift"):
        return None
    return "eager" if metric.of_eager else "compiled"


def what(alert: Alert) -> str:
    """What changed, in words."""
    if alert.kind == "vanished":
        return "no longer measured"
    if alert.kind == "status":
        return f"{alert.details.get('before')} -> {alert.details.get('after')}"
    if alert.metric in JUDGED:
        title = JUDGED[str(alert.metric)].title
        return title + (", slow drift" if alert.kind == "drift" else "") + _inside(alert)
    return title_of(str(alert.metric))


def _inside(alert: Alert) -> str:
    """The parts of a step that changed with it."""
    parts = alert.details.get("parts") or {}
    changes = [
        f"{PARTS[name].title} {percent_change(change)}" for name, change in parts.items() if name in PARTS
    ]
    return f" ({', '.join(changes)})" if changes else ""


def model_of(case: Case | None) -> str:
    """A case in a few words, long names cut in the middle; the whole host without a case."""
    if case is None:
        return "most models of the host"
    parts = [f"{short_name(case.suite)}/{short_name(case.model)}", f"bs {case.batch_size}"]
    if case.dtype != "float32":
        parts.append(dtype_words(case.dtype, case.amp_dtype))
    if case.backend != "inductor":
        parts.append(case.backend)
    if case.device != "cpu":
        parts.append(case.device)
    if case.threads != 1:
        parts.append(f"{case.threads} threads")
    if case.scenario != "inference":
        parts.append(case.scenario)
    parts += [word for word in [variation(case.configuration, case.dynamic)] if word]
    return " ".join(parts)


_LONGEST_NAME = 60  # the longest of the three suites has 43 characters


def short_name(name: str) -> str:
    """The name of a model or suite as it fits into a line: beginning and end, as names often differ there."""
    if len(name) <= _LONGEST_NAME:
        return name
    tail = _LONGEST_NAME // 3
    return f"{name[: _LONGEST_NAME - tail - 1]}…{name[-tail:]}"


def commit(run: RunLine | None) -> str:
    """The commit of torch in a run; its version where the commit is not known."""
    if run is None:
        return "?"
    return (run.torch_git_version or run.torch or "?")[:10]


def _levels(alert: Alert) -> tuple[str, str, str]:
    if alert.kind == "count":
        return with_unit(alert.metric, alert.before), with_unit(alert.metric, alert.after), ""
    if alert.change is None:
        return "", "", ""
    change = f"{math.expm1(alert.change):+.1%}"
    if alert.before is None or alert.after is None:
        return "", "", change
    return with_unit(alert.metric, alert.before), with_unit(alert.metric, alert.after), change
