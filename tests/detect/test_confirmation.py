from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from perfdash.detect.alert_states import new_alert
from perfdash.detect.confirmation import (
    DISMISSED,
    MORE,
    NOTHING,
    PAIRS,
    STANDS,
    PairedResult,
    alert_after,
    candidates,
    changed_with,
    decide,
    measured_before,
)
from perfdash.detect.environment_changes import other_build
from perfdash.detect.findings import Finding
from perfdash.detect.nightly_judging import judge_run
from perfdash.errors import UsageError
from perfdash.history import alert_store as kept
from perfdash.history.queries import Panel, list_runs
from perfdash.records import Case
from perfdash.runner.remeasurement import _measured_before
from tests.detect.simulated import begin, farm, slower
from tests.history.made import run, with_worker
from tests.stores import made_store

SLOWER = Finding("metric", 1, "backend_ms", 1, 0, 1, change=math.log(1.1), sd=0.01, df=50.0)
BROKEN = Finding("status", 1, "status", 1, 0, 1, details={"before": "pass", "after": "crash"})
BREAKS = Finding("count", 1, "graph_breaks", 1, 0, 1, before=0.0, after=2.0)


def pair(ratio, clean=True, status="pass", noise=0.0):
    return PairedResult("pass", {"backend_ms": 10.0}), PairedResult(
        status, {"backend_ms": 10.0 * ratio + noise}, clean
    )


def until_told(finding, pairs):
    """The decision and the number of pairs it took, asked after every pair as confirm does."""
    for count in range(100):
        decision, seen = decide(finding, pairs[:count])
        if decision != MORE:
            return decision, count, seen
    raise AssertionError("it never ends")


def test_what_is_slower_stands_and_what_is_not_is_dismissed():
    decision, count, seen = until_told(SLOWER, [pair(1.1)] * 20)
    assert decision == STANDS
    assert count <= 4
    assert seen["low"] < 1.1 < seen["high"]
    assert seen["ratio"] == pytest.approx(1.1)
    assert until_told(SLOWER, [pair(1.0)] * 20)[0] == DISMISSED
    assert until_told(SLOWER, [pair(0.9)] * 20)[0] == DISMISSED, "the other way is not what was suspected"
    assert until_told(replace(SLOWER, sd=None, df=None), [pair(1.1), pair(1.09), pair(1.11)] * 8)[0] == STANDS


def test_a_change_too_small_for_the_pairs_is_left_open():
    small = replace(SLOWER, change=math.log(1.04), sd=0.03)
    noisy = [pair(1.04 + 0.03 * (-1) ** k) for k in range(20)]
    decision, count, seen = until_told(small, noisy)
    assert decision == NOTHING
    assert count <= PAIRS
    assert seen["low"] < 1.04 < seen["high"]


def test_pairs_beside_others_work_are_no_evidence():
    decision, count, _ = until_told(SLOWER, [pair(3.0, clean=False)] * 3 + [pair(1.0)] * 20)
    assert decision == DISMISSED
    assert count > 3
    assert until_told(SLOWER, [pair(1.1, clean=False)] * 50)[:2] == (NOTHING, PAIRS)


def test_pairs_that_fail_end_it():
    assert until_told(SLOWER, [pair(1.1, status="crash")] * 9)[:2] == (NOTHING, 2)


def test_a_status_is_the_builds_only_where_the_builds_differ():
    good, bad = PairedResult("pass", {}), PairedResult("crash", {})
    assert decide(BROKEN, [])[0] == MORE
    assert decide(BROKEN, [(good, bad)]) == (STANDS, {"old": "pass", "new": "crash"})
    assert decide(BROKEN, [(good, good)])[0] == DISMISSED
    assert decide(BROKEN, [(bad, bad)])[0] == DISMISSED, "the machine, or the model's library"
    assert decide(replace(BROKEN, direction=-1), [(bad, good)])[0] == STANDS
    empty = PairedResult("pass", {"calls_captured": 0.0})
    assert decide(BROKEN, [(good, empty)])[0] == STANDS, "nothing is captured any more"
    machine = PairedResult("infra_error", {})
    assert decide(BROKEN, [(good, machine)])[0] == MORE
    assert decide(BROKEN, [(good, machine)] * 2)[0] == NOTHING


def test_counts():
    def side(breaks):
        return PairedResult("pass", {"graph_breaks": breaks})

    assert decide(BREAKS, [(side(0.0), side(2.0))])[0] == STANDS
    assert decide(BREAKS, [(side(2.0), side(2.0))])[0] == DISMISSED
    assert decide(BREAKS, [(PairedResult("pass", {}), side(2.0))])[0] == NOTHING
    fewer = Finding("count", 1, "calls_captured", 1, 0, 1, before=100.0, after=90.0)
    captured = [PairedResult("pass", {"calls_captured": number}) for number in (100.0, 90.0)]
    assert decide(fewer, [tuple(captured)])[0] == STANDS
    assert decide(fewer, [tuple(reversed(captured))])[0] == DISMISSED


