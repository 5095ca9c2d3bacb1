"""Import regression YAML of torchbench's userbenchmarks: a run for each of its two sides.

{name, control_env, treatment_env, details: {metric: {control, treatment, delta}}, control_only_metrics,
treatment_only_metrics, ...}, written by regression_detector.py of pytorch/benchmark (TorchBenchABTestResult).
It contains only metrics that changed by more than the detector's threshold, so the runs carry a note: they
are no sample of all models. The times of the sides are unknown; treatment gets the file's time, control one
second less.

The YAML is composed, never constructed, so that no tag creates an object and no alias is followed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from perfdash.history.importers.foreign_files import (
    FileBeginning,
    FilePlace,
    checked_name,
    parsed_number,
    shown,
    whole_text,
)
from perfdash.history.importers.import_options import ImportOptions, started_of, threads
from perfdash.history.importers.userbenchmark import (
    Value,
    device_of,
    rows_of_metrics,
    side_run,
    started_by_name,
    value_of,
)
from perfdash.history.results import Imported

NAME = "userbenchmark-regression"
TITLE = "regression YAML of a torchbench userbenchmark (control_env, treatment_env, details)"
LIMIT = 2 << 20  # bytes: the YAML parser needs a second for some 70 kB
_KEYS = [re.compile(rf"^{key}:", re.MULTILINE) for key in ("control_env", "treatment_env", "details")]
_SIDES = ("control", "treatment")
_NOTE = "only the metrics that changed beyond the detector's threshold, and those of one side"
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def recognises(sample: FileBeginning) -> bool:
    return all(key.search(sample.head) for key in _KEYS)


def read(paths: Sequence[Path], options: ImportOptions) -> list[Imported]:
    """Two runs for each file: control, then treatment."""
    return [run for path in paths for run in _runs(path, options)]


def _runs(path: Path, options: ImportOptions) -> list[Imported]:
    where, document = _document(path)
    notes = [_NOTE]
    thread_count = threads(options, FilePlace(path))
    benchmark = checked_name(document.get("name", (where, None))[1], where, "name")
    details = _mapping(document.get("details"), "details", where)
    started = _started(path, options)
    imported = []
    for side, (when, whence) in zip(_SIDES, started, strict=True):
        environ = _mapping(document.get(f"{side}_env"), f"{side}_env", where)
        values: dict[str, tuple[FilePlace, Value]] = {}
        for name, (place, pair) in details.items():
            both = _mapping((place, pair), name, place)
            if side not in both:
                raise place.wrong(f"{shown(name, 80)} has no {side}: cut off or damaged")
            value_place, value = both[side]
            values[name] = value_place, value_of(value, value_place, name)
        only = document.get(f"{side}_only_metrics") or (where, {})
        for name, (place, value) in _mapping(only, f"{side}_only_metrics", where).items():
            if name in values:
                raise place.wrong(f"{shown(name, 80)} is among the details too: remove one of them")
            values[name] = place, value_of(value, place, name)
        facts = {name: value for name, (_, value) in environ.items()}
        if not values:
            continue
        rows = rows_of_metrics(values, benchmark, device_of(facts), options, thread_count)
        # `_started` has already applied --started, so it is not applied again.
        alone = ImportOptions(**vars(options) | {"started": None})
        run = side_run(NAME, benchmark, side, path, facts, alone, (when, whence), notes)
        imported.append(Imported(run, rows))
    if not imported:
        raise where.wrong("no metrics in it: nothing to import")
    return imported


def _started(path: Path, options: ImportOptions) -> list[tuple[str, str]]:
    when, whence = started_of([path], options, started_by_name(path))
    moment = datetime.strptime(when, _TIME)
    if moment > datetime.min + timedelta(seconds=1):
        moment -= timedelta(seconds=1)
    before = f"{moment:{_TIME}}".rjust(20, "0")
    return [(before, f"{whence}, a second before treatment"), (when, whence)]


# Every YAML node becomes (FilePlace, value), and a mapping {name: (FilePlace, value)}.


def _mapping(node: Any, what: str, where: FilePlace) -> dict[str, tuple[FilePlace, Any]]:
    place, value = node if node is not None else (where, None)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise place.wrong(f"{shown(what, 80)} is no mapping: not of this format, or damaged")
    return value


def _document(path: Path) -> tuple[FilePlace, dict[str, tuple[FilePlace, Any]]]:
    import yaml

    text = whole_text(path, LIMIT)
    if not text.endswith("\n"):
        raise FilePlace(path, text.count("\n") + 1).wrong(
            "the last line has no line end, so the file seems cut off: "
            "import a whole one (add the line end if it is whole)"
        )
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        where, value = _value(node, path, set())
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise FilePlace(path, line).wrong(f"not valid YAML ({error.problem}): cut off or damaged") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise FilePlace(path).wrong(
            f"not valid YAML ({shown(str(error), 100)}): cut off or damaged"
        ) from error
    except RecursionError as error:
        raise FilePlace(path).wrong("nested too deeply for a file of results") from error
    return where, _mapping((where, value), "the document", where)


def _value(node: Any, path: Path, visited: set[int]) -> tuple[FilePlace, Any]:
    from yaml import MappingNode, SequenceNode

    where = FilePlace(path, node.start_mark.line + 1 if node is not None else None)
    if isinstance(node, MappingNode | SequenceNode):
        if id(node) in visited:
            raise where.wrong("refers to itself or to another part (an alias): write it out")
        visited.add(id(node))
    if isinstance(node, SequenceNode):
        return where, [_value(child, path, visited)[1] for child in node.value]
    if isinstance(node, MappingNode):
        values: dict[str, tuple[FilePlace, Any]] = {}
        for key, child in node.value:
            name = getattr(key, "value", None)
            if not isinstance(name, str):
                raise where.wrong("a key that is no text: not of this format, or damaged")
            place = FilePlace(path, key.start_mark.line + 1)
            if name in values:
                raise place.wrong(f"{shown(name, 80)} is in line {values[name][0].line} too: remove one")
            values[name] = place, _value(child, path, visited)[1]
        return where, values
    return where, None if node is None else _scalar(node, where)


def _scalar(node: Any, where: FilePlace) -> Any:
    """The value of a scalar: a decimal number, None, or text."""
    kind = node.tag.rpartition(":")[2]
    if kind in ("int", "float"):
        return parsed_number(node.value, where, "a value")
    if kind == "null":
        return None
    return node.value
