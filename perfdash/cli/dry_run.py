"""`perfdash run --dry-run`: what would be measured, how long it takes about, and how shards would cut it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from perfdash.cli import gates
from perfdash.files import dumps
from perfdash.runner.cores import slots_of
from perfdash.runner.plan import make_plan

if TYPE_CHECKING:
    from perfdash.runner.plan import Plan
    from perfdash.settings import RunSettings


def shown(flags: Mapping[str, Any], as_json: bool) -> int:
    """Plans and prints, makes and measures nothing; the exit code. Raises UsageError as the run would."""
    from perfdash.settings import resolve

    settings, _ = resolve(flags)
    gates.check(settings)
    said = outlook(settings, make_plan(settings)[0])
    typer.echo(dumps(said, indent=1) if as_json else words(said))
    return 0


def outlook(settings: RunSettings, plan: Plan) -> dict[str, Any]:
    """The cases with what each is expected to take, the shards, and the hours; plain JSON."""
    from perfdash.runner import planner
    from perfdash.runner.journal import find_run, read_results

    known = set()
    if settings.costs:
        known = {each.case.name for each in read_results(find_run(settings.costs, settings.out))}
    slots = len(slots_of(settings)) if settings.jobs == "auto" else settings.jobs
    parts = planner.assign(plan.costs, plan.shard[1]) if plan.shard else [list(plan.mine)]
    shard_of = {index: number for number, part in enumerate(parts, start=1) for index in part}
    cases = []
    for index, (each, cost) in enumerate(zip(plan.cases, plan.costs, strict=True)):
        by = "run" if each.case.name in known else "suite" if each.cost_s else "mean of the others"
        cases.append(
            {
                "name": each.case.name,
                "case": vars(each.case),
                "expected_s": round(cost, 1),
                "expected_by": "skipped" if each.skip_reason else by,
                "skip_reason": each.skip_reason,
                "shard": shard_of[index],
            }
        )
    shards, ends = [], []
    for number, part in enumerate(parts, start=1):
        costs = [plan.costs[index] for index in part]
        hours = planner.makespan(costs, planner.assign(costs, slots)) / 3600
        ends.append(round(hours, 2))
        shards.append(
            {
                "shard": f"{number}/{len(parts)}",
                "cases": len(part),
                "hours": round(hours, 2),
                "mine": not plan.shard or plan.shard[0] == number,
            }
        )
    return {
        "cases": cases,
        "shards": shards,
        "slots": slots,
        "hours": {
            "work": round(sum(plan.costs) / 3600, 2),
            "until_the_last_shard_ends": max(ends),
        },
    }


def words(said: Mapping[str, Any]) -> str:
    """One line a case of this shard, then the shards and the hours."""
    mine = {int(each["shard"].partition("/")[0]) for each in said["shards"] if each["mine"]}
    cases = [each for each in said["cases"] if each["shard"] in mine]
    width = max((len(each["name"]) for each in cases), default=0)
    lines = []
    for each in cases:
        why = each["skip_reason"] and f"skipped: {each['skip_reason']}"
        lines.append(f"{each['name']:<{width}}  {each['expected_s']:>7.0f} s  {why or each['expected_by']}")
    total, hours = said["cases"], said["hours"]
    guessed = sum(each["expected_by"] == "mean of the others" for each in total)
    skipped = sum(each["expected_by"] == "skipped" for each in total)
    lines += ["", *(_shard(each, len(said["shards"])) for each in said["shards"])]
    slots = f", {said['slots']} cases side by side" if said["slots"] > 1 else ""
    lines.append(
        f"{len(total)} cases ({skipped} skipped), about {hours['work']:.1f} hours of work in all{slots}; "
        f"the last shard ends after about {hours['until_the_last_shard_ends']:.1f} hours"
    )
    if guessed:
        lines.append(f"{guessed} have no known cost and count as the mean of the others (--costs RUN knows)")
    return "\n".join([*lines, "Nothing was measured"])


def _shard(each: Mapping[str, Any], count: int) -> str:
    mark = "  <- this one" if each["mine"] and count > 1 else ""
    return f"shard {each['shard']}: {each['cases']:>5} cases  {each['hours']:>7.2f} hours{mark}"