def test_the_likeliest_changes_come_first():
    def finding(case, score, direction=1, **flags):
        flags = {"alarm": False, **flags}
        return replace(SLOWER, case_id=case, direction=direction, details={"score": score}, **flags)

    findings = [
        finding(1, 2.0),
        finding(2, 4.0),
        finding(3, -9.0, direction=-1),
        finding(4, 1.9, alarm=True),
        finding(6, 1.0, direction=-1, suspect=True),
        Finding("host", None, "eager_ms", 1, 0, 1),
        Finding("vanished", 5, None, 1, 0, 1),
    ]
    for order in itertools.permutations(findings, 7):
        assert list(candidates(order)) == [4, 6, 2, 1, 3]
        break


@pytest.fixture
def night(tmp_path):
    """A night on which a model got slower, judged: the store, the judgement, its alerts."""
    with made_store(tmp_path / "history.db") as store:
        runs = farm(31, change=slower("model03", 30, 1.15))
        begin(store, runs)
        with store.read() as connection:
            last = list_runs(connection)[-1]
            judged = judge_run(connection, last)
            alerts = kept.load(connection)
        yield runs, judged, alerts


def test_an_interpreter_that_has_the_changed_package_is_not_the_good_build():
    """Torch is pinned and a package changes by version: the good interpreter must have the old version."""
    old = [
        with_worker(run(f"2026-11-0{day}").run, packages={"timm": "1.0.20", "pip": "1"}, python="3.12.1")
        for day in (1, 2)
    ]
    new = with_worker(run("2026-11-03").run, packages={"timm": "1.0.21", "pip": "2"}, python="3.12.1")
    finding = Finding("metric", 1, "backend_ms", 1, 1, 2, change=0.1)
    panel = Panel([*old, new], [1], {}, np.array([]))
    assert changed_with(finding, panel) == ["timm"]
    upgraded = {**old[1].worker, "packages": {"timm": "1.0.21", "pip": "1"}}
    assert not measured_before(finding, panel, upgraded)
    assert measured_before(finding, panel, {**old[1].worker, "packages": {"timm": "1.0.20", "pip": "2"}})
    assert other_build(new.worker, old[1].worker, ["timm"]) == ["timm: 1.0.21 | 1.0.20"]

    newer_python = replace(panel, runs=[*old, with_worker(old[1], python="3.13.0")])
    assert changed_with(finding, newer_python) == ["python"]
    assert not measured_before(finding, newer_python, {**old[1].worker, "python": "3.13.0"})


def test_two_interpreters_of_one_build_are_refused_where_the_build_changed():
    """Night 3 has the build of night 1 again, and night 2 another: pairs of one build show nothing."""
    runs = [
        with_worker(run(f"2026-11-0{day}").run, packages={"timm": version})
        for day, version in enumerate(("2", "1", "2"), 1)
    ]
    judged = SimpleNamespace(run=runs[2], panel=Panel(runs, [1], {}, np.array([])))
    findings = {Case("timm", "m"): [Finding("metric", 1, "backend_ms", 1, 1, 2, change=0.1)]}
    same, other = runs[2].worker, runs[1].worker
    pythons = ("new/python", "good/python")
    with pytest.raises(UsageError, match="have one build, though timm changed"):
        _measured_before(judged, findings, {"old": same, "new": same}, *pythons)
    with pytest.raises(UsageError, match=r"another build than the run measured .*timm: 2 \| 1"):
        _measured_before(judged, findings, {"old": other, "new": other}, *pythons)
    assert _measured_before(judged, findings, {"old": other, "new": same}, *pythons) == findings


def test_one_build_at_another_path_is_no_build_from_before_the_change():
    """The change came with a night before this one: both interpreters have the build with it."""
    runs = [
        with_worker(run(f"2026-11-0{day}").run, packages={"timm": version})
        for day, version in enumerate(("1", "2", "2"), 1)
    ]
    judged = SimpleNamespace(run=runs[2], panel=Panel(runs, [1], {}, np.array([])))
    findings = {Case("timm", "m"): [Finding("metric", 1, "backend_ms", 1, 0, 1, change=0.1)]}
    same = runs[2].worker
    with pytest.raises(UsageError, match="timm 2, which no night before the changes measured"):
        _measured_before(judged, findings, {"old": same, "new": same}, "new/python", "good/python")


