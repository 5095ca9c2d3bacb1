"""Measure builds in turn on the same cores: pairs (`perfdash confirm`) or more (bisection).

Drift of the machine then hits all builds alike. Which build comes next, and when to stop, the caller decides.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfdash.errors import MachineError
from perfdash.files import dumps, mend_last_line
from perfdash.records import Case, Result, result_from_json, to_json
from perfdash.runner.case_status import check_isa, is_edited, is_worth_a_retry
from perfdash.runner.cores import Locks
from perfdash.runner.messages import Options, Order, ProcessOutcome
from perfdash.runner.result_record import assemble
from perfdash.runner.run_journal import append_line, read_json
from perfdash.runner.slot import FirstHellos, Slot
from perfdash.runner.worker_limits import RunStopped, Stop
from perfdash.suites.case_selection import Planned

FILE = "confirm.jsonl"
KEPT_SLOTS = 4  # builds whose compiled headers are kept meanwhile: the two ends, and two between
_TORCH_FACTS = ("torch", "torch_git_version", "python")


@dataclass(frozen=True)
class BuildPair:
    """One case under both builds, one right after the other. `number`: from 1, in confirm.jsonl."""

    old: Result
    new: Result
    number: int

    @property
    def edited(self) -> bool:
        """Whether a side has no numbers since a file of the user's model was edited."""
        return is_edited(self.old) or is_edited(self.new)

    @property
    def spoilt(self) -> bool:
        """Whether a side says nothing of its build: its model was edited, or the machine failed."""
        return self.edited or any(is_worth_a_retry(side, neighbours=False) for side in (self.old, self.new))


