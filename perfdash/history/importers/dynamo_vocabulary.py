"""Pair the files of pytorch's benchmarks/dynamo and translate its statuses and columns.

For its CSV, JSON and dashboard.

From benchmarks/dynamo/common.py (check_accuracy, write_csv_when_exception, output_csv) and runner.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfdash.history.importers.foreign_files import FilePlace, checked_metric, parsed_number, shown
from perfdash.records import PASSING, Status

HARNESS = "dynamo"  # RunRow.setting: CSV, JSON and dashboard of one harness may be compared
SUITES = {"torchbench": "torchbench", "huggingface": "huggingface", "timm_models": "timm", "timm": "timm"}

KINDS = ("performance", "accuracy")  # the two files of a run

_WORDS = {status.value: status for status in Status} | {
    "OOM": Status.OOM,
    "eager_1st_run_OOM": Status.EAGER_OOM,
    "eager_2nd_run_OOM": Status.EAGER_OOM,
    "eager_1st_run_fail": Status.EAGER_FAIL_TO_RUN,
    "eager_2nd_run_fail": Status.EAGER_FAIL_TO_RUN,
    "eager_variation": Status.EAGER_TWO_RUNS_DIFFER,  # its name until 2023
    "warmup_failed": Status.FAIL_TO_RUN,
    "not_bitwise_equivalent": Status.FAIL_ACCURACY,
}
_FAMILIES = (
    (re.compile(r"fail_to_run_at_batch_\d+"), Status.FAIL_TO_RUN),
    (re.compile(r"fail_batch_invariance_at_\d+"), Status.FAIL_ACCURACY),
    (re.compile(r"0(\.0+)?"), Status.FAIL_TO_RUN),  # the placeholder of a row that has no status
)
_COUNTS = {"unique_graphs": "graphs", "graph_breaks": "graph_breaks", "calls_captured": "calls_captured"}
_PEAKS = {"eager_peak_mem": "eager_peak_bytes", "dynamo_peak_mem": "backend_peak_bytes"}


def pairs(paths: Sequence[Path], kind_of: Callable[[Path], str]) -> list[dict[str, Path]]:
    """The files of each run by kind; the other file of a pair is found beside the first."""
    found: dict[Path, dict[str, Path]] = {}
    for path in paths:
        kind = kind_of(path)
        pair = found.setdefault(path.parent / without_kind(path), {})
        if kind in pair:  # two files of one kind are no pair
            pair = found.setdefault(path, {})
        pair[kind] = path
    for pair in found.values():
        for kind, path in list(pair.items()):
            other_kind = KINDS[1 - KINDS.index(kind)]
            left, separator, right = path.name.rpartition(kind)
            other = path.with_name(left + other_kind + right) if separator else path
            if other_kind not in pair and other != path and other.exists():
                if kind_of(other) == kind:
                    raise FilePlace(other).wrong(f"is named {other_kind} but holds {kind}: rename it")
                pair[other_kind] = other
    # In a fixed order, so that the run has the same content whichever file the user named first.
    return [{kind: pair[kind] for kind in KINDS if kind in pair} for pair in found.values()]


def without_kind(path: Path) -> str:
    """The name that both files of a pair have."""
    return re.sub(r"_?(performance|accuracy)$", "", path.stem) or path.stem


def size_of_pair(timed: int, where: FilePlace, checked: int, other: FilePlace, notes: list[str]) -> int:
    """The batch size of a case with `timed` in the performance file and `checked` in the accuracy file.

    0 means that the model failed before it had one. torchbench checks the accuracy of some models with a
    smaller batch (`max_batch_size` in its torchbench.yaml). Raises UsageError where it is larger.
    """
    if 0 < timed < checked:
        raise where.wrong(
            f"batch size {timed}, but {checked} in {other}: these two files are not of one run, import each "
            "alone"
        )
    if 0 < checked < timed:
        notes.append(f"accuracy was checked with batch size {checked}")
    return timed or checked


def suite(word: str) -> str:
    """perfdash's name of a suite of the dynamo runners."""
    return SUITES.get(word, word)


def known_status(word: str) -> Status | None:
    """The Status of a status word of the dynamo runners; None for an unknown word."""
    return _WORDS.get(word) or next((ours for words, ours in _FAMILIES if words.fullmatch(word)), None)


