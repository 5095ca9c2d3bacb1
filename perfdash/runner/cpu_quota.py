"""The CPU quota of the container: how many cores' time it may use, and how long it was kept from running.

Reads the control group of this process, version 2, then 1.
"""

from __future__ import annotations

import re
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def cpu_limit() -> float | None:
    """The CPU limit in cores; None without limit."""
    quota = _read("cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        return int(quota[0]) / int(quota[1])
    quota_us, period_us = _read("cpu/cpu.cfs_quota_us"), _read("cpu/cpu.cfs_period_us")
    if quota_us and period_us and int(quota_us) > 0:
        return int(quota_us) / int(period_us)
    return None


def throttled_s() -> float:
    """Seconds that all cores together were kept from this container's threads, since it started."""
    in_us = re.search(r"^throttled_usec (\d+)$", _read("cpu.stat"), re.MULTILINE)
    in_ns = re.search(r"^throttled_time (\d+)$", _read("cpu/cpu.stat"), re.MULTILINE)
    return int(in_us.group(1)) / 1e6 if in_us else int(in_ns.group(1)) / 1e9 if in_ns else 0.0


def _read(name: str) -> str:
    try:
        return (CGROUPS / name).read_text().strip()
    except OSError:
        return ""