class Budget:
    """Minutes in which pairs may begin, counted from when it is made, or from begin()."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._begun = time.monotonic()

    @property
    def used(self) -> float:
        """Minutes since it began, also more than it has."""
        return (time.monotonic() - self._begun) / 60

    @property
    def spent(self) -> bool:
        return self.used >= self.minutes


def read_pairs(folder: Path) -> dict[Case, list[BuildPair]]:
    """The whole pairs of each case that a run folder holds, in their order.

    Left out, so that they are measured again: a line that was cut short, a side without its other one, and
    pairs that an edit of the model or the machine spoilt.
    """
    path = folder / FILE
    sides: dict[Case, dict[int, dict[str, Result]]] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            data = read_json(line)
            result = result_from_json(data["result"])
            side, numbered = str(data["side"]), sides.setdefault(result.case, {})
            pair = numbered.setdefault(int(data["pair"]), {})
            if side in pair:  # the pair was measured again
                pair.clear()
            pair[side] = result
        except (ValueError, TypeError, KeyError):
            continue
    pairs = {
        case: [
            BuildPair(pair["old"], pair["new"], number)
            for number, pair in sorted(numbered.items())
            if len(pair) == 2
        ]
        for case, numbered in sides.items()
    }
    return {case: kept for case, whole in pairs.items() if (kept := unspoilt(whole))}


def unspoilt(pairs: Sequence[BuildPair]) -> list[BuildPair]:
    """The pairs without those that an edit of the model or the machine spoilt."""
    return [pair for pair in pairs if not pair.spoilt]


def _is_json(line: bytes) -> bool:
    try:
        read_json(line)
    except ValueError:
        return False
    return True


Enough = Callable[[Planned, Sequence[BuildPair]], bool]


class PairedSlots:
    """Slots of this machine. Each measures the old and the new build in turn, on cores that are `held`."""

    def __init__(
        self,
        cores: Sequence[tuple[int, ...]],
        old: Options,
        new: Options,
        folder: Path,
        gpus: Sequence[str] = (),
        compile_cores: Sequence[Sequence[int]] = (),
        executed: dict[str, str] | None = None,
        first_hellos: Mapping[str, FirstHellos] | None = None,
    ) -> None:
        """`folder` is the run's: every result goes into its confirm.jsonl, and logs beside its logs.

        `gpus`, `compile_cores`: at least one entry a slot, or none.
        `executed`: digests of the user's own files that were measured before, by path; it gets further ones.
        `first_hellos`: by side, shared with other sets of slots that must measure the same two builds.
        """
        self._folder = folder
        self._stop = Stop()
        self._options = {"old": old, "new": new}
        hellos = first_hellos or {"old": {}, "new": {}}
        self._slots = [
            {
                name: Slot(
                    slot_cores,
                    options,
                    number=number,
                    gpu=gpus[number] if gpus else None,
                    compile_cores=compile_cores[number] if compile_cores else (),
                    stop=self._stop,
                    first_hellos=hellos[name],
                )
                for name, options in self._options.items()
            }
            for number, slot_cores in enumerate(cores)
        ]
        self._executed = {} if executed is None else executed
        self._writing = threading.Lock()
        self.vector_isas: dict[str, str | None] = {}  # that each side's inductor compiles for

    @property
    def cores(self) -> list[tuple[int, ...]]:
        """The cores of each slot."""
        return [pair["new"].cores for pair in self._slots]

    @property
    def lock_names(self) -> list[str]:
        """The locks of its cores and GPUs. The two sides of a slot share them: they never run at once."""
        return [name for pair in self._slots for name in pair["new"].lock_names]

    def begin(self, locks: Locks) -> None:
        """Use locks that the caller holds, and repair the file of the pairs after a power cut."""
        mend_last_line(self._folder / FILE, _is_json)
        for pair in self._slots:
            for slot in pair.values():
                slot.share(locks)

    def close(self) -> None:
        """End its processes, and remove what they shared."""
        for pair in self._slots:
            for slot in pair.values():
                slot.__exit__()

    def introduce(self, planned: Sequence[Planned]) -> dict[str, dict[str, Any]]:
        """What each build says of itself: {old, new} -> the environment, as in run.json."""
        builds = {name: slot.introduce(planned)["environment"] for name, slot in self._slots[0].items()}
        self.vector_isas = {name: build.get("vector_isa") for name, build in builds.items()}
        return builds

    def outcome(self, side: str, order: Order, log: Path) -> ProcessOutcome:
        """How one process ends under the `old` or the `new` build, on the first slot.

        Each process has a fork parent of its own. Raises KeyboardInterrupt when told to stop.
        """
        slot = self._slots[0][side]
        try:
            return slot.measure(order, log, lambda event: None).outcomes[0]
        except RunStopped as error:
            raise KeyboardInterrupt from error
        finally:
            slot.renew()

    def measure(
        self,
        planned: Sequence[Planned],
        enough: Enough,
        seen: Callable[[Planned, list[BuildPair]], None],
        begun: Mapping[Case, Sequence[BuildPair]] | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Measure every case in pairs until `enough`, then call `seen`, by one thread at a time.

        `begun`: earlier pairs of a case. When the budget is spent no new pair begins; `seen`
        is still called for each case that has pairs. Interrupted (KeyboardInterrupt) what is under way is
        ended; what was seen stays seen.
        """
        waiting = deque(planned)
        telling = threading.Lock()

        def work(slots: dict[str, Slot]) -> None:
            while True:
                try:
                    case = waiting.popleft()
                except IndexError:
                    return
                pairs = list((begun or {}).get(case.case, ()))
                while not enough(case, pairs) and not (budget and budget.spent):
                    pairs.append(self._pair(slots, case, pairs[-1].number + 1 if pairs else 1))
                if not pairs:
                    continue
                with telling:
                    seen(case, pairs)

        with ThreadPoolExecutor(len(self._slots)) as pool:
            futures = [pool.submit(work, slots) for slots in self._slots]
            try:
                for future in futures:
                    future.result()
            except BaseException as error:
                waiting.clear()
                self._stop.set()
                if isinstance(error, RunStopped):
                    raise KeyboardInterrupt from error
                raise

    def _pair(self, slots: dict[str, Slot], planned: Planned, number: int) -> BuildPair:
        """Measure one pair. The side that comes first alternates, so that drift affects both alike."""
        order = ("old", "new") if number % 2 else ("new", "old")
        results = {name: self._one(name, slots[name], planned, number) for name in order}
        return BuildPair(results["old"], results["new"], number)

    def _one(self, name: str, slot: Slot, planned: Planned, number: int) -> Result:
        log = self._folder / "logs" / f"{planned.case.name}.confirm{number}.{name}.log"
        try:
            answer = slot.measure(Order(planned), log, lambda event: None)
        finally:
            # What one fork parent does to all its processes would not average out over the pairs.
            slot.renew()
        with self._writing:
            result = assemble(planned, answer, self._options[name].allocator, log.name, self._executed)
            if not planned.chooses_vector_isa:
                check_isa(result, answer.outcomes, self.vector_isas.get(name))
            line = {"pair": number, "side": name, "result": to_json(result)}
            append_line(self._folder / FILE, dumps(line))
        return result


