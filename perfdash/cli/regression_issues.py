"""The regressions of a run's kind of machine as issues should tell of them: history in, `Tracked` out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlalchemy as sa

    from perfdash.detect.evidence import Evidence
    from perfdash.history.alerts import Alert
    from perfdash.publish.tracking import Tracked
    from perfdash.report.night import Night
    from perfdash.settings import RunSettings


@dataclass(frozen=True)
class Regressions:
    """The alerts of a kind of machine, and the names of the runs on which the history looked for some."""

    alerts: list[Tracked]
    judged: frozenset[str]


def tracked(night: Night, settings: RunSettings, site_url: str | None) -> Regressions:
    """Every regression, the largest first; of a mere suspicion an issue is left as it is.

    Raises UsageError where the history has no run of this kind, MachineError where it cannot be read.
    """
    import sqlalchemy as sa

    from perfdash.detect.nightly import judge_new
    from perfdash.errors import UsageError
    from perfdash.history import alerts as kept
    from perfdash.history import schema
    from perfdash.history.store import open_store

    with open_store(settings.history, create=False) as store:
        judge_new(store)
        with store.read() as connection:
            beds = schema.testbeds
            bed = connection.execute(sa.select(beds.c.id).where(beds.c.digest == night.testbed)).scalar()
            if bed is None:
                raise UsageError(
                    f"--new-issue-on regression: the history {store.shown} has no run of the kind of "
                    f"{night.run.name}; `perfdash history import` takes it in"
                )
            every = kept.load(connection, testbed_id=bed, states=kept.STATES)
            worse = [each for each in every if each.direction > 0]
            worse.sort(key=lambda each: -abs(each.change or 9.0))
            found = [_tracked(connection, each, night, site_url) for each in _evidence(connection, worse)]
            # Other tools' runs are named after files: such a name says little about which run it was.
            runs = schema.runs
            names = sa.select(runs.c.name).where(
                runs.c.testbed_id == bed, runs.c.origin == "perfdash", runs.c.judged.is_not(None)
            )
            return Regressions(found, frozenset(connection.execute(names).scalars()))


def _evidence(connection: sa.Connection, alerts: list[Alert]) -> Iterable[Evidence]:
    """Of those that have an issue all that is known; of the others what a closing note needs."""
    from perfdash.detect.evidence import Evidence, gather
    from perfdash.history import alerts as kept
    from perfdash.history.queries import cases_by_id, list_runs

    told = [state for state in kept.LIVE if state != kept.NEW]
    yield from gather(connection, [each for each in alerts if each.state in told])
    past = [each for each in alerts if each.state not in told]
    cases = cases_by_id(connection, (each.case_id for each in past if each.case_id is not None))
    seen = sorted({each.seen_run_id for each in past if each.seen_run_id is not None})
    runs = {run.id: run for run in list_runs(connection, ids=seen)} if seen else {}
    for each in past:
        yield Evidence(each, cases.get(each.case_id or -1), None, None, runs.get(each.seen_run_id or -1))


def _tracked(connection: sa.Connection, each: Evidence, night: Night, site_url: str | None) -> Tracked:
    from perfdash.history import alerts as kept
    from perfdash.history.rows import case_digest, digest
    from perfdash.publish.tracking import Tracked
    from perfdash.report import issue_text
    from perfdash.report.site_links import model_page

    alert, case = each.alert, each.case
    events = kept.events(connection, alert.id or 0)
    page = f"{site_url.rstrip('/')}/{model_page(night.testbed, case)}" if site_url and case else None
    live = alert.state in kept.LIVE
    left_alone = alert.state in (kept.ACKNOWLEDGED, kept.NEW, kept.SUPERSEDED)
    told = live and not left_alone
    said = next((row.details.get("error") for row in night.rows if row.case == case), None) or {}
    series = digest([night.testbed, case_digest(case) if case else None, alert.kind, alert.metric])
    error = str(said.get("message") or "") if alert.kind == "status" else None
    return Tracked(
        series=series[:20],
        born=(events[0].run if events else None) or "",
        opened=alert.opened,
        state=alert.state,
        changed=alert.changed,
        open=None if left_alone else live,
        title=issue_text.title(each),
        body=issue_text.body(each, page=page, ran=night.run.command, error=error) if told else "",
        note=issue_text.note(each),
        blame=issue_text.blame(each) if told else "",
    )
