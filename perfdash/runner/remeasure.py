"""Two builds measured in turn on the same cores, pair by pair, until whoever asks has seen enough."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfdash.errors import MachineError
from perfdash.files import dumps
from perfdash.records import Result, to_json
from perfdash.runner.assemble import assemble
from perfdash.runner.journal import append_line
from perfdash.runner.orders import Options, Order
from perfdash.runner.slot import Slot
from perfdash.runner.watch import Stop, Stopped
from perfdash.suites.cases import Planned

FILE = "confirm.jsonl"


@dataclass(frozen=True)
class Pair:
    """One case under both builds, one right after the other."""

    old: Result
    new: Result


Enough = Callable[[Planned, Sequence[Pair]], bool]


class Bench:
    """Slots of this machine, on each of which both builds take turns."""

    def __init__(self, cores: Sequence[tuple[int, ...]], old: Options, new: Options, folder: Path) -> None:
        """`folder` is the run's: every result goes into its confirm.jsonl, and logs beside its logs."""
        self._folder = folder
        self._stop = Stop()
        self._options = {"old": old, "new": new}
        self._slots = [
            {
                name: Slot(each, options, number=number, stop=self._stop)
                for name, options in self._options.items()
            }
            for number, each in enumerate(cores)
        ]
        self._entered: list[Slot] = []
        self._writing = threading.Lock()

    def __enter__(self) -> Bench:
        """Takes the cores. Raises MachineError where another run measures on one of them."""
        try:
            for pair in self._slots:
                # The other side needs no lock of its own: the two never run at once.
                self._entered.append(pair["new"].__enter__())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for pair in self._slots:
            for slot in pair.values():
                slot.__exit__()

    def introduce(self, planned: Sequence[Planned]) -> dict[str, dict[str, Any]]:
        """What each build says of itself: {old, new} -> the environment, as in run.json."""
        return {name: slot.introduce(planned)["environment"] for name, slot in self._slots[0].items()}

    def measure(
        self, planned: Sequence[Planned], enough: Enough, seen: Callable[[Planned, list[Pair]], None]
    ) -> None:
        """Every case in pairs until `enough`; then `seen` is told, from one thread at a time.

        Interrupted (KeyboardInterrupt) what is under way is ended; what was seen stays seen.
        """
        waiting = deque(planned)
        telling = threading.Lock()

        def work(slots: dict[str, Slot]) -> None:
            while True:
                try:
                    each = waiting.popleft()
                except IndexError:
                    return
                pairs: list[Pair] = []
                while not enough(each, pairs):
                    pairs.append(self._pair(slots, each, len(pairs)))
                with telling:
                    seen(each, pairs)

        with ThreadPoolExecutor(len(self._slots)) as pool:
            futures = [pool.submit(work, slots) for slots in self._slots]
            try:
                for future in futures:
                    future.result()
            except BaseException as error:
                waiting.clear()
                self._stop.set()
                if isinstance(error, Stopped):
                    raise KeyboardInterrupt from error
                raise

    def _pair(self, slots: dict[str, Slot], planned: Planned, number: int) -> Pair:
        """One pair; which side comes first changes from pair to pair, so drift hits both alike."""
        order = ("old", "new") if number % 2 == 0 else ("new", "old")
        results = {name: self._one(name, slots[name], planned, number) for name in order}
        return Pair(results["old"], results["new"])

    def _one(self, name: str, slot: Slot, planned: Planned, number: int) -> Result:
        log = self._folder / "logs" / f"{planned.case.name}.confirm{number + 1}.{name}.log"
        answer = slot.measure(Order(planned), log, lambda event: None)
        result = assemble(
            planned,
            answer.outcomes,
            started=answer.started,
            wall_s=answer.wall_s,
            allocator=self._options[name].allocator,
            log=log.name,
        )
        result.conditions.update(answer.where)
        line = {"pair": number + 1, "side": name, "result": to_json(result)}
        with self._writing:
            append_line(self._folder / FILE, dumps(line))
        return result


def beside(options: Options, python: str) -> Options:
    """The same way to measure under another interpreter. Raises MachineError where it is not there."""
    if not os.access(python, os.X_OK):
        raise MachineError(f"{python} is no interpreter that can be run")
    return replace(options, python=python)
