"""The journal of a run: the files of its folder. A power cut loses no result.

results.jsonl gets a line for each finished case, appended and synced to the disk (files.append). run.json and
plan.json are replaced as a whole (files.replaced). When a run is resumed, half a line at the end is cut off,
and damaged lines are moved to another file, so that their cases are measured again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from perfdash.errors import MachineError, UsageError
from perfdash.files import (
    append,
    dumps,
    is_full,
    is_locked,
    make_dated_folder,
    mend_last_line,
    now,
    replaced,
    try_lock,
)
from perfdash.records import (
    SCHEMA,
    Case,
    Result,
    RunInfo,
    result_from_json,
    run_info_from_json,
    to_json,
)
from perfdash.runner import code_files, dynamo_csv_writer
from perfdash.suggestions import did_you_mean

INFO, PLAN, RESULTS, LOCK = "run.json", "plan.json", "results.jsonl", ".lock"
_SURROGATE = re.compile("[\ud800-\udfff]")
ATTEMPTS = "attempts.jsonl"  # the failed attempts at cases that were measured again
SET_ASIDE = "results.damaged.jsonl"  # damaged lines of results.jsonl, unchanged


@dataclass(frozen=True)
class DamagedLine:
    """A line of results.jsonl that is no record. `str()` says where, and what is wrong with it."""

    path: Path
    number: int  # from 1
    bytes: bytes
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}: {self.reason}"


class RunJournal:
    """The files of a run that is being measured. A lock keeps a second perfdash out."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageError where another perfdash is measuring this very run."""
        self.folder = folder
        self.logs = folder / "logs"
        self.damaged: list[DamagedLine] = []  # what reopen() has set aside
        try:
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise MachineError(f"{folder} cannot be written: {error.strerror}") from error
        if not try_lock(self._lock):
            os.close(self._lock)
            raise UsageError(f"{folder} is being measured by another perfdash; wait for it, or end it")

    @classmethod
    def create(cls, out: Path) -> RunJournal:
        """A new folder `<UTC time>_<host>` below `out`. Raises UsageError where none can be made."""
        folder = make_dated_folder(out)
        try:
            (folder / "logs").mkdir()
        except OSError as error:
            raise UsageError(f"--out {out}: no run folder can be made there: {error.strerror}") from error
        return cls(folder)

    @classmethod
    def reopen(cls, folder: Path) -> RunJournal:
        """The folder of an earlier run that is resumed.

        A last line that was cut short (power cut) is taken out; damaged lines are moved to `set_aside`.
        """
        journal = cls(folder)
        try:
            (folder / "logs").mkdir(exist_ok=True)
            mend_last_line(folder / RESULTS, _is_result)
            journal._move_damaged_lines()
        except OSError as error:
            journal.close()
            raise MachineError(f"{folder} cannot be written: {error.strerror}") from error
        except BaseException:
            journal.close()
            raise
        return journal

    @property
    def set_aside(self) -> Path:
        """The file that damaged lines are moved to."""
        return self.folder / SET_ASIDE

    def _move_damaged_lines(self) -> None:
        """From results.jsonl to `set_aside`; whole lines stay as they are."""
        path = self.folder / RESULTS
        if not path.exists():
            return
        data = path.read_bytes()
        self.damaged = [line for line in _lines(path, data) if isinstance(line, DamagedLine)]
        if self.damaged:
            append(self.set_aside, b"".join(line.bytes + b"\n" for line in self.damaged))
            numbers = {line.number for line in self.damaged}
            whole_lines = [line for n, line in enumerate(data.split(b"\n"), start=1) if n not in numbers]
            _replace(path, b"\n".join(whole_lines))

    def close(self) -> None:
        """Gives up the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def discard(self) -> None:
        """Removes the folder of a run in which nothing could be measured."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.close()

    def log_for(self, case: Case) -> Path:
        """A new log file: neither an earlier attempt nor another case has it."""
        names = (f"{case.name}.log", *(f"{case.name}.{number}.log" for number in range(2, 1000)))
        path = next(path for name in names if not (path := self.logs / name).exists())
        with contextlib.suppress(OSError):  # a full disk loses the log, not the case
            path.touch()
        return path

    def write_info(self, info: RunInfo) -> None:
        """run.json, replaced whole: a reader sees the old one or the new one."""
        self._guard(lambda: _replace(self.folder / INFO, _document(to_json(info))))

    def write_state(self, info: RunInfo, state: str) -> None:
        """run.json with a new state of the run and of its last session.

        The end of the run is never earlier than it was, whatever the clock says: the history keeps the
        version of a run that ended last.
        """
        session = info.sessions[-1]
        info.state = session["state"] = state
        if state != "running":
            session["ended"] = now()
            info.ended = max(info.ended or "", session["ended"])
        self.write_info(info)

    def write_plan(self, plan: dict[str, Any]) -> None:
        """plan.json: all that was to be measured, and how (runner.plan)."""
        self._guard(lambda: _replace(self.folder / PLAN, _document(plan)))

    def append(self, result: Result) -> None:
        """One record, on the disk when this returns. Raises MachineError when the disk refuses.

        Then the file is as it was before.
        """
        self._guard(lambda: append(self.folder / RESULTS, _line(result).encode()))

    def write_code(self, case: Case, graphs: Sequence[str]) -> None:
        """The generated code of a case: a zip file with one Python file a graph, without secrets."""
        self._guard(lambda: code_files.write(self.folder, case, graphs))

    def write_model(self, case: Case, files: Mapping[str, str]) -> None:
        """The sources of a case's model, where it is the user's own, without secrets."""
        self._guard(lambda: code_files.write_model(self.folder, case, files))

    def append_attempt(self, case: Case, attempt: dict[str, Any]) -> None:
        """Save a failed attempt at a case, so that it counts even after a kill."""
        line = dumps({"case": to_json(case), "attempt": attempt})
        # Start a new line even if the last one was cut short.
        self._guard(lambda: append(self.folder / ATTEMPTS, f"\n{line}\n".encode()))

    def read_attempts(self) -> list[tuple[Case, dict[str, Any]]]:
        """All attempts that were appended, oldest first; lines that are damaged are left out."""
        path = self.folder / ATTEMPTS
        attempts = []
        for line in path.read_bytes().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                plain = read_json(line)
                attempts.append((Case(**plain["case"]), dict(plain["attempt"])))
        return attempts

    def rewrite(self, results: Sequence[Result]) -> None:
        """The latest record of each case replaced (intervals made anew), those before it kept.

        A result that has no record yet, because the disk was full, gets one at the end.
        """
        latest = {result.case: result for result in results}
        lines: list[str] = []
        for result in reversed(read_all(self.folder)):
            lines.append(_line(latest.pop(result.case, result)))
        lines.reverse()
        lines.extend(map(_line, latest.values()))
        self._guard(lambda: _replace(self.folder / RESULTS, "".join(lines).encode()))

    def write_csv(self, results: Sequence[Result], dynamo_names: dict[str, str], info: RunInfo) -> None:
        """The CSVs of all results so far (perfdash.runner.dynamo_csv_writer)."""
        folder, options = self.folder / "csv", info.configuration
        self._guard(lambda: dynamo_csv_writer.write(folder, results, dynamo_names, options))

    def _guard(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            # The caller's message says whether there are results to resume from.
            advice = ": make room there" if is_full(error) else ""
            raise MachineError(f"{self.folder} cannot be written: {error.strerror}{advice}") from error


def read_info(folder: Path) -> RunInfo:
    """The run.json of a run folder. Raises UsageError where there is none or it is not one."""
    try:
        return run_info_from_json(json.loads((folder / INFO).read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{folder} is not a run folder: run.json: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise UsageError(f"{folder / INFO}: {error}") from error


def read_plan(folder: Path) -> dict[str, Any]:
    """The plan.json of a run. Raises UsageError where there is none (made by an older perfdash)."""
    from perfdash.runner.plan import plan_from_json

    try:
        plan: dict[str, Any] = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        plan_from_json(plan)
    except (OSError, ValueError, UsageError) as error:
        raise UsageError(f"{folder / PLAN} cannot be read: {error}; this run cannot be resumed") from error
    return plan


def read_results(folder: Path) -> list[Result]:
    """The latest record of each case of a run, in order of their first measurement.

    A torn last line (power cut) is left out; any other is a UsageError.
    """
    return list({result.case: result for result in read_all(folder)}.values())


def read_readable(folder: Path) -> tuple[list[Result], list[DamagedLine]]:
    """The results as of read_results, and the damaged lines, which raise no error here."""
    path = folder / RESULTS
    lines = list(_lines(path, path.read_bytes())) if path.exists() else []
    results = [line for line in lines if isinstance(line, Result)]
    damaged = [line for line in lines if isinstance(line, DamagedLine)]
    return list({result.case: result for result in results}.values()), damaged


def resume_command(folder: Path, command: str = "run") -> str:
    """The command that measures what is left of a run, or of a comparison (compare-builds), for a shell."""
    return f"perfdash {command} --resume {quote(str(folder))}"


def read_all(folder: Path) -> list[Result]:
    """Every record of a run, those that were measured again (--retry) included, oldest first."""
    path = folder / RESULTS
    if not path.exists():
        return []
    results = []
    for line in _lines(path, path.read_bytes()):
        if isinstance(line, DamagedLine):
            raise UsageError(
                f"{line}; `{resume_command(folder)}` sets such lines aside and measures their cases "
                "again, `perfdash show` shows the rest"
            )
        results.append(line)
    return results


def read_saved(folder: Path) -> tuple[RunInfo, list[Result], list[str]]:
    """A run, the results of its readable lines, and a warning for each damaged line.

    Raises MachineError with the damaged line where results.jsonl should hold results and none is left.
    """
    info, path = read_info(folder), folder / RESULTS
    results, damaged = read_readable(folder)
    data = path.read_bytes() if path.exists() else b""
    *lines, rest = data.split(b"\n")
    if rest and not is_being_measured(folder):  # a run under way may be writing this line now
        last = _record(path, len(lines) + 1, rest)
        if isinstance(last, DamagedLine):
            damaged.append(replace(last, reason="the line is cut short"))
    again = resume_command(folder)
    if damaged and not results:
        raise MachineError(
            f"{damaged[0]}: this is no result, and no other line is one. "
            f"Restore the file from a copy, or measure again: {again}"
        )
    if info.state == "done" and info.cases and not data:
        raise MachineError(
            f"{path} is missing or empty, but run.json says that {info.cases} cases were measured. "
            f"Restore the file from a copy, or measure again: {again}"
        )
    return info, results, [f"{line}; its case is left out, {again} measures it again" for line in damaged]


def append_line(path: Path, text: str) -> None:
    """Append a line to a file of the run folder; then it is on the disk. Raises MachineError."""
    try:
        append(path, f"{text}\n".encode())
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}") from error


def is_being_measured(folder: Path) -> bool:
    """Whether a perfdash has the run open; one whose state is `running` otherwise was killed."""
    return is_locked(folder / LOCK)


def has_results(folder: Path) -> bool:
    """Whether a case of the run has ended."""
    try:
        return (folder / RESULTS).stat().st_size > 0
    except OSError:
        return False


def _lines(path: Path, data: bytes) -> Iterator[Result | DamagedLine]:
    """Each record, or damaged line, in order. Raises UsageError for a record of a newer perfdash."""
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        yield _record(path, number, line)
    if rest:  # without its newline the line was cut short, or lost only the newline
        last = _record(path, len(lines) + 1, rest)
        if isinstance(last, Result):
            yield last


def _record(path: Path, number: int, line: bytes) -> Result | DamagedLine:
    try:
        plain = read_json(line)
        schema = plain.get("schema", 0)
        newer = isinstance(schema, int) and schema > SCHEMA
        try:
            result = result_from_json(plain)
            hash(result.case)  # raises TypeError for a damaged field, e.g. a name that is a list
        except ValueError as error:
            if newer:
                raise UsageError(f"{path}, line {number}: {error}") from error
            raise
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        return DamagedLine(path, number, line, str(error))
    return result


def find_run(name: str, out: Path, *, without_results: bool = False) -> Path:
    """A run by path, by folder name below `out`, or `last`. Raises UsageError with the runs there are.

    `last` is the last run with results, unless none has any or `without_results`: a run that was interrupted
    before its first case has ended is only of interest to those who resume it. runner.last_run leaves out
    runs that were excluded from judging.
    """
    runs = sorted(path.parent for path in out.glob("*/run.json"))
    if name == "last" and runs:
        return next((run for run in reversed(runs) if without_results or has_results(run)), runs[-1])
    for candidate in (Path(name), out / name):
        if (candidate / "run.json").is_file():
            return candidate
    if not runs:
        where = "the folder does not exist" if not out.is_dir() else "the folder has no runs"
        raise UsageError(
            f"no run {name!r} in {out}: {where}. `perfdash run` makes one; --out names another folder of runs"
        )
    latest = ", ".join(run.name for run in runs[-5:])
    near = did_you_mean(name, [run.name for run in runs])
    raise UsageError(f"no run {name!r} in {out}{near}; the latest are: {latest}")


def _document(value: dict[str, Any]) -> bytes:
    return (dumps(value, indent=1) + "\n").encode()


def printable(value: Any) -> Any:
    """A copy with lone surrogates replaced: they can be neither printed nor stored.

    They come from names of files that are not UTF-8.
    """
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable(item) for item in value]
    return value


def read_json(line: bytes) -> Any:
    """One line of JSON, printable. Raises ValueError."""
    value = json.loads(line)
    # A pair of surrogates is a character. Only a line with surrogates needs the slow walk.
    return printable(value) if b"\\ud" in line.lower() else value


def _line(result: Result) -> str:
    return dumps(to_json(result), separators=(",", ":")) + "\n"


def _is_result(line: bytes) -> bool:
    return isinstance(_record(Path(), 0, line), Result)


def _replace(path: Path, data: bytes) -> None:
    with replaced(path, durable=True) as part:
        part.write_bytes(data)
