"""Instances at once: their figures, the counting of calls, and real processes on this machine's cores."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import pytest

from perfdash.records import Case, Job, Sampling
from perfdash.worker import instances
from tests.conftest import HERE


def test_throughput_is_the_sum_and_the_slowest_is_named():
    answers = [
        {"calls": 100, "seconds": 2.0, "median_ms": 20.0},
        {"calls": 50, "seconds": 2.5, "median_ms": 45.0},
    ]
    faster = [
        {**answer, "calls": answer["calls"] * 2, "median_ms": answer["median_ms"] / 2} for answer in answers
    ]
    figures = instances.figures({"eager": answers, "backend": faster}, batch_size=8)
    assert figures["eager"] == {"throughput": 8 * (50 + 20), "slowest_ms": 45.0, "median_ms": [20.0, 45.0]}
    assert figures["backend"]["slowest_ms"] == 22.5
    assert figures["speedup"] == 2.0


def test_calls_are_counted_while_all_instances_run():
    now, calls = [0.0], []

    def step() -> None:
        calls.append(now[0])
        now[0] += 0.25

    counted = instances.count_calls(step, lambda: None, 2.0, clock=lambda: now[0])
    assert counted == {"calls": 8, "seconds": 2.0, "median_ms": 250.0}
    assert len(calls) == 12, "two before and two after are not counted"


def test_an_instance_ends_although_its_model_left_a_process(monkeypatch):
    """A pool of multiprocessing, say, holds all that the instance has open."""
    script = """if True:
        import json, os, time
        pid = os.fork()
        if pid:
            print(json.dumps({"left": pid}), flush=True)
        time.sleep(60)
    """
    monkeypatch.setattr(instances, "_START", script)
    start = time.monotonic()
    with instances._Instance(Job(Case("own", "plain"), "python", "file.py:plain"), [0]) as instance:
        left = instance.answer()["left"]
    os.kill(left, signal.SIGKILL)
    assert time.monotonic() - start < 30


@pytest.mark.slow
def test_two_processes_run_the_case_at_once(tmp_path):
    core = min(os.sched_getaffinity(0))
    job = Job(
        case=Case("own", "plain", batch_size=4, backend="aot-eager"),
        loader="python",
        target=f"{HERE / 'truth' / 'shape_models.py'}:plain",
        scratch=str(tmp_path),
        sampling=Sampling(),
        instance_cores=((core,), (core,)),
        bind_memory=False,
    )
    figures = instances.run_at_once(job, seconds=0.2)
    assert "failed" not in figures
    assert figures["count"] == 2
    assert figures["backend"]["throughput"] > 0
    assert figures["eager"]["slowest_ms"] == max(figures["eager"]["median_ms"])
    alone = replace(job, target="/no/such/file.py:plain", instance_cores=((core,),))
    broken = instances.run_at_once(alone, seconds=0.2)
    assert "file.py" in broken["failed"]
