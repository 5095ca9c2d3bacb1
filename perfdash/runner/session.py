"""Schedules the cases of a run on slots, retries them, and records their results.

It owns the journal and decides what is measured again; who measures is the executor's business, how
things look on a terminal the watcher's.
"""

from __future__ import annotations

import itertools
import signal
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from perfdash.errors import MachineError
from perfdash.files import now
from perfdash.records import Case, Result, RunInfo, Status, to_json
from perfdash.runner import compatibility, noise, schedule
from perfdash.runner.case_status import check_isa, final_status, is_worth_a_retry, most_retries
from perfdash.runner.executors import NO_FREE_CORE, Executor
from perfdash.runner.launcher import uninterrupted
from perfdash.runner.messages import Answer, Order
from perfdash.runner.result_record import assemble, not_run_after_smaller, skipped
from perfdash.runner.run_journal import RunJournal, read_all
from perfdash.stats.process_spread import ProcessRatios
from perfdash.stats.speedup import keep_earlier, margin_of, set_speedups
from perfdash.suites.case_selection import Planned
from perfdash.topology import format_cores

PROCESSES = 2  # that sample a case, unless the user says otherwise
_REPEATED = "measured_again"  # in the conditions of a result: once is enough
_LOOK_S = 2.0  # how often slots are counted again while cases wait for one

# The processes of earlier nights by case, of the machine that a run's info names.
Earlier = Callable[[RunInfo], Mapping[Case, Sequence[ProcessRatios]]]


@dataclass(frozen=True)
class Policy:
    """How often a run samples and retries a case, and whether it refuses noise."""

    allocator: str = "steady"
    processes: int | None = None  # None: two, and two more where these disagree
    retries: int = 2  # of a case that failed because of the machine
    retry_pause_s: float = 30.0
    strict: bool = False  # refuse a machine on which a model differs from itself
    share: bool = True  # what is measured of eager, among cases that differ in their configuration alone


def is_to_be_repeated(result: Result) -> bool:
    """Whether a result was disturbed and has not been measured again: a run that was ended has such."""
    return bool(result.conditions.get("disturbed")) and not result.conditions.get(_REPEATED)


class Watcher(Protocol):
    """Receives the progress of a run."""

    def say(self, text: str) -> None: ...

    def activity(self, text: str) -> None:
        """What is done before the first case and after the last one; may come from another thread."""

    def case_started(self, number: int, total: int, case: Case, left_s: float) -> None: ...

    def phase(self, case: Case, name: str) -> None: ...

    def case_done(self, number: int, total: int, result: Result, left_s: float) -> None:
        """`left_s`: seconds until the run is done, about; 0 if unknown."""


