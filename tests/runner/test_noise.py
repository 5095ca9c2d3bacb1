"""The null: which ratios are within bounds, and how many slots it leaves."""

from dataclasses import replace

import pytest

from perfdash.records import RunInfo
from perfdash.runner import noise
from tests.runner.planned import Played, case


def test_the_worst_null_is_over_all_sessions():
    info = RunInfo("r", "t", "h", [], {}, {}, 1, "0")
    for ratio in (1.03, 1.001):
        noise.null_at_start(Played(nulls=[ratio]), case("a"), info, lambda text: None)
    assert info.noise["null"]["worst"] == pytest.approx(0.03)
    assert info.noise["null"]["start"] == [1.001] * 2


@pytest.mark.parametrize(("ratio", "loud"), [(1.176, True), (0.824, True), (1.03, False), (1.001, False)])
def test_a_null_far_out_of_bounds_is_loud_on_one_slot_too(ratio, loud):
    info, messages = RunInfo("r", "t", "h", [], {}, {}, 1, "0"), []
    noise.null_at_start(Played(nulls=[ratio]), case("a"), info, messages.append)
    warnings = [line for line in messages if line.startswith("WARNING: this machine was disturbed")]
    assert len(warnings) == loud
    assert not loud or "was off by 17.6%" in warnings[0]


@pytest.mark.parametrize(("ratios", "fine"), [([], False), ([1.0], True), ([1.03], False), ([0.97], False)])
def test_bounds(ratios, fine):
    assert noise.within_bounds(ratios) is fine
    assert noise.within_bounds([*ratios, *[1.0] * 19]) is True


def test_strict_allows_no_ratio_that_a_run_would_be_warned_of():
    assert noise.within_bounds([1.0] * 19 + [1.4])
    assert noise.within_strict_bounds([1.0] * 19 + [1.04])
    assert not noise.within_strict_bounds([1.0] * 19 + [1.4])
    assert not noise.within_strict_bounds([])


@pytest.mark.parametrize(("threads", "is_throttled"), [(1, True), (4, False)])
def test_the_throttled_share_is_of_each_threads_time(monkeypatch, threads, is_throttled):
    """The control group adds up what it kept each thread from."""
    quotas, times = iter([0.0, 0.24, 0.24, 0.24]), iter([0.0, 10.0, 20.0, 30.0])
    monkeypatch.setattr(noise.cpu_quota, "throttled_s", lambda: next(quotas))
    monkeypatch.setattr(noise.time, "monotonic", lambda: next(times))
    info, executor = RunInfo("r", "t", "h", [], {}, {}, 1, "0"), Played(slots=2)
    like = case("a")
    like = replace(like, case=replace(like.case, threads=threads))
    noise.null_at_start(executor, like, info, lambda text: None)
    assert info.noise["slots"][0].get("throttled") == (0.012 if is_throttled else None)
    assert executor.slots == (1 if is_throttled else 2)


def test_jobs_are_reduced_where_a_quota_throttles_them(monkeypatch):
    """The ratios do not show it: they are of the pairs between two interruptions."""
    throttled_s = 0.0

    class Throttled(Played):
        def null(self, like, processes, slots=None):
            nonlocal throttled_s
            throttled_s += 1e9 if self.slots > 2 and slots is None else 0.0
            return super().null(like, processes, slots)

    monkeypatch.setattr(noise.cpu_quota, "throttled_s", lambda: throttled_s)
    info, messages, executor = RunInfo("r", "t", "h", [], {}, {}, 1, "0"), [], Throttled(slots=4)
    noise.null_at_start(executor, case("a"), info, messages.append)
    assert ["throttled" in entry for entry in info.noise["slots"]] == [True, False]
    assert executor.slots == 2
    assert any("CPU quota keeps threads from running: --jobs reduced to 2" in line for line in messages)
