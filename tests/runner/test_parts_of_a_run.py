"""A run in two parts, each on slots of its own: what run.json says while the second waits for its cores."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import ClassVar

import pytest

from perfdash.errors import MachineError
from perfdash.records import Case, Result, Status
from perfdash.runner import run as runs
from perfdash.runner.plan import cut
from perfdash.runner.run_journal import RunJournal, read_info
from perfdash.runner.run_recording import refusal
from perfdash.settings import RunSettings
from tests.runner.planned import case


class Measured:
    """A session that measures nothing, and leaves what a real one does at its end."""

    begun = True
    sessions: ClassVar = []

    def __init__(self, planned, costs, policy, executor, journal, info, *_, **more):
        self.journal, self.info, self.results = journal, info, []
        self.planned, self.null_like = planned, more.get("null_like")
        self.executor, self.executed = executor, more["executed"]

    def run(self):
        Measured.sessions.append(self)
        structure = {"model_files": {"f.py": "digest", "layers.py": "another"}}
        self.results = [
            Result(planned.case, "t", 1.0, Status.PASS, structure=structure) for planned in self.planned
        ]
        self.info.noise["null"] = {"start": [1.0], "end": [1.0]}
        self.journal.write_state(self.info, "done")


@pytest.fixture
def open_run(tmp_path, monkeypatch):
    """A strict run with a case of one thread and one of two."""
    monkeypatch.setattr(runs, "Session", Measured)
    monkeypatch.setattr(Measured, "sessions", [])
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


def test_a_run_that_is_interrupted_between_its_parts_is_not_done(open_run, monkeypatch):
    """As by a Ctrl-C that came while the first part was saved."""
    opened = []

    class Interrupted(Measured):
        def run(self):
            super().run()
            raise KeyboardInterrupt

    monkeypatch.setattr(runs, "Session", Interrupted)
    monkeypatch.setattr(runs, "open_executor", lambda settings, *_: nullcontext(opened.append(settings)))
    runs.measure(open_run, None, print)
    assert len(opened) == 1
    info = read_info(open_run.journal.folder)
    assert (info.state, open_run.interrupted) == ("interrupted", True)
    assert "ended before its noise was measured" in refusal(info)


def test_a_part_knows_with_which_model_the_parts_before_it_were_measured(open_run, monkeypatch):
    """Else an edit of the model between the two is not noticed."""
    monkeypatch.setattr(runs, "open_executor", lambda *_: nullcontext())
    runs.measure(open_run, None, print)
    executed = [session.executed for session in Measured.sessions]
    assert executed == [{}, {"f.py": "digest", "layers.py": "another"}]


@pytest.mark.parametrize(
    ("optimizer", "scenario", "warnings"),
    [("adam", "inference", 1), ("adam", "training", 0), (None, "sizes", 0)],
)
def test_an_optimizer_that_acts_in_no_case_is_named(open_run, monkeypatch, optimizer, scenario, warnings):
    monkeypatch.setattr(runs, "open_executor", lambda *_: nullcontext())
    cases = [replace(each, case=replace(each.case, scenario=scenario)) for each in open_run.plan.cases[:1]]
    cases = (*cases, *open_run.plan.cases[1:])
    settings = open_run.settings.model_copy(update={"optimizer": optimizer})
    said = []
    runs.measure(
        replace(open_run, settings=settings, plan=replace(open_run.plan, cases=cases)), None, said.append
    )
    assert sum("optimizer adam" in text for text in said) == warnings


def test_a_run_that_was_interrupted_before_it_began_can_be_resumed(open_run, monkeypatch):
    def open_executor(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "open_executor", open_executor)
    runs.measure(open_run, None, print)
    assert read_info(open_run.journal.folder).state == "interrupted"


@pytest.fixture
def resume(open_run, monkeypatch):
    """Resume the strict run, both of whose cases are measured, with a null like this."""

    def resume(null, **noise):
        results = [Result(planned.case, "t", 1.0, Status.PASS) for planned in open_run.plan.cases]
        for result in results:
            open_run.journal.append(result)
        open_run.info.noise = {"null": null, **noise}
        open_run.journal.close()
        monkeypatch.setattr(runs, "plan_as_begun", lambda folder, settings: (open_run.plan, {}))
        monkeypatch.setattr(runs, "check_machine", lambda settings, cases: None)
        monkeypatch.setattr(runs, "open_executor", lambda settings, slots, *_: nullcontext(slots))
        resumed = runs.resumed_run(open_run.journal.folder, open_run.info, open_run.settings, set(), print)
        runs.measure(resumed, None, print)
        return Measured.sessions[-1]

    return resume


def test_a_strict_run_that_lacks_only_its_last_null_measures_that(resume, open_run):
    session = resume({"start": [1.0]})
    assert session.planned == []
    assert session.null_like == open_run.plan.cases[-1]
    assert session.executor == [(0, 1)], "the slots of the last case"
    assert refusal(open_run.info) is None


@pytest.mark.parametrize(
    ("null", "noise"), [({"start": [1.0], "end": [1.0]}, {}), ({"start": [1.0]}, {"refused": "at the end"})]
)
def test_a_run_whose_noise_was_judged_measures_no_null_again(resume, null, noise):
    session = resume(null, **noise)
    assert (session.null_like, session.executor) == (None, ())
