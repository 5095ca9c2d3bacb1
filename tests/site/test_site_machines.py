"""Change points on the site where several machines of a class measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.history.ingest import take_in
from perfdash.history.results import Imported
from perfdash.site.testbed_history import beds, read_history
from perfdash.site.timeline import case_changes
from tests.detect.simulated import farm
from tests.stores import made_store

NIGHTS, STEP = 60, 40
LATENCIES = ("eager_ms", "backend_ms")


def on_machines(machine_of, stepped="model03"):
    """Nights on several machines; `b` is 5 % slower, and the compiled side of a model 8 % from STEP on."""

    def change(night, name, values):
        for metric in LATENCIES:
            values[metric] *= 1.05 if machine_of(night) == "b" else 1.0
        if name == stepped and night >= STEP:
            values["backend_ms"] *= 1.08
        return values

    runs = farm(NIGHTS, 6, change=change, noise=0.005)
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