class Session:
    """A run under way. `results` holds the latest result of each case, in order of measurement."""

    def __init__(
        self,
        planned: Sequence[Planned],
        costs: Sequence[float],
        policy: Policy,
        executor: Executor,
        journal: RunJournal,
        info: RunInfo,
        watcher: Watcher,
        dynamo_names: dict[str, str],
        done: Sequence[Result] = (),
        earlier: Earlier = lambda info: {},
        null_like: Planned | None = None,
        executed: Mapping[str, str] | None = None,
    ) -> None:
        """`planned` are the cases that are left, `costs` their seconds; `done` was measured before.

        `earlier` tells the processes of earlier nights, once the machine is known. `null_like`: a case that
        was measured before, where no case is left and the noise of the run is still to be judged.
        `executed`: digests of the user's own files that `done` was measured with, by path.
        """
        self.planned = list(planned)
        self.costs = list(costs)
        self.policy = policy
        self.executor = executor
        self.journal = journal
        self.info = info
        self.watcher = watcher
        self.dynamo_names = dynamo_names
        self._results = {result.case: result for result in done}
        self._alike = Counter(case.eager_side for case in self.planned if case.skip_reason is None)
        self._last: dict[int, Case] = {}  # the eager side of each slot's last case
        self._queue: deque[int] = deque()
        self._again: deque[tuple[float, int]] = deque()  # (not before, index), in order of time
        self._busy: dict[int, tuple[int, Path]] = {}
        self._starts: dict[int, float] = {}  # of the cases under way, by index
        self._finished: list[tuple[float, float]] = []  # (cost, seconds taken) of each measured case
        self._attempts = self._attempts_before()
        self._failures = schedule.SlotFailures()
        self._complained = False
        self._executed = dict(executed or {})
        # Cases that are measured again, or are to be, since other programs spoilt their samples.
        self._disturbed = {
            index
            for index, planned in enumerate(self.planned)
            if planned.case in self._results and is_to_be_repeated(self._results[planned.case])
        }
        self.begun = False  # whether a case has been started
        self.null_like = null_like
        self._margin = margin_of(info)
        self._read_earlier = earlier
        self._earlier: Mapping[Case, Sequence[ProcessRatios]] = {}

    @property
    def results(self) -> list[Result]:
        """The latest result of each case."""
        return list(self._results.values())

    def run(self) -> None:
        """Measure all cases that are left. Raises UsageError or MachineError where none can be.

        However it ends, what was measured is in the journal.
        """
        self.journal.write_state(self.info, "running")
        state = "failed"
        try:
            real = [planned for planned in self.planned if planned.skip_reason is None]
            if not real and self.null_like:
                real = [self.null_like]
            if real:
                self.executor.on_activity = self.watcher.activity
                self._introduce(real)
                noise.null_at_start(self.executor, real[0], self.info, self.watcher.say)
                self._refuse_noise("start", "nothing was measured")
                self.info.noise["null"].pop("end", None)  # of an earlier session: it does not judge this one
                # Now that the null has settled how many cases run side by side, the testbed is known.
                self._earlier = self._read_earlier(self.info)
            self._measure_all()
            if real:
                noise.null_at_end(self.executor, real[0], self.info, self.watcher.say)
                self._refuse_noise("end", "its results are not put into the history")
            state = "done"
        except KeyboardInterrupt:
            state = "interrupted"
            raise
        finally:
            with uninterrupted() as came:
                self._finish(state)
        for number in came:  # while a run that is done was saved: nothing else is to begin
            signal.raise_signal(number)

    def _refuse_noise(self, when: str, consequence: str) -> None:
        """Raise MachineError where the user is strict and the null at the start or end is out of bounds."""
        ratios = self.info.noise["null"][when]
        if not self.policy.strict or noise.within_strict_bounds(ratios):
            return
        worst = max((abs(ratio - 1) for ratio in ratios), default=None)
        distance = "could not be measured" if worst is None else f"is off by {worst:.1%}"
        text = (
            f"at the {when} of the run a model against itself {distance}, "
            f"where {noise.NULL_BOUND:.0%} is allowed"
        )
        if when == "end":  # what was measured stays refused, also when the run is resumed
            self.info.noise["refused"] = text
        raise MachineError(f"--strict: {text}: {consequence}. End what else runs on the machine")

    def _finish(self, state: str) -> None:
        """The intervals from the whole run, the CSVs and run.json; a full disk hides no error."""
        try:
            self._settle()
            if self._results:
                self.journal.rewrite(self.results)
                self.journal.write_csv(self.results, self.dynamo_names, self.info)
            self.journal.write_state(self.info, state)
        except MachineError as error:
            if state == "done":
                raise
            self.watcher.say(str(error))

    def _introduce(self, planned: Sequence[Planned]) -> None:
        """Asks every slot what it can do, refuses what cannot work, writes run.json."""
        introductions = self.executor.introduce(planned)
        compatibility.check_slots(introductions, planned)
        notes = itertools.chain(*(introduction.get("notes", ()) for introduction in introductions))
        for note in dict.fromkeys(notes):  # slots may have the same
            self.watcher.say(note)
        environments = [introduction["environment"] for introduction in introductions]
        if before := self.info.environment:
            compatibility.refuse_other_environment(before, environments[0], self.info.id)
            vector_isa = environments[0].get("vector_isa") or before.get("vector_isa")
            environments = [{**environments[0], "vector_isa": vector_isa}, *environments[1:], before]
        self.info.environment = compatibility.of_hosts([(self.info.host, each) for each in environments])
        self.info.sessions[-1]["slots"] = [introduction["where"] for introduction in introductions]
        self.journal.write_info(self.info)

    # What is measured next, and where

    def _attempts_before(self) -> dict[int, list[dict[str, Any]]]:
        """Attempts of a session that was killed and that no result includes yet, by index."""
        attempts: dict[int, list[dict[str, Any]]] = {}
        indices = {planned.case: index for index, planned in enumerate(self.planned)}
        kept = {
            (result.case, attempt["started"])
            for result in read_all(self.journal.folder)
            for attempt in result.attempts
        }
        for case, attempt in self.journal.read_attempts():
            if case in indices and (case, attempt.get("started")) not in kept:
                attempts.setdefault(indices[case], []).append(attempt)
        return attempts

    def _measure_all(self) -> None:
        for planned in self.planned:
            if planned.skip_reason is not None:
                self._record(skipped(planned, now()))
        self._queue = deque(schedule.queue(self.planned, self.costs, self.executor.slots))
        while self._queue or self._again or self._busy:
            self._dispatch()
            if not (self._queue or self._again or self._busy):  # what was left was not to be run
                break
            message = self.executor.wait(self._patience())
            if message is None:
                continue
            index, log = self._busy[message.slot]
            if message.kind == "phase":
                self.watcher.phase(self.planned[index].case, message.value)
                continue
            del self._busy[message.slot]
            if message.kind == "failed":
                raise message.value
            self._finished.append((self.costs[index], time.monotonic() - self._starts.pop(index)))
            self._take(message.slot, index, log, message.value)

    def _patience(self) -> float | None:
        """Seconds to wait for a message: until a pause is over, or a slot more may have come."""
        if self._queue:
            return None if self._busy and len(self._busy) >= self.executor.slots else _LOOK_S
        if self._again:
            now_s = time.monotonic()  # a case whose pause is over waits for a slot
            return min([_LOOK_S, *(begin - now_s for begin, _ in self._again if begin > now_s)])
        return None

    def _dispatch(self) -> None:
        """Give every free slot the next case: a new one, else a retry whose pause is over."""
        for slot in range(self.executor.slots):
            if slot in self._busy or not self._failures.may_start(slot, self._busy):
                continue
            index = self._next(slot)
            if index is None:
                continue
            planned = self.planned[index]
            self._last[slot] = planned.eager_side
            log = self.journal.log_for(planned.case)
            self._busy[slot] = index, log
            self.begun = True
            self._starts[index] = time.monotonic()
            number = min(len(self._results) + len(self._busy), self.info.cases)
            self.watcher.case_started(number, self.info.cases, planned.case, self._seconds_left())
            self.executor.start(slot, self._order(planned), log)

    def _seconds_left(self) -> float:
        """Seconds until the run is done, about; 0 while nothing is known of any case's duration."""
        if not self._finished and all(cost in (0.0, schedule.TYPICAL_S) for cost in self.costs):
            return 0.0
        now_s = time.monotonic()
        waiting = [*self._queue, *(index for _, index in self._again)]
        running = [index for index, _ in self._busy.values()]
        return schedule.seconds_left(
            self._finished,
            [self.costs[index] for index in waiting],
            [(self.costs[index], now_s - self._starts[index]) for index in running],
            self.executor.slots - len(self._failures.out_of_service),
        )

    def _order(self, planned: Planned) -> Order:
        wanted = self.policy.processes
        return Order(
            planned,
            PROCESSES if wanted is None else wanted,
            further=wanted is None,
            share=self.policy.share and self._alike[planned.eager_side] > 1,
        )

    def _next(self, slot: int) -> int | None:
        """The next case of a slot; cases too large for memory are recorded on the way.

        First of all one with the eager side of its last case, last of all one that another slot is measuring.
        """
        if self.executor.slots > 1:
            self._queue = deque(sorted(self._queue, key=lambda index: self._rank(index, slot)))
        for _ in range(len(self._queue)):
            index = self._queue.popleft()
            if self._waits_for_a_smaller_one(index):
                self._queue.append(index)
                continue
            smaller = schedule.smaller_out_of_memory(self.planned[index], self._results.values())
            if smaller is None or index in self._disturbed:  # it has run before
                return index
            self._record(not_run_after_smaller(self.planned[index], smaller, now()))
        now_s = time.monotonic()
        for place, (begin, index) in enumerate(self._again):
            if begin <= now_s and self._failures.may_retry(slot, index, self.executor.slots):
                del self._again[place]
                return index
        return None

    def _rank(self, index: int, slot: int) -> int:
        """0 for a case with the eager side of the slot's last case, 2 with that of another slot's, else 1.

        A case that is measured again stays where it was put.
        """
        side = self.planned[index].eager_side
        if index in self._disturbed:
            return 1
        if side == self._last.get(slot):
            return 0
        return 2 if side in self._last.values() else 1

    def _waits_for_a_smaller_one(self, index: int) -> bool:
        """Whether a smaller batch of the case is still waiting or being measured."""
        ahead = [
            *self._queue,
            *(case_index for _, case_index in self._again),
            *(case_index for case_index, _ in self._busy.values()),
        ]
        return schedule.waits_for_smaller(
            self.planned[index], (self.planned[case_index] for case_index in ahead)
        )

    # What becomes of an answer

    def _take(self, slot: int, index: int, log: Path, answer: Answer) -> None:
        planned = self.planned[index]
        result = assemble(planned, answer, self.policy.allocator, log.name, self._executed)
        if not planned.chooses_vector_isa:
            check_isa(result, answer.outcomes, self.info.environment.get("vector_isa"))
        if len(answer.outcomes) > 1:
            result.phases_s["replicas"] = round(answer.replica_s, 4)
        if result.status is Status.INFRA_ERROR and result.error and result.error.type == NO_FREE_CORE:
            self._queue.appendleft(index)  # nothing of it was begun: no attempt
            self.watcher.say(f"{planned.case.model}: {result.error.message}: it goes to another slot")
            return
        self._judge_slot(slot, index, result)
        before = self._attempts.setdefault(index, [])
        retries = most_retries(result, before, self.policy.retries, neighbours=self.executor.slots > 1)
        if len(before) < retries:
            attempt = {
                "started": result.started,
                "status": str(result.status),
                "error": to_json(result.error) if result.error else None,
                "where": answer.where,
            }
            before.append(attempt)
            try:
                self.journal.append_attempt(planned.case, attempt)
            except MachineError as error:
                self.watcher.say(str(error))
            self._again.append((time.monotonic() + self.policy.retry_pause_s, index))
            message = result.error.message.splitlines()[0][:160] if result.error else ""
            self.watcher.say(
                f"{planned.case.model}: {result.status} ({message}): measured again in "
                f"{self.policy.retry_pause_s:g} s ({len(before)} of {retries})"
            )
            return
        result.attempts = before
        result.status = final_status(result, before)
        if index in self._disturbed:
            result.conditions[_REPEATED] = True
            kept = self._results.get(result.case)
            # Without eager there is no speedup, but a latency.
            if kept and not result.speedup and (kept.speedup or not result.backend_ms):
                self._keep_disturbed(kept, result)
                return
        self._keep_code(result, answer)
        self._record(result)
        self._measure_again_if_disturbed(index, result)

    def _judge_slot(self, slot: int, index: int, result: Result) -> None:
        """Take a slot out of service that fails where others measure, and say so."""
        if not self.executor.has_fixed_slots:
            return
        if not is_worth_a_retry(result, self.executor.slots > 1):
            if result.status is not Status.INFRA_ERROR:  # else an edited model: no fault of the slot
                self._failures.measured(slot)
        elif self._failures.add(slot, index, result):
            message = result.error.message.splitlines()[0][:160] if result.error else ""
            session = self.info.sessions[-1]
            where = session["slots"][slot]
            out = {**where, "since": now(), "error": message}
            session.setdefault("out_of_service", []).append(out)
            device = f"GPU {where['gpu']}" if "gpu" in where else f"cores {format_cores(where['cores'])}"
            self.watcher.say(
                f"WARNING: the slot on {device} is out of service for the rest of this run: two models in a "
                f"row failed there ({message}), while other slots measured. These get its cases"
            )

    def _keep_code(self, result: Result, answer: Answer) -> None:
        """Write the code that the case's process sent, and its model's; a full disk loses only that."""
        main = answer.outcomes[0]
        code, model = main.find("code"), main.find("model_files")
        try:
            if code:
                self.journal.write_code(result.case, code["graphs"])
            if model:
                self.journal.write_model(result.case, model["files"])
        except (MachineError, ValueError, zlib.error) as error:
            result.notes.append(f"the code was not kept: {error}"[:300])

    def _keep_disturbed(self, kept: Result, again: Result) -> None:
        """Keep what was disturbed where measuring it again gave nothing better."""
        kept.conditions[_REPEATED] = True
        kept.notes.append(
            f"disturbed, and measured again without a better result: {again.status} ({again.started})"
        )
        try:
            self.journal.append(kept)  # so that a killed run does not measure it a third time
        except MachineError as error:
            self.watcher.say(str(error))
        self.watcher.say(f"{kept.case.model}: measured again, {again.status}: the disturbed result stays")

    def _measure_again_if_disturbed(self, index: int, result: Result) -> None:
        """A case whose samples other programs spoilt goes to the end of the queue, once.

        What was measured is kept until then, and counts where nothing better comes of it.
        """
        reason = result.conditions.get("disturbed")
        if not reason or index in self._disturbed:
            return
        self._disturbed.add(index)
        self._queue.append(index)
        self.watcher.say(f"{result.case.model}: disturbed ({reason}): measured again at the end")

    def _record(self, result: Result) -> None:
        self._results.pop(result.case, None)  # measured again on request: it counts as new
        self._results[result.case] = result
        keep_earlier(result, self._earlier.get(result.case, ()))
        set_speedups(self.results, only=result, margin=self._margin)
        self._keep(result)
        try:
            self.journal.write_csv(self.results, self.dynamo_names, self.info)
            self.journal.write_info(self.info)
        except MachineError as error:  # made from the journal, and made again after the next case
            if not self._complained:
                self.watcher.say(str(error))
            self._complained = True
        self.watcher.case_done(len(self._results), self.info.cases, result, self._seconds_left())

    def _keep(self, result: Result) -> None:
        """Append a result to the journal; on a full disk wait and try again."""
        for attempt in range(self.policy.retries + 1):
            try:
                self.journal.append(result)
                return
            except MachineError as error:
                if attempt == self.policy.retries:
                    del self._results[result.case]
                    raise
                self.watcher.say(f"{error}; tried again in {self.policy.retry_pause_s:g} s")
                time.sleep(self.policy.retry_pause_s)

    def _settle(self) -> None:
        """Compute every interval anew, from the spread between processes of the whole run."""
        spread = set_speedups(self.results, margin=self._margin)
        if spread.cases:
            self.info.noise["between_processes"] = spread.facts