@contextmanager
def held(several: Sequence[PairedSlots]) -> Iterator[None]:
    """Hold the cores of several sets of slots, which may have cores in common: one set measures at a time.

    Raises CoresTaken where another run measures on one of them.
    """
    locks = Locks.take(name for slots in several for name in slots.lock_names)
    try:
        for slots in several:
            slots.begin(locks)
        yield
    finally:
        for slots in several:
            slots.close()
        locks.close()


def beside(options: Options, python: str) -> Options:
    """The same way to measure under another interpreter. Raises MachineError where it is not there."""
    if not os.access(python, os.X_OK):
        raise MachineError(f"{python} is no interpreter that can be run")
    return replace(options, python=python)


@dataclass(frozen=True)
class Environment:
    """A build to measure: its interpreter, and variables that put its packages first."""

    python: str
    variables: tuple[tuple[str, str], ...] = ()


class AlternatingBuilds:
    """A slot for each build, on the same cores. Use as a context manager: it holds the cores' locks."""

    def __init__(
        self,
        cores: Sequence[int],
        options: Options,
        processes: int = 1,
        gpu: str | None = None,
        compile_cores: Sequence[int] = (),
    ) -> None:
        """A latency is sampled in so many processes. compile_cores: see Slot."""
        self._cores = tuple(cores)
        self._options = options
        self._processes = processes
        self._gpu = gpu
        self._compile_cores = tuple(compile_cores)
        self._stop = Stop()
        self._holder = self._slot_of(options)
        self._slots: OrderedDict[Environment, Slot] = OrderedDict()

    def __enter__(self) -> AlternatingBuilds:
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
            torch = {name: slot.hello[name] for name in _TORCH_FACTS if slot.hello.get(name)}
        except RunStopped as error:
            raise KeyboardInterrupt from error
        finally:
            slot.renew(another_build=True)
        result = assemble(planned, answer, self._options.allocator, log.name)
        result.conditions.update(torch)
        return result

    def structure(self, planned: Planned, environment: Environment, log: Path) -> dict[str, Any]:
        """What compiling produces under one build, without timing it; empty where it fails.

        Raises KeyboardInterrupt when told to stop.
        """
        slot = self._slot(environment)
        order = Order(with_variables(planned, environment.variables), role="structure")
        try:
            outcome = slot.measure(order, log, lambda event: None).outcomes[0]
        except RunStopped as error:
            raise KeyboardInterrupt from error
        finally:
            slot.renew(another_build=True)
        return dict((outcome.find("compiled") or {}).get("structure") or {})

    def introduce(self, planned: Planned, environment: Environment) -> dict[str, Any]:
        """What a build's interpreter says of itself: {environment, probes, where}. Raises MachineError."""
        slot = self._slot(environment)
        try:
            return slot.introduce([with_variables(planned, environment.variables)])
        except RunStopped as error:
            raise KeyboardInterrupt from error
        finally:
            slot.renew(another_build=True)

    def _slot(self, environment: Environment) -> Slot:
        """The build's slot. It needs no lock of its own: one slot works at a time."""
        slot = self._slots.pop(environment, None)
        if slot is None:
            slot = self._slot_of(replace(self._options, python=environment.python))
        self._slots[environment] = slot
        while len(self._slots) > KEPT_SLOTS:
            self._slots.popitem(last=False)[1].__exit__()
        return slot

    def _slot_of(self, options: Options) -> Slot:
        return Slot(self._cores, options, gpu=self._gpu, compile_cores=self._compile_cores, stop=self._stop)


def with_variables(planned: Planned, variables: Sequence[tuple[str, str]] | Mapping[str, str]) -> Planned:
    """The case with more environment variables for its process. Its own go before them; but of PYTHONPATH the
    build's part comes first: it is what is measured.
    """
    given, own = dict(variables), planned.env
    paths = filter(None, [given.get("PYTHONPATH"), own.get("PYTHONPATH")])
    more = {"PYTHONPATH": os.pathsep.join(paths)} if "PYTHONPATH" in {**given, **own} else {}
    return replace(planned, env={**given, **own, **more})
