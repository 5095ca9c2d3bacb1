"""`perfdash doctor`: is this machine fit to measure on, and what to do where it is not."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def doctor(
    python: Annotated[str | None, typer.Option(help="The interpreter whose torch is examined.")] = None,
) -> None:
    """Examine the machine and the torch installation; each finding says what to do."""
    from perfdash.errors import MachineError
    from perfdash.runner import doctor as examination

    findings = examination.examine(python or sys.executable)
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        typer.echo(f"{finding.level:<5} {finding.subject:<{width}}  {finding.what}")
        if finding.do:
            typer.echo(f"{'':<5} {'':<{width}}  -> {finding.do}")
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise MachineError(f"{len(errors)} of {len(findings)} findings stop a measurement")
