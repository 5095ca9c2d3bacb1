"""Inductor's precompiled C++ headers: made once for a slot, whole, and lent to every case.

Inductor keeps them outside of its caches, for all programs of a user and for ever, and takes a file
that is there for a good one. A compiler that is killed leaves half a file; g++ then reads the plain
headers for every kernel, without a word, which doubles the compilation latency of all that follows.
"""

from __future__ import annotations

import os
import shutil
import traceback
from typing import Any, Optional


def use_in(scratch: str, lent: Optional[str]) -> None:
    """Has inductor keep its headers in the case's scratch folder, where those of `lent` are already."""
    codecache = _codecache()
    if codecache is None:
        return
    own = _own(scratch)
    os.makedirs(own, exist_ok=True)
    codecache._HEADER_DIR = own
    codecache._HEADER_LOCK_DIR = os.path.join(own, "locks")
    if lent and os.path.isdir(lent):
        _link_all(lent, own)


def make(scratch: str, target: str) -> bool:
    """Has inductor compile a trifle, and puts the headers that it made for it into `target`.

    Only once they are whole. Returns False where that failed, by a compiler that was killed, say:
    `target` is as it was, and every case makes its own.
    """
    if _codecache() is None:
        return True
    import torch

    try:
        torch.compile(_trifle)(torch.ones(64))
    except Exception:
        traceback.print_exc()
        return False
    torch._dynamo.reset()
    _link_all(_own(scratch), target)
    return True


def _trifle(x: Any) -> Any:
    return x + 1


def _own(scratch: str) -> str:
    return os.path.join(scratch, "headers")


def _codecache() -> Any:
    """The module that knows the folder; None in a torch that has no such headers."""
    try:
        from torch._inductor import codecache
    except ImportError:
        return None
    return codecache if hasattr(codecache, "_HEADER_DIR") else None


def _link_all(source: str, target: str) -> None:
    """All files of a folder in another one. Links where it can: a header has 150 MB."""
    for name in os.listdir(source):
        old, new = os.path.join(source, name), os.path.join(target, name)
        if os.path.isfile(old) and not os.path.exists(new):
            try:
                os.link(old, new)
            except OSError:
                shutil.copy(old, f"{new}.part")
                os.replace(f"{new}.part", new)
