"""What happens to a run that has ended: into the history, JUnit, and the gates the user asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from perfdash.detect.alert_evidence import AlertEvidence
    from perfdash.history.results import Imported
    from perfdash.records import Result, RunInfo
    from perfdash.settings import RunSettings


def check(settings: RunSettings) -> None:
    """Refuse what would fail only after measuring: gates, the JUnit file, the history's address."""
    from perfdash.errors import PerfdashError, UsageError
    from perfdash.runner.plan import parse_shard

    part = bool(settings.shard) and parse_shard(str(settings.shard))[1] > 1
    if "regression" in settings.fail_on and (settings.no_history or part):
        why = "--no-history" if settings.no_history else "a shard goes in when it is merged"
        raise UsageError(f"--fail-on regression is told by the history, and this run stays out: {why}")
    if settings.junit and not settings.junit.absolute().parent.is_dir():
        raise UsageError(f"--junit {settings.junit}: there is no folder {settings.junit.parent}")
    if settings.no_history or part:
        return
    from perfdash.history.store import check_writable

    try:
        check_writable(settings.history)
    except PerfdashError as error:
        raise type(error)(
            f"{error}. Nothing was measured. Give another --db, or keep the run out with --no-history"
        ) from error


def stays_out(info: RunInfo) -> str | None:
    """Why a run does not go into the history by itself; None: it does."""
    shard = str(info.plan.get("shard") or "")
    if shard and not shard.endswith("/1"):
        return "a shard goes in when it is merged"
    return "it was measured with --no-history" if info.configuration.get("no_history") else None


def take_in(settings: RunSettings, info: RunInfo, results: list[Result], folder: Path) -> int:
    """A run goes into the history; the exit code: 3 where it does not, and then nothing is lost."""
    if settings.no_history or stays_out(info):
        return 0
    from perfdash.errors import MachineError, UsageError
    from perfdash.history.ingest import take_in as put
    from perfdash.history.results import from_run
    from perfdash.history.store import BrokenHistory, open_store

    try:
        with open_store(settings.history) as store:
            put(store, [from_run(info, results, str(folder))])
    except Exception as error:  # whatever it is, the run is saved, and its user must know how to go on
        where = " --db FILE" if isinstance(error, (BrokenHistory, UsageError)) else ""
        typer.echo(
            f"The run is saved, but not in the history: {error}\n"
            f"To take it in: perfdash history import {folder}{where}",
            err=True,
        )
        return MachineError.exit_code
    return 0


def pass_through(settings: RunSettings, info: RunInfo, results: list[Result], folder: Path) -> int:
    """The gates and JUnit: 1 where a gate failed, with what did it; else 0."""
    from perfdash.cli.regressions import gate
    from perfdash.errors import PerfdashError
    from perfdash.history.results import from_run

    imported = from_run(info, results, str(folder))
    code = _of_results(results, settings.fail_on)
    alerts: list[AlertEvidence] = []
    failed: PerfdashError | None = None
    if "regression" in settings.fail_on:
        try:
            alerts = _alerts(settings, imported)
        except PerfdashError as error:
            failed = error
    if settings.junit:
        from perfdash.report.junit import write

        write(settings.junit, info.id, imported.rows, alerts)
    if failed:
        raise failed
    return max(code, gate(alerts))


def _alerts(settings: RunSettings, imported: Imported) -> list[AlertEvidence]:
    """What the night's run shows by the nights before. Raises an error where that cannot be told."""
    from perfdash.cli.regressions import listed
    from perfdash.detect.nightly_judging import judge_new
    from perfdash.history.store import open_store
    from perfdash.report.night import of_history

    name = imported.run.name
    with open_store(settings.history, create=False) as store:
        if any(judged.unlike for judged in judge_new(store) if judged.run.name == name):
            typer.echo(
                "--fail-on regression: not told: this run has too few of the cases of the runs before it",
                err=True,
            )
        with store.read() as connection:
            caution = of_history(connection, imported).caution
        if caution:
            typer.echo(f"--fail-on regression: not told: {caution}", err=True)
        return listed(store, run=name)


def _of_results(results: list[Result], fail_on: tuple[str, ...]) -> int:
    from perfdash.records import PASSING, Status

    failing = {
        "accuracy": [r for r in results if r.status is Status.FAIL_ACCURACY],
        "failure": [r for r in results if r.status not in PASSING | {Status.SKIPPED}],
        "slower": [r for r in results if r.status in PASSING and r.speedup and r.speedup.verdict == "slower"],
    }
    code = 0
    for name in fail_on:
        if failing.get(name):
            names = ", ".join(r.case.model for r in failing[name])
            typer.echo(f"--fail-on {name}: {len(failing[name])} of {len(results)}: {names}", err=True)
            code = 1
    return code
