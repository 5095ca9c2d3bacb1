"""The plan of a run: its cases with all their settings, kept in plan.json.

A resume measures what is left of the very same plan; shards are parts of one plan, and merge puts
them together again. So the plan of a shard holds all cases, and which of them are its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from perfdash.errors import UsageError
from perfdash.records import NOT_TONIGHT, Case, Result, to_json
from perfdash.redaction import mask_variables
from perfdash.runner import schedule
from perfdash.runner.cores import by_slots, slots_of
from perfdash.runner.last_run import run_folder
from perfdash.runner.run_journal import read_results
from perfdash.settings import RunSettings
from perfdash.suggestions import not_one_of
from perfdash.suites.case_selection import Planned, planned_from_json, select
from perfdash.suites.suite_file import (
    CHECKOUT_SUITE,
    NOTEBOOK,
    Suite,
    notebook_model,
    own_models,
    suite_names,
)
from perfdash.suites.torchbench_checkout import find_checkout, needs_checkout, suite_named
from perfdash.worker import own_files, registry
from perfdash.worker.loaders import models

# Fields that may differ when a run is resumed: limits and hints on the duration.
_MAY_CHANGE = {
    "timeout_s", "phase_timeouts", "memory_limit_bytes", "output_limit_bytes", "cost_s", "parameters",
}  # fmt: skip
_OF_FUNCTIONS = ("python", NOTEBOOK)  # loaders of models that a function of the user makes


@dataclass(frozen=True)
class Plan:
    """All cases, in order. `mine` holds the indices of the cases that this run measures.

    `shard` is (i, n), and `costs` are the seconds that it was cut by; `from_history` names the cases whose
    costs the history knew.
    """

    cases: tuple[Planned, ...]
    costs: tuple[float, ...]
    shard: tuple[int, int] | None
    mine: tuple[int, ...]
    from_history: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def fingerprint(self) -> str:
        """The same for all shards of one plan, and for no other."""
        cases = [_identity(case) for case in self.to_json()["cases"]]
        text = json.dumps([cases, list(self.costs)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """For plan.json. A user's own model files are in it by what they contain."""
        cases = []
        for planned in self.cases:
            plain = to_json(planned)
            plain["env"] = mask_variables(dict(sorted(planned.env.items())))
            plain["source"] = digest_of_files(planned)
            cases.append(plain)
        return {
            "cases": cases,
            "costs": list(self.costs),
            "shard": list(self.shard) if self.shard else None,
            "mine": list(self.mine),
        }


def make_plan(
    settings: RunSettings,
    uncut: bool = False,
    notebook: str | None = None,
    adapt: Callable[[Suite], Suite] | None = None,
) -> tuple[Plan, dict[str, str]]:
    """Plan a run: its cases with costs and shard, and the suites' dynamo names.

    `uncut` leaves out costs and shard, for a run that has its own, or needs none. `notebook`: the function
    of a notebook that makes one more model. `adapt` changes each suite. Raises UsageError.
    """
    if settings.scenario and registry.canonical(settings.scenario) not in registry.names("scenarios"):
        raise UsageError(not_one_of("--scenario", settings.scenario, registry.names("scenarios")))
    names = settings.suite or ((CHECKOUT_SUITE,) if settings.torchbench and not settings.model else ())
    path = settings.torchbench
    suites = [suite_named(name, path) for name in names]
    if settings.model:
        suites.append(own_models(settings.model))
    if notebook:
        suites.append(notebook_model(notebook))
    if not suites:
        raise UsageError(
            "nothing to measure: give --suite NAME (`perfdash list` shows "
            "the suites) or --model file.py:function"
        )
    _refuse_equal_names(suites)
    if needs_checkout(suites):
        find_checkout(path)
    planned = select(list(map(adapt, suites)) if adapt else suites, settings)
    _refuse_pretrained(planned, settings)
    dynamo_names = _dynamo_names(suites)
    if uncut:
        return cut(planned, [], None), dynamo_names
    if settings.shard and settings.costs == "last":
        raise UsageError(
            "--costs last is another run for each shard, so that they are cut differently: give all shards "
            "the same run, by its name or folder"
        )
    costs = schedule.costs(planned, {result.case.name: result.wall_s for result in _measured(settings)})
    shard = parse_shard(settings.shard) if settings.shard else None
    if shard and shard[1] > len(planned):
        raise UsageError(
            f"--shard {settings.shard}: there are only {len(planned)} cases; give at most so many shards"
        )
    return cut(planned, costs, shard), dynamo_names


