"""The run folder: run.json, results.jsonl (each record fsynced), logs, the dynamo CSVs."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfdash.errors import MachineError, UsageError
from perfdash.records import Result, RunInfo, result_from_json, run_info_from_json, to_json
from perfdash.runner import dynamo_csv


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Journal:
    """The folder of a run that is being measured."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"

    @classmethod
    def create(cls, out: Path) -> Journal:
        """A new folder `<UTC time>_<host>` below `out`. Raises UsageError where none can be made."""
        stamp = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
        host = socket.gethostname().split(".")[0] or "host"
        for suffix in ("", *(f"-{n}" for n in range(2, 100))):
            folder = out / f"{stamp}_{host}{suffix}"
            try:
                folder.mkdir(parents=True)
                (folder / "logs").mkdir()
            except FileExistsError:
                if out.is_dir():
                    continue
                raise UsageError(f"--out {out}: it is a file; give a folder") from None
            except OSError as error:
                raise UsageError(f"--out {out}: no run folder can be made there: {error.strerror}") from error
            return cls(folder)
        raise UsageError(f"--out {out}: a hundred runs began there this second")

    def discard(self) -> None:
        """Removes the folder of a run in which nothing could be measured."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def write_info(self, info: RunInfo) -> None:
        """run.json, replaced whole: a reader sees the old one or the new one."""
        self._guard(lambda: _replace(self.folder / "run.json", json.dumps(finite(to_json(info)), indent=1)))

    def append(self, result: Result) -> None:
        """One record, on the disk when this returns. Raises MachineError when the disk refuses."""
        line = json.dumps(finite(to_json(result)), allow_nan=False, separators=(",", ":")) + "\n"
        self._guard(lambda: _append(self.folder / "results.jsonl", line))

    def write_csv(self, results: Sequence[Result], dynamo_names: dict[str, str]) -> None:
        """The CSVs of all results so far (perfdash.runner.dynamo_csv)."""
        self._guard(lambda: dynamo_csv.write(self.folder / "csv", results, dynamo_names))

    def _guard(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            raise MachineError(
                f"{self.folder} cannot be written: {error.strerror}; what was measured before is in "
                "its results.jsonl"
            ) from error


def read_info(folder: Path) -> RunInfo:
    """The run.json of a run folder. Raises UsageError where there is none or it is not one."""
    try:
        return run_info_from_json(json.loads((folder / "run.json").read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{folder} is not a run folder: run.json: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise UsageError(f"{folder / 'run.json'}: {error}") from error


def read_results(folder: Path) -> list[Result]:
    """The records of a run. A torn last line (power cut) is left out; any other is a UsageError."""
    path = folder / "results.jsonl"
    if not path.exists():
        return []
    return list(_parse(path, path.read_bytes()))


def _parse(path: Path, data: bytes) -> Iterator[Result]:
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            yield result_from_json(json.loads(line))
        except (ValueError, AttributeError) as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
    if rest:  # no newline: the write was cut short, unless only the newline itself was lost
        try:
            yield result_from_json(json.loads(rest))
        except (ValueError, AttributeError):
            return


def find_run(name: str, out: Path) -> Path:
    """A run by path, by folder name below `out`, or `last`. Raises UsageError with the runs there are."""
    runs = sorted(path.parent for path in out.glob("*/run.json"))
    if name == "last" and runs:
        return runs[-1]
    for candidate in (Path(name), out / name):
        if (candidate / "run.json").is_file():
            return candidate
    known = ", ".join(run.name for run in runs[-5:]) or "none"
    raise UsageError(f"no run {name!r}; the latest in {out}: {known}")


def finite(value: Any) -> Any:
    """A copy with NaN and infinities as None: JSON has no word for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
