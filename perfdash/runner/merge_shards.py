"""Merge the shards of a plan into one run. Runs of different kinds are refused (compatibility.py)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from perfdash import methods
from perfdash.errors import MachineError, UsageError
from perfdash.files import now
from perfdash.history.results import uid
from perfdash.records import Result, RunInfo
from perfdash.run_options import CHANGED_BY_RESUME
from perfdash.runner import code_files, compatibility
from perfdash.runner.plan import Plan, differences, plan_from_json
from perfdash.runner.run_journal import RunJournal, is_being_measured, read_plan, read_results, read_saved
from perfdash.stats.speedup import margin_of, set_speedups

# Settings in which shards may differ: the part, the place, the limits, and paths, because the plan compares
# the content. A resume may also give a variable that run.json hides again; shards agree in all variables.
_MAY_DIFFER = (CHANGED_BY_RESUME - {"env"}) | {"backend", "costs", "data", "shard"}

_ONE_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Shard:
    """A run folder that has been read."""

    folder: Path
    info: RunInfo
    plan: Plan
    plain_plan: dict[str, Any]
    results: tuple[Result, ...]


def read_shard(folder: Path) -> Shard:
    """A run to be merged. Raises UsageError where it is none, or is still being measured."""
    if is_being_measured(folder):
        raise UsageError(f"{folder} is still being measured")
    plain = read_plan(folder)
    info, _, _ = read_saved(folder)
    results = read_results(folder)  # refuses damaged lines: a merged run cannot be resumed
    return Shard(folder, info, plan_from_json(plain), plain, tuple(results))


def refuse(shards: Sequence[Shard]) -> None:
    """Raises UsageError, with what differs, where the runs are not parts of one."""
    if len(shards) < 2:
        raise UsageError("merge: give two runs or more")
    first = shards[0]
    measured = next((shard.info for shard in shards if shard.info.environment), first.info)
    for shard in shards[1:]:
        names = f"{first.info.id} and {shard.info.id}"
        environment = shard.info.environment
        if environment:  # empty if all cases of a shard are skipped
            _refuse(
                f"{measured.id} and {shard.info.id} were measured in different environments, and numbers "
                "from unlike ones are never mixed",
                compatibility.fingerprint(measured.environment),
                compatibility.fingerprint(environment),
            )
        _refuse(f"{names} were measured with different settings", _settings(first), _settings(shard))
        _refuse_methods(names, first, shard)
        changes = differences(first.plain_plan, shard.plain_plan)
        if changes or first.info.plan.get("fingerprint") != shard.info.plan.get("fingerprint"):
            changes = changes or ["the durations that the shards were cut by"]
            raise UsageError(f"{names} are not shards of one plan:\n{compatibility.as_lines(changes)}")
    owner: dict[Any, str] = {}
    for shard in shards:
        for result in shard.results:
            if result.case in owner:
                raise UsageError(
                    f"{result.case.name} is in {owner[result.case]} and in {shard.info.id}: a case is "
                    "measured in one shard only; leave one of the runs out"
                )
            owner[result.case] = shard.info.id


def merge(
    shards: Sequence[Shard], out: Path, *, no_history: bool = False, db: str | None = None
) -> tuple[Path, RunInfo, list[Result], list[str]]:
    """A new run folder of all their results: (folder, info, results, names of missing cases).

    `no_history` keeps it out of the history, as does a shard that was measured with --no-history. `db`: the
    address of the history as run.json keeps it, for a resume. Raises UsageError (refuse) and MachineError;
    then no folder is left.
    """
    refuse(shards)
    plan = replace(shards[0].plan, shard=None, mine=tuple(range(len(shards[0].plan.cases))))
    measured = {result.case: result for shard in shards for result in shard.results}
    results = [measured[planned.case] for planned in plan.cases if planned.case in measured]
    missing = [planned.case.name for planned in plan.cases if planned.case not in measured]
    spread = set_speedups(results, margin=margin_of(shards[0].info))
    journal = RunJournal.create(out)
    try:
        info = _info(journal.folder.name, shards, plan, complete=not missing)
        info.configuration["db"] = db
        info.configuration["no_history"] = no_history or any(
            shard.info.configuration.get("no_history") for shard in shards
        )
        if spread.cases:
            info.noise["between_processes"] = spread.facts
        journal.write_plan({**shards[0].plain_plan, "shard": None, "mine": list(plan.mine)})
        for result in results:
            journal.append(result)
        for shard in shards:
            for log in sorted((shard.folder / "logs").glob("*.log")):
                name = f"null.{shard.info.id}.log" if log.name == "null.log" else log.name
                shutil.copyfile(log, journal.logs / name)
            code_files.copy(shard.folder, journal.folder)
        journal.write_csv(results, info.plan.get("dynamo_names", {}), info)
        journal.write_info(info)
    except (MachineError, OSError) as error:
        journal.discard()
        raise error if isinstance(error, MachineError) else MachineError(f"{out}: {error}") from error
    journal.close()
    return journal.folder, info, results, missing


def _refuse(why: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    if changes := compatibility.differences(first, second):
        raise UsageError(f"{why}:\n{compatibility.as_lines(changes)}")


def _refuse_methods(names: str, first: Shard, second: Shard) -> None:
    """Raises UsageError where the records of two shards were measured by different methods."""
    for mine in first.results[:1]:
        for theirs in second.results:
            if changes := methods.changes(mine.method, theirs.method):
                raise UsageError(
                    f"{names} were measured by different methods ({', '.join(changes)}), which are never "
                    "mixed: measure one of them again"
                )


def _settings(shard: Shard) -> dict[str, Any]:
    return {key: value for key, value in shard.info.configuration.items() if key not in _MAY_DIFFER}


def other_times(shards: Sequence[Shard]) -> list[str]:
    """One line for each shard that began over a day before or after those that date the merged run."""
    of_night, *others = _by_start([shard.info for shard in shards])
    hosts = ", ".join(dict.fromkeys(info.host for info in of_night))
    first, last = min(info.started for info in of_night), max(info.started for info in of_night)
    when = f"at {first}" if first == last else f"between {first} and {last}"
    which = "most shards" if len(of_night) > max(map(len, others), default=0) else "the earliest shards"
    return [
        f"{info.host}: {info.id} started {info.started}, but {which} started {when} ({hosts}). The clock of "
        f"a host is wrong, or this shard was measured on another day. The merged run is dated by {which}; if "
        "these are wrong, correct `started` and `ended` in their run.json, and merge again"
        for group in others
        for info in group
    ]


def _by_start(infos: Sequence[RunInfo]) -> list[list[RunInfo]]:
    """Groups of shards, each of which began within a day of another; the largest first, else the earliest.

    A host that measures several shards, one after another, may need days for each. Where a time cannot be
    read, all are one group.
    """
    try:
        times = [(_moment(info.started), _moment(info.ended or info.started), info) for info in infos]
    except ValueError:
        return [list(infos)]
    groups: list[list[tuple[datetime, datetime, RunInfo]]] = []
    for start, end, info in sorted(times, key=lambda time: time[0]):
        near = [
            group
            for group in groups
            if any(
                start - earlier <= _ONE_DAY or (info.host == other.host and abs(start - before) <= _ONE_DAY)
                for earlier, before, other in group
            )
        ]
        joined = [time for group in near for time in group]
        groups = [*(group for group in groups if group not in near), [*joined, (start, end, info)]]
    groups.sort(key=lambda group: (-len(group), group[0][0]))
    return [[info for _, _, info in group] for group in groups]


def _end(infos: Sequence[RunInfo], of_night: Sequence[RunInfo]) -> str | None:
    """The last end of a shard. An end after this merge counts only if the shard dates the merged run.

    A shard that was measured again days later counts, so that the history keeps this merge as the newer one.
    """
    latest = now()
    ends = (info.ended for info in infos if info.ended and (info in of_night or info.ended <= latest))
    return max(ends, default=None)


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _info(run_id: str, shards: Sequence[Shard], plan: Plan, complete: bool) -> RunInfo:
    infos = [shard.info for shard in shards]
    of_night = _by_start(infos)[0]  # a host whose clock is wrong does not move the night
    nulls = [info.noise["null"] for info in infos if "null" in info.noise]
    # Where a shard was ended before its last null, the whole has none: --strict judges by it.
    whens = ("start", "end") if all("end" in null for null in nulls) else ("start",)
    ratios = {when: [r for null in nulls for r in null.get(when, [])] for when in whens}
    refused = [info.noise["refused"] for info in infos if "refused" in info.noise]
    worst = [null["worst"] for null in nulls if "worst" in null]
    environments = [(info.host, info.environment) for info in infos if info.environment]
    return replace(
        infos[0],
        id=run_id,
        started=min(info.started for info in of_night),
        ended=_end(infos, of_night),
        host="+".join(dict.fromkeys(info.host for info in infos)),
        configuration={**infos[0].configuration, "shard": None},
        cases=len(plan.cases),
        state="done" if complete else "incomplete",
        environment=compatibility.of_hosts(environments) if environments else {},
        noise={
            **({"null": {**ratios, **({"worst": max(worst)} if worst else {})}} if nulls else {}),
            **({"refused": refused[0]} if refused else {}),
        },
        plan={**infos[0].plan, "shard": None},
        sessions=[{**session, "run": info.id} for info in infos for session in info.sessions],
        merged_from=[info.id for info in infos],
        merged_uids=[uid(info) for info in infos],
    )
