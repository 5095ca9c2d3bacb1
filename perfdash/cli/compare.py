"""`perfdash compare`: compare two runs, nights, builds or windows of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdash.cli.shared_options import AsJson, Db, Out, lookup, warn
from perfdash.files import dumps


def compare(
    old: Annotated[
        str,
        typer.Argument(
            help="A run (folder, name, id:N, last), or runs of the history: a "
            "date, a window 2026-11-01..2026-11-10, "
            "torch==2.14.0, or a commit of torch."
        ),
    ],
    new: Annotated[str, typer.Argument(help="The newer side, in the same form.")],
    db: Db = None,
    out: Out = None,
    host_class: Annotated[str | None, typer.Option(help="Use only the runs of this class of hosts.")] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="text, json or csv.  [default: text]")
    ] = None,
    as_json: AsJson = False,
    junit: Annotated[
        Path | None, typer.Option(help="Also write the comparison as JUnit XML, for a CI.")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(help="`regression`: exit with code 1 if there is a regression or a case vanished."),
    ] = None,
) -> None:
    """Compare two runs, nights, builds or windows of nights.

    Only cases that both sides have are compared; the others are listed. Runs on different classes of
    hosts are refused."""
    from perfdash.errors import UsageError
    from perfdash.report.comparison_text import comparison, to_csv, to_plain
    from perfdash.suggestions import not_one_of

    form = format_ or ("json" if as_json else "text")
    if form not in ("text", "json", "csv"):
        raise UsageError(not_one_of("--format", form, ("text", "json", "csv")))
    if as_json and form != "json":
        raise UsageError(f"--json prints --format json: leave out --format {form}")
    if fail_on and set(fail_on) != {"regression"}:
        raise UsageError(not_one_of("--fail-on", ", ".join(fail_on), ["regression"]))
    sides = lookup(db, out).comparison(old, new, host_class)
    if form == "json":
        typer.echo(dumps(to_plain(sides), indent=1))
    else:
        typer.echo(to_csv(sides).rstrip("\n") if form == "csv" else comparison(sides))
    nothing = sides.nothing_to_compare
    if nothing and form != "text" and not fail_on:
        typer.echo(f"perfdash: nothing to compare: {nothing}", err=True)
    if junit:
        from perfdash.report.junit import write_comparison

        write_comparison(junit, sides)
    if fail_on:
        from perfdash.report.gates import comparison_gate

        raise typer.Exit(comparison_gate(sides, warn))
