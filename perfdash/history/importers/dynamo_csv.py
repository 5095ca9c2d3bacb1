"""Import CSV pairs of pytorch's benchmarks/dynamo: `..._performance.csv` and `..._accuracy.csv`.

Written by benchmarks/dynamo/common.py (output_csv), named by runner.py:
`{compiler}_{suite}_{dtype}_{inference|training}_{device}_{performance|accuracy}.csv`. perfdash writes
the same files (runner/dynamo_csv_writer.py), with the name of a configuration behind the device, and columns
that say why a row counts in no mean (disturbed, recompile_limit) and which options changed the numbers or
series of the run (run_options). A file does not show which program wrote it, so absolute memory on CPU is
never imported, because the harness writes wrong values. Columns are found by name; older versions have fewer,
and do not pad the row of a failed model. The rows hold no time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdash.errors import UsageError
from perfdash.history.importers import dynamo_vocabulary
from perfdash.history.importers.foreign_files import (
    FileBeginning,
    FilePlace,
    cells,
    checked_batch_size,
    checked_name,
    lines,
    shown,
)
from perfdash.history.importers.import_options import ImportOptions, run_row, threads
from perfdash.history.results import Imported, Row
from perfdash.records import DEFAULT_CONFIGURATION, DISTURBED, Case, Status

NAME = "dynamo-csv"
TITLE = "CSV of pytorch's dynamo runners (dev,name,batch_size,speedup|accuracy,...)"
_FIRST = ("dev", "name", "batch_size")
_HINT = "name the file as the harness does: inductor_timm_models_float32_inference_cpu_performance.csv"
_FROM_RIGHT = re.compile(
    r"(?P<left>.+)_(?P<dtype>float16|float32|float64|bfloat16|amp|amp_fp16|amp_bf16|int8)"
    r"_(?P<scenario>inference|training)_(?P<device>[a-z]+)(?:_(?P<configuration>.+))?"
)
_RECOMPILE_LIMIT = "recompile_limit"  # the column, and the name among the details of a row
_RUN_OPTIONS = "run_options"
_DYNAMIC = "dynamic"  # the configuration that sets nothing but a field of the case
_AMP = {"amp_fp16": "float16", "amp_bf16": "bfloat16"}


@dataclass
class CsvLine:
    """One row of a performance or accuracy file."""

    where: FilePlace
    device: str
    batch_size: int
    cells: dict[str, str]


def recognises(sample: FileBeginning) -> bool:
    return _kind(sample.head.split("\n", 1)[0]) is not None


def read(paths: Sequence[Path], options: ImportOptions) -> list[Imported]:
    """Read one run a pair; the other file of a pair is found beside the first."""
    return [_run(pair, options) for pair in dynamo_vocabulary.pairs(paths, _kind_of)]


def _kind(header: str) -> str | None:
    try:
        columns = cells(header.rstrip("\r"), FilePlace(Path()))
    except UsageError:
        return None
    if tuple(columns[:3]) != _FIRST:
        return None
    return next((kind for kind in ("accuracy", "performance") if _column(kind) in columns), None)


def _column(kind: str) -> str:
    return "speedup" if kind == "performance" else kind


def _kind_of(path: Path) -> str:
    _, header = next(iter(lines(path)), (0, ""))
    kind = _kind(header)
    if kind is None:
        raise FilePlace(path, 1).wrong(
            "not the header dev,name,batch_size,speedup|accuracy,...: import another"
        )
    return kind


def _run(pair: dict[str, Path], options: ImportOptions) -> Imported:
    tables = {kind: _lines(path) for kind, path in pair.items()}
    path = pair.get("performance") or pair["accuracy"]
    devices = {line.device for table in tables.values() for of_model in table.values() for line in of_model}
    common = _common(path, options, devices, threads(options, FilePlace(path)))
    models = list(dict.fromkeys(model for table in tables.values() for model in table))
    if not models:
        raise FilePlace(path).wrong("no results in it, only the header: nothing to import")
    timed, checked = tables.get("performance", {}), tables.get("accuracy", {})
    rows = tuple(
        _row(*lines_of_case, common, set(pair))
        for model in models
        for lines_of_case in _by_batch_size(timed.get(model, []), checked.get(model, []))
    )
    run = run_row(
        NAME,
        dynamo_vocabulary.without_kind(path),
        list(pair.values()),
        options,
        harness=dynamo_vocabulary.HARNESS,
    )
    return Imported(run, rows)


def _common(path: Path, options: ImportOptions, devices: set[str], thread_count: int) -> Case:
    """The setting of all cases of a pair, from the file's name or the options."""
    where = FilePlace(path)
    match = _FROM_RIGHT.fullmatch(dynamo_vocabulary.without_kind(path))
    configuration = match["configuration"] if match else None
    if match and configuration not in (None, _DYNAMIC):
        raise where.wrong(
            f"is named after the configuration {shown(str(configuration), 60)!r}, and does not hold its "
            f"settings: import the run folder (if it is none, let the name end in {match['device']})"
        )
    dtype = match["dtype"] if match else None
    amp_dtype = _AMP.get(dtype) if dtype else None
    if dtype in _AMP:
        dtype = "amp"
    if len(devices) == 1:
        device = options.agreed("device", next(iter(devices)), where)
        if match and match["device"] != device:
            raise where.wrong(f"is named {match['device']}, but its rows say {shown(device, 40)}: rename it")
    elif devices:
        several = shown(", ".join(sorted(devices)), 80)
        raise where.wrong(f"rows of several devices ({several}): split the file")
    else:
        device = options.agreed("device", match["device"] if match else None, where, _HINT)
    suite = backend = None
    if match:
        left = match["left"]
        suffixes = [f"_{word}" for word in dynamo_vocabulary.SUITES] + (
            [f"_{options.suite}"] if options.suite else []
        )
        suffix = max((end for end in suffixes if left.endswith(end)), key=len, default=None)
        if suffix and len(suffix) < len(left):
            suite, backend = dynamo_vocabulary.suite(suffix[1:]), left.removesuffix(suffix).replace("_", "-")
        if options.backend and backend == options.backend.replace("_", "-"):
            backend = options.backend  # a name of the user's own may have underscores
    dtype = options.agreed("dtype", dtype, where, _HINT)
    return Case(
        suite=options.agreed("suite", suite, where, _HINT),
        model="",
        device=device,
        dtype=dtype,
        threads=thread_count,
        scenario=options.agreed("scenario", match["scenario"] if match else None, where, _HINT),
        backend=options.agreed("backend", backend, where, _HINT),
        dynamic=configuration == _DYNAMIC,
        amp_dtype=(amp_dtype or options.amp_dtype) if dtype == "amp" else None,
        configuration=configuration or DEFAULT_CONFIGURATION,
    )


