"""`perfdash plot`: pictures of a run, as PNG and SVG."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdash.cli.store import Db, Out

if TYPE_CHECKING:
    from perfdash.history.rows import Imported
    from perfdash.report.plots.trend_plot import Night
    from perfdash.settings import RunSettings

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
        str, typer.Argument(help="A run folder, its name, or `last`; or a run of the history.")
    ] = "last",
    to: Annotated[
        Path | None, typer.Option(help="Folder for the pictures.  [default: plots/NAME OF THE RUN]")
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
) -> None:
    """Draw a run: speedups, latency by batch size, memory, compile time; and the trend up to it."""
    from perfdash.cli.nights import imported_of
    from perfdash.errors import UsageError
    from perfdash.report.plots import KINDS, files_of_rows, files_of_trend
    from perfdash.settings import resolve

    wanted = _kinds(kind, (*KINDS, _TREND))
    settings = resolve({"db": db, "out": out})[0]
    imported = imported_of(run, settings)
    folder = to or Path("plots", re.sub(r"[^\w.+-]", "_", imported.run.name).strip(".") or "run")
    count, missing = 0, []
    for name in wanted:
        if name == _TREND:
            nights, why = _nights(imported, settings)
            files = files_of_trend(nights)
        else:
            files, why = files_of_rows(name, imported.rows), _WITHOUT[name]
        drawn = 0
        for file, content in files:
            typer.echo(_write(folder / file, content))
            drawn += 1
        count += drawn
        if not drawn:
            missing.append(f"{name}: {why}")
    if not count:
        raise UsageError(f"{imported.run.name}: nothing to draw: {'; '.join(missing)}")
    for each in missing:
        typer.echo(f"Not drawn: {each}", err=True)


def _kinds(given: list[str] | None, known: tuple[str, ...]) -> list[str]:
    """In the order of `known`. Raises UsageError for one that there is not."""
    from perfdash.errors import UsageError

    wanted = [word.strip() for text in given or known for word in text.split(",")]
    for word in wanted:
        if word not in known:
            raise UsageError(f"--kind {word!r} is none of {', '.join(known)}")
    return [word for word in known if word in wanted]


def _nights(imported: Imported, settings: RunSettings) -> tuple[list[Night], str]:
    """The summaries of the run's suites up to it on its testbed; and why there are none."""
    import sqlalchemy as sa

    from perfdash.errors import MachineError
    from perfdash.history import schema
    from perfdash.history.ingest import testbed_values
    from perfdash.history.queries import trend
    from perfdash.history.store import NoHistory, open_store

    digest = testbed_values(imported.run)["digest"]
    try:
        with open_store(settings.history, create=False) as store, store.read() as connection:
            bed = connection.execute(
                sa.select(schema.testbeds.c.id).where(schema.testbeds.c.digest == digest)
            ).scalar()
            if bed is None:
                return [], "the history has no run that may be compared with it"
            suites = sorted({row.case.suite for row in imported.rows})
            nights = [night for suite in suites for night in trend(connection, suite, testbed_id=bed)]
    except (NoHistory, MachineError) as error:
        return [], str(error)
    return (
        [night for night in nights if night["started"] <= imported.run.started],
        "the history has nothing of its suites",
    )


def _write(path: Path, content: bytes) -> str:
    """Puts the file in place whole. Raises MachineError where it cannot be written."""
    from perfdash import files
    from perfdash.errors import MachineError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, content.decode() if path.suffix == ".svg" else content)
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}") from error
    return str(path)
