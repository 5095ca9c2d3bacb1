"""Alerts while the host shifts: a level is that of one night, whatever nights it is compared with."""

from __future__ import annotations

import math
from datetime import date

import pytest

from perfdash.detect.nightly_judging import judge_new
from perfdash.history import alert_store as kept
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from tests.detect.simulated import FIRST, farm, slower
from tests.stores import made_store


@pytest.fixture
def quick(tmp_path):
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def shifted(from_night, factor, change):
    """The compiled latency of all models times a factor from a night on, and a change."""

    def both(night, name, values):
        values["backend_ms"] *= factor if night >= from_night else 1.0
        values = change(night, name, values)
        return {metric: values[metric] for metric in ("backend_ms", "calls_captured")}

    return both


def judged(store, runs, first, nights=None, kind="metric"):
    """The alert of the one model that changed, with its states; each night is judged, or some `nights`."""
    take_in(store, runs[:first])
    judge_new(store, latest=1)
    for night, one in enumerate(runs[first:], first):
        take_in(store, [one])
        if nights is None or night in nights:
            judge_new(store, latest=1)
    with store.read() as connection:
        (alert,) = (one for one in kept.load(connection, states=kept.STATES) if one.kind == kind)
        states = [event.state for event in kept.events(connection, alert.id)]
        return alert, states[1:] if states[0] == "suspected" else states


OPEN = ["new", "confirmed", "open"]


@pytest.mark.parametrize(
    ("from_night", "factor", "step"), [(32, 1.06, 1.09), (32, 0.92, 1.06), (47, 1.08, 1.06), (50, 0.92, 1.06)]
)
def test_a_shift_of_the_host_fixes_no_regression_once_it_is_dated(quick, from_night, factor, step):
    runs = farm(56, change=shifted(from_night, factor, slower("model05", 44, step)))
    alert, states = judged(quick, runs, first=44)
    assert states == OPEN
    assert alert.after / alert.before == pytest.approx(step, abs=0.02)


@pytest.mark.parametrize(("from_night", "factor"), [(32, 1.06), (32, 0.92), (47, 1.08)])
@pytest.mark.slow
def test_a_regression_is_fixed_where_the_host_has_shifted(quick, from_night, factor):
    runs = farm(58, change=shifted(from_night, factor, slower("model05", 44, 1.09, until=52)))
    _, states = judged(quick, runs, first=44)
    assert states == [*OPEN, "fixed"]


def is_sunday(night):
    return date.fromordinal(FIRST.toordinal() + night).isoweekday() == 7


@pytest.mark.parametrize("factor", [1.06, 0.92])
@pytest.mark.slow
def test_the_longer_history_of_a_sunday_fixes_no_regression(quick, factor):
    """Of 94 nights most are after the shift of the host, of 200 nights most before it."""
    runs = farm(146, change=shifted(84, factor, slower("model05", 138, 1.09)))
    assert any(is_sunday(night) for night in range(142, 146))
    _, states = judged(quick, runs, first=138)
    assert states == OPEN


@pytest.mark.slow
def test_a_drift_that_a_sunday_shows_stays_on_the_days_after_it(quick):
    def drift(night, name, values):
        values["backend_ms"] *= 1 + 0.0003 * night if name == "model06" else 1.0
        return values

    runs = farm(150, noise=0.005, change=shifted(90, 0.88, drift))
    (sunday,) = (night for night in range(138, 145) if is_sunday(night))
    _, states = judged(quick, runs[: sunday + 5], first=sunday, kind="drift")
    assert states == ["new"]


@pytest.mark.slow
def test_a_drift_is_confirmed_and_gets_its_present_size_a_week_later(quick):
    def drift(night, name, values):
        values["backend_ms"] *= 1 + 0.0005 * night if name == "model06" else 1.0
        return values

    sundays = [night for night in range(90, 110) if is_sunday(night)]
    runs = farm(sundays[2] + 1, noise=0.005, change=shifted(200, 1.0, drift))
    first, _ = judged(quick, runs[: sundays[0] + 1], first=sundays[0], kind="drift")
    later, states = judged(quick, runs, first=sundays[0] + 1, nights=sundays[1:], kind="drift")
    assert states == OPEN
    assert later.change == pytest.approx(first.change + 14 * 0.0005, abs=0.003)
    assert later.after / later.before == pytest.approx(math.exp(later.change))
    assert later.before == pytest.approx(first.before, rel=0.01)
    for name in ("good_run_id", "bad_run_id"):
        assert getattr(later, name) == getattr(first, name)
    assert later.details["born_run_id"] == first.bad_run_id


@pytest.mark.slow
def test_a_drift_that_ended_keeps_its_size_when_its_first_nights_are_not_read_any_more(quick):
    """The host shifts meanwhile, and the level before with it."""

    def drift(night, name, values):
        values["backend_ms"] *= 1 + 0.0008 * max(0, min(night, 180) - 60) if name == "model06" else 1.0
        return values

    runs = farm(319, noise=0.005, change=shifted(230, 0.9, drift))
    sundays = [night for night in range(190, 319) if is_sunday(night)]
    first, _ = judged(quick, runs[: sundays[0] + 1], first=sundays[0], kind="drift")
    later, states = judged(quick, runs, first=sundays[0] + 1, nights=sundays[1::3], kind="drift")
    assert (states[:3], set(states[3:])) == (OPEN, {"open"})
    assert later.change == pytest.approx(math.log(1 + 0.0008 * 120), abs=0.01)
    assert later.after / later.before == pytest.approx(math.exp(later.change))
    assert later.before == pytest.approx(0.9 * first.before, rel=0.01)


