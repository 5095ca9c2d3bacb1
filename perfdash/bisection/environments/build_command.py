"""Run a long command of a build, with a log, a time limit, and an end for all its processes."""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perfdash.bisection.environments import BuildStopped
from perfdash.bisection.sources.git_repository import without_credentials
from perfdash.errors import MachineError
from perfdash.redaction import redact

_POLL_S = 0.1  # interval of checks whether the build must stop
_WATCHED = Path(__file__).with_name("watched_command.py")


class TimedOut(Exception):
    """A command reached its time limit."""


class Commands:
    """Runs the commands of one build one after another, into one log."""

    def __init__(
        self,
        log: Path,
        locks: tuple[int, ...] = (),
        cores: tuple[int, ...] = (),
        stop: threading.Event | None = None,
        time_limit_s: float | None = None,
    ) -> None:
        """time_limit_s: of all commands together. locks: descriptors that their processes hold."""
        self.log = log
        self._locks = locks
        self.cores = cores
        self.stop = stop
        self._limit_s = time_limit_s
        self._deadline = time.monotonic() + time_limit_s if time_limit_s else None

    def run(self, *command: str | Path, cwd: Path, env: Mapping[str, str]) -> int:
        """The exit code of a command, negative for a signal. Raises TimedOut, BuildStopped, MachineError."""
        return self.run_all([command], cwd, env)

    def run_all(self, commands: Sequence[Sequence[str | Path]], cwd: Path, env: Mapping[str, str]) -> int:
        """Run commands up to the first that fails, under one interpreter; like run()."""
        each = [[str(word) for word in command] for command in commands]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        orders = [
            str(theirs.fileno()),
            ",".join(map(str, self._locks)),
            ",".join(map(str, self.cores)),
            str(cwd),
        ]
        for words in each:
            orders += [f"$ {without_credentials(shlex.join(words))}\n", str(len(words)), *words]
        with self.log.open("ab") as log, ours, theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", _WATCHED, *orders],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(), *self._locks),
                start_new_session=True,
            )
            theirs.close()
            try:
                answer = self._wait(ours)
            finally:
                ours.close()  # then the watchdog ends all its processes
                process.wait()
        if answer.startswith("error: "):
            raise MachineError(f"{each[0][0]} cannot be run: {answer.removeprefix('error: ')}")
        return int(answer)

    @contextlib.contextmanager
    def also_locked(self, fd: int) -> Iterator[None]:
        """Hold another lock until all processes of the commands meanwhile have ended."""
        before = self._locks
        self._locks = (*before, fd)
        try:
            yield
        finally:
            self._locks = before

    def text(self) -> str:
        """The last 256 KiB of the log, without credentials."""
        try:
            with self.log.open("rb") as log:
                log.seek(0, 2)
                log.seek(max(0, log.tell() - (256 << 10)))
                return redact(without_credentials(log.read().decode(errors="replace")))
        except OSError:
            return ""

    def mask(self) -> None:
        """Mask credentials and secrets in the log."""
        try:
            text = self.log.read_text(errors="replace")
            if (masked := redact(without_credentials(text))) != text:
                self.log.write_text(masked)
        except OSError:
            pass

    def _wait(self, control: socket.socket) -> str:
        control.settimeout(_POLL_S)
        while True:
            try:
                message = control.recv(4096)
            except TimeoutError:
                message = None
            if message:
                return message.decode(errors="replace")
            if message == b"":
                raise MachineError(f"the command's process was ended from outside; its log is {self.log}")
            if self.stop and self.stop.is_set():
                raise BuildStopped
            if self._deadline and time.monotonic() > self._deadline:
                raise TimedOut(f"it was not done in {self._limit_s:g} s")
