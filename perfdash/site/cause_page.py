"""The page of a cause: a chart of all its models, its members, what happened to it, and its bisection."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import sqlalchemy as sa

from perfdash.detect.alert_evidence import REAL, some_cases
from perfdash.detect.causes import Cause, can_be_bisected, causes, strongest
from perfdash.detect.environment_changes import build_changes
from perfdash.detect.findings import has_several_machines, metric_logs, on_one_machine
from perfdash.detect.nights import first_latest_day
from perfdash.explain.case_sides import explain_cause, sentence_of_cause
from perfdash.explain.code_difference import code_difference
from perfdash.explain.explanation_text import figures, shown_figure
from perfdash.explain.structure_comparison import Explanation
from perfdash.history import alert_store
from perfdash.history.generated_code import texts
from perfdash.history.queries import Panel, RunLine, list_runs, of_method, panel
from perfdash.metrics import JUDGED, METRICS
from perfdash.report import site_links
from perfdash.report.alert_text import model_of
from perfdash.report.cause_text import ReportedCause, of_cause, of_changes
from perfdash.report.changes import RunChange, without_lost
from perfdash.report.full_tables import reason_of_failure
from perfdash.report.night import machines_of_testbeds
from perfdash.site.regressions_page import StandingAlerts, on_its_night, standing_alerts
from perfdash.site.testbed_history import Testbed, epoch

NIGHTS = 90  # drawn
MOST = 60  # causes, the worst, whose page has a chart, an explanation and what happened
_MEMBERS = 100  # rows of the table
_LINES = 80  # models drawn one by one
_BEFORE = 20  # nights that give a model's level before the change
_DAY = 86400
_EVENTS = 60
_DIFF_LINES = 300
_DIFF_CHARS = 40_000


@dataclass(frozen=True)
class CauseLines:
    """The models of a cause over days, each relative to its level before.

    times: seconds since 1970, of days; values: of the models that are drawn, None where not
    measured; median: of all models.
    """

    title: str
    times: list[float]
    values: list[list[float | None]]
    median: list[float | None]


@dataclass(frozen=True)
class CauseStructure:
    """What compiling produced before and after, of the model that `case` names.

    rows: name, before, after of the counts; difference: of the generated code, as a unified diff;
    without_code: names of the runs that kept none of their code, where it differs.
    """

    case: str
    rows: list[tuple[str, str, str]]
    difference: str
    without_code: list[str]
    command: str


@dataclass(frozen=True)
class CauseView:
    """A cause as its page and the overview show it; one without members is over, and has no page.

    events: (day, words), oldest first. command: what bisects it. listed: the alerts that the page of
    regressions has.
    """

    cause: ReportedCause
    onset: float | None
    members: list[RunChange] = field(default_factory=list)
    left_out: int = 0
    lines: CauseLines | None = None
    events: list[tuple[str, str]] = field(default_factory=list)
    command: str = ""
    structure: CauseStructure | None = None
    listed: Collection[int | None] = ()

    @property
    def page(self) -> str:
        return site_links.cause_page(self.cause.number or 0)


def open_causes(
    connection: sa.Connection, testbeds: Sequence[tuple[Testbed, Sequence[RunLine]]]
) -> tuple[list[CauseView], dict[int, StandingAlerts]]:
    """The open causes of all testbeds, the worst first, then what the last nights show to be over.

    And the alerts of each testbed, by its number.

    `testbeds`: each with all its runs, oldest first.
    """
    standing = {bed.id: standing_alerts(connection, bed, runs) for bed, runs in testbeds}
    heads = {run.id: run for alerts in standing.values() for run in alerts.heads}
    machines = machines_of_testbeds(connection)
    found = causes([item for alerts in standing.values() for item in alerts.is_open])
    listed = {item.alert.id for alerts in standing.values() for item in alerts.listed}
    # An alert has the range of its cause on every page.
    ranged = {member.alert.id: member for cause in found for member in cause.members}
    for bed_id, alerts in standing.items():
        evidence = [ranged.get(item.alert.id, item) for item in alerts.evidence]
        standing[bed_id] = replace(alerts, evidence=evidence)
    panels = _panels(connection, found[:MOST])
    views = []
    for place, cause in enumerate(found):
        explained = explain_cause(connection, cause) if place < MOST else None
        why = sentence_of_cause(cause, explained) if explained else ""
        if place < MOST:
            why = why or reason_of_failure(connection, cause)
        shown = of_cause(cause, lambda member: on_its_night(member, heads), machines, why)
        onset = epoch(cause.bad.started) if cause.bad else None
        members, left_out = list(shown.members[:_MEMBERS]), max(0, len(shown.members) - _MEMBERS)
        view = CauseView(shown, onset, members, left_out, command=_command(cause), listed=listed)
        if place < MOST:
            structure = _structure(explained) if explained else None
            view = replace(
                view, lines=_lines(cause, panels), events=_events(connection, cause), structure=structure
            )
        views.append(view)
    evidence = [item for alerts in standing.values() for item in alerts.evidence]
    over = [item for item in evidence if item.alert.state == alert_store.FIXED]
    is_open = [item for item in evidence if item.alert.state != alert_store.FIXED]
    changes = [on_its_night(item, heads) for item in without_lost(over, is_open)]
    return views + [CauseView(cause, None) for cause in of_changes(changes)], standing


def _structure(explained: Explanation) -> CauseStructure:
    rows = [(name, shown_figure(old), shown_figure(new)) for name, old, new in figures(explained)]
    before, after = explained.before, explained.after
    difference, without_code = "", []
    if explained.same_code is False:
        difference = code_difference(explained, texts(before.code), texts(after.code), _DIFF_LINES)
        without_code = [side.run.name for side in (before, after) if side.kernels and not side.code]
    words = ["perfdash", "explain", after.run.name, after.case.name, "--against", before.run.name]
    return CauseStructure(after.case.name, rows, difference[:_DIFF_CHARS], without_code, shlex.join(words))


def _command(cause: Cause) -> str:
    """What looks for its commit; empty where no main member can be bisected, or no new build came with it."""
    live = [member for member in cause.main if member.alert.state in alert_store.LIVE]
    chosen = strongest(live or cause.main)
    good, bad = chosen.between
    if not can_be_bisected(chosen) or good is None or bad is None or not build_changes(good, bad):
        return ""
    return f"perfdash bisect --alert {chosen.alert.id}"


def _panels(connection: sa.Connection, found: Sequence[Cause]) -> Mapping[int, Panel]:
    """The last nights of each testbed's cases that a cause has, by the method of the last; read once.

    Several machines of a testbed are at the level of one.
    """
    case_ids: dict[int, set[int]] = {}
    metrics: set[str] = set()
    for cause in found:
        for member in cause.main:
            if member.alert.case_id is not None and member.alert.metric in JUDGED:
                case_ids.setdefault(member.alert.testbed_id, set()).add(member.alert.case_id)
                metrics.add(str(member.alert.metric))
    panels = {}
    for bed, numbers in case_ids.items():
        first_day = first_latest_day(connection, bed, NIGHTS)
        recent = list_runs(connection, testbed_id=bed, since=first_day, with_excluded=False)
        if not recent:
            continue
        several = has_several_machines(recent)
        others = some_cases(connection, recent) if several else []  # they show the machines' levels
        read = panel(connection, recent, [*JUDGED, "calls_captured"], case_ids=sorted({*numbers, *others}))
        panels[bed] = of_method(read, recent[-1].method)
        if several:
            steps = alert_store.load(connection, testbed_id=bed, states=REAL)
            panels[bed], _ = on_one_machine(panels[bed], steps=steps, metrics=metrics)
    return panels


def _lines(cause: Cause, panels: Mapping[int, Panel]) -> CauseLines | None:
    """The main members over days, the first of them drawn one by one; None where they have no numbers."""
    metric = cause.main[0].alert.metric or ""
    if metric not in JUDGED or cause.bad is None:
        return None
    by_day: list[dict[int, float]] = []
    of_beds = {bed: panels[bed] for bed in {each.alert.testbed_id for each in cause.main} if bed in panels}
    logs = {bed: metric_logs(of_bed, metric) for bed, of_bed in of_beds.items()}
    for member in cause.main:
        of_bed = of_beds.get(member.alert.testbed_id)
        if of_bed is None or member.alert.case_id not in of_bed.case_ids:
            continue
        row = of_bed.case_ids.index(member.alert.case_id)
        values = _relative(logs[member.alert.testbed_id][row], of_bed.runs, cause.bad, member.alert.before)
        if values:
            by_day.append(values)
    days = sorted({day for values in by_day for day in values})
    if not days:
        return None
    median: list[float | None] = [
        float(np.median([values[day] for values in by_day if day in values])) for day in days
    ]
    models = len({(case.suite, case.model) for member in cause.main if (case := member.case)})
    title = f"{METRICS[metric].title} of {models} model{'' if models == 1 else 's'}"
    lines: list[list[float | None]] = [[values.get(day) for day in days] for values in by_day[:_LINES]]
    return CauseLines(title, [float(day * _DAY) for day in days], lines, median)


def _relative(
    logs: np.ndarray, runs: Sequence[RunLine], bad: RunLine, level_before: float | None
) -> dict[int, float]:
    """A series by day, relative to the median of its nights before the change.

    `level_before`: by the alert, where the change is older than these nights.
    """
    before = [
        value
        for value, run in zip(logs.tolist(), runs, strict=True)
        if math.isfinite(value) and run.started < bad.started
    ]
    if before:
        level = float(np.median(before[-_BEFORE:]))
    elif level_before:
        level = math.log(level_before)
    else:
        return {}
    return {
        int(epoch(run.started) // _DAY): math.exp(value - level)
        for value, run in zip(logs.tolist(), runs, strict=True)
        if math.isfinite(value)
    }


def _events(connection: sa.Connection, cause: Cause) -> list[tuple[str, str]]:
    """What happened to the alerts of a cause, those of one day and state together."""
    told: dict[tuple[str, str, str], list[str]] = {}
    for member in cause.members:
        for event in alert_store.events(connection, member.alert.id or 0):
            told.setdefault((event.day, event.state, event.note or ""), []).append(model_of(member.case))
    lines = []
    for (day, state, note), models in sorted(told.items(), key=lambda item: item[0][0]):
        who = models[0] if len(models) == 1 else f"{len(models)} members"
        lines.append((day, f"{who}: {state}{f' ({note})' if note else ''}"))
    return lines[-_EVENTS:]
