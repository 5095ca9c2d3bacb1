"""Workers that fork from one process which has imported torch: a start takes 0.1 s instead of 6 s.

For tests of commands, where how a worker starts is not the point. What runs there is
perfdash.worker.__main__ itself, with the orders, environment, folder and descriptors of its launcher; it
differs from a real start in what is read only when a process starts: preloaded libraries, the hash seed, and
the environment and command line that /proc shows. What was imported stays out of collections of garbage: a
case has ten of them, and each would visit, and so copy, all of it. What torch imports and computes only when
it first compiles is there as well: the compilation latency of such a worker is too short.

An environment that lies over this one gets them too, its packages first.

A script that needs a process of its own, with a torch that nothing has been asked of yet, runs there as well.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.few_samples import UNDISTURBED

ROOT = Path(__file__).parents[1]
MAX_MESSAGE = 1 << 20
SCRIPT = '#!/bin/sh\nexec {} "$@"\n'


class WarmWorkers:
    """The server process, started when its address is first asked for.

    shared: the address of one that another process has started.
    """

    def __init__(self, shared: str = "") -> None:
        self._shared = shared
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The path of its socket."""
        if self._shared:
            return self._shared
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="warm-")
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with listening:
                listening.bind(self._path)
                listening.listen(64)
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.warm_workers", str(listening.fileno()), str(os.getpid())],
                    cwd=ROOT,
                    pass_fds=[listening.fileno()],
                    stdin=subprocess.DEVNULL,
                )
        return self._path

    def run_script(self, script: str, *arguments: str, env: dict[str, str] | None = None) -> str:
        """The standard output of a Python script in a process of its own, with these variables beside ours.

        Fails where the script does.
        """
        call = {
            "script": script,
            "arguments": arguments,
            "env": {**os.environ, **(env or {})},
            "cores": sorted(os.sched_getaffinity(0)),
        }
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as errors,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
        ):
            server.connect(self.address)
            socket.send_fds(server, [json.dumps(call).encode()], [out.fileno(), errors.fileno()])
            told = [server.recv(MAX_MESSAGE) for _ in range(2)]  # its process id, and how it ended
            for file in (out, errors):
                file.seek(0)
            assert b"well" in told, errors.read().decode(errors="replace")
            return out.read().decode()

    @property
    def _path(self) -> str:
        assert self._folder is not None
        return f"{self._folder.name}/socket"

    def close(self) -> None:
        if self._folder is not None and self._process is not None:
            self._process.kill()
            self._process.wait()
            self._folder.cleanup()


class WarmPopen:
    """What the launcher needs of subprocess.Popen, for a worker that another process has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return 0 if select.select([self._ended], [], [], 0)[0] else None

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self._ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return 0


def packages_of(python: str) -> list[str] | None:
    """The folders of packages that an interpreter has before ours; None for one that is not ours.

    Ours are this interpreter, the script of CommandServer.environment that runs it, and environments that lie
    over it as those of ci/torch_build.sh do.
    """
    path = Path(python)
    if python == sys.executable:
        return []
    if path.read_bytes()[:2] == b"#!":
        return [] if path.read_text() == SCRIPT.format(sys.executable) else None
    own = path.parents[1].glob("lib/python*/site-packages")
    return [str(folder) for folder in own if (folder / "perfdash-base.pth").exists()] or None


class WarmSubprocess:
    """The module `subprocess` for the launcher: a worker under this interpreter is a warm one."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, words: list[str], *, env: dict[str, str], **options: Any) -> Any:
        packages = packages_of(words[0])
        # Read when a process starts, or when it imports torch.
        if packages is None or {"LD_PRELOAD", "TORCH_TRACE"} & env.keys():
            return subprocess.Popen(words, env=env, **options)
        orders = json.loads(words[-1])
        call = {
            "orders": orders,
            "env": env,
            "cwd": str(options["cwd"]),
            "python": words[0],
            "packages": [*filter(None, env.get("PYTHONPATH", "").split(":")), *packages],
            "cores": sorted(os.sched_getaffinity(0)),
        }
        descriptors = [options["stdout"].fileno(), orders["control"], *orders["locks"]]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.connect(self._address)
            socket.send_fds(server, [json.dumps(call).encode()], descriptors)
            return WarmPopen(int(server.recv(MAX_MESSAGE)))


def use_warm_workers(address: str) -> None:
    """From now on this process starts its workers there, those under another interpreter excepted."""
    from perfdash.runner import launcher

    launcher.subprocess = WarmSubprocess(address)