def _refuse_pretrained(cases: Sequence[Planned], settings: RunSettings) -> None:
    """Raise UsageError for --weights pretrained where no loader knows any for a model that is selected."""
    if settings.weights != "pretrained" or any(map(_may_be_pretrained, cases)):
        return
    names = sorted({of.case.model for of in cases})
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    why = ""
    if all(of.loader in _OF_FUNCTIONS for of in cases):
        why = ", whose functions make their weights"
    raise UsageError(
        f"--weights pretrained: perfdash knows no weights to download for {shown}{why}. Leave --weights out, "
        "or give a file of weights"
    )


def _may_be_pretrained(planned: Planned) -> bool:
    """Whether the model has weights that are not random, or its loader may find some."""
    if planned.loader == "transformers":
        return bool(planned.config.get("pretrained"))
    if planned.loader == "models":
        return models.is_trained(planned.target)
    return planned.loader not in _OF_FUNCTIONS


def _dynamo_names(suites: Sequence[Suite]) -> dict[str, str]:
    """The name of each suite in CSV files. Of several suites that share one only the first has it.

    Those of perfdash come first: scripts know their files by the names of the dynamo runners.
    """
    names: dict[str, str] = {}
    for suite in sorted(suites, key=lambda suite: suite.name not in suite_names()):
        numbered = (f"{suite.name}_{number}" for number in itertools.count(2))
        words = itertools.chain((suite.dynamo_name or suite.name, suite.name), numbered)
        names.setdefault(suite.name, next(word for word in words if word not in names.values()))
    return names


def _refuse_equal_names(suites: Sequence[Suite]) -> None:
    """Raise UsageError for two suite files of one name: cases know their suite by its name alone.

    Names that differ in `_` and `-` only are one in the names of files.
    """
    first: dict[str, Suite] = {}
    for suite in suites:
        other = first.setdefault(Case(suite=suite.name, model="").name, suite)
        if other.path != suite.path:
            name = repr(suite.name)
            named = f"both named {name}" if other.name == suite.name else f"named {other.name!r} and {name}"
            raise UsageError(
                f"--suite: {other.path} and {suite.path} are {named}; change the key 'name' of one of them"
            )


def cut(cases: Sequence[Planned], costs: Sequence[float], shard: tuple[int, int] | None) -> Plan:
    """The plan of all cases, or of one shard. It depends on cases and costs alone, on no machine."""
    every = range(len(cases))
    mine = every if shard is None else sorted(schedule.assign(costs, shard[1])[shard[0] - 1])
    return Plan(tuple(cases), tuple(costs), shard, tuple(mine))


def _measured(settings: RunSettings) -> list[Result]:
    """The results of the run of --costs; none without it."""
    if not settings.costs:
        return []
    return read_results(run_folder(settings.costs, settings.out, settings.history, lambda line: None))


def forecast(settings: RunSettings, plan: Plan) -> dict[str, Any]:
    """Forecast a run as plain JSON: its cases with expected seconds, shards and hours."""
    measured = set()
    if settings.hours is None:  # with --hours the history decides
        measured = {result.case.name for result in _measured(settings)}
    known_by = [
        "history" if name in plan.from_history else "run" if name in measured else "suite" if cost_s else None
        for name, cost_s in ((planned.case.name, planned.cost_s) for planned in plan.cases)
    ]
    reasons = [planned.skip_reason or NOT_TONIGHT for planned in plan.cases]  # others cost nothing
    is_known = any(by for by, reason in zip(known_by, reasons, strict=True) if reason.startswith(NOT_TONIGHT))
    otherwise = "mean of the others" if is_known else "guess"
    parts = schedule.assign(plan.costs, plan.shard[1]) if plan.shard else [list(plan.mine)]
    shard_of = {index: number for number, part in enumerate(parts, start=1) for index in part}
    cases = []
    for index, (planned, cost, by) in enumerate(zip(plan.cases, plan.costs, known_by, strict=True)):
        cases.append(
            {
                "name": planned.case.name,
                "case": vars(planned.case),
                "expected_s": round(cost, 1),
                "expected_by": "skipped" if planned.skip_reason else by or otherwise,
                "skip_reason": planned.skip_reason,
                "shard": shard_of[index],
            }
        )
    shards, ends = [], []
    for number, part in enumerate(parts, start=1):
        hours = _seconds(settings, plan, part) / 3600
        ends.append(round(hours, 4))
        shards.append(
            {
                "shard": f"{number}/{len(parts)}",
                "cases": len(part),
                "hours": round(hours, 4),
                "mine": not plan.shard or plan.shard[0] == number,
            }
        )
    return {
        "cases": cases,
        "shards": shards,
        "slots": _slot_count(settings),
        "hours": {
            "work": round(sum(plan.costs) / 3600, 4),
            "until_the_last_shard_ends": max(ends),
        },
    }


