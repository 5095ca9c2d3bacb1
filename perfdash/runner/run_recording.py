"""Record a finished run in the history. A run that cannot be recorded stays in its folder."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from perfdash.errors import MachineError, UsageError
from perfdash.history.ingest import OLDER, ForeignShards, take_in
from perfdash.history.results import from_run
from perfdash.history.store import BrokenHistory, open_store
from perfdash.records import NOT_MEASURED, Result, RunInfo, Status
from perfdash.runner.code_files import with_code
from perfdash.runner.noise import lacks_end
from perfdash.settings import RunSettings


def exclusion(info: RunInfo) -> str | None:
    """Why a run stays out of the history; None for a recorded run."""
    if _is_shard(info):
        return "a shard goes in when it is merged"
    if info.configuration.get("no_history"):
        return "it was measured with --no-history"
    if info.merged_from and info.state == "incomplete":
        return "shards are missing"
    return refusal(info)


def _is_shard(info: RunInfo) -> bool:
    shard = str(info.plan.get("shard") or "")
    return bool(shard) and not shard.endswith("/1")


def refusal(info: RunInfo) -> str | None:
    """Why --strict keeps a run out; None for one whose noise was within bounds, or was not asked about."""
    if "refused" in info.noise:
        return f"--strict: {info.noise['refused']}"
    if info.configuration.get("strict") and lacks_end(info):
        return "--strict: it ended before its noise was measured at the end"
    return None


def lost_to_the_machine(results: Sequence[Result]) -> int:
    """The number of cases that ended in infra_error, where no case was measured; else 0."""
    if any(result.status not in NOT_MEASURED for result in results):
        return 0
    return sum(result.status is Status.INFRA_ERROR for result in results)


def record(
    settings: RunSettings,
    info: RunInfo,
    results: Sequence[Result],
    folder: Path,
    warn: Callable[[str], None],
) -> int:
    """Record a run; returns the exit code, 3 if the history or --strict refuses it.

    The warning then names the command that records it later, or says why it stays out.
    """
    if settings.no_history:
        return 0
    if why := refusal(info):
        warn(f"The run is saved, but not put into the history: {why}")
        return MachineError.exit_code
    if why := exclusion(info):
        if not _is_shard(info):
            warn(f"The run is saved, but not put into the history: {why}")
        return 0
    try:
        with open_store(settings.history) as store:
            source = str(folder).encode(errors="replace").decode()  # a name need not be text
            (outcome,) = take_in(store, [with_code(from_run(info, results, source), folder)], warn)
    except (
        Exception,
        KeyboardInterrupt,
    ) as error:  # the run is saved, and its user must know how to import it
        is_unusable = isinstance(error, (BrokenHistory, UsageError)) and not isinstance(error, ForeignShards)
        where = " --db FILE" if is_unusable else ""
        what = "interrupted" if isinstance(error, KeyboardInterrupt) else error
        warn(
            f"The run is saved, but not in the history: {what}\n"
            f"To import it: perfdash history import {shlex.quote(str(folder))}{where}"
        )
        if isinstance(error, KeyboardInterrupt):
            raise
        return MachineError.exit_code
    if outcome == OLDER:
        # Another merge of the same shards has a name of its own.
        stored = "RUN" if info.merged_from else info.id
        warn(
            "The run is saved, but the history keeps the version that it has, with more results or a later "
            f"end.\nTo replace it: perfdash history remove {stored} --yes && "
            f"perfdash history import {shlex.quote(str(folder))}"
        )
        return MachineError.exit_code
    return 0
