"""Choose the cases of a night that has a budget in hours: by age, and by how much is known of each.

Pure: what was measured before comes from the history, and the choice depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from perfdash.errors import UsageError
from perfdash.history.earlier_nights import NightsOfCase
from perfdash.records import NOT_TONIGHT, Case
from perfdash.runner import schedule
from perfdash.runner.plan import Plan, cut
from perfdash.suites.case_selection import Planned

# From so many nights on the noise of a series is known well enough to judge it (stats.nightly_test).
ENOUGH = 10


@dataclass(frozen=True)
class Candidate:
    """A case that may be measured. `days`: since it was measured or failed last; None: never.

    `cost_s`: seconds of the night; of four cases side by side a quarter of what each takes.
    """

    cost_s: float
    nights: int = 0
    days: float | None = None

    @property
    def urgency(self) -> float:
        """Days since the last measurement, up to twice as many where few nights are known."""
        if self.days is None:
            return float("inf")
        return self.days * (2.0 - min(self.nights, ENOUGH) / ENOUGH)


def choose(candidates: Sequence[Candidate], budget_s: float) -> list[int]:
    """The indices of the candidates that fit into the budget, the most urgent first; in order.

    Of equal urgency the earlier one comes first, and a case too long for the rest gives way to shorter ones.
    Since urgency grows with age, each case that fits into the budget alone has its turn: nothing older may
    pass it for ever.
    """
    order = sorted(range(len(candidates)), key=lambda index: (-candidates[index].urgency, index))
    chosen, left = [], budget_s
    for index in order:
        if candidates[index].cost_s <= left:
            chosen.append(index)
            left -= candidates[index].cost_s
    return sorted(chosen)


def within_hours(
    plan: Plan, hours: float, slots: Sequence[int], now: str, known: Mapping[Case, NightsOfCase]
) -> Plan:
    """The plan with the cases that a night of so many hours leaves out as skipped, with the reason.

    `slots`: of each case the number of cases like it that are measured side by side; `known`: what the
    history has of it. Raises UsageError where no case fits.
    """
    budget_s = 3600 * hours
    durations = {case.name: measured.wall_s for case, measured in known.items() if measured.wall_s}
    costs = schedule.costs(plan.cases, durations)
    shares = [cost / side_by_side for cost, side_by_side in zip(costs, slots, strict=True)]
    open_cases = [index for index, case in enumerate(plan.cases) if case.skip_reason is None]
    candidates = [_candidate(known.get(plan.cases[index].case), shares[index], now) for index in open_cases]
    chosen = {open_cases[place] for place in choose(candidates, budget_s)}
    if open_cases and not chosen:
        shortest = min(costs[index] for index in open_cases)
        raise UsageError(
            f"--hours {hours:g}: no case fits; the shortest takes about {schedule.duration(shortest)}"
        )
    cases = [
        replace(case, skip_reason=_reason(costs[index], shares[index] > budget_s, hours))
        if index in open_cases and index not in chosen
        else case
        for index, case in enumerate(plan.cases)
    ]
    left = [0.0 if case.skip_reason else cost for case, cost in zip(cases, costs, strict=True)]
    return replace(cut(cases, left, None), from_history=frozenset(durations))


def _candidate(measured: NightsOfCase | None, cost_s: float, now: str) -> Candidate:
    """A failure of the machine is repeated at once; a case that fails again waits like a measured one."""
    if measured is None:
        return Candidate(cost_s)
    last = measured.failed[0] if len(measured.failed) > 1 else measured.last
    if last is None:
        return Candidate(cost_s)
    age = datetime.fromisoformat(now) - datetime.fromisoformat(last)
    return Candidate(cost_s, measured.nights, max(0.0, age.total_seconds() / 86400))


def _reason(cost_s: float, is_too_long: bool, hours: float) -> str:
    if is_too_long:
        return f"{NOT_TONIGHT}it takes {schedule.duration(cost_s)}, more than the budget of {hours:g} hours"
    return f"{NOT_TONIGHT}other cases waited longer for the {hours:g} hours of this run"


def as_left_out(cases: Sequence[Planned], before: Sequence[Planned]) -> list[Planned]:
    """The cases of a plan, left out where the run left them out when it began."""
    reasons = {
        case.case: case.skip_reason
        for case in before
        if case.skip_reason and case.skip_reason.startswith(NOT_TONIGHT)
    }
    return [replace(case, skip_reason=reasons.get(case.case, case.skip_reason)) for case in cases]
