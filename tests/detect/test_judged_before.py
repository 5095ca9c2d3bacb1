"""Nights and alerts of an earlier perfdash, whose history is migrated before it is judged again."""

from __future__ import annotations

import sqlalchemy as sa

from perfdash.detect.nightly_judging import judge_new
from perfdash.history import alert_store, schema
from perfdash.history.ingest import replaced_since_judged
from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from tests.detect.simulated import farm, judge_nights
from tests.stores import as_revision_0010, made_store


def crashes(night, name):
    return "crash" if (night, name) == (6, "model01") else "pass"


def test_a_night_that_an_earlier_perfdash_replaced_is_judged_again(tmp_path):
    path = tmp_path / "history.db"
    with made_store(path) as before:
        judge_nights(before, farm(7, 4, statuses=crashes), 6)
        with before.write() as connection:
            last = list_runs(connection)[-1]
            mark = {"testbed_id": last.testbed_id, "started": last.started}
            of_run = sa.update(schema.runs).where(schema.runs.c.id == last.id)
            connection.execute(of_run.values(imported={"judged_as": mark}, judged=None))
        as_revision_0010(before)
    with open_store(str(path)) as after:
        assert [night.run.id for night in judge_new(after)] == [last.id]
        with after.read() as connection:
            assert replaced_since_judged(connection) == {}
            (alert,) = alert_store.load(connection)
            notes = [event.note for event in alert_store.events(connection, alert.id)]
        assert f"judged again: {last.name} was resumed or corrected" in notes
