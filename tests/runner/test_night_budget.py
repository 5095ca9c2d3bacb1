"""A budget in hours: which cases a night measures, and that each has its turn."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from perfdash.errors import UsageError
from perfdash.history.earlier_nights import NightsOfCase
from perfdash.history.ingest import take_in
from perfdash.records import NOT_TONIGHT, Case
from perfdash.runner import run
from perfdash.runner.night_budget import ENOUGH, Candidate, as_left_out, choose, within_hours
from perfdash.runner.plan import cut, forecast
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned
from tests.history.made import row
from tests.history.made import run as made_run
from tests.stores import made_store

NEVER = Candidate(100.0)
NOW = "2026-11-10T01:00:00Z"


@pytest.mark.parametrize(
    ("candidates", "budget_s", "chosen"),
    [
        ([], 100.0, []),
        ([NEVER, NEVER, NEVER], 250.0, [0, 1]),
        ([Candidate(100.0, 20, 1.0), Candidate(100.0, 20, 3.0)], 100.0, [1]),  # the older one
        ([Candidate(100.0, 20, 3.0), NEVER], 100.0, [1]),  # what was never measured
        ([Candidate(100.0, 20, 1.0), Candidate(100.0, 2, 1.0)], 100.0, [1]),  # the less known of equal age
        ([Candidate(100.0, 20, 5.0), Candidate(100.0, 2, 1.0)], 100.0, [0]),  # age before knowledge
        ([Candidate(300.0, 20, 9.0), Candidate(100.0, 20, 1.0)], 200.0, [1]),  # too long gives way
        ([Candidate(100.0, 20, 1.0)] * 3, 300.0, [0, 1, 2]),
    ],
)
def test_the_most_urgent_cases_that_fit(candidates, budget_s, chosen):
    assert choose(candidates, budget_s) == chosen


def test_every_case_has_its_turn_within_the_nights_that_all_of_them_take():
    costs = [30.0 + 7 * number % 50 for number in range(24)]
    budget_s = 300.0
    last = dict.fromkeys(range(len(costs)), -1)
    nights = dict.fromkeys(last, 0)
    gaps = []
    for night in range(60):
        candidates = [
            Candidate(cost, nights[k], float(night - last[k]) if nights[k] else None)
            for k, cost in enumerate(costs)
        ]
        for number in choose(candidates, budget_s):
            gaps.append(night - last[number])
            last[number], nights[number] = night, nights[number] + 1
    everything = sum(costs) / budget_s
    assert min(nights.values()) >= 60 / everything / 2
    assert max(gaps) <= 3 * everything
    assert Candidate(1.0, ENOUGH, 4.0).urgency == Candidate(1.0, 10 * ENOUGH, 4.0).urgency == 4.0


def plan(*models: str):
    cases = [Planned(Case("timm", model), "timm", model, cost_s=1800.0) for model in models]
    return cut(cases, [1800.0] * len(cases), None)


def test_the_forecast_names_the_history_that_knows_what_a_case_takes():
    settings = RunSettings(hours=2.0, costs="ignored with --hours")

    def expected(models, known):
        whole = cut([replace(case, cost_s=None) for case in plan(*models).cases], [], None)
        cases = forecast(settings, within_hours(whole, 2.0, [1] * len(models), NOW, known))["cases"]
        return [(case["expected_s"], case["expected_by"]) for case in cases]

    known = {Case("timm", "old"): NightsOfCase(1, "2026-11-01T01:00:00Z", 900.0)}
    assert expected(["old", "new"], known) == [(900.0, "history"), (900.0, "mean of the others")]
    assert expected(["new"], {}) == [(60.0, "guess")], "there are no others"


def test_what_is_left_out_is_a_skipped_case_with_the_reason():
    known = {
        Case("timm", "old"): NightsOfCase(20, "2026-11-01T01:00:00Z", 1800.0),
        Case("timm", "young"): NightsOfCase(20, "2026-11-09T01:00:00Z", 1800.0),
        Case("timm", "long"): NightsOfCase(20, "2026-11-01T01:00:00Z", 7200.0),
    }
    tonight = within_hours(plan("young", "old", "long", "new"), 1.0, [1] * 4, NOW, known)
    reasons = {case.case.model: case.skip_reason for case in tonight.cases}
    assert reasons == {
        "new": None,
        "old": None,
        "young": f"{NOT_TONIGHT}other cases waited longer for the 1 hours of this run",
        "long": f"{NOT_TONIGHT}it takes 2.0 h, more than the budget of 1 hours",
    }
    assert tonight.costs == (0.0, 1800.0, 0.0, 1800.0)
    assert tonight.mine == (0, 1, 2, 3)  # each has a row
    assert within_hours(plan("young", "old", "long", "new"), 1.0, [4] * 4, NOW, known).costs[0] == 1800.0


def test_cases_that_the_machine_fails_leave_the_others_their_turn():
    """Six cases of an hour, two hours a night; the first two end in infra_error every time."""
    whole = cut([Planned(Case("timm", f"m{k}"), "timm", f"m{k}", cost_s=3600.0) for k in range(6)],
                [3600.0] * 6, None)  # fmt: skip
    known: dict[Case, NightsOfCase] = {}
    chosen = []
    for day in range(1, 13):
        now = f"2026-11-{day:02}T01:00:00Z"
        tonight = within_hours(whole, 2.0, [1] * 6, now, known)
        chosen.append([place for place, case in enumerate(tonight.cases) if case.skip_reason is None])
        for place in chosen[-1]:
            case = whole.cases[place].case
            before = known.get(case, NightsOfCase(0, None, None))
            known[case] = (
                replace(before, failed=(now, *before.failed))
                if place < 2
                else NightsOfCase(before.nights + 1, now, 3600.0)
            )
    assert chosen[:4] == [[0, 1], [0, 1], [2, 3], [4, 5]], "a failure of the machine is repeated once"
    for start in range(2, 9):
        turns = [place for places in chosen[start : start + 4] for place in places]
        assert set(turns) == set(range(6)), "each has its turn within four nights"


def test_cases_of_a_single_slot_take_its_whole_time():
    """Those of a configuration's own threads, beside --jobs 4."""
    own, other = (Planned(Case("timm", model), "timm", model, cost_s=3600.0) for model in ("own", "other"))
    of_one_slot = cut([other, replace(other, case=Case("timm", "third"))], [3600.0] * 2, None)
    assert [bool(case.skip_reason) for case in within_hours(of_one_slot, 1.0, [1, 1], NOW, {}).cases] == [
        False, True,
    ]  # fmt: skip
    mixed = cut([own, other, *of_one_slot.cases[1:]], [3600.0] * 3, None)
    tonight = within_hours(mixed, 1.25, [4, 1, 1], NOW, {})
    assert [case.case.model for case in tonight.cases if case.skip_reason is None] == ["own", "other"]


