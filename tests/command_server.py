"""Run `perfdash ...` in a process of its own without starting an interpreter for each call.

A server process imports the command line and its libraries once and forks for every call. The forked
process has the caller's arguments, folder, environment and standard streams, and ends as the command
does: with its exit code, its output flushed and its exit handlers run. When its caller ends, it is killed.

Tests call it by CommandServer.run, shell scripts by the program that tests/command_client.py is.
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
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from pathlib import Path

from perfdash.worker import linux
from tests.command_client import MEASURING
from tests.few_samples import take_few_samples
from tests.warm_workers import SCRIPT, WarmWorkers, use_warm_workers

ROOT = Path(__file__).parents[1]
CLIENT = Path(__file__).with_name("command_client.py")
MAX_MESSAGE = 1 << 20
SHARED = "TEST_SERVERS"  # the variable with the addresses of servers that another process has started
# Variables that Python reads when it starts: a call that changes one needs an interpreter of its own.
AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_", "OMP_")
# Libraries that commands import when they run.
LIBRARIES = (
    "alembic.command", "hypothesis", "jinja2", "markdown_it", "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg", "matplotlib.figure", "pandas", "psycopg", "pyarrow.parquet",
    "requests", "ruptures", "scipy.optimize", "scipy.special", "scipy.stats", "sqlalchemy.dialects.sqlite",
    "sqlalchemy.dialects.postgresql", "uvicorn", "yaml",
)  # fmt: skip


class CommandServer:
    """A server process, started when it is first needed and ended by `close`.

    Where several test processes share one, the first to start has it in SHARED for the others.
    """

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = dict(os.environ)
        self._shared, _, workers = os.environ.get(SHARED, "").partition(":")
        self.workers = WarmWorkers(workers)

    def share(self) -> None:
        """Starts it, and that of its workers, for the test processes that this one starts."""
        os.environ[SHARED] = f"{self.address}:{self.workers.address}"

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
        warm: bool = False,
    ) -> tuple[int, str, str, int]:
        """The exit code (negative: a signal), standard output, standard error and process id of a call.

        warm: it measures in a warm worker. quickly: there, too, and it samples a few times only.

        Raises subprocess.TimeoutExpired, the process killed.
        """
        workers = self.workers.address if (quickly or warm) and arguments[:1] in MEASURING else None
        call = {
            "arguments": arguments,
            "cwd": str(cwd),
            "env": env,
            "umask": None,
            "workers": workers,
            "quickly": quickly,
            "cores": sorted(os.sched_getaffinity(0)),
        }
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            open(os.devnull, "rb") as nothing,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
        ):
            streams = [nothing.fileno(), out.fileno(), err.fileno()]
            try:
                server.connect(self.address)
                socket.send_fds(server, [json.dumps(call).encode()], streams)
                pid = int(server.recv(MAX_MESSAGE))
            except ConnectionError as error:
                errors = Path(self.address).with_name("errors").read_text()
                raise RuntimeError(f"The command server has ended:\n{errors}") from error
            server.settimeout(timeout)
            try:
                status = int(server.recv(MAX_MESSAGE))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["perfdash", *arguments], timeout) from None
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode().replace("\r\n", "\n"))
        return os.waitstatus_to_exitcode(status), texts[0], texts[1], pid

    @property
    def address(self) -> str:
        """The path of its socket."""
        if self._shared:
            return self._shared
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="commands-")
            with (
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
                open(f"{self._folder.name}/errors", "w") as errors,
            ):
                listening.bind(f"{self._folder.name}/socket")
                listening.listen(64)
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.command_server", str(listening.fileno()), str(os.getpid())],
                    cwd=ROOT,
                    pass_fds=[listening.fileno()],
                    stdin=subprocess.DEVNULL,
                    stderr=errors,  # pytest-xdist would lose it
                )
        return f"{self._folder.name}/socket"

    def environment(self, folder: Path) -> Path:
        """An environment for PERFDASH_VENV: its `python` is this one, its `perfdash` calls this server.

        What it measures it samples a few times only, in warm workers.
        """
        bin_folder = folder / "bin"
        bin_folder.mkdir(parents=True)
        client = [sys.executable, "-IS", str(CLIENT), self.address, self.workers.address]
        for name, words in {"python": [sys.executable], "perfdash": client}.items():
            program = bin_folder / name
            program.write_text(SCRIPT.format(shlex.join(words)))
            program.chmod(0o755)
        return folder

    def close(self) -> None:
        self.workers.close()
        if self._folder is not None and self._process is not None:
            self._process.kill()
            self._process.wait()
            self._folder.cleanup()


def serve(listening: socket.socket, starter: int) -> None:
    """Forks for every call, and ends with its starter; returns in a forked process only."""
    import perfdash

    linux.die_with_parent(starter)
    gc.disable()  # until all is imported: nothing of it ends, and looking for it takes seconds
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
    perfdash.cli.command()
    _compute_tables()
    assert "torch" not in sys.modules
    # Collections in the forked processes need not visit, and so copy, all that was imported.
    gc.collect()
    gc.freeze()
    gc.enable()
    events = selectors.DefaultSelector()
    events.register(listening, selectors.EVENT_READ)
    while True:
        for key, _ in events.select():
            if key.fileobj is listening:
                connection, _ = listening.accept()
                message, streams, _, _ = socket.recv_fds(connection, MAX_MESSAGE, 3)
                pid = os.fork()
                if pid == 0:
                    events.close()
                    listening.close()
                    connection.close()
                    linux.die_with_parent(os.getppid())
                    _become(json.loads(message), *streams)
                    return
                for descriptor in streams:
                    os.close(descriptor)
                with contextlib.suppress(OSError):  # its caller may be gone already; select tells below
                    connection.send(str(pid).encode())
                ended = os.pidfd_open(pid)
                events.register(ended, selectors.EVENT_READ, (pid, connection))
                events.register(connection, selectors.EVENT_READ, (pid, ended))
            elif events.get_map().get(key.fd) is key:
                pid, _ = key.data
                if isinstance(key.fileobj, int):
                    connection, ended = key.data[1], key.fileobj
                else:  # its caller is gone
                    connection, ended = key.fileobj, key.data[1]
                    os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                events.unregister(connection)
                events.unregister(ended)
                os.close(ended)
                with connection, contextlib.suppress(OSError):
                    connection.send(str(status).encode())


def _compute_tables() -> None:
    """Computes what every bisection would compute first: the same whatever is bisected."""
    from perfdash.bisection import search
    from perfdash.bisection.culprit_confirmation import MOST_PAIRS
    from perfdash.stats.confirmation_test import FALSE_ALARM, pairs_needed, plan
    from perfdash.stats.intervals import CONFIDENCE

    search._information_table()
    for deviations in range(1, 9):
        pairs = pairs_needed(deviations, 1.0, most=MOST_PAIRS)
        plan(pairs, FALSE_ALARM / 2, (1 - CONFIDENCE) / 2)


def _become(call: dict, *streams: int) -> None:
    """Makes this process what the caller would have started."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # The server ignores Ctrl-C where a shell started it in the background, as ci/test.sh does.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if call["umask"] is not None:
        os.umask(call["umask"])
    sys.stdout = io.TextIOWrapper(_stream(1), encoding="utf-8", errors="strict")
    sys.stderr = io.TextIOWrapper(
        _stream(2), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    os.sched_setaffinity(0, call["cores"])
    os.environ.clear()
    os.environ.update(call["env"])
    os.chdir(call["cwd"])
    sys.path[0] = call["cwd"]
    sys.argv = ["perfdash", *call["arguments"]]
    tempfile.tempdir = None
    if call["workers"]:
        use_warm_workers(call["workers"])
        if call["quickly"]:
            take_few_samples()


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
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    _end(_run())