def test_what_becomes_of_alerts(night):
    runs, judged, alerts = night
    finding = next(f for f in judged.findings if f.metric == "backend_ms" and (f.change or 0) > 0.1)
    commits = [run.run.environment["worker"]["torch_git_version"] for run in runs]
    good = {"torch_git_version": commits[29]}
    assert measured_before(finding, judged.panel, good)
    assert not measured_before(finding, judged.panel, {"torch_git_version": commits[30]})
    assert not measured_before(finding, judged.panel, {"torch_git_version": None})
    # A library under test of another commit is another build, though torch is the same.
    before = replace(judged.panel, runs=[with_worker(run, commits={"lib": "a"}) for run in judged.panel.runs])
    assert measured_before(finding, before, {**good, "commits": {"lib": "a", "new": "c"}})
    assert not measured_before(finding, before, {**good, "commits": {"lib": "b"}})
    assert other_build(before.runs[29].worker, {**good, "commits": {"lib": "b"}}) == ["lib: a | b"]
    night = with_worker(before.runs[29], packages={"lib": "1", "new": "1"})
    released = {**good, "packages": {"lib": "1", "new": "2"}}  # from an index: of no commit
    assert other_build(night.worker, released) == ["lib: a | 1"]
    cloned = {**released, "commits": {"lib": "a", "new": "c"}}
    assert other_build(night.worker, cloned) == ["new: 1 | c"]
    assert other_build(night.worker, {**cloned, "packages": {"lib": "1", "new": "1"}}) == []

    assert alerts == []
    mine = replace(new_alert(finding, judged.panel, "then"), id=7)
    seen = {"pairs": 4, "ratio": 1.15, "low": 1.1, "high": 1.2}
    confirmed, _ = alert_after(finding, STANDS, seen, [mine], judged.panel, "now")
    assert (confirmed.id, confirmed.state, confirmed.details["remeasured"]) == (mine.id, "confirmed", seen)
    gone, _ = alert_after(finding, DISMISSED, seen, [mine], judged.panel, "now")
    assert gone.state == "dismissed"
    assert alert_after(finding, DISMISSED, seen, [], judged.panel, "now") is None
    assert alert_after(finding, NOTHING, None, [mine], judged.panel, "now") is None
    fresh, _ = alert_after(finding, STANDS, seen, [], judged.panel, "now")
    assert (fresh.id, fresh.state, fresh.direction) == (None, "confirmed", 1)
    suspected = replace(mine, state=kept.SUSPECTED)
    stands, _ = alert_after(finding, STANDS, seen, [suspected], judged.panel, "now")
    assert (stands.id, stands.state) == (mine.id, "confirmed")
    refuted, _ = alert_after(finding, DISMISSED, seen, [suspected], judged.panel, "now")
    assert (refuted.id, refuted.state) == (mine.id, "dismissed")
    before = {"details": {"remeasured": {"pairs": 8}}, "change": 0.3}
    returned = replace(suspected, details={**suspected.details, "returns": 1, "fixed_states": [before]})
    again, _ = alert_after(finding, DISMISSED, seen, [returned], judged.panel, "now")
    assert (again.state, again.change, again.details["remeasured"]) == ("fixed", 0.3, {"pairs": 8})
    older = replace(mine, state=kept.OPEN)
    assert alert_after(finding, DISMISSED, seen, [older], judged.panel, "now") is None, (
        "nights have confirmed it"
    )


def test_of_several_open_alerts_of_a_series_the_one_of_the_finding_gets_the_result(night):
    """A model that has been slower since the eleventh night takes a further step on the last one."""
    _, judged, _ = night
    finding = next(f for f in judged.findings if f.metric == "backend_ms" and (f.change or 0) > 0.1)
    seen = {"pairs": 8, "ratio": 1.15, "low": 1.1, "high": 1.2}

    def after(decision, *alerts):
        return alert_after(finding, decision, seen, alerts, judged.panel, "now")

    tonight = replace(new_alert(finding, judged.panel, "then"), id=7, state=kept.SUSPECTED)
    runs = judged.panel.runs
    older = replace(
        tonight, id=5, state=kept.ACKNOWLEDGED, good_run_id=runs[9].id, bad_run_id=runs[10].id,
        details={"level_night": runs[9].started},
    )  # fmt: skip
    confirmed, _ = after(STANDS, older, tonight)
    assert (confirmed.id, confirmed.state, confirmed.details["remeasured"]) == (7, kept.CONFIRMED, seen)
    gone, _ = after(DISMISSED, older, tonight)
    assert (gone.id, gone.state) == (7, kept.DISMISSED)
    fresh, _ = after(STANDS, older)
    assert (fresh.id, fresh.state, fresh.bad_run_id) == (None, kept.CONFIRMED, runs[finding.bad].id)
    pruned = replace(older, good_run_id=None, bad_run_id=None)
    assert after(STANDS, pruned)[0].id is None

    # What later nights suspect of the series is another change than that of the night that is measured again.
    for good, level_night in ((runs[-1].id, runs[-1].started), (1000, "2026-03-01T01:00:00Z")):
        later = replace(tonight, good_run_id=good, bad_run_id=1001, details={"level_night": level_night})
        assert after(DISMISSED, later) is None
        assert after(STANDS, later)[0].id is None
    # One that has been suspected since before the panel is decided by re-measurement only.
    long_ago = replace(tonight, good_run_id=None, bad_run_id=None, details={"level_night": "2025-01-01"})
    assert after(DISMISSED, long_ago)[0].state == kept.DISMISSED
