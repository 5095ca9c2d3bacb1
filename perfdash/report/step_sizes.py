"""What a step of a result runs: a batch, or in scenario `sizes` one call at each of several sizes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from perfdash.history.results import Row

_OF = ("batch", "sequence", "image")  # records.Specification.sizes_of


def sizes_of_step(row: Row) -> tuple[str, tuple[int, ...]] | None:
    """What varies within a step of scenario sizes, and its sizes: ("batch", (1, 4, 16)); else None."""
    conditions = row.details.get("conditions")
    if row.case.scenario != "sizes" or not isinstance(conditions, Mapping):
        return None
    of = str(conditions.get("sizes_of"))
    words = str(conditions.get("sizes") or "").split(",")
    sizes = tuple(int(word) for word in words if word.isdecimal())
    return (of, sizes) if sizes and of in _OF else None


def has_own_batch_sizes(row: Row) -> bool:
    """Whether a step runs several batch sizes; then that of the case is none of its numbers'."""
    sized = sizes_of_step(row)
    return sized is not None and sized[0] == "batch"


def samples_of_step(row: Row) -> int:
    """How many samples a step computes: those of its batch, or of all calls of scenario sizes."""
    sized = sizes_of_step(row)
    if sized is None:
        return row.case.batch_size
    of, sizes = sized
    return sum(sizes) if of == "batch" else row.case.batch_size * len(sizes)


def step_in_words(row: Row) -> str:
    """The sizes of a step of scenario sizes: `batch 1, 4, 16`; empty for any other."""
    sized = sizes_of_step(row)
    return f"{sized[0]} {', '.join(map(str, sized[1]))}" if sized else ""


def batch_in_words(row: Row) -> str:
    """The batch size as a number; of a step that runs several `1, 4, 16`."""
    sized = sizes_of_step(row)
    return ", ".join(map(str, sized[1])) if sized and sized[0] == "batch" else str(row.case.batch_size)


def size_in_words(row: Row) -> str:
    """`batch size 8`; in scenario sizes `batch 1, 4, 16`, or `batch size 8, sequence 32, 64, 128`."""
    words = [] if has_own_batch_sizes(row) else [f"batch size {row.case.batch_size}"]
    return ", ".join([*words, *filter(None, [step_in_words(row)])])
