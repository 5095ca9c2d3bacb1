"""Find the run folder of a word; `last` means the same run as in the history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from perfdash.errors import PerfdashError, UsageError
from perfdash.runner.run_journal import find_run, has_results, read_info

if TYPE_CHECKING:
    import sqlalchemy as sa

Warn = Callable[[str], None]


def run_folder(word: str, out: Path, history: str, warn: Warn) -> Path:
    """Find a run by path, by folder name below `out`, or `last`.

    If all are excluded, `last` is the newest, and `warn` gets a line. Raises UsageError with the runs that
    there are.
    """
    last = last_run(out, history, warn) if word == "last" else None
    folder = last or find_run(word, out)
    if word == "last" and last is None:
        warn(f"perfdash: `last` is {folder.name}: all runs in {out} are excluded from judging")
    return folder


def last_run(out: Path, history: str, warn: Warn) -> Path | None:
    """Find the newest run with results that is not excluded from judging; None if all are excluded.

    Without any results the newest run. The history is not waited for: run folders can be shown without it.
    `warn` gets a line that names excluded runs, or why the history does not say which are excluded. Raises
    UsageError where there is no run.
    """
    from perfdash.history.store import NoHistory, open_for_a_glance

    folders = [info.parent for info in sorted(out.glob("*/run.json"), reverse=True)]
    folders = [folder for folder in folders if has_results(folder)]
    if not folders:
        return find_run("last", out)
    try:
        with open_for_a_glance(history) as store, store.read() as connection:
            excluded = []
            for folder in folders:
                why = _why_excluded(connection, folder)
                if why is None:
                    break
                excluded.append(f"{folder.name} ({why})")
            else:
                return None
    except NoHistory:
        return folders[0]
    except PerfdashError as error:
        warn(f"perfdash: `last` may be a run that was excluded from judging: {error}")
        return folders[0]
    if excluded:
        warn(f"perfdash: `last` is {folder.name}; excluded from judging: {', '.join(excluded)}")
    return folder


def _why_excluded(connection: sa.Connection, folder: Path) -> str | None:
    from perfdash.history.results import from_run
    from perfdash.history.run_selection import why_excluded

    try:
        info = read_info(folder)
    except UsageError:  # whoever reads the run says what is wrong with it
        return None
    return why_excluded(connection, from_run(info, [], str(folder)))
