"""Show the progress of a run: live on a terminal, lines in logs."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from perfdash.records import Case, Result, variation
from perfdash.report.terminal_tables import one_line
from perfdash.runner.schedule import duration
from perfdash.runner.session import Watcher

if TYPE_CHECKING:  # rich is imported for a terminal only
    from rich.text import Text


# A redraw costs milliseconds of a core that may be measured, so it is seldom.
_REDRAW_S = 2.0


@contextmanager
def open_progress(to_errors: bool = False) -> Iterator[Watcher]:
    """A live view on a terminal, else plain lines; `to_errors`: these go to standard error."""
    if to_errors or not sys.stdout.isatty():
        yield Plain(to_errors)
        return
    from rich.live import Live

    view = Terminal()
    with Live(get_renderable=view.text, refresh_per_second=1 / _REDRAW_S, transient=True) as live:
        view.on_change = live.refresh
        yield view


def _backend(case: Case) -> str:
    return " ".join(word for word in (case.backend, variation(case.configuration, case.dynamic)) if word)


class Plain:
    """One plain line per event, for a log. The phases of a run's only case are events, too."""

    def __init__(self, to_errors: bool = False) -> None:
        self._to_errors = to_errors
        self._total = 0

    def say(self, text: str) -> None:
        self._line(text)

    def _line(self, text: str) -> None:
        if self._to_errors:
            print(text, file=sys.stderr, flush=True)
        else:
            _line(text)

    def activity(self, text: str) -> None:
        pass

    def case_started(self, number: int, total: int, case: Case, left_s: float) -> None:
        self._total = total
        self._line(f"[{number}/{total}] {case.suite} {case.model} {case.dtype} {_backend(case)} ...")

    def phase(self, case: Case, name: str) -> None:
        if self._total == 1:
            self._line(f"  {name}")

    def case_done(self, number: int, total: int, result: Result, left_s: float) -> None:
        left = "" if number >= total else f"  (about {duration(left_s)} left)"
        self._line(f"[{number}/{total}] {one_line(result)}{left}")


class Silent:
    """Shows nothing."""

    def say(self, text: str) -> None:
        pass

    def activity(self, text: str) -> None:
        pass

    def case_started(self, number: int, total: int, case: Case, left_s: float) -> None:
        pass

    def phase(self, case: Case, name: str) -> None:
        pass

    def case_done(self, number: int, total: int, result: Result, left_s: float) -> None:
        pass


class Terminal:
    """A live view of a few lines: the last results, then what is being done and for how long.

    It is redrawn at every event, and every other second for the seconds that count up.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._notes: deque[str] = deque(maxlen=3)
        self._last: deque[str] = deque(maxlen=8)
        self._head = ""
        self._end = 0.0  # when the last case is expected to be done
        self._activity: tuple[str, float] | None = ("starting", time.monotonic())
        self._phases: dict[Case, tuple[str, float]] = {}  # its phase, and when that began

    def say(self, text: str) -> None:
        self._notes.append(text)
        self.on_change()

    def activity(self, text: str) -> None:
        self._activity = text, time.monotonic()
        self.on_change()

    def case_started(self, number: int, total: int, case: Case, left_s: float) -> None:
        done = number - 1 - len(self._phases)
        self._progress(done, total, left_s)
        self._phases[case] = "starting", time.monotonic()
        self.on_change()

    def phase(self, case: Case, name: str) -> None:
        self._phases[case] = name, time.monotonic()
        self.on_change()

    def case_done(self, number: int, total: int, result: Result, left_s: float) -> None:
        self._last.append(one_line(result))
        self._phases.pop(result.case, None)
        self._progress(number, total, left_s)
        self.on_change()

    def _progress(self, done: int, total: int, left_s: float) -> None:
        self._activity = None
        self._head = f"{done}/{total} done"
        self._end = time.monotonic() + left_s

    def text(self) -> Text:
        """The lines of the view, as of now."""
        from rich.text import Text

        now = time.monotonic()
        lines = [*self._notes, *self._last, ""]
        if self._head:
            left_s = self._end - now
            lines.append(self._head + (f", about {duration(left_s)} left" if left_s >= 1 else ""))
        if self._activity:
            text, begin = self._activity
            lines.append(f"{text} ({now - begin:.0f} s)")
        lines += [
            f"  {case.suite} {case.model} {case.dtype} {_backend(case)}: {phase} ({now - begin:.0f} s)"
            for case, (phase, begin) in list(self._phases.items())
        ]
        return Text("\n".join(lines))


def _line(text: str) -> None:
    """Print a line. A reader that has gone away (`| head`) does not end the run."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  for the rest of the process
