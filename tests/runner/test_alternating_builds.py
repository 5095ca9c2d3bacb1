"""Builds in turn: what a case's own variables do to those of a build."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.runner.alternating_builds import PairedSlots, with_variables
from perfdash.runner.messages import Answer, Options, ProcessOutcome
from perfdash.runner.slot import Slot
from tests.runner.planned import PLANNED, events


@pytest.mark.parametrize(("own", "of_build", "both"), [
    ({}, {}, {}),
    ({"A": "case"}, {"A": "build", "B": "build"}, {"A": "case", "B": "build"}),
    ({"PYTHONPATH": "/case"}, {}, {"PYTHONPATH": "/case"}),
    ({}, {"PYTHONPATH": "/build"}, {"PYTHONPATH": "/build"}),
    ({"PYTHONPATH": "/case"}, {"PYTHONPATH": "/build"}, {"PYTHONPATH": "/build:/case"}),
])  # fmt: skip
def test_a_case_s_variables_go_before_a_build_s_but_for_what_is_imported(own, of_build, both):
    assert with_variables(replace(PLANNED, env=own), of_build).env == both


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
