from __future__ import annotations

import resource
from dataclasses import replace

import pytest
import sqlalchemy as sa

from perfdash.detect import curation
from perfdash.errors import MachineError
from perfdash.history import acts, maintenance, nightlies, schema
from perfdash.history.ingest import KNOWN, OLDER, REPLACED, TAKEN_IN, take_in
from perfdash.history.maintenance import COPIED, NOT_COPIED, merge, prune, shrink
from perfdash.history.nightlies import Nightly
from perfdash.history.queries import list_runs, rows_of
from tests.history.made import row, run
from tests.stores import in_sqlite, made_store

NO_ALERTS = {COPIED: 0, NOT_COPIED: 0}


def sampled(model="a"):
    return replace(row(model), samples={"eager_ms": (1.0, 0.1)}, details={"notes": ["x"]})


def test_prune_takes_runs_with_all_that_is_theirs(store):
    take_in(store, [run(f"2026-11-0{day}", [sampled()]) for day in (1, 2, 3)])
    with store.read() as connection:
        old = list_runs(connection, until="2026-11-02")
    assert prune(store, old) == 2
    with store.read() as connection:
        assert [line.started[:10] for line in list_runs(connection)] == ["2026-11-03"]
        for table in (schema.results, schema.result_details, schema.summaries):
            assert connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 1


