"""Count instructions by the processor's own counters, where the kernel and the machine show them.

perf_event_open(2), called through the C library. Standard library only: doctor uses it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import statistics
import struct
from typing import Any, Callable, Iterator, Optional

_NUMBERS = {"x86_64": 298, "aarch64": 241}  # of the system call
_HARDWARE, _SOFTWARE = 0, 1  # perf_event_attr.type
_INSTRUCTIONS, _TASK_CLOCK = 1, 1  # perf_event_attr.config of the one and of the other
_SIZE = 64  # PERF_ATTR_SIZE_VER0
_DISABLED, _NO_KERNEL, _NO_HYPERVISOR = 1 << 0, 1 << 5, 1 << 6
_ENABLE, _DISABLE, _RESET = 0x2400, 0x2401, 0x2403
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"
SAMPLES = 7

OpenEvent = Callable[[int, int], int]  # (type, config) -> file descriptor; raises OSError


def open_event(kind: int, config: int) -> int:
    """A counter of this thread, not running yet: its file descriptor. Raises OSError."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"the system call is not known for {platform.machine()}")
    attributes = struct.pack(
        "=IIQQQQQ", kind, _SIZE, config, 0, 0, 0, _DISABLED | _NO_KERNEL | _NO_HYPERVISOR
    ).ljust(_SIZE, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    # The process and the core: this thread, on any core; no group; closed on exec.
    descriptor = libc.syscall(ctypes.c_long(number), attributes, 0, -1, -1, ctypes.c_ulong(8))
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(descriptor)


def availability(open_counter: OpenEvent = open_event) -> dict[str, Any]:
    """Whether instructions can be counted here: {hardware, software, paranoid, why}; `why` if they cannot."""
    errors: dict[int, Optional[int]] = {}
    for kind, config in ((_HARDWARE, _INSTRUCTIONS), (_SOFTWARE, _TASK_CLOCK)):
        try:
            os.close(open_counter(kind, config))
            errors[kind] = None
        except OSError as error:
            errors[kind] = error.errno
    paranoid = _paranoid()
    return {
        "hardware": errors[_HARDWARE] is None,
        "software": errors[_SOFTWARE] is None,
        "paranoid": paranoid,
        "why": None if errors[_HARDWARE] is None else _why(errors[_HARDWARE], paranoid),
    }


def _why(code: Optional[int], paranoid: Optional[int]) -> str:
    name = errno.errorcode.get(code or 0, str(code))
    if code in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
        return f"the processor shows none, as in most virtual machines ({name})"
    if code in (errno.EACCES, errno.EPERM):
        return f"this user may not open them ({name}; perf_event_paranoid is {paranoid})"
    if code == errno.ENOSYS:
        return f"the kernel, or this sandbox, has no perf_event_open ({name})"
    return f"perf_event_open fails ({name})"


def _paranoid() -> Optional[int]:
    try:
        with open(_PARANOID) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _counter(open_counter: OpenEvent) -> Iterator[int]:
    descriptor = open_counter(_HARDWARE, _INSTRUCTIONS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def count(call: Callable[[], Any], descriptor: int) -> int:
    """Instructions that this thread executes in user mode during one call."""
    fcntl.ioctl(descriptor, _RESET, 0)
    fcntl.ioctl(descriptor, _ENABLE, 0)
    try:
        call()
    finally:
        fcntl.ioctl(descriptor, _DISABLE, 0)
    return int(struct.unpack("=Q", os.read(descriptor, 8))[0])


def of_calls(
    calls: dict[str, Callable[[], Any]],
    open_counter: OpenEvent = open_event,
    count_one: Callable[[Callable[[], Any], int], int] = count,
) -> Optional[dict[str, dict[str, float]]]:
    """Instructions per call of each side, in turn: {median, low, high, n}; None without counters.

    low and high: the smallest and the largest of the samples. Only this thread counts.
    """
    try:
        with _counter(open_counter) as descriptor:
            samples: dict[str, list[int]] = {name: [] for name in calls}
            for _ in range(SAMPLES):
                for name, call in calls.items():
                    samples[name].append(count_one(call, descriptor))
    except OSError:
        return None
    return {
        name: {"median": statistics.median(found), "low": min(found), "high": max(found), "n": len(found)}
        for name, found in samples.items()
    }
