"""Find the largest batch size that fits into memory, of eager and of each technique.

Each side of a model runs by itself. Its batch size is doubled until memory ends, then bisected.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfdash.errors import UsageError
from perfdash.records import Case, Status
from perfdash.runner.case_status import ending
from perfdash.runner.cores import slots_of
from perfdash.runner.executors import Executor, open_executor
from perfdash.runner.messages import Order
from perfdash.runner.plan import make_plan
from perfdash.runner.preflight import check_machine, check_slots
from perfdash.runner.watch import Outcome
from perfdash.settings import RunSettings
from perfdash.suites.cases import Planned

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
    """The sides to search: eager once for each model and baseline dtype, and every other technique."""
    found: list[tuple[Planned, str]] = []
    eager, ways = set(), set()
    for each in planned:
        if each.skip_reason is not None:
            continue
        dtype = each.baseline_dtype or each.case.dtype
        key = each.case.suite, each.case.model, dtype, each.case.scenario
        if key not in eager:
            eager.add(key)
            amp = each.case.amp_dtype if dtype == "amp" else None
            plain = replace(each.case, backend="eager", dtype=dtype, amp_dtype=amp)
            found.append(
                (replace(each, case=plain, variant={}, baseline_dtype=None, backend_file=None), EAGER)
            )
        own = each.case.backend != "eager" or bool(each.variant)
        if (own or dtype != each.case.dtype) and each.case not in ways:
            ways.add(each.case)
            found.append((each, BACKEND))
    return found


def find_batch_sizes(
    settings: RunSettings,
    begun: Callable[[str], None],
    seen: Callable[[LargestBatch], None],
    trying: Callable[[LargestBatch, int], None],
) -> list[LargestBatch]:
    """Search every model of the settings; nothing is kept.

    `begun` is called with the device once the slot is open, `seen` and `trying` as in search(). Raises
    UsageError and MachineError as a run would.
    """
    plan, _ = make_plan(settings, uncut=True)
    first: dict[tuple[str, ...], Planned] = {}  # of several batch sizes the search starts at the smallest
    for each in plan.cases:
        key = (each.case.suite, each.case.model, each.case.dtype, each.case.backend)
        if key not in first or each.case.batch_size < first[key].case.batch_size:
            first[key] = each
    real = [each for each in first.values() if each.skip_reason is None]
    if not real:
        raise UsageError("every model of it is skipped on this device; `perfdash list` says why")
    slots = slots_of(settings)[:1]  # side by side they would take each other's memory
    check_machine(settings, plan.cases)
    with (
        tempfile.TemporaryDirectory(prefix="perfdash-batch-size-") as logs,
        open_executor(settings, slots, Path(logs)) as executor,
    ):
        check_slots(executor.introduce(real), real)
        begun(real[0].case.device)
        return search(real, executor, Path(logs), seen, trying)


def search(
    planned: Sequence[Planned],
    executor: Executor,
    logs: Path,
    seen: Callable[[LargestBatch], None],
    trying: Callable[[LargestBatch, int], None] = lambda *_: None,
) -> list[LargestBatch]:
    """Search every side, each on a slot of its own.

    `seen` is called with each finished side, `trying` with each batch size before it is tried.
    """
    waiting = deque((each, LargestBatch(each.case, side, _variant(each))) for each, side in sides(planned))
    order = [(largest.case, largest.side) for _, largest in waiting]
    found: dict[tuple[Case, str], LargestBatch] = {}
    busy: dict[int, tuple[Planned, LargestBatch, int]] = {}
    while waiting or busy:
        for slot in range(executor.slots):
            if slot in busy or not waiting:
                continue
            each, largest = waiting.popleft()
            size = next_size(each.case.batch_size, largest.fits, largest.fails)
            if size is None or largest.status is not None:
                found[largest.case, largest.side] = largest
                seen(largest)
                continue
            busy[slot] = each, largest, size
            trying(largest, size)
            tried = replace(each, case=replace(each.case, batch_size=size), skip_reason=None)
            role = "room_eager" if largest.side == EAGER else "room"
            executor.start(slot, Order(tried, role=role), logs / f"{tried.case.name}.{largest.side}.log")
        if not busy:
            continue
        message = executor.wait(None)
        if message is None or message.kind == "phase":
            continue
        if message.kind == "failed":
            raise message.value
        each, largest, size = busy.pop(message.slot)
        waiting.appendleft((each, judged(largest, size, *_ended(message.value.outcomes[0]))))
    return [found[key] for key in order]


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


def _ended(outcome: Outcome) -> tuple[Status | None, str]:
    status, _, failure = ending(outcome)
    return (status, failure.message) if failure else (None, "")
