"""Run a bisection to its end, write its report files and save it in the history.

The command line and the Python API share it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote

from perfdash import files
from perfdash.bisection.alert_culprits import save_to_history
from perfdash.bisection.engine import Engine, Notify
from perfdash.bisection.replay import Bisection
from perfdash.bisection.result import BisectionResult, result_of
from perfdash.errors import UsageError
from perfdash.files import dumps
from perfdash.report.alert_text import OTHER_CHANGE
from perfdash.report.bisection_report import headline, markdown, page

REPORT = "report"


def work(
    engine: Engine, notify: Notify, *, is_saved: Callable[[BisectionResult], bool] = lambda result: True
) -> tuple[str, BisectionResult]:
    """Run a bisection, write its reports and save it: how it ended, and its result.

    is_saved: whether a result is written into the history, with its alert. Raises the error that ended it,
    and UsageError if an end could not be measured.
    """
    state, failed = engine.work()
    folder, result = engine.journal.folder.absolute(), result_of(engine.bisection)
    write_reports(folder, result, notify)
    if engine.history and is_saved(result):
        save(engine.history, folder, engine.bisection, result, notify)
    if failed:
        notify(how_to_resume(folder))
        raise failed
    if result.word == "end not measured":
        raise UsageError(_unmeasured_ends(result, engine.journal.logs))
    return state, result


def save(history: str, folder: Path, bisection: Bisection, result: BisectionResult, notify: Notify) -> None:
    """Save a bisection in a history; if that fails, say how to do it later."""
    try:
        for culprit in save_to_history(history, bisection, result, headline(result)):
            notify(f"alert {result.alert}: {OTHER_CHANGE}{culprit.revisions[-1].label}")
    except Exception as error:  # the journal has it all
        notify(f"The bisection is saved, but not in the history: {error}. To store it: {_resuming(folder)}")


def write_reports(folder: Path, result: BisectionResult, notify: Notify) -> None:
    """Write report.md, report.html and report.json; on a full disk say so and continue."""
    try:
        for ending in ("md", "html", "json"):
            text = page(result) if ending == "html" else report_text(result, as_json=ending == "json")
            files.write(folder / f"{REPORT}.{ending}", text)
    except OSError as error:
        notify(f"The report cannot be written to {folder}: {error.strerror}")


def report_text(result: BisectionResult, as_json: bool) -> str:
    """The report in Markdown, or as JSON."""
    return dumps(result.to_json(), indent=1) + "\n" if as_json else markdown(result)


def how_to_resume(folder: Path) -> str:
    """The command that continues a bisection."""
    return f"To continue: {_resuming(folder)}"


def _resuming(folder: Path) -> str:
    return f"perfdash bisect --resume {quote(str(folder))}"


def _unmeasured_ends(result: BisectionResult, logs: Path) -> str:
    """The message for ends that could not be measured: which, and why."""
    top = result.ranges[0]
    lines = []
    for name, end in (("good", top.good), ("bad", top.bad)):
        for skipped in top.skipped:
            if skipped.id == end.id:
                log = f"; its log is {skipped.log}" if skipped.log else ""
                lines.append(f"--{name} {end.label}: {skipped.why}{log}")
    other = "exit-code" if result.command else "status"
    hint = "" if result.kind == "status" else f" (--metric {other} looks for the change of that)"
    lines.append(f"Its output is in {logs}")
    return "an end of the range cannot be measured, so there is no result" + hint + ":\n" + "\n".join(lines)
