"""Builds in turn: what a case's own variables do to those of a build."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfdash.errors import MachineError
from perfdash.records import Case
from perfdash.runner import alternating_builds
from perfdash.runner import slot as slots
from perfdash.runner.alternating_builds import (
    AlternatingBuilds,
    Budget,
    Environment,
    PairedSlots,
    held,
    read_pairs,
    with_variables,
)
from perfdash.runner.cores import CoresTaken, Locks, core_names
from perfdash.runner.messages import Answer, Options, ProcessOutcome
from perfdash.runner.slot import Slot
from perfdash.runner.worker_limits import RunStopped
from tests.runner.planned import PLANNED, Parent, events


@pytest.mark.parametrize(("own", "of_build", "both"), [
    ({}, {}, {}),
    ({"A": "case"}, {"A": "build", "B": "build"}, {"A": "case", "B": "build"}),
    ({"PYTHONPATH": "/case"}, {}, {"PYTHONPATH": "/case"}),
    ({}, {"PYTHONPATH": "/build"}, {"PYTHONPATH": "/build"}),
    ({"PYTHONPATH": "/case"}, {"PYTHONPATH": "/build"}, {"PYTHONPATH": "/build:/case"}),
])  # fmt: skip
def test_a_case_s_variables_go_before_a_build_s_but_for_what_is_imported(own, of_build, both):
    assert with_variables(replace(PLANNED, env=own), of_build).env == both


def test_a_budget_is_spent_after_its_minutes(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(alternating_builds, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    budget, spent = Budget(2), []
    for clock[0] in (119.0, 120.0):
        spent.append(budget.spent)
    budget.begin()
    assert [*spent, budget.spent] == [False, True, False]


def test_every_pair_has_fork_parents_of_its_own(tmp_path, monkeypatch):
    """What one parent does to all its forks would be taken for a difference of the builds."""
    acts = []

    def measure(slot, order, log, on_event):
        acts.append(("measure", slot))
        return Answer([ProcessOutcome(events(), status=0)], "t", 1.0, 0.0, {"slot": 0})

    monkeypatch.setattr(Slot, "measure", measure)
    monkeypatch.setattr(Slot, "renew", lambda slot: acts.append(("renew", slot)))
    options = Options(python="python", threads=1)
    pairs = []
    slots = PairedSlots([(0,)], options, options, tmp_path)
    slots.measure([PLANNED], lambda case, so_far: len(so_far) == 2, lambda case, so_far: pairs.extend(so_far))
    assert len(pairs) == 2
    assert [act for act, _ in acts] == ["measure", "renew"] * 4
    old, new = acts[0][1], acts[2][1]
    assert [slot for _, slot in acts] == [old, old, new, new, new, new, old, old]


def test_a_side_that_executed_an_edited_model_has_no_numbers(tmp_path, monkeypatch):
    digests = iter(["a", "a", "a", "b"])

    def measure(slot, order, log, on_event):
        loaded = {"event": "loaded", "own_files": {"f.py": next(digests)}}
        script = [{**event, **loaded} if event["event"] == "loaded" else event for event in events()]
        return Answer([ProcessOutcome(script, status=0)], "t", 1.0, 0.0, {"slot": 0})

    monkeypatch.setattr(Slot, "measure", measure)
    options = Options(python="python", threads=1)
    pairs = []
    slots = PairedSlots([(0,)], options, options, tmp_path)
    slots.measure([PLANNED], lambda case, so_far: len(so_far) == 2, lambda case, so_far: pairs.extend(so_far))
    kinds = [side.error.type if side.error else None for pair in pairs for side in (pair.new, pair.old)]
    assert kinds == [None, None, None, "EditedModel"]
    assert pairs[1].old.backend_ms is None


def test_a_side_that_was_compiled_for_other_vector_instructions_is_a_failure_of_the_machine(
    tmp_path, monkeypatch
):
    """A run measures such a case again; pairs took its latency for that of the build."""

    def measure(slot, order, log, on_event):
        isa = "avx2" if "confirm1.new" in log.name else "avx512"
        script = [
            {**event, "capture": {**event.get("capture", {}), "vector_isa": isa}}
            if event["event"] == "compiled"
            else event
            for event in events()
        ]
        return Answer([ProcessOutcome(script, status=0)], "t", 1.0, 0.0, {"slot": 0})

    monkeypatch.setattr(Slot, "measure", measure)
    monkeypatch.setattr(Slot, "introduce", lambda slot, planned: {"environment": {"vector_isa": "avx512"}})
    options = Options(python="python", threads=1)
    pairs = []
    slots = PairedSlots([(0,)], options, options, tmp_path)
    slots.introduce([PLANNED])
    slots.measure([PLANNED], lambda case, so_far: len(so_far) == 2, lambda case, so_far: pairs.extend(so_far))
    assert [pair.spoilt for pair in pairs] == [True, False]
    assert [pair.number for pair in read_pairs(tmp_path)[PLANNED.case]] == [2]


@pytest.fixture
def executing(tmp_path, monkeypatch):
    """Measure on, until each side has executed its version of the model; the numbers of the kept pairs.

    After an odd number of versions the last pair is interrupted.
    """

    def measure(versions):
        left = list(versions)

        def side(slot, order, log, on_event):
            if not left:
                raise RunStopped
            loaded = {"event": "loaded", "own_files": {"f.py": left.pop(0)}}
            script = [{**event, **loaded} if event["event"] == "loaded" else event for event in events()]
            return Answer([ProcessOutcome(script, status=0)], "t", 1.0, 0.0, {"slot": 0})

        monkeypatch.setattr(Slot, "measure", side)
        options = Options(python="python", threads=1)
        slots = PairedSlots([(0,)], options, options, tmp_path)
        with suppress(KeyboardInterrupt):
            slots.measure(
                [PLANNED], lambda case, pairs: not left, lambda case, pairs: None, read_pairs(tmp_path)
            )
        return [pair.number for pair in read_pairs(tmp_path)[PLANNED.case]]

    return measure


def test_pairs_of_an_edited_model_are_measured_again(executing):
    assert executing("aaaaaa" + "bbbb") == [1, 2, 3]
    assert executing("aaaa") == [1, 2, 3, 4, 5]


def test_a_pair_after_an_edit_is_not_overwritten(executing):
    assert executing("aa" + "bb" + "aa") == [1, 3]
    assert executing("aa") == [1, 3, 4]


def test_a_side_that_is_measured_again_makes_no_pair_with_the_other_one_of_before(executing):
    assert executing("aa" + "ba") == [1]
    assert executing("a") == [1], "interrupted between the two sides"
    assert executing("aa") == [1, 2]


def test_each_pair_of_slots_has_a_gpu_and_compile_cores_of_its_own(tmp_path):
    options = Options(python="python", threads=1)
    paired = PairedSlots(
        [(0,), (1,)], options, options, tmp_path, gpus=("GPU-a", "GPU-b"), compile_cores=[(0, 2), (1, 3)]
    )
    for side in ("old", "new"):
        sides = [pair[side] for pair in paired._slots]
        assert [slot.gpu for slot in sides] == ["GPU-a", "GPU-b"]
        assert [slot.compile_cores for slot in sides] == [(0, 2), (1, 3)]
    assert "gpu GPU-b" in paired._slots[1]["new"].lock_names


def test_every_build_of_several_is_compiled_on_the_same_cores():
    builds = AlternatingBuilds((0,), Options(python="python", threads=1), gpu="GPU-a", compile_cores=(0, 2))
    assert builds._holder.lock_names == [*core_names([0, 2]), "gpu GPU-a"]
    for name in ("old", "new"):
        slot = builds._slot(Environment(name))
        assert (slot.cores, slot.gpu, slot.compile_cores) == ((0,), "GPU-a", (0, 2))


EAGER = replace(PLANNED, case=Case("s", "m", backend="eager"), skip_reason=None)


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """Measure so many pairs, of whose fork parents the first `good` work; returns the parents.

    `commits`: of torch, as the fork parents of each build find it in turn.
    """

    def measure(count, good=100, commits=None):
        started = []

        def start(launch, locks, stop, notebook=None):
            hello = {"torch_git_version": commits[launch.python].pop(0)} if commits else None
            started.append(Parent(launch, stopped=len(started) >= good, hello=hello))
            return started[-1]

        monkeypatch.setattr(slots, "ForkParent", start)
        old, new = (Options(python=name, threads=1) for name in ("old", "new"))
        # A core that there is not, and that no test beside it takes.
        paired = PairedSlots([(2_000_000 + os.getpid(),)], old, new, tmp_path)
        with held([paired]):
            try:
                paired.measure([EAGER], lambda case, pairs: len(pairs) == count, lambda case, pairs: None)
            except KeyboardInterrupt:
                pass
            assert all(parent.closed for parent in started), "a parent outlives its measurement"
        return started

    (tmp_path / "logs").mkdir()
    return measure


@pytest.mark.parametrize("good", [0, 1, 2])
def test_an_interrupted_pair_leaves_no_fork_parent(pairs, good):
    assert len(pairs(3, good)) == good + 1


def test_an_interpreter_that_changes_between_two_pairs_ends_them(pairs, tmp_path):
    with pytest.raises(MachineError, match=r"new changed .*\n  torch_git_version: b \| c\n"):
        pairs(3, commits={"old": ["a", "a"], "new": ["b", "c"]})
    assert len(read_pairs(tmp_path)[EAGER.case]) == 1


def test_a_bisection_builds_one_commit_after_another_in_one_folder(tmp_path, monkeypatch):
    commits = ["a", "b", "c"]

    def start(launch, locks, stop, notebook=None):
        return Parent(launch, hello={"torch_git_version": commits.pop(0)})

    monkeypatch.setattr(slots, "ForkParent", start)
    with AlternatingBuilds((3_000_000 + os.getpid(),), Options(python="python", threads=1)) as builds:
        folder, log = Environment("python"), tmp_path / "log"
        measured = [builds.measure(EAGER, folder, log).conditions["torch_git_version"] for _ in range(2)]
        builds.structure(EAGER, folder, log)
    assert (measured, commits) == (["a", "b"], [])


def test_sets_of_slots_with_cores_in_common_are_held_together(tmp_path):
    options = Options(python="python", threads=1)
    first = 4_000_000 + 10 * os.getpid()
    one, two = (PairedSlots([cores], options, options, tmp_path) for cores in ((first,), (first, first + 1)))
    with held([one, two]):
        for cores in ([first], [first + 1]):
            assert Locks.try_take(core_names(cores)) is None
        assert one._slots[0]["old"]._locks.fds == two._slots[0]["new"]._locks.fds != ()
    locks = Locks.try_take(two.lock_names)
    assert locks is not None
    with pytest.raises(CoresTaken), held([one, two]):
        pass
    locks.close()
