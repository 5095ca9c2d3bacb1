import errno
import json
import os
from dataclasses import replace

import pytest

from perfdash.errors import MachineError, UsageError
from perfdash.records import Case, Failure, Measurement, Result, RunInfo, Status
from perfdash.runner.run_journal import (
    RunJournal,
    find_run,
    is_being_measured,
    read_all,
    read_info,
    read_plan,
    read_readable,
    read_results,
    read_saved,
)

INFO = RunInfo("r", "t", "h", ["perfdash"], {}, {}, 1, "0")


def result(model="m"):
    nan = float("nan")
    return Result(Case("s", model), "t", 1.0, Status.PASS, eager_ms=Measurement(1, 1, 1, 1, nan, 1, [1.0]))


def test_records_are_read_back(tmp_path):
    journal = RunJournal.create(tmp_path / "a" / "runs")
    journal.write_info(INFO)
    journal.append(result("one"))
    journal.append(result("two"))
    assert [r.case.model for r in read_results(journal.folder)] == ["one", "two"]
    assert read_info(journal.folder) == INFO
    for line in (journal.folder / "results.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_a_torn_last_line_is_left_out(tmp_path):
    journal = RunJournal.create(tmp_path)
    journal.append(result("one"))
    path = journal.folder / "results.jsonl"
    whole = path.read_bytes()
    for cut in (1, 20, len(whole) - 2):
        path.write_bytes(whole + whole[:cut])
        assert [r.case.model for r in read_results(journal.folder)] == ["one"]
    path.write_bytes(whole + whole[:-1])
    assert len(read_all(journal.folder)) == 2, "only the newline was lost"


def test_reopened_it_goes_on_after_the_last_whole_line(tmp_path):
    journal = RunJournal.create(tmp_path)
    journal.append(result("one"))
    journal.append(result("two"))
    journal.close()
    path = journal.folder / "results.jsonl"
    whole = path.read_bytes()
    for torn in (whole[:-30], whole[:-1], whole + b"\0" * 40, whole + whole[:50]):
        path.write_bytes(torn)
        again = RunJournal.reopen(journal.folder)
        again.append(result("three"))
        again.close()
        names = [r.case.model for r in read_results(journal.folder)]
        assert names == (["one", "three"] if torn == whole[:-30] else ["one", "two", "three"])


def test_a_run_is_measured_by_one_at_a_time(tmp_path):
    journal = RunJournal.create(tmp_path)
    assert is_being_measured(journal.folder)
    with pytest.raises(UsageError, match="is being measured by another"):
        RunJournal.reopen(journal.folder)
    journal.close()
    assert not is_being_measured(journal.folder)
    RunJournal.reopen(journal.folder).close()


def test_a_case_measured_again_has_one_result_and_its_history(tmp_path):
    journal = RunJournal.create(tmp_path)
    first, other, again = result("one"), result("two"), result("one")
    again.status = Status.TIMEOUT
    for record in (first, other, again):
        journal.append(record)
    assert [(r.case.model, r.status) for r in read_results(journal.folder)] == [
        ("one", Status.TIMEOUT),
        ("two", Status.PASS),
    ]
    again.notes, other.notes = ["settled"], ["settled"]
    journal.rewrite([other, again])
    assert [(r.case.model, r.status, r.notes) for r in read_all(journal.folder)] == [
        ("one", Status.PASS, []),
        ("two", Status.PASS, ["settled"]),
        ("one", Status.TIMEOUT, ["settled"]),
    ]


def test_a_result_without_a_line_gets_one_when_the_intervals_are_made_anew(tmp_path):
    """The disk was full when it was measured."""
    journal = RunJournal.create(tmp_path)
    journal.append(result("one"))
    again = replace(result("one"), notes=["again"])
    journal.rewrite([again, result("two"), result("three")])
    assert [r.case.model for r in read_results(journal.folder)] == ["one", "two", "three"]
    assert read_results(journal.folder)[0].notes == ["again"]


def test_a_run_never_ends_before_it_ended_already(tmp_path, monkeypatch):
    """The clock was fast, and was set back; the history keeps the run with the latest end."""
    journal = RunJournal.create(tmp_path)
    info = replace(INFO, sessions=[{"started": "t"}])
    for time in ("2026-11-01T05:00:00Z", "2026-11-01T04:30:00Z"):
        monkeypatch.setattr("perfdash.runner.run_journal.now", lambda time=time: time)
        journal.write_state(info, "done")
    assert (info.ended, info.sessions[-1]["ended"]) == ("2026-11-01T05:00:00Z", "2026-11-01T04:30:00Z")


def test_every_attempt_has_its_own_log(tmp_path):
    journal = RunJournal.create(tmp_path)
    case = Case("s", "m")
    for name in (f"{case.name}.log", f"{case.name}.2.log", f"{case.name}.3.log"):
        path = journal.log_for(case)
        assert path.name == name
        path.touch()


def test_two_cases_at_once_have_two_logs(tmp_path):
    """A name of 300 characters had ended the run here."""
    journal = RunJournal.create(tmp_path)
    cases = [Case("s", model) for model in ("a/b", "a-b", "a_b", "m" * 300)]
    logs = {journal.log_for(case) for case in cases}
    assert len(logs) == 4
    assert all(path.parent == journal.logs and path.exists() for path in logs)


def test_a_broken_line_in_the_middle_names_its_place(tmp_path):
    journal = RunJournal.create(tmp_path / "my runs")
    (journal.folder / "results.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=r"results.jsonl, line 1: not a perfdash result record") as error:
        read_results(journal.folder)
    assert f"perfdash run --resume '{journal.folder}'" in str(error.value)


def damaged_run(tmp_path, *lines):
    """A run of two cases, with these lines between their records."""
    journal = RunJournal.create(tmp_path)
    journal.write_info(INFO)
    for name in ("one", "two"):
        journal.append(result(name))
    journal.close()
    path = journal.folder / "results.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, *(line + b"\n" for line in lines), second]))
    return journal.folder


def test_damaged_lines_are_reported_and_the_rest_is_read(tmp_path):
    folder = damaged_run(tmp_path, b'{"case": {"sui', b"\0\0\xff", b"[]", b"{}")
    results, damaged = read_readable(folder)
    assert [r.case.model for r in results] == ["one", "two"]
    assert [line.number for line in damaged] == [2, 3, 4, 5]
    assert damaged[0].bytes == b'{"case": {"sui'
    assert str(damaged[3]).startswith(f"{folder}/results.jsonl, line 5: not a perfdash result record")


def test_reopened_damaged_lines_are_set_aside_and_a_copy_stays(tmp_path):
    folder = damaged_run(tmp_path, b"\0\0\xff", b"[]")
    with (folder / "results.jsonl").open("ab") as file:
        file.write(b'{"torn')
    journal = RunJournal.reopen(folder)
    assert [line.number for line in journal.damaged] == [2, 3]
    assert journal.set_aside.read_bytes() == b"\0\0\xff\n[]\n"
    journal.append(result("three"))
    journal.close()
    assert [r.case.model for r in read_results(folder)] == ["one", "two", "three"]
    again = RunJournal.reopen(folder)
    assert not again.damaged
    again.close()


def test_a_record_of_a_newer_perfdash_is_not_damaged(tmp_path):
    folder = damaged_run(tmp_path, json.dumps({"schema": 10**6}).encode())
    before = (folder / "results.jsonl").read_bytes()
    for read in (read_results, read_readable, RunJournal.reopen):
        with pytest.raises(UsageError, match=r"line 2: record has schema 1000000.*update perfdash"):
            read(folder)
    assert (folder / "results.jsonl").read_bytes() == before
    assert not is_being_measured(folder)


@pytest.fixture
def measured(tmp_path):
    """A run of one case that is done and closed."""
    journal = RunJournal.create(tmp_path)
    journal.write_info(replace(INFO, state="done"))
    journal.append(result("one"))
    journal.close()
    return journal.folder


@pytest.mark.parametrize("torn", [b"\0" * 40, b'{"schema": 1, "case"', b"\0\0\n\0\0"])
def test_a_damaged_file_with_nothing_left_is_no_empty_run(measured, torn):
    (measured / "results.jsonl").write_bytes(torn)
    with pytest.raises(
        MachineError, match=r"results\.jsonl, line 1: .*: this is no result, and no other line"
    ):
        read_saved(measured)


def test_a_file_that_lost_its_results_is_no_empty_run(measured):
    (measured / "results.jsonl").write_bytes(b"")
    with pytest.raises(MachineError, match=r"results\.jsonl is missing or empty, .* 1 cases were measured"):
        read_saved(measured)


def test_a_line_that_is_left_out_is_named(measured):
    path = measured / "results.jsonl"
    assert read_saved(measured)[2] == []
    path.write_bytes(path.read_bytes() + b'{"schema": 1')
    _, results, (warning,) = read_saved(measured)
    assert [record.case.model for record in results] == ["one"]
    assert "results.jsonl, line 2: the line is cut short" in warning


def test_a_line_that_is_being_written_is_no_damage(measured):
    (measured / "results.jsonl").write_bytes(b'{"schema": 1')
    journal = RunJournal(measured)
    assert read_saved(measured)[1:] == ([], [])
    journal.close()


def test_two_runs_in_one_second_have_two_folders(tmp_path):
    assert RunJournal.create(tmp_path).folder != RunJournal.create(tmp_path).folder


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        RunJournal.create(tmp_path / "file")
    with pytest.raises(UsageError, match="--out"):
        RunJournal.create(tmp_path / "file" / "below")


def test_a_disk_that_refuses(tmp_path):
    journal = RunJournal.create(tmp_path)
    journal.append(result())
    (journal.folder / "results.jsonl").unlink()
    (journal.folder / "results.jsonl").symlink_to("/dev/full")
    with pytest.raises(MachineError, match="No space left on device"):
        journal.append(result())


def test_a_disk_that_is_full_from_the_start_promises_nothing(tmp_path):
    """The folder is removed then: there is nothing to go on with."""
    journal = RunJournal.create(tmp_path)
    (journal.folder / ".plan.json.part").symlink_to("/dev/full")
    with pytest.raises(MachineError, match="No space left on device: make room there") as error:
        journal.write_plan({})
    assert "--resume" not in str(error.value)


def test_a_disk_that_may_not_be_written_needs_no_room(tmp_path, monkeypatch):
    journal = RunJournal.create(tmp_path)

    def read_only(fd):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "fsync", read_only)
    with pytest.raises(MachineError, match=r"cannot be written: Read-only file system$"):
        journal.append(result())


@pytest.mark.parametrize(
    "text", ["[]", "{}", "7", '{"cases": [7], "costs": [], "shard": null, "mine": []}', "{"]
)
def test_a_plan_that_is_none_is_one_message(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UsageError, match=r"plan\.json.*this run cannot be resumed"):
        read_plan(tmp_path)


def test_a_lone_surrogate_is_replaced(tmp_path):
    """As in the name of a file that is not UTF-8, in a message: it could be neither printed nor stored."""
    journal = RunJournal.create(tmp_path)
    bad = result("a\udcff")
    bad.error = Failure("OSError", "no file 'b\ud800' \U0001f600", tail=["\udfff"])
    journal.append(bad)
    (read,) = read_results(journal.folder)
    assert read.case.model == "a\ufffd"
    assert (read.error.message, read.error.tail) == ("no file 'b\ufffd' \U0001f600", ["\ufffd"])


def test_find_run(tmp_path):
    with pytest.raises(UsageError, match="has no runs"):
        find_run("last", tmp_path)
    journal = RunJournal.create(tmp_path)
    journal.write_info(INFO)
    for name in ("last", journal.folder.name, str(journal.folder)):
        assert find_run(name, tmp_path) == journal.folder
    with pytest.raises(UsageError, match=journal.folder.name):
        find_run("nothing", tmp_path)


def test_last_is_the_last_run_with_results(tmp_path):
    for name, records in (("2026-11-01", 1), ("2026-11-02", 0)):
        (tmp_path / name).mkdir()
        journal = RunJournal(tmp_path / name)
        journal.write_info(INFO)
        for _ in range(records):
            journal.append(result())
    assert find_run("last", tmp_path).name == "2026-11-01"
    assert find_run("last", tmp_path, without_results=True).name == "2026-11-02"
    (tmp_path / "2026-11-01" / "results.jsonl").unlink()
    assert find_run("last", tmp_path).name == "2026-11-02", "none has any"


def test_not_a_run_folder(tmp_path):
    with pytest.raises(UsageError, match="not a run folder"):
        read_info(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(UsageError, match=r"run\.json"):
        read_info(tmp_path)


def test_a_record_is_on_the_disk_when_append_returns(tmp_path, monkeypatch):
    journal = RunJournal.create(tmp_path)
    path, real_fsync, synced = journal.folder / "results.jsonl", os.fsync, []

    def fsync(descriptor):
        real_fsync(descriptor)
        synced.append(path.read_bytes() if path.exists() else b"")

    monkeypatch.setattr(os, "fsync", fsync)
    journal.append(result("one"))
    synced.clear()  # the first also syncs the folder that the file is new in
    journal.append(result("two"))
    assert synced
    assert synced[-1] == path.read_bytes()
    journal.close()