def serve(listening: socket.socket, starter: int) -> None:
    """Forks a worker for every connection; ends with its starter, also one that ended before this began."""
    from perfdash.worker import linux, registry
    from perfdash.worker.__main__ import _COMPILER_MODULES, main

    linux.die_with_parent(starter)
    gc.disable()  # until all is imported: nothing of it ends, and looking for it takes seconds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("torch", *_COMPILER_MODULES, "perfdash.worker.case"):
            importlib.import_module(name)
        for kind in registry.KINDS:
            for name in registry.names(kind):
                registry.find(kind, name)
    _read_metadata_once()
    path = list(sys.path)
    logging.disable()  # importing some of it warns that there is no GPU
    with contextlib.suppress(Exception):  # another torch: its workers are slower
        _import_what_compiling_imports()
    logging.disable(logging.NOTSET)
    sys.path[:] = path  # setuptools adds the packages that it brings, which a worker does not begin with
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.freeze = gc.unfreeze = lambda: None
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        connection, _ = listening.accept()
        with connection:
            message, descriptors, _, _ = socket.recv_fds(connection, MAX_MESSAGE, 64)
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listening.close()
                call = json.loads(message)
                os.sched_setaffinity(0, call["cores"])
                if "script" in call:
                    _run_script(call, connection, *descriptors)
                    os._exit(0)
                connection.close()
                _become(call, *descriptors)
                with contextlib.suppress(SystemExit):
                    main()
                os._exit(0)
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(str(pid).encode())


def _import_what_compiling_imports() -> None:
    """Imports what torch imports when it first compiles, and computes the digests of its own files.

    A process that compiles with inductor would spend 0.9 s on this. Which modules they are, a forked process
    finds out by compiling a layer.
    """
    from torch._inductor import codecache

    codecache.torch_key()
    codecache.triton_key()
    known = set(sys.modules)
    with tempfile.TemporaryFile() as names:
        pid = os.fork()
        if pid == 0:
            try:
                _compile_a_layer()
                names.write(json.dumps(sorted(set(sys.modules) - known)).encode())
                names.flush()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        names.seek(0)
        for name in json.load(names):
            with contextlib.suppress(ImportError):  # generated code
                importlib.import_module(name)


def _compile_a_layer() -> None:
    import torch
    from torch._inductor.cpu_vec_isa import VecISA

    VecISA.check_build = lambda isa, code: True  # no compiler starts
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        torch.compile(torch.nn.Linear(2, 2))(torch.ones(1, 2))


def _read_metadata_once() -> None:
    """Each worker tells which packages there are: the metadata of those here are parsed before the fork."""
    # mypy takes a property of a class for its value, which can be neither asked for `fget` nor replaced.
    known: dict[str, Any] = {}
    read = metadata.Distribution.metadata.fget  # type: ignore[attr-defined]

    def remembered(distribution: metadata.Distribution) -> Any:
        place = str(getattr(distribution, "_path", id(distribution)))
        if place not in known:
            known[place] = read(distribution)
        return known[place]

    metadata.Distribution.metadata = property(remembered)  # type: ignore[assignment,misc]
    for distribution in metadata.distributions():
        assert distribution.metadata is not None


def _run_script(call: dict[str, Any], connection: socket.socket, *streams: int) -> None:
    """Runs a script as the main module, and tells its caller how it ended."""
    from perfdash.worker import linux

    linux.die_with_parent(os.getppid())
    for number, descriptor in enumerate(streams, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(call["env"])
    tempfile.tempdir = None
    sys.argv = ["-c", *call["arguments"]]
    sys.modules["__main__"] = script = ModuleType("__main__")
    ended = b"well"
    try:
        exec(compile(call["script"], "<string>", "exec"), vars(script))
    except BaseException:
        traceback.print_exc()
        ended = b"badly"
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(ended)


def _become(call: dict[str, Any], log: int, control: int, *locks: int) -> None:
    """Makes this process what the launcher would have started."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(call["env"])
    os.chdir(call["cwd"])
    tempfile.tempdir = None
    sys.executable = call["python"]
    sys.path[:0] = call["packages"]
    importlib.invalidate_caches()
    orders = {**call["orders"], "control": control, "locks": list(locks)}
    sys.argv = ["perfdash.worker", json.dumps(orders)]
    if UNDISTURBED in os.environ:
        from perfdash.worker import latency_sampling

        latency_sampling.is_clean = lambda sample: True


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
