"""A stand-in of pynvml: one GPU or more, whose answers a test sets."""

from __future__ import annotations

from types import SimpleNamespace


class NVMLError(Exception):
    """What every function of NVML raises."""


class Library:
    """The functions of pynvml that perfdash calls. `answers` by name without the prefix nvmlDeviceGet.

    An answer that is missing, or None, is raised as not supported. Handles are UUIDs.
    """

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = "sm", "mem", "gpu"
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = "uncorrected", "volatile"
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = "power", "thermal"
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, uuids=("GPU-1",), mig=(), **answers):
        self.uuids, self.mig, self.answers = list(uuids), list(mig), answers
        self.xids: list[int] = []
        self.processes: dict[str, list[int]] = {}  # by handle, instead of an answer
        self.asked: list[str] = []

    def __getattr__(self, name):
        short = name.removeprefix("nvmlDeviceGet")
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def function(*arguments):
            self.asked.append(short)
            answer = self.answers.get(short)
            if short == "ComputeRunningProcesses" and self.processes:
                answer = [SimpleNamespace(pid=pid) for pid in self.processes[arguments[0]]]
            if answer is None:
                raise NVMLError("not supported")
            return answer(*arguments[1:]) if callable(answer) else answer

        return function

    def nvmlInit(self):
        pass

    def nvmlSystemGetDriverVersion(self):
        return b"580.1"

    def nvmlDeviceGetCount(self):
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.uuids[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in [*self.uuids, *self.mig]:
            raise NVMLError("not found")
        return uuid

    def nvmlDeviceGetUUID(self, handle):
        return handle.encode()

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):
        return self.uuids[0]

    def nvmlDeviceGetMigMode(self, handle):
        return (1, 1) if self.mig and handle == self.uuids[0] else (0, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index >= len(self.mig):
            raise NVMLError("not found")
        return self.mig[index]

    def nvmlEventSetCreate(self):
        return "events"

    def nvmlDeviceRegisterEvents(self, handle, kinds, events):
        self.registered = handle

    def nvmlEventSetWait_v2(self, events, timeout_ms):
        if not self.xids:
            raise NVMLError("timeout")
        return SimpleNamespace(eventData=self.xids.pop(0))

    def nvmlEventSetFree(self, events):
        pass
