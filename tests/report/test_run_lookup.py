"""The runs that a user names: of run folders, where there is no history, and of the history."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perfdash.detect.curation import exclude
from perfdash.errors import UsageError
from perfdash.history import store as store_module
from perfdash.history.ingest import take_in
from perfdash.history.run_selection import one_run
from perfdash.history.store import HEAD, open_store
from perfdash.records import Result, RunInfo, Status, to_json
from perfdash.report.run_lookup import RunLookup, read_folder
from perfdash.runner import last_run
from perfdash.runner.last_run import run_folder
from perfdash.runner.run_journal import RunJournal
from tests.history.made import case, row, run


def folder(out, day, status, host="farm"):
    """A run folder whose one case ended so."""
    (out / f"night{day}").mkdir(parents=True)
    journal = RunJournal(out / f"night{day}")
    started = f"2026-11-{day:02}T01:00:00Z"
    environment = {"host_class": "Xeon x 100"}
    journal.write_info(RunInfo(journal.folder.name, started, host, ["perfdash"], {}, environment, 1, "0.1"))
    journal.append(Result(case(), started, 1.0, status))
    journal.close()
    return journal.folder


@pytest.mark.parametrize("status", [Status.NOT_TONIGHT, Status.SKIPPED, Status.INFRA_ERROR])
@pytest.mark.parametrize("first", [Status.PASS, Status.CRASH])
def test_the_run_before_measured_the_case(tmp_path, first, status):
    out = tmp_path / "runs"
    folders = [folder(out, day, word) for day, word in enumerate((first, status, Status.PASS), start=1)]
    lookup = RunLookup(out, str(tmp_path / "none.db"), pytest.fail)
    before, note = lookup.previous(read_folder(folders[-1], pytest.fail), case())
    assert before.run.name == folders[0].name
    assert note == ""


@pytest.mark.parametrize(
    ("hosts", "day", "note"),
    [
        (["farm", "barn", "farm"], 1, ""),
        (["mill", "barn", "farm"], 2, "night2 measured it on another machine: barn | farm."),
    ],
)
def test_the_run_before_is_of_the_same_machine_if_it_measured_the_case(tmp_path, hosts, day, note):
    """Machines of a class differ in latency."""
    out = tmp_path / "runs"
    folders = [folder(out, place, Status.PASS, host) for place, host in enumerate(hosts, start=1)]
    lookup = RunLookup(out, str(tmp_path / "none.db"), pytest.fail)
    before, told = lookup.previous(read_folder(folders[-1], pytest.fail), case())
    assert (before.run.name, told) == (f"night{day}", note)


def test_last_is_no_run_that_was_excluded(tmp_path):
    """A run folder knows nothing of it; the history does."""
    address, lines = str(tmp_path / "history.db"), []
    folders = [folder(tmp_path, day, Status.PASS) for day in (1, 2, 3)]
    with open_store(address) as store:
        take_in(store, [read_folder(each, pytest.fail) for each in folders])
        exclude(store, "night3", "the fan")
        lookup = RunLookup(tmp_path, address, lines.append)
        assert [lookup.folder("last"), lookup.run("last").run.name] == [folders[1], "night2"]
        with store.read() as connection:
            assert one_run(connection, "last").name == "night2"
        assert lines == ["perfdash: `last` is night2; excluded from judging: night3 (the fan)"]
        assert lookup.run("night3").run.name == "night3"
        exclude(store, "night1", "the fan")
        exclude(store, "night2", "the fan")
    with pytest.raises(UsageError, match="means only runs that were excluded"):
        RunLookup(tmp_path, address, lines.append).run("last")
    lines.clear()
    assert run_folder("last", tmp_path, address, lines.append) == folders[2]
    assert lines == [f"perfdash: `last` is night3: all runs in {tmp_path} are excluded from judging"]


def test_last_is_no_shard_of_a_run_that_was_excluded(tmp_path):
    """The shards' folders stay beside that of the merged run, and are not in the history themselves."""
    address, lines = str(tmp_path / "history.db"), []
    folders = [folder(tmp_path, day, Status.PASS) for day in (1, 2, 3, 4)]
    night, *shards, merged = folders
    uids = [read_folder(shard, pytest.fail).run.uid for shard in shards]
    written = json.loads((merged / "run.json").read_text())
    of_shards = {"merged_from": [shard.name for shard in shards], "merged_uids": uids}
    (merged / "run.json").write_text(json.dumps({**written, **of_shards}))
    with open_store(address) as store:
        take_in(store, [read_folder(each, pytest.fail) for each in (night, merged)])
        assert RunLookup(tmp_path, address, pytest.fail).folder("last") == merged
        exclude(store, "night4", "the fan")
    assert RunLookup(tmp_path, address, lines.append).folder("last") == night
    assert lines == ["perfdash: `last` is night1; excluded from judging: night4 (the fan)"]


