"""Starting a fork parent under an interpreter and having it measure one case after another.

Nothing here spins: the parent sleeps in select until a worker speaks, ends or runs out of time.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfdash.errors import MachineError
from perfdash.records import Job, to_json
from perfdash.runner import processes

GRACE_S = 10.0  # for a killed process to be gone
HELLO_S = 300.0  # importing torch from a cold network disk takes minutes
_MAX_MESSAGE = 1 << 22
OnEvent = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Launch:
    """What a fork parent is started with; cases that agree in it share one."""

    python: str
    cores: tuple[int, ...]
    threads: int
    packages: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    allocator_library: str | None = None  # preloaded; None for the C library's own malloc


@dataclass
class Outcome:
    """How a case's process ended, with the events that it sent before."""

    events: list[dict[str, Any]] = field(default_factory=list)
    status: int | None = None  # of waitpid; None when the fork parent was lost with it
    timed_out: bool = False
    oom_killed: bool = False

    def find(self, name: str) -> dict[str, Any] | None:
        """The last event of a name."""
        return next((event for event in reversed(self.events) if event["event"] == name), None)


class ForkParent:
    """A running fork parent. Use as a context manager: at the end no process of it is left."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.hello: dict[str, Any] = {}
        self._home = tempfile.TemporaryDirectory(prefix="perfdash-worker-")
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._case_pid: int | None = None

    def __enter__(self) -> ForkParent:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        home = Path(self._home.name)
        # Only perfdash becomes importable there, not the packages that are installed beside it here:
        # a torch from this environment under that interpreter would be a silent wrong measurement.
        (home / "perfdash").symlink_to(Path(__file__).resolve().parents[1], target_is_directory=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        orders = {
            "control": theirs.fileno(),
            "parent": os.getpid(),
            "cores": list(self.launch.cores),
            "packages": list(self.launch.packages),
        }
        self.log = home / "worker.log"
        try:
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    [_interpreter(self.launch.python), "-m", "perfdash.worker", json.dumps(orders)],
                    cwd=home,
                    env=environment(self.launch, os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise MachineError(
                f"{self.launch.python} cannot be started: {error.strerror}; give --python an interpreter"
            ) from error
        finally:
            theirs.close()
        self._control = ours
        message = self._receive(HELLO_S)
        if message is None:
            tail = _tail(self.log)
            raise MachineError(f"the worker under {self.launch.python} did not start:\n{tail}")
        self.hello = message
        if "error" in self.hello:
            raise MachineError(
                f"torch does not import under {self.launch.python}: "
                f"{self.hello['error'].strip().splitlines()[-1]}; install it there "
                "(pip install torch), or give --python an interpreter that has it"
            )

    @property
    def alive(self) -> bool:
        """Whether it can take another case."""
        return self._process is not None and self._process.poll() is None

    def run(self, job: Job, log: Path, on_event: OnEvent = lambda event: None) -> Outcome:
        """Measures one job, its output appended to `log`; ends it when job.timeout_s has passed."""
        assert self._control is not None
        outcome = Outcome()
        kills = processes.oom_kills()
        try:
            log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise MachineError(f"the log {log} cannot be written: {error.strerror}") from error
        reader, writer = os.pipe()
        try:
            message = json.dumps(to_json(job)).encode()
            socket.send_fds(self._control, [message], [writer, log_fd])
        except OSError:
            os.close(reader)
            return outcome
        finally:
            os.close(writer)
            os.close(log_fd)
        try:
            self._watch(reader, job.timeout_s, outcome, on_event)
        finally:
            os.close(reader)
        outcome.oom_killed = processes.oom_kills() > kills
        if outcome.status is None:
            self.close()  # lost, or stuck: the next case gets a new one
        self._case_pid = None
        return outcome

    def _watch(self, reader: int, timeout_s: float, outcome: Outcome, on_event: OnEvent) -> None:
        assert self._control is not None
        deadline = time.monotonic() + timeout_s
        buffer = b""
        events_open = control_open = True
        while events_open or (control_open and outcome.status is None):
            sources: list[Any] = [self._control] if control_open and outcome.status is None else []
            sources += [reader] if events_open else []
            ready, _, _ = select.select(sources, [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                if outcome.timed_out or not control_open:
                    return  # killed, and still not gone: stuck in the kernel; close() ends the rest
                outcome.timed_out = True
                deadline = time.monotonic() + GRACE_S
                self._kill_case()
            if reader in ready:
                chunk = os.read(reader, 1 << 16)
                events_open = bool(chunk)
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    outcome.events.append(event)
                    on_event(event)
            if self._control in ready:
                data = self._control.recv(_MAX_MESSAGE)
                if not data:  # the fork parent itself is gone, and by PDEATHSIG the case with it
                    control_open = False
                    deadline = time.monotonic() + GRACE_S
                    self._kill_case()
                    continue
                message = json.loads(data)
                if "pid" in message:
                    self._case_pid = message["pid"]
                    if outcome.timed_out:  # it was not known yet when the time was up
                        self._kill_case()
                outcome.status = message.get("exit", outcome.status)

    def _kill_case(self) -> None:
        if self._case_pid is not None:
            processes.kill_session(self._case_pid)

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        assert self._control is not None
        ready, _, _ = select.select([self._control], [], [], timeout_s)
        data = self._control.recv(_MAX_MESSAGE) if ready else b""
        return json.loads(data) if data else None

    def close(self) -> None:
        """Ends the fork parent, the case it is on and everything that they have started."""
        with _uninterrupted():
            if self._case_pid is not None and self.alive:
                self._kill_case()
                # The fork parent now ends what the case has put into sessions of their own.
                with contextlib.suppress(OSError):
                    while (message := self._receive(1.0)) and "exit" not in message:
                        pass
            if self._process is not None:
                processes.kill_session(self._process.pid)
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(GRACE_S)
            if self._control is not None:
                self._control.close()
            self._home.cleanup()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not stop the clearing up after the first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interpreter(python: str) -> str:
    """The interpreter by absolute path: the worker starts in a folder of its own."""
    return os.path.abspath(python) if os.sep in python else python


def environment(launch: Launch, inherited: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """The worker's environment: threads, no warm compile pool, no hub unless asked, then the user's."""
    threads = str(launch.threads)
    env = {key: value for key, value in inherited.items() if key not in ("PYTHONHOME", "VIRTUAL_ENV")}
    env.update(
        OMP_NUM_THREADS=threads,
        MKL_NUM_THREADS=threads,
        OPENBLAS_NUM_THREADS=threads,
        PYTHONUNBUFFERED="1",
        TORCH_WARM_POOL="0",  # a pool started at import would be shared by all forks
        TOKENIZERS_PARALLELISM="false",
        PYTORCH_NVML_BASED_CUDA_CHECK="1",  # asking whether there is a GPU must not start CUDA
    )
    env.setdefault("HF_HUB_OFFLINE", "1")
    # torch 2.4 and 2.5 keep no code cache unless told; replicas load the compiled code from it.
    env.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
    env.update(launch.env)
    if launch.allocator_library:
        env["LD_PRELOAD"] = ":".join(filter(None, [launch.allocator_library, env.get("LD_PRELOAD")]))
    return env


def _tail(log: Path, lines: int = 5) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) or "(it said nothing)"
    except OSError:
        return "(its log cannot be read)"
