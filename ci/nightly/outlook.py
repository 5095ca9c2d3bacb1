"""The outlook of a night, `outlook.py FOLDER TIMES`: from its plans (`perfdash run --dry-run --json`), a file
each, named "DEVICE THREADS".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def duration(hours: float) -> str:
    """Minutes below one hour, otherwise hours."""
    minutes = max(1, round(hours * 60))
    if minutes < 60:
        return f"{minutes} minute{'s' if minutes > 1 else ''}"
    return f"{hours:.1f} hours"


def rows(name: str, plan: dict[str, Any]) -> list[list[str]]:
    """A row for each shard of a plan: on what, which dtypes, shard, cases, time."""
    dtypes = ",".join(dict.fromkeys(each["case"]["dtype"] for each in plan["cases"]))
    device, threads = name.split()
    where = device if device != "cpu" else f"cpu, {threads} thread{'s' if threads != '1' else ''}"
    return [
        [where, dtypes, each["shard"], str(each["cases"]), duration(each["hours"])] for each in plan["shards"]
    ]


def summary(plans: dict[str, dict[str, Any]], times: int) -> str:
    """The table and the sums. Shards of one number are measured on one machine, one after another."""
    table = [["on", "dtypes", "shard", "cases", "time"]]
    for name, plan in plans.items():
        table += rows(name, plan)
    widths = [max(len(row[column]) for row in table) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in table]  # fmt: skip
    cases = [each for plan in plans.values() for each in plan["cases"]]
    models = {(each["case"]["suite"], each["case"]["model"]) for each in cases}
    skipped = sum(bool(each["skip_reason"]) for each in cases)
    work = sum(plan["hours"]["work"] for plan in plans.values()) * times
    shards: dict[str, float] = {}
    for plan in plans.values():
        for each in plan["shards"]:
            shards[each["shard"]] = shards.get(each["shard"], 0.0) + each["hours"] * times
    lines.append(f"{len(models)} models, {len(cases)} cases ({skipped} skipped)"
                 + (f", each measured {times} times" if times > 1 else ""))  # fmt: skip
    lines.append(
        f"About {duration(work)} of work; on {len(shards)} machine{'s' if len(shards) > 1 else ''} the last "
        f"is done after about {duration(max(shards.values()))}"
    )
    lines.append(origin([each["expected_by"] for each in cases if not each["skip_reason"]]))
    return "\n".join(lines)


def origin(told_by: list[str]) -> str:
    """Where the hours come from. A suite says one cost a model, whatever the dtype, device and threads."""
    words = {
        "history": "as it took in earlier nights",
        "run": "as the run of --costs took",
        "suite": "as the suite says of the model on another machine (--costs RUN: as it took here)",
        "mean of the others": "unknown, and guessed",
    }
    told_by = ["mean of the others" if by == "guess" else by for by in told_by]
    counts = [f"{told_by.count(by)} {said}" for by, said in words.items() if by in told_by]
    return f"Where the hours come from: cases {'; '.join(counts)}"


def main() -> None:
    folder, times = sys.argv[1:]
    plans = {path.name: json.loads(path.read_text()) for path in sorted(Path(folder).iterdir())}
    print(summary(plans, int(times)))


if __name__ == "__main__":
    main()
