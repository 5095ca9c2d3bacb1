"""`perfdash check`: check that every model of a suite builds and runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from perfdash.cli.settings_flags import takes_settings
from perfdash.cli.shared_options import AsJson
from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.runner.model_check import ModelCheck


@takes_settings(
    {
        "suite": None,
        "model": "A model of your own: file.py:function.",
        "models": None,
        "batch_size": "The batch size, instead of the suite's.",
        "device": None,
        "dtype": "As in `perfdash run`.  [default: float32]",
        "quick": "Only the few models that the suite marks as quick.",
        "torchbench": "A checkout of torchbench: its models are the suite torchbench-checkout.",
        "python": "Use the torch of this interpreter.",
        "weights": "random, pretrained, or a file.  [default: random]",
        "timeout": "Seconds that a model may take.",
        "memory_limit": "GiB that a model may use.",
        "cores": "Use these cores, e.g. 0-3,8.  [default: all]",
        "jobs": "Models at the same time.  [default: as many as cores and memory allow]",
    }
)
def check(
    flags: Mapping[str, Any],
    as_json: AsJson = False,
) -> None:
    """Check that every model loads and runs, without compiling.

    Exit code 1 if a model fails. A model that is too large for this machine, or that its suite skips, is
    listed but does not count as a failure.
    """
    from perfdash.records import to_json
    from perfdash.runner.model_check import check_models
    from perfdash.settings import resolve

    settings, origins = resolve({**flags, "backend": ["eager"]})
    # Nothing is compiled: a configuration would name another back end, or check a model once more.
    settings = settings.model_copy(update={"executor": "local", "scheduler": None, "configuration": ()})
    if origins["jobs"] == "default":
        settings = settings.model_copy(update={"jobs": "auto"})
    count = 0

    def on_check(checked: ModelCheck) -> None:
        nonlocal count
        count += 1
        if not as_json:
            typer.echo(f"[{count}] {_line(checked)}")

    checks = check_models(settings, origins["jobs"] == "default", on_check)
    if as_json:
        typer.echo(dumps([to_json(checked) for checked in checks], indent=1))
    else:
        typer.echo(_summary(checks))
    raise typer.Exit(int(any(checked.faulty for checked in checks)))


def _line(checked: ModelCheck) -> str:
    case = checked.case
    name = f"{case.suite} {case.model}" + (f" {case.dtype}" if case.dtype != "float32" else "")
    size = f"{checked.parameters / 1e6:.1f} M parameters, " if checked.parameters is not None else ""
    if checked.status is None:
        wrong = f"; {checked.reason}" if checked.reason else ""
        return f"{name}: ok, {size}load {checked.load_s:.1f} s, eager {checked.eager_s:.2f} s{wrong}"
    where = f" in {checked.phase}" if checked.phase else ""
    return f"{name}: {checked.status}{where}: {checked.reason}"


def _summary(checks: list[ModelCheck]) -> str:
    """How many build and run in each suite, and the others once more."""
    lines = [""]
    for suite in dict.fromkeys(checked.case.suite for checked in checks):
        mine = [checked for checked in checks if checked.case.suite == suite]
        lines.append(
            f"{suite}: {sum(checked.status is None for checked in mine)} of {len(mine)} build and run"
        )
    lines += [f"  {_line(checked)}" for checked in checks if checked.reason]
    return "\n".join(lines)
