"""Watches a GPU while a case is measured on it: clocks, power, heat, throttling, other processes, faults.

Readings come from NVML, a few a second and only while pairs are sampled; counters (ECC errors, Xids, time
below full clock) are read before and after. The readings say which samples were not the model's alone.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfdash.records import Failure, Status
from perfdash.runner.gpus import Nvml, open_nvml

EVERY_S = 0.5
_PHASES = ("latency", "sizes")  # in which pairs are sampled
NO_MONITOR = (
    "WARNING: NVML does not report this GPU: throttling, other programs and its faults are not noticed. "
    "Install nvidia-ml-py into the environment of perfdash; `perfdash doctor` checks it."
)
FREE_S = 30.0  # for the driver to take back the memory of a process that was ended

# NVML's bits of clock event reasons (nvml.h). Those of the first table are no part of what a case does; the
# power cap and the clocks that someone has set are how this GPU runs.
_BAD_REASONS = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}
_REASONS = {**_BAD_REASONS, 0x2: "application clocks", 0x4: "power cap", 0x10: "sync boost"}
# Xids that a program causes by itself, as NVIDIA's device plugin for Kubernetes lists them: such a failure is
# the model's or the compiler's. All others are the machine's.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})

# Failures for want of the host's memory, by type (case_status, slot).
_OF_THE_HOST = frozenset({"MemoryLimit", "OutOfMemory", "BadAlloc", "MemoryError", "TooLarge"})


@dataclass(frozen=True)
class GpuReading:
    """One look at a GPU; None where it does not tell. `others`: processes on it that are not the run's."""

    at_s: float  # of the machine's monotonic clock
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    reasons: int | None = None  # NVML's bits of clock event reasons
    others: int | None = None

    @property
    def trouble(self) -> str | None:
        """Why samples of this moment are not the model's alone."""
        if self.others:
            return f"{self.others} other processes on the GPU"
        found = [text for bit, text in _BAD_REASONS.items() if (self.reasons or 0) & bit]
        return f"the GPU ran slower ({', '.join(found)})" if found else None


class GpuMonitor:
    """The monitor of one GPU. Use it as a context manager around a case; then ask for `report`."""

    def __init__(self, uuid: str, nvml: Nvml, every_s: float = EVERY_S) -> None:
        self.uuid = uuid
        self._nvml, self._every_s = nvml, every_s
        self._handle = nvml.handle(uuid)
        self._device = nvml.device(uuid)  # other tenants' MIG devices share neither cores nor memory with it
        self._others: list[int | None] = []  # before the case and after it
        self._readings: dict[str, list[GpuReading]] = {}  # by phase
        self._before: dict[str, int | None] = {}
        self._events: Any = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> GpuMonitor:
        self._pause()  # a process that was killed while it was timed has not ended the readings
        self._readings, self._before = {}, self._counters()
        self._others = [self.others()]
        self._events = self._register()
        return self

    def __exit__(self, *_: object) -> None:
        self._pause()
        self._others.append(self.others())

    def on_event(self, event: dict[str, Any]) -> None:
        """Take an event of the worker: readings begin and end with a phase in which pairs are sampled."""
        if event.get("name") not in _PHASES:
            return
        if event["event"] == "phase" and self._thread is None:
            self._over.clear()
            readings = self._readings.setdefault(event["name"], [])
            self._thread = threading.Thread(target=self._watch, args=(readings,), daemon=True)
            self._thread.start()
        elif event["event"] == "phase_end":
            self._pause()

    def read(self) -> GpuReading:
        """Look at the GPU now."""
        nvml, handle, library = self._nvml, self._handle, self._nvml.library
        power = nvml.of("nvmlDeviceGetPowerUsage", handle)
        reasons = nvml.of("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # its name before driver 535
            reasons = nvml.of("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return GpuReading(
            time.monotonic(),
            nvml.of("nvmlDeviceGetClockInfo", handle, library.NVML_CLOCK_SM),
            nvml.of("nvmlDeviceGetClockInfo", handle, library.NVML_CLOCK_MEM),
            None if power is None else power / 1e3,
            nvml.of("nvmlDeviceGetTemperature", handle, library.NVML_TEMPERATURE_GPU),
            reasons,
            self.others(of_case=1),
        )

    def others(self, of_case: int = 0) -> int | None:
        """How many processes of other programs are on it now (other_processes); None where it is unknown."""
        processes = self._nvml.of("nvmlDeviceGetComputeRunningProcesses", self._device)
        if processes is None:
            return None
        return other_processes([process.pid for process in processes], of_case)

    def report(self) -> dict[str, Any]:
        """What was seen since the monitor was entered: summaries, spans of trouble, faults.

        The summaries are of the phase latency: in `sizes` artefacts are compiled, too, while the GPU idles.
        """
        after = self._counters()
        counted = {
            name: now - before
            for name, before in self._before.items()
            if before is not None and (now := after[name]) is not None
        }
        sampled = summary(self._readings.get("latency", []))
        others = [count for count in (*self._others, sampled["other_processes"]) if count is not None]
        return {
            "uuid": self.uuid,
            **sampled,
            "other_processes": max(others, default=None),
            **counted,
            "xids": self._xids(),
            "trouble": [span for readings in self._readings.values() for span in spans_of_trouble(readings)],
        }

    def wait_until_free(self, patience_s: float = FREE_S) -> bool:
        """Wait until no process of this run is on the GPU any more; False where one stays."""
        deadline = time.monotonic() + patience_s
        while True:
            processes = self._nvml.of("nvmlDeviceGetComputeRunningProcesses", self._device) or []
            if not any(_is_ours(process.pid) for process in processes):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)

    def _watch(self, readings: list[GpuReading]) -> None:
        while not self._over.is_set():
            readings.append(self.read())
            self._over.wait(self._every_s)
        readings.append(self.read())

    def _pause(self) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()
            self._thread = None

    def _counters(self) -> dict[str, int | None]:
        """Counters that only grow: uncorrected ECC errors, energy, nanoseconds below full clock."""
        nvml, library = self._nvml, self._nvml.library
        counters = {
            "ecc_errors": nvml.of(
                "nvmlDeviceGetTotalEccErrors",
                self._handle,
                library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                library.NVML_VOLATILE_ECC,
            ),
            "energy_mj": nvml.of("nvmlDeviceGetTotalEnergyConsumption", self._handle),
        }
        for name, policy in (("power_limited_ns", "POWER"), ("heat_limited_ns", "THERMAL")):
            status = nvml.of(
                "nvmlDeviceGetViolationStatus", self._handle, getattr(library, f"NVML_PERF_POLICY_{policy}")
            )
            counters[name] = status.violationTime if status else None
        return counters

    def _register(self) -> Any:
        """A set that collects Xids from now on; None where this driver gives none."""
        events = self._nvml.of("nvmlEventSetCreate")
        if events is None:
            return None
        kinds = self._nvml.library.nvmlEventTypeXidCriticalError
        try:
            self._nvml.library.nvmlDeviceRegisterEvents(self._handle, kinds, events)
        except self._nvml.library.NVMLError:
            self._nvml.of("nvmlEventSetFree", events)
            return None
        return events

    def _xids(self) -> list[int]:
        """The Xids since the set was registered; the set is given up."""
        xids: list[int] = []
        while self._events is not None and len(xids) < 100:
            event = self._nvml.of("nvmlEventSetWait_v2", self._events, 0)
            if event is None:  # none is left: NVML says so by a timeout
                break
            xids.append(int(event.eventData))
        if self._events is not None:
            self._nvml.of("nvmlEventSetFree", self._events)
            self._events = None
        return xids


