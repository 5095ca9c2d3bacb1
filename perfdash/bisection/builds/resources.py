"""How many compilers may run at once here, whether ccache is there to save them, and which they are."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

_GIB = 1 << 30
# The user's variables that compilers and build tools listen to.
_HEARD = re.compile(
    r"(CC|CXX|CPP|FC|LD|AR|CUDACXX|CUDA_HOME|CUDA_PATH|TORCH_CUDA_ARCH_LIST|DEBUG|REL_WITH_DEB_INFO|BLAS|"
    r"(C|CXX|CPP|LD|F|FC|ARCH|RUST|CUDA|NVCC_(AP|PRE)PEND_)FLAGS|CPATH|LIBRARY_PATH|C(PLUS)?_INCLUDE_PATH|"
    r"(CMAKE|USE)_.*)"
)


def jobs(cores: tuple[int, ...], gib_per_job: float, builders: int = 1) -> int:
    """Parallel jobs of one build: by cores and by memory, shared by so many builds; at least one."""
    count = len(cores) or len(os.sched_getaffinity(0))
    by_memory = available_bytes() / _GIB / gib_per_job
    return max(1, int(min(count, by_memory) / max(1, builders)))


def available_bytes() -> float:
    """Memory that is free for a build, within the limit of this control group."""
    free = float("inf")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = float(line.split()[1]) * 1024
        group = Path("/sys/fs/cgroup", Path("/proc/self/cgroup").read_text().strip().rpartition("::/")[2])
        for folder in (group, *group.parents):
            limit = folder / "memory.max"
            if limit.is_file() and (text := limit.read_text().strip()).isdigit():
                free = min(free, int(text) - int((folder / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(0.0, free)


def ccache(folder: Path) -> dict[str, str]:
    """Variables that make builds in a folder use ccache, and share what they compile; none without it."""
    if not shutil.which("ccache"):
        return {}
    return {
        "CMAKE_C_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "CCACHE_BASEDIR": str(folder),
        "CCACHE_NOHASHDIR": "true",
    }


def toolchain() -> str:
    """What of this machine decides how a commit is compiled: the compilers, and variables for them."""
    said = {key: value for key, value in sorted(os.environ.items()) if _HEARD.fullmatch(key)}
    said.pop("CMAKE_BUILD_PARALLEL_LEVEL", None)
    versions = []
    for name in (os.environ.get("CC") or "cc", os.environ.get("CXX") or "c++", "nvcc"):
        try:
            command = [*shlex.split(name), "--version"]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
            versions.append(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            versions.append("")
    return json.dumps([said, versions])
