"""The compiler caches of a case: folders of its own, and precompiled C++ headers that a slot shares.

Inductor keeps its precompiled headers outside of its caches, for all programs of a user and for ever, and
trusts any file that is there. A compiler that is killed leaves half a file; g++ then silently reads the
plain headers for every kernel, which doubles the compilation latency of all later cases. So the headers are
made once for a slot, and shared only when they are whole.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from typing import Any, Optional


def use_in(scratch: str, shared_headers: Optional[str]) -> None:
    """Make caches of inductor and Triton, and temporary files, in `scratch`; link shared headers there."""
    for variable, folder in (
        ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
        ("TRITON_CACHE_DIR", "triton"),
        ("TMPDIR", "tmp"),
    ):
        path = os.path.join(scratch, folder)
        os.makedirs(path, exist_ok=True)
        os.environ[variable] = path
    tempfile.tempdir = os.environ["TMPDIR"]  # it remembers the folder of its first call
    codecache = _codecache()
    if codecache is None:
        return
    folder = _header_folder(scratch)
    os.makedirs(folder, exist_ok=True)
    codecache._HEADER_DIR = folder
    codecache._HEADER_LOCK_DIR = os.path.join(folder, "locks")
    if shared_headers and os.path.isdir(shared_headers):
        _link_all(shared_headers, folder)


def make_headers(scratch: str, target: str) -> bool:
    """Let inductor compile a small function, and put the headers that it made into `target`.

    Returns False where that failed, for example because the compiler was killed: `target` is unchanged, and
    every case makes its own headers.
    """
    if _codecache() is None:
        return True
    import torch

    try:
        torch.compile(_add_one)(torch.ones(64))
    except Exception:
        traceback.print_exc()
        return False
    torch._dynamo.reset()
    _link_all(_header_folder(scratch), target)
    return True


def _add_one(x: Any) -> Any:
    return x + 1


def _header_folder(scratch: str) -> str:
    return os.path.join(scratch, "headers")


def _codecache() -> Any:
    """The module of torch that names the header folder; None in a torch without precompiled headers."""
    try:
        from torch._inductor import codecache
    except ImportError:
        return None
    return codecache if hasattr(codecache, "_HEADER_DIR") else None


def _link_all(source: str, target: str) -> None:
    """Put all files of one folder into another, as links where possible: a header has 150 MB."""
    for name in os.listdir(source):
        old, new = os.path.join(source, name), os.path.join(target, name)
        if os.path.isfile(old) and not os.path.exists(new):
            try:
                os.link(old, new)
            except OSError:
                shutil.copy(old, f"{new}.part")
                os.replace(f"{new}.part", new)