@in_sqlite
def test_a_history_that_could_not_shrink_shrinks_at_the_next_prune(store):
    """SQLite needs as much room as the file to make it smaller."""
    take_in(store, [run(f"2026-11-0{day}", [sampled()]) for day in (1, 2)])
    with store.write() as connection:
        for name, size in (("kept", 1_000_000), ("removed", 1_000_000)):
            connection.execute(sa.insert(schema.hosts).values(name=name + "x" * size))
        connection.execute(sa.delete(schema.hosts).where(schema.hosts.c.name.startswith("removed")))
    with store.read() as connection:
        old = list_runs(connection, until="2026-11-01")
    assert prune(store, old) == 1
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        with pytest.raises(MachineError, match="could not be made smaller"):
            shrink(store, pruned=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    shrink(store, pruned=False)
    with store.read() as connection:
        assert connection.exec_driver_sql("PRAGMA freelist_count").scalar() == 0


def test_prune_of_samples_keeps_the_numbers(store):
    take_in(store, [run(f"2026-11-0{day}", [sampled()]) for day in (1, 2)])
    with store.read() as connection:
        old = list_runs(connection, until="2026-11-01")
    assert prune(store, old, samples_only=True) == 1
    assert prune(store, old, samples_only=True) == 0
    with store.read() as connection:
        first, second = (rows_of(connection, line.id, whole=True)[0] for line in list_runs(connection))
    assert first.samples == {}
    assert first.values == second.values
    assert first.details == {"notes": ["x"]}
    assert len(second.samples["eager_ms"]) == 2


def test_merge_takes_all_runs_once(store, tmp_path):
    night = run("2026-11-01", [sampled()])
    take_in(store, [night])
    with made_store(tmp_path / "other.db") as other:
        take_in(other, [night, run("2026-11-02", [sampled("b")], setting={"allocator": "default"})])
        assert merge(store, other) == {**NO_ALERTS, TAKEN_IN: 1, REPLACED: 0, KNOWN: 1, OLDER: 0}
        assert merge(store, other) == {**NO_ALERTS, TAKEN_IN: 0, REPLACED: 0, KNOWN: 2, OLDER: 0}
        with store.read() as mine, other.read() as theirs:
            lines = list_runs(mine), list_runs(theirs)
            assert [line.name for line in lines[0]] == [line.name for line in lines[1]]
            assert lines[0][1].setting == {"allocator": "default"}
            copied, original = (
                rows_of(connection, line[1].id, whole=True)
                for connection, line in zip((mine, theirs), lines, strict=True)
            )
            assert copied == original
    assert take_in(store, [run("2026-11-02", [sampled("b")], setting={"allocator": "default"})]) == [KNOWN]


def test_a_merge_that_is_stopped_keeps_no_run_without_its_exclusion(store, tmp_path, monkeypatch):
    copy = maintenance._copy_acts

    def stopped(*arguments):
        monkeypatch.setattr(maintenance, "_copy_acts", copy)
        raise KeyboardInterrupt

    with made_store(tmp_path / "other.db") as other:
        take_in(other, [run("2026-11-01", [row()])])
        curation.exclude(other, "last", "the fan was broken")
        monkeypatch.setattr(maintenance, "_copy_acts", stopped)
        with pytest.raises(KeyboardInterrupt):
            merge(store, other)
        merge(store, other)
    with store.read() as connection:
        assert [line.excluded for line in list_runs(connection)] == ["the fan was broken"]
        assert [act.act for act in acts.load(connection)] == [acts.EXCLUDE]


def test_decisions_are_listed_oldest_first_after_a_merge(store, tmp_path, monkeypatch):
    first, second = run("2026-11-01", [row()]), run("2026-11-02", [row()])
    with made_store(tmp_path / "other.db") as other:
        take_in(other, [first, second])
        for night, at in ((second, "2026-11-03T01:00:00Z"), (first, "2026-11-04T01:00:00Z")):
            monkeypatch.setattr(acts, "now", lambda at=at: at)
            curation.exclude(other, night.run.name, "the fan was broken")
        merge(store, other)
    with store.read() as connection:
        assert [act.subject for act in acts.load(connection)] == [second.run.name, first.run.name]


@pytest.mark.parametrize("is_whole", [False, True], ids=["interrupted", "whole"])
def test_a_run_that_was_renamed_there_keeps_the_name_it_has_here(store, tmp_path, is_whole):
    whole = run(rows=[row("a"), row("b")])
    cut = replace(
        whole, run=replace(whole.run, state="interrupted", ended="2026-11-01T02:00:00Z"), rows=whole.rows[:1]
    )
    name = whole.run.name
    take_in(store, [whole if is_whole else cut])
    with made_store(tmp_path / "other.db") as other:
        take_in(other, [whole])
        with other.write() as connection:
            nightlies.begin(connection, Nightly("xeon", "n1", "2026-11-01T00:00:00Z", 86400, 10800))
            nightlies.end(connection, "xeon", "n1", at="2026-11-01T06:00:00Z", state="ok", runs=[name])
        curation.rename(other, name, "base")
        assert merge(store, other)[KNOWN if is_whole else REPLACED] == 1
    with store.read() as connection:
        assert [(line.name, line.results) for line in list_runs(connection)] == [(name, 2)]
        (nightly,) = nightlies.load(connection)
        assert nightly.runs == (name,)
        assert nightlies.missing_results(connection, nightly) == []
    curation.exclude(store, name, "the fan was broken")


def test_an_older_copy_never_replaces_what_went_on(store, tmp_path):
    whole = run(rows=[sampled("a"), sampled("b")])
    cut = replace(
        whole, run=replace(whole.run, state="interrupted", ended="2026-11-01T02:00:00Z"), rows=whole.rows[:1]
    )
    with made_store(tmp_path / "other.db") as other:
        take_in(other, [cut])
        take_in(store, [whole])
        assert merge(store, other)[OLDER] == 1
        assert merge(other, store)[REPLACED] == 1
    with store.read() as connection:
        assert list_runs(connection)[0].results == 2


def test_pruned_samples_come_back_with_the_run_folder(store):
    night = run(rows=[sampled()])
    take_in(store, [night])
    with store.read() as connection:
        old = list_runs(connection)
    prune(store, old, samples_only=True)
    assert take_in(store, [night]) == [REPLACED]
    with store.read() as connection:
        assert rows_of(connection, old[0].id, whole=True)[0].samples


def test_a_pruned_copy_takes_no_samples_away(store, tmp_path):
    night = run(rows=[sampled()])
    take_in(store, [night])
    with made_store(tmp_path / "other.db") as other:
        take_in(other, [night])
        with other.read() as connection:
            prune(other, list_runs(connection), samples_only=True)
        assert merge(store, other) == {**NO_ALERTS, TAKEN_IN: 0, REPLACED: 0, KNOWN: 1, OLDER: 0}
        with store.read() as connection:
            (line,) = list_runs(connection)
            assert rows_of(connection, line.id, whole=True)[0].samples
        assert merge(other, store)[REPLACED] == 1, "there they come back"
        with other.read() as connection:
            (line,) = list_runs(connection)
            assert rows_of(connection, line.id, whole=True)[0].samples


def test_pruned_runs_are_told_apart(store):
    """By their content, which others go by to see that a run is another one."""

    def contents():
        with store.read() as connection:
            rows = connection.execute(sa.select(schema.runs.c.name, schema.runs.c.content))
            return {line.name: line.content for line in rows}

    bare = run("2026-11-03", [row("a")])
    take_in(store, [run(f"2026-11-0{day}", [sampled()]) for day in (1, 2)] + [bare])
    before = contents()
    with store.read() as connection:
        every = list_runs(connection)
    prune(store, every, samples_only=True)
    after = contents()
    assert len({*before.values(), *after.values()}) == 5
    assert after[bare.run.name] == before[bare.run.name]  # it had no samples
    assert take_in(store, [bare]) == [KNOWN]
