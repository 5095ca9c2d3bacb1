"""The compiler caches of a case: its own folders, and what a slot shares since it is made once a machine.

Inductor keeps its precompiled headers outside of its caches, for all programs of a user and for ever, and
trusts any file that is there. A compiler that is killed leaves half a file; g++ then silently reads the
plain headers for every kernel, which doubles the compilation latency of all later cases. So the headers are
made once for a slot, and shared only when they are whole.

Before its first kernel inductor compiles tests of the machine's vector instructions, some seconds a process.
It keeps them in its cache, so a user's second program has them. A slot shares those that passed, too: they
belong to no model's compilation latency, and a test that fails in the middle of a night, where the compiler
was killed or memory was short, would silently give one model narrower instructions.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from typing import Any, Optional

_PASSED = ".load_ok"  # inductor's mark beside the library of a test that was compiled and loaded


def use_in(scratch: str, shared: Optional[str]) -> None:
    """Make caches of inductor and Triton, and temporary files, in `scratch`; link what is shared there."""
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
    if shared and os.path.isdir(shared):
        _link_all(shared, folder)
        _link_tests(_test_folder(shared), os.environ["TORCHINDUCTOR_CACHE_DIR"])


def share_vector_tests(shared: str) -> None:
    """Put inductor's tests of vector instructions that passed in this process into `shared`."""
    _link_tests(os.environ["TORCHINDUCTOR_CACHE_DIR"], _test_folder(shared))


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


def _test_folder(shared: str) -> str:
    return os.path.join(shared, "vector_tests")


def _codecache() -> Any:
    """The module of torch that names the header folder; None in a torch without precompiled headers."""
    try:
        from torch._inductor import codecache
    except ImportError:
        return None
    return codecache if hasattr(codecache, "_HEADER_DIR") else None


def _link_tests(source: str, target: str) -> None:
    """Put the tests that passed under another folder, at the same path: the library, then its mark."""
    for folder, _, names in os.walk(source):
        for name in names:
            if name.endswith(_PASSED):
                below = os.path.join(target, os.path.relpath(folder, source))
                os.makedirs(below, exist_ok=True)
                for file in (name[: -len(_PASSED)], name):
                    _link(os.path.join(folder, file), os.path.join(below, file))


def _link_all(source: str, target: str) -> None:
    """Put all files of one folder into another."""
    for name in os.listdir(source):
        if os.path.isfile(os.path.join(source, name)):
            _link(os.path.join(source, name), os.path.join(target, name))


def _link(old: str, new: str) -> None:
    """Put a file elsewhere too, as a link where possible: a header has 150 MB. One that is there stays."""
    if not os.path.exists(new):
        try:
            os.link(old, new)
        except OSError:
            shutil.copy(old, f"{new}.part")
            os.replace(f"{new}.part", new)
