"""Run a bisection: take the next step and record its result, until all is done.

Building and measuring are passed in; each observation is in the journal before the next step.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from perfdash.bisection import events
from perfdash.bisection.environments import Builder, BuildStopped, BuiltEnvironment, Unbuildable
from perfdash.bisection.events import Build
from perfdash.bisection.journal import Journal
from perfdash.bisection.metrics import Reading
from perfdash.bisection.replay import Bisection, BuildFresh, Confirm, Descend, Reopen
from perfdash.bisection.stage import Stage, why_not
from perfdash.errors import MachineError, PerfdashError, UsageError
from perfdash.files import remove_abandoned_folders
from perfdash.runner import orphans
from perfdash.runner.cores import away_from

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DONE, STOPPED, INTERRUPTED, FAILED = "done", "stopped", "interrupted", "failed"


class DeadEnd(Exception):
    """A finer stage that cannot be opened; `again`: a later session may try again."""

    def __init__(self, why: str, again: bool = False) -> None:
        super().__init__(why)
        self.again = again


class LimitReached(Exception):
    """As many builds as were allowed have been made."""


class Workbench(Protocol):
    """Builds and measures for the engine."""

    folder: Path  # of the bisection

    def open(self, stage: Stage) -> Builder:
        """The builder of a stage. Raises UsageError, MachineError."""

    def measure(self, built: BuiltEnvironment, log: Path, fresh: bool) -> tuple[Reading, dict[str, Any]]:
        """One measurement of an environment, and the whole record of it."""

    def screen(self, built: BuiltEnvironment, log: Path) -> Mapping[str, Any] | None:
        """The generated code and loaded files of an environment, without timing; None where unknown."""

    def descend(self, bisection: Bisection, step: Descend, builder: Builder) -> events.Event:
        """The event of a new stage. Raises DeadEnd."""

    def stop(self) -> None:
        """End the measurement that is running, from another thread."""


Notify = Callable[[str], None]  # shows a line to the user


class Engine:
    """One session of a bisection. Use as a context manager: at its end the builds are released.

    `cores` are the measured ones; `history` is the address of the store that takes the result.
    """

    def __init__(
        self,
        bisection: Bisection,
        journal: Journal,
        workbench: Workbench,
        notify: Notify,
        most_builds: int | None = None,
        cores: Sequence[int] = (),
        history: str | None = None,
    ) -> None:
        self.bisection = bisection
        self.journal = journal
        self.most_builds = most_builds
        self.history = history
        self._workbench = workbench
        self._notify = notify
        self._cores = cores
        self._builders: dict[int, Builder] = {}
        self._built: dict[tuple[int, int, bool], BuiltEnvironment] = {}
        self._stop = threading.Event()
        self._stack = ExitStack()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def work(self) -> tuple[str, PerfdashError | None]:
        """Run until it is done, stopped or interrupted. Returns the state, and the error that ended it.

        The journal keeps all observations, however it ends.
        """
        in_main = threading.current_thread() is threading.main_thread()  # Python takes signals there only
        for number in _ENDING if in_main else ():
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, _interrupt)
        orphans.end_strays()
        remove_abandoned_folders()
        folder = self._workbench.folder = self.journal.folder.absolute()
        state: str = DONE
        failed: PerfdashError | None = None
        try:
            with away_from([self._cores]), self:
                self.run()
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
            self.record({"event": events.ENDED, "state": state})
        except PerfdashError as error:
            failed = failed or error
        return state, failed

    def run(self) -> None:
        """Take every step that is left. Raises LimitReached, UsageError, MachineError, KeyboardInterrupt."""
        while (step := self.bisection.next_step()) is not None:
            if isinstance(step, Descend):
                self._descend(step)
            elif isinstance(step, BuildFresh):
                self._build_fresh(step)
            elif isinstance(step, Confirm):
                self._confirm(step)
            elif isinstance(step, Reopen):
                self._reopen(step)
            elif isinstance(step.action, Build):
                self._build_all(step.stage, step.action.places)
            else:
                self._measure(step.stage, step.action.place)

    def record(self, event: events.Event) -> None:
        """Append an event to the journal, then apply it to the state."""
        self.bisection.apply(self.journal.append(event))

    def _record_at(self, kind: str, stage: Stage, place: int, **more: Any) -> None:
        self.record(events.at(kind, stage.number, place, stage.revisions[place], **more))

    def _builder(self, stage: Stage) -> Builder:
        if stage.number not in self._builders:
            self._builders[stage.number] = self._stack.enter_context(self._workbench.open(stage))
        return self._builders[stage.number]

    def _build_all(self, stage: Stage, places: Sequence[int]) -> None:
        """Build some places side by side."""
        if self.most_builds is not None:
            counts = self.bisection.counts()
            places = places[: max(0, self.most_builds - counts["builds"] - counts["failed"])]
            if not places:
                raise LimitReached
        self._builder(stage)

        def build(place: int) -> BuiltEnvironment:
            if self._stop.is_set():
                raise BuildStopped
            self._notify(f"building {_shown(stage, place)}")
            return self._build(stage, place)

        first: Exception | None = None
        with _threads(stage.question.jobs, self._stop.set) as pool:
            futures = {pool.submit(build, place): place for place in places}
            for future in as_completed(futures):
                try:
                    self._record_build(stage, futures[future], future)
                except BuildStopped:
                    pass
                except Exception as error:  # the other builds are ended
                    first = first or error
                    self._stop.set()
        if first:
            raise first

    def _build(self, stage: Stage, place: int, fresh: bool = False) -> BuiltEnvironment:
        # A failed build of an end is tried again: without both ends nothing can be compared.
        again = not fresh and place in (0, stage.question.last)
        return self._builder(stage).build(stage.revisions[place], stop=self._stop, fresh=fresh, again=again)

    def _record_build(self, stage: Stage, place: int, future: Future[BuiltEnvironment]) -> None:
        label = stage.revisions[place].label
        try:
            built = future.result()
        except Unbuildable as error:
            self._notify(f"{label} cannot be built: {error.reason}")
            log = str(error.log) if error.log else None
            self._record_at(
                events.BROKEN, stage, place, why=error.reason, log=log, remembered=error.remembered
            )
            return
        self._built[stage.number, place, False] = built
        self._record_at(events.BUILT, stage, place, **_build_fields(built))
        for note in built.notes:
            self._notify(f"{label}: {note}")

    def _environment(self, stage: Stage, place: int, fresh: bool = False) -> BuiltEnvironment:
        """An earlier build from the cache; built again only if it was pruned."""
        key = stage.number, place, fresh
        if key not in self._built:
            label = stage.revisions[place].label
            try:
                built = self._build(stage, place, fresh)
            except Unbuildable as error:
                raise UsageError(
                    f"{label} was built before and cannot be built now: {error.reason}; start a new bisection"
                ) from error
            except BuildStopped as error:
                raise KeyboardInterrupt from error
            before = (stage.fresh if fresh else stage.builds)[place].key
            if built.key != before:
                raise UsageError(
                    f"the environment of {label} has changed ({before} | {built.key}): does the base "
                    "interpreter have other packages, or is the recipe different? Start a new bisection"
                )
            self._built[key] = built
        return self._built[key]

    def _measure(self, stage: Stage, place: int) -> None:
        if stage.is_to_be_screened(place) and self._is_screened_out(stage, place):
            return
        self._record_at(events.MEASURED, stage, place, **self._measurement(stage, place, fresh=False))
        if stage.end_fails(place):
            raise MachineError(
                f"{stage.revisions[place].label}, an end of the range, was measured before and now fails "
                f"again and again: {why_not(stage.measurements[-1].reading)}; its logs are in "
                f"{self.journal.logs}"
            )

    def _is_screened_out(self, stage: Stage, place: int) -> bool:
        """Whether a build has the code and libraries of another one, so that it is not timed."""
        built, label = self._environment(stage, place), stage.revisions[place].label
        log = self.journal.logs / f"{stage.number}.{_file_name(label)}.screened.log"
        with _threads(1, self._workbench.stop) as pool:
            structure = pool.submit(self._workbench.screen, built, log).result()
        self._record_at(events.SCREENED, stage, place, structure=dict(structure or {}))
        twin = stage.twin_of(place)
        if twin is None:
            return False
        other = stage.revisions[twin].label
        self._notify(f"{label} has the generated code and loaded files of {other}: it is not timed")
        return True

    def _confirm(self, step: Confirm) -> None:
        measurement = self._measurement(step.stage, step.place, fresh=True)
        culprit = [step.outcome.first, step.outcome.last]
        self._record_at(events.CONFIRMED, step.stage, step.place, culprit=culprit, **measurement)

    def _reopen(self, step: Reopen) -> None:
        stage, outcome = step.stage, step.outcome
        culprit = [outcome.first, outcome.last]
        self._record_at(events.REFUTED, stage, outcome.first, culprit=culprit)
        label = stage.revisions[outcome.last].label
        self._notify(f"{label} is refuted by its fresh build: the search continues with these measurements")

    def _measurement(self, stage: Stage, place: int, fresh: bool) -> dict[str, Any]:
        """Measure a build once: the fields of its event."""
        built, label = self._environment(stage, place, fresh), stage.revisions[place].label
        log = self.journal.logs / f"{stage.number}.{_file_name(label)}{'.fresh' if fresh else ''}.log"
        began = time.monotonic()
        with _threads(1, self._workbench.stop) as pool:
            reading, record = pool.submit(self._workbench.measure, built, log, fresh).result()
        self._refuse_edited_model(record)
        number = f" {reading.value:.6g}" if reading.value is not None else ""
        why = f" ({reading.message.splitlines()[0][:200]})" if reading.message else ""
        self._notify(f"measured {label}{' again' if fresh else ''}: {reading.status}{number}{why}")
        return {
            "environment": built.key,
            "harness": self.bisection.begun["harness"],
            "seconds": round(time.monotonic() - began, 3),
            "reading": reading.to_json(),
            "record": record,
        }

    def _refuse_edited_model(self, record: Mapping[str, Any]) -> None:
        """Raise UsageError where a file of the user's model is not as an earlier measurement read it.

        A file that only one of the two read is no edit: a model may import another part under another build.
        """
        files = _model_files(record)
        records = [kept for stage in self.bisection.stages for kept in stage.records.values()]
        for before in map(_model_files, records):
            edited = [name for name, digest in files.items() if before.get(name, digest) != digest]
            if edited:
                raise UsageError(
                    f"{', '.join(edited)} of the model was edited since this bisection began, so old and new "
                    "measurements cannot be compared, and this one is not kept: put the file back and resume "
                    "with --resume, or start a new bisection (its builds come from the cache)"
                )

    def _build_fresh(self, step: BuildFresh) -> None:
        stage, place = step.stage, step.place
        self._builder(stage)
        self._notify(f"building {_shown(stage, place)} again, to confirm")
        try:
            with _threads(1, self._stop.set) as pool:
                built = pool.submit(self._build, stage, place, True).result()
        except Unbuildable as error:
            self._record_at(events.NOT_FRESH, stage, place, why=error.reason)
            return
        self._built[stage.number, place, True] = built
        self._record_at(events.FRESH, stage, place, **_build_fields(built))

    def _descend(self, step: Descend) -> None:
        stage, place = step.stage, step.outcome.first
        try:
            event = self._workbench.descend(self.bisection, step, self._builder(stage))
        except DeadEnd as error:
            if error.again:
                self._notify(str(error))
            self._record_at(events.DEAD_END, stage, place, way=step.way, why=str(error), again=error.again)
            return
        self.record(event)
        count = len(self.bisection.stages[-1].revisions)
        self._notify(f"{stage.revisions[place].label}: {step.way}: {count} revisions to look at")


def _model_files(record: Mapping[str, Any]) -> Mapping[str, str]:
    """The digests of the user's own model files that a measurement read, by path."""
    files: Mapping[str, str] = (record.get("structure") or {}).get("model_files") or {}
    return files


@contextmanager
def _threads(count: int, stop: Callable[[], None]) -> Iterator[ThreadPoolExecutor]:
    """Threads that `stop` ends if waiting for them fails; they are joined at the end."""
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            stop()
            raise


def _build_fields(built: BuiltEnvironment) -> dict[str, Any]:
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


def _interrupt(*_: object) -> None:
    # Only once: a shell and a time limit may both send a signal, and the report must still be written.
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
