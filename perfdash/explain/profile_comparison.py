"""Compare the profiles of two builds: which kernels, operators and buffers explain the change. Pure.

A profile is what perfdash.worker.profiling writes. Each process gives one number per kernel, the median of
its rounds; pairs of processes, an old and a new one in turn, give the differences and their intervals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from statistics import mean, median
from typing import Any

import numpy as np
from scipy import stats

from perfdash.stats.intervals import CONFIDENCE

Profile = Mapping[str, Any]
Pair = tuple[Profile, Profile]  # old, new

_LEAST_SHARE = 0.05  # of the whole change: what moved by more is always named
_NAMED_SHARE = 0.8  # of the whole change: so much of it is named, by smaller parts too
_NUMBER = re.compile(r"(_\d+)?( of graph \d+)?$")
REST = {
    "compiled": "outside of kernels (guards, wrapper, allocation)",
    "eager": "outside of operators (Python, dispatch, autograd)",
}
_UNTIMED_REST = "kernels that are not timed, guards, wrapper, allocation"


@dataclass(frozen=True)
class PairedDifference:
    """A difference new - old with its 95 % interval, over pairs of processes."""

    estimate: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class ProfileRow:
    """Kernels or operators of the old build and those that do their work in the new one.

    Milliseconds a call of the model. One side is empty for what is new or gone.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    old_ms: float
    new_ms: float
    change_ms: PairedDifference

    @property
    def name(self) -> str:
        """The name as it is shown, with an arrow where the two sides have different ones."""
        old, new = " + ".join(self.old), " + ".join(self.new)
        if not old or not new:
            return f"{new} (new)" if new else f"{old} (gone)"
        return new if _keys(self.old) == _keys(self.new) else f"{old} -> {new}"


@dataclass(frozen=True)
class Buffers:
    """The memory that one call needs above what is held, and its parts that changed.

    `changes`: (who allocates it, bytes in the old build, bytes in the new one), the largest change first.
    """

    old_bytes: int
    new_bytes: int
    changes: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class SideComparison:
    """What changed on one side, eager or compiled. Times in milliseconds a call."""

    side: str
    pairs: int
    old_ms: float
    new_ms: float
    change_ms: PairedDifference
    rows: tuple[ProfileRow, ...]  # with the rest as the last one; the rows add up to the change
    clocks_ms: float  # what the clocks themselves cost, the larger of the two builds
    memory: Buffers | None
    named: tuple[ProfileRow, ...]  # those with a clear difference that make up the change, the largest first
    remainder_ms: PairedDifference  # the change without the named rows
    notes: tuple[str, ...] = ()
    is_partly_timed: bool = False  # kernels run in the call that Python does not call: they are in the rest

    @property
    def rest(self) -> ProfileRow:
        """What is in the call and in none of its kernels or operators."""
        return self.rows[-1]

    @property
    def share(self) -> float | None:
        """The share of the whole change that the named rows explain; None where nothing changed clearly."""
        if not self.change_ms.is_clear:
            return None
        return sum(row.change_ms.estimate for row in self.named) / self.change_ms.estimate

    @property
    def costs_more_than_change(self) -> bool:
        """Whether the clocks cost more than the change that they are to explain."""
        return self.change_ms.is_clear and self.clocks_ms > abs(self.change_ms.estimate)


@dataclass(frozen=True)
class ProfileComparison:
    """Both sides of a case, in pairs of processes of an old and a new build."""

    compiled: SideComparison
    eager: SideComparison
    notes: tuple[str, ...] = field(default=())


def compare(pairs: Sequence[Pair]) -> ProfileComparison:
    """Compare profiles that were measured in pairs. Raises ValueError without a pair."""
    if not pairs:
        raise ValueError("no pair of profiles to compare")
    notes = dict.fromkeys(note for pair in pairs for profile in pair for note in profile["notes"])
    return ProfileComparison(_side(pairs, "compiled"), _side(pairs, "eager"), tuple(notes))


def difference(values: Sequence[float]) -> PairedDifference:
    """The mean of differences with its interval by Student's t; of one pair it is unbounded."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return PairedDifference(mean, -math.inf, math.inf)
    reach = (
        stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    )
    return PairedDifference(mean, mean - float(reach), mean + float(reach))


def align(old: Sequence[str], new: Sequence[str]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Which calls of the old build correspond to which of the new one, in their order.

    Numbers at the end of kernels' names do not count. Between calls that both have, as many as there are
    correspond one to one; else all of them together (a kernel was split, or two became one).
    """
    groups: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    matcher = SequenceMatcher(None, _keys(old), _keys(new), autojunk=False)
    for _, start, end, new_start, new_end in matcher.get_opcodes():
        before, after = tuple(old[start:end]), tuple(new[new_start:new_end])
        if len(before) == len(after):
            groups += [((left,), (right,)) for left, right in zip(before, after, strict=True)]
        else:
            groups.append((before, after))
    return groups


def _keys(labels: Sequence[str]) -> list[str]:
    return [label if "(" in label else _NUMBER.sub("", label) for label in labels]


