"""Whether nightlies come as they should."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perfdash.detect.heartbeat import job_health, nightlies_of, problems_before, problems_since
from perfdash.detect.nightly_problems import nightly_problems
from perfdash.history.nightlies import FAILED, OK, PARTIAL, RUNNING, Nightly, copy_nightly
from tests.stores import made_store

DAY, GRACE = 86400, 3 * 3600
START = datetime(2026, 11, 1, 1, tzinfo=UTC)


def at(days):
    return START + timedelta(days=days)


def text(moment):
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def nightly(day, state=OK, why=None, job="nightly", hours=5.0, **other):
    ended = None if state == RUNNING else text(at(day + hours / 24))
    begun = text(at(day))
    return Nightly(job, begun, begun, DAY, GRACE, state, ended, why, **other)


def levels(nightlies, days):
    return [beat.level for beat in job_health(nightlies, at(days))]


@pytest.mark.parametrize(("state", "days", "expected"), [
    (OK, 0.5, ["ok"]),
    (OK, 1.12, ["ok"]),  # due, and within the grace
    (OK, 1.13, ["ok", "late"]),
    (OK, 2.12, ["ok", "late"]),
    (OK, 2.13, ["ok", "missing"]),
    (PARTIAL, 0.5, ["partial"]),
    (FAILED, 0.5, ["failed"]),
    (RUNNING, 0.5, ["running"]),
    (RUNNING, 1.5, ["never ended", "late"]),
])  # fmt: skip
def test_the_last_one(state, days, expected):
    assert levels([nightly(0, state)], days) == expected


def test_while_one_runs_the_one_before_counts():
    assert levels([nightly(0, PARTIAL), nightly(1, RUNNING)], 1.1) == ["partial", "running"]
    assert levels([nightly(0, RUNNING), nightly(1, RUNNING)], 1.1) == ["never ended", "running"]
    assert levels([nightly(0, PARTIAL), nightly(1)], 1.5) == ["ok"]


def test_how_many_did_not_come():
    beat = job_health([nightly(0)], at(4.2))[-1]
    assert beat.what == "4 did not come, the first was due 2026-11-02 01:00 UTC"
    assert not beat.good


@pytest.mark.parametrize(("nights", "expected"), [
    ([nightly(0, FAILED), nightly(365)], ["failed", "late", "failed"]),
    ([nightly(0), nightly(1, RUNNING), nightly(365, RUNNING)], ["ok", "running", "failed"]),
    ([nightly(365)], ["failed"]),
    ([nightly(0), nightly(1.5)], ["ok"]),  # by a clock that is a time zone off
])  # fmt: skip
def test_one_that_began_in_the_future_hides_no_other(nights, expected):
    assert levels(nights, 1.2) == expected


@pytest.mark.parametrize(("nights", "expected"), [
    ([nightly(0), nightly(1)], None),
    ([nightly(1)], None),
    ([nightly(0), nightly(1.8)], None),  # late by less than a night
    ([nightly(0), nightly(3)], "Before this nightly: 2 missing after 2026-11-01"),
    ([nightly(0), nightly(2.95)], "Before this nightly: 2 missing after 2026-11-01"),  # a little early
    ([nightly(0, PARTIAL, "timm cpu amp was not measured"), nightly(1)],
     "Before this nightly: 2026-11-01 partial (timm cpu amp was not measured)"),
    ([nightly(0, FAILED, "detect failed with exit code 3: no route to db.example"), nightly(1)],
     "Before this nightly: 2026-11-01 failed (detect failed with exit code 3)"),
    ([nightly(0, RUNNING), nightly(1)], "Before this nightly: 2026-11-01 never ended"),
    ([nightly(0, PARTIAL), nightly(1), nightly(2)], None),  # told the night after it
    ([nightly(0), nightly(2, FAILED, "torch"), nightly(3, RUNNING), nightly(5)],
     "Before this nightly: 1 missing after 2026-11-04; 2026-11-04 never ended; 2026-11-03 failed (torch); "
     "1 missing after 2026-11-01"),
    ([*(nightly(day, FAILED) for day in range(9)), nightly(9)],
     "Before this nightly: 2026-11-09 failed; 2026-11-08 failed; 2026-11-07 failed; 2026-11-06 failed; "
     "2026-11-05 failed; and 4 more"),
    ([nightly(0.5, FAILED, job="gpu"), nightly(1)], None),
])  # fmt: skip
def test_what_was_wrong_before(nights, expected):
    assert problems_before(nights, nights[-1:]) == expected


def test_a_schedule_with_pauses_has_a_long_grace():
    weekend = 60 * 3600  # from Friday to Monday, with a day's --every
    friday, monday, thursday = (replace(nightly(day), grace_s=weekend) for day in (4, 7, 10.6))
    assert problems_before([friday, monday], [monday]) is None
    assert (
        problems_before([friday, monday, thursday], [thursday])
        == "Before this nightly: 2 missing after 2026-11-08"
    )


def test_of_several_that_a_run_may_be_of_each_is_reported_by_name():
    nights = [nightly(0, job="a"), nightly(0, FAILED, job="b"), nightly(3, job="a"), nightly(3, job="b")]
    assert problems_before(nights, nights[2:]) == (
        "Before this nightly: a: 2 missing after 2026-11-01; b: 2 missing after 2026-11-01; 2026-11-01 failed"
    )
    assert problems_before([nightly(2, job="a"), *nights[2:]], nights[2:]) is None


def test_around_a_change_of_the_clock_none_is_missing():
    assert problems_before([nightly(0), nightly(23 / 24)], [nightly(23 / 24)]) is None
    assert problems_before([nightly(0), nightly(25 / 24)], [nightly(25 / 24)]) is None


def test_a_failed_nightly_is_reported_however_busy_other_jobs_are(tmp_path):
    failed = nightly(0, FAILED, job="gpu")
    busy = [nightly(0.5 + hour / 24, job="hourly", hours=0.5) for hour in range(201)]
    with made_store(tmp_path / "history.db") as store, store.write() as connection:
        for begun in (failed, *busy):
            copy_nightly(connection, begun)
        problems = nightly_problems(connection, at(9))
    assert [beat.level for beat in problems if beat.job == "gpu"] == ["failed", "missing"]


def of(nightlies, day, *settings, run="r"):
    judged_nightlies = nightlies_of(nightlies, run, text(at(day)), settings)
    return [(nightly_row.job, nightly_row.begun) for nightly_row in judged_nightlies]


def test_which_nightly_a_run_is_of():
    first, second = nightly(0), nightly(1, RUNNING)
    both = [first, second]
    assert of(both, 0.1) == [("nightly", first.begun)]
    assert of(both, 0.9) == []  # at a desk, in the evening
    assert of(both, 1.1) == [("nightly", second.begun)]
    assert of(both, 3) == []  # the second does not run for ever
    assert of(both, -1) == []


def test_a_run_that_is_named_is_of_none_else():
    first = nightly(0, runs=("r",))
    assert of([first, nightly(1, RUNNING)], 1.1) == [("nightly", first.begun)]
    assert of([first], 0.1, run="desk") == []


def test_of_several_at_work_the_one_that_expects_it():
    xeon = nightly(0, expected=("timm cpu float32",))
    gpu = nightly(0, job="gpu", expected=("timm cuda float32 1",))
    assert of([xeon, gpu], 0.1, "timm cuda float32", "timm cuda float32 1") == [("gpu", gpu.begun)]
    assert of([xeon, gpu], 0.1, "timm cpu amp") == []
    both = [nightly(0), nightly(0, job="b")]
    assert [job for job, _ in of(both, 0.1, "timm cpu amp")] == ["nightly", "b"]  # of which?


def test_what_went_wrong_in_a_week():
    """Those that ended or were due in it, each once, and what is wrong at its end."""
    nights = [
        nightly(0, FAILED, "disk full"),
        nightly(1),
        nightly(4),
        nightly(5, PARTIAL, "1 result missing"),
    ]
    beats = problems_since([*nights, nightly(6)], at(1.5), at(6.5))
    assert [(beat.level, beat.what) for beat in beats] == [
        ("missing", "2 did not come, the first was due 2026-11-03 01:00 UTC"),
        ("partial", "2026-11-06T01:00:00Z, begun 2026-11-06T01:00:00Z: 1 result missing"),
    ]
    assert [beat.level for beat in problems_since(nights, at(1.5), at(5.5))] == ["missing", "partial"]
    assert [beat.level for beat in problems_since(nights, at(0), at(7.5))] == [
        "failed", "missing", "partial", "missing"
    ]  # fmt: skip
    assert problems_since([nightly(0), nightly(1)], at(0), at(1.5)) == []
