"""Judges the runs that were not judged yet, in order, and keeps the alerts: history in, history out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import sqlalchemy as sa

from perfdash.detect import alerts as life
from perfdash.detect.findings import NIGHTS, READ, Finding, drifts, judge, like_tonight
from perfdash.history import alerts as kept
from perfdash.history.queries import Panel, RunLine, list_runs, panel
from perfdash.history.store import Store

# Runs before the latest so many are history: change points tell of them, not alerts.
LATEST = 30


@dataclass(frozen=True)
class Judged:
    """A night with what was found on it, and the panel that the findings speak of."""

    run: RunLine
    panel: Panel
    findings: list[Finding]


def judge_new(store: Store, latest: int = LATEST) -> list[Judged]:
    """Judges what has come since the last time, oldest first, one transaction a run."""
    with store.read() as connection:
        waiting = [run for run in list_runs(connection, latest=latest) if run.judged is None and run.results]
    done = []
    for run in waiting:
        with store.write() as connection:
            judged = judge_run(connection, run)
            at = now()
            # Later nights may be known already: this one was taken in late. It changes no alert then.
            if not _is_late(connection, run):
                _keep(connection, judged, at)
            kept.set_judged(connection, [run.id], at)
        done.append(judged)
    return done


def judge_run(connection: sa.Connection, run: RunLine) -> Judged:
    """What changed on the night of a run, by the nights like it before; changes nothing."""
    before = list_runs(connection, testbed_id=run.testbed_id, until=run.started, latest=NIGHTS + 20)
    runs = [each for each in before if each.origin == run.origin and _earlier(each, run)]
    whole = panel(connection, [*runs, run], READ)
    alike = like_tonight(whole)[-NIGHTS:]
    night = part(whole, alike) if alike else part(whole, [len(whole.runs) - 1])
    alerts = kept.load(connection, testbed_id=run.testbed_id, states=(*kept.LIVE, kept.FIXED))
    night = life.without_fixed(night, alerts)
    start = life.starts(night, alerts)
    found = judge(night, start)
    if _first_of_its_week(night.runs):
        found += drifts(night, start)
    return Judged(run, night, found)


def _first_of_its_week(runs: Sequence[RunLine]) -> bool:
    weeks = [date.fromisoformat(run.started[:10]).toordinal() // 7 for run in runs[-2:]]
    return len(weeks) == 2 and weeks[0] != weeks[1]


def _keep(connection: sa.Connection, judged: Judged, at: str) -> None:
    testbed = judged.run.testbed_id
    alerts = kept.load(connection, testbed_id=testbed, states=(*kept.LIVE, kept.FIXED))
    for alert, note in life.advance(judged.panel, alerts, judged.findings, at):
        kept.save(connection, alert, note)


def _earlier(one: RunLine, other: RunLine) -> bool:
    return (one.started, one.id) < (other.started, other.id)


def _is_late(connection: sa.Connection, run: RunLine) -> bool:
    later = list_runs(connection, testbed_id=run.testbed_id, since=run.started)
    return any(each.judged is not None and _earlier(run, each) for each in later)


def part(whole: Panel, places: Sequence[int]) -> Panel:
    """Some of the runs of a panel, and the cases that those have."""
    chosen = list(places)
    statuses = whole.statuses[:, chosen]
    rows = [row for row in range(len(whole.case_ids)) if (statuses[row] != "").any()]
    values: Mapping[str, object] = whole.values
    return Panel(
        [whole.runs[place] for place in chosen],
        [whole.case_ids[row] for row in rows],
        {name: whole.values[name][rows][:, chosen] for name in values},
        statuses[rows],
    )


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
