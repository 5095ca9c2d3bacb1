"""The evidence of an alert does not depend on how many runs a night consists of."""

from __future__ import annotations

import pytest

from perfdash.detect.alert_evidence import gather
from perfdash.history import alert_store
from perfdash.history.ingest import take_in
from tests.detect.simulated import add_runs_beside, farm, judge_nights, slower
from tests.stores import made_store


@pytest.fixture
def quick(tmp_path):
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def test_an_old_alert_is_dated_by_nights_of_twelve_runs_as_by_nights_of_one(quick):
    runs = farm(98, 3, change=slower("model01", 26, 1.15))
    judge_nights(quick, runs[:28], 26)
    take_in(quick, runs[28:])
    with quick.read() as connection:
        alerts = alert_store.load(connection, states=alert_store.SHOWN)
        of_one = gather(connection, alerts)
    add_runs_beside(quick, 11)
    with quick.read() as connection:
        of_twelve = gather(connection, alerts)
    assert [item.before for item in of_one] == [26]
    assert [(item.before, item.nights, item.interval, item.between) for item in of_twelve] == [
        (item.before, item.nights, item.interval, item.between) for item in of_one
    ]
