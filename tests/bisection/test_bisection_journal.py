"""The journal: what is on the disk is what happened, however the process ended."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdash.bisection import events
from perfdash.bisection.events import Question
from perfdash.bisection.journal import FILE, Journal, find, is_being_worked_on, read
from perfdash.errors import MachineError, UsageError
from perfdash.stats.step_likelihood import KnownNoise
from tests.effort import trials

BEGUN = {"event": "begun", "schema": 1}


@pytest.fixture
def folder(tmp_path):
    with Journal.create(tmp_path) as journal:
        journal.append(BEGUN)
        journal.append({"event": "built", "place": 3})
    return journal.folder


def test_what_is_appended_is_read_again(folder):
    assert [event["event"] for event in read(folder)] == ["begun", "built"]
    assert all(event["at"].endswith("Z") for event in read(folder))


@pytest.mark.parametrize("cut", [1, 2, 9, 30, 57])
def test_a_torn_last_line_is_left_out_and_mended(folder, cut):
    path = folder / FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    left = len(read(folder))
    with Journal(folder) as journal:
        assert len(journal.events()) == left == (2 if cut == 1 else 1)
        journal.append({"event": "measured"})
        assert [event["event"] for event in journal.events()][-1] == "measured"
        assert len(journal.events()) == left + 1


def test_a_spoilt_line_in_the_middle_is_reported_with_its_number(folder):
    path = folder / FILE
    path.write_bytes(path.read_bytes().replace(b'"event":"begun"', b'"event:"begun"'))
    with pytest.raises(UsageError, match="line 1"):
        read(folder)


@pytest.mark.parametrize("text", ["", "\n", '{"event":"built"}\n', "[1]\n", "\x00\x00"])
def test_what_is_no_journal_is_refused(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UsageError):
        read(tmp_path)


def test_a_newer_schema_is_refused(tmp_path):
    (tmp_path / FILE).write_text(json.dumps({"event": "begun", "schema": 99}) + "\n")
    with pytest.raises(UsageError, match="update perfdash"):
        read(tmp_path)


@pytest.mark.slow
def test_only_one_works_on_it(folder):
    code = "import sys, time; from pathlib import Path; from perfdash.bisection.journal import Journal\n"
    code += "journal = Journal(Path(sys.argv[1])); print('here', flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"here\n"
        assert is_being_worked_on(folder)
        with pytest.raises(UsageError, match="another perfdash"):
            Journal(folder)
    finally:
        other.kill()
        other.communicate()
    assert not is_being_worked_on(folder)
    Journal(folder).close()


@pytest.mark.parametrize(("number", "advice"), [
    (errno.ENOSPC, "No space left on device; .*: make room, then perfdash bisect --resume"),
    (errno.EROFS, "Read-only file system; .*: when it can be written again, perfdash bisect --resume"),
])  # fmt: skip
def test_a_disk_that_refuses_leaves_the_file_as_it_was(folder, monkeypatch, number, advice):
    before = (folder / FILE).read_bytes()

    def refuse(fd):
        raise OSError(number, os.strerror(number))

    with Journal(folder) as journal:
        monkeypatch.setattr("os.fsync", refuse)
        with pytest.raises(MachineError, match=advice):
            journal.append({"event": "built", "place": 4})
    assert (folder / FILE).read_bytes() == before


def test_names(folder, tmp_path):
    assert find("last", tmp_path) == find(folder.name, tmp_path) == find(str(folder), tmp_path) == folder
    with pytest.raises(UsageError, match=folder.name):
        find("other", tmp_path)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match="--out"):
        Journal.create(file)


@settings(max_examples=trials(100))
@given(
    st.lists(st.floats(0, allow_nan=False), min_size=4, max_size=4),
    st.booleans(),
    st.none() | st.builds(KnownNoise, st.floats(1e-3, 1), st.floats(1, 50)),
)
def test_a_question_comes_back_as_it_was(costs, answers, noise):
    question = Question(3, answers, tuple(costs), prior=(1.0, 2.0, 0.5), jobs=2, known=noise)
    text = json.dumps(events.question_to_json(question), allow_nan=False)
    assert events.question_from_json(json.loads(text)) == question