def of_shards(folder, *shards, day=None):
    """Turn a run into a merge of shards, which started on this day and ended in the order of their names."""
    file = folder / "run.json"
    changes = {"merged_from": shards, "merged_uids": shards}
    if day:
        changes["started"] = f"2026-11-{day:02}T01:00:00Z"
        changes["ended"] = f"2026-11-{day:02}T05:{ord(max(shards)[0]) % 60}:00Z"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(("merges", "last"), [
    ([(13, "abc"), (14, "def"), (13, "abc")], 2),  # a night is merged once more
    ([(13, "abc"), (14, "def"), (13, "abg")], 2),  # with a shard that was measured again
    ([(13, "ab"), (12, "abc")], 2),  # the shard that came late had begun first
    ([(12, "abc"), (13, "ab")], 1),  # merged once more without it
    ([(13, "abc"), (13, "abg")], 2),
    ([(13, "abc"), (13, "abg"), (13, "abc")], 2),  # the merge before is repeated
])  # fmt: skip
def test_last_is_the_night_that_began_last(tmp_path, merges, last):
    for number, (day, shards) in enumerate(merges, start=1):
        of_shards(folder(tmp_path, number, Status.PASS), *shards, day=day)
    lookup = RunLookup(tmp_path, str(tmp_path / "none.db"), pytest.fail)
    assert lookup.folder("last").name == f"night{last}"


def test_last_is_no_shard_that_began_after_its_merged_run(tmp_path):
    """A merged run begins with its first shard."""
    shards = [folder(tmp_path, day, Status.PASS) for day in (2, 3)]
    merged = folder(tmp_path, 4, Status.PASS)
    of_shards(merged, *(read_folder(shard, pytest.fail).run.uid for shard in shards), day=2)
    assert RunLookup(tmp_path, str(tmp_path / "none.db"), pytest.fail).folder("last") == merged


def test_last_reads_no_more_folders_than_it_needs(tmp_path, monkeypatch):
    """Of 150 nights 30 old ones were merged after the newest began."""
    read = []
    read_info = last_run.read_info
    monkeypatch.setattr(last_run, "read_info", lambda path: read.append(path.name) or read_info(path))
    info = to_json(RunInfo("", "", "farm", [], {}, {}, 1, "0.1"))

    def write(made, started, *shards):
        folder = tmp_path / f"{made:%Y-%m-%dT%H-%M-%SZ}_farm"
        folder.mkdir()
        of_run = {"id": folder.name, "started": f"{started:%Y-%m-%dT%H:%M:%SZ}"}
        of_run.update(merged_from=shards, merged_uids=shards)
        (folder / "run.json").write_text(json.dumps(info | of_run))
        (folder / "results.jsonl").write_text("a result")
        return folder

    start = datetime(2026, 1, 1, 1, tzinfo=UTC)
    nights = [write(start + timedelta(days=day), start + timedelta(days=day)) for day in range(150)]
    for day in range(30):
        made = start + timedelta(days=150, minutes=day)
        write(made, start + timedelta(days=day), f"{day}a", f"{day}b")
    assert last_run.last_run(tmp_path, str(tmp_path / "none.db"), pytest.fail) == nights[-1]
    assert len(read) < 100
    whole = write(start + timedelta(days=151), start + timedelta(days=149, hours=2), "a", "b", "c")
    write(start + timedelta(days=152), start + timedelta(days=149, hours=3), "a", "b")
    assert last_run.last_run(tmp_path, str(tmp_path / "none.db"), pytest.fail) == whole
    assert len(read) < 200


