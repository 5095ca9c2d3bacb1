"""A night for programs: JSON, CSV by case, CSV for Jenkins' plot plugin."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from perfdash.files import finite
from perfdash.history.pass_rates_and_means import NAMED_SETTING, Summary, grouped, remark, summarize
from perfdash.history.results import Row, clock_of
from perfdash.metrics import NUMBERS
from perfdash.records import variation
from perfdash.report.dashboard_tables import several_configurations
from perfdash.report.night import Night
from perfdash.report.reproduce import command_of_run
from perfdash.report.spreadsheet_cell import inert

_CASE = ("suite", "model", "device", "dtype", "amp_dtype", "batch_size", "threads", "scenario", "backend",
         "dynamic")  # fmt: skip


def to_plain(night: Night) -> dict[str, Any]:
    """Run, summaries, changes and results as plain values; units as the names say.

    `command` measures a case again; None where another tool measured it.
    """
    run = night.run
    by_perfdash = run.origin == "perfdash"
    values: dict[str, Any] = finite(
        {
            "schema": 1,
            "run": {
                "name": run.name,
                "started": run.started,
                "ended": run.ended,
                "state": run.state,
                "origin": run.origin,
                "host": run.host,
                "host_class": run.host_class,
                "setting": dict(run.setting),
                "method": dict(run.method),
                "environment": dict(run.environment),
                "noise": dict(run.noise),
                "expected": run.expected,
            },
            "against": night.against,
            "untold": night.untold,
            "caution": night.caution,
            "eager": night.eager or None,
            "nightly": night.nightly,
            "summaries": [
                {**dict(zip(NAMED_SETTING, setting, strict=True)), **vars(summarize(rows))}
                for setting, rows in grouped(night.rows).items()
            ],
            "changes": [asdict(change) for change in night.changes],
            "results": [
                {
                    "case": vars(row.case),
                    "status": str(row.status),
                    "started": row.started,
                    "verdict": row.verdict,
                    "basis": row.basis,
                    "remark": remark(row),
                    **row.values,
                    "others": dict(row.others),
                    "details": dict(row.details),
                    "command": command_of_run(row.case, run) if by_perfdash else None,
                }
                for row in night.rows
            ],
        }
    )
    return values


def to_csv(night: Night) -> str:
    """One line per case; a field is empty where nothing was measured.

    A cell that a spreadsheet would run as a formula gets an apostrophe; invisible characters and line
    ends are escaped.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = [*_CASE, *(["configuration"] if several_configurations(row.case for row in night.rows) else [])]
    header = ["run", "run_started", *columns, "status", "verdict", "basis", *NUMBERS, "clock", "remark"]
    writer.writerow(header)
    for row in night.rows:
        values = finite(dict(row.values))
        cells = [
            night.run.name,
            night.run.started,
            *(getattr(row.case, name) for name in columns),
            row.status,
            row.verdict,
            row.basis,
            *(values.get(name) for name in NUMBERS),
            clock_of(row),
            remark(row),
        ]
        writer.writerow(["" if cell is None else inert(cell) for cell in cells])
    return file.getvalue()


# The files by name, each with its number. docs/method.md says which cases count.
PLOTS: dict[str, Callable[[Summary], float | None]] = {
    "speedup_geometric_mean.csv": lambda means: means.speedup,
    "speedup_geometric_mean_clipped_at_1.csv": lambda means: means.speedup_clipped,
    "pass_rate_percent.csv": lambda means: 100 * means.passed / means.attempted if means.attempted else None,
    "compilation_seconds_mean.csv": lambda means: means.compilation_s,
    "compression_ratio_geometric_mean.csv": lambda means: means.compression_ratio,
}


def plot_csv(rows: Iterable[Row]) -> dict[str, str]:
    """The content of each file of PLOTS by name: a column per setting."""
    columns = {_label(setting): summarize(group) for setting, group in grouped(rows).items()}
    labels = sorted(columns)
    return {
        name: _text(labels, [_cell(number_of(columns[label])) for label in labels])
        for name, number_of in PLOTS.items()
    }


def _label(setting: tuple[object, ...]) -> str:
    r"""A label safe for Jenkins' plot plugin.

    The plugin splits labels at commas and reads \ as an escape.
    """
    suite, device, dtype, threads, scenario, backend, dynamic, _, configuration = setting
    words = [suite, backend, device, dtype, f"{threads}t", scenario]
    words += [word for word in [variation(str(configuration), bool(dynamic))] if word]
    return " ".join(re.sub(r"[^A-Za-z0-9._+-]", _escaped, str(word)) for word in words)


def _escaped(match: re.Match[str]) -> str:
    return f"_{ord(match[0]):x}_"


def _cell(value: float | None) -> str:
    return f"{value:.6g}" if value is not None and math.isfinite(value) else ""


def _text(*lines: list[str]) -> str:
    """Join lines of cells; neither labels nor numbers need quotes."""
    return "".join(",".join(line) + "\n" for line in lines)
