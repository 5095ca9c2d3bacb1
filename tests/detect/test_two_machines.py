"""Two machines of a class beside each other: what only one of them shows is one alert."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.detect.curation import exclude
from perfdash.detect.nightly_judging import judge_new
from perfdash.history import alert_store
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from tests.detect.simulated import begin, farm, judge_nights, on_second_machine, slower
from tests.stores import made_store


@pytest.fixture
def quick(tmp_path):
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def alerts(store):
    """The kind and the states of each alert that there was."""
    with store.read() as connection:
        return [
            (alert.kind, [event.state for event in alert_store.events(connection, alert.id)])
            for alert in alert_store.load(connection, states=alert_store.STATES)
        ]


def nights_of_two(count, kind, broken):
    """Pairs of runs; model03 fails in the nights of the first and of the second machine of `broken`."""

    def runs_of(nights):
        def is_broken(night, name):
            return name == "model03" and night in nights

        def statuses(night, name):
            return "crash" if kind == "status" and is_broken(night, name) else "pass"

        def change(night, name, values):
            if kind == "vanished" and is_broken(night, name):
                return None
            return {**values, "graph_breaks": 2.0 * (kind == "count" and is_broken(night, name))}

        return farm(count, 4, statuses=statuses, change=change)

    first, second = map(runs_of, broken)
    return [(run, on_second_machine(other)) for run, other in zip(first, second, strict=True)]


def judge_first_last(store, nights):
    """The first of two machines that measure side by side ends last: the other one is judged before it."""
    judged = []
    for first, second in nights:
        for run in (second, first):
            take_in(store, [run])
            judged += judge_new(store)
    return judged


KINDS = pytest.mark.parametrize("kind", ["status", "count", "vanished"])


@KINDS
@pytest.mark.parametrize(
    "broken",
    [(range(4, 7), ()), ((), range(4, 7)), (range(4, 7), range(4, 7)), (range(4, 6), range(4, 9))],
    ids=["on the first", "on the second", "on both", "on both, the first is mended sooner"],
)
def test_a_failure_is_one_alert_where_one_machine_is_always_judged_late(quick, kind, broken):
    nights = nights_of_two(11, kind, broken)
    begin(quick, [run for night in nights[:4] for run in night])
    judged = judge_first_last(quick, nights[4:])
    assert alerts(quick) == [(kind, ["new", "confirmed", "open", "fixed"])]
    assert [run.later for run in judged] == [name for _, run in nights[4:] for name in (None, run.run.name)]
    assert [run.was_beside for run in judged] == [False, True] * 7
    with quick.read() as connection:
        (alert,) = alert_store.load(connection, states=alert_store.STATES)
        (bad,) = list_runs(connection, ids=[alert.bad_run_id])
    first, second = nights[4]
    assert bad.name == (first if broken[0] else second).run.name


@pytest.mark.slow
def test_a_late_run_raises_no_alert_of_a_number(quick):
    first = farm(30, change=slower("model03", 25, 1.3))
    second = [on_second_machine(night) for night in farm(30, seed=1)]
    nights = list(zip(first, second, strict=True))
    begin(quick, [run for night in nights[:25] for run in night])
    judge_first_last(quick, nights[25:])
    assert alerts(quick) == []


def test_nights_of_a_machine_that_come_after_those_of_the_other_raise_no_alert(quick):
    nights = nights_of_two(9, "status", (range(4, 7), ()))
    begin(quick, [run for night in nights[:4] for run in night])
    for _, second in nights[4:]:
        take_in(quick, [second])
        judge_new(quick)
    take_in(quick, [first for first, _ in nights[4:]])
    assert [run.was_beside for run in judge_new(quick)] == [False] * 4 + [True]
    assert alerts(quick) == []


def test_an_alert_that_a_late_run_confirmed_outlasts_the_run_that_raised_it(quick):
    nights = nights_of_two(7, "status", (range(4, 7), range(4, 7)))
    begin(quick, [run for night in nights[:4] for run in night])
    judge_first_last(quick, nights[4:6])
    exclude(quick, nights[4][1].run.name, "another build")
    judge_new(quick)
    judge_first_last(quick, nights[6:])
    with quick.read() as connection:
        assert [alert.state for alert in alert_store.load(connection, states=alert_store.STATES)] == ["open"]


@KINDS
@pytest.mark.parametrize("fails_on", [0, 1])
def test_a_failure_of_one_of_two_machines_is_one_alert(quick, kind, fails_on):
    """The other one, which passes each night, neither dismisses nor fixes it."""
    nights = nights_of_two(8, kind, (range(4, 7), ()) if fails_on == 0 else ((), range(4, 7)))
    judge_nights(quick, [run for night in nights for run in night], first=8)
    assert alerts(quick) == [(kind, ["new", "confirmed", "open", "fixed"])]


def test_a_failure_of_one_night_of_one_of_two_machines_is_dismissed_by_its_next_night(quick):
    nights = [run for night in nights_of_two(6, "status", ([4], ())) for run in night]
    judge_nights(quick, nights[:10], first=8)
    assert alerts(quick) == [("status", ["new"])]
    take_in(quick, nights[10:11])
    judge_new(quick)
    assert alerts(quick) == [("status", ["new", "dismissed"])]


@pytest.mark.parametrize(
    ("machines", "broken", "states"),
    [
        (5, range(6, 8), ["new", "confirmed", "fixed"]),
        (2, range(6, 8), ["new", "confirmed", "fixed"]),
        (2, range(6, 12, 2), ["new", "confirmed", "open"]),
    ],
    ids=["torch, five in turn", "torch, two in turn", "one of two in turn"],
)
def test_a_failure_where_machines_measure_in_turn_is_one_alert(quick, machines, broken, states):
    """A failure of torch ends on the first night that passes, whichever machine measured it."""

    def statuses(night, name):
        return "crash" if name == "model03" and night in broken else "pass"

    nights = [
        replace(night, run=replace(night.run, host=f"farm-{place % machines}"))
        for place, night in enumerate(farm(12, 4, statuses=statuses))
    ]
    judge_nights(quick, nights[:6], first=6)
    seen = []
    for night in nights[6:]:
        take_in(quick, [night])
        judge_new(quick)
        seen.append([of_alert for _, of_alert in alerts(quick)])
    assert seen[-1] == [states]
    if states[-1] == "fixed":
        assert seen[2] == [states]


@pytest.mark.parametrize(
    ("machine", "nights_away", "expected"),
    [
        ("a", (7, 8, 9), ["new", "confirmed", "open"]),
        ("b", (8,), ["new", "confirmed", "open"]),
        ("b", range(8, 12), ["new", "confirmed", "fixed"]),
    ],
    ids=["the one that passes", "the one that fails", "the one that fails, for good"],
)
def test_a_machine_that_was_away_for_a_night_ends_no_alert(quick, machine, nights_away, expected):
    """Of two machines `b` fails each night. Without it an alert ends after two more nights that pass."""

    def statuses(night, name):
        return "crash" if name == "model03" and night >= 6 else "pass"

    fails, passes = farm(12, 4, statuses=statuses), farm(12, 4)
    begin(quick, passes[:6])
    for number in range(6, 12):
        for host, nights in (("a", passes), ("b", fails)):
            if host == machine and number in nights_away:
                continue
            night = nights[number]
            started = night.run.started.replace("T01", "T01" if host == "a" else "T02")
            run = replace(
                night.run, host=host, name=f"{host}{number}", uid=f"{host}{number}", started=started
            )
            take_in(quick, [replace(night, run=run)])
            judge_new(quick)
    assert [states for kind, states in alerts(quick) if kind == "status"] == [expected]
