"""Compare nights of one testbed: its page, and a data file for each night."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa

from perfdash.detect.comparison import ComparedRuns, Comparison
from perfdash.detect.comparison_in_history import ReadPanel, compare_in_history
from perfdash.detect.nights import case_counts, earlier_nights, latest_days
from perfdash.files import dumps
from perfdash.history import schema
from perfdash.history.queries import RunLine, panel, read_run
from perfdash.history.results import case_digest, digest
from perfdash.methods import numbers
from perfdash.records import PASSING
from perfdash.report.changes import RunChange, of_comparison, ordered
from perfdash.report.comparison_text import machines_note
from perfdash.report.site_links import compare_page, model_page
from perfdash.site.testbed_history import FORMAT, Singles, Testbed, TestbedHistory
from perfdash.site.timeline import build_words
from perfdash.stats.machine_levels import are_nameless

SHOWN = 250  # cases of a comparison on the page
_DATA = 3  # the form of the data files
_DIGITS = 12  # of a case's digest: among ten thousand cases two are alike once in five million stores
COLUMNS: dict[str, tuple[str, ...]] = {
    "speedup": ("low", "high"), "backend_ms": ("low", "high"), "eager_ms": ("low", "high"),
    "compilation_s": (), "compression_ratio": (), "backend_peak_bytes": (),
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """The last night of a kind against one before it. `title`: how long before; `words`: what
    `perfdash compare` takes for them, "" where no word means that run alone."""

    title: str
    anchor: str
    old: RunLine
    new: RunLine
    comparison: Comparison
    changes: list[RunChange]
    words: tuple[str, str]


@dataclass(frozen=True)
class CompareView:
    """The compare page of a testbed.

    `nights`: those with a data file, oldest first, as (run, file); `words`: see words_for.
    """

    bed: Testbed
    page: str
    pairs: list[Pair]
    nights: list[tuple[RunLine, str]]
    words: Mapping[int, str] = field(default_factory=dict)


def words_for(connection: sa.Connection, runs: Sequence[RunLine]) -> dict[int, str]:
    """The word by which `perfdash compare` finds each run: its name, else its start.

    Empty where neither means this run alone.
    """
    names, starts = (
        {row[0]: row[1] for row in connection.execute(sa.select(column, sa.func.count()).group_by(column))}
        for column in (schema.runs.c.name, schema.runs.c.started)
    )
    return {
        run.id: run.name if names[run.name] == 1 else run.started if starts[run.started] == 1 else ""
        for run in runs
    }


def pairs(connection: sa.Connection, runs: Sequence[RunLine], read: ReadPanel = panel) -> list[Pair]:
    """Compare the last night of each kind with the night, week and month before.

    `runs` are oldest first; `read` as in `noise_before`.
    """
    recent = latest_days(runs)
    compared_pairs = []
    for place, (last, earlier) in enumerate(earlier_nights(recent, case_counts(connection, recent))):
        if not earlier:
            continue
        new = ComparedRuns(last.name, (read_run(connection, last),))
        for title, anchor, line in earlier:
            old = ComparedRuns(line.name, (read_run(connection, line),))
            compared = compare_in_history(connection, old, new, read)  # as `perfdash compare`
            changes = ordered(of_comparison(compared))
            name = f"{anchor}-{place + 1}" if place else anchor
            words = words_for(connection, [line, last])
            command_words = (words[line.id], words[last.id])
            compared_pairs.append(Pair(title, name, line, last, compared, changes, command_words))
    return compared_pairs


def file_of(history: TestbedHistory, run: RunLine) -> str:
    """The name of a night's data file, safe in a URL, with a content digest.

    Two runs of the same name have different files.
    """
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", run.name).strip(".")[:80]
    return f"{name}-{digest([FORMAT, _DATA, run.started, history.marks[run.id]])[:8]}.js"


def cases_file(history: TestbedHistory) -> str:
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


def night_file(history: TestbedHistory, night: int) -> str:
    """The text of the data file of one of the recent nights."""
    run = history.recent[night]
    numbers = list(history.row)
    measured = np.flatnonzero(history.statuses[:, night] != "")
    # A pass whose numbers do not count is one in which nothing was captured.
    words = [
        "pass (nothing captured)" if word in PASSING and not counts else word
        for word, counts in zip(
            history.statuses[measured, night].tolist(), history.passed[measured, night].tolist(), strict=True
        )
    ]
    metrics: dict[str, dict[str, list[float | None]]] = {}
    for name, ends in COLUMNS.items():
        values = plain(history.values[name][measured, night])
        if all(value is None for value in values):
            continue
        metrics[name] = {"v": values}
        for end in ends:
            metrics[name][end] = plain(history.values[f"{name}_{end}"][measured, night])
    data = {
        "name": run.name,
        "file": file_of(history, run),
        "case": [case_digest(history.cases[numbers[row]])[:_DIGITS] for row in measured.tolist()],
        "status": words,
        "methods": {name: _method_word(run, name) for name in (*COLUMNS, "status")},
        "metrics": metrics,
    }
    return _call("night", data)


def _method_word(run: RunLine, column: str) -> str:
    """The method of a column; nights of different methods are not compared."""
    return ", ".join(f"{name} {number}" for name, number in numbers(run.method, column).items())


def plain(values: Singles) -> list[float | None]:
    """Floats rounded to six digits (the precision of 32 bits); None if not finite."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]


def _call(function: str, data: Mapping[str, Any]) -> str:
    return f"perfdash.{function}({dumps(data, separators=(',', ':'))});\n"


def night_options(nights: Sequence[tuple[RunLine, str]], words: Mapping[int, str]) -> dict[str, Any]:
    """The data with which the page's script offers any two nights.

    `word` is quoted for a shell, or empty. `hosts`: the machines of a night, where the nights have several
    whose names tell machines; `machines`: the note on two nights that have none in common.
    """
    labels = Counter(run.started[:16] for run, _ in nights)
    hosts = [run.hosts for run, _ in nights]
    several = len({host for of_night in hosts for host in of_night}) > 1 and not are_nameless(hosts)
    return {
        "command": "perfdash compare {old} {new}",
        "machines": machines_note("on another machine: {old} | {new}"),
        "nights": [
            {
                "name": run.name,
                "label": f"{run.started[:10]} {run.started[11:16]}"
                + (f", {run.name}" if labels[run.started[:16]] > 1 else "")
                + (f", {run.host}" if several else ""),
                "hosts": run.hosts if several else [],
                "torch": build_words(run),
                "file": file,
                "word": shlex.quote(words[run.id]) if words.get(run.id) else "",
            }
            for run, file in nights
        ],
    }


def compare_view(connection: sa.Connection, history: TestbedHistory) -> CompareView:
    """The page of a testbed."""
    nights = [(run, file_of(history, run)) for run in history.recent]
    page = compare_page(history.bed.digest)
    words = words_for(connection, history.recent)
    return CompareView(history.bed, page, pairs(connection, history.runs, history.panel), nights, words)
