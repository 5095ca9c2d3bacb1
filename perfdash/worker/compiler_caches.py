"""The compiler caches of a case: its own folders, and what all cases share since it is made once a machine.

Inductor keeps its precompiled headers outside of its caches, for all programs of a user and for ever, and
trusts any file that is there. A compiler that is killed leaves half a file; g++ then silently reads the
plain headers for every kernel, which doubles the compilation latency of all later cases. So the headers are
made once for a slot, and shared only when they are whole. Some options of inductor, as the C++ wrapper, need
another header or another command line of the compiler, and so does AOTInductor: a slot makes the headers of
each kind of case that it has, and all kinds share one folder.

Before its first kernel inductor compiles tests of the machine's vector instructions, some seconds a process.
It keeps them in its cache, so a user's second program has them. A slot shares those that passed, too: they
belong to no model's compilation latency, and a test that fails in the middle of a night, where the compiler
was killed or memory was short, would silently give one model narrower instructions.

On a GPU Triton compiles a stub of the driver with the C compiler before its first kernel, into its cache. It
depends on Triton and Python alone, so a slot shares it in the same way.

What was shared is kept for the next run, in a folder of the user's cache for this compiler, processor and
torch. Inductor's own key of a header covers its preprocessed text, the options and the compiler's version;
the folder's name covers what g++ would reject without a word: another build of that version, another
processor on the same home.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import traceback
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

from perfdash.worker import user_cache

_UNFINISHED = ".part"
_KEPT_FOLDERS = 3  # of different compilers, processors or torches; a header has 150 MB
_ROOM = 2 * 2**30  # bytes that must be free, or nothing is kept

_STUB = "cuda_utils"  # Triton's name of its driver stub; the compiler's suffix follows
_PASSED = ".load_ok"  # inductor's mark beside the library of a test that was compiled and loaded


def use_in(scratch: str, shared: Optional[str]) -> None:
    """Make the caches of compilers and the driver in `scratch`, and link what is shared there."""
    for variable, folder in (
        ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
        ("TRITON_CACHE_DIR", "triton"),
        ("CUDA_CACHE_PATH", "nv"),  # else ~/.nv/ComputeCache; the driver reads it when CUDA starts
        ("TMPDIR", "tmp"),
    ):
        path = os.path.join(scratch, folder)
        os.makedirs(path, exist_ok=True)
        os.environ[variable] = path
    tempfile.tempdir = os.environ["TMPDIR"]  # it remembers the folder of its first call
    if shared:
        _link_stubs(_stub_folder(shared), os.environ["TRITON_CACHE_DIR"])
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


def begin_anew(scratch: str, shared: Optional[str], on_disk: bool) -> None:
    """Forget what this process has compiled, in memory and, if so wished, in its caches on disk."""
    import torch
    from torch._inductor import utils

    torch._dynamo.reset()
    clear = getattr(utils, "clear_caches", None) or getattr(utils, "clear_inductor_caches", None)
    if clear:
        clear()
    if on_disk:
        for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            shutil.rmtree(os.environ[variable], ignore_errors=True)
        use_in(scratch, shared)


def take_kept(kept: Optional[str], shared: str) -> None:
    """Share what an earlier run has kept."""
    if kept and os.path.isdir(kept):
        _share(kept, shared, _link)


def keep(shared: str, kept: Optional[str]) -> None:
    """Keep what is shared for the next run, in `kept`; a full or read-only disk keeps nothing."""
    if not kept:
        return
    try:
        if shutil.disk_usage(os.path.dirname(kept)).free < _ROOM:
            return
        os.makedirs(kept, mode=0o700, exist_ok=True)
        _share(shared, kept, _durable_copy)
        os.utime(kept)
        folders = [
            entry for entry in os.scandir(os.path.dirname(kept)) if entry.is_dir(follow_symlinks=False)
        ]
        for folder in sorted(folders, key=lambda entry: -entry.stat().st_mtime)[_KEPT_FOLDERS:]:
            shutil.rmtree(folder.path, ignore_errors=True)
    except OSError:
        traceback.print_exc()


def kept_folder() -> Optional[str]:
    """The folder that keeps what cases share: of this compiler, processor and torch.

    None where the compiler is unknown, or where someone else could write into the folder: its libraries are
    loaded.
    """
    base = user_cache.folder("compiler")
    try:
        key = _machine_key()
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = base / key
        if all(_is_private(path) for path in (base, folder) if os.path.lexists(path)):
            return str(folder)
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError):
        traceback.print_exc()
    return None


def _is_private(folder: Path) -> bool:
    """Whether only this user can write into a folder, which is no link."""
    facts = folder.lstat()
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022


def _machine_key() -> str:
    """A digest of the C++ compiler's programs, the processor, the kernel and this torch."""
    import torch
    from torch._inductor import cpp_builder

    compiler = shutil.which(cpp_builder.get_cpp_compiler())
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    inner = subprocess.run([compiler, "-print-prog-name=cc1plus"], capture_output=True, text=True, timeout=30)
    parts = [torch.__version__, str(torch.version.git_version), torch.__file__, os.uname().release]
    for program in (compiler, shutil.which(inner.stdout.strip())):
        if program:
            path = os.path.realpath(program)
            facts = os.stat(path)
            parts.append(f"{path} {facts.st_size} {facts.st_mtime_ns}")
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    parts += sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def share_vector_tests(shared: str) -> None:
    """Put inductor's tests of vector instructions that passed in this process into `shared`."""
    _link_tests(os.environ["TORCHINDUCTOR_CACHE_DIR"], _test_folder(shared))


