"""`perfdash config`: show every setting with its origin."""

from __future__ import annotations

import typer

from perfdash.cli.shared_options import AsJson
from perfdash.files import dumps


def config(
    as_json: AsJson = False,
) -> None:
    """Show each setting and where it comes from."""
    from perfdash.bisection.sources.git_repository import without_credentials
    from perfdash.redaction import mask_secrets, mask_variables
    from perfdash.settings import bisect_origins, bisect_settings, resolve, shown

    settings, origins = resolve({})
    values = shown(settings)
    values["env"] = mask_variables(settings.env)
    bisect = bisect_settings().model_dump(mode="json", exclude_none=True)
    if "command" in bisect:
        bisect["command"] = mask_secrets(bisect["command"])
    if "wheels" in bisect:
        bisect["wheels"] = without_credentials(bisect["wheels"])
    values.update({f"bisect.{key}": value for key, value in bisect.items()})
    origins.update({f"bisect.{key}": origin for key, origin in bisect_origins().items()})
    if as_json:
        typer.echo(dumps({k: {"value": values[k], "origin": origins[k]} for k in values}, indent=1))
        return
    width = max(map(len, values))
    for key, value in values.items():
        typer.echo(f"{key:<{width}}  {dumps(value):<28}  {origins[key]}")
