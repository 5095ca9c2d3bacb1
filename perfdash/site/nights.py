"""Nights of one testbed compared: the last with some before it, and the data files of all others."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from perfdash.detect.comparing import Comparison, Side, compare
from perfdash.detect.findings import NOTHING_CAPTURED, status_word
from perfdash.detect.noise import noise_before
from perfdash.history.queries import RunLine
from perfdash.history.rows import case_digest, digest
from perfdash.history.selection import read
from perfdash.report.changes import Change, of_comparison, ordered
from perfdash.report.links import compare_page, model_page
from perfdash.site.happened import build_words
from perfdash.site.history import FORMAT, Bed, History, Singles
from perfdash.site.kinds import NIGHTS_BACK, partners, shapes

SHOWN = 250  # cases of a comparison on the page
_DIGITS = 12  # of a case's digest: among ten thousand cases two are alike once in five million stores
COLUMNS: dict[str, tuple[str, ...]] = {
    "speedup": ("low", "high"), "backend_ms": ("low", "high"), "eager_ms": ("low", "high"),
    "compilation_s": (), "compression_ratio": (), "backend_peak_bytes": (),
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """The last night of a kind against one before it. `title`: how long before."""

    title: str
    anchor: str
    old: RunLine
    new: RunLine
    found: Comparison
    changes: list[Change]


@dataclass(frozen=True)
class CompareView:
    """`nights`: those that have a data file, oldest first, as (run, file)."""

    bed: Bed
    page: str
    pairs: list[Pair]
    nights: list[tuple[RunLine, str]]


def pairs(connection: sa.Connection, runs: Sequence[RunLine]) -> list[Pair]:
    """The last night of each kind against the night, week and month before; `runs` oldest first."""
    recent = runs[-NIGHTS_BACK:]
    found = []
    for place, (last, others) in enumerate(partners(recent, shapes(connection, recent))):
        if not others:
            continue
        new = Side(last.name, (read(connection, last),))
        for title, anchor, line in others:
            old = Side(line.name, (read(connection, line),))
            noise = noise_before(connection, [old.runs[0].run, new.runs[0].run])  # as `perfdash compare` does
            compared = compare(old, new, noise)
            changes = ordered(of_comparison(compared))
            name = f"{anchor}-{place + 1}" if place else anchor
            found.append(Pair(title, name, line, last, compared, changes))
    return found


def file_of(history: History, run: RunLine) -> str:
    """The name of a night's data file: safe in a URL, and another where its content is another."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", run.name).strip(".")[:80]
    return f"{name}-{digest([FORMAT, history.marks[run.id]])[:8]}.js"


def cases_file(history: History) -> str:
    """The cases of a testbed: names, and pages as seen from the data files."""
    cases = [history.cases[number] for number in sorted(history.cases)]
    return _call(
        "cases",
        {
            "case": [case_digest(case)[:_DIGITS] for case in cases],
            "name": [case.name for case in cases],
            "page": ["../../../" + model_page(history.bed.digest, case) for case in cases],
        },
    )


def night_file(history: History, night: int) -> str:
    """The text of the data file of one of the recent nights."""
    run = history.recent[night]
    numbers = list(history.row)
    here = np.flatnonzero(history.statuses[:, night] != "")
    captured = history.values["calls_captured"][here, night].tolist()
    words = [
        "pass (nothing captured)" if word == NOTHING_CAPTURED else word
        for word in map(status_word, history.statuses[here, night].tolist(), captured)
    ]
    metrics: dict[str, dict[str, list[float | None]]] = {}
    for name, ends in COLUMNS.items():
        values = plain(history.values[name][here, night])
        if all(value is None for value in values):
            continue
        metrics[name] = {"v": values}
        for end in ends:
            metrics[name][end] = plain(history.values[f"{name}_{end}"][here, night])
    data = {
        "name": run.name,
        "case": [case_digest(history.cases[numbers[row]])[:_DIGITS] for row in here.tolist()],
        "status": words,
        "metrics": metrics,
    }
    return _call("night", data)


def plain(values: Singles) -> list[float | None]:
    """Floats of six digits, which is what 32 bits hold; None for what is not finite."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]


def _call(function: str, data: Mapping[str, Any]) -> str:
    return f"perfdash.{function}({json.dumps(data, separators=(',', ':'), allow_nan=False)});\n"


def night_options(nights: Sequence[tuple[RunLine, str]]) -> dict[str, Any]:
    """What the page's script needs to offer any two nights."""
    return {
        "command": "perfdash compare {old} {new}",
        "nights": [
            {
                "name": run.name,
                "label": f"{run.started[:10]} {run.started[11:16]}",
                "torch": build_words(run),
                "file": file,
            }
            for run, file in nights
        ],
    }


def compare_view(connection: sa.Connection, history: History) -> CompareView:
    """The page of a testbed."""
    nights = [(run, file_of(history, run)) for run in history.recent]
    return CompareView(history.bed, compare_page(history.bed.digest), pairs(connection, history.runs), nights)