def test_last_is_no_earlier_merge_of_a_run_that_was_excluded(tmp_path):
    address, lines = str(tmp_path / "history.db"), []
    folders = [folder(tmp_path, day, Status.PASS) for day in (1, 2, 3)]
    for each, shards in zip(folders, ("abc", "def", "deg"), strict=True):
        of_shards(each, *shards)
    with open_store(address) as store:
        take_in(store, [read_folder(each, pytest.fail) for each in folders])
        exclude(store, "night3", "node3 was throttled")
    assert RunLookup(tmp_path, address, lines.append).folder("last") == folders[0]
    with open_store(address) as store:
        exclude(store, "night1", "the fan")
    assert RunLookup(tmp_path, address, lines.append).folder("last") is None


def test_without_its_history_last_may_be_an_excluded_run_and_a_line_says_so(tmp_path):
    night, lines = folder(tmp_path, 1, Status.PASS), []
    (tmp_path / "songs.db").write_text("not a database, " * 100)
    assert RunLookup(tmp_path, str(tmp_path / "songs.db"), lines.append).folder("last") == night
    assert "`last` may be a run that was excluded from judging: " in lines[0]


@pytest.mark.parametrize("state", ["older", "locked"])
def test_last_neither_migrates_the_history_nor_waits_long_for_it(tmp_path, monkeypatch, state):
    monkeypatch.setattr(store_module, "_GLANCE_S", 0.01)
    night, lines, file = folder(tmp_path, 1, Status.PASS), [], tmp_path / "history.db"
    with open_store(str(file)) as store:
        take_in(store, [read_folder(night, pytest.fail)])
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        if state == "older":
            connection.execute("update perfdash_version set version_num = '0012'")
        else:
            connection.execute("pragma journal_mode = delete")
            connection.execute("begin exclusive")
        assert RunLookup(tmp_path, str(file), lines.append).folder("last") == night
        assert [line.rpartition(": ")[2] for line in lines] == ["database is locked"] * (state == "locked")
        revision = connection.execute("select version_num from perfdash_version").fetchone()[0]
    assert revision == {"older": "0012", "locked": HEAD}[state]
    assert not list(tmp_path.glob("*.bak"))


def history(tmp_path, *runs):
    """A lookup in a history of runs, each a name, a day and a setting."""
    address = str(tmp_path / "history.db")
    with open_store(address) as store:
        made = [run(day, [row()], name=name, setting=setting) for name, day, setting in runs]
        take_in(store, [replace(one, run=replace(one.run, uid=one.run.name)) for one in made])
    return RunLookup(tmp_path, address, pytest.fail)


@pytest.mark.parametrize("baseline", ["2026-11-01", "2026-11-01..2026-11-01"])
@pytest.mark.parametrize("setting", [
    {"gpus": ["H100"]},  # DEVICES=cpu,cuda on one machine
    {"line": "feature"},  # two nightlies into one history
])  # fmt: skip
def test_the_baseline_of_a_run_is_of_its_testbed(tmp_path, baseline, setting):
    days = ("2026-11-01", "2026-11-02")
    lookup = history(tmp_path, *((f"{name}-{day}", day, bed) for day in days
                                 for name, bed in (("plain", {}), ("other", setting))))  # fmt: skip
    for name in ("plain", "other"):
        assert lookup.night(f"{name}-2026-11-02", baseline).against == f"{name}-2026-11-01"


def test_the_baseline_of_a_new_line_is_a_line_that_was_measured_alike(tmp_path):
    lookup = history(
        tmp_path, ("main", "2026-11-01", {}), ("gpu", "2026-11-01", {"gpus": ["H100"]}),
        ("feature", "2026-11-02", {"line": "feature"}),
    )  # fmt: skip
    assert lookup.night("feature", "2026-11-01").against == "main"
