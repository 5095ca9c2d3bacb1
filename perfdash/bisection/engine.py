"""Carry out the next action of a bisection, and write each observation, until nothing is left to do.

Building and measuring are passed in; each observation is in the journal before the next step.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from perfdash.bisection import events
from perfdash.bisection.environments import Builder, Built, Stopped, Unbuildable
from perfdash.bisection.events import Build, Measure
from perfdash.bisection.journal import Journal
from perfdash.bisection.metrics import Reading
from perfdash.bisection.replay import Act, Confirm, Course, Descend, MakeFresh, Stage, why_not
from perfdash.bisection.sources import Revision
from perfdash.errors import MachineError, PerfdashError, UsageError
from perfdash.files import remove_abandoned_folders
from perfdash.runner import orphans
from perfdash.runner.cores import away_from
from perfdash.settings import RunSettings

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DONE, STOPPED, INTERRUPTED, FAILED = "done", "stopped", "interrupted", "failed"


class NoWay(Exception):
    """A way down that leads nowhere; `again`: another time it may."""

    def __init__(self, why: str, again: bool = False) -> None:
        super().__init__(why)
        self.again = again


class LimitReached(Exception):
    """As many builds as were allowed have been made."""


class Workbench(Protocol):
    """What a bisection does its work with."""

    folder: Path  # of the bisection

    def open(self, stage: Stage) -> Builder:
        """The builder of a stage. Raises UsageError, MachineError."""

    def measure(self, built: Built, log: Path, fresh: bool) -> tuple[Reading, dict[str, Any]]:
        """One measurement of an environment, and the whole record of it."""

    def descend(self, course: Course, step: Descend, builder: Builder) -> events.Event:
        """The event of a new stage. Raises NoWay."""

    def stop(self) -> None:
        """Ends the measurement that is under way, from another thread."""


Tell = Callable[[str], None]


class Drive:
    """Use as a context manager: at the end the builds are let go of."""

    def __init__(
        self,
        course: Course,
        journal: Journal,
        workbench: Workbench,
        tell: Tell,
        most_builds: int | None = None,
    ) -> None:
        self._course = course
        self._journal = journal
        self._workbench = workbench
        self._tell = tell
        self._most_builds = most_builds
        self._builders: dict[int, Builder] = {}
        self._built: dict[tuple[int, int, bool], Built] = {}
        self._stop = threading.Event()
        self._stack = ExitStack()

    def __enter__(self) -> Drive:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def record(self, event: events.Event) -> None:
        """An event into the journal, then into the state."""
        self._course.take(self._journal.append(event))

    def run(self) -> None:
        """Until nothing is left to do. Raises LimitReached, UsageError, MachineError, KeyboardInterrupt."""
        while (step := self._course.next_step()) is not None:
            if isinstance(step, Act):
                self._act(step.stage, step.action)
            elif isinstance(step, Descend):
                self._descend(step)
            elif isinstance(step, MakeFresh):
                self._make_fresh(step)
            else:
                self._confirm(step)

    def _act(self, stage: Stage, action: Build | Measure) -> None:
        if isinstance(action, Build):
            self._make(stage, action.places)
        else:
            self._measure(stage, action.place)

    def _builder(self, stage: Stage) -> Builder:
        if stage.number not in self._builders:
            self._builders[stage.number] = self._stack.enter_context(self._workbench.open(stage))
        return self._builders[stage.number]

    def _make(self, stage: Stage, places: Sequence[int]) -> None:
        """Builds some places at once."""
        if self._most_builds is not None:
            counts = self._course.counts()
            places = places[: max(0, self._most_builds - counts["builds"] - counts["failed"])]
            if not places:
                raise LimitReached
        self._builder(stage)
        first: Exception | None = None
        with _threads(stage.question.jobs, self._stop.set) as pool:
            futures = {pool.submit(self._begin, stage, place): place for place in places}
            for future in as_completed(futures):
                try:
                    self._made(stage, futures[future], future)
                except Stopped:
                    pass
                except Exception as error:  # the others are ended
                    first = first or error
                    self._stop.set()
        if first:
            raise first

    def _begin(self, stage: Stage, place: int) -> Built:
        if self._stop.is_set():
            raise Stopped
        self._tell(f"building {_shown(stage, place)}")
        return self._build(stage, place)

    def _build(self, stage: Stage, place: int, fresh: bool = False) -> Built:
        # What failed the other day is tried again at an end: without that there is nothing to tell.
        again = not fresh and place in (0, stage.question.last)
        return self._builder(stage).build(stage.revisions[place], stop=self._stop, fresh=fresh, again=again)

    def _made(self, stage: Stage, place: int, future: Future[Built]) -> None:
        revision = stage.revisions[place]
        try:
            built = future.result()
        except Unbuildable as error:
            self._tell(f"{revision.label} cannot be built: {error.reason}")
            log = str(error.log) if error.log else None
            said = {"why": error.reason, "log": log, "remembered": error.remembered}
            self.record(events.at(events.BROKEN, stage.number, place, revision, **said))
            return
        self._built[stage.number, place, False] = built
        self.record(events.at(events.BUILT, stage.number, place, revision, **_of_build(built)))
        for note in built.notes:
            self._tell(f"{revision.label}: {note}")

    def _environment(self, stage: Stage, place: int, fresh: bool = False) -> Built:
        """A build that was made before: from the cache, and again only where it was pruned."""
        key = stage.number, place, fresh
        if key not in self._built:
            label = stage.revisions[place].label
            try:
                built = self._build(stage, place, fresh)
            except Unbuildable as error:
                raise UsageError(
                    f"{label} was built before, and cannot be built any more: {error.reason}; begin anew"
                ) from error
            except Stopped as error:
                raise KeyboardInterrupt from error
            then = (stage.fresh if fresh else stage.builds)[place].key
            if built.key != then:
                raise UsageError(
                    f"the environment of {label} is another than it was ({then} | {built.key}): other "
                    "packages in the base interpreter, or another recipe? Begin anew"
                )
            self._built[key] = built
        return self._built[key]

    def _measure(self, stage: Stage, place: int) -> None:
        built = self._environment(stage, place)
        revision = stage.revisions[place]
        said = self._taken(stage, revision, built, fresh=False)
        self.record(events.at(events.MEASURED, stage.number, place, revision, **said))
        if stage.end_fails(place):
            raise MachineError(
                f"{revision.label}, an end of the range, was measured before and now fails again and again: "
                f"{why_not(stage.taken[-1].reading)}; its logs are in {self._journal.logs}"
            )

    def _confirm(self, step: Confirm) -> None:
        stage = step.stage
        revision = stage.revisions[step.place]
        built = self._environment(stage, step.place, fresh=True)
        said = self._taken(stage, revision, built, fresh=True)
        culprit = [step.outcome.first, step.outcome.last]
        self.record(events.at(events.CONFIRMED, stage.number, step.place, revision, culprit=culprit, **said))

    def _taken(self, stage: Stage, revision: Revision, built: Built, fresh: bool) -> dict[str, Any]:
        log = (
            self._journal.logs / f"{stage.number}.{_file_name(revision.label)}{'.fresh' if fresh else ''}.log"
        )
        began = time.monotonic()
        with _threads(1, self._workbench.stop) as pool:
            reading, record = pool.submit(self._workbench.measure, built, log, fresh).result()
        number = f" {reading.value:.6g}" if reading.value is not None else ""
        why = f" ({reading.message.splitlines()[0][:200]})" if reading.message else ""
        self._tell(f"measured {revision.label}{' anew' if fresh else ''}: {reading.status}{number}{why}")
        return {
            "environment": built.key,
            "harness": self._course.begun["harness"],
            "seconds": round(time.monotonic() - began, 3),
            "reading": reading.to_json(),
            "record": record,
        }

    def _make_fresh(self, step: MakeFresh) -> None:
        stage, revision = step.stage, step.stage.revisions[step.place]
        self._builder(stage)
        self._tell(f"building {_shown(stage, step.place)} anew, to confirm")
        try:
            built = self._fresh(stage, step.place)
        except Unbuildable as error:
            self.record(events.at(events.NOT_FRESH, stage.number, step.place, revision, why=error.reason))
            return
        self._built[stage.number, step.place, True] = built
        self.record(events.at(events.FRESH, stage.number, step.place, revision, **_of_build(built)))

    def _fresh(self, stage: Stage, place: int) -> Built:
        with _threads(1, self._stop.set) as pool:
            return pool.submit(self._build, stage, place, True).result()

    def _descend(self, step: Descend) -> None:
        stage, place = step.stage, step.outcome.first
        try:
            event = self._workbench.descend(self._course, step, self._builder(stage))
        except NoWay as error:
            said = {"way": step.way, "why": str(error), "again": error.again}
            if error.again:
                self._tell(str(error))
            self.record(events.at(events.DEAD_END, stage.number, place, stage.revisions[place], **said))
            return
        self.record(event)
        into = self._course.stages[-1]
        self._tell(f"{stage.revisions[place].label}: {step.way}: {len(into.revisions)} revisions to look at")


@contextmanager
def _threads(count: int, stop: Callable[[], None]) -> Iterator[ThreadPoolExecutor]:
    """Threads that are told to stop by whatever ends the wait for them: at the end they are waited for."""
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            stop()
            raise


def _of_build(built: Built) -> dict[str, Any]:
    return {
        "environment": built.key,
        "seconds": round(built.seconds, 3),
        "reused": built.reused,
        "packages": built.packages,
        "notes": list(built.notes),
        **({"compiled_from": built.compiled_from} if built.compiled_from else {}),
    }


def _shown(stage: Stage, place: int) -> str:
    revision = stage.revisions[place]
    title = revision.title if len(revision.title) <= 60 else revision.title[:59] + "…"
    return f"{revision.label} {title}".strip() if title != revision.label else revision.label


def _file_name(label: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".-_+" else "-" for letter in label)[:80]


@dataclass(frozen=True)
class Session:
    """What one call of `perfdash bisect` works with; `cores` are the measured ones."""

    journal: Journal
    course: Course
    machine: Workbench
    settings: RunSettings
    most_builds: int | None
    cores: Sequence[int]


def work(session: Session, tell: Tell) -> tuple[str, PerfdashError | None]:
    """Runs a bisection until it is done, stopped or interrupted: its state, and the error that ended it.

    The journal keeps what was seen, however it ends.
    """
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _interrupt)
    orphans.end_strays()
    remove_abandoned_folders()
    folder = session.machine.folder = session.journal.folder.absolute()
    state: str = DONE
    failed: PerfdashError | None = None
    try:
        with (
            away_from([session.cores]),
            Drive(session.course, session.journal, session.machine, tell, session.most_builds) as drive,
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
        session.course.take(session.journal.append({"event": events.ENDED, "state": state}))
    except PerfdashError as error:
        failed = failed or error
    return state, failed


def _interrupt(*_: object) -> None:
    # Once: a shell and a time limit may both send a signal, and the report must still be written whole.
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
