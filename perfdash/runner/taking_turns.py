"""Any number of builds measured one after another on the same cores, each time in processes started anew.

Which build comes next is for whoever asks; see remeasure.py for two builds pair by pair.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfdash.records import Result
from perfdash.runner.assemble import assemble
from perfdash.runner.orders import Options, Order
from perfdash.runner.slot import Slot
from perfdash.runner.watch import Stop, Stopped
from perfdash.suites.cases import Planned

KEPT = 4  # builds whose compiled headers are kept meanwhile: the two ends, and two between
_TOLD = ("torch", "torch_git_version", "python")


@dataclass(frozen=True)
class Environment:
    """A build to measure: its interpreter, and variables that put its packages first."""

    python: str
    variables: tuple[tuple[str, str], ...] = ()


class Turns:
    """The cores and whoever is measured on them. Use as a context manager: it holds the cores' locks."""

    def __init__(
        self, cores: Sequence[int], options: Options, processes: int = 1, gpu: str | None = None
    ) -> None:
        """A latency is sampled in so many processes."""
        self._cores = tuple(cores)
        self._options = options
        self._processes = processes
        self._gpu = gpu
        self._stop = Stop()
        self._holder = Slot(cores, options, gpu=gpu, stop=self._stop)
        self._slots: OrderedDict[Environment, Slot] = OrderedDict()

    def __enter__(self) -> Turns:
        """Takes the cores. Raises MachineError where another run measures on one of them."""
        self._holder.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for slot in (*self._slots.values(), self._holder):
            slot.__exit__()
        self._slots.clear()

    def stop(self) -> None:
        """Ends the measurement that is under way, from another thread."""
        self._stop.set()

    def measure(self, planned: Planned, environment: Environment, log: Path) -> Result:
        """The case under one build. Raises KeyboardInterrupt when told to stop."""
        slot = self._slot(environment)
        planned = with_variables(planned, environment.variables)
        try:
            answer = slot.measure(Order(planned, self._processes), log, lambda event: None)
            torch = {name: slot.hello[name] for name in _TOLD if slot.hello.get(name)}
        except Stopped as error:
            raise KeyboardInterrupt from error
        finally:
            slot.renew()
        result = assemble(
            planned,
            answer.outcomes,
            started=answer.started,
            wall_s=answer.wall_s,
            allocator=self._options.allocator,
            log=log.name,
        )
        result.conditions.update(answer.where, **torch)
        return result

    def introduce(self, planned: Planned, environment: Environment) -> dict[str, Any]:
        """What a build's interpreter says of itself: {environment, probes, where}. Raises MachineError."""
        slot = self._slot(environment)
        try:
            return slot.introduce([with_variables(planned, environment.variables)])
        except Stopped as error:
            raise KeyboardInterrupt from error
        finally:
            slot.renew()

    def _slot(self, environment: Environment) -> Slot:
        """The build's slot, which needs no lock of its own: only one is at work at a time."""
        slot = self._slots.pop(environment, None)
        if slot is None:
            options = replace(self._options, python=environment.python)
            slot = Slot(self._cores, options, gpu=self._gpu, stop=self._stop)
        self._slots[environment] = slot
        while len(self._slots) > KEPT:
            self._slots.popitem(last=False)[1].__exit__()
        return slot


def with_variables(planned: Planned, variables: Sequence[tuple[str, str]] | Mapping[str, str]) -> Planned:
    """The case with variables for its process besides its own, which go before them; but of PYTHONPATH the
    build's part comes first: it is what is measured.
    """
    given, own = dict(variables), planned.env
    paths = filter(None, [given.get("PYTHONPATH"), own.get("PYTHONPATH")])
    more = {"PYTHONPATH": os.pathsep.join(paths)} if "PYTHONPATH" in {**given, **own} else {}
    return replace(planned, env={**given, **own, **more})
