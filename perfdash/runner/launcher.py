"""Starting a fork parent under an interpreter and sending it one job after another."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfdash.child_environment import HUB, without_secrets
from perfdash.errors import MachineError
from perfdash.files import TemporaryFolder
from perfdash.records import Job, to_json
from perfdash.runner import orphans
from perfdash.runner.allocator import preload
from perfdash.runner.messages import ProcessOutcome
from perfdash.runner.notebook_model import NotebookModel
from perfdash.runner.worker_limits import (
    GRACE_S,
    MAX_MESSAGE,
    CaseMonitor,
    MemoryGroup,
    OnEvent,
    RunStopped,
    Stop,
    ready_of,
)
from perfdash.suites.suite_file import NOTEBOOK

HELLO_S = 300.0  # importing torch from a cold network disk takes minutes
_NO_TORCH = 77  # exit code of an interpreter that finds no torch
WATCHDOG_S = 5.0  # for the watchdog to end what is below it
# They would override --tf32 in some libraries alone (worker/device.py refuses those of --env).
_TF32_OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
_REMOVED = ("PYTHONHOME", "VIRTUAL_ENV", *_TF32_OVERRIDES)
_BY_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_FIXED = {
    "PYTHONUNBUFFERED": "1",
    "TORCH_WARM_POOL": "0",  # a pool started at import would be shared by all forks
    "TOKENIZERS_PARALLELISM": "false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking whether there is a GPU must not start CUDA
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML and runner/gpus.py count
}
NOT_FROM_THE_SHELL = frozenset({*_REMOVED, *_BY_THREADS, *_FIXED})  # what the shell sets reaches no worker
_PIPE_BYTES = 1 << 20  # so that a model that prints does not wait for the runner


@dataclass(frozen=True)
class Launch:
    """What a fork parent is started with; cases that agree in it share one."""

    python: str
    cores: tuple[int, ...]
    threads: int
    packages: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    allocator_library: str | None = None  # preloaded; None for the C library's own malloc


class ForkParent:
    """A running fork parent. Use as a context manager: at the end no process of it is left."""

    def __init__(
        self,
        launch: Launch,
        locks: tuple[int, ...] = (),
        stop: Stop | None = None,
        notebook: NotebookModel | None = None,
    ) -> None:
        """`locks` are descriptors that its watchdog holds; `stop` ends the wait for its start.

        `notebook`: the model of the jobs whose loader is that of notebooks.
        """
        self.launch = launch
        self.forks = 0  # processes that it has been asked for
        self.hello: dict[str, Any] = {}
        self._locks = locks
        self._stop = stop
        self._notebook = notebook
        self._mark = orphans.new_mark()
        self._home: TemporaryFolder | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._watch: CaseMonitor | None = None

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
        home = self._make_home()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        orders = {
            "control": theirs.fileno(),
            "locks": list(self._locks),
            "cores": list(self.launch.cores),
            "packages": list(self.launch.packages),
        }
        self.log = home / "worker.log"
        try:
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    [_interpreter(self.launch.python), "-m", "perfdash.worker", json.dumps(orders)],
                    cwd=home,
                    env={**environment(self.launch, os.environ), orphans.MARK: self._mark},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs.fileno(), *self._locks),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise _not_started(self.launch.python, error) from error
        finally:
            theirs.close()
        self._control = ours
        message = self._receive(HELLO_S, self._stop)
        if message is None:
            tail = _tail(self.log)
            raise MachineError(f"the worker under {self.launch.python} did not start:\n{tail}")
        self.hello = message
        if "error" in self.hello:
            raise _without_torch(self.launch.python, self.hello["error"].strip().splitlines()[-1])

    def _make_home(self) -> Path:
        """The folder that the worker starts in.

        Only perfdash becomes importable there, not the packages that are installed beside it here: a
        torch from this environment under that interpreter would be a silent wrong measurement.
        """
        self._home = TemporaryFolder()
        home = Path(self._home.path)
        try:
            (home / "perfdash").symlink_to(Path(__file__).resolve().parents[1], target_is_directory=True)
        except OSError as error:
            raise MachineError(f"no worker can be started in {home}: {error.strerror}") from error
        return home

    @property
    def alive(self) -> bool:
        """Whether it can take another case."""
        return self._process is not None and self._process.poll() is None

    def run(
        self,
        job: Job,
        log: Path,
        on_event: OnEvent = lambda event: None,
        stop: Stop | None = None,
    ) -> ProcessOutcome:
        """Measures one job, its output appended to `log`; ends it when it passes one of its limits.

        Raises RunStopped when `stop` is set meanwhile, the case ended.
        """
        assert self._control is not None
        self.forks += 1
        kills = orphans.oom_kills()
        with _memory_group(job) as group:
            if group:
                job = replace(job, group=str(group.procs))
            watch = self._send(job, log, group, on_event, stop)
            if watch is None:
                self.close()
                return ProcessOutcome(memory_limit_bytes=job.memory_limit_bytes)
            self._watch = watch
            outcome = watch.run()
            if group and group.oom_kills():
                outcome.oom_killed = "limit"
            elif orphans.oom_kills() > kills:
                outcome.oom_killed = "kernel"
        if outcome.status is None:
            self.close()  # lost, or stuck: the next case gets a new one
        self._watch = None
        return outcome

    def _send(
        self, job: Job, log: Path, group: MemoryGroup | None, on_event: OnEvent, stop: Stop | None
    ) -> CaseMonitor | None:
        """The job with the pipes for its events and output; None when the fork parent is gone."""
        assert self._control is not None
        pipes = [os.pipe(), os.pipe()]
        (events, events_writer), (output, output_writer) = pipes
        with contextlib.suppress(OSError):  # a user may have no pages left for larger pipes
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            message = json.dumps(to_json(job)).encode()
            own = [self._notebook.descriptor] if self._notebook and job.loader == NOTEBOOK else []
            socket.send_fds(self._control, [message], [events_writer, output_writer, *own])
        except OSError:
            for fd in (events, output):
                os.close(fd)
            return None
        finally:
            os.close(events_writer)
            os.close(output_writer)
        return CaseMonitor(
            self._control,
            job,
            events=events,
            output=output,
            log=log,
            group=group,
            on_event=on_event,
            stop=stop,
        )

    def _receive(self, timeout_s: float, stop: Stop | None = None) -> dict[str, Any] | None:
        assert self._control is not None
        ready = ready_of([self._control.fileno(), *([stop.fd] if stop else [])], timeout_s)
        if stop and stop.fd in ready:
            raise RunStopped
        try:
            data = self._control.recv(MAX_MESSAGE) if ready else b""
        except OSError:
            data = b""
        return json.loads(data) if data else None

    def close(self) -> None:
        """Ends the fork parent, the case it is on and everything that they have started.

        The watchdog does it when the control socket closes; what is left after that (a watchdog that was
        killed or frozen) is found by its mark.
        """
        with uninterrupted():
            if self._control is not None:
                with contextlib.suppress(OSError):
                    self._control.shutdown(socket.SHUT_RDWR)
                self._control.close()
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(WATCHDOG_S)
                orphans.kill_session(self._process.pid)
                if self._watch and self._watch.case_pid:
                    orphans.kill_session(self._watch.case_pid)
                orphans.end_marked(self._mark)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(GRACE_S)
                self._process = None  # its number may be another's from now on
            if self._home is not None:
                self._home.remove()
                self._home = None


@contextlib.contextmanager
def _memory_group(job: Job) -> Iterator[MemoryGroup | None]:
    """A control group for a job with a limit, where this user may make one."""
    group = MemoryGroup.create(job.memory_limit_bytes) if job.memory_limit_bytes else None
    try:
        yield group
    finally:
        if group:
            group.close()


@contextlib.contextmanager
def uninterrupted() -> Iterator[list[int]]:
    """A second Ctrl-C must not stop the clearing up and saving after the first.

    Yields the signals that come meanwhile.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # One that is ignored (nohup) stays so; one of C code (None) could not be put back.
    before = {number: old for number, old in handlers.items() if old not in (None, signal.SIG_IGN)}
    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def refuse_missing_torch(launch: Launch) -> None:
    """Raise MachineError where an interpreter cannot be started or finds no torch.

    It looks for torch without importing it, which takes no time. What keeps a torch that is there from being
    imported, the worker says.
    """
    look = f"import importlib.util as u, sys; sys.exit({_NO_TORCH} * (u.find_spec('torch') is None))"
    try:
        code = subprocess.run(
            [_interpreter(launch.python), "-c", look],
            cwd="/",  # not the user's folder, from which the worker imports nothing either
            env=environment(launch, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=HELLO_S,
        ).returncode
    except OSError as error:
        raise _not_started(launch.python, error) from error
    except subprocess.TimeoutExpired:
        return
    if code == _NO_TORCH:
        raise _without_torch(launch.python, "no module named torch")


def _not_started(python: str, error: OSError) -> MachineError:
    return MachineError(
        f"{python} cannot be started: {error.strerror}; give an interpreter that has torch (--python)"
    )


def _without_torch(python: str, why: str) -> MachineError:
    return MachineError(
        f"torch does not import under {python}: {why}; install it there (pip install torch), or give "
        "--python an interpreter that has it"
    )


def _interpreter(python: str) -> str:
    """The interpreter by absolute path: the worker starts in a folder of its own."""
    return os.path.abspath(python) if os.sep in python else python


def environment(launch: Launch, inherited: Mapping[str, str]) -> dict[str, str]:
    """The worker's environment: no secrets, threads, no warm compile pool, then what `launch` says.

    The hub of models is offline, and its token left out, unless HF_HUB_OFFLINE is 0.
    """
    online = {**inherited, **dict(launch.env)}.get("HF_HUB_OFFLINE") == "0"
    env = without_secrets(inherited, keep=HUB if online else None)
    for key in _REMOVED:
        env.pop(key, None)
    env.update(dict.fromkeys(_BY_THREADS, str(launch.threads)) | _FIXED)
    env.setdefault("HF_HUB_OFFLINE", "1")
    # torch 2.4 and 2.5 keep no code cache unless told; replicas load the compiled code from it.
    env.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
    env.update(launch.env)
    if launch.allocator_library:
        env["LD_PRELOAD"] = preload(launch.allocator_library, env.get("LD_PRELOAD"))
    return env


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-5:]) or "(it printed nothing)"
    except OSError:
        return "(its log cannot be read)"
