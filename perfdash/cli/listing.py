"""`perfdash list`: list the suites, or the models of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perfdash.cli.shared_options import AsJson
from perfdash.files import dumps


def list_suites(
    suite: Annotated[str | None, typer.Argument(help="List the models of this suite.")] = None,
    torchbench: Annotated[
        Path | None, typer.Option(help="A checkout of torchbench: the suite torchbench-checkout.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the suites, or the models of one suite."""
    from perfdash.settings import resolve
    from perfdash.suites.suite_file import CHECKOUT_SUITE, BatchSize, Model, Suite, suite_names
    from perfdash.suites.torchbench_checkout import suite_named

    path = resolve({"torchbench": torchbench})[0].torchbench
    names = [suite] if suite else [*suite_names(), *([CHECKOUT_SUITE] if path else [])]
    suites = [suite_named(name, path) for name in names]

    def setting(of: Suite, model: Model, key: str, otherwise: Any = None) -> Any:
        return of.setting(model, key, otherwise, scenario=of.scenario)

    if as_json:
        typer.echo(
            dumps(
                [
                    {
                        "suite": s.name,
                        "title": s.title,
                        "source": str(s.path),
                        "models": [
                            {
                                "name": m.name,
                                "loader": s.loader_of(m),
                                "target": m.target or m.name,
                                "parameters": m.parameters,
                                "batch_size": setting(s, m, "batch_size", BatchSize()).model_dump(),
                                "batch_sizes": setting(s, m, "batch_sizes"),
                                "quick": m.quick,
                                "skip": [skip.model_dump() for skip in setting(s, m, "skip", ())],
                            }
                            for m in s.models
                        ],
                    }
                    for s in suites
                ],
                indent=1,
            )
        )
        return
    if suite is None:
        for s in suites:
            quick = sum(m.quick for m in s.models)
            typer.echo(f"{s.name:<20} {len(s.models):>4} models, {quick} quick   {s.title}")
        return
    (s,) = suites
    width = max(len(m.name) for m in s.models)
    typer.echo(f"{'model':<{width}}  batch size: one thread, cpu, cuda   loader")
    for m in s.models:
        sizes = setting(s, m, "batch_size", BatchSize())
        several = ",".join(map(str, setting(s, m, "batch_sizes", ())))
        batch = several or f"{sizes.one_thread:>3} {sizes.cpu:>4} {sizes.cuda:>4}"
        mark = "  quick" if m.quick else ""
        skip = "".join(
            f"  skipped on {', '.join(skip.devices)} in {', '.join(skip.dtypes)}: {skip.reason}"
            for skip in setting(s, m, "skip", ())
        )
        typer.echo(f"{m.name:<{width}}  {batch}  {s.loader_of(m)}{mark}{skip}")
