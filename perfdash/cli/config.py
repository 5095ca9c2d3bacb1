"""`perfdash config`: show every setting with its origin."""

from __future__ import annotations

import typer

from perfdash.cli.shared_options import AsJson
from perfdash.files import dumps


def config(
    as_json: AsJson = False,
) -> None:
    """Show each setting of `run` with where it comes from: environment, perfdash.toml or default."""
    from perfdash.redaction import mask_variables
    from perfdash.settings import resolve, shown

    settings, origins = resolve({})
    values = shown(settings)
    values["env"] = mask_variables(settings.env)
    if as_json:
        typer.echo(dumps({k: {"value": values[k], "origin": origins[k]} for k in values}, indent=1))
        return
    width = max(map(len, values))
    for key, value in values.items():
        typer.echo(f"{key:<{width}}  {dumps(value):<28}  {origins[key]}")
