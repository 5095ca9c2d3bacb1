"""A host that shifts in several steps, or comes back by a part; machines that measure in turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.history import alert_store as kept
from perfdash.history.queries import list_runs
from tests.detect.simulated import farm, judge_nights
from tests.stores import made_store

OPEN, OVER = ["new", "confirmed", "open"], ["new", "confirmed", "open", "fixed"]


@pytest.fixture
def quick(tmp_path):
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def stepped(*steps):
    """Compiled latency of all models times a factor from a night on, for each step."""

    def change(night, name, values):
        for at, factor in steps:
            values["backend_ms"] *= factor if night >= at else 1.0
        return {metric: values[metric] for metric in ("backend_ms", "calls_captured")}

    return change


def in_turn(nights, change):
    """Nights of a and b by turns; b is a fifth slower. `change(host, night, model)`: of a latency."""
    runs = []
    for number, night in enumerate(farm(nights)):
        host = "ab"[number % 2]
        rows = [
            replace(row, values={**row.values, "backend_ms": row.values["backend_ms"] * factor})
            for row in night.rows
            for factor in [(1.2 if host == "b" else 1.0) * change(host, number, row.case.model)]
        ]
        runs.append(replace(night, run=replace(night.run, host=host), rows=tuple(rows)))
    return runs


def alerts(store):
    """(kind, model's place or None, first night, change, states) of each alert."""
    with store.read() as connection:
        places = {run.id: place for place, run in enumerate(list_runs(connection))}
        return [
            (
                alert.kind,
                places[alert.bad_run_id],
                alert.change,
                [event.state for event in kept.events(connection, alert.id)],
            )
            for alert in kept.load(connection, states=kept.STATES)
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (((22, 1.05), (29, 1.10)), [(22, 0.049, OPEN), (29, 0.095, OPEN)]),
        (((22, 0.90), (25, 0.93)), [(22, -0.105, OPEN), (25, -0.073, OPEN)]),
        (((22, 1.10), (26, 1.08), (31, 1 / 1.08)), [(22, 0.095, OPEN), (26, 0.077, OVER)]),
        (((22, 1.10), (29, 1.03 / 1.10)), [(22, 0.095, OVER), (29, 0.03, OPEN)]),
    ],
    ids=["small, large", "large, small and close", "second undone", "back by a part"],
)
def test_each_step_of_a_host_is_told_with_its_size_and_date(quick, steps, expected):
    judge_nights(quick, farm(34, change=stepped(*steps)), first=21)
    found = alerts(quick)
    assert [(first, states) for _, first, _, states in found] == [
        (first, states) for first, _, states in expected
    ]
    assert [change for *_, change, _ in found] == pytest.approx(
        [change for _, change, _ in expected], abs=0.01
    )
    assert {kind for kind, *_ in found} == {"host"}


@pytest.mark.slow
@pytest.mark.parametrize("model", [None, "model03"], ids=["the machine", "a model on it"])
def test_what_changed_on_one_of_two_machines_stays_open_while_the_other_measures(quick, model):
    def change(host, night, name):
        return 1.1 if host == "b" and night >= 24 and name == (model or name) else 1.0

    judge_nights(quick, in_turn(36, change), first=22)
    ((kind, first, size, states),) = alerts(quick)
    assert (kind, first) == ("metric" if model else "host", 25)
    assert size == pytest.approx(0.095, abs=0.015)
    assert states[-3:] == OPEN


@pytest.mark.slow
def test_what_changed_on_both_machines_is_fixed_by_the_first_of_them(quick):
    def change(host, night, name):
        return 1.15 if 24 <= night < 32 and name == "model03" else 1.0

    judge_nights(quick, in_turn(36, change), first=22)
    ((_, first, _, states),) = alerts(quick)
    assert first == 24
    assert states[-4:] == OVER


@pytest.mark.slow
def test_where_each_night_has_a_machine_of_its_own_the_next_one_decides(quick):
    """Names of containers; one bad night."""

    def change(night, name, values):
        values["backend_ms"] *= 1.3 if night == 24 and name == "model03" else 1.0
        return {metric: values[metric] for metric in ("backend_ms", "calls_captured")}

    nights = farm(27, change=change)
    judge_nights(
        quick,
        [replace(night, run=replace(night.run, host=f"box{place}")) for place, night in enumerate(nights)],
        first=22,
    )
    ((_, first, _, states),) = alerts(quick)
    assert (first, states) == (24, ["suspected", "dismissed"])
