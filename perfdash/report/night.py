"""One run, and what changed since: what every report of a night tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from perfdash.detect.comparing import Comparison
from perfdash.detect.evidence import gather
from perfdash.detect.findings import is_a_night
from perfdash.history import alerts as kept
from perfdash.history import schema
from perfdash.history.alerts import Alert
from perfdash.history.ingest import testbed_values
from perfdash.history.queries import RunLine, cases_by_id, list_runs, panel
from perfdash.history.rows import Imported, Row, RunRow
from perfdash.report.changes import APPEARED, Build, Change, of_alert, of_comparison, ordered

_SHORTLY = 5  # runs before, in one of which a case that is not new was measured


@dataclass(frozen=True)
class Night:
    """A run with what changed. `against` says in words since when; `untold` why nothing can be said."""

    imported: Imported
    changes: tuple[Change, ...] = ()
    against: str = ""
    untold: str | None = None

    @property
    def run(self) -> RunRow:
        return self.imported.run

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.imported.rows

    @property
    def testbed(self) -> str:
        """The digest under which the site has it."""
        return str(testbed_values(self.run)["digest"])


def against(imported: Imported, found: Comparison) -> Night:
    """A run compared with another side."""
    names = [each.run.name for each in found.old.runs]
    title = names[0] if len(names) == 1 else f"{found.old.title} ({len(names)} runs)"
    return Night(imported, tuple(ordered(of_comparison(found))), title)


def of_history(connection: sa.Connection, imported: Imported) -> Night:
    """A run by the nights before it, as the history judged them."""
    values = testbed_values(imported.run)
    beds = schema.testbeds
    bed = connection.execute(sa.select(beds.c.id).where(beds.c.digest == values["digest"])).scalar()
    lines = list_runs(connection, name=imported.run.name, testbed_id=bed) if bed is not None else []
    if not lines:
        return Night(imported, untold="this run is not in the history")
    run = lines[-1]
    before = [
        each
        for each in list_runs(connection, testbed_id=run.testbed_id, until=run.started)
        if each.origin == run.origin and (each.started, each.id) < (run.started, run.id)
    ]
    if not before:
        return Night(imported, untold="the first run of its kind in the history: nothing to compare it with")
    shortly = panel(connection, [*before[-_SHORTLY:], run], [])
    if not is_a_night(shortly):
        return Night(imported, untold="too few of the cases of the runs before it to be compared with them")
    found = [of_alert(each, run.id) for each in gather(connection, _of_night(connection, run))]
    known = shortly.statuses != ""
    new = np.flatnonzero(known[:, -1] & ~known[:, :-1].any(axis=1))
    cases = cases_by_id(connection, [shortly.case_ids[place] for place in new])
    last = Build.of(before[-1])
    found += [
        Change(APPEARED, case, "not measured before", good=last, bad=Build.of(run)) for case in cases.values()
    ]
    nights = "run" if len(before) == 1 else "runs"
    text = f"{len(before)} {nights} before it on this kind of machine, the last {before[-1].name}"
    return Night(imported, tuple(ordered(found)), text)


def _of_night(connection: sa.Connection, run: RunLine) -> Sequence[Alert]:
    """The alerts that stood on the night of a run, and those that it ended; none that was noise."""
    runs = schema.runs
    query = sa.select(runs.c.id, runs.c.started).where(runs.c.testbed_id == run.testbed_id)
    place = {row.id: (row.started, row.id) for row in connection.execute(query)}
    tonight = place[run.id]
    states = [state for state in kept.STATES if state != kept.DISMISSED]
    found = []
    for alert in kept.load(connection, testbed_id=run.testbed_id, states=states):
        bad, seen = place.get(alert.bad_run_id or -1), place.get(alert.seen_run_id or -1)
        if bad is None or bad > tonight:
            continue
        # A case that has vanished is seen on no night.
        gone = alert.kind == "vanished" and alert.state in kept.LIVE
        if gone or (seen is not None and seen >= tonight):
            found.append(alert)
    return found