def _lines(path: Path) -> dict[str, list[CsvLine]]:
    """The rows of one file by model."""
    rows = lines(path)
    number, header = next(rows)
    columns = cells(header, FilePlace(path, number))
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise FilePlace(path, number).wrong(f"two columns named {shown(twice, 60)!r}: remove one")
    lines_by_model: dict[str, list[CsvLine]] = {}
    for number, text in rows:
        where = FilePlace(path, number)
        values = cells(text, where)
        if not any(values):
            continue
        row = _padded(columns, values, where)
        if run_options := row.get(_RUN_OPTIONS):
            raise where.wrong(
                f"was measured with options ({shown(run_options, 120)}) whose values are not in the file: "
                "import the run folder"
            )
        model = checked_name(row["name"], where, "the model's name")
        device = checked_name(row["dev"], where, "the device")
        size = checked_batch_size(row["batch_size"], where)
        of_model = lines_by_model.setdefault(model, [])
        for before in of_model:
            if before.batch_size == size or 0 in (before.batch_size, size):  # 0: of no size of its own
                raise where.wrong(
                    f"{shown(model, 80)} again, it is in line {before.where.line} too: remove one of them"
                )
        of_model.append(CsvLine(where, device, size, row))
    return lines_by_model


def _by_batch_size(
    timed: Sequence[CsvLine], checked: Sequence[CsvLine]
) -> list[tuple[CsvLine | None, CsvLine | None]]:
    """The lines of a model in both files, paired by their batch sizes.

    A single line that is left on each side is a pair, too: a model that failed early has batch size 0.
    """
    sizes = {line.batch_size: line for line in checked}
    pairs: list[tuple[CsvLine | None, CsvLine | None]] = [
        (line, sizes.pop(line.batch_size)) for line in timed if line.batch_size in sizes
    ]
    paired = [line for line, _ in pairs]
    left = [line for line in timed if line not in paired]
    if len(left) == len(sizes) == 1:
        return [*pairs, (left[0], next(iter(sizes.values())))]
    return [*pairs, *((line, None) for line in left), *((None, line) for line in sizes.values())]