def _seconds(settings: RunSettings, plan: Plan, part: Sequence[int]) -> float:
    """How long some cases take: those of each kind of slot side by side, one kind after another."""
    seconds = 0.0
    for group, places in by_slots(settings, [plan.cases[index] for index in part]):
        costs = [plan.costs[part[place]] for place in places]
        seconds += schedule.makespan(costs, schedule.assign(costs, _slot_count(group)))
    return seconds


def _slot_count(settings: RunSettings) -> int:
    return len(slots_of(settings)) if settings.jobs == "auto" else settings.jobs


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
        cases = tuple(planned_from_json(planned) for planned in data["cases"])
        return Plan(cases, tuple(data["costs"]), shard, tuple(data["mine"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"not a plan: {type(error).__name__}: {error}") from error


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """How one plan (Plan.to_json) differs from another, a line each; limits and hints may."""
    before = {Case(**planned["case"]): planned for planned in old["cases"]}
    after = {Case(**planned["case"]): planned for planned in new["cases"]}
    lines = [f"{case.name}: planned then | not now" for case in before if case not in after]
    lines += [f"{case.name}: not planned then | now" for case in after if case not in before]
    for case in before:
        if case in after:
            old_identity, new_identity = _identity(before[case]), _identity(after[case])
            # A plan of an older perfdash does not have the newer fields of a case, either.
            old_identity["case"] = {**new_identity["case"], **old_identity["case"]}
            lines += [
                f"{case.name}: {key}: {old_identity.get(key)} | {new_identity.get(key)}"
                for key in dict.fromkeys([*old_identity, *new_identity])
                if old_identity.get(key) != new_identity.get(key)
            ]
    return lines


def _identity(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a planned case that its numbers depend on. The user's own files may have moved."""
    # A plan of an older perfdash lacks the newer fields, which had their defaults then.
    usual = {field.name: _usual(field) for field in fields(Planned)}
    plain = {**{key: value for key, value in usual.items() if value is not MISSING}, **plain}
    identity = {key: value for key, value in plain.items() if key not in _MAY_CHANGE}
    identity["sizes"] = list(identity["sizes"])  # as a plan file has them
    if identity.get("source"):
        identity["target"] = Path(identity["target"]).name
        identity["backend_file"] = identity.get("backend_file") and Path(identity["backend_file"]).name
        identity["config"] = {key: value for key, value in identity["config"].items() if key != "checkout"}
    return identity


def _usual(field: Field[Any]) -> Any:
    """The default of a field, MISSING where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def recorded_files(results: Iterable[Result], cases: Iterable[Planned]) -> dict[str, str]:
    """Digests of the files of the user's models that results were measured with, by path.

    The modules that a model imports are known of the results alone.
    """
    by_case = {planned.case: planned for planned in cases}
    return {
        str(by_case[result.case].folder_of_files / name): digest
        for result in results
        if result.case in by_case
        for name, digest in result.structure.get("model_files", {}).items()
    }


def refuse_edited_model(results: Iterable[Result], cases: Iterable[Planned], run: str) -> None:
    """Raise UsageError where a file of the user's model is not what results of a run were measured with.

    A file that is gone is no edit: a model may write a module and import it. That the model's own file is
    there has been seen when the run was planned.
    """
    files = {Path(path): digest for path, digest in recorded_files(results, cases).items()}
    there = {path: digest for path, digest in files.items() if path.exists()}
    edited = [str(path) for path, digest in there.items() if own_files.digest_now(path) != digest]
    if edited:
        raise UsageError(
            f"Cannot resume {run}: its results were measured before {', '.join(edited)} was edited, and a "
            "run never mixes two models. Put the file back, or start a new run without --resume."
        )


def digest_of_files(planned: Planned) -> str | None:
    """The digest of the user's own model and back end files; None without any."""
    files: list[Path] = []
    if planned.loader == "python":
        files = [Path(planned.target.rpartition(":")[0])]
    elif planned.loader == "torchbench":
        package = Path(planned.config["checkout"]) / "torchbenchmark"
        model_files = sorted(package.glob(f"*/{planned.target}/**/*.py"))
        files = [*model_files, package / "__init__.py", *sorted((package / "util").glob("**/*.py"))]
    if planned.backend_file:
        files.append(Path(planned.backend_file))
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update(file.read_bytes())
    except OSError:
        return None
    return digest.hexdigest()[:16] if files else None


def edited_files(planned: Planned, recorded: Mapping[str, str]) -> list[str]:
    """The files of the user's own model that are not as recorded, by path below the model's folder.

    `recorded`: their digests; missing files count as edited. Empty for other models.
    """
    return [
        name
        for name, digest in recorded.items()
        if planned.loader == "python" and own_files.digest_now(planned.folder_of_files / name) != digest
    ]
