"""The loop of a run with workers that are played back: what it does when something is lost."""

from types import SimpleNamespace

import pytest
from test_assemble import PLANNED, events

from perfdash.errors import MachineError
from perfdash.records import Case, RunInfo, Status
from perfdash.runner import noise, session
from perfdash.runner.journal import Journal, read_info, read_results
from perfdash.runner.launcher import Outcome

HELLO = {
    "executable": "python",
    "torch": "2.15",
    "torch_cuda": None,
    "missing": {},
    "cuda_initialized": False,
}


class Played:
    """A fork parent that answers every job with the same events."""

    fails_to_start: tuple[str, ...] = ()
    hello = HELLO

    def __init__(self, launch):
        self.launch = launch
        self.alive = True
        self.started = False

    def __enter__(self):
        if "fresh" in self.fails_to_start and type(self).count:
            raise MachineError("no memory for another interpreter")
        type(self).count += 1
        return self

    def __exit__(self, *_):
        pass

    def close(self):
        pass

    def run(self, job, log, on_event=None):
        if job.role == "probe":
            return Outcome([{"event": "probed", "complaints": [], "cuda": []}], status=0)
        if job.role == "replica":
            return Outcome([e for e in events() if e["event"] in ("latency", "done")], status=0)
        return Outcome(events(), status=0)


class Silent:
    def say(self, text): ...
    def case_started(self, number, total, case): ...
    def phase(self, name): ...
    def case_done(self, number, total, result): ...


@pytest.fixture
def start(tmp_path, monkeypatch):
    def make(planned, hello=HELLO, fails_to_start=()):
        played = type("P", (Played,), {"hello": hello, "fails_to_start": fails_to_start, "count": 0})
        monkeypatch.setattr(session, "ForkParent", played)
        journal = Journal.create(tmp_path)
        info = RunInfo(journal.folder.name, "t", "h", [], {}, {}, len(planned), "0")
        options = session.Options(python="python", cores=(0,), threads=1)
        return session.Session(planned, options, journal, info, Silent(), {})

    return make


def case(model, **change):
    planned = PLANNED.__class__(**{**PLANNED.__dict__, "skip_reason": None, **change})
    return planned.__class__(**{**planned.__dict__, "case": Case("s", model)})


def test_a_run(start):
    run = start([case("a"), case("b"), case("c"), PLANNED])
    results = run.run()
    assert [r.status for r in read_results(run.journal.folder)] == [r.status for r in results]
    assert sorted(r.case.model for r in results) == ["a", "b", "c", "m"]
    assert sum(r.conditions.get("processes") == 3 for r in results) == 2
    info = read_info(run.journal.folder)
    assert info.state == "done"
    assert len(info.noise["null"]["start"]) == 3
    assert info.noise["between_processes"]["df"] == 4


def test_a_replica_that_does_not_start_loses_no_row(start):
    (result,) = start([case("a")], fails_to_start=("fresh",)).run()
    assert result.status is Status.PASS
    assert result.conditions["processes"] == 1
    assert any("5 of 6 processes failed" in note for note in result.notes)


def test_torch_and_torchvision_that_do_not_match_are_one_message(start):
    trouble = {"timm": "RuntimeError: operator torchvision::nms does not exist"}
    run = start([case("a")], hello={**HELLO, "missing": trouble})
    with pytest.raises(MachineError, match="install torch, torchvision and timm together"):
        run.run()
    with pytest.raises(MachineError, match="started CUDA"):
        start([case("a")], hello={**HELLO, "cuda_initialized": True}).run()


@pytest.mark.parametrize(("count", "first"), [(1, [0]), (3, [0, 1]), (10, [0, 5]), (65, [0, 16, 32, 48])])
def test_replicated_cases_come_first_and_from_all_over(count, first):
    planned = [SimpleNamespace(number=number) for number in range(count)]
    order = [each.number for each in noise.replicated_first(planned)]
    assert order[: len(first)] == first
    assert sorted(order) == list(range(count))
