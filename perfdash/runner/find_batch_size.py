"""The largest batch size that fits: one side of a model by itself, doubled until memory ends, then halved."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfdash.records import Case, Status
from perfdash.runner.case_status import ending
from perfdash.runner.executors import Executor
from perfdash.runner.messages import Order
from perfdash.runner.watch import Outcome
from perfdash.suites.cases import Planned

MOST = 1 << 16
_FINE = 32  # told to one part in so many

EAGER, BACKEND = "eager", "backend"


@dataclass(frozen=True)
class Room:
    """What was found for a side. `fits`: the largest that ran, 0 for none; `fails`: the smallest that did
    not, None where none was met up to MOST. `status`, `reason`: of what ended the search before its time.
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
    """What is searched: of each model eager once for each of its baselines, and every way that is another."""
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


def search(
    planned: Sequence[Planned],
    executor: Executor,
    logs: Path,
    seen: Callable[[Room], None],
    trying: Callable[[Room, int], None] = lambda *_: None,
) -> list[Room]:
    """Each side on a slot of its own until it is known.

    `seen` gets each side when it is known, `trying` gets it with each batch size that is tried.
    """
    waiting = deque((each, Room(each.case, side, _variant(each))) for each, side in sides(planned))
    order = [(room.case, room.side) for _, room in waiting]
    found: dict[tuple[Case, str], Room] = {}
    busy: dict[int, tuple[Planned, Room, int]] = {}
    while waiting or busy:
        for slot in range(executor.slots):
            if slot in busy or not waiting:
                continue
            each, room = waiting.popleft()
            size = next_size(each.case.batch_size, room.fits, room.fails)
            if size is None or room.status is not None:
                found[room.case, room.side] = room
                seen(room)
                continue
            busy[slot] = each, room, size
            trying(room, size)
            tried = replace(each, case=replace(each.case, batch_size=size), skip_reason=None)
            role = "room_eager" if room.side == EAGER else "room"
            executor.start(slot, Order(tried, role=role), logs / f"{tried.case.name}.{room.side}.log")
        if not busy:
            continue
        message = executor.wait(None)
        if message is None or message.kind == "phase":
            continue
        if message.kind == "failed":
            raise message.value
        each, room, size = busy.pop(message.slot)
        waiting.appendleft((each, judged(room, size, *_ended(message.value.outcomes[0]))))
    return [found[key] for key in order]


def judged(room: Room, size: int, status: Status | None, reason: str) -> Room:
    """The room after a try: `status` None where it ran to its end."""
    room = replace(room, tries=room.tries + 1)
    if status is None:
        return replace(room, fits=size)
    if status in (Status.OOM, Status.EAGER_OOM):
        return replace(room, fails=size, reason=reason if size == 1 else "")
    return replace(room, status=status, reason=f"at batch size {size}: {reason}")


def _variant(planned: Planned) -> str:
    return ", ".join(f"{key}={value}" for key, value in planned.variant.items())


def _ended(outcome: Outcome) -> tuple[Status | None, str]:
    status, _, failure = ending(outcome)
    return (status, failure.message) if failure else (None, "")
