"""A run in two parts, each on slots of its own: what run.json says while the second waits for its cores."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from perfdash.errors import MachineError
from perfdash.records import Case
from perfdash.runner import run as runs
from perfdash.runner.plan import cut
from perfdash.runner.run_journal import RunJournal, read_info
from perfdash.runner.run_recording import refusal
from perfdash.settings import RunSettings
from tests.runner.planned import case


class Measured:
    """A session that measures nothing, and leaves what a real one does at its end."""

    begun = True

    def __init__(self, planned, costs, policy, executor, journal, info, *_, **__):
        self.journal, self.info, self.results = journal, info, []

    def run(self):
        self.info.noise["null"] = {"start": [1.0], "end": [1.0]}
        self.journal.write_state(self.info, "done")


@pytest.fixture
def open_run(tmp_path, monkeypatch):
    """A strict run with a case of one thread and one of two."""
    monkeypatch.setattr(runs, "Session", Measured)
    monkeypatch.setattr(runs, "load_warning", lambda: None)
    monkeypatch.setattr(runs.orphans, "end_strays", lambda: None)
    monkeypatch.setattr(runs, "slots_of", lambda settings: [tuple(range(settings.threads))])
    monkeypatch.setattr(runs, "away_from", lambda slots: nullcontext())
    settings = RunSettings(strict=True)
    plan = cut([case("a"), replace(case("b"), case=Case("s", "b", threads=2))], [1.0, 1.0], None)
    journal = RunJournal.create(tmp_path)
    info = runs.new_info(journal.folder.name, settings, plan, {}, ["perfdash"])
    return runs.OpenRun(settings, plan, plan.mine, {}, [(0,)], journal, info, [], ["perfdash"])


@pytest.mark.parametrize(
    ("error", "state"), [(KeyboardInterrupt(), "interrupted"), (MachineError("cores are taken"), "failed")]
)
def test_a_run_whose_second_part_never_began_is_not_done(open_run, monkeypatch, error, state):
    states = []

    def open_executor(settings, *_):
        if settings.threads == 1:
            return nullcontext()
        states.append((read_info(open_run.journal.folder).state, refusal(open_run.info) is not None))
        raise error

    monkeypatch.setattr(runs, "open_executor", open_executor)
    said = []
    try:
        runs.measure(open_run, None, said.append)
    except MachineError:
        assert state == "failed"
    assert states == [("running", True)], "a kill while it waits leaves this"
    info = read_info(open_run.journal.folder)
    assert (info.state, open_run.interrupted) == (state, state == "interrupted")
    assert "ended before its noise was measured" in refusal(info)
    assert [session["state"] for session in info.sessions] == ["done", state]


def test_a_run_that_was_interrupted_before_it_began_can_be_resumed(open_run, monkeypatch):
    def open_executor(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "open_executor", open_executor)
    runs.measure(open_run, None, print)
    assert read_info(open_run.journal.folder).state == "interrupted"
