"""On which slots two builds are compared; nothing is measured here."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import ClassVar

import pytest

from perfdash.records import Case, RunInfo
from perfdash.runner import build_comparison, cores
from perfdash.runner.alternating_builds import Budget, BuildPair
from perfdash.runner.build_comparison import BuildComparison
from perfdash.runner.plan import cut
from perfdash.runner.run_journal import RunJournal
from perfdash.settings import RunSettings
from tests.report.results import good
from tests.runner.planned import case

BOUND = '{"bind_memory":true}'


class Slots:
    """Paired slots that measure nothing, and note with which threads a case was to be measured."""

    open_now = 0
    measured: ClassVar[list[tuple[int, bool, Case, int]]] = []

    def __init__(self, cores, old, new, folder, gpus, compile_cores):
        self.gpus, self.compile_cores = gpus, compile_cores
        self.threads, self.binds = {len(own) for own in cores}, (old.bind_memory, new.bind_memory)

    def __enter__(self):
        assert Slots.open_now == 0, "two sets of slots would hold the same cores"
        Slots.open_now += 1
        return self

    def __exit__(self, *_):
        Slots.open_now -= 1

    def introduce(self, planned):
        return {"old": {"worker": {"torch": "1"}}, "new": {"worker": {"torch": "2"}}}

    def measure(self, planned, enough, seen, begun, budget):
        (threads,), (old, new) = self.threads, self.binds
        assert old == new
        for one in planned:
            pairs = list(begun.get(one.case, ()))
            while not enough(one, pairs) and not (budget and budget.spent):
                Slots.measured.append((threads, new, one.case, len(pairs) + 1))
                result = good(one.case.model, 1.2, "faster", threads=one.case.threads)
                pairs.append(BuildPair(*[replace(result, case=one.case)] * 2))
            seen(one, pairs)


@pytest.fixture
def comparison(tmp_path, monkeypatch):
    """One case of one thread, one of two bound threads."""
    monkeypatch.setattr(build_comparison, "PairedSlots", Slots)
    monkeypatch.setattr(Slots, "measured", [])
    monkeypatch.setattr(build_comparison, "away_from", lambda slots: nullcontext())
    monkeypatch.setattr(cores, "available_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(cores, "numa_nodes", lambda here: [list(here)])
    monkeypatch.setattr(cores, "sibling_groups", lambda here: [[core] for core in here])
    own, socket = (Case("timm", "m", threads=threads, settings=s) for threads, s in ((1, ""), (2, BOUND)))
    plan = cut([replace(case("m"), case=each) for each in (own, socket)], [1.0, 1.0], None)
    journals = {"new": RunJournal.create(tmp_path)}
    (journals["new"].folder / "base" / "logs").mkdir(parents=True)
    journals["old"] = RunJournal(journals["new"].folder / "base")
    infos = {side: RunInfo(side, "", "h", [], {}, {}, 2, "0.2") for side in journals}
    settings = RunSettings(suite=["timm"], out=tmp_path)
    return BuildComparison(settings, sys.executable, 4, plan, {}, journals, infos, {}), own, socket


def test_cases_of_configuration_socket_are_measured_on_slots_of_their_own(comparison):
    compared, own, socket = comparison
    build_comparison.measure(compared, None, lambda text: None)
    assert {entry[:3] for entry in Slots.measured} == {(1, False, own), (2, True, socket)}
    assert [entry[3] for entry in Slots.measured] == sorted(entry[3] for entry in Slots.measured), (
        "the pairs of both in turns: where time runs out, none is without any"
    )
    assert compared.infos["new"].state in ("done", "incomplete")
    assert set(compared.pairs) == {own, socket}


def test_after_its_minutes_no_pair_begins(comparison, monkeypatch):
    compared, own, socket = comparison
    messages = []
    # Its minutes end while the second pair of the first case is measured.
    monkeypatch.setattr(Budget, "spent", property(lambda budget: len(Slots.measured) >= 3))
    build_comparison.measure(compared, 0.5, messages.append)
    assert [entry[2:] for entry in Slots.measured] == [(own, 1), (socket, 1), (own, 2)]
    assert {case: len(pairs) for case, pairs in compared.pairs.items()} == {own: 2, socket: 1}
    assert compared.infos["new"].state == "incomplete"
    assert compared.out_of_time
    assert messages[-1] == "0.5 minutes are over: 2 cases are not decided"


def test_each_slot_of_a_comparison_on_gpus_has_one_of_its_own(comparison, monkeypatch):
    compared, _, _ = comparison
    monkeypatch.setattr(cores, "visible_gpus", lambda named: ["GPU-a", "GPU-b"])
    on_gpus = compared.settings.model_copy(update={"device": "cuda", "jobs": 2})
    with build_comparison._open_slots(compared, on_gpus, lambda text: None) as slots:
        assert slots.gpus == ["GPU-a", "GPU-b"]
        assert [len(own) for own in slots.compile_cores] == [2, 2]
