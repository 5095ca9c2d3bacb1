"""A comparison of profiles as text, and as one plain sentence. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfdash.explain.profile_comparison import (
    Buffers,
    PairedDifference,
    ProfileComparison,
    ProfileRow,
    SideComparison,
)

_MOST_ROWS = 12
_MOST_NAMED = 3
_MOST_OF_IT = 0.5  # of the remainder: so much outside of kernels is said
_NAME = 58  # characters of a name


def text(comparison: ProfileComparison, folder: str = "", of_eager: bool = False) -> str:
    """The sentences, then a table for each side, and the notes.

    `folder`: where the profiles and traces are. `of_eager`: the change to explain is one of eager.
    """
    parts = [sentence(comparison, of_eager), ""]
    for side in (comparison.compiled, comparison.eager):
        parts += _side(side)
    parts += [f"note: {note}" for note in comparison.notes]
    parts.append(
        "Times are means over processes of medians of calls with a clock around each kernel, in "
        f"{comparison.compiled.pairs} pairs of processes with code compiled anew; the intervals are 95 %."
    )
    if folder:
        parts.append(f"Profiles and Chrome traces: {folder}")
    return "\n".join(parts)


def sentence(comparison: ProfileComparison, of_eager: bool = False) -> str:
    """What explains the change: of the compiled side, and of eager where that changed."""
    sides = [comparison.compiled, comparison.eager]
    if of_eager:
        sides.reverse()
    clauses = [_sentence(side) for side in sides if side is sides[0] or side.change_ms.is_clear]
    clauses += [
        sentence for side in sides if side.memory and (sentence := _memory_sentence(side.side, side.memory))
    ]
    return " ".join(clauses)


def _sentence(side: SideComparison) -> str:
    noun = "The compiled call" if side.side == "compiled" else "The eager call"
    kind = "kernels" if side.side == "compiled" else "operators"
    whole = f"{noun} takes {_ms(side.new_ms)} instead of {_ms(side.old_ms)} ({_interval(side.change_ms)})"
    if not side.change_ms.is_clear:
        times = f"{_ms(side.old_ms)}, then {_ms(side.new_ms)} ({_interval(side.change_ms)})"
        return f"{noun} shows no clear change here: {times}."
    named, share = side.named, side.share or 0.0
    if named:
        names = ", ".join(f"{row.name} {_signed(row.change_ms.estimate)}" for row in named[:_MOST_NAMED])
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        verb = "explains" if len(named) == 1 else "explain"
        clause = f"{whole}: {names}{more} {verb} {share:.0%} of it"
    elif side.is_partly_timed and len(side.rows) == 1:
        clause = f"{whole}; none of its {kind} is timed"
    else:
        timed = "timed " if side.is_partly_timed else ""
        clause = f"{whole}, and none of its {timed}{kind} does so clearly"
    if named:
        clause += f"; {_remainder(side)}"
    if side.costs_more_than_change:
        clause += (
            f". The clocks themselves cost {_ms(side.clocks_ms)} a call, more than the change: the times of "
            f"single {kind} are a hint only"
        )
    return f"{clause}."


def _remainder(side: SideComparison) -> str:
    """The part of the change that is in none of the named rows, and where it is if that is clear."""
    remainder = f"{_interval(side.remainder_ms)} remain"
    rest = side.rest.change_ms
    if not side.remainder_ms.is_clear:
        return f"{remainder} (none clearly)"
    if rest.is_clear and abs(rest.estimate) >= _MOST_OF_IT * abs(side.remainder_ms.estimate):
        return f"{remainder}, {_signed(rest.estimate)} of it {side.rest.name}"
    return remainder


def _memory_sentence(side: str, memory: Buffers) -> str:
    if memory.old_bytes == memory.new_bytes:
        return ""
    changes = [f"{name} {_bytes(new - old, signed=True)}" for name, old, new in memory.changes[:_MOST_NAMED]]
    because = f": {', '.join(changes)}" if changes else ""
    return (
        f"At the peak of a {side} call {_bytes(memory.new_bytes)} are allocated instead of "
        f"{_bytes(memory.old_bytes)}{because}."
    )


def _side(side: SideComparison) -> list[str]:
    rows = [row for row in side.rows if row.old_ms or row.new_ms or row.change_ms.estimate]
    rows.sort(key=lambda row: (row not in side.named, -abs(row.change_ms.estimate)))
    shown = max(_MOST_ROWS, len(side.named))
    lines = [f"{side.side}: {_ms(side.old_ms)} -> {_ms(side.new_ms)}, {_interval(side.change_ms)}"]
    lines += [f"  {_cut(row.name):<{_NAME}} {_row(row)}" for row in rows[:shown]]
    if len(rows) > shown:
        lines.append(f"  {len(rows) - shown} more with smaller differences")
    if side.share is not None:
        lines.append(
            f"  named, with a clear difference: {len(side.named)}, {side.share:.0%} of the change; "
            f"remainder {_interval(side.remainder_ms)}"
        )
    lines.append(f"  the clocks cost {_ms(max(0.0, side.clocks_ms))} a call")
    if side.memory:
        lines.append(
            f"  allocated at the peak: {_bytes(side.memory.old_bytes)} -> {_bytes(side.memory.new_bytes)}"
        )
        lines += [
            f"    {_cut(name)}: {_bytes(old)} -> {_bytes(new)}"
            for name, old, new in side.memory.changes[:_MOST_ROWS]
        ]
    return [*lines, *(f"  note: {note}" for note in side.notes), ""]


def _row(row: ProfileRow) -> str:
    return f"{_ms(row.old_ms)} -> {_ms(row.new_ms)}, {_interval(row.change_ms)}"


def _cut(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."


def _interval(change: PairedDifference) -> str:
    if not math.isfinite(change.low):
        return f"{_signed(change.estimate)}, one pair: no interval"
    return f"{_signed(change.estimate)}, {_signed(change.low)} to {_signed(change.high)}"


def _ms(value: float) -> str:
    return f"{value:.4g} ms"


def _signed(value: float) -> str:
    return f"{value:+.3g} ms"


def _bytes(value: float, signed: bool = False) -> str:
    sign = "+" if signed and value >= 0 else ""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if abs(value) >= size:
            return f"{sign}{value / size:.3g} {unit}"
    return f"{sign}{value:.0f} bytes"


def to_plain(comparison: ProfileComparison) -> dict[str, object]:
    """The comparison as plain values for JSON."""
    return {
        "sentence": sentence(comparison),
        "notes": list(comparison.notes),
        **{side.side: _plain(side) for side in (comparison.compiled, comparison.eager)},
    }


def _plain(side: SideComparison) -> dict[str, object]:
    return {
        "pairs": side.pairs,
        "old_ms": side.old_ms,
        "new_ms": side.new_ms,
        "change_ms": _numbers(side.change_ms),
        "share": side.share,
        "remainder_ms": _numbers(side.remainder_ms),
        "clocks_ms": side.clocks_ms,
        "rows": [
            {
                "old": list(row.old),
                "new": list(row.new),
                "old_ms": row.old_ms,
                "new_ms": row.new_ms,
                "change_ms": _numbers(row.change_ms),
                "named": row in side.named,
            }
            for row in side.rows
        ],
        "memory": None
        if side.memory is None
        else {
            "old_bytes": side.memory.old_bytes,
            "new_bytes": side.memory.new_bytes,
            "changes": [
                {"name": name, "old_bytes": old, "new_bytes": new} for name, old, new in side.memory.changes
            ],
        },
    }


def _numbers(change: PairedDifference) -> Sequence[float | None]:
    values = (change.estimate, change.low, change.high)
    return [value if math.isfinite(value) else None for value in values]
