"""Show the progress of a run: live on a terminal, lines in logs."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perfdash.records import Case, Result
from perfdash.report.terminal_tables import one_line
from perfdash.runner.session import Watcher


@contextmanager
def open_progress() -> Iterator[Watcher]:
    """A live view where standard output is a terminal, else plain lines."""
    if not sys.stdout.isatty():
        yield Plain()
        return
    from rich.live import Live

    # No refresh of its own: a thread that redraws ten times a second costs a core some of its time.
    with Live(auto_refresh=False, transient=True) as live:
        yield Terminal(live)


class Plain:
    """One plain line per event, for a log."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        _line(text)

    def case_started(self, number: int, total: int, case: Case) -> None:
        _line(f"[{number}/{total}] {case.suite} {case.model} {case.dtype} {case.backend} ...")

    def phase(self, case: Case, name: str) -> None:
        pass

    def case_done(self, number: int, total: int, result: Result) -> None:
        left = _left(self._start, number, total)
        _line(f"[{number}/{total}] {one_line(result)}{f'  ({left} left)' if left else ''}")


class Terminal:
    """A live view of a few lines, redrawn at every event."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._start = time.monotonic()
        self._notes: deque[str] = deque(maxlen=3)
        self._last: deque[str] = deque(maxlen=8)
        self._head = "starting"
        self._phases: dict[Case, str] = {}

    def say(self, text: str) -> None:
        self._notes.append(text)
        self._draw()

    def case_started(self, number: int, total: int, case: Case) -> None:
        left = _left(self._start, number - 1, total)
        done = number - 1 - len(self._phases)
        self._head = f"{done}/{total} done{f', {left} left' if left else ''}"
        self._phases[case] = "starting"
        self._draw()

    def phase(self, case: Case, name: str) -> None:
        self._phases[case] = f"{name} (since {time.strftime('%H:%M:%S')})"
        self._draw()

    def case_done(self, number: int, total: int, result: Result) -> None:
        self._last.append(one_line(result))
        self._phases.pop(result.case, None)
        self._draw()

    def _draw(self) -> None:
        from rich.text import Text

        busy = [
            f"  {case.suite} {case.model} {case.dtype} {case.backend}: {phase}"
            for case, phase in self._phases.items()
        ]
        lines = [*self._notes, *self._last, "", self._head, *busy]
        self._live.update(Text("\n".join(lines)), refresh=True)


def _line(text: str) -> None:
    """Print a line. A reader that has gone away (`| head`) does not end the run."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  for the rest of the process


def _left(start: float, done: int, total: int) -> str:
    """Time left at the pace so far, in words; empty if unknown or over."""
    if not 0 < done < total:
        return ""
    seconds = (time.monotonic() - start) / done * (total - done)
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"