def open_monitor(uuid: str | None, nvml: Callable[[], Nvml | None] = open_nvml) -> GpuMonitor | None:
    """The monitor of a GPU; None where NVML is missing or does not know it."""
    opened = nvml() if uuid else None
    if uuid is None or opened is None or opened.handle(uuid) is None:
        return None
    return GpuMonitor(uuid, opened)


def other_processes(pids: Sequence[int], of_case: int) -> int:
    """How many of the processes on a GPU are not this run's.

    In a container NVML may tell numbers of the host, of which none is known here: then so many of them are
    the case's.
    """
    ours = sum(map(_is_ours, pids))
    return len(pids) - ours if ours else max(0, len(pids) - of_case)


def summary(readings: Sequence[GpuReading]) -> dict[str, Any]:
    """Least, median and most of each reading, and the names of all clock event reasons."""
    facts: dict[str, Any] = {"readings": len(readings)}
    for name in ("sm_mhz", "memory_mhz", "power_w", "temperature_c"):
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        facts[name] = [min(values), statistics.median(values), max(values)] if values else None
    seen = [reading.reasons for reading in readings if reading.reasons is not None]
    bits = 0
    for reasons in seen:
        bits |= reasons
    facts["reasons"] = [text for bit, text in _REASONS.items() if bits & bit] if seen else None
    others = [reading.others for reading in readings if reading.others is not None]
    facts["other_processes"] = max(others) if others else None
    return facts


def spans_of_trouble(readings: Sequence[GpuReading]) -> list[list[Any]]:
    """[from, to, why] of the time around each reading of trouble, up to its neighbours."""
    spans = []
    for place, reading in enumerate(readings):
        if reading.trouble:
            start = readings[max(0, place - 1)].at_s
            spans.append([start, readings[min(len(readings) - 1, place + 1)].at_s, reading.trouble])
    return spans


def fault(
    report: dict[str, Any], status: Status | None = None, failure: Failure | None = None
) -> Failure | None:
    """The machine's fault that a report shows: an uncorrected ECC error, an Xid that no program causes.

    Where a case with this status and failure ran out of its memory, also that other programs held some.
    """
    xids = [xid for xid in report.get("xids") or () if xid not in APPLICATION_XIDS]
    if xids:
        numbers = ", ".join(map(str, dict.fromkeys(xids)))
        return Failure(
            "GpuError", f"the driver reported Xid {numbers} meanwhile (docs of NVIDIA's Xid errors)"
        )
    if errors := report.get("ecc_errors"):
        return Failure(
            "GpuError", f"{errors} ECC errors of the GPU's memory could not be corrected meanwhile"
        )
    others = report.get("other_processes")
    if others and failure and status in (Status.OOM, Status.EAGER_OOM) and failure.type not in _OF_THE_HOST:
        return Failure("SharedGpu", f"{_processes(others)} held memory of the GPU: {failure.message}")
    return None


def sharing_warning(monitor: GpuMonitor) -> str | None:
    """The warning before cases are measured on a GPU that other programs use; None where none does."""
    if not (others := monitor.others()):
        return None
    return (
        f"WARNING: {_processes(others)} on GPU {monitor.uuid}, which cases need for themselves: end them "
        "(nvidia-smi lists them), or take another GPU (CUDA_VISIBLE_DEVICES)"
    )


def _processes(count: int) -> str:
    return f"{count} process{'es' * (count > 1)} of other programs"


def _is_ours(pid: int) -> bool:
    """Whether a process descends from this one."""
    own = os.getpid()
    for _ in range(64):
        if pid == own:
            return True
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            return False
        pid = int(fields[1])
        if pid <= 1:
            return False
    return False
