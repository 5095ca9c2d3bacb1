"""`perfdash compare-builds`: measure two builds in turn and say what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from perfdash.cli.settings_flags import takes_settings
from perfdash.cli.shared_options import AsJson
from perfdash.run_options import run_options

# Options of `perfdash run` without a meaning here: a history, other machines, gates of single runs.
_LEFT_OUT = {"db", "no_history", "executor", "scheduler", "shard", "costs", "fail_on", "junit", "strict",
             "processes", "retries", "retry_pause", "hours"}  # fmt: skip


@takes_settings({name: None for name in run_options() if name not in _LEFT_OUT})
def compare_builds(
    flags: Mapping[str, Any],
    base_python: Annotated[
        str | None,
        typer.Option(help="The interpreter of the base build. --python is that of the changed build."),
    ] = None,
    pairs: Annotated[
        int | None,
        typer.Option(min=4, max=60, help="The largest number of pairs of runs per case.  [default: 8]"),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.1, help="Start no new pair after this many minutes. --resume continues."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Continue a comparison: its folder, its name, or `last` (the newest).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure two builds in turn until it is known what changed.

    Models and settings are given as for `perfdash run`. The comparison stays out of the history.
    """
    from perfdash.cli.shared_options import lookup, print_result
    from perfdash.errors import UsageError
    from perfdash.report.comparison_text import comparison as text_of
    from perfdash.report.comparison_text import to_plain
    from perfdash.runner import build_comparison
    from perfdash.runner.run_journal import resume_command
    from perfdash.settings import resolve

    whole = {**dict.fromkeys(run_options()), **flags}
    if resume is not None:
        if base_python:
            raise UsageError("--base-python belongs to a new comparison; --resume keeps its two builds")
        comparison = build_comparison.resumed_comparison(resume, whole, pairs)
    elif base_python is None:
        raise UsageError("--base-python is missing: the interpreter of the build to compare with")
    else:
        settings = resolve({**whole, "no_history": True})[0]
        comparison = build_comparison.new_comparison(settings, base_python, pairs)
    build_comparison.measure(comparison, minutes, _note)
    folder = comparison.folder
    again = resume_command(folder, "compare-builds")
    if not comparison.pairs:
        if folder.exists():  # of an earlier session, whose pairs failed because of the machine
            _note(f"No pair was measured. To continue: {again}")
        else:
            _note(
                "Interrupted before the first pair: nothing is kept" if comparison.interrupted else "No pair"
            )
        raise typer.Exit(130 if comparison.interrupted else 3)
    sides = lookup(None, folder.parent).comparison(str(folder / "base"), str(folder))
    state = comparison.infos["new"].state
    print_result({"folder": str(folder), "state": state, **to_plain(sides)}, text_of(sides), as_json)
    typer.echo(f"Saved in {folder}", err=as_json)
    if comparison.interrupted or comparison.incomplete:
        _note(f"To continue: {again}")
    raise typer.Exit(130 if comparison.interrupted else 0)


def _note(text: str) -> None:
    typer.echo(text, err=True)
