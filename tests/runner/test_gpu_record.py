"""Figures of cases on a GPU, from the events of a worker and what the GPU's monitor reports."""

from dataclasses import replace

import pytest

from perfdash.records import Status
from perfdash.runner.case_status import is_worth_a_retry
from perfdash.runner.messages import Answer, ProcessOutcome
from perfdash.runner.result_record import assemble
from tests.runner.planned import MB, PLANNED, events


def on_gpu(script, gpu=None, **change):
    """The result of a case on a GPU, from its process's events and the facts of its GPU's monitor."""
    return record(replace(PLANNED, case=replace(PLANNED.case, device="cuda"), **change), script, gpu)


def record(planned, script, gpu=None):
    answer = Answer([ProcessOutcome(script, status=0)], "t", 9.0, 0.0, {}, gpu=gpu or {})
    return assemble(planned, answer, "steady")


def test_a_fault_of_the_gpu_is_the_machines_whatever_was_measured():
    for script in (events(), events(upto="phase compile")):
        result = on_gpu(script, {"uuid": "GPU-1", "xids": [79]})
        assert (result.status, result.error.type) == (Status.INFRA_ERROR, "GpuError")
        assert is_worth_a_retry(result, neighbours=False)
        assert result.conditions["gpu_readings"] == {"xids": [79]}
    assert on_gpu(events(), {"xids": [31], "ecc_errors": 0}).status is Status.PASS


@pytest.mark.parametrize("phase", ["load", "eager", "compile"])
def test_memory_that_others_hold_is_no_fault_of_the_model(phase):
    failed = {
        "event": "failed", "status": "oom" if phase == "compile" else "eager_oom", "phase": phase,
        "type": "OutOfMemoryError", "message": "CUDA out of memory. Tried to allocate 2.00 GiB",
    }  # fmt: skip
    script = [*events(upto=f"phase {phase}"), failed]
    result = on_gpu(script, {"other_processes": 1})
    assert (result.status, result.error.type) == (Status.INFRA_ERROR, "SharedGpu")
    assert result.error.message.startswith("1 process of other programs held memory of the GPU: CUDA out of")
    assert is_worth_a_retry(result, neighbours=False)
    for alone in (0, None):
        assert on_gpu(script, {"other_processes": alone}).status == failed["status"]
    assert on_gpu([*script[:-1], {**failed, "status": "fail_to_run"}], {"other_processes": 1}).status == (
        Status.FAIL_TO_RUN
    )


def test_the_hosts_memory_has_nothing_to_do_with_who_uses_the_gpu():
    killed = ProcessOutcome(events(upto="phase compile"), status=9, oom_killed="limit")
    planned = replace(PLANNED, case=replace(PLANNED.case, device="cuda"))
    answer = Answer([killed], "t", 9.0, 0.0, {}, gpu={"other_processes": 2})
    assert assemble(planned, answer, "steady").status is Status.OOM


def timed(seconds=1.0, **more):
    """The latency of 40 pairs without CPU times, the first of which begins at 100 s."""
    none = [None] * 40
    return events(
        times_s=[100 + seconds * pair for pair in range(41)], eager_cpu_ns=none, backend_cpu_ns=none, **more
    )


def test_pairs_while_the_gpu_was_not_the_cases_alone_do_not_count():
    result = on_gpu(timed(), {"trouble": [[99.0, 104.5, "heat"]]})
    assert result.conditions["clean_pairs"] == [35]
    assert result.eager_ms.n == 35
    assert "disturbed" not in result.conditions
    result = on_gpu(timed(), {"trouble": [[99.0, 130.0, "2 other processes on the GPU"]]})
    assert result.conditions["disturbed"] == "during 75% of the pairs: 2 other processes on the GPU"
    assert "too few clean pairs" in result.notes[-1]
    assert on_gpu(timed(), {"trouble": []}).conditions["clean_pairs"] == [40]


