"""The fork parent: imports torch and the libraries once, then forks a process for every case.

    python -m perfdash.worker '{"control": FD, "locks": [FD ...], "cores": [...], "packages": [...]}'

A watchdog (orphan_watchdog.py) ends everything when the fork parent or its starter ends. Messages go over a
SOCK_SEQPACKET socket, one JSON object each. The fork parent first sends `hello`. Then each message to it is a
Job, with two file descriptors: for its events (JSON lines) and for what it prints; a third, where there is
one, holds the model of a notebook (loaders/notebook.py). The answer is {"pid": ...} at once, and
{"exit": ...} when the process has ended and nothing that it started is left.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import platform
import re
import signal
import socket
import sys
import traceback
from typing import Any, Iterable, Optional

from perfdash.records import COMMIT_IN_WHEEL, job_from_json
from perfdash.worker import linux
from perfdash.worker.orphan_watchdog import fork_under_watchdog

# Compiling imports these at the first call; they belong to no case's compilation latency.
_COMPILER_MODULES = (
    "torch._dynamo.backends.registry",
    "torch._inductor.compile_fx",
    "torch._inductor.ir",
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.cpp_wrapper_cpu",
    "torch._inductor.codegen.triton",
)
_MAX_MESSAGE = 1 << 22


def main() -> None:
    """Serves cases until the control socket closes."""
    orders = json.loads(sys.argv[1])
    control = socket.socket(fileno=orders["control"])
    fork_under_watchdog(control.fileno(), orders["locks"])
    linux.adopt_orphans()
    # Before torch is imported: it counts the cores to decide how many compilers to start.
    os.sched_setaffinity(0, orders["cores"])
    gc.disable()  # nothing that is imported ends, and looking for it takes a second
    hello = _hello(orders["packages"])
    # Collections in the forked processes need not visit, and so copy, all that was imported.
    gc.collect()
    gc.freeze()
    gc.enable()
    control.send(json.dumps(hello).encode())
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MAX_MESSAGE, 3)
        if not message:
            return
        events, log, *model = descriptors
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            control.close()
            _serve_case(parent, message, events, log, *model)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps({"pid": pid}).encode())
        _, status = os.waitpid(pid, 0)
        linux.end_children()  # what the case has left running has become our child
        control.send(json.dumps({"exit": status}).encode())


def _hello(packages: list[str]) -> dict[str, Any]:
    """Imports what cases will need and describes this interpreter."""
    facts: dict[str, Any] = {"python": platform.python_version(), "executable": sys.executable}
    try:
        import torch
    except Exception:
        return {**facts, "error": traceback.format_exc()}
    from perfdash.worker import device

    device.keep_off_driver()  # before any library asks whether there is a GPU
    missing = {}
    for package in packages:
        try:
            importlib.import_module(package)
        except Exception as error:
            missing[package] = f"{type(error).__name__}: {error}"
    for module in _COMPILER_MODULES:
        try:
            importlib.import_module(module)
        except Exception:  # another torch version arranges its modules otherwise: imported when needed
            continue
    from importlib import metadata

    import perfdash.worker.case  # noqa: F401  so that no case pays for it
    from perfdash.worker import registry

    # All of them, and now: an edit of these files in mid-run must not reach half of the cases.
    for kind in registry.KINDS:
        for name in registry.names(kind):
            registry.find(kind, name)

    installed, commits, repositories = _distributions(metadata.distributions())
    return {
        **facts,
        "torch": torch.__version__,
        "torch_git_version": torch.version.git_version,
        "torch_cuda": torch.version.cuda,
        "packages": dict(sorted(installed.items(), key=lambda item: item[0].lower())),
        "commits": dict(sorted(commits.items(), key=lambda item: item[0].lower())),
        "repositories": dict(sorted(repositories.items(), key=lambda item: item[0].lower())),
        "missing": missing,
        "cuda_initialized": torch.cuda.is_initialized(),
        "driver_open": linux.has_open("/dev/nvidia-uvm"),  # what CUDA opens and NVML does not
        "threads": len(os.listdir("/proc/self/task")),
    }


def _distributions(every: Iterable[Any]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The version of each installed distribution, and of those that pip took from a repository the commit and
    the repository's address, without account and password (PEP 610), or of a wheel that names its commit. One
    from a folder says no commit. Of several of a name the first on the path is imported.
    """
    versions: dict[str, str] = {}
    commits: dict[str, str] = {}
    repositories: dict[str, str] = {}
    for distribution in every:
        name = distribution.metadata["Name"]
        if not name or name in versions:
            continue
        versions[name] = distribution.version
        if commit := _commit_in_wheel(distribution, name):
            commits[name], repositories[name] = commit, COMMIT_IN_WHEEL[name]
        try:
            origin = json.loads(distribution.read_text("direct_url.json") or "{}")
            commit, address = origin["vcs_info"]["commit_id"], origin["url"]
        except (ValueError, KeyError, TypeError, OSError):
            continue
        if isinstance(commit, str):
            commits[name] = commit
            if isinstance(address, str):
                repositories[name] = re.sub(r"(?<=://)[^/@]*@", "", address)
    return versions, commits, repositories


def _commit_in_wheel(distribution: Any, name: str) -> Optional[str]:
    """The commit that a wheel of PyTorch's own libraries was built from, by its file version.py."""
    if name not in COMMIT_IN_WHEEL:
        return None
    try:
        with open(str(distribution.locate_file(f"{name}/version.py"))) as file:
            match = re.search(r"^git_version(?::.*)? = ['\"]([0-9a-f]{40})['\"]", file.read(), re.MULTILINE)
    except OSError:
        return None
    return match.group(1) if match else None


def _serve_case(parent: int, message: bytes, events: int, log: int, model: Optional[int] = None) -> None:
    """The life of a case's process; never returns. `model`: of a notebook, where the case is one."""
    try:
        os.setsid()
        linux.die_with_parent(parent)
        linux.preferred_victim()
        linux.shift_addresses()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from perfdash.worker import device
        from perfdash.worker.case import run_case
        from perfdash.worker.loaders import notebook

        device.meet_driver()
        job = job_from_json(json.loads(message))
        os.chdir(job.scratch)
        if model is not None:
            notebook.receive(model)
        with os.fdopen(events, "w", buffering=1) as pipe:

            def emit(event: str, **facts: Any) -> None:
                pipe.write(json.dumps({"event": event, **facts}) + "\n")
                pipe.flush()

            run_case(job, emit)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