def test_a_budget_needs_the_history(tmp_path):
    """Without it every case counts as never measured, and the same ones would be left out each night."""
    with pytest.raises(UsageError, match=r"--hours needs the history.*--no-history"):
        run.of_tonight(RunSettings(hours=1.0, no_history=True), plan("a"))
    assert run.of_tonight(RunSettings(hours=1.0, db=str(tmp_path / "none.db")), plan("a")).mine == (0,)


FREEZING = {"inductor_config": {"freezing": True}}


@pytest.mark.parametrize(("before", "tonight", "counts"), [
    ({}, {}, True),
    ({"allocator": "jemalloc"}, {}, False),
    ({}, {"allocator": "jemalloc"}, False),
    ({"allocator": "jemalloc"}, {"allocator": "jemalloc"}, True),
    ({"env": {"A": "1"}}, {"env": {"A": "1"}}, True),
    ({"side_by_side": 4, "gpus": ["H100"]}, {}, True),  # the machine decides these
    (FREEZING, FREEZING, True),  # which the history keeps as settings of the case
    ({}, FREEZING, False),
], ids=str)  # fmt: skip
def test_only_nights_with_the_same_options_count_as_measured(tmp_path, monkeypatch, before, tonight, counts):
    """Two nightlies with other options on one host: each case has its turn in both."""
    monkeypatch.setattr(run, "_host", lambda: "farm")
    monkeypatch.setattr(run, "now", lambda: NOW)
    old, new = Case("timm", "old"), Case("timm", "new")
    case_settings = '{"inductor_config":{"freezing":true}}' if before == FREEZING else ""
    rows = [row(of=replace(old, settings=case_settings), wall_s=3600.0)]
    with made_store(tmp_path / "history.db") as store:
        take_in(store, [made_run("2026-11-09", rows, setting={} if case_settings else before)])
    settings = RunSettings(hours=1.0, db=str(tmp_path / "history.db"), **tonight)
    planned = [Planned(case, "timm", case.model, cost_s=3600.0) for case in (old, new)]
    chosen = run.of_tonight(settings, cut(planned, [3600.0] * 2, None)).cases
    # Both were never measured: the first one comes first. Else the one that was measured waits.
    assert [case.case.model for case in chosen if case.skip_reason is None] == ["new" if counts else "old"]


