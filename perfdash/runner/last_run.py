"""Find the run folder of a word; `last` means the same run as in the history."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from perfdash.errors import PerfdashError, UsageError
from perfdash.records import RunInfo
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

    The newest began last, as in the history. Without any results the newest run. The history is not waited
    for: run folders can be shown without it. `warn` gets a line that names excluded runs, or why the history
    does not say which are excluded. Raises UsageError where there is no run.
    """
    from perfdash.history.store import NoHistory, open_for_a_glance

    folders = _newest_first(out)
    newest = next(folders, None)
    if newest is None:
        return find_run("last", out)
    try:
        with open_for_a_glance(history) as store, store.read() as connection:
            excluded = []
            for folder in chain([newest], folders):
                why = _why_excluded(connection, folder)
                if why is None:
                    break
                excluded.append(f"{folder.name} ({why})")
            else:
                return None
    except NoHistory:
        return newest
    except PerfdashError as error:
        warn(f"perfdash: `last` may be a run that was excluded from judging: {error}")
        return newest
    if excluded:
        warn(f"perfdash: `last` is {folder.name}; excluded from judging: {', '.join(excluded)}")
    return folder


def _newest_first(out: Path) -> Iterator[Path]:
    """Run folders with results by their start; those that another merge has replaced come last.

    A folder is named by the time at which it was made, which for a merged run may be long after its start,
    but not before. So only the newest of thousands of folders are read, as far back as the start of a run.
    """
    unread = sorted((file.parent for file in out.glob("*/run.json")), key=_when_made)
    infos: dict[Path, RunInfo | None] = {}
    returned: set[Path] = set()

    def start(folder: Path) -> tuple[str, str]:
        info = infos[folder]
        return (str(info.started).replace(":", "-") if info else folder.name), folder.name  # alike

    while True:
        replaced = _replaced({folder: info for folder, info in infos.items() if info})
        for folder in sorted(infos.keys() - replaced - returned, key=start, reverse=True):
            if unread and _when_made(unread[-1]) >= _day_before(start(folder)[0]):
                break
            returned.add(folder)
            yield folder
        if not unread:
            break
        number = len(infos) + 20  # twice as many each time
        infos.update({folder: _info(folder) for folder in unread[-number:] if has_results(folder)})
        del unread[-number:]
    yield from sorted(replaced - returned, key=start, reverse=True)


def _when_made(folder: Path) -> str:
    """The name of a run folder, which begins with a time. Folders with other names are the last."""
    return folder.name if re.match(r"\d{4}-\d\d-\d\dT", folder.name) else f"~{folder.name}"


def _day_before(start: str) -> str:
    """The day before a run began: a clock may have been wrong by hours. Empty if the time cannot be read."""
    try:
        return str(date.fromisoformat(start[:10]) - timedelta(days=1))
    except (ValueError, OverflowError):
        return ""


def _replaced(infos: Mapping[Path, RunInfo]) -> set[Path]:
    """The runs that were merged into another run, and those whose shards were merged again later."""
    if not any(info.merged_from for info in infos.values()):
        return set()
    from perfdash.history.results import uid
    from perfdash.history.shards import Shards

    shards = {
        folder: Shards(
            frozenset(info.merged_uids if info.merged_from else [uid(info)]),
            frozenset(info.merged_from or [info.id]),
            info.started,
            info.ended,
        )
        for folder, info in infos.items()
    }
    with_shard: dict[str, list[Path]] = {}
    for folder, info in infos.items():
        if info.merged_from:
            for name in shards[folder].keys | shards[folder].names:
                with_shard.setdefault(name, []).append(folder)

    def replaces(other: Path, folder: Path) -> bool:
        own, others = shards[folder], shards[other]
        if not own.common(others) or others.are_part_of(own):
            return False
        # As in the history, the merge that ended later counts.
        is_later = (others.ended or "", other.name) > (own.ended or "", folder.name)
        return own.are_part_of(others) or (is_later and own.are_of_one_run(others))

    return {
        folder
        for folder, own in shards.items()
        if any(replaces(other, folder) for name in own.keys | own.names for other in with_shard.get(name, ()))
    }


def _info(folder: Path) -> RunInfo | None:
    try:
        return read_info(folder)
    except UsageError:  # whoever reads the run says what is wrong with it
        return None


def _why_excluded(connection: sa.Connection, folder: Path) -> str | None:
    from perfdash.history.results import from_run
    from perfdash.history.run_selection import why_excluded

    info = _info(folder)
    return why_excluded(connection, from_run(info, [], str(folder))) if info else None