def _size(row: ProfileRow) -> float:
    return abs(row.change_ms.estimate)


def _named(rows: Sequence[ProfileRow], change: float) -> tuple[ProfileRow, ...]:
    """Rows with a clear difference, the largest first, until they explain the change.

    Those of at least a twentieth of the change are all named, smaller ones while over a fifth is unexplained.
    """
    named: list[ProfileRow] = []
    for row in sorted((row for row in rows if row.change_ms.is_clear), key=_size, reverse=True):
        left = abs(change - sum(row.change_ms.estimate for row in named))
        if _size(row) < _LEAST_SHARE * abs(change) and left <= (1 - _NAMED_SHARE) * abs(change):
            break
        named.append(row)
    return tuple(named)


def _side(pairs: Sequence[Pair], side: str) -> SideComparison:
    sides = [(old["sides"][side], new["sides"][side]) for old, new in pairs]
    labels = [[call["label"] for call in profile["calls"]] for profile in sides[-1]]
    whole = [tuple(_ms(profile["plain_ns"]) for profile in pair) for pair in sides]
    spent = [
        tuple({call["label"]: _ms(call["ns"]) for call in profile["calls"]} for profile in pair)
        for pair in sides
    ]
    rows = []
    changes: dict[int, list[float]] = {}  # of each row, by pair
    for old, new in align(*labels):
        times = [
            (sum(before.get(name, 0.0) for name in old), sum(after.get(name, 0.0) for name in new))
            for before, after in spent
        ]
        rows.append(_row(old, new, times))
        changes[id(rows[-1])] = [after - before for before, after in times]
    rest = [
        (before - sum(of_old.values()), after - sum(of_new.values()))
        for (before, after), (of_old, of_new) in zip(whole, spent, strict=True)
    ]
    total = _row((), (), [(old, new) for old, new in whole])
    named = _named(rows, total.change_ms.estimate)
    remainder = [
        after - before - sum(changes[id(row)][number] for row in named)
        for number, (before, after) in enumerate(whole)
    ]
    is_partly_timed = side == "compiled" and any(_has_untimed(profile) for pair in sides for profile in pair)
    name = _UNTIMED_REST if is_partly_timed else REST[side]
    rows.append(_row((name,), (name,), rest))
    costs = [
        median([_ms(pair[place]["instrumented_ns"]) - _ms(pair[place]["plain_ns"]) for pair in sides])
        for place in (0, 1)
    ]
    unsteady = not all(profile["steady"] for pair in sides for profile in pair)
    notes = ("its calls differ from step to step: times are means by name",) if unsteady else ()
    return SideComparison(
        side, len(pairs), total.old_ms, total.new_ms, total.change_ms, tuple(rows), max(costs),
        _buffers(sides), named, difference(remainder), notes, is_partly_timed,
    )  # fmt: skip


def _has_untimed(compiled: Profile) -> bool:
    """Whether kernels run in a compiled call that no clock is around: Python does not call them.

    CUDA graphs replay theirs; those of inductor's wrapper in C++ are called by it.
    """
    labels = {call["label"] for call in compiled["calls"]}
    is_any_timed = not labels.isdisjoint(compiled["kernels"]) if compiled["kernels"] else bool(labels)
    return bool(compiled["replays_graphs"]) or not is_any_timed


def _row(old: tuple[str, ...], new: tuple[str, ...], times: Sequence[tuple[float, float]]) -> ProfileRow:
    """`times`: (old, new) milliseconds of each pair. The times are means, which differ by the difference."""
    return ProfileRow(
        old,
        new,
        mean(before for before, _ in times),
        mean(after for _, after in times),
        difference([after - before for before, after in times]),
    )


def _ms(nanoseconds: Sequence[float]) -> float:
    return median(nanoseconds) / 1e6 if nanoseconds else 0.0


def _buffers(sides: Sequence[tuple[Profile, Profile]]) -> Buffers | None:
    """The memory of the last pair: it does not vary as times do."""
    old, new = (profile["memory"] for profile in sides[-1])
    if old is None or new is None:
        return None
    before, after = _by_allocator(old["buffers"]), _by_allocator(new["buffers"])
    changes = []
    for allocator in dict.fromkeys([*before, *after]):
        of_old, of_new = before.get(allocator, {}), after.get(allocator, {})
        names = list(of_new or of_old)
        name = names[0] if len(names) == 1 else allocator
        changes.append((name, sum(of_old.values()), sum(of_new.values())))
    changes = [change for change in changes if change[1] != change[2]]
    changes.sort(key=lambda change: -abs(change[2] - change[1]))
    return Buffers(int(old["peak_bytes"]), int(new["peak_bytes"]), tuple(changes))


def _by_allocator(buffers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The bytes of buffers by name, under what two builds call them: kernels without their numbers."""
    groups: dict[str, dict[str, int]] = {}
    for buffer in buffers:
        kernel, bracket, shape = buffer["name"].partition(" (")
        allocator = _NUMBER.sub("", kernel) + bracket + shape
        groups.setdefault(allocator, {})[buffer["name"]] = int(buffer["bytes"])
    return groups
