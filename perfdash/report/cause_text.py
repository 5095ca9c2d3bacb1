"""A cause as reports show it: a headline of one line, its evidence, and what it explains. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.causes import Cause, causes
from perfdash.detect.environment_changes import environment_changes
from perfdash.metrics import METRICS, title_of
from perfdash.report.alert_text import model_of, short_name
from perfdash.report.changes import (
    APPEARED,
    GROUPS,
    MEASURED_AGAIN,
    NEW_FAILURE,
    REGRESSION,
    REPAIRED,
    SUSPECTED,
    SUSPECTED_BETTER,
    VANISHED,
    ChangeEnd,
    Machine,
    RunChange,
    of_alert,
    ordered,
)
from perfdash.report.commit_links import CommitRange, commit_ranges
from perfdash.report.number_format import counted

_WORSE = (REGRESSION, SUSPECTED, NEW_FAILURE, VANISHED)
_WIDE = 1.5  # largest change over smallest from which both are named


@dataclass(frozen=True)
class ReportedCause:
    """Changes that one cause explains; members: the worst first. `group`: the worst of those of the run.

    It came after the build `good`; `bad` is the first known with it. number: of its page, None without an
    alert. evidence: how sure it is. attribution: compiler, library, host, or empty where unknown. changed:
    packages that changed with it, `name: old | new`. machines: names of those that saw it. why: what is known
    of its generated code and files, in a sentence.
    """

    group: str
    members: tuple[RunChange, ...]
    good: ChangeEnd | None = None
    bad: ChangeEnd | None = None
    number: int | None = None
    evidence: str = ""
    attribution: str = ""
    changed: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    why: str = ""

    @property
    def of_run(self) -> list[RunChange]:
        """The members that the reported run shows; the others are of other testbeds."""
        return [member for member in self.members if member.of_run]

    @property
    def fresh(self) -> bool:
        """Whether the reported run is the first of its testbed with any of it."""
        return all(member.fresh for member in self.of_run)

    @property
    def acknowledged(self) -> bool:
        """Whether all of it that the reported run shows is acknowledged."""
        return all(member.acknowledged for member in self.of_run)

    @property
    def models(self) -> set[tuple[str, str]]:
        """Suite and name of the run's models with changes of its group; most models of a host are none."""
        return _models([member for member in self.of_run if member.group == self.group])

    @property
    def main(self) -> list[RunChange]:
        """The members of its headline: of its group, with the metric that most of them have."""
        same = [member for member in self.members if member.group == self.group] or list(self.members)
        metrics = [member.metric for member in same]
        metric = max(metrics, key=lambda name: (metrics.count(name), name == "backend_ms"))
        return [member for member in same if member.metric == metric]

    @property
    def change(self) -> float | None:
        """The median log change of the main members."""
        changes = _changes(self.main)
        return float(median(changes)) if changes else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of a single change; of several, the smallest and the largest change."""
        main = self.main
        if len(main) == 1:
            return main[0].interval
        changes = _changes(main)
        return (min(changes), max(changes)) if changes else None

    @property
    def culprits(self) -> list[str]:
        """The culprits that bisections of its members found."""
        return list(dict.fromkeys(culprit for member in self.members for culprit in member.culprits))

    @property
    def headline(self) -> str:
        """What happened to whom, in one line of plain text."""
        main = self.main
        return f"{_who(main)} {_what(self, main)}{_also(self, main)}"

    @property
    def between(self) -> list[CommitRange]:
        """The builds around it."""
        return commit_ranges(self.good, self.bad)


def reported(
    evidence: Sequence[AlertEvidence],
    run_id: int,
    of_run: Sequence[AlertEvidence] | None = None,
    machines: Mapping[int, Machine] | None = None,
    why: Callable[[Cause], str] | None = None,
) -> list[ReportedCause]:
    """The causes of alerts, as a run shows them, the worst first.

    `evidence`: open alerts of all testbeds. `of_run`: those that the run shows; causes without one are left
    out. `machines`: those of the testbeds, by their numbers in the store. `why`: explains a cause.
    """
    wanted = None if of_run is None else {item.alert.id for item in of_run}
    testbeds = {item.alert.testbed_id for item in of_run or ()}
    shown = [
        # What changed on the run's own machine is what its readers can check.
        cause.on(next(iter(testbeds))) if len(testbeds) == 1 else cause
        for cause in causes(evidence)
        if wanted is None or any(member.alert.id in wanted for member in cause.members)
    ]

    def change_of(member: AlertEvidence) -> RunChange:
        return replace(of_alert(member, run_id), of_run=wanted is None or member.alert.id in wanted)

    return sort_causes(
        of_cause(cause, change_of, machines or {}, why(cause) if why else "") for cause in shown
    )


def of_cause(
    cause: Cause,
    change_of: Callable[[AlertEvidence], RunChange],
    machines: Mapping[int, Machine],
    why: str = "",
) -> ReportedCause:
    """A cause with the changes that its alerts show in some run, and a sentence on why it changed."""
    good, bad = ChangeEnd.of(cause.good), ChangeEnd.of(cause.bad)
    members = [
        replace(change_of(member), machine=machines.get(member.alert.testbed_id)) for member in cause.members
    ]
    return ReportedCause(
        min((member.group for member in members if member.of_run), key=GROUPS.index),
        tuple(members),
        good,
        bad,
        cause.id,
        evidence_words(cause),
        "" if cause.attribution == "unknown" else cause.attribution,
        tuple(_changed(cause)),
        tuple(machines[number].name for number in cause.testbeds if number in machines),
        why,
    )


def _changed(cause: Cause) -> list[str]:
    return environment_changes(cause.good, cause.bad, cause.hosts) if cause.good and cause.bad else []


def evidence_words(cause: Cause) -> str:
    """How sure a cause is: confirmed by pairs, held for nights, or suspected."""
    if cause.is_suspected:
        return "suspected (to be measured again)"
    if cause.pairs:
        return f"confirmed ({counted(cause.pairs, 'pair')})"
    return f"held {counted(cause.nights, 'night')}"


def of_changes(changes: Sequence[RunChange]) -> list[ReportedCause]:
    """Causes of changes of no open alert: all of one group between the same two builds are one.

    What is fixed has no builds, so that only fixes of one metric are one.
    """
    groups: dict[tuple[object, ...], list[RunChange]] = {}
    for change in ordered(changes):
        ends = change.good and change.good.started, change.bad and change.bad.started
        kind = (change.metric or change.what) if change.group in _ALONE else None
        key = change.group, *ends, change.acknowledged, kind
        groups.setdefault(key, []).append(change)
    return sort_causes(
        ReportedCause(
            members[0].group,
            tuple(members),
            members[0].good,
            members[0].bad,
            None if members[0].group == REPAIRED else _number(members),
        )
        for members in groups.values()
    )


_ALONE = (APPEARED, VANISHED, REPAIRED)


def _number(members: Sequence[RunChange]) -> int | None:
    return min((member.alert for member in members if member.alert), default=None)


def sort_causes(items: Iterable[ReportedCause]) -> list[ReportedCause]:
    """Causes by group, acknowledged ones last; then by size and number of models."""

    def rank(cause: ReportedCause) -> tuple[object, ...]:
        size = abs(cause.change) if cause.change is not None else math.inf
        return GROUPS.index(cause.group), cause.acknowledged, -size * len(cause.main) ** 0.5, cause.headline

    return sorted(items, key=rank)


_SUITES = 3  # that are named in a headline
FAILING = "failing"  # a failure that is not new


def counts(reported_causes: Sequence[ReportedCause]) -> list[str]:
    """The causes counted by group, in words; acknowledged ones and other testbeds are left out."""
    words = []
    for group in GROUPS:
        loud = [cause for cause in reported_causes if cause.group == group and not cause.acknowledged]
        if not loud:
            continue
        notes = []
        if group in (NEW_FAILURE, VANISHED, APPEARED, REPAIRED):  # cases count, not their causes
            of_run = [member for cause in loud for member in cause.of_run]
            cases = {member.case for member in of_run}
            number, fresh = len(cases), len({member.case for member in of_run if member.fresh})
        else:
            number, fresh = len(loud), sum(cause.fresh for cause in loud)
            models = len(set().union(*(cause.models for cause in loud)))
            notes += [f"{models} models"] if models > number else []
        name = group.lower()
        if group == NEW_FAILURE and fresh < number:
            name = FAILING
        if 0 < fresh < number:
            notes.append(f"{fresh} new")
        elif not fresh and group in _WORSE and group != SUSPECTED:  # what is suspected may be new
            notes.append("none new")
        if number == 1 and name.endswith("s"):
            name = name[:-1]
        words.append(f"{number} {name}" + (f" ({', '.join(notes)})" if notes else ""))
    return words


def _models(members: Iterable[RunChange]) -> set[tuple[str, str]]:
    return {(member.case.suite, member.case.model) for member in members if member.case}


def _changes(members: Sequence[RunChange]) -> list[float]:
    return [member.change for member in members if member.change is not None and math.isfinite(member.change)]


def _who(members: Sequence[RunChange]) -> str:
    cases = [member.case for member in members]
    if None in cases:
        return model_of(None)
    models = _models(members)
    if len(models) == 1:
        different = {case for case in cases if case}
        case = next(iter(different))
        return model_of(case) if len(different) == 1 else f"{short_name(case.suite)}/{short_name(case.model)}"
    suites = sorted({suite for suite, _ in models})
    if len(suites) == 1:
        return f"{len(models)} {short_name(suites[0])} models"
    if len(suites) > _SUITES:
        return f"{len(models)} models of {len(suites)} suites"
    of_suites = [f"{sum(suite == name for suite, _ in models)} {short_name(name)}" for name in suites]
    return f"{len(models)} models ({', '.join(of_suites)})"


def _what(cause: ReportedCause, members: Sequence[RunChange]) -> str:
    one = len(_models(members)) == 1 and None not in [member.case for member in members]
    first = members[0]
    if first.group == VANISHED:
        return "is no longer measured" if one else "are no longer measured"
    if first.group == APPEARED:
        return "was not measured before" if one else "were not measured before"
    if first.what == MEASURED_AGAIN:
        return "is measured again" if one else "are measured again"
    if first.what == "status":
        statuses = sorted({member.after for member in members})
        verb = {True: "works again", False: "work again"} if first.group == REPAIRED else None
        if verb:
            return verb[one]
        return f"{'fails' if one else 'fail'}: {', '.join(statuses)}"
    metric = METRICS.get(first.metric or "")
    if metric is None or metric.kind == "count":
        ends = {(member.before, member.after) for member in members}
        title = title_of(first.metric) if first.metric else first.what
        levels = f" {first.before} -> {first.after}" if len(ends) == 1 and first.after else ""
        return f"{'has' if one else 'have'} {'other' if not levels else 'changed'} {title}:{levels}".rstrip(
            ":"
        )
    return _sized(cause, metric.kind, metric.of_eager, metric.title, one)


def _sized(cause: ReportedCause, kind: str, of_eager: bool, title: str, one: bool) -> str:
    """A relative change in words: 14.0 % slower (9 to 25 %)."""
    changes = [math.expm1(change) for change in _changes(cause.main)]
    if not changes:
        return f"changed: {title}"
    size = math.expm1(cause.change or 0.0)
    words = {
        "latency": ("slower", "faster"),
        "time": ("longer", "shorter"),
        "memory": ("more memory", "less memory"),
    }.get(kind, ("more", "less"))
    word = words[0] if size > 0 else words[1]
    low, high = sorted((abs(min(changes)), abs(max(changes))))
    spread = f" ({low:.0%} to {high:.0%})" if min(changes) * max(changes) > 0 and high > _WIDE * low else ""
    amount = f"{_percent(abs(size))} {word}{spread}"
    if kind == "latency":
        side = " in eager" if of_eager else ""
        return f"{amount}{side}{'' if title in ('eager latency', 'compiled latency') else f': {title}'}"
    if kind == "time":
        return f"{'takes' if one else 'take'} {amount}: {title}"
    if kind == "memory":
        return f"{'needs' if one else 'need'} {amount}{' in eager' if of_eager else ''}"
    return f"{title} {amount}"


def _percent(size: float) -> str:
    return f"{size:.1%}" if size < 0.095 else f"{size:.0%}"


def _also(cause: ReportedCause, main: Sequence[RunChange]) -> str:
    """What else the cause changed, in a few words; of what is only suspected, the same in other models."""
    others = [member for member in cause.members if member not in main]
    suspected = [
        member
        for member in others
        if member.group in (SUSPECTED, SUSPECTED_BETTER) and member.group != cause.group
    ]
    rest = [member for member in others if member not in suspected]
    worse = cause.group in _WORSE
    eager = any(
        (metric := METRICS.get(member.metric or "")) is not None
        and metric.of_eager
        and metric.kind == "latency"
        and (member.group in _WORSE) == worse
        for member in rest
    )
    other_way = len(_models([member for member in rest if (member.group in _WORSE) != worse]))
    way = "better" if worse else "worse"
    words = [", eager too"] if eager else []
    alike = [
        member
        for member in suspected
        if member.metric == main[0].metric and (member.group in _WORSE) == worse
    ]
    if models := _models(alike) - _models(main):
        words.append(f"; {counted(len(models), 'other model')} suspected")
    elif alike:
        words.append(f"; {counted(len(alike), 'other case')} suspected")
    titles = dict.fromkeys(
        member.what if metric is None or metric.part_of else metric.title
        for member in rest
        if (member.group in _WORSE) == worse
        and ((metric := METRICS.get(member.metric or "")) is None or metric.kind != "latency")
    )
    words += [f"; also {', '.join([*titles][:2])}"] if titles else []
    words += [f"; {counted(other_way, 'other')} {way}"] if other_way else []
    return "".join(words)
