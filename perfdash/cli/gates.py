"""What happens to a run that has ended: into the history, JUnit, and the gates the user asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from perfdash.detect.evidence import Evidence
    from perfdash.records import Result, RunInfo
    from perfdash.settings import RunSettings


def check(settings: RunSettings) -> None:
    """Raises UsageError for gates that could never be told, before anything is measured."""
    from perfdash.errors import UsageError

    if "regression" in settings.fail_on and (settings.no_history or settings.shard):
        out_of_it = (
            "--no-history" if settings.no_history else "--shard: a shard goes into it when it is merged"
        )
        raise UsageError(f"--fail-on regression is told by the history, and this run stays out ({out_of_it})")
    if settings.junit and not settings.junit.absolute().parent.is_dir():
        raise UsageError(f"--junit {settings.junit}: there is no folder {settings.junit.parent}")


def take_in(settings: RunSettings, info: RunInfo, results: list[Result], folder: Path) -> None:
    """A run goes into the history; what fails is said, and nothing is lost.

    A shard does not: the run that it is a part of does, when it is merged.
    """
    if settings.no_history or info.plan.get("shard"):
        return
    from perfdash.errors import PerfdashError
    from perfdash.history.ingest import take_in as put
    from perfdash.history.rows import from_run
    from perfdash.history.store import open_store

    try:
        with open_store(settings.history) as store:
            put(store, [from_run(info, results, str(folder))])
    except (PerfdashError, OSError, ValueError) as error:
        typer.echo(
            f"The run is saved, but not in the history: {error}\n"
            f"To take it in: perfdash history import {folder}",
            err=True,
        )


def pass_through(settings: RunSettings, info: RunInfo, results: list[Result], folder: Path) -> int:
    """JUnit where it was asked for, then the gates: 1 where one failed, with what did it; else 0."""
    from perfdash.cli.regressions import gate

    alerts = _alerts(settings, info) if "regression" in settings.fail_on else []
    if settings.junit:
        from perfdash.history.rows import from_run
        from perfdash.report.junit import write

        write(settings.junit, info.id, from_run(info, results, str(folder)).rows, alerts)
    code = _of_results(results, settings.fail_on)
    return max(code, gate(alerts))


def _alerts(settings: RunSettings, info: RunInfo) -> list[Evidence]:
    """What the night's run shows by the nights before. Raises an error where that cannot be told."""
    from perfdash.cli.regressions import listed
    from perfdash.detect.nightly import judge_new
    from perfdash.history.store import open_store

    with open_store(settings.history, create=False) as store:
        judge_new(store)
        return listed(store, run=info.id)


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
