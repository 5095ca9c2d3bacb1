"""How a run's cases are measured again: on which slots, without its instances."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfdash import topology
from perfdash.detect import confirmation
from perfdash.detect.findings import Finding
from perfdash.records import Case
from perfdash.runner import remeasurement
from perfdash.runner.cores import by_slots, slots_of
from perfdash.runner.messages import options_of
from perfdash.runner.remeasurement import settings_of_run
from perfdash.topology import PhysicalCore
from tests.runner.planned import case
from tests.stores import made_store

SOCKET = replace(case("m"), case=Case("s", "m", threads=4, settings='{"bind_memory":true}'))


@pytest.fixture
def two_sockets(monkeypatch):
    """Eight cores; the sockets number theirs in turns."""
    made = [PhysicalCore((core,), core % 2, core % 2) for core in range(8)]
    monkeypatch.setattr(
        topology, "available", lambda asked: [core for core in made if core.first in (asked or range(8))]
    )


def test_a_run_with_instances_is_measured_again_one_process_at_a_time(two_sockets):
    ran = {"instances": "2x1", "threads": 1, "cores": "0,1", "bind_memory": True}
    settings = settings_of_run(ran)
    assert options_of(settings).instance_cores == ()
    assert (settings.threads, settings.bind_memory, settings.cores) == (1, True, None)


def test_a_run_of_a_cluster_is_measured_again_on_this_machine():
    settings = settings_of_run({"executor": "dask", "scheduler": "tcp://host:8786", "threads": 1})
    assert (settings.executor, settings.scheduler) == ("local", None)
    assert len(slots_of(settings)) == 1


def test_bound_threads_of_a_whole_socket_are_measured_again_on_one(two_sockets):
    settings = settings_of_run({"threads": 4, "bind_memory": True, "cores": "1,3,5,7"})
    assert settings.cores == "1,3,5,7"
    assert settings_of_run({"threads": 2, "bind_memory": True}, cores="0,2").cores == "0,2"
    assert settings_of_run({"threads": 4}).cores is None


def test_cases_of_a_configuration_are_measured_again_bound_to_their_socket(two_sockets):
    settings = settings_of_run({"jobs": 3}, jobs="2")
    groups = by_slots(settings, [case("own"), SOCKET, case("other")])
    assert [places for _, places in groups] == [[0, 2], [1]]
    own, bound = (group for group, _ in groups)
    assert own == settings
    assert (bound.threads, bound.bind_memory, bound.cores, bound.jobs) == (4, True, "1,3,5,7", 1)


class _Slots:
    """Measures each case with one pair."""

    def __init__(self, *_):
        pass

    def introduce(self, planned):
        return {side: {"worker": {}} for side in ("old", "new")}

    def measure(self, left, is_enough, save, budget=None):
        for each in left:
            save(each, [])


@pytest.fixture
def remeasure(tmp_path, monkeypatch):
    """Measure one suspected case again; what it takes is the store and `decided`."""
    for name in ("options_of", "beside", "slots_of", "gpus_of", "compile_cores", "when_free"):
        monkeypatch.setattr(remeasurement, name, lambda *_, **__: None)
    monkeypatch.setattr(remeasurement, "away_from", lambda _: nullcontext())
    monkeypatch.setattr(remeasurement, "PairedSlots", _Slots)
    monkeypatch.setattr(remeasurement, "_measured_before", lambda judged, findings, *_: findings)
    monkeypatch.setattr(confirmation, "decide", lambda *_: (confirmation.STANDS, None))
    monkeypatch.setattr(confirmation, "alert_after", lambda *_: None)
    slower, measured = Finding("metric", 1, "backend_ms", 1, 0, 1, change=0.1), case("m")
    judged = SimpleNamespace(run=SimpleNamespace(testbed_id=1), panel=None)
    settings = SimpleNamespace(wait=None, python="python")

    def remeasure(store, decided):
        of_case = {measured.case: [slower]}
        return remeasurement.remeasure(
            store, judged, tmp_path, settings, "good", [measured], of_case, None, None, decided, str
        )

    return remeasure


def test_others_may_write_while_a_decision_is_shown(tmp_path, remeasure):
    """The terminal may be stopped, and PostgreSQL ends a transaction that waits for it."""
    shown = []

    def show(decision):
        with closing(sqlite3.connect(tmp_path / "history.db", timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
        shown.append(decision.word)

    with made_store(tmp_path / "history.db") as store:
        confirmed = remeasure(store, show)
    assert (confirmed, shown) == (1, [confirmation.STANDS])


def test_a_second_ctrl_c_does_not_stop_the_ending_of_what_is_under_way(remeasure, monkeypatch):
    """CONFIRM_MINUTES' time limit passes on what the whole group got."""
    ended = []

    def interrupted(*_, **__):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            ended.append("the pair under way")

    monkeypatch.setattr(_Slots, "measure", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            remeasure(None, None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended
