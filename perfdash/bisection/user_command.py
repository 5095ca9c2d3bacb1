"""Measure a build by a command of the user's: its exit code, or the number that it prints.

Exit codes are those of `git bisect run`: 0 good, 125 skip, 1 to 127 bad, more or a signal ends the bisection.
"""

from __future__ import annotations

import math
import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perfdash.bisection.environments import Built, Stopped
from perfdash.bisection.environments.build_command import Commands, TimedOut
from perfdash.bisection.environments.interpreter import plain_environment
from perfdash.bisection.metrics import BAD, GOOD, SKIP, Reading
from perfdash.errors import MachineError
from perfdash.metrics import Metric
from perfdash.redaction import mask_secrets
from perfdash.runner.cores import Locks, core_names

CODE_SKIP, CODE_LAST_BAD = 125, 127
TIMEOUT, NO_NUMBER, FAILED = "timeout", "no number", "failed"


class UserCommand:
    """Runs one command in one build after another."""

    def __init__(
        self,
        command: Sequence[str],
        metric: Metric,
        cores: Sequence[int] = (),
        locks: tuple[int, ...] = (),
        folder: Path | None = None,
        more: Mapping[str, str] | None = None,
        time_limit_s: float | None = None,
        shown: Sequence[str] | None = None,
    ) -> None:
        """On these cores; `locks` are descriptors that its processes are to hold.

        In `folder`; without, where the build's files are. `more`: variables of the user's. `shown`: the
        command as it may be told and written down.
        """
        self._command = list(command)
        self._shown = shlex.join(shown or command)
        self._metric = metric
        self._cores = tuple(cores)
        self._locks = locks
        self._folder = folder
        self._more = dict(more or {})
        self._limit_s = time_limit_s
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ends the command that is under way, from another thread."""
        self._stop.set()

    def ask(self, built: Built, log: Path) -> Reading:
        """What it says of a build. Raises MachineError where it ends the bisection, KeyboardInterrupt."""
        commands = Commands(log, self._locks, self._cores, self._stop, self._limit_s)
        with TemporaryDirectory(prefix="perfdash-") as folder:
            printed = Path(folder, "stdout")
            # Of its own output only what it prints is the number; what it complains of goes into the log.
            script = Path(folder, "command")  # so that no secret in it comes into the log
            line = f"exec {shlex.join(self._command)} >{shlex.quote(str(printed))}\n"
            script.write_bytes(os.fsencode(line))
            with log.open("ab") as file:
                file.write(os.fsencode(f"$ {self._shown}\n"))
            try:
                code = commands.run(
                    "sh", script, cwd=self._folder or built.folder, env=variables(built, self._more)
                )
            except TimedOut as error:
                return Reading(TIMEOUT, message=str(error))
            except Stopped as error:
                raise KeyboardInterrupt from error
            said = printed.read_text(errors="replace") if printed.exists() else ""
        with log.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{said}\n(exit code {code})\n")
        return self._reading(code, said, log)

    def _reading(self, code: int, said: str, log: Path) -> Reading:
        if code < 0 or code > CODE_LAST_BAD:
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            raise MachineError(
                f"{self._shown} ended {how}: that ends a bisection (125 skips a revision); "
                f"its log is {log}. perfdash bisect --resume goes on"
            )
        if code == CODE_SKIP:
            return Reading(SKIP, message="the command skips it (exit code 125)")
        if self._metric.is_answer:
            return Reading(BAD if code else GOOD)
        if code:
            return Reading(FAILED, message=f"the command ended with exit code {code}")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        value = _number(lines[-1]) if lines else None
        if value is None or value <= 0:
            last = repr(lines[-1][:80]) if lines else "nothing"
            return Reading(NO_NUMBER, message=f"its last line is to be one number above 0, and is {last}")
        return Reading("pass", value)


class CommandMeasurer:
    """A command of the user's; on cores of its own where it says a number."""

    def __init__(
        self,
        command: Sequence[str],
        metric: Metric,
        cores: Sequence[int],
        in_build: bool,
        variables: Mapping[str, str],
        time_limit_s: float | None,
    ) -> None:
        self._cores = () if metric.is_answer else tuple(cores)
        self._locks = Locks()
        self._arguments = (list(command), metric, in_build, dict(variables), time_limit_s)
        self._asker: UserCommand | None = None

    def __enter__(self) -> CommandMeasurer:
        command, metric, in_build, variables, limit = self._arguments
        self._locks = Locks.take(core_names(self._cores))
        folder = None if in_build else Path.cwd()
        shown = mask_secrets(command)
        self._asker = UserCommand(
            command, metric, self._cores, self._locks.fds, folder, variables, limit, shown
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._locks.close()

    def measure(self, built: Built, log: Path) -> tuple[Reading, dict[str, Any]]:
        assert self._asker
        return self._asker.ask(built, log), {}

    def stop(self) -> None:
        if self._asker:
            self._asker.stop()


def variables(built: Built, more: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: `python` is the build's interpreter, and imports find the build first.

    more: the user's own. Secrets that are not among these are left out.
    """
    own = plain_environment()
    own["PATH"] = os.pathsep.join([str(built.python.parent), own.get("PATH", os.defpath)])
    own.update(
        PERFDASH_PYTHON=str(built.python),
        PERFDASH_REVISION=built.revision.id,
        PERFDASH_BUILD=str(built.folder),
        PYTHONDONTWRITEBYTECODE="1",
    )
    own.update(built.variables())
    if "PYTHONPATH" in more:  # what is measured comes first
        paths = filter(None, [own.get("PYTHONPATH"), more["PYTHONPATH"]])
        more = {**more, "PYTHONPATH": os.pathsep.join(paths)}
    return {**own, **more}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
