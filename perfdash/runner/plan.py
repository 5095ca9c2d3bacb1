"""The plan of a run: its cases with all their settings, kept in plan.json; what differs from it.

A resume measures what is left of the very same plan; shards are parts of one plan, and merge puts
them together again. So the plan of a shard holds all cases, and which of them are its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any

from perfdash.errors import UsageError
from perfdash.records import Case, to_json
from perfdash.runner import host, planner
from perfdash.suites.cases import Planned, planned_from_json

# What may be changed when a run goes on: limits, and what only says how long a case takes.
_MAY_CHANGE = {
    "timeout_s", "phase_timeouts", "memory_limit_bytes", "output_limit_bytes", "cost_s", "parameters",
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """All cases, in order; `mine` are the indices of those that this run is to measure.

    `shard` is (i, n), and `costs` are the seconds that it was cut by.
    """

    cases: tuple[Planned, ...]
    costs: tuple[float, ...]
    shard: tuple[int, int] | None
    mine: tuple[int, ...]

    @property
    def fingerprint(self) -> str:
        """The same for all shards of one plan, and for no other."""
        cases = [_identity(each) for each in self.to_json()["cases"]]
        text = json.dumps([cases, list(self.costs)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """For plan.json. A user's own model files are in it by what they contain."""
        cases = []
        for each in self.cases:
            plain = to_json(each)
            pairs = host.mask_secrets([f"{key}={value}" for key, value in sorted(each.env.items())])
            plain["env"] = dict(pair.split("=", 1) for pair in pairs)
            plain["source"] = _digest(each)
            cases.append(plain)
        return {
            "cases": cases,
            "costs": list(self.costs),
            "shard": list(self.shard) if self.shard else None,
            "mine": list(self.mine),
        }


def cut(cases: Sequence[Planned], costs: Sequence[float], shard: tuple[int, int] | None) -> Plan:
    """The plan of all cases, or of one shard: the same on every machine for the same cases and costs."""
    every = range(len(cases))
    mine = every if shard is None else sorted(planner.assign(costs, shard[1])[shard[0] - 1])
    return Plan(tuple(cases), tuple(costs), shard, tuple(mine))


def parse_shard(text: str) -> tuple[int, int]:
    """`1/4` as (1, 4). Raises UsageError for anything else, and for 5/4 or 0/4."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdigit() and count.isdigit()):
        raise UsageError(f"--shard {text!r}: give it as i/n, e.g. 1/4")
    if not 1 <= int(number) <= int(count):
        raise UsageError(f"--shard {text}: i goes from 1 to {count}")
    return int(number), int(count)


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """The inverse of to_json. Raises UsageError where it is not one."""
    try:
        shard = tuple(data["shard"]) if data["shard"] else None
        cases = tuple(planned_from_json(each) for each in data["cases"])
        return Plan(cases, tuple(data["costs"]), shard, tuple(data["mine"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"not a plan: {type(error).__name__}: {error}") from error


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """How one plan (Plan.to_json) differs from another, a line each; limits and hints may."""
    before = {Case(**each["case"]): each for each in old["cases"]}
    after = {Case(**each["case"]): each for each in new["cases"]}
    found = [f"{case.name}: planned then | not now" for case in before if case not in after]
    found += [f"{case.name}: not planned then | now" for case in after if case not in before]
    for case in before:
        if case in after:
            one, other = _identity(before[case]), _identity(after[case])
            found += [
                f"{case.name}: {key}: {one.get(key)} | {other.get(key)}"
                for key in dict.fromkeys([*one, *other])
                if one.get(key) != other.get(key)
            ]
    return found


def _identity(plain: Mapping[str, Any]) -> dict[str, Any]:
    """What of a planned case its numbers depend on; a file of the user's own may lie elsewhere."""
    # A plan of an older perfdash lacks what has been added since, which had its default then.
    usual = {each.name: _usual(each) for each in fields(Planned)}
    plain = {**{key: value for key, value in usual.items() if value is not MISSING}, **plain}
    kept = {key: value for key, value in plain.items() if key not in _MAY_CHANGE}
    if kept.get("source"):
        kept["target"] = Path(kept["target"]).name
        kept["backend_file"] = kept.get("backend_file") and Path(kept["backend_file"]).name
        kept["config"] = {key: value for key, value in kept["config"].items() if key != "checkout"}
    return kept


def _usual(each: Field[Any]) -> Any:
    """The default of a field, MISSING where it has none."""
    return each.default if each.default_factory is MISSING else each.default_factory()


def _digest(planned: Planned) -> str | None:
    """Of the files that a model, and a back end, of the user's own come from; None where there are none."""
    files: list[Path] = []
    if planned.loader == "python":
        files = [Path(planned.target.rpartition(":")[0])]
    elif planned.loader == "torchbench":
        package = Path(planned.config["checkout"]) / "torchbenchmark"
        mine = sorted(package.glob(f"*/{planned.target}/**/*.py"))
        files = [*mine, package / "__init__.py", *sorted((package / "util").glob("**/*.py"))]
    if planned.backend_file:
        files.append(Path(planned.backend_file))
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update(file.read_bytes())
    except OSError:
        return None
    return digest.hexdigest()[:16] if files else None
