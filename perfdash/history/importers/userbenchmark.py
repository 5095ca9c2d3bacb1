"""Metrics JSON of torchbench's userbenchmarks: {"name", "environ": {...}, "metrics": {name: number}}.

Described in pytorch/benchmark, userbenchmark/ADDING_USERBENCHMARKS.md; the file's name holds when it was
written (`metrics-20230420004336.json`, in the machine's own time, taken as UTC).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from perfdash.history.foreign import quantities, userbenchmark
from perfdash.history.foreign.reading import Sample, Where, json_values, shown, whole_text
from perfdash.history.foreign.telling import Told, run_row, threads
from perfdash.history.rows import Imported, RunRow

NAME = "userbenchmark"
TITLE = 'metrics JSON of a torchbench userbenchmark ({"name", "environ", "metrics"})'
_KEYS = (re.compile(r'"environ"\s*:\s*\{'), re.compile(r'"metrics"\s*:\s*\{'))
_STAMP = re.compile(r"(?:metrics|regression)-(\d{14})\b")


def recognises(sample: Sample) -> bool:
    head = sample.head.lstrip()
    return head.startswith("{") and all(key.search(head) for key in _KEYS)


def read(paths: Sequence[Path], told: Told) -> list[Imported]:
    """One run a file."""
    return [_run(path, told) for path in paths]


def _run(path: Path, told: Told) -> Imported:
    documents = list(json_values(path))
    where, document = documents[0]
    if len(documents) > 1:
        raise documents[1][0].wrong("a second JSON document in one file: import each alone")
    environ, metrics = document.get("environ"), document.get("metrics")
    if not isinstance(environ, dict) or not isinstance(metrics, dict) or not metrics:
        raise where.wrong("environ or metrics is missing or empty: nothing to import")
    benchmark = quantities.name(document.get("name"), where, "name")
    notes: list[str] = []
    thread_count = threads(told, Where(path))
    placed = dict(zip(metrics, _places(path, metrics), strict=True))
    values = {
        name: (placed[name], userbenchmark.value_of(value, placed[name], name))
        for name, value in metrics.items()
    }
    rows = userbenchmark.rows(values, benchmark, device_of(environ), told, thread_count)
    return Imported(side_run(NAME, benchmark, "", path, environ, told, started_by_name(path), notes), rows)


def _places(path: Path, names: Iterable[str]) -> Iterator[Where]:
    """Where each name stands in the document, as far as they stand there in order."""
    text = whole_text(path)
    position = counted = text.find('"metrics"')
    line = text.count("\n", 0, position) + 1
    for name in names:
        if position >= 0:
            position = text.find(json.dumps(name), position)
        if position >= 0:
            line, counted = line + text.count("\n", counted, position), position
        yield Where(path, line)


def device_of(environ: dict[str, Any]) -> str | None:
    """The device type that an environment tells of: `device` is the name of a GPU, or cpu."""
    device = environ.get("device")
    return None if not device else "cpu" if device == "cpu" else "cuda"


def started_by_name(path: Path) -> tuple[str, str] | None:
    """When a file was written, by its name."""
    if match := _STAMP.match(path.name):
        try:
            moment = datetime.strptime(match[1], "%Y%m%d%H%M%S")
        except ValueError:
            return None
        return f"{moment:%Y-%m-%dT%H:%M:%SZ}", "the file's name, taken as UTC"
    return None


def side_run(
    origin: str,
    benchmark: str,
    side: str,
    path: Path,
    environ: dict[str, Any],
    told: Told,
    started: tuple[str, str] | None,
    notes: Sequence[str],
) -> RunRow:
    """The run of one set of metrics; `side` tells the two of a comparison apart."""
    plain = {
        shown(str(name), 80): shown(str(value))
        for name, value in environ.items()
        if isinstance(value, str | int | float)
    }
    device = plain.get("device", "")
    return run_row(
        origin,
        " ".join(filter(None, [benchmark, shown(path.stem), side])),
        [path],
        told,
        started=started,
        host_class=None if device in ("", "cpu") else device,
        harness=f"userbenchmark {benchmark}",
        environment={
            "worker": {
                "torch": plain.get("pytorch_version"),
                "torch_git_version": plain.get("pytorch_git_version") or plain.get("git_commit_hash"),
            },
            "environ": plain,
        },
        notes=notes,
    )
