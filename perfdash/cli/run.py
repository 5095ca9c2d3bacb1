"""`perfdash run`: measure models, or resume an earlier run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfdash.cli.settings_flags import takes_settings
from perfdash.cli.shared_options import Wide, screen_width

if TYPE_CHECKING:
    from perfdash.runner.run import OpenRun


@takes_settings()
def run(
    flags: Mapping[str, Any],
    resume: Annotated[
        str | None,
        typer.Option(help="Continue a run (folder, name or `last`): measure the cases that are left."),
    ] = None,
    retry: Annotated[
        list[str] | None,
        typer.Option(
            help="With --resume: also repeat the cases that ended with this status, e.g. oom. "
            "Repeatable, or commas."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print what would be measured and about how long it takes; measure nothing."
        ),
    ] = False,
    find_batch_size: Annotated[
        bool,
        typer.Option(
            "--find-batch-size",
            help="Find the largest batch size of each model that fits into "
            "--memory-limit; measure nothing else.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="With --dry-run or --find-batch-size: print JSON. At the end "
            "of a run: print the results as JSON.",
        ),
    ] = False,
    wide: Wide = False,
) -> None:
    """Measure models: speedup, compile time, memory, accuracy."""
    from perfdash.errors import UsageError
    from perfdash.report.gates import check_settings
    from perfdash.runner import run as runs
    from perfdash.settings import resolve

    if find_batch_size:
        from perfdash.cli import find_batch_size as command

        if resume is not None or retry or dry_run:
            raise UsageError(
                "--find-batch-size cannot be combined with --resume, --retry or --dry-run: it saves no run"
            )
        raise typer.Exit(command.print_batch_sizes(flags, as_json))
    if dry_run:
        from perfdash.cli.dry_run import dry_run as show_plan

        if resume is not None:
            raise UsageError(
                "--dry-run is for a new run, so it cannot be combined with "
                "--resume. `perfdash show RUN` shows how "
                "far a run is"
            )
        raise typer.Exit(show_plan(flags, as_json))
    if resume is not None:
        statuses = runs.parse_statuses(retry or ())
        folder, info, settings = runs.run_to_resume(resume, flags)
        check_settings(settings)
        resumed = runs.resumed_run(folder, info, settings, statuses, _note)
        typer.echo(
            f"{folder.name}: {len(resumed.left)} of {len(resumed.plan.mine)} cases to measure", err=as_json
        )
        raise typer.Exit(_measure(resumed, wide, as_json))
    if retry:
        raise UsageError("--retry needs --resume RUN: it measures cases of an earlier run again")
    settings, _ = resolve(flags)
    check_settings(settings)
    raise typer.Exit(_measure(runs.new_run(settings), wide, as_json))


def _measure(prepared: OpenRun, wide: bool, as_json: bool) -> int:
    """Measure, record, show the summary; the exit code."""
    from perfdash.api import measure_run
    from perfdash.files import dumps
    from perfdash.records import to_json
    from perfdash.report.gates import run_gates
    from perfdash.report.progress import open_progress
    from perfdash.report.run_summary import summary

    with open_progress(to_errors=as_json) as progress:
        run = measure_run(prepared, progress, _note)
    if as_json:
        plain = {
            "run": to_json(run.info),
            "folder": str(run.folder),
            "results": list(map(to_json, run.results)),
        }
        typer.echo(dumps(plain, indent=1))
    elif run.results:
        typer.echo(summary(run.results, run.info, screen_width(wide), run.folder))
    typer.echo(f"Saved in {run.folder}", err=as_json)
    if run.interrupted:
        _note(f"Interrupted after {len(run)} of {run.info.cases} cases. {prepared.how_to_resume}")
        return 130
    gate = run_gates(prepared.settings, run.info, run.results, str(run.folder), _note)
    return run.exit_code or gate  # to a script, 1 means a complete run


def _note(text: str) -> None:
    typer.echo(text, err=True)
