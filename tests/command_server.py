"""Run `perfdash ...` in a process of its own without starting an interpreter for each call.

A server process imports the command line and its libraries once and forks for every call. The forked
process has the caller's arguments, folder, environment and standard streams, and ends as the command
does: with its exit code, its output flushed and its exit handlers run.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from pathlib import Path

from tests.few_samples import take_few_samples
from tests.warm_workers import WarmWorkers, use_warm_workers

ROOT = Path(__file__).parents[1]
MAX_MESSAGE = 1 << 20
# Variables that Python reads when it starts: a call that changes one needs an interpreter of its own.
AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_", "OMP_")
# Libraries that commands import when they run.
LIBRARIES = (
    "alembic.command", "git", "hypothesis", "jinja2", "markdown_it", "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg", "matplotlib.figure", "pandas", "psycopg", "pyarrow.parquet",
    "requests", "ruptures", "scipy.optimize", "scipy.special", "scipy.stats", "sqlalchemy.dialects.sqlite",
    "sqlalchemy.dialects.postgresql", "uvicorn", "yaml",
)  # fmt: skip


class CommandServer:
    """A server process, started with the first call and ended by `close`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._environment = dict(os.environ)
        self.workers = WarmWorkers()

    def can_run(self, env: dict[str, str]) -> bool:
        """Whether a fork is as good as a new interpreter for a call with this environment."""
        return all(
            env.get(name) == self._environment.get(name)
            for name in {*env, *self._environment}
            if name.startswith(AT_START)
        )

    def run(
        self,
        arguments: list[str],
        cwd: Path,
        env: dict[str, str],
        timeout: float,
        quickly: bool = False,
    ) -> tuple[int, str, str, int]:
        """The exit code (negative: a signal), standard output, standard error and process id of a call.

        quickly: what it measures it samples a few times only, in a warm worker.

        Raises subprocess.TimeoutExpired, the process killed.
        """
        if self._socket is None:
            self._start()
        assert self._socket is not None
        call = {"arguments": arguments, "cwd": str(cwd), "env": env}
        if quickly and arguments[:1] in (["run"], ["check"]):
            call["workers"] = self.workers.address
        message = json.dumps(call).encode()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            socket.send_fds(self._socket, [message], [out.fileno(), err.fileno()])
            pid = int(self._socket.recv(MAX_MESSAGE))
            self._socket.settimeout(timeout)
            try:
                status = int(self._socket.recv(MAX_MESSAGE))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["perfdash", *arguments], timeout) from None
            finally:
                self._socket.settimeout(None)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode().replace("\r\n", "\n"))
        return os.waitstatus_to_exitcode(status), texts[0], texts[1], pid

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.command_server", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._socket = ours

    def close(self) -> None:
        self.workers.close()
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(30)


def serve(control: socket.socket) -> None:
    """Forks for every call until the other end is closed; returns in the forked process only."""
    import perfdash

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in LIBRARIES:
            importlib.import_module(name)
        for module in pkgutil.walk_packages(perfdash.__path__, "perfdash."):
            # What only a worker imports needs torch, which no command does.
            if not module.name.startswith(
                ("perfdash.worker.", "perfdash.__main__", "perfdash.history.migrations")
            ):
                importlib.import_module(module.name)
    assert "torch" not in sys.modules
    # Collections in the forked processes need not visit, and so copy, all that was imported.
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE, 2)
        if not message:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            control.close()
            _become(json.loads(message), *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            control.send(str(status).encode())


def _become(call: dict, out: int, err: int) -> None:
    """Makes this process what the caller would have started."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    sys.stdout = io.TextIOWrapper(_stream(1), encoding="utf-8", errors="strict")
    sys.stderr = io.TextIOWrapper(
        _stream(2), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    os.environ.clear()
    os.environ.update(call["env"])
    os.chdir(call["cwd"])
    sys.path[0] = call["cwd"]
    sys.argv = ["perfdash", *call["arguments"]]
    tempfile.tempdir = None
    if "workers" in call:
        take_few_samples()
        use_warm_workers(call["workers"])


def _stream(descriptor: int) -> io.BufferedWriter:
    return io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False))


def _run() -> int:
    """The command, and the code that an interpreter would exit with."""
    try:
        runpy.run_module("perfdash", run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> None:
    """Ends as an interpreter does, but takes nothing apart: that would copy all that was imported."""
    threading._shutdown()  # joins threads, as an interpreter does before its exit handlers
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    _end(_run())
