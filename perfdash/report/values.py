"""A night for programs: plain values for JSON, and a line a case for CSV."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import asdict
from typing import Any

from perfdash.files import finite
from perfdash.history.rows import METRICS, clock_of
from perfdash.history.summing import grouped, summarize
from perfdash.report.markdown import plain
from perfdash.report.night import Night
from perfdash.report.reproduce import command

_CASE = ("suite", "model", "device", "dtype", "amp_dtype", "batch_size", "threads", "scenario", "backend",
         "dynamic")  # fmt: skip
_SETTING = ("suite", "device", "dtype", "threads", "scenario", "backend", "dynamic")


def to_plain(night: Night) -> dict[str, Any]:
    """Run, summaries, changes and results; numbers in the units that their names say.

    `command` measures a case again; None where another tool measured it.
    """
    run = night.run
    ours = run.origin == "perfdash"
    told: dict[str, Any] = finite(
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
            "nightly": night.nightly,
            "summaries": [
                {**dict(zip(_SETTING, setting, strict=True)), **vars(summarize(rows))}
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
                    **row.values,
                    "others": dict(row.others),
                    "details": dict(row.details),
                    "command": command(row.case, run.setting, run.command) if ours else None,
                }
                for row in night.rows
            ],
        }
    )
    return told


def to_csv(night: Night) -> str:
    """A line a case; a field is empty where nothing was measured.

    What a spreadsheet would take for a formula gets an apostrophe; what cannot be seen, or would end the
    line, is an escape.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", "run_started", *_CASE, "status", "verdict", "basis", *METRICS, "clock"])
    for row in night.rows:
        values = finite(dict(row.values))
        cells = [
            night.run.name,
            night.run.started,
            *(getattr(row.case, name) for name in _CASE),
            row.status,
            row.verdict,
            row.basis,
            *(values.get(name) for name in METRICS),
            clock_of(row),
        ]
        writer.writerow(["" if cell is None else _inert(cell) for cell in cells])
    return file.getvalue()


def _inert(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    line = plain(cell, sys.maxsize)
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") else line