@pytest.mark.slow
def test_an_alert_has_its_levels_of_a_later_night_before_its_own_is_not_read_any_more(quick):
    """A regression that is open for months, while the host gets faster."""
    runs = farm(175, change=shifted(70, 0.92, slower("model05", 28, 1.06)))
    alert, states = judged(
        quick, runs, first=28, nights={*range(28, 36), *range(50, 160, 12), *range(170, 175)}
    )
    assert states == OPEN
    assert alert.after / alert.before == pytest.approx(1.06, abs=0.02)
    with quick.read() as connection:
        days = [line.started[:10] for line in list_runs(connection)]
        (bad,) = list_runs(connection, ids=[alert.bad_run_id])
    assert days.index(alert.details["level_night"][:10]) > 80
    assert abs(days.index(bad.started[:10]) - 28) <= 2


@pytest.mark.parametrize(
    ("factor", "until", "expected"),
    [(0.92, 10**6, OPEN), (1.08, 100, [*OPEN, "fixed"])],
    ids=["faster", "slower, repaired"],
)
@pytest.mark.parametrize("fails", [True, False], ids=["fails", "is not measured"])
@pytest.mark.slow
def test_the_host_shifts_while_a_model_with_a_regression_is_away_for_months(
    quick, factor, until, expected, fails
):
    away = range(40, 150)

    def change(night, name, values):
        values = shifted(70, factor, slower("model05", 28, 1.06, until=until))(night, name, values)
        return None if name == "model05" and night in away and not fails else values

    def statuses(night, name):
        return "crash" if name == "model05" and night in away else "pass"

    runs = farm(157, change=change, statuses=statuses)
    nights = {*range(28, 37), *range(50, 150, 12), *range(150, 157)}
    _, states = judged(quick, runs, first=28, nights=nights)
    assert states == expected


@pytest.mark.slow
def test_a_model_that_comes_back_when_the_host_of_its_alert_is_forgotten_leaves_the_alert_open(quick):
    def change(night, name, values):
        values = shifted(140, 0.92, slower("model05", 28, 1.06))(night, name, values)
        return None if name == "model05" and 40 <= night < 240 else values

    runs = farm(246, change=change)
    nights = {*range(28, 37), *range(50, 240, 14), *range(240, 246)}  # none of 50 to 240 is a Sunday
    _, states = judged(quick, runs, first=28, nights=nights)
    assert states == OPEN


@pytest.mark.parametrize("ends", [150, 230], ids=["a Sunday reads it", "not read"])
@pytest.mark.slow
def test_a_shift_of_the_host_that_is_undone_when_it_is_not_read_any_more_is_fixed(quick, ends):
    """A regression of those months stays open."""
    begins = 28

    def change(night, name, values):
        values = slower("model05", ends - 60, 1.08)(night, name, values)
        values["backend_ms"] *= 1.1 if begins <= night < ends else 1.0
        return {metric: values[metric] for metric in ("backend_ms", "calls_captured")}

    nights = {
        *range(28, 34),
        *range(60, ends - 60, 20),
        *range(ends - 60, ends - 52),
        *range(ends - 2, ends + 10),
    }
    assert any(is_sunday(night) for night in range(ends + 1, ends + 10))
    alert, states = judged(quick, farm(ends + 10, change=change), first=28, nights=nights, kind="host")
    assert (alert.direction, states) == (1, [*OPEN, "fixed"])
    with quick.read() as connection:
        metrics = [one for one in kept.load(connection, states=kept.STATES) if one.kind == "metric"]
    assert [one.state for one in metrics if one.change > 0.05] == ["open"]


def shifted_for_a_time(nights, factor, change):
    """The compiled latency of all models times a factor on some nights, and a change."""

    def both(night, name, values):
        values["backend_ms"] *= factor if night in nights else 1.0
        values = change(night, name, values)
        return {metric: values[metric] for metric in ("backend_ms", "calls_captured")}

    return both


@pytest.mark.parametrize(
    ("until", "expected"), [(10**6, OPEN), (80, [*OPEN, "fixed"])], ids=["stays", "is repaired"]
)
@pytest.mark.parametrize("factor", [1.1, 0.9])
@pytest.mark.slow
def test_a_shift_of_the_host_that_ends_leaves_a_regression_of_its_nights_open(quick, factor, until, expected):
    change = shifted_for_a_time(range(40, 72), factor, slower("model05", 60, 1.08, until=until))
    nights = {*range(38, 44), 50, *range(60, 66), *range(70, 88)}
    alert, states = judged(quick, farm(88, change=change), first=38, nights=nights)
    assert states == expected
    with quick.read() as connection:
        days = [run.started for run in list_runs(connection)]
        (bad,) = list_runs(connection, ids=[alert.bad_run_id])
    assert days.index(bad.started) == pytest.approx(60, abs=2)
    assert alert.after / alert.before == pytest.approx(1.08, abs=0.02)


@pytest.mark.slow
def test_levels_do_not_become_those_of_a_night_with_a_shift_of_the_host_that_ended(quick):
    """Those nights are left out until the first of them is not read any more."""
    change = shifted_for_a_time(range(40, 84), 0.9, slower("model05", 36, 1.08))
    nights = {*range(36, 46), 60, 75, *range(83, 88), 100, 120, *range(135, 140)}
    _, states = judged(quick, farm(140, change=change), first=36, nights=nights)
    assert states == OPEN