def _padded(columns: list[str], values: list[str], where: FilePlace) -> dict[str, str]:
    """The cells by column. Only the row of a model that did not run may have fewer cells."""
    if len(values) > len(columns):
        raise where.wrong(f"{len(values)} cells under {len(columns)} columns: correct or remove the line")
    row = dict(zip(columns, values, strict=False))
    if len(values) < len(columns):
        failed = len(values) >= 4 and re.fullmatch(r"0(\.0+)?", row.get("speedup", "0"))
        if not failed or row.get("batch_size") not in ("0", "0.0"):
            raise where.wrong(f"{len(values)} cells under {len(columns)} columns: cut off or damaged")
        row |= dict.fromkeys(columns[len(values) :], "")
    return row


def _row(timed: CsvLine | None, checked: CsvLine | None, common: Case, kinds: set[str]) -> Row:
    line = timed or checked
    assert line is not None
    notes: list[str] = []
    accuracy: Status | None = None
    size = line.batch_size
    if timed and checked:
        size = dynamo_vocabulary.size_of_pair(
            timed.batch_size, timed.where, checked.batch_size, checked.where, notes
        )
    if checked:
        accuracy = dynamo_vocabulary.status(checked.cells["accuracy"], checked.where)
    performance = dynamo_vocabulary.DynamoNumbers()
    if timed:
        performance = dynamo_vocabulary.measured(_numbers(timed), timed.where, common.device)
    disturbed = timed.cells.get(DISTURBED) if timed else None
    if disturbed:
        notes.append(f"disturbed {shown(disturbed, 200)}")
    if checked:
        _add_counts(performance, checked, accuracy)
    status = dynamo_vocabulary.ended(
        accuracy,
        performance.ran,
        checked="accuracy" in kinds,
        timed="performance" in kinds,
        notes=notes,
    )
    if not size:
        notes.append("batch size 0 in the file: the model did not get that far")
    details = {
        "origin": line.where.origin,
        "accuracy_origin": checked.where.origin if checked and timed else None,
        "accuracy": {"status": checked.cells["accuracy"]} if checked else None,
        _RECOMPILE_LIMIT: shown(_limit_message(timed), 200) if timed else None,
        "notes": notes + performance.notes,
        "derived": performance.derived,
    }
    values = vars(common) | {"model": line.cells["name"].strip(), "batch_size": size}
    return Row(
        case=Case(**values),
        status=str(status),
        values=performance.values,
        verdict=DISTURBED if disturbed else None,
        others=performance.others,
        details={name: value for name, value in details.items() if value},
    )


def _numbers(line: CsvLine) -> dict[str, float | None]:
    skipped = {*_FIRST, "accuracy", "tag", DISTURBED, _RUN_OPTIONS, ""}
    if _limit_message(line):
        skipped.add(_RECOMPILE_LIMIT)
    return {
        name: dynamo_vocabulary.number_or_nothing(cell, line.where, name)
        for name, cell in line.cells.items()
        if name not in skipped
    }


def _limit_message(line: CsvLine) -> str:
    """Dynamo's message that the recompile limit was reached; empty for a number of another tool."""
    cell = line.cells.get(_RECOMPILE_LIMIT, "")
    return cell if "limit" in cell else ""  # each message has the word: worker/compilation.py


def _add_counts(performance: dynamo_vocabulary.DynamoNumbers, line: CsvLine, accuracy: Status | None) -> None:
    """Add graphs and breaks of the accuracy run if the performance run has none.

    Its `compilation_latency` is all of dynamo's time, so it gets a name of its own.
    """
    numbers = _numbers(line)
    seconds = numbers.pop("compilation_latency", None)
    counted = dynamo_vocabulary.measured(numbers, line.where, line.device)
    reached = accuracy in (Status.PASS, Status.FAIL_ACCURACY)
    if seconds and seconds > 0:
        performance.others["accuracy_run_compilation_s"] = seconds
    if not performance.ran:
        for name, value in counted.values.items():
            performance.values.setdefault(name, value)
        for name, value in counted.others.items():
            if value or reached:
                performance.others.setdefault(name, value)
