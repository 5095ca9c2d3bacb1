"""`perfdash doctor`: examine this machine and torch; with --nightly, look for missing nightlies."""

from __future__ import annotations

from typing import Annotated

import typer

from perfdash.cli.shared_options import AsJson, Db, Out


def doctor(
    python: Annotated[
        str | None,
        typer.Option(
            help="Check the torch of this interpreter.  [default: the one that `perfdash run` measures]"
        ),
    ] = None,
    nightly: Annotated[
        bool,
        typer.Option(
            "--nightly",
            help="Check the nightlies instead. Exit with code 1 if one is missing, late, partial or failed.",
        ),
    ] = False,
    job: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --nightly: only the nightly of this name.")
    ] = None,
    db: Db = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Check whether this machine is fit to measure on.

    Each problem is listed with what to do about it.
    """
    from perfdash.errors import MachineError, UsageError

    if nightly:
        from perfdash.cli.nightly import examined

        raise typer.Exit(examined(job, db, out, as_json=as_json))
    from dataclasses import asdict

    from perfdash.files import dumps
    from perfdash.runner import doctor as examination
    from perfdash.settings import resolve

    if job is not None:
        raise UsageError("--job names a nightly, so it needs --nightly")

    findings = examination.examine(resolve({"python": python})[0].python)
    width = max(len(finding.subject) for finding in findings)
    if as_json:
        typer.echo(dumps([asdict(finding) for finding in findings], indent=1))
    for finding in () if as_json else findings:
        typer.echo(f"{finding.level:<5} {finding.subject:<{width}}  {finding.what}")
        if finding.do:
            typer.echo(f"{'':<5} {'':<{width}}  -> {finding.do}")
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise MachineError(
            f"{len(errors)} of {len(findings)} findings prevent a measurement: "
            + ", ".join(finding.subject for finding in errors)
        )
