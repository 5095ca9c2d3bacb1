"""Steps that have parts (a training step, a generation): which part of a changed latency changed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from perfdash.detect.findings import Finding
from perfdash.history.alerts import LIVE, NEW, Alert
from perfdash.metrics import PARTS

# What a latency is the sum of: where that changed, its parts say where, and are no changes of their own.
PARTS_OF = {"backend_ms": tuple(PARTS)}


def with_parts(found: Sequence[Finding], alerts: Iterable[Alert] = ()) -> list[Finding]:
    """A change of a step says which of its parts changed (`parts`: log change of each). Parts are findings of
    their own where the step's change is not certain and theirs is, or where the step did not change.

    `alerts`: those there were; what one of a whole step is about to tell, or takes back, is not told again.
    """
    inside: dict[int | None, dict[str, float | None]] = {}
    for each in found:
        if each.kind == "metric" and each.metric in PARTS:
            inside.setdefault(each.case_id, {})[each.metric] = each.change
    wholes = {each.case_id: each for each in found if each.kind == "metric" and each.metric in PARTS_OF}
    young, directions = set(), {}
    for alert in alerts:
        if alert.kind == "metric" and alert.metric in PARTS_OF and alert.state in LIVE:
            directions[alert.case_id] = alert.direction
            young |= {alert.case_id} if alert.state == NEW else set()
    kept = []
    for each in found:
        if each.kind == "metric" and each.metric in PARTS_OF and each.case_id in inside:
            each = replace(each, details={**each.details, "parts": inside[each.case_id]})
        elif each.kind == "metric" and each.metric in PARTS:
            whole = wholes.get(each.case_id)
            if whole is not None and (whole.alarm or not each.alarm):
                continue
            if each.case_id in young or directions.get(each.case_id) == -each.direction:
                continue
        kept.append(each)
    return kept