def status(word: str, where: FilePlace) -> Status:
    """The Status of a status word. Raises UsageError for an unknown word."""
    translated = known_status(word)
    if translated is None:
        raise where.wrong(
            f"accuracy is {shown(word, 60)!r}, which no version of the harness known here writes: "
            f"correct it to one of {', '.join(sorted(_WORDS))}"
        )
    return translated


def number_or_nothing(cell: str, where: FilePlace, column: str) -> float | None:
    """The number in a cell; None for an empty cell and for `nan`, which mean "not measured"."""
    return None if cell.lower() in ("", "nan") else parsed_number(cell, where, column)


@dataclass
class DynamoNumbers:
    """The numbers of a row under perfdash's names. `ran`: whether the model was timed; None: unknown."""

    ran: bool | None = None
    values: dict[str, float] = field(default_factory=dict)
    others: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    derived: dict[str, str] = field(default_factory=dict)


def measured(numbers: Mapping[str, float | None], where: FilePlace, device: str) -> DynamoNumbers:
    """Convert the numbers of a row of the performance file; None means "not measured".

    The harness writes a speedup of 0 for a model that did not run, and pads times and memory with zeros. Its
    compilation latency is the difference of two timings: a negative one is left out, with a note.
    """
    row = DynamoNumbers()
    given = {name: value for name, value in numbers.items() if value is not None}
    if "speedup" in numbers:
        row.ran = given.get("speedup", 0.0) != 0

    def take(column: str, ours: str, factor: float = 1.0) -> None:
        value = given.pop(column, 0.0)
        if value != 0:
            scaled = round(value * factor) if ours.endswith("_bytes") else value * factor
            row.values[ours] = checked_metric(ours, scaled, where, column)

    if row.ran and given.get("abs_latency") == 0:
        raise where.wrong("abs_latency is 0 of a model that ran: correct it, or leave the cell empty")
    take("speedup", "speedup")
    take("abs_latency", "backend_ms")
    if {"speedup", "backend_ms"} <= row.values.keys():
        eager = row.values["speedup"] * row.values["backend_ms"]
        row.values["eager_ms"] = checked_metric("eager_ms", eager, where)
        row.derived["eager_ms"] = "speedup * abs_latency"
    seconds = given.get("compilation_latency", 0.0)
    if seconds < 0:
        del given["compilation_latency"]
        row.notes.append(f"compilation latency left out: {seconds:g} s, a difference of two timings")
    take("compilation_latency", "compilation_s")
    take("compression_ratio", "compression_ratio")
    if device == "cpu":
        peaks = [given.pop(column, 0.0) for column in _PEAKS]
        if any(peaks):
            row.notes.append(
                "absolute memory left out: on CPU the harness writes 100 times the resident size; "
                "the ratio of both sides is kept"
            )
    else:
        for column, ours in _PEAKS.items():
            take(column, ours, 1e9)
    for column, ours in _COUNTS.items():
        if column in given:
            count = checked_metric(ours, given.pop(column), where, column)
            if row.ran or count:  # a row that did not run is padded with zeros
                row.values[ours] = count
    row.others = {name: value for name, value in given.items() if row.ran or value}
    return row


def ended(
    accuracy: Status | None, ran: bool | None, *, checked: bool, timed: bool, notes: list[str]
) -> Status:
    """The status of a case, from its accuracy and whether it ran (None: no row).

    `checked` and `timed`: whether the run has an accuracy file and a performance file. The harness writes no
    row for a model whose process crashed, so a missing row is a failure.
    """
    if accuracy is not None and accuracy not in PASSING:
        return accuracy
    if timed and not ran:
        notes.append(
            "did not run in the performance run" + (f", accuracy: {accuracy}" if accuracy else "")
            if ran is False
            else "no row in the performance file: that run crashed or was cut"
        )
        return Status.FAIL_TO_RUN
    if accuracy is None:
        if checked:
            notes.append("no row in the accuracy file: that run crashed or was cut")
            return Status.FAIL_TO_RUN
        notes.append("accuracy was not checked: only the performance is known")
        return Status.PASS_DUE_TO_SKIP
    return accuracy
