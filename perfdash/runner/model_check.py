"""Check that every model builds and runs: load it, call it once in eager mode."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdash.errors import UsageError
from perfdash.records import Case, Status
from perfdash.runner import host
from perfdash.runner.case_status import status_of
from perfdash.runner.compatibility import check_slots
from perfdash.runner.cores import slots_of
from perfdash.runner.executors import Executor, open_executor
from perfdash.runner.gpu_monitor import fault
from perfdash.runner.messages import Answer, Order
from perfdash.runner.plan import make_plan
from perfdash.runner.slot import free_slots
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned
from perfdash.suites.suite_file import Suite

_SLOT_BYTES = 8 << 30  # memory a slot: models are loaded side by side
# Failures that neighbouring cases or the machine may cause: the model is tried again alone.
_TRIED_AGAIN = (Status.EAGER_OOM, Status.INFRA_ERROR, Status.CRASH)


@dataclass(frozen=True)
class ModelCheck:
    """The check of one model. `status` is None where it runs; `reason` says what is wrong.

    A model that runs may still have another number of parameters than its suite states.
    """

    case: Case
    status: Status | None = None
    phase: str | None = None
    kind: str = ""  # of the failure: an exception, a signal, a limit
    reason: str = ""
    parameters: int | None = None
    weights_bytes: int | None = None
    load_s: float | None = None
    eager_s: float | None = None

    @property
    def faulty(self) -> bool:
        """Whether the suite needs a fix. Too little memory and a stated skip are no faults."""
        return bool(self.reason) and self.status not in (Status.SKIPPED, Status.EAGER_OOM)


def check_models(
    settings: RunSettings, bounded: bool, on_check: Callable[[ModelCheck], None]
) -> list[ModelCheck]:
    """Load every model of the settings and call it once. `on_check` is called with each check.

    `bounded` uses only free cores, and no more slots than the memory holds. Raises UsageError, MachineError.
    """
    cases = planned_checks(settings)
    slots = slots_of(settings)
    if bounded:
        if settings.device == "cpu" and not settings.cores:
            slots = free_slots(settings.threads) or slots  # without a free core the error names its holder
        slots = slots[: max(1, (host.default_memory_limit() or 0) // _SLOT_BYTES)]
    real = [case for case in cases if case.skip_reason is None]
    with (
        tempfile.TemporaryDirectory(prefix="perfdash-check-") as logs,
        open_executor(settings, slots, Path(logs)) as executor,
    ):
        check_slots(executor.introduce(real), real)
        return check(cases, executor, Path(logs), on_check)


def planned_checks(settings: RunSettings) -> tuple[Planned, ...]:
    """The cases to check: each model in one batch size, unless --batch-size names several.

    Scenario `sizes` is about compiling, so its models are checked in inference. Raises UsageError, also where
    every case is skipped.
    """
    if settings.scenario == "sizes":
        settings = settings.model_copy(update={"scenario": "inference"})
    settings = settings.model_copy(update={"sizes": None, "sizes_of": None})
    cases = make_plan(settings, uncut=True, adapt=Suite.for_check)[0].cases
    if all(case.skip_reason for case in cases):
        reasons = dict.fromkeys(str(case.skip_reason) for case in cases)
        raise UsageError(f"every model is skipped: {'; '.join(reasons)}")
    return cases


def check(
    planned: Sequence[Planned], executor: Executor, logs: Path, on_check: Callable[[ModelCheck], None]
) -> list[ModelCheck]:
    """Check all cases on all slots; the results are in the order of the plan."""
    checks: dict[Case, ModelCheck] = {}

    def settle(checked: ModelCheck) -> None:
        checks[checked.case] = checked
        on_check(checked)

    for case in planned:
        if case.skip_reason is not None:
            settle(ModelCheck(case.case, Status.SKIPPED, reason=case.skip_reason))
    waiting = deque(case for case in planned if case.skip_reason is None)
    again: list[Planned] = []
    for case, checked, beside in _answers(waiting, executor, logs, executor.slots):
        if checked.status in _TRIED_AGAIN and beside and checked.kind != "TooLarge":
            again.append(case)
        else:
            settle(checked)
    for _, checked, _ in _answers(deque(again), executor, logs, 1):
        settle(checked)
    return [checks[case.case] for case in planned]


def _answers(
    waiting: deque[Planned], executor: Executor, logs: Path, slots: int
) -> Iterator[tuple[Planned, ModelCheck, bool]]:
    """(case, its check, whether other cases ran beside it), as the slots answer."""
    busy: dict[int, Planned] = {}
    shared: set[int] = set()  # slots whose case has had a neighbour
    while waiting or busy:
        for slot in range(slots):
            if slot not in busy and waiting:
                busy[slot] = waiting.popleft()
                shared.update(busy if len(busy) > 1 else ())
                executor.start(slot, Order(busy[slot], role="check"), logs / f"{busy[slot].case.name}.log")
        message = executor.wait(None)
        if message is None or message.kind == "phase":
            continue
        if message.kind == "failed":
            raise message.value
        case = busy.pop(message.slot)
        beside = message.slot in shared
        shared.discard(message.slot)
        yield case, judge(case, message.value), beside


def judge(planned: Planned, answer: Answer) -> ModelCheck:
    """What the answer of a check says of the model."""
    outcome = answer.outcomes[0]
    ended, phase, failure = status_of(outcome)
    if broken := fault(answer.gpu, ended, failure):
        ended, failure = Status.INFRA_ERROR, broken
    status = ended if failure else None
    loaded = outcome.find("loaded") or {}
    seconds = {e["name"]: round(e["seconds"], 3) for e in outcome.events if e["event"] == "phase_end"}
    reason = failure.message if failure else ""
    if status is Status.CRASH and outcome.tail:
        reason += f"; it last printed: {outcome.tail[-1]}"
    has, stated = loaded.get("parameters"), planned.parameters
    if not reason and stated is not None and has != stated:
        reason = f"it has {has:,} parameters, and its suite states {stated:,}"
    return ModelCheck(
        planned.case,
        status,
        phase,
        failure.type if failure else "",
        reason,
        has,
        loaded.get("weights_bytes"),
        seconds.get("load"),
        seconds.get("eager"),
    )
