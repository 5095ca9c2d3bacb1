"""`perfdash explain`: what changed in a case between two runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdash.cli.shared_options import AsJson, Db, Out, lookup, opened
from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.explain.structure_comparison import Explanation
    from perfdash.report.run_lookup import RunLookup


def explain(
    what: Annotated[
        str,
        typer.Argument(metavar="ALERT | RUN", help="The number of an alert, or a run (folder, name, last)."),
    ],
    model: Annotated[
        str | None, typer.Argument(help="After a run: the model, or a pattern that matches one case.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="The run to compare with.  [default: the previous run of the case]"),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Measure both builds again, kernel by kernel, in pairs.")
    ] = False,
    reproducer: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Profile, and write a script that shows the slowest part into this folder."
        ),
    ] = None,
    tlparse: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Profile, and keep the TORCH_TRACE logs of both builds in this folder."
        ),
    ] = None,
    old_python: Annotated[
        str | None,
        typer.Option(
            help="With --profile: the interpreter of the older run.  [default: the one that was measured]"
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            help="With --profile: the interpreter of the newer run.  [default: the one that was measured]"
        ),
    ] = None,
    pairs: Annotated[
        int | None,
        typer.Option(min=3, max=60, help="With --profile: the number of pairs of processes.  [default: 5]"),
    ] = None,
    cores: Annotated[str | None, typer.Option(help="With --profile: measure on these cores.")] = None,
    db: Db = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Explain a change by what differs in the compiled code.

    It compares kernels, library calls, graph breaks, guards and loaded files."""
    from perfdash.errors import UsageError
    from perfdash.explain.explanation_text import text, to_plain

    wanted = profile or reproducer is not None or tlparse is not None
    if not wanted and (old_python, python, pairs, cores) != (None, None, None, None):
        raise UsageError("--old-python, --python, --pairs and --cores belong to --profile")

    runs: tuple[str | None, str | None] = None, None
    if model is None:
        if not what.isdecimal():
            raise UsageError(
                f"{what!r} is no number of an alert; for a run also give the MODEL: {what} MODEL"
            )
        if against is not None:
            raise UsageError("--against belongs to RUN MODEL; an alert has the two runs around its change")
        explanation, metric = _of_alert(int(what), db, out)
    else:
        found = lookup(db, out)
        explanation, metric = _of_runs(found, what, model, against), None
        runs = _folder(found, against), _folder(found, what)
    if not wanted:
        typer.echo(dumps(to_plain(explanation, metric), indent=1) if as_json else text(explanation, metric))
        return
    from perfdash.cli.explain_profile import Wanted, measured

    options = Wanted(runs, (old_python, python), pairs, cores, out)
    if not as_json:
        typer.echo(text(explanation, metric))
    say = (lambda line: None) if as_json else typer.echo
    plain, problem = measured(explanation, metric, options, reproducer, tlparse, say)
    if as_json:
        typer.echo(dumps({**to_plain(explanation, metric), **plain}, indent=1))
    if problem is not None:
        raise problem


def _of_alert(number: int, db: str | None, out: Path | None) -> tuple[Explanation, str | None]:
    """The explanation of an alert's case, from the runs around its change, and the alert's metric."""
    from perfdash.explain.case_sides import of_alert

    with opened(db, out) as store, store.read() as connection:
        return of_alert(connection, number)


def _folder(lookup: RunLookup, word: str | None) -> str | None:
    """The folder of the run that was explained; None where it has none here."""
    folder = lookup.folder(word) if word is not None else None
    return str(folder) if folder is not None else None


def _of_runs(lookup: RunLookup, run: str, model: str, against: str | None) -> Explanation:
    from perfdash.explain.case_sides import row_of, row_of_case
    from perfdash.explain.structure_comparison import compare, side_of

    after = lookup.run(run)
    row = row_of(after, model)
    before, note = (lookup.run(against), "") if against is not None else lookup.previous(after, row.case)
    explanation = compare(side_of(before.run, row_of_case(before, row.case)), side_of(after.run, row))
    return replace(explanation, note=note)
