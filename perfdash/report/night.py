"""One run, and what changed since: what every report of a night tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import sqlalchemy as sa

from perfdash.detect.comparing import Comparison
from perfdash.detect.evidence import gather
from perfdash.detect.findings import LIKE, SHORTLY, is_a_night
from perfdash.detect.heartbeat import before, nightlies_of
from perfdash.detect.metrics import METRICS
from perfdash.history import alerts as kept
from perfdash.history import nightlies, schema
from perfdash.history.alerts import Alert
from perfdash.history.ingest import testbed_values
from perfdash.history.queries import Panel, RunLine, cases_by_id, list_runs, panel
from perfdash.history.rows import Imported, Row, RunRow
from perfdash.history.summing import setting_of
from perfdash.report.changes import APPEARED, Build, Change, of_alert, of_comparison, ordered

_NIGHTLIES = 200  # latest ones that are looked through
FEWEST = 3  # nights before, below which no number is judged (stats.alarm)
_AT_ONCE = ("accuracy", "capture")  # behind statuses and counts, which are held against the night before


@dataclass(frozen=True)
class Night:
    """A run with what changed.

    `against` says in words since when; `untold` why nothing can be said, `caution` what cannot;
    `nightly` in one line what was wrong with the nightlies before it.
    """

    imported: Imported
    changes: tuple[Change, ...] = ()
    against: str = ""
    untold: str | None = None
    caution: str | None = None
    nightly: str | None = None

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
    if found.nothing_to_compare:
        return Night(imported, untold=f"nothing to compare: {found.nothing_to_compare}")
    names = [each.run.name for each in found.old.runs]
    title = names[0] if len(names) == 1 else f"{found.old.title} ({len(names)} runs)"
    untested = sum(
        any(delta.p is None for name, delta in one.deltas.items() if name in METRICS) for one in found.both
    )
    cautions = []
    if untested:
        cautions.append(
            f"numbers of {untested} of {len(found.both)} cases could not be tested, as nothing is known of "
            "their noise; give several runs, or a history"
        )
    if found.methods:
        cautions.append(f"what was measured by different methods ({', '.join(found.methods)})")
    caution = "; ".join(cautions) or None
    return Night(imported, tuple(ordered(of_comparison(found))), title, caution=caution)


def of_history(connection: sa.Connection, imported: Imported) -> Night:
    """A run by the nights before it, as the history judged them; and whether nightlies before it lack."""
    return replace(_judged(connection, imported), nightly=nightlies_before(connection, imported))


def nightlies_before(connection: sa.Connection, imported: Imported) -> str | None:
    """In one line what was wrong with the nightlies before the one that a run is of."""
    every = nightlies.load(connection, latest=_NIGHTLIES)
    settings = set()
    for row in imported.rows:
        words = f"{row.case.suite} {row.case.device} {row.case.dtype}"
        settings |= {words, f"{words} {row.case.threads}"}
    return before(every, nightlies_of(every, imported.run.name, imported.run.started, settings))


def _judged(connection: sa.Connection, imported: Imported) -> Night:
    run = _line(connection, imported)
    if run is None:
        return Night(imported, untold="this run is not in the history")
    if run.judged is None:
        return Night(imported, untold="this night was not judged: only the latest are")
    earlier = [
        each
        for each in list_runs(connection, testbed_id=run.testbed_id, until=run.started)
        if each.origin == run.origin and (each.started, each.id) < (run.started, run.id)
    ]
    if not earlier:
        return Night(imported, untold="the first run of its kind in the history: nothing to compare it with")
    shortly = panel(connection, [*earlier[-SHORTLY:], run], [])
    if not is_a_night(shortly):
        return Night(imported, untold="too few of the cases of the runs before it to be compared with them")
    alike = [earlier[-SHORTLY:][place] for place in _alike(shortly)]
    alerts = _of_night(connection, run, imported)
    found = [of_alert(each, run.id) for each in gather(connection, alerts)]
    back = {alert.case_id for alert in alerts if alert.kind == "vanished"}
    new = [number for number in _new(connection, shortly, run) if number not in back]
    last = Build.of(alike[-1])
    found += [
        Change(APPEARED, case, "not measured before", good=last, bad=Build.of(run))
        for case in cases_by_id(connection, new).values()
    ]
    text = f"the {len(earlier)} runs before it on this kind of machine, the last like it {alike[-1].name}"
    caution = _by_new_method(alike, run)
    if len(alike) < FEWEST:
        caution = f"only statuses: numbers need {FEWEST} nights before, and there are {len(alike)}"
    return Night(imported, tuple(ordered(found)), text, caution=caution)


def _by_new_method(before: Sequence[RunLine], run: RunLine) -> str | None:
    """Which numbers cannot be judged yet, since perfdash measures them by a new method; None: all can."""
    since: dict[tuple[int, str], list[str]] = {}
    for name in sorted({name for each in before for name in (*each.method, *run.method)}):
        known = [each for each in before if each.method.get(name, 1) == run.method.get(name, 1)]
        needed = 1 if name in _AT_ONCE else FEWEST
        if len(known) < min(needed, len(before)):
            first = known[0] if known else run
            since.setdefault((needed, first.started[:10]), []).append(name)
    if not since:
        return None
    return "; ".join(
        f"changes of {', '.join(names)} (measured by a new method since {day}), which need "
        f"{f'{needed} nights' if needed > 1 else 'a night'} before"
        for (needed, day), names in since.items()
    )


def _line(connection: sa.Connection, imported: Imported) -> RunLine | None:
    """The run as the history has it; foreign files of many nights are called alike."""
    beds = schema.testbeds
    digest = testbed_values(imported.run)["digest"]
    bed = connection.execute(sa.select(beds.c.id).where(beds.c.digest == digest)).scalar()
    if bed is None:
        return None
    lines = list_runs(connection, name=imported.run.name, testbed_id=bed)
    return next((line for line in reversed(lines) if line.started == imported.run.started), None)


def _alike(shortly: Panel) -> list[int]:
    """Places of the runs before that have half of their cases in common with the last."""
    known = shortly.statuses != ""
    both = (known[:, :-1] & known[:, -1:]).sum(axis=0)
    return np.flatnonzero((both > 0) & (both >= LIKE * known[:, :-1].sum(axis=0))).tolist()


def _new(connection: sa.Connection, shortly: Panel, run: RunLine) -> list[int]:
    """The cases that no run of the testbed had before."""
    known = shortly.statuses != ""
    new = [shortly.case_ids[place] for place in np.flatnonzero(known[:, -1] & ~known[:, :-1].any(axis=1))]
    results, runs = schema.results, schema.runs
    found: set[int] = set()
    for start in range(0, len(new), 500):
        query = (
            sa.select(results.c.case_id)
            .distinct()
            .join_from(results, runs, results.c.run_id == runs.c.id)
            .where(
                results.c.case_id.in_(new[start : start + 500]),
                runs.c.testbed_id == run.testbed_id,
                runs.c.started < run.started,
            )
        )
        found.update(connection.execute(query).scalars())
    return [number for number in new if number not in found]


def _of_night(connection: sa.Connection, run: RunLine, imported: Imported) -> Sequence[Alert]:
    """The alerts that stood on the night of a run, and those that it ended; none that was noise.

    Of a testbed that measures several settings, a run each, only those of this run's cases.
    """
    runs = schema.runs
    query = sa.select(runs.c.id, runs.c.started).where(runs.c.testbed_id == run.testbed_id)
    place = {row.id: (row.started, row.id) for row in connection.execute(query)}
    tonight = place[run.id]
    measured = {row.case for row in imported.rows}
    settings = {setting_of(row)[1:] for row in imported.rows}
    states = [state for state in kept.STATES if state != kept.DISMISSED]
    every = kept.load(connection, testbed_id=run.testbed_id, states=states)
    cases = cases_by_id(connection, (alert.case_id for alert in every if alert.case_id is not None))
    found = []
    for alert in every:
        bad, seen = place.get(alert.bad_run_id or -1), place.get(alert.seen_run_id or -1)
        case = cases.get(alert.case_id or -1)
        mine = case is None or case in measured
        if alert.kind == "vanished" and case is not None:
            mine = setting_of(Row(case, "", {}))[1:] in settings
        # One that lives stands, though this night may not have told of it (its run may be pruned too).
        stands = alert.state in kept.LIVE or (seen is not None and seen >= tonight)
        if mine and stands and (bad is None or bad <= tonight):
            found.append(alert)
    return found
