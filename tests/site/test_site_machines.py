"""Change points, heat map and a cause's chart where several machines of a class measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.history.ingest import take_in
from perfdash.history.results import Imported
from perfdash.site import testbed_history
from perfdash.site.cause_page import open_causes
from perfdash.site.suite_heat_map import heat_lines, heat_nights
from perfdash.site.testbed_history import beds, read_history
from perfdash.site.timeline import case_changes
from tests.detect.simulated import farm, judge_nights
from tests.stores import made_store

NIGHTS, STEP = 60, 40
LATENCIES = ("eager_ms", "backend_ms")


def on_machines(machine_of, stepped=("model03",), factor=1.08, *, of_b=1.05, models=6):
    """Nights on several machines; `b` takes `of_b` times as long, `stepped` models `factor` from STEP on."""

    def change(night, name, values):
        for metric in LATENCIES:
            values[metric] *= of_b if machine_of(night) == "b" else 1.0
        if name in stepped and night >= STEP:
            values["backend_ms"] *= factor
        return values

    runs = farm(NIGHTS, models, change=change, noise=0.005)
    return [
        Imported(replace(one.run, host=machine_of(night), uid=f"{one.run.uid} {machine_of(night)}"), one.rows)
        for night, one in enumerate(runs)
    ]


def marks(tmp_path, runs):
    """The lasting changes that the pages of the models mark: model, metric, night, change."""
    with made_store(tmp_path / "history.db") as store:
        take_in(store, runs)
        with store.read() as connection:
            (bed,) = beds(connection)
            history = read_history(connection, bed)
    place = {run.name: night for night, run in enumerate(history.recent)}
    return [
        (history.cases[number].model, event.metric, place[event.run], event.text)
        for number in history.row
        for event in case_changes(history, number)
        if event.kind == "change"
    ]


@pytest.mark.parametrize(
    "machine_of",
    [lambda night: "a" if night < 30 else "b", lambda night: "ab"[night % 2]],
    ids=["moved", "in turn"],
)
def test_another_machine_of_the_class_is_no_change_and_a_step_is_marked_once(tmp_path, machine_of):
    (mark,) = marks(tmp_path, on_machines(machine_of))
    assert mark[:2] == ("model03", "backend_ms")
    assert abs(mark[2] - STEP) <= 2
    assert float(mark[3].split("latency +")[1].split("%")[0]) == pytest.approx(8, abs=1)


def test_names_that_change_every_night_are_one_machine(tmp_path):
    (mark,) = marks(tmp_path, on_machines(lambda night: f"container{night}"))
    assert mark[:3] == ("model03", "backend_ms", STEP)


def heat(tmp_path, runs):
    """The rows of the heat map by model."""
    with made_store(tmp_path / "history.db") as store:
        take_in(store, runs)
        with store.read() as connection:
            (bed,) = beds(connection)
            history = read_history(connection, bed)
    numbers = list(history.row)
    lines, _ = heat_lines(history, numbers, heat_nights(history, numbers), False, {})
    return {line.label: line for line in lines}


def test_another_machine_colours_nothing_in_the_heat_map(tmp_path):
    runs = on_machines(lambda night: "a" if night < 45 else "b", (), of_b=1.08)
    lines = heat(tmp_path, runs)
    assert len(lines) == 6
    for line in lines.values():
        assert line.ratios == pytest.approx([1.0] * NIGHTS, abs=0.03)


def test_machines_that_measure_in_turn_hide_no_change_in_the_heat_map(tmp_path):
    lines = heat(tmp_path, on_machines(lambda night: "ab"[night % 2], of_b=1.2))
    slower = lines["model03"]
    assert slower.ratios[STEP:] == pytest.approx([1 / 1.08] * (NIGHTS - STEP), abs=0.03)
    assert max(line.spread for line in lines.values()) < 0.01


def test_the_chart_of_a_cause_is_at_the_level_of_one_machine(tmp_path):
    """An improvement looked worse once a slower machine took over."""
    better = ("model03", "model04", "model05")
    runs = on_machines(lambda night: "a" if night < 48 else "b", better, 0.92, of_b=1.12, models=24)
    with made_store(tmp_path / "history.db") as store:
        judge_nights(store, runs)
        with store.read() as connection:
            views, _ = open_causes(connection, testbed_history.testbeds_with_runs(connection))
    (view,) = [view for view in views if view.lines]
    assert {change.case.model for change in view.members} == set(better)
    assert view.lines.median[:STEP] == pytest.approx([1.0] * STEP, abs=0.02)
    after = [value for value in view.lines.median[STEP:] if value is not None]
    assert after == pytest.approx([0.92] * len(after), abs=0.02)
