"""Nightlies in the store."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from perfdash.detect import curation
from perfdash.errors import UsageError
from perfdash.history import acts, maintenance, nightlies
from perfdash.history.ingest import take_in
from perfdash.history.nightlies import FAILED, OK, PARTIAL, RUNNING, Nightly
from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from perfdash.metrics import PARTS
from tests.history.made import case, row, run
from tests.stores import as_revision_0007, migrated

NIGHT = Nightly("xeon", "n1", "2026-11-01T00:00:00Z", 86400, 10800, expected=("timm cpu float32",))
MORNING = "2026-11-01T06:00:00Z"


def begun(store, *some):
    with store.write() as connection:
        for nightly in some:
            nightlies.begin(connection, nightly)


def ended(store, night=None, *, state=OK, at=MORNING, **more):
    with store.write() as connection:
        return nightlies.end(connection, "xeon", night, at=at, state=state, **more)


def every(store, **which):
    with store.read() as connection:
        return nightlies.load(connection, **which)


def test_it_begins_and_ends(store):
    begun(store, NIGHT)
    assert every(store) == [NIGHT]
    take_in(store, [run("2026-11-01", [row()])])
    done = ended(store)
    assert (done.state, done.ended, done.why) == (OK, MORNING, None)
    assert every(store) == [done]


def test_a_run_whose_shards_are_merged_again_stays_the_nightlys(store):
    """One shard was measured again by hand; `merge-shards` gives the run a new name."""

    def merged(name, *shards, ended):
        made = run("2026-11-01", [row()], name=name, ended=ended, imported={"merged_from": list(shards)})
        return replace(made, run=replace(made.run, uid=name))

    begun(store, NIGHT)
    take_in(store, [merged("first", "a", "b", ended="2026-11-01T03:00:00Z")])
    ended(store, runs=["first"])
    take_in(store, [merged("second", "b", "c", ended="2026-11-01T10:00:00Z")])
    (nightly,) = every(store)
    assert nightly.runs == ("second",)
    with store.read() as connection:
        assert nightlies.missing_results(connection, nightly) == []
        assert acts.the_run(connection, "first").name == "second"


def test_a_run_that_is_merged_again_without_a_change_stays_the_nightlys(store):
    def merged(name):
        made = run("2026-11-01", [row()], name=name, imported={"merged_from": ["a", "b"]})
        return replace(made, run=replace(made.run, uid="a b"))

    begun(store, NIGHT)
    take_in(store, [merged("first")])
    ended(store, runs=["first"])
    take_in(store, [merged("second")])
    assert every(store)[0].runs == ("second",)
    assert ended(store, runs=["second"]).state == OK


@pytest.mark.parametrize("names", [["before-upgrade"], ["before-upgrade", "base"]], ids=["once", "twice"])
def test_a_resumed_night_names_its_renamed_run_by_its_folder(store, names):
    begun(store, NIGHT)
    night = run("2026-11-01", [row()])
    take_in(store, [night])
    for name in names:
        curation.rename(store, "last", name)
    done = ended(store, runs=[night.run.name])
    assert (done.state, done.runs) == (OK, (names[-1],))


def test_a_name_that_another_run_has_now_is_that_runs(store):
    begun(store, NIGHT)
    take_in(store, [run("2026-11-01", [row()], name="a")])
    curation.rename(store, "last", "b")
    take_in(store, [run("2026-11-02", [row()], name="a")])
    assert ended(store, runs=["a"]).runs == ("a",)


def test_begun_again_it_goes_on(store):
    begun(store, NIGHT)
    ended(store, state=FAILED, why="torch")
    begun(store, replace(NIGHT, begun="2026-11-01T09:00:00Z", every_s=7200))
    (nightly,) = every(store)
    assert (nightly.begun, nightly.state, nightly.ended, nightly.why) == (NIGHT.begun, RUNNING, None, None)
    assert nightly.every_s == 7200


def test_what_was_expected_and_lacks_makes_it_partial(store):
    begun(store, replace(NIGHT, expected=("timm cpu float32", "timm cpu float32 4", "hf cpu amp 1")))
    take_in(store, [run("2026-11-01", [row()])])
    done = ended(store)
    assert done.state == PARTIAL
    assert done.why == "timm cpu float32 4 was not measured; hf cpu amp 1 was not measured"


def test_cases_that_the_machine_lost_were_not_measured(store):
    begun(store, replace(NIGHT, expected=("timm cpu float32 1", "hf cpu float32")))
    skipped = row("x", "skipped", of=replace(case("x"), suite="hf"))
    take_in(store, [run("2026-11-01", [row("a", "infra_error"), row("b", "infra_error"), skipped])])
    done = ended(store)
    assert (done.state, done.why) == (PARTIAL, "timm cpu float32 1 was not measured")


def test_an_incomplete_run_makes_it_partial(store):
    begun(store, NIGHT)
    night_run = run("2026-11-01", [row()], expected=3)
    take_in(store, [night_run])
    assert ended(store, why="slow").why == f"slow; {night_run.run.name} has 1 of 3 cases"


def test_only_runs_of_its_time_or_those_it_names_count(store):
    begun(store, NIGHT)
    old, other = run("2026-10-31", [row()]), run("2026-11-02", [row()])
    take_in(store, [old, other])
    assert ended(store).why == "timm cpu float32 was not measured"
    assert ended(store, runs=[other.run.name]).state == OK
    done = ended(store, runs=[other.run.name, "lost"])
    assert (done.why, done.runs) == ("lost is not in the history", (other.run.name, "lost"))


def test_what_failed_stays_failed(store):
    begun(store, NIGHT)
    done = ended(store, state=FAILED, why="stage torch failed")
    assert (done.state, done.why) == (FAILED, "stage torch failed")


def test_the_latest_is_ended_unless_it_is_named(store):
    begun(store, NIGHT, replace(NIGHT, night="n2", begun="2026-11-02T00:00:00Z"))
    ended(store, state=FAILED)
    assert [nightly.state for nightly in every(store)] == [RUNNING, FAILED]
    ended(store, "n1", state=FAILED)
    assert [nightly.state for nightly in every(store)] == [FAILED, FAILED]
    for night in ("n3", "n1'; drop table nightlies"):
        with pytest.raises(UsageError, match="was begun"):
            ended(store, night)


def test_one_that_began_in_the_future_is_not_the_latest(store):
    """A clock was wrong. If it is the only one, it is ended."""
    begun(store, replace(NIGHT, night="ahead", begun="2027-01-05T00:00:00Z"))
    assert ended(store, state=FAILED).night == "ahead"
    begun(store, NIGHT)
    assert ended(store, state=FAILED).night == "n1"


def test_a_clock_that_is_set_right_during_the_night_ends_no_other_nightly(store):
    begun(store, NIGHT)
    ended(store, state=FAILED, why="stage torch failed")
    begun(store, replace(NIGHT, night="ahead", begun="2027-01-05T00:00:00Z"))
    assert ended(store, at="2026-11-02T06:00:00Z", state=FAILED).night == "ahead"
    yesterday, ahead = every(store)
    assert (yesterday.why, yesterday.ended, ahead.state) == ("stage torch failed", MORNING, FAILED)
    assert ended(store, at="2026-11-02T06:00:00Z", state=FAILED).night == "n1", "none runs"


def test_one_that_failed_before_it_began_is_entered(store):
    done = ended(store, "n0", state=FAILED, why="no torch")
    assert (done.begun, done.ended, done.every_s, done.state) == (MORNING, MORNING, 86400, FAILED)
    begun(store, replace(NIGHT, begun="2026-11-02T00:00:00Z", every_s=7200, grace_s=60))
    done = ended(store, "n2", state=FAILED, at="2026-11-03T00:00:00Z")
    assert (done.every_s, done.grace_s, done.expected) == (7200, 60, NIGHT.expected)
    assert len(every(store)) == 3


def test_one_whose_begin_did_not_reach_the_history_is_entered(store):
    """The database was away for a moment. It counts from its first run, not to seem late."""
    begun(store, NIGHT)
    night = run("2026-11-02", [row()])
    take_in(store, [night])
    done = ended(
        store, "n2", state=PARTIAL, at="2026-11-02T06:00:00Z", why="setup failed", runs=[night.run.name]
    )
    assert (done.state, done.why, done.runs) == (PARTIAL, "setup failed", (night.run.name,))
    assert (done.begun, done.every_s, done.expected) == (night.run.started, NIGHT.every_s, NIGHT.expected)
    assert [nightly.night for nightly in every(store)] == ["n1", "n2"]


def test_nothing_was_begun(store):
    with pytest.raises(UsageError, match="perfdash nightly begin"):
        ended(store)


def test_several_jobs_share_a_store(store):
    gpu = replace(NIGHT, job="gpu")
    begun(store, NIGHT, gpu)
    with store.read() as connection:
        assert nightlies.jobs(connection) == ["gpu", "xeon"]
    assert every(store, job="gpu") == [gpu]
    with store.write() as connection:
        assert nightlies.forget(connection, "gpu") == 1
    assert every(store) == [NIGHT]


def test_pruning_leaves_the_latest_of_each_job(store):
    nights = [replace(NIGHT, night=f"n{day}", begun=f"2026-11-0{day}T00:00:00Z") for day in range(1, 5)]
    begun(store, *nights, replace(NIGHT, job="gpu"))
    assert maintenance.prune_nightlies(store, "2026-11-03") == 2
    assert [(nightly.job, nightly.night) for nightly in every(store)] == [
        ("gpu", "n1"),
        ("xeon", "n3"),
        ("xeon", "n4"),
    ]
    assert maintenance.prune_nightlies(store, "2027") == 1
    assert [(nightly.job, nightly.night) for nightly in every(store)] == [("gpu", "n1"), ("xeon", "n4")]


def test_a_merge_brings_nightlies_and_commits(store, tmp_path):
    with open_store(str(tmp_path / "other.db")) as source:
        night_run = run("2026-11-01", [row()])
        night_run.run.environment["worker"]["commits"] = {"timm": "c" * 40}
        take_in(source, [night_run])
        begun(source, NIGHT, replace(NIGHT, night="n2", begun="2026-11-02T00:00:00Z"))
        ended(source, "n1")
        begun(store, NIGHT, replace(NIGHT, night="n2", begun="2026-11-02T00:00:00Z"))
        ended(store, "n2", state=FAILED, at="2026-11-02T03:00:00Z")
        for _ in range(2):
            maintenance.merge(store, source)
    assert [(nightly.night, nightly.state) for nightly in every(store)] == [("n1", OK), ("n2", FAILED)]
    with store.read() as connection:
        assert list_runs(connection)[0].commits == {"timm": "c" * 40}


def test_a_store_of_before_is_migrated_whole(tmp_path):
    path = tmp_path / "history.db"
    night_run = run("2026-11-01", [row()])
    migrated(str(path)).dispose()
    with open_store(str(path)) as made:
        take_in(made, [night_run])
    as_revision_0007(path)
    with sqlite3.connect(path) as connection:  # as 0001 left it
        for table in ("nightlies", "acts", "result_artifacts", "artifacts"):
            connection.execute(f"drop table {table}")
        connection.execute("alter table runs drop column excluded")
        connection.execute("alter table environments drop column commits")
        connection.execute("alter table runs drop column method")
        for name in (*PARTS, "warm_compilation_s", "recompiles"):
            connection.execute(f"alter table results drop column {name}")
        connection.execute("update perfdash_version set version_num = '0001'")
    connection.close()
    with open_store(str(path)) as opened:
        assert (tmp_path / "history.db.schema0001.bak").exists()
        with opened.read() as connection:
            (line,) = list_runs(connection)
        assert line.commits == {}
        assert every(opened) == []
        # The same environment as before: no commit has come to be known.
        take_in(opened, [run("2026-11-02", [row()])])
        with opened.read() as connection:
            assert len({run_line.environment_id for run_line in list_runs(connection)}) == 1