def test_other_nights_say_how_long_a_case_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_host", lambda: "farm")
    case = Case("timm", "m")
    with made_store(tmp_path / "history.db") as store:
        take_in(store, [
            made_run("2026-11-01", [row(of=case, wall_s=60.0)]),
            made_run("2026-11-02", [row(of=case, wall_s=900.0)], setting={"allocator": "jemalloc"}),
        ])  # fmt: skip
    plan = cut([Planned(case, "timm", "m", cost_s=10.0)], [10.0], None)
    for allocator, cost_s in (("steady", 60.0), ("jemalloc", 900.0), ("tcmalloc", 900.0)):
        settings = RunSettings(hours=1.0, db=str(tmp_path / "history.db"), allocator=allocator)
        assert run.of_tonight(settings, plan).costs == (cost_s,)


def test_the_slots_of_each_case_are_those_of_its_threads(monkeypatch, tmp_path):
    """`run --jobs 4 --hours 1` with two cases of an hour and a number of threads of their own."""
    monkeypatch.setattr(run, "slots_of", lambda settings: [()] * int(settings.jobs))
    cases = [
        Planned(Case("timm", model, threads=threads), "timm", model, cost_s=3600.0)
        for model, threads in (("a", 2), ("b", 2), ("c", 1), ("d", 1), ("e", 1))
    ]
    whole = cut(cases, [3600.0] * 5, None)
    of_two = cut(cases[:2], [3600.0] * 2, None)
    settings = RunSettings(jobs=4, hours=1.0, db=str(tmp_path / "none.db"))
    assert [case.skip_reason is None for case in run.of_tonight(settings, of_two).cases] == [True, False]
    longer = settings.model_copy(update={"hours": 1.75})
    assert [case.skip_reason is None for case in run.of_tonight(longer, whole).cases] == [
        True, False, True, True, True,
    ]  # fmt: skip


def test_a_resumed_run_leaves_out_what_it_left_out_at_its_beginning():
    whole = plan("a", "b", "c")
    tonight = within_hours(whole, 0.5, [1] * 3, NOW, {})
    assert as_left_out(whole.cases, tonight.cases) == list(tonight.cases)


def test_a_budget_in_which_no_case_fits_is_refused():
    with pytest.raises(UsageError, match=re.escape("--hours 0.1: no case fits; the shortest takes")):
        within_hours(plan("a", "b"), 0.1, [1, 1], NOW, {})


def test_a_budget_is_of_this_machine():
    """How many slots a cluster has is known only when its workers answer."""
    with pytest.raises(UsageError, match=r"cores of this machine.*--executor local"):
        run.of_tonight(RunSettings(hours=1.0, executor="dask", scheduler="tcp://a:1"), plan("a"))
