"""`perfdash compare`: compare two runs, nights, builds or windows of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdash.cli.shared_options import Db, Out, lookup, warn
from perfdash.files import dumps


def compare(
    old: Annotated[
        str,
        typer.Argument(
            help="A run (folder, name, last), or of the history: a date, a window 2026-11-01..2026-11-10, "
            "torch==2.14.0, a commit of torch."
        ),
    ],
    new: Annotated[str, typer.Argument(help="What it is compared with, in the same words.")],
    db: Db = None,
    out: Out = None,
    host_class: Annotated[
        str | None, typer.Option(help="Of runs on several classes of hosts, those on this one.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="text, json or csv.")] = "text",
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML for a CI.")] = None,
    fail_on: Annotated[
        list[str] | None, typer.Option(help="`regression`: exit 1 where something got worse for real.")
    ] = None,
) -> None:
    """Compare two sides, over the cases that both have. Runs of unlike hosts are refused."""
    from perfdash.errors import UsageError
    from perfdash.report.comparison_text import comparison, to_csv, to_plain

    if form not in ("text", "json", "csv"):
        raise UsageError(f"--format {form!r} is none of text, json, csv")
    if fail_on and set(fail_on) != {"regression"}:
        raise UsageError(f"--fail-on {', '.join(fail_on)}: here there is only regression")
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