def test_sizes_are_of_the_pairs_that_the_gpu_was_the_cases_alone():
    """Heat doubles the dynamic artefact's latency during half of the pairs, beside eager and static ones."""
    static = [[1e6]] * 40
    spoilt = [[4e6] if pair < 20 else [2e6] for pair in range(40)]
    script = timed(parts=["batch 2"], eager_parts_ns=[[4e6]] * 40, backend_parts_ns=spoilt)
    sizes = {
        "event": "sizes", "of": "batch", "sizes": [2], "first": {"batch 2": {"seconds": 1.0, "graphs": 1}},
        "static": {"first_s": {"batch 2": 1.0}, "static_ns": static, "dynamic_ns": spoilt,
                   "clean": [True] * 40, "times_s": [200.0 + pair for pair in range(41)]},
    }  # fmt: skip
    trouble = [[99.0, 119.5, "heat"], [199.0, 219.5, "2 other processes on the GPU"]]
    result = on_gpu([*script[:-1], sizes, script[-1]], {"trouble": trouble})
    figures = result.sizes["by_size"]["batch 2"]
    assert (figures["speedup"]["value"], figures["cost"]["value"]) == pytest.approx((2.0, 2.0))
    assert result.parts_ms["backend"]["batch 2"]["median"] == figures["backend_ms"] == 2.0


def test_the_steps_of_a_part_are_not_known_where_only_the_runner_knows_which_pairs_count():
    rows = [[1e6, 5e6]] * 40
    steps = {"eager_steps_ns": [2e6, 3e6], "backend_steps_ns": [2e6, 3e6]}
    script = timed(parts=["prefill", "decode"], eager_parts_ns=rows, backend_parts_ns=rows, **steps)
    decode = on_gpu(script, {"trouble": [[99.0, 104.5, "heat"]]}).parts_ms["backend"]["decode"]
    assert (decode["n"], "steps" in decode) == (35, False)
    decode = on_gpu(script, {"trouble": [[50.0, 99.0, "heat"]]}).parts_ms["backend"]["decode"]
    assert (decode["n"], decode["steps"]["slowest_at"]) == (40, 2)


def test_only_trouble_during_the_pairs_is_why_they_do_not_count():
    trouble = [[90.0, 99.0, "cold"], [99.0, 130.0, "heat"], [150.0, 160.0, "2 other processes on the GPU"]]
    assert on_gpu(timed(), {"trouble": trouble}).conditions["disturbed"] == "during 75% of the pairs: heat"


def test_what_launching_costs_stands_beside_what_the_gpu_does():
    account = {"kernels": 300, "copies": 0, "launches": 300, "graph_launches": 0, "gpu_busy_ms": 1.5}
    accounts = {"eager": account, "backend": {"error": "no profiler"}}
    more = {"launch_ns": {"eager": 4e6, "backend": 5e5}, "accounts": accounts}
    work = on_gpu(events(**more)).conditions["gpu_work"]
    assert work == {
        "eager": {**account, "launch_ms": 4.0},
        "backend": {"error": "no profiler", "launch_ms": 0.5},
    }
    assert "gpu_work" not in record(PLANNED, events()).conditions


def test_the_record_of_a_gpu_names_its_tf32_setting():
    assert on_gpu(events()).conditions["tf32"] is False
    assert on_gpu(events(upto="phase compile"), tf32=True).conditions["tf32"] is True
    assert "tf32" not in record(PLANNED, events()).conditions


@pytest.mark.parametrize("side", ["eager", "backend"])
def test_memory_that_grows_on_a_gpu_has_no_compiled_peak(side):
    """The allocator's peak has all that the timed calls of either side kept, in this process."""
    script = events()
    sides = {"eager": script[4]["memory"], "backend": script[-2]}
    for figures in sides.values():
        figures |= {"peak_bytes": 900 * MB, "grown_bytes": MB // 2}
    assert on_gpu(script).compression_ratio == 1.0
    sides[side]["grown_bytes"] = MB
    result = on_gpu(script)
    assert (result.eager_peak_bytes, result.backend_peak_bytes) == (900 * MB, None)
    assert result.compression_ratio is None
    (note,) = result.notes
    assert note.startswith("memory grows with every call: ")
    assert note.endswith(
        "the compiled side's peak is not known, because it contains what the timed calls kept"
    )
