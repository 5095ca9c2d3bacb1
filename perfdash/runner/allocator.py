"""The libraries of the allocators (malloc) that latency can be measured with.

The worker side is `worker/linux.py`, which sets glibc's thresholds for `steady`.
"""

from __future__ import annotations

import os
from pathlib import Path

from perfdash.errors import MachineError

_LIBRARIES = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "tcmalloc": (
        "libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so", "libtcmalloc.so",
    ),
}  # fmt: skip
_DEBIAN_PACKAGE = {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4"}
PRELOADED = tuple(_LIBRARIES)


def allocator_library(name: str) -> str | None:
    """The shared library to preload for an allocator; None where it is not installed."""
    folders = [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        *map(str, Path("/usr/lib").glob("*-linux-gnu")),
        *os.environ.get("LD_LIBRARY_PATH", "").split(":"),
    ]
    for library in _LIBRARIES.get(name, ()):
        for folder in folders:
            if folder and (Path(folder) / library).exists():
                return str(Path(folder) / library)
    return None


def refuse_missing_library(name: str) -> None:
    """Raise MachineError where the library of an allocator is not installed."""
    if name in PRELOADED and not allocator_library(name):
        raise MachineError(
            f"--allocator {name}: its library is not installed (Debian: {_DEBIAN_PACKAGE[name]}); "
            "install it, or use --allocator steady"
        )


def preload(library: str, inherited: str | None) -> str:
    """The value of LD_PRELOAD that puts an allocator's library before what is preloaded already."""
    return ":".join(filter(None, [library, inherited]))
