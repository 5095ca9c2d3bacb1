"""Find the largest batch size that fits into memory, of eager and of each technique.

Each side of a model runs by itself. Its batch size is doubled until memory ends, then bisected.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from perfdash.errors import UsageError
from perfdash.records import DEFAULT_CONFIGURATION, Case, Status
from perfdash.runner.case_status import status_of
from perfdash.runner.compatibility import check_machine, check_slots
from perfdash.runner.cores import by_slots, slots_of, when_free
from perfdash.runner.executors import Executor, open_executor
from perfdash.runner.gpu_monitor import fault
from perfdash.runner.messages import Answer, Order
from perfdash.runner.plan import make_plan
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned

MOST = 1 << 16
_FINE = 32  # the search ends within 1/32 of the largest size

EAGER, BACKEND = "eager", "backend"


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch size of one side of a model.

    `fits` is the largest that ran, 0 for none; `fails` the smallest that did not, None where all up to MOST
    ran. `status` and `reason` are those of a failure that ended the search early.
    """

    case: Case
    side: str
    variant: str = ""  # of the model's configuration, on the back end's side
    fits: int = 0
    fails: int | None = None
    tries: int = 0
    status: Status | None = None
    reason: str = ""


def next_size(start: int, fits: int, fails: int | None) -> int | None:
    """The batch size to try next; None where it is known well enough."""
    if fails is None:
        following = min(max(start, 1), MOST) if not fits else 2 * fits
        return following if following <= MOST else None
    if fails - fits <= max(1, fits // _FINE):
        return None
    return (fits + fails) // 2


def sides(planned: Sequence[Planned]) -> list[tuple[Planned, str]]:
    """The sides to search: eager once a model, baseline dtype and kind of step, then every technique.

    An eager side is named by its configuration only where its model has several kinds of step.
    """
    to_search: list[tuple[Planned, str]] = []
    running = [planned_case for planned_case in planned if planned_case.skip_reason is None]
    steps: dict[tuple[str, ...], set[tuple[Any, ...]]] = {}
    for planned_case in running:
        steps.setdefault(_eager_model(planned_case), set()).add(_step(planned_case))
    eager: set[tuple[tuple[str, ...], tuple[Any, ...]]] = set()
    ways = set()
    for planned_case in running:
        dtype = planned_case.baseline_dtype or planned_case.case.dtype
        model, step = _eager_model(planned_case), _step(planned_case)
        if (model, step) not in eager:
            eager.add((model, step))
            amp = planned_case.case.amp_dtype if dtype == "amp" else None
            plain = replace(planned_case.case, backend="eager", dtype=dtype, amp_dtype=amp, dynamic=False)
            if len(steps[model]) == 1:
                plain = replace(plain, configuration=DEFAULT_CONFIGURATION)
            to_search.append(
                (replace(planned_case, case=plain, variant={}, baseline_dtype=None, backend_file=None), EAGER)
            )
        own = planned_case.case.backend != "eager" or bool(planned_case.variant)
        if (own or dtype != planned_case.case.dtype) and planned_case.case not in ways:
            ways.add(planned_case.case)
            to_search.append((planned_case, BACKEND))
    return to_search


def _eager_model(planned: Planned) -> tuple[str, ...]:
    """What the eager sides of a model's cases share, but for the kind of step."""
    case = planned.case
    return case.suite, case.model, planned.baseline_dtype or case.dtype, case.scenario


def _step(planned: Planned) -> tuple[Any, ...]:
    return planned.optimizer, planned.sizes


def find_batch_sizes(
    settings: RunSettings,
    on_start: Callable[[str], None],
    on_finish: Callable[[LargestBatch], None],
    on_try: Callable[[LargestBatch, int], None],
    on_left_out: Callable[[Sequence[Planned]], None],
    say: Callable[[str], None],
) -> list[LargestBatch]:
    """Search every model of the settings; nothing is kept.

    `on_left_out` is called with cases that have no batch size to search, if there are any, `on_start` with
    the device once the slot is open, `on_finish` and `on_try` as in search(), `say` with a line while
    another run has the cores (`wait` of the settings). Raises UsageError and MachineError as a run would.
    """
    plan, _ = make_plan(settings, uncut=True)
    running = [planned_case for planned_case in plan.cases if planned_case.skip_reason is None]
    if not running:
        raise UsageError("every model of it is skipped on this device; `perfdash list` says why")
    real = smallest_batches(filter(runs_its_batch_size, running))
    if not real:
        raise UsageError(
            "--find-batch-size: a step of scenario sizes runs the batch sizes of --sizes, so there is none "
            "to find. Give another --scenario, or --sizes-of sequence or image"
        )
    if left_out := [planned_case for planned_case in running if not runs_its_batch_size(planned_case)]:
        on_left_out(left_out)
    check_machine(settings, plan.cases)
    found: list[LargestBatch] = []
    with tempfile.TemporaryDirectory(prefix="perfdash-batch-size-") as logs:
        for own_settings, places in by_slots(settings, real):
            own = [real[place] for place in places]
            slots = slots_of(own_settings)[:1]  # one slot: cases side by side would share the memory
            with ExitStack() as stack:
                enter = partial(_entered, stack, own_settings, slots, Path(logs))
                executor = when_free(enter, settings.wait, say)
                check_slots(executor.introduce(own), own)
                if not found:
                    on_start(real[0].case.device)
                found += search(own, executor, Path(logs), on_finish, on_try)
    return found


def _entered(
    stack: ExitStack, settings: RunSettings, slots: Sequence[tuple[int, ...]], logs: Path
) -> Executor:
    executor: Executor = stack.enter_context(open_executor(settings, slots, logs))
    return executor


def runs_its_batch_size(planned: Planned) -> bool:
    """Whether a step runs the batch size of the case; in scenario sizes it may run others."""
    return planned.case.scenario != "sizes" or planned.sizes_of != "batch"


def smallest_batches(planned: Iterable[Planned]) -> list[Planned]:
    """Each case once, at the smallest of its batch sizes: there the search starts."""
    first: dict[Case, Planned] = {}
    for planned_case in planned:
        key = replace(planned_case.case, batch_size=1)
        if key not in first or planned_case.case.batch_size < first[key].case.batch_size:
            first[key] = planned_case
    return list(first.values())


def search(
    planned: Sequence[Planned],
    executor: Executor,
    logs: Path,
    on_finish: Callable[[LargestBatch], None],
    on_try: Callable[[LargestBatch, int], None] = lambda *_: None,
) -> list[LargestBatch]:
    """Search every side, each on a slot of its own.

    `on_finish` is called with each finished side, `on_try` with each batch size before it is tried.
    """
    waiting = deque(
        (planned_case, LargestBatch(planned_case.case, side, _variant(planned_case)))
        for planned_case, side in sides(planned)
    )
    order = [(largest.case, largest.side) for _, largest in waiting]
    finished: dict[tuple[Case, str], LargestBatch] = {}
    busy: dict[int, tuple[Planned, LargestBatch, int]] = {}
    while waiting or busy:
        for slot in range(executor.slots):
            if slot in busy or not waiting:
                continue
            planned_case, largest = waiting.popleft()
            size = next_size(planned_case.case.batch_size, largest.fits, largest.fails)
            if size is None or largest.status is not None:
                finished[largest.case, largest.side] = largest
                on_finish(largest)
                continue
            busy[slot] = planned_case, largest, size
            on_try(largest, size)
            tried = replace(planned_case, case=replace(planned_case.case, batch_size=size), skip_reason=None)
            role = "try_eager" if largest.side == EAGER else "try_backend"
            executor.start(slot, Order(tried, role=role), logs / f"{tried.case.name}.{largest.side}.log")
        if not busy:
            continue
        message = executor.wait(None)
        if message is None or message.kind == "phase":
            continue
        if message.kind == "failed":
            raise message.value
        planned_case, largest, size = busy.pop(message.slot)
        waiting.appendleft((planned_case, judged(largest, size, *_ended(message.value))))
    return [finished[key] for key in order]


def judged(largest: LargestBatch, size: int, status: Status | None, reason: str) -> LargestBatch:
    """The search after one try; `status` is None where the try ran to its end."""
    largest = replace(largest, tries=largest.tries + 1)
    if status is None:
        return replace(largest, fits=size)
    if status in (Status.OOM, Status.EAGER_OOM):
        return replace(largest, fails=size, reason=reason if size == 1 else "")
    return replace(largest, status=status, reason=f"at batch size {size}: {reason}")


def _variant(planned: Planned) -> str:
    return ", ".join(f"{key}={value}" for key, value in planned.variant.items())


def _ended(answer: Answer) -> tuple[Status | None, str]:
    status, _, failure = status_of(answer.outcomes[0])
    if broken := fault(answer.gpu, status, failure):
        status, failure = Status.INFRA_ERROR, broken
    return (status, failure.message) if failure else (None, "")
