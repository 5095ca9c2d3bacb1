"""A bisection at work until it is at its end, stopped or interrupted; then what it has come to is told."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import typer

from perfdash.bisection import events
from perfdash.bisection.engine import Drive, LimitReached
from perfdash.bisection.journal import Journal
from perfdash.bisection.replay import Course
from perfdash.bisection.result import Account, account
from perfdash.cli.bisect.world import Machine
from perfdash.errors import MachineError, PerfdashError, UsageError
from perfdash.report.markdown import plain
from perfdash.runner import orphans, scratch
from perfdash.runner.cores import away_from
from perfdash.settings import RunSettings

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DONE, STOPPED, INTERRUPTED, FAILED = "done", "stopped", "interrupted", "failed"


@dataclass(frozen=True)
class Going:
    """All that a bisection goes on with."""

    journal: Journal
    course: Course
    machine: Machine
    settings: RunSettings
    most_builds: int | None
    as_json: bool
    cores: Sequence[int]


def go(going: Going) -> int:
    """The exit code. Whatever happens, what was seen stays, and the reports say it."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _interrupt)
    orphans.end_strays()
    scratch.sweep()
    folder = going.machine.folder = going.journal.folder.absolute()
    state: str = DONE
    failed: PerfdashError | None = None
    try:
        with (
            away_from([going.cores]),
            Drive(going.course, going.journal, going.machine, tell, going.most_builds) as drive,
        ):
            drive.run()
    except LimitReached:
        state = STOPPED
    except KeyboardInterrupt:
        state = INTERRUPTED
    except PerfdashError as error:
        state, failed = FAILED, error
    except OSError as error:  # no room for a log or a temporary folder
        where = error.filename or folder
        state, failed = FAILED, MachineError(f"{where}: {error.strerror or error}")
    try:
        going.course.take(going.journal.append({"event": events.ENDED, "state": state}))
    except PerfdashError as error:
        failed = failed or error
    from perfdash.cli.bisect.telling import told, write_reports

    said = account(going.course)
    write_reports(folder, said)
    if not going.settings.no_history:
        from perfdash.cli.bisect.filing import file

        file(going.settings, going.course, said)
    if failed:
        tell(f"To go on: perfdash bisect --resume {quote(str(folder))}")
        raise failed
    if said.word == "end not measured":
        raise UsageError(_of_ends(said, going.journal.logs))
    typer.echo(told(said, going.as_json), nl=False)
    tell(f"Saved in {folder}")
    if state != DONE:
        why = f"--max-builds {going.most_builds} reached" if state == STOPPED else "Interrupted"
        tell(f"{why}. To go on: perfdash bisect --resume {quote(str(folder))}")
    return 130 if state == INTERRUPTED else 0


def _of_ends(said: Account, logs: Path) -> str:
    """Which end is at fault, and why."""
    top = said.ranges[0]
    lines = []
    for name, end in (("good", top.good), ("bad", top.bad)):
        for skipped in top.skipped:
            if skipped.id == end.id:
                log = f"; its log is {skipped.log}" if skipped.log else ""
                lines.append(f"--{name} {end.label}: {skipped.why}{log}")
    other = "exit-code" if said.command else "status"
    hint = "" if said.kind == "status" else f" (--metric {other} looks for the change of that)"
    lines.append(f"What it said meanwhile is in {logs}")
    return "an end of the range cannot be measured, so nothing can be told" + hint + ":\n" + "\n".join(lines)


def tell(line: str) -> None:
    """A line for whoever looks on."""
    try:
        typer.echo(plain(line, 1000), err=True)
    except (OSError, ValueError):  # whoever looked on is gone: no reason to stop
        pass


def _interrupt(*_: object) -> None:
    # Once: what has been seen is to be told whole, though a shell and a time limit may both send one.
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
