"""`perfdash detect`: change points of any series in a CSV file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfdash.cli.shared_options import AsJson
from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.detect.csv_series import CsvSeries


def detect(
    file: Annotated[Path, typer.Argument(help="A CSV file with a header and a row per measurement.")],
    column: Annotated[str, typer.Option(help="The column with the values.")],
    time: Annotated[
        str | None, typer.Option(help="A column with times: numbers or ISO dates. Rows are sorted by it.")
    ] = None,
    min_change: Annotated[float, typer.Option(help="Ignore changes smaller than this (0.02 = 2 %).")] = 0.02,
    weak: Annotated[
        bool,
        typer.Option("--weak", help="Also list steps that are significant only within a window of 50 rows."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find when the level of a series in a CSV file changed.

    Each change is printed with its size, its probability and the rows around it."""
    from perfdash.detect.csv_series import read_column
    from perfdash.errors import UsageError

    if not (math.isfinite(min_change) and min_change >= 0):
        raise UsageError(f"--min-change {min_change}: must be a fraction from 0, such as 0.02")
    series = read_column(file, column, time)
    if as_json:
        typer.echo(
            dumps({"file": str(file), "column": column, **series.to_plain(min_change, weak=weak)}, indent=1)
        )
        return
    changes, noise = series.plain_changes(min_change, weak=weak), series.noise()
    missing = f" ({series.missing} missing)" if series.missing else ""
    deviation = f"{noise.deviation:.2%}" if series.ratio else f"{noise.deviation:.4g}"
    typer.echo(
        f"{column}: {len(series.values)} values{missing}, noise {deviation}, "
        f"autocorrelation {noise.rho:.2f}; changes of {min_change:.3g} and more, as a fraction"
    )
    if not series.ratio:
        typer.echo("Some values are not above zero, so changes are differences, not ratios.")
    typer.echo(_table(changes, series) if changes else _none(series))


def _table(changes: list[dict[str, Any]], series: CsvSeries) -> str:
    """One row a change. The range is given in time where there is any."""
    from prettytable import PrettyTable

    timed = series.times is not None
    names = ["index", "line", *(["time"] if timed else []), "before", "after", "change", "confidence"]
    table = PrettyTable([*names, *(["cause after", "and until"] if timed else ["between"])])
    table.align = "r"
    for row in changes:
        size = f"{row['change']:+.1%}" if series.ratio else f"{row['change']:+.4g}"
        sure = f"{row['confidence']:.2%}" if row["confidence"] < 0.9999 else "> 99.99%"
        sure = "weak" if row.get("weak") else sure
        cells = [row["index"], row["line"], *([row["time"]] if timed else [])]
        cells += [f"{row['before']:.6g}", f"{row['after']:.6g}", size, sure]
        where = row["range"]
        cells += [where["after"], where["until"]] if timed else [f"{where['low']} .. {where['high']}"]
        table.add_row(cells)
    return str(table)


def _none(series: CsvSeries) -> str:
    given = len(series.values) - series.missing
    if given < series.FEWEST:
        return f"{given} values are too few to find a change: at least {series.FEWEST} are needed."
    return "No change found."