def make_driver_stub(target: str) -> bool:
    """Let Triton compile a small function on the GPU, and put the driver stub that it made into `target`.

    Returns False where that failed: every case then makes its own.
    """
    import torch

    try:
        torch.compile(_add_one)(torch.ones(64, device="cuda"))
    except Exception:
        traceback.print_exc()
        return False
    torch._dynamo.reset()
    share_driver_stub(target)
    return True


def share_driver_stub(target: str) -> None:
    """Put Triton's driver stub of this process into `target`."""
    _link_stubs(os.environ["TRITON_CACHE_DIR"], _stub_folder(target))


def compile_sample() -> None:
    """Let inductor compile a small function for the CPU, under the options that are set."""
    import torch

    torch.compile(_add_one)(torch.ones(64))


def make_headers(scratch: str, target: str, compile_sample: Callable[[], None] = compile_sample) -> bool:
    """Let `compile_sample` compile a small model, and put the headers that this made into `target`.

    Returns False where that failed, for example because the compiler was killed: `target` is unchanged, and
    every case makes its own headers.
    """
    if _codecache() is None:
        return True
    import torch

    try:
        compile_sample()
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


def _stub_folder(shared: str) -> str:
    return os.path.join(shared, "triton_driver")


def _codecache() -> Any:
    """The module of torch that names the header folder; None in a torch without precompiled headers."""
    try:
        from torch._inductor import codecache
    except ImportError:
        return None
    return codecache if hasattr(codecache, "_HEADER_DIR") else None


_Put = Callable[[str, str], None]  # puts a file elsewhere, whole or not at all


def _share(source: str, target: str, put: _Put) -> None:
    """Put the headers, the passed tests and the driver stubs of one shared folder into another."""
    _link_all(source, target, put)
    _link_tests(_test_folder(source), _test_folder(target), put)
    _link_stubs(_stub_folder(source), _stub_folder(target), put)


def _link_tests(source: str, target: str, put: Optional[_Put] = None) -> None:
    """Put the tests that passed under another folder: the library, then its mark."""
    _link_below(
        source, target, lambda name: (name[: -len(_PASSED)], name) if name.endswith(_PASSED) else (), put
    )


def _link_stubs(source: str, target: str, put: Optional[_Put] = None) -> None:
    """Put Triton's driver stubs under another folder; Triton writes them whole or not at all."""
    _link_below(
        source, target, lambda name: (name,) if name.startswith(_STUB) and name.endswith(".so") else (), put
    )


def _link_below(
    source: str, target: str, files_of: Callable[[str], Sequence[str]], put: Optional[_Put]
) -> None:
    """Put the files that go with each name below a folder into another, at the same path."""
    put = put or _link
    for folder, _, names in os.walk(source):
        for name in names:
            below = os.path.join(target, os.path.relpath(folder, source))
            for file in files_of(name):
                os.makedirs(below, exist_ok=True)
                put(os.path.join(folder, file), os.path.join(below, file))


def _link_all(source: str, target: str, put: Optional[_Put] = None) -> None:
    """Put all files of one folder into another, but for those that a killed process left unfinished."""
    for name in os.listdir(source):
        if os.path.isfile(os.path.join(source, name)) and not name.endswith(_UNFINISHED):
            (put or _link)(os.path.join(source, name), os.path.join(target, name))


def _link(old: str, new: str) -> None:
    """Put a file elsewhere too, as a link where possible: a header has 150 MB. One that is there stays."""
    if not os.path.exists(new):
        try:
            os.link(old, new)
        except OSError:
            shutil.copy(old, new + _UNFINISHED)
            os.replace(new + _UNFINISHED, new)


def _durable_copy(old: str, new: str) -> None:
    """Copy a file so that it is whole also after a power cut. One that is there stays."""
    if os.path.exists(new):
        return
    part = f"{new}.{os.getpid()}{_UNFINISHED}"
    try:
        shutil.copy(old, part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, new)
    finally:
        if os.path.exists(part):
            os.unlink(part)
