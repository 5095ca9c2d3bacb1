"""`perfdash doctor`: examine this machine and torch; with --nightly, look for missing nightlies."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from perfdash.cli.shared_options import Db, Out


def doctor(
    python: Annotated[str | None, typer.Option(help="The interpreter whose torch is examined.")] = None,
    nightly: Annotated[
        bool,
        typer.Option("--nightly", help="Instead: is a nightly missing, late, partial? Exit 1 where it is."),
    ] = False,
    job: Annotated[str | None, typer.Option(metavar="NAME", help="With --nightly: only this one.")] = None,
    db: Db = None,
    out: Out = None,
) -> None:
    """Examine the machine and the torch installation; each finding says what to do."""
    if nightly:
        from perfdash.cli.nightly import examined

        raise typer.Exit(examined(job, db, out))
    from perfdash.errors import MachineError, UsageError
    from perfdash.runner import doctor as examination

    if job is not None:
        raise UsageError("--job says which nightly: it needs --nightly")

    findings = examination.examine(python or sys.executable)
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        typer.echo(f"{finding.level:<5} {finding.subject:<{width}}  {finding.what}")
        if finding.do:
            typer.echo(f"{'':<5} {'':<{width}}  -> {finding.do}")
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise MachineError(f"{len(errors)} of {len(findings)} findings stop a measurement")
