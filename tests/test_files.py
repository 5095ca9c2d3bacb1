"""Files for readers are whole, and hold no secret, in whatever way it is written there."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from types import MappingProxyType

import pytest

from perfdash import files
from perfdash.bisection import events
from perfdash.bisection.journal import FILE, Journal
from perfdash.bisection.setup import resumed_command
from perfdash.bisection.sources import Revision
from perfdash.detect.comparison import ComparedRuns, compare
from perfdash.errors import UsageError
from perfdash.report import junit
from perfdash.report.plots import KINDS, files_of_rows, files_of_trend
from tests.history.made import case, row, run

TOKEN = "s3cret'0123\"45<67&89"  # escaped otherwise in JSON, XML and HTML
NAME = "ghx0123456789abcdefXYZ"


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    monkeypatch.setenv("OTHER_API_KEY", NAME)


def spelled(text):
    """Whether any part of a secret is left."""
    return "s3cret" in text or "0123456789" in text


def test_what_is_not_finite_is_null():
    value = {"a": [math.nan, math.inf, (-math.inf, 1.5)], "b": MappingProxyType({"c": math.nan})}
    assert json.loads(files.dumps(value)) == {"a": [None, None, [None, 1.5]], "b": {"c": None}}


def test_text_is_whole_and_without_secrets(tmp_path):
    path = tmp_path / "a.md"
    files.write(path, f"it is {TOKEN}\ud800")
    assert path.read_text() == "it is ***?"
    files.write(path, b"\x00bytes")
    assert path.read_bytes() == b"\x00bytes"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.md"]


def test_a_link_stays_one_and_a_failure_leaves_the_file(tmp_path):
    (tmp_path / "a.md").write_text("old")
    (tmp_path / "link").symlink_to("a.md")
    files.write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a.md").read_text() == "new"
    with pytest.raises(OSError, match="No such file"):
        files.write(tmp_path / "none" / "a.md", "x")


@pytest.fixture
def synced(tmp_path, monkeypatch):
    """What was synced to the disk, in order: the name below tmp_path, and the names that were there then."""
    calls, fsync = [], os.fsync

    def record(descriptor):
        fsync(descriptor)
        name = os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path)
        calls.append((name, sorted(os.listdir(tmp_path))))

    monkeypatch.setattr(os, "fsync", record)
    return calls


def test_a_durable_file_is_on_the_disk_before_it_takes_its_place_and_its_folder_after(tmp_path, synced):
    with files.replaced(tmp_path / "a", durable=True) as part:
        part.write_text("whole")
    assert synced == [(".a.part", [".a.part"]), (".", ["a"])]


def test_lines_are_on_the_disk_and_so_is_the_name_of_a_new_file(tmp_path, synced):
    files.append(tmp_path / "a", b"one\n")
    files.append(tmp_path / "a", b"tw")
    assert [name for name, _ in synced] == ["a", ".", "a"]


@pytest.mark.parametrize(("is_whole", "left"), [(True, "one\ntw\n"), (False, "one\n")])
def test_a_mended_line_is_on_the_disk(tmp_path, synced, is_whole, left):
    (tmp_path / "a").write_text("one\ntw")
    files.mend_last_line(tmp_path / "a", lambda line: is_whole)
    assert (tmp_path / "a").read_text() == left
    assert [name for name, _ in synced] == ["a"]


def test_a_pipe_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    files.write(tmp_path / "pipe", f"{NAME}.")
    reader.join()
    assert read == ["***."]


@pytest.mark.parametrize(
    ("name", "mode", "left"), [("/dev/stdout", "ab", "OLD\nnew\nend"), ("/dev/fd/1", "wb", "new\nend")]
)
def test_a_file_that_standard_output_leads_to_keeps_what_others_write(tmp_path, name, mode, left):
    log = tmp_path / "log"
    log.write_text("OLD\n")
    code = "import sys, pathlib as p; from perfdash import files; files.write(p.Path(sys.argv[1]), 'new\\n')"
    with log.open(mode) as file:
        subprocess.run([sys.executable, "-c", code, name], stdout=file, check=True)
        subprocess.run(["printf", "end"], stdout=file, check=True)
    assert log.read_text() == left
    assert [entry.name for entry in tmp_path.iterdir()] == ["log"]


def test_two_writers_of_a_file_are_independent(tmp_path):
    path = tmp_path / "all"
    with files.written(path) as slow:
        slow.write(b"slow, ")
        with files.written(path) as quick:
            quick.write(b"quick")
        assert path.read_bytes() == b"quick"
        slow.write(b"but whole")
    assert path.read_bytes() == b"slow, but whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["all"]


def test_junit_of_a_run_and_of_a_comparison(tmp_path):
    failed = row(f"model {NAME}", "crash", wall_s=1.0)
    failed.details["error"] = {"type": "Error", "message": f"login with {TOKEN} failed"}
    junit.write(tmp_path / "run.xml", f"run {TOKEN}", [failed])
    sides = [ComparedRuns(str(day), (run(f"2026-11-0{day}", [case_row]),)) for day, case_row in
             ((1, row(f"model {NAME}")), (2, row(f"model {NAME}", "crash", wall_s=1.0)))]  # fmt: skip
    junit.write_comparison(tmp_path / "compare.xml", compare(*sides))
    for path in tmp_path.iterdir():
        text = path.read_text()
        assert not spelled(text), path
        assert "***" in text
        assert ET.fromstring(text.encode()).find(".//failure") is not None


@pytest.mark.slow
def test_pictures(tmp_path):
    rows = [
        row(
            of=case(f"{'m' * 20} {NAME} {'n' * 40}", batch_size=size, backend=backend),
            eager_ms=20.0, backend_ms=10.0, speedup=2.0, compilation_s=30.0, compilation_cpu_s=30.0,
            eager_peak_bytes=5e7, backend_peak_bytes=4e7, compression_ratio=1.2, calls_captured=9.0,
        )
        for size in (1, 2)
        for backend in (f"mine-{NAME}", "inductor")
    ]  # fmt: skip
    for kind in KINDS:
        for name, content in files_of_rows(kind, rows):
            text = content.decode("latin-1")
            assert not spelled(text), name
            assert not spelled(name)
            assert "ghx0" not in text, "half of it is one, too"
    night = {
        "run": f"run {NAME}", "started": "2026-11-01T00:00:00Z", "torch": f"2.15 {NAME}", "testbed_id": 1,
        "suite": f"suite {NAME}", "device": "cpu", "dtype": "float32", "threads": 1, "method": {},
        "scenario": "inference", "dynamic": False, "settings": "",
        "configuration": "default", "backend": f"mine-{NAME}", "cases": 1, "attempted": 1,
        "passed": 1, "measured": 1, "speedup": 1.1, "speedup_low": 1.0, "speedup_high": 1.2,
        "speedup_clipped": 1.1, "compilation_s": 30.0, "compression_ratio": 1.1,
    }  # fmt: skip
    drawn = dict(files_of_trend([night]))
    assert len(drawn) == 2
    for name, content in drawn.items():
        assert not spelled(content.decode("latin-1") + name), name


def test_a_bisections_journal(tmp_path):
    revision = Revision("a" * 40, "aaaaaaa", title=f"Use {TOKEN}", author=NAME)
    with Journal.create(tmp_path) as journal:
        journal.append({"event": "begun", "schema": 1, "command": ["./measure", NAME],
                        "line": ["perfdash", "bisect", NAME], "asked": {"repo": "/home/me"}})  # fmt: skip
        event = journal.append({"event": "stage", "revisions": [vars(revision)]})
        broken = journal.append(
            events.at(events.BROKEN, 0, 3, revision, why=f"git: {TOKEN}", log="/home/x.log")
        )
        text = (journal.folder / FILE).read_text()
    assert not spelled(text)
    assert event["revisions"][0]["id"] == "a" * 40
    assert (broken["commit"], broken["why"], broken["place"]) == ("a" * 40, "git: ***", 3)
    assert [json.loads(line)["event"] for line in text.splitlines()] == ["begun", "stage", "broken"]


def test_what_a_bisection_goes_on_with_stays_whatever_a_password_is(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTGRES_PASSWORD", "jenkins")
    with Journal.create(tmp_path) as journal:
        begun = journal.append({"event": "begun", "schema": 1, "asked": {"repo": "/home/jenkins/torch"}})
    assert begun["asked"]["repo"] == "/home/jenkins/torch"


def test_a_command_that_held_a_secret_is_asked_for_again(tmp_path):
    with Journal.create(tmp_path) as journal:
        begun = journal.append({"event": "begun", "command": ["curl", f"-u:{NAME}"]})
    with pytest.raises(UsageError, match="was not kept; give it again, after --"):
        resumed_command(begun, None)
    assert resumed_command(begun, ["curl", f"-u:{NAME}"]) == ["curl", f"-u:{NAME}"]
    with pytest.raises(UsageError, match="the command after -- differs"):
        resumed_command(begun, ["wget", f"-u:{NAME}"])


def test_what_killed_writers_left_is_removed_after_a_day(tmp_path):
    old, new = tmp_path / ".all.csv.1.2.part", tmp_path / ".all.csv.3.4.part"
    for part in (old, new):
        part.write_text("half")
    os.utime(old, (0, 0))
    files.write(tmp_path / "all.csv", "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [new.name, "all.csv"]


def test_the_lock_of_a_file_that_may_only_be_read_is_seen(tmp_path, monkeypatch):
    """Of another user, or on a disk that is mounted read-only."""
    path, opened = tmp_path / ".lock", os.open

    def for_reading_only(name, flags, *mode, **options):
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(name, flags, *mode, **options)

    with path.open("w") as holder:
        assert files.try_lock(holder.fileno())
        with monkeypatch.context() as other_user:
            other_user.setattr(os, "open", for_reading_only)
            assert files.is_locked(path)
    assert not files.is_locked(path)
    assert not files.is_locked(tmp_path / "none")


def test_a_process_that_asks_for_the_lock_keeps_nobody_from_it(tmp_path, monkeypatch):
    """`perfdash show` beside the start of `perfdash run --resume`."""
    path = tmp_path / ".lock"
    with path.open("w") as resumed, path.open() as shown:
        fcntl.flock(shown, fcntl.LOCK_SH)  # as is_locked() does
        monkeypatch.setattr(files.time, "sleep", lambda _: fcntl.flock(shown, fcntl.LOCK_UN))
        assert files.try_lock(resumed.fileno())


def test_a_lock_that_another_process_keeps_is_not_taken(tmp_path):
    path = tmp_path / ".lock"
    with path.open("w") as one, path.open("w") as other:
        assert files.try_lock(one.fileno())
        assert not files.try_lock(other.fileno())


def test_long_names_beyond_ascii_can_be_written(tmp_path):
    path = tmp_path / f"{'模' * 80}.csv"
    files.write(path, "whole")
    assert path.read_text() == "whole"
