"""Executors run orders in slots. The local executor has a thread for each slot of this machine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from perfdash.errors import PerfdashError
from perfdash.runner.cores import compile_cores, gpus_of
from perfdash.runner.messages import Options, Order, ProcessOutcome, options_of
from perfdash.runner.notebook_model import NotebookModel
from perfdash.runner.slot import Slot
from perfdash.runner.worker_limits import RunStopped, Stop
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned

NO_FREE_CORE = "NoFreeCore"  # the type of the error where a slot had no core, so that nothing was begun


@dataclass(frozen=True)
class Message:
    """An event of a slot. `kind` is phase (value: its name), answer (an Answer) or failed (an exception)."""

    slot: int
    kind: str
    value: Any


class Executor(Protocol):
    """Runs orders in slots, which are numbered from 0. A slot takes one order at a time."""

    on_activity: Callable[[str], None]
    """Receives what the first slot does in introduce() and null(); called from any thread."""

    has_fixed_slots: bool
    """Whether a slot keeps its cores and its GPU; in a cluster any worker gets the next order."""

    @property
    def slots(self) -> int: ...

    def introduce(self, planned: Sequence[Planned]) -> list[dict[str, Any]]:
        """Slot.introduce of all slots; raises the first error."""

    def null(self, like: Planned, processes: int, slots: int | None = None) -> list[list[ProcessOutcome]]:
        """Slot.null of the first `slots` (all) at the same time."""

    def shrink(self, slots: int) -> None:
        """Give up all slots but the first `slots`."""

    def start(self, slot: int, order: Order, log: Path) -> None:
        """Give an order to a free slot; the answer comes as a message."""

    def wait(self, timeout_s: float | None) -> Message | None:
        """The next message, None when there is none in time."""

    def close(self) -> None:
        """End every order under way and all processes."""


class LocalExecutor:
    """Slots on this machine."""

    has_fixed_slots = True

    def __init__(
        self,
        slots: Sequence[Sequence[int]],
        options: Options,
        logs: Path,
        gpus: Sequence[str] = (),
        notebook: NotebookModel | None = None,
        compile_cores: Sequence[Sequence[int]] = (),
    ) -> None:
        """`gpus`, `compile_cores`: one entry a slot, or none."""
        self.on_activity: Callable[[str], None] = lambda text: None
        self._logs = logs
        self._stop = Stop()
        self._slots = [
            Slot(
                cores,
                options,
                number=number,
                gpu=gpus[number] if gpus else None,
                compile_cores=compile_cores[number] if compile_cores else (),
                stop=self._stop,
                on_activity=self._activity if number == 0 else None,
                notebook=notebook,
            )
            for number, cores in enumerate(slots)
        ]
        self._inboxes: list[queue.SimpleQueue[Callable[[Slot], Any] | None]] = []
        self._outbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> LocalExecutor:
        """Takes the cores. Raises MachineError where another run measures on one of them."""
        entered: list[Slot] = []
        try:
            for slot in self._slots:
                entered.append(slot.__enter__())
        except BaseException:
            for slot in entered:
                slot.__exit__()
            self._stop.close()
            raise
        for number, slot in enumerate(self._slots):
            inbox: queue.SimpleQueue[Callable[[Slot], Any] | None] = queue.SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(number, slot, inbox), daemon=True)
            thread.start()
            self._inboxes.append(inbox)
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def slots(self) -> int:
        return len(self._inboxes)

    def introduce(self, planned: Sequence[Planned]) -> list[dict[str, Any]]:
        return self._everywhere(lambda slot: slot.introduce(planned), self.slots)

    def null(self, like: Planned, processes: int, slots: int | None = None) -> list[list[ProcessOutcome]]:
        log = self._logs / "null.log"
        return self._everywhere(lambda slot: slot.null(like, processes, log), slots or self.slots)

    def shrink(self, slots: int) -> None:
        for inbox, thread in zip(self._inboxes[slots:], self._threads[slots:], strict=True):
            inbox.put(None)
            thread.join()
        del self._inboxes[slots:], self._threads[slots:], self._slots[slots:]

    def start(self, slot: int, order: Order, log: Path) -> None:
        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "phase":
                self._outbox.put(Message(slot, "phase", event["name"]))

        self._inboxes[slot].put(lambda running: running.measure(order, log, on_event))

    def wait(self, timeout_s: float | None) -> Message | None:
        try:
            return self._outbox.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        if self._threads:
            self._stop.set()
            self.shrink(0)
            self._stop.close()

    def _activity(self, text: str) -> None:
        self.on_activity(text)

    def _everywhere(self, work: Callable[[Slot], Any], slots: int) -> list[Any]:
        for inbox in self._inboxes[:slots]:
            inbox.put(work)
        values: dict[int, Any] = {}
        while len(values) < slots:
            message = self._outbox.get()
            if message.kind == "failed":
                raise message.value
            if message.kind == "answer":
                values[message.slot] = message.value
        return [values[slot] for slot in range(slots)]

    def _serve(self, number: int, slot: Slot, inbox: queue.SimpleQueue[Any]) -> None:
        """Run the orders of one slot, in a thread of its own."""
        try:
            while (work := inbox.get()) is not None:
                try:
                    self._outbox.put(Message(number, "answer", work(slot)))
                except PerfdashError as error:
                    self._outbox.put(Message(number, "failed", error))
        except RunStopped:
            pass
        except BaseException as error:  # a fault of ours: the run must end, not wait for ever
            self._outbox.put(Message(number, "failed", error))
        finally:
            slot.__exit__()


def open_executor(
    settings: RunSettings, cores: Sequence[tuple[int, ...]], logs: Path, notebook: NotebookModel | None = None
) -> AbstractContextManager[Any]:
    """The executor that the settings name: slots of this machine, or a Dask cluster. Logs go to a folder.

    `notebook`: the model of a case from a notebook, which stays on this machine.
    """
    chosen = options_of(settings)
    if settings.executor == "dask":
        from perfdash.runner.dask_executor import DaskExecutor

        return DaskExecutor(settings.scheduler or "", chosen, logs)
    gpus = gpus_of(settings)[: len(cores)]
    return LocalExecutor(cores, chosen, logs, gpus, notebook, compile_cores(cores, settings))
