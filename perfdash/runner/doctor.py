"""Examines whether this machine is fit to measure on, and says what to do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfdash.errors import PerfdashError
from perfdash.runner import gpus, host
from perfdash.runner.allocator import allocator_library
from perfdash.runner.launcher import ForkParent, Launch
from perfdash.worker import hardware_counters, linux

_GIB = 1 << 30
_IDLE = 0.5  # tasks, up to which a machine counts as idle


@dataclass(frozen=True)
class MachineFinding:
    """A finding about the machine. `level` is ok, note, warn or error (nothing can be measured)."""

    level: str
    subject: str
    what: str
    do: str = ""


def examine(python: str) -> list[MachineFinding]:
    """All findings about this machine and the torch of an interpreter."""
    return [
        *judge_host(host.facts()),
        judge_counters(hardware_counters.availability()),
        judge_waiting(bool(linux.waited_s())),
        *_examine_torch(python),
    ]


def judge_host(facts: dict[str, Any]) -> list[MachineFinding]:
    """The findings that follow from the facts of host.facts(); pure."""
    findings = [
        MachineFinding("ok", "cpu", f"{facts['cpu']}, {facts['cores']} cores, {facts['sockets']} socket(s)")
    ]
    add = findings.append
    if facts["virtual"]:
        add(
            MachineFinding(
                "note",
                "virtual machine",
                "other virtual machines on the host can slow it down unnoticed",
                "trust the interval, and the probe before and after each case",
            )
        )
    governor = facts["governor"]
    if governor is None:
        add(MachineFinding("note", "governor", "not visible here (a virtual machine?): the clock may vary"))
    elif governor == "performance":
        add(MachineFinding("ok", "governor", governor))
    else:
        add(
            MachineFinding(
                "warn",
                "governor",
                f"{governor}: the clock follows the load",
                "cpupower frequency-set -g performance",
            )
        )
    if facts["turbo"] is None:
        add(MachineFinding("note", "turbo", "not visible here"))
    else:
        add(
            MachineFinding(
                "warn",
                "turbo",
                "on: the clock depends on heat and neighbours",
                "echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo (AMD: echo 0 > .../cpufreq/boost)",
            )
            if facts["turbo"]
            else MachineFinding("ok", "turbo", "off")
        )
    add(
        MachineFinding(
            "warn",
            "SMT",
            "two hardware threads share a core",
            "leave the siblings of measured cores idle, or echo off > /sys/devices/system/cpu/smt/control",
        )
        if facts["smt"]
        else MachineFinding("ok", "SMT", "one hardware thread per core")
    )
    if slower := facts.get("slower_cores"):
        add(
            MachineFinding(
                "note",
                "core kinds",
                f"cores {slower} are slower than the others: slots are on the others alone",
                "to measure on them, too, name cores of one kind by --cores",
            )
        )
    if facts["cpu_limit"] is not None:
        add(
            MachineFinding(
                "warn",
                "container limit",
                f"{facts['cpu_limit']:.2f} cores of CPU time, then it is throttled",
                "measure without a CPU quota; pin with a cpuset instead",
            )
        )
    else:
        add(MachineFinding("ok", "container limit", "no CPU quota"))
    add(_load(facts["load"]))
    available = facts["memory_available_bytes"] or 0
    level = "warn" if available < 8 * _GIB else "ok"
    add(
        MachineFinding(
            level,
            "memory",
            f"{available / _GIB:.1f} GiB available",
            "large models need 16 GiB" if level == "warn" else "",
        )
    )
    if facts["cores"] < 2:
        add(
            MachineFinding(
                "warn",
                "cores",
                "only one core: perfdash itself runs on the core that it measures on",
                "give it a second core",
            )
        )
    if facts["compiler"]:
        add(MachineFinding("ok", "compiler", facts["compiler"]))
    else:
        add(
            MachineFinding(
                "error",
                "compiler",
                "no C++ compiler: inductor cannot compile for the CPU",
                "install g++, or set CXX",
            )
        )
    if "LD_PRELOAD" in facts["variables"]:
        add(
            MachineFinding(
                "warn",
                "allocator",
                f"LD_PRELOAD={facts['variables']['LD_PRELOAD']} is in force for every worker",
                "unset it; use --allocator",
            )
        )
    else:
        installed = [name for name in ("jemalloc", "tcmalloc") if allocator_library(name)]
        add(
            MachineFinding(
                "ok",
                "allocator",
                f"steady (glibc with fixed thresholds); also installed: {', '.join(installed) or 'none'}",
            )
        )
    return findings


def judge_counters(counters: dict[str, Any]) -> MachineFinding:
    """The finding on hardware counters, from worker.hardware_counters.availability(); pure."""
    subject = "hardware counters"
    if counters["hardware"]:
        return MachineFinding("ok", subject, "instructions per call are recorded of cases on one thread")
    software = "software events exist" if counters["software"] else "software events neither"
    is_refused = "may not" in counters["why"]
    return MachineFinding(
        "note",
        subject,
        f"no instructions per call: {counters['why']}; {software}",
        "sysctl kernel.perf_event_paranoid=2 (in a container also --cap-add PERFMON)" if is_refused else "",
    )


def judge_waiting(is_counted: bool) -> MachineFinding:
    """The finding on what shows other programs in a case with several threads; pure."""
    if is_counted:
        return MachineFinding("ok", "waiting threads", "the kernel counts how long threads wait for a core")
    return MachineFinding(
        "warn",
        "waiting threads",
        "this kernel does not count how long threads wait for a core (/proc/self/schedstat): with several "
        "threads nothing shows whether other programs run on the same cores",
        "leave the machine to perfdash, or measure with --threads 1",
    )


def judge_torch(hello: dict[str, Any]) -> list[MachineFinding]:
    """The findings that follow from what a worker says of itself; pure."""
    findings = [
        MachineFinding(
            "ok",
            "torch",
            f"{hello['torch']} under Python {hello['python']}, CUDA {hello['torch_cuda'] or 'not built in'}",
        )
    ]
    if hello["cuda_initialized"]:
        findings.append(
            MachineFinding(
                "error",
                "fork",
                "importing the libraries starts CUDA, so cases cannot be forked",
                "find which package does it (sitecustomize?)",
            )
        )
    if hello.get("driver_open"):
        findings.append(
            MachineFinding(
                "warn",
                "fork",
                "importing the libraries opens the GPU's driver: CUDA may fail in forked cases",
                "find which package does it; a case that cannot start CUDA says so",
            )
        )
    version = hello["packages"].get("torchvision")
    trouble = hello["missing"].get("torchvision")
    if version is None:
        findings.append(
            MachineFinding(
                "note",
                "torchvision",
                "not installed: timm needs it",
                "pip install torch torchvision together",
            )
        )
    elif trouble:
        findings.append(
            MachineFinding(
                "error",
                "torchvision",
                f"{version} does not import with this torch: {trouble}",
                "install torch and torchvision together, from one place",
            )
        )
    else:
        findings.append(MachineFinding("ok", "torchvision", f"{version} matches"))
    for package, trouble in hello["missing"].items():
        if package != "torchvision":
            findings.append(
                MachineFinding(
                    "note",
                    package,
                    f"does not import: {trouble}",
                    f"pip install {package}, if you measure its suite",
                )
            )
    return findings


def _examine_torch(python: str) -> list[MachineFinding]:
    cores = tuple(sorted(os.sched_getaffinity(0)))[-1:]
    launch = Launch(python, cores, 1, packages=("torchvision", "timm"))
    try:
        with ForkParent(launch) as parent:
            hello = parent.hello
    except PerfdashError as error:
        return [MachineFinding("error", "torch", str(error), "pip install torch torchvision")]
    return [*judge_torch(hello), *_examine_gpu(hello)]


def judge_gpus(facts: Sequence[dict[str, Any]] | None) -> list[MachineFinding]:
    """The findings that follow from what NVML says of each GPU (gpus.facts); pure. None: there is no NVML."""
    if facts is None:
        return [
            MachineFinding(
                "note",
                "NVML",
                "not available: clocks, power, heat, other processes and faults of the GPU stay unknown",
                "pip install nvidia-ml-py into the environment of perfdash",
            )
        ]
    findings = []
    for gpu in facts:
        name = f"gpu {gpu.get('name') or gpu['uuid']}"
        if gpu.get("persistence") is False:
            findings.append(
                MachineFinding("warn", name, "no persistence: clocks fall between cases", "nvidia-smi -pm 1")
            )
        limit, usual = gpu.get("power_limit_w"), gpu.get("default_power_limit_w")
        if limit and usual and limit < usual:
            text = f"power limit {limit:.0f} W, below its usual {usual:.0f} W"
            findings.append(MachineFinding("note", name, text, "nvidia-smi -pl, if that is not intended"))
        if gpu.get("ecc") is False:
            findings.append(
                MachineFinding("note", name, "ECC is off: memory errors stay unseen", "nvidia-smi -e 1")
            )
        if gpu.get("others"):
            text = f"{gpu['others']} processes use it now"
            findings.append(MachineFinding("warn", name, text, "end them, or choose another GPU"))
    return findings or [
        MachineFinding("ok", "NVML", f"{len(facts)} GPU(s), nothing that disturbs a measurement")
    ]


def _examine_gpu(hello: dict[str, Any]) -> list[MachineFinding]:
    if not os.path.exists("/dev/nvidiactl"):
        return [MachineFinding("note", "gpu", "no NVIDIA device on this machine: only --device cpu")]
    if not hello["torch_cuda"]:
        return [
            MachineFinding(
                "warn",
                "gpu",
                "there is a GPU, but this torch is built without CUDA",
                "install a CUDA build of torch",
            )
        ]
    present = f"NVIDIA device present, torch built for CUDA {hello['torch_cuda']}"
    findings = [MachineFinding("ok", "gpu", present), *judge_gpus(_gpu_facts())]
    if not host.c_compiler(os.environ):
        what = "no C compiler, with which Triton builds a stub of the driver: inductor cannot compile"
        findings.append(MachineFinding("error", "compiler", what, "install gcc, or set CC"))
    return findings


def _gpu_facts() -> list[dict[str, Any]] | None:
    nvml = gpus.open_nvml()
    if nvml is None:
        return None
    every = []
    for gpu in nvml.gpus():
        processes = nvml.of("nvmlDeviceGetComputeRunningProcesses", nvml.handle(gpu.uuid)) or []
        every.append({**gpus.facts(gpu.uuid, nvml), "others": len(processes)})
    return every


def _load(load: float) -> MachineFinding:
    if load <= _IDLE:
        return MachineFinding("ok", "load", f"{load:.2f}")
    return MachineFinding(
        "warn", "load", f"{load:.2f} other tasks want to run", "stop other work while measuring"
    )


def load_warning() -> str | None:
    """What doctor says of other work on this machine, before a run adds its own; None where there is none."""
    finding = _load(os.getloadavg()[0])
    return f"load: {finding.what}; {finding.do}" if finding.level == "warn" else None
