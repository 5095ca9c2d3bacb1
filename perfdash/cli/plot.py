"""`perfdash plot`: write plots of a run as PNG and SVG."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from perfdash.cli.report import write_output
from perfdash.cli.shared_options import LAST, AsJson, Db, Out, lookup
from perfdash.files import dumps

_TREND = "trend"
# Why a run has none of a kind.
_WITHOUT = {
    "speedup": "no case has finished",
    "latency": "no model was measured at several batch sizes",
    "throughput": "no model was measured at several batch sizes",
    "memory": "no peak memory was measured",
    "compile": "nothing was compiled",
    "latency_comparison": "no model was measured in several ways",
    "throughput_comparison": "no model was measured in several ways",
}


def plot(
    run: Annotated[
        str,
        typer.Argument(
            help=f"A run: its folder, its name, or the name or id:N of a run in the history. {LAST}."
        ),
    ] = "last",
    to: Annotated[
        Path | None, typer.Option(help="Folder of the pictures.  [default: plots/NAME OF THE RUN]")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="speedup, latency, throughput, memory, compile, latency_comparison, throughput_comparison, "
            "trend.  [default: all]"
        ),
    ] = None,
    db: Db = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Draw the results of a run as PNG and SVG pictures."""
    from perfdash.errors import UsageError
    from perfdash.report.plots import KINDS, files_of_rows, files_of_trend

    wanted = _kinds(kind, (*KINDS, _TREND))
    runs = lookup(db, out)
    imported = runs.run(run)
    folder = to or Path("plots", re.sub(r"[^\w.+-]", "_", imported.run.name).strip(".") or "run")
    paths: list[Path] = []
    missing = []
    for name in wanted:
        if name == _TREND:
            nights, why = runs.trend(imported)
            files = files_of_trend(nights)
        else:
            files, why = files_of_rows(name, imported.rows), _WITHOUT[name]
        before = len(paths)
        for file, content in files:
            path = folder / file
            write_output(path, content.decode() if path.suffix == ".svg" else content)
            paths.append(path)
            if not as_json:
                typer.echo(path)
        if len(paths) == before:
            missing.append(f"{name}: {why}")
    if not paths:
        raise UsageError(f"{imported.run.name}: nothing to draw: {'; '.join(missing)}")
    if as_json:
        typer.echo(dumps({"files": list(map(str, paths)), "not_drawn": missing}, indent=1))
        return
    for reason in missing:
        typer.echo(f"Not drawn: {reason}", err=True)


def _kinds(given: list[str] | None, all_kinds: tuple[str, ...]) -> list[str]:
    """The wanted kinds in the order of `all_kinds`. Raises UsageError for an unknown one."""
    from perfdash.errors import UsageError

    wanted = [word.strip() for text in given or all_kinds for word in text.split(",")]
    for word in wanted:
        if word not in all_kinds:
            from perfdash.suggestions import not_one_of

            raise UsageError(not_one_of("--kind", word, all_kinds))
    return [word for word in all_kinds if word in wanted]
