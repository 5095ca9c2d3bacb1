"""Measure a build by a case in perfdash's worker, or by a user's command.

Exit codes of a command are those of `git bisect run`: 0 good, 125 skip, 1 to 127 bad; more, or a signal, ends
the bisection.
"""

from __future__ import annotations

import math
import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from perfdash.bisection.environments import BuildStopped, BuiltEnvironment
from perfdash.bisection.environments.build_command import Commands, TimedOut
from perfdash.bisection.environments.interpreter import plain_environment
from perfdash.bisection.metrics import BAD, GOOD, SKIP, Reading, reading_of
from perfdash.errors import MachineError
from perfdash.files import finite
from perfdash.metrics import Metric
from perfdash.records import to_json
from perfdash.redaction import mask_secrets
from perfdash.runner.alternating_builds import AlternatingBuilds, Environment
from perfdash.runner.cores import Locks, core_names
from perfdash.suites.case_selection import Planned

CODE_SKIP, CODE_LAST_BAD = 125, 127
TIMEOUT, NO_NUMBER, FAILED = "timeout", "no number", "failed"


class Measurer(Protocol):
    """Measures builds. Use as a context manager: it holds the measured cores."""

    def __enter__(self) -> Measurer:
        """Take the cores."""

    def __exit__(self, *_: object) -> None:
        """Release the cores."""

    def measure(self, built: BuiltEnvironment, log: Path) -> tuple[Reading, dict[str, Any]]:
        """Measure a build once: the reading, and the whole record of it."""

    def screen(self, built: BuiltEnvironment, log: Path) -> Mapping[str, Any] | None:
        """What compiling produces under a build: {text, loaded}; None where it cannot be told."""

    def stop(self) -> None:
        """End the measurement that is running, from another thread."""


class CaseMeasurer:
    """Measures a case by perfdash's worker."""

    def __init__(self, builds: AlternatingBuilds, planned: Planned, metric: Metric) -> None:
        self._builds = builds
        self._planned = planned
        self._metric = metric
        self.stop = builds.stop

    def __enter__(self) -> CaseMeasurer:
        self._builds.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._builds.__exit__(*error)

    def measure(self, built: BuiltEnvironment, log: Path) -> tuple[Reading, dict[str, Any]]:
        environment = Environment(str(built.python), tuple(sorted(built.variables().items())))
        result = self._builds.measure(self._planned, environment, log)
        return reading_of(self._metric, result), finite(to_json(result))

    def screen(self, built: BuiltEnvironment, log: Path) -> Mapping[str, Any] | None:
        environment = Environment(str(built.python), tuple(sorted(built.variables().items())))
        structure = self._builds.structure(self._planned, environment, log)
        return {name: structure[name] for name in ("text", "loaded") if name in structure}


class CommandMeasurer:
    """Runs a user's command in each build. A command that prints a number has its own cores."""

    def __init__(
        self,
        command: Sequence[str],
        metric: Metric,
        cores: Sequence[int] = (),
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
        time_limit_s: float | None = None,
    ) -> None:
        """It runs in `folder`, by default in the build's files. variables: the user's own."""
        self._command = list(command)
        self._shown = shlex.join(mask_secrets(self._command))
        self._metric = metric
        self._cores = () if metric.is_answer else tuple(cores)
        self._locks = Locks()
        self._folder = folder
        self._variables = dict(variables or {})
        self._limit_s = time_limit_s
        self._stop = threading.Event()

    def __enter__(self) -> CommandMeasurer:
        self._locks = Locks.take(core_names(self._cores))
        return self

    def __exit__(self, *_: object) -> None:
        self._locks.close()

    def screen(self, built: BuiltEnvironment, log: Path) -> None:
        """A command tells nothing of its code."""

    def stop(self) -> None:
        """End the command that is running, from another thread."""
        self._stop.set()

    def measure(self, built: BuiltEnvironment, log: Path) -> tuple[Reading, dict[str, Any]]:
        """Run the command once. Raises MachineError where it ends the bisection, KeyboardInterrupt."""
        commands = Commands(log, self._locks.fds, self._cores, self._stop, self._limit_s)
        with TemporaryDirectory(prefix="perfdash-") as folder:
            # Only its standard output holds the number; its standard error goes into the log.
            stdout = Path(folder, "stdout")
            # A script, so that no secret in the command gets into the log.
            script = Path(folder, "command")
            line = f"exec {shlex.join(self._command)} >{shlex.quote(str(stdout))}\n"
            script.write_bytes(os.fsencode(line))
            with log.open("ab") as file:
                file.write(os.fsencode(f"$ {self._shown}\n"))
            env = command_environment(built, self._variables)
            try:
                code = commands.run("sh", script, cwd=self._folder or built.folder, env=env)
            except TimedOut as error:
                return Reading(TIMEOUT, message=str(error)), {}
            except BuildStopped as error:
                raise KeyboardInterrupt from error
            output = stdout.read_text(errors="replace") if stdout.exists() else ""
        with log.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{output}\n(exit code {code})\n")
        return self._reading(code, output, log), {}

    def _reading(self, code: int, output: str, log: Path) -> Reading:
        if code < 0 or code > CODE_LAST_BAD:
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            raise MachineError(
                f"{self._shown} ended {how}, which ends the bisection (125 skips a revision); "
                f"its log is {log}"
            )
        if code == CODE_SKIP:
            return Reading(SKIP, message="the command skips it (exit code 125)")
        if self._metric.is_answer:
            return Reading(BAD if code else GOOD)
        if code:
            return Reading(FAILED, message=f"the command ended with exit code {code}")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        value = _number(lines[-1]) if lines else None
        if value is None or value <= 0:
            last = repr(lines[-1][:80]) if lines else "nothing"
            return Reading(NO_NUMBER, message=f"its last line is to be one number above 0, and is {last}")
        return Reading("pass", value)


def command_environment(built: BuiltEnvironment, variables: Mapping[str, str]) -> dict[str, str]:
    """The command's variables: `python` is the build's interpreter, and imports find the build first.

    variables: the user's own. Secrets that are not among these are left out.
    """
    env = plain_environment()
    env["PATH"] = os.pathsep.join([str(built.python.parent), env.get("PATH", os.defpath)])
    env.update(
        PERFDASH_PYTHON=str(built.python),
        PERFDASH_REVISION=built.revision.id,
        PERFDASH_BUILD=str(built.folder),
        PYTHONDONTWRITEBYTECODE="1",
    )
    env.update(built.variables())
    if "PYTHONPATH" in variables:  # the build's part comes first: it is what is measured
        paths = filter(None, [env.get("PYTHONPATH"), variables["PYTHONPATH"]])
        variables = {**variables, "PYTHONPATH": os.pathsep.join(paths)}
    return {**env, **variables}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
