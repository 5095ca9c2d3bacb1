"""Facts about this machine, for run.json and for doctor. Reads /proc and /sys; judges nothing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfdash.child_environment import is_secret
from perfdash.runner.cores import available_cores, sibling_groups
from perfdash.runner.cpu_quota import cpu_limit
from perfdash.topology import fastest_kind, format_cores

# Variables that change how torch and its libraries behave. Values of secrets are never recorded.
_RELEVANT = re.compile(
    r"^(OMP_|KMP_|GOMP_|MKL_|OPENBLAS_|DNNL_|ONEDNN_|ATEN_|TORCH|PYTORCH_|TRITON_|MALLOC_|LD_PRELOAD$|"
    r"LD_LIBRARY_PATH$|PYTHONPATH$|CUDA_|NVIDIA_|CC$|CXX$|CFLAGS$|CXXFLAGS$|HF_)"
)


def facts() -> dict[str, Any]:
    """The environment fingerprint of the host: CPU, cores, limits, memory, system, compiler."""
    info = _cpuinfo()
    cores = available_cores()
    slower = {*cores} - {*fastest_kind(cores)}
    return {
        "host": socket.gethostname().split(".")[0],
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "cpu_family_model_stepping": [info.get("cpu family"), info.get("model"), info.get("stepping")],
        "cpu_flags": sorted(info.get("flags", "").split()),
        "microcode": info.get("microcode"),
        "cores": len(cores),
        "core_list": format_cores(cores),
        **({"slower_cores": format_cores(sorted(slower))} if slower else {}),
        "sockets": len(_sockets()) or 1,
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
        "smt": any(len(group) > 1 for group in sibling_groups(cores)),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "turbo": _turbo(),
        "huge_pages": _chosen(_read("/sys/kernel/mm/transparent_hugepage/enabled")),
        "virtual": "hypervisor" in info.get("flags", "").split(),
        "cpu_limit": cpu_limit(),
        "memory_limit_bytes": _memory_limit(),
        "memory_bytes": _meminfo("MemTotal"),
        "memory_available_bytes": _meminfo("MemAvailable"),
        "load": round(os.getloadavg()[0], 2),
        "system": _os_name(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "compiler": compiler(),
        "aten_cpu_capability": os.environ.get("ATEN_CPU_CAPABILITY", "default"),
        "variables": relevant_variables(dict(os.environ)),
    }


def host_class(host: dict[str, Any]) -> str:
    """Hosts whose numbers may be compared: the same processor and the same number of cores."""
    return f"{host['cpu']} x {host['cores']}"


def relevant_variables(variables: dict[str, str]) -> dict[str, str]:
    """The variables that bear on performance; secrets are left out."""
    return {
        key: value
        for key, value in sorted(variables.items())
        if _RELEVANT.match(key) and not is_secret(key, value)
    }


def compiler() -> str | None:
    """Version line of the C++ compiler of inductor ($CXX, else g++); None without one."""
    command = os.environ.get("CXX") or "g++"
    path = shutil.which(command.split()[0])
    if path is None:
        return None
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout.splitlines() or [None])[0]  # type: ignore[list-item]


def c_compiler(env: Mapping[str, str]) -> str | None:
    """The path of Triton's C compiler ($CC, else gcc or clang) in an environment; None without one."""
    names = [env["CC"]] if "CC" in env else ["gcc", "clang"]
    found = (shutil.which(name, path=env.get("PATH")) for name in names)
    return next((path for path in found if path), None)


def default_memory_limit() -> int | None:
    """90 % of the memory of the machine or container: models fail first."""
    limits = [value for value in (_memory_limit(), _meminfo("MemTotal")) if value]
    return int(min(limits) * 0.9) if limits else None


def _memory_limit() -> int | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(path)
        if text and text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def _cpuinfo() -> dict[str, str]:
    info: dict[str, str] = {}
    for line in (_read("/proc/cpuinfo") or "").split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        info[key.strip()] = value.strip()
    return info


def _sockets() -> set[str]:
    paths = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id")
    return {text for path in paths if (text := _read(str(path)))}


def _turbo() -> bool | None:
    no_turbo = _read("/sys/devices/system/cpu/intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == "0"
    boost = _read("/sys/devices/system/cpu/cpufreq/boost")
    return None if boost is None else boost == "1"


def _chosen(text: str | None) -> str | None:
    match = re.search(r"\[(\w+)\]", text or "")
    return match.group(1) if match else None


def _meminfo(key: str) -> int | None:
    match = re.search(rf"^{key}:\s+(\d+) kB", _read("/proc/meminfo") or "", re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def _os_name() -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release") or "", re.MULTILINE)
    return match.group(1) if match else platform.system()


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None
