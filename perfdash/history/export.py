"""Export the results of many runs as one flat table: Parquet, CSV or JSON lines."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import sqlalchemy as sa

from perfdash.errors import MachineError, UsageError
from perfdash.files import dumps, is_special, written
from perfdash.history import schema
from perfdash.history.pass_rates_and_means import remark
from perfdash.history.queries import OF_ITS_NIGHT, RunLine, other_metrics
from perfdash.history.results import Row, clock_of
from perfdash.metrics import NUMBERS
from perfdash.records import Case

FORMATS = ("parquet", "csv", "json")
_RUNS_AT_ONCE = 100  # some 200,000 results
_LAST = ("remark", "clock", "others")  # columns of the table that other tables hold


def export(connection: sa.Connection, runs: Sequence[RunLine], path: Path, form: str) -> int:
    """Write every result of the runs to a file, atomically, or to a pipe; return their number.

    Raises UsageError if a library is missing, MachineError if the file cannot be written.
    """
    if form == "parquet" and is_special(path):
        raise UsageError(f"{path} is no file, which Parquet needs: use --format csv or json")
    try:
        with written(path) as file:
            count = _WRITERS[form](_frames(connection, runs), file)
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow: pip install pyarrow") from error
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror or error}") from error
    return count


def columns() -> list[sa.ColumnElement[Any]]:
    """The columns of the flat table before _LAST, in order: run, environment, case, result."""
    runs, beds, env = schema.runs, schema.testbeds, schema.environments
    case = [column for column in schema.cases.c if column.name not in ("id", "digest")]
    return [
        runs.c.name.label("run"),
        runs.c.started.label("run_started"),
        runs.c.state.label("run_state"),
        runs.c.excluded,
        runs.c.origin,
        schema.hosts.c.name.label("host"),
        beds.c.host_class,
        beds.c.setting.cast(sa.Text).label("setting"),
        runs.c.method.cast(sa.Text).label("method"),
        env.c.torch,
        env.c.torch_git_version,
        env.c.python,
        *case,
        *schema.results.c["status", "started", "verdict", "basis"],
        *schema.results.c[tuple(NUMBERS)],
    ]


def _frames(connection: sa.Connection, runs: Sequence[RunLine]) -> Iterator[pd.DataFrame]:
    """The rows in frames of _RUNS_AT_ONCE runs; one empty frame if there are no rows."""
    table, results, more = schema.runs, schema.results, schema.result_details
    query = (
        sa.select(*columns(), more.c.details, results.c.id.label("result_id"))
        .join_from(results, table, results.c.run_id == table.c.id)
        .outerjoin(schema.result_hosts, schema.result_hosts.c.result_id == results.c.id)
        .join(
            schema.hosts,
            sa.func.coalesce(schema.result_hosts.c.host_id, table.c.host_id) == schema.hosts.c.id,
        )
        .join(schema.testbeds, table.c.testbed_id == schema.testbeds.c.id)
        .join(schema.environments, table.c.environment_id == schema.environments.c.id)
        .join(schema.cases, results.c.case_id == schema.cases.c.id)
        .outerjoin(more, more.c.result_id == results.c.id)
        .order_by(table.c.started, table.c.id, schema.cases.c.suite, schema.cases.c.model, results.c.id)
    )
    kinds = {column.name: _dtype(column.type) for column in columns()} | dict.fromkeys(_LAST, "string")
    ids = [run.id for run in runs]
    for start in range(0, max(1, len(ids)), _RUNS_AT_ONCE):
        of_runs = results.c.run_id.in_(ids[start : start + _RUNS_AT_ONCE])
        others = other_metrics(connection, of_runs)
        result = connection.execute(query.where(of_runs))
        # Tuples, because pandas would take the column dtype for the row's own type.
        rows = [(*line[:-2], *_of_details(line), _as_json(others.get(line.result_id))) for line in result]
        yield pd.DataFrame.from_records(rows, columns=list(kinds)).astype(kinds)


def _of_details(line: Any) -> tuple[str | None, str | None]:
    """Why a pass counts in no mean, and the clock of its latencies."""
    captured = {name: getattr(line, name) for name in OF_ITS_NIGHT if getattr(line, name) is not None}
    case = Case(line.suite, line.model, backend=line.backend)
    row = Row(case, line.status, captured, verdict=line.verdict, details=line.details or {})
    return remark(row), clock_of(row)


def _as_json(others: Mapping[str, float] | None) -> str | None:
    """The numbers without a column as text, by name."""
    return dumps(others, ensure_ascii=False) if others else None


def _dtype(kind: sa.types.TypeEngine[Any]) -> str:
    """The pandas type of a column, also for a frame without values in it."""
    if isinstance(kind, sa.Boolean):
        return "boolean"
    if isinstance(kind, sa.Integer):
        return "Int64"
    return "float64" if isinstance(kind, sa.Double) else "string"


def _csv(frames: Iterator[pd.DataFrame], file: BinaryIO) -> int:
    count = 0
    with io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
        for number, frame in enumerate(frames):
            frame.to_csv(text, index=False, header=number == 0)
            count += len(frame)
    return count


def _json(frames: Iterator[pd.DataFrame], file: BinaryIO) -> int:
    count = 0
    with io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
        for frame in frames:
            if len(frame):
                frame.to_json(text, orient="records", lines=True, double_precision=15)
            count += len(frame)
    return count


def _parquet(frames: Iterator[pd.DataFrame], file: BinaryIO) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = pa.Table.from_pandas(next(frames), preserve_index=False)
    count: int = first.num_rows
    with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for frame in frames:
            writer.write_table(pa.Table.from_pandas(frame, schema=first.schema, preserve_index=False))
            count += len(frame)
    return count


_WRITERS = {"csv": _csv, "json": _json, "parquet": _parquet}
