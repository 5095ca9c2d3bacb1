"""What is seen of a GPU while a case is measured, with a stand-in of NVML."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from perfdash.runner.gpu_monitor import (
    GpuMonitor,
    GpuReading,
    fault,
    open_monitor,
    other_processes,
    sharing_warning,
    spans_of_trouble,
    summary,
)
from perfdash.runner.gpus import Nvml
from tests.runner.nvml import Library

ANSWERS = {
    "ClockInfo": lambda kind: {"sm": 1980, "mem": 3201}[kind],
    "PowerUsage": 401_500,
    "Temperature": 61,
    "CurrentClocksThrottleReasons": 0x4,  # a driver without the newer name
    "ComputeRunningProcesses": lambda: [SimpleNamespace(pid=os.getpid())],
}
LATENCY = {"event": "phase", "name": "latency"}
END = {"event": "phase_end", "name": "latency", "seconds": 1.0}


def monitor(**answers):
    library = Library(**{**ANSWERS, **answers})
    return library, GpuMonitor("GPU-1", Nvml(library), every_s=0.001)


def test_readings_are_taken_while_latency_is_sampled():
    library, watching = monitor()
    with watching:
        watching.on_event({"event": "phase", "name": "compile"})
        assert "PowerUsage" not in library.asked, "asking costs nothing where it could disturb"
        for _ in range(2):  # a second process of the case
            watching.on_event(LATENCY)
            watching.on_event(END)
    report = watching.report()
    assert report["readings"] >= 4
    assert report["sm_mhz"] == [1980, 1980, 1980]
    assert report["memory_mhz"][0] == 3201
    assert report["power_w"] == [401.5, 401.5, 401.5]
    assert report["temperature_c"] == [61, 61, 61]
    assert report["reasons"] == ["power cap"]
    assert report["other_processes"] == 0
    assert report["trouble"] == []


def test_readings_of_sizes_show_trouble_and_are_no_part_of_the_summary():
    processes = [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=1)]
    _, watching = monitor(ComputeRunningProcesses=lambda: processes)
    with watching:
        watching.on_event({"event": "phase", "name": "sizes"})
        watching.on_event({"event": "phase_end", "name": "sizes", "seconds": 1.0})
    report = watching.report()
    assert report["readings"] == 0
    assert {why for *_, why in report["trouble"]} == {"1 other processes on the GPU"}


def test_a_process_that_ended_within_the_phase_leaves_no_thread():
    _, watching = monitor()
    with watching:
        watching.on_event(LATENCY)
    assert watching._thread is None


def test_a_gpu_that_tells_nothing_costs_nothing():
    watching = GpuMonitor("GPU-1", Nvml(Library()), every_s=0.001)
    with watching:
        watching.on_event(LATENCY)
        watching.on_event(END)
    report = watching.report()
    assert report["sm_mhz"] is report["reasons"] is report["other_processes"] is None
    assert (report["xids"], report["trouble"]) == ([], [])
    assert fault(report) is None


def test_a_gpu_that_nvml_does_not_know_has_no_monitor():
    assert open_monitor("GPU-7", lambda: Nvml(Library())) is None
    assert open_monitor("GPU-1", lambda: None) is None
    assert open_monitor(None, lambda: Nvml(Library())) is None
    assert open_monitor("GPU-1", lambda: Nvml(Library())) is not None


@pytest.mark.parametrize(
    ("xids", "ecc", "says"),
    [
        ([79], [0, 0], "Xid 79"),
        ([31, 94, 94], [0, 0], "Xid 94"),
        ([13, 31, 43, 45], [0, 0], None),  # what a wrong kernel causes is the compiler's fault
        ([], [3, 5], "2 ECC errors"),
        ([], [3, 3], None),
        ([], [None, None], None),
    ],
)
def test_only_the_machines_own_faults_are_faults(xids, ecc, says):
    counted = iter(ecc)
    library, watching = monitor(TotalEccErrors=lambda *kind: next(counted))
    if ecc == [None, None]:
        del library.answers["TotalEccErrors"]
    with watching:
        library.xids += xids
    found = fault(watching.report())
    assert (found is None) == (says is None)
    assert says is None or says in found.message
    assert library.registered == "GPU-1"


def test_the_xids_of_a_case_are_not_those_of_the_next():
    library, watching = monitor()
    for expected in ([79], []):
        with watching:
            library.xids += expected
        assert watching.report()["xids"] == expected


def test_time_below_full_clock_is_counted():
    spent = iter([5, 9])
    _, watching = monitor(
        ViolationStatus=lambda kind: SimpleNamespace(violationTime=next(spent) if kind == "power" else 1)
    )
    with watching:
        pass
    report = watching.report()
    assert (report["power_limited_ns"], report["heat_limited_ns"]) == (4, 0)


def test_trouble_lasts_from_the_reading_before_to_the_one_after():
    readings = [
        GpuReading(1.0),
        GpuReading(2.0, reasons=0x40 | 0x4),
        GpuReading(3.0),
        GpuReading(4.0, others=2),
    ]
    assert spans_of_trouble(readings) == [
        [1.0, 3.0, "the GPU ran slower (heat (hardware))"],
        [3.0, 4.0, "2 other processes on the GPU"],
    ]
    assert spans_of_trouble([GpuReading(1.0, reasons=0x4 | 0x2)]) == [], "its power cap is how this GPU runs"
    assert summary(readings)["reasons"] == ["heat (hardware)", "power cap"]


def test_processes_on_the_gpu_that_are_not_the_runs():
    own, stranger = os.getpid(), 1
    assert other_processes([own], of_case=1) == 0
    assert other_processes([own, stranger], of_case=1) == 1
    assert other_processes([4_000_001], of_case=1) == 0, "a number of the host's: the case itself"
    assert other_processes([4_000_001, 4_000_002], of_case=1) == 1
    assert other_processes([], of_case=1) == 0
    assert other_processes([stranger], of_case=0) == 1, "no case is measured"


def test_processes_of_others_are_counted_before_and_after_a_case_that_was_never_timed():
    counts = [[1, 2], []]
    _, watching = monitor(ComputeRunningProcesses=lambda: [SimpleNamespace(pid=1)] * len(counts.pop(0)))
    with watching:
        watching.on_event({"event": "phase", "name": "eager"})
    assert counts == []
    assert watching.report()["other_processes"] == 2
    assert watching.report()["trouble"] == []


def test_a_gpu_that_others_use_is_warned_of():
    _, busy = monitor(ComputeRunningProcesses=lambda: [SimpleNamespace(pid=1)])
    assert sharing_warning(busy).startswith("WARNING: 1 process of other programs on GPU GPU-1, which cases")
    _, own = monitor()
    assert sharing_warning(own) is None
    assert sharing_warning(GpuMonitor("GPU-1", Nvml(Library()))) is None, "unknown"


def test_a_gpu_is_waited_for_until_an_ended_process_has_left_it():
    left = [[SimpleNamespace(pid=os.getpid())], []]
    _, watching = monitor(ComputeRunningProcesses=lambda: left.pop(0))
    assert watching.wait_until_free()
    assert left == []
    _, stuck = monitor()
    assert not stuck.wait_until_free(patience_s=0.0)


def test_processes_of_a_mig_device_are_its_own():
    """The neighbours' share neither its cores nor its memory, nor does it wait for their cases to end."""
    library = Library(mig=["MIG-1", "MIG-2"], **ANSWERS)
    library.processes = {"GPU-1": [os.getpid(), 1], "MIG-1": [], "MIG-2": [os.getpid(), 1]}
    watching = GpuMonitor("MIG-1", Nvml(library))
    assert watching.read().others == 0
    assert watching.read().sm_mhz == 1980, "clocks are those of the whole GPU"
    assert watching.wait_until_free(patience_s=0.0)
    assert GpuMonitor("MIG-2", Nvml(library)).others() == 1
