"""`perfdash run --dry-run`: show the cases and shards of a run, and their expected time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from perfdash.files import dumps
from perfdash.runner.plan import forecast, make_plan
from perfdash.runner.run import of_tonight
from perfdash.runner.schedule import TYPICAL_S, duration


def dry_run(flags: Mapping[str, Any], as_json: bool) -> int:
    """Print the plan of a run without measuring: the exit code. Raises UsageError as a run does."""
    from perfdash.report.gates import check_settings
    from perfdash.settings import resolve

    settings, _ = resolve(flags)
    check_settings(settings)
    plan = make_plan(settings)[0]
    plan = of_tonight(settings, plan)
    prediction = forecast(settings, plan)
    typer.echo(dumps(prediction, indent=1) if as_json else plan_text(prediction))
    return 0


def plan_text(prediction: Mapping[str, Any]) -> str:
    """Write a line for each case of this shard, then the shards and the hours."""
    own = {int(row["shard"].partition("/")[0]) for row in prediction["shards"] if row["mine"]}
    cases = [row for row in prediction["cases"] if row["shard"] in own]
    width = max((len(row["name"]) for row in cases), default=0)
    lines = []
    for row in cases:
        why = row["skip_reason"] and f"skipped: {row['skip_reason']}"
        lines.append(f"{row['name']:<{width}}  {row['expected_s']:>7.0f} s  {why or row['expected_by']}")
    all_cases, hours = prediction["cases"], prediction["hours"]
    guessed = [
        row["expected_by"] for row in all_cases if row["expected_by"] in ("mean of the others", "guess")
    ]
    skipped = sum(row["expected_by"] == "skipped" for row in all_cases)
    shards = prediction["shards"]
    lines += ["", *([_shard(row) for row in shards] if len(shards) > 1 else [])]
    slots = f", {prediction['slots']} cases side by side" if prediction["slots"] > 1 else ""
    last = "the last shard" if len(shards) > 1 else "the run"
    work, ends_after = (_duration(hours[name]) for name in ("work", "until_the_last_shard_ends"))
    lines.append(
        f"{_cases(len(all_cases))} ({skipped} skipped), about {work} of work in all{slots}; "
        f"{last} ends after about {ends_after}"
    )
    if guessed:
        cost = f"{TYPICAL_S:.0f} s" if "guess" in guessed else "the mean of the others"
        lines.append(f"{len(guessed)} have no known cost and count as {cost} until they are measured")
    return "\n".join([*lines, "Nothing was measured"])


def _shard(shard: Mapping[str, Any]) -> str:
    mark = "  <- this one" if shard["mine"] else ""
    return f"shard {shard['shard']}: {_cases(shard['cases']):>11}  {_duration(shard['hours']):>7}{mark}"


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"


def _duration(hours: float) -> str:
    return duration(3600 * hours) if hours else "0 s"
