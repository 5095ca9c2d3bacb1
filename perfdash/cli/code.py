"""`perfdash code`: the code that inductor generated for a case."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdash.cli.shared_options import AsJson, Db, Out, RunName, lookup, print_result


def code(
    run: RunName,
    model: Annotated[str, typer.Argument(help="The model, or a pattern that matches one case.")],
    kernel: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this kernel, or the kernels that match this pattern."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a file per graph or kernel into this folder.")
    ] = None,
    db: Db = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Print or write the code that inductor generated."""
    from perfdash.errors import MachineError, UsageError
    from perfdash.explain.case_sides import row_of
    from perfdash.explain.code_difference import kernels_of
    from perfdash.files import write
    from perfdash.history.generated_code import texts

    imported = lookup(db, out).run(run, code=True)
    row = row_of(imported, model)
    files = texts(row.code)
    if not files:
        raise UsageError(
            f"no generated code of {row.case.name} is kept in {imported.run.name}: its back end generates "
            "none, it failed before, it was measured with --no-code or by an older perfdash"
        )
    if kernel is not None:
        files = kernels_of(files, kernel)
    if to is None:
        print_result(
            files, "\n\n".join(f"# {name}\n{text.rstrip()}" for name, text in files.items()), as_json
        )
        return
    try:
        to.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write(to / name, text)
    except OSError as error:
        raise MachineError(f"--to {to}: {error.strerror or error}") from error
    plain = {"files": [str(to / name) for name in files]}
    print_result(plain, f"{to}: {', '.join(files)}", as_json)
