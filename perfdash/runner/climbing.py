"""Batch sizes that grow until memory ends: what goes before what, and what need not be run. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from perfdash.records import Case, Result, Status
from perfdash.suites.cases import Planned

# A larger one would end so too, and take as long.
_ENDS = frozenset({Status.OOM, Status.EAGER_OOM, Status.TIMEOUT})


def is_smaller(one: Case, other: Case) -> bool:
    """Whether one is the other with a smaller batch."""
    return one.batch_size < other.batch_size and replace(one, batch_size=other.batch_size) == other


def has_smaller(planned: Planned, others: Iterable[Planned]) -> bool:
    """Whether it climbs, and one of the others is a step below it."""
    return planned.until_oom and any(is_smaller(other.case, planned.case) for other in others)


def ended_before(planned: Planned, results: Iterable[Result]) -> Result | None:
    """The result of a smaller batch of it that was out of memory, or of time, already.

    Where only eager was, the back end was measured alone, and goes on; an abort says nothing of that.
    """
    if not planned.until_oom:
        return None
    for result in results:
        aborted = result.error is not None and result.error.type == "BadAlloc"
        ended = result.status in _ENDS and result.backend_ms is None and not aborted
        if ended and is_smaller(result.case, planned.case):
            return result
    return None
