"""Find the run folder of a word; `last` means the same run as in the history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def _newest_first(out: Path) -> list[Path]:
    """Run folders with results by their start; those that another merge has replaced come last.

    A folder is named by the time at which it was made, which for a merged run may be long after its start.
    """
    folders = [file.parent for file in out.glob("*/run.json") if has_results(file.parent)]
    infos = {folder: _info(folder) for folder in folders}

    def age(folder: Path) -> tuple[bool, str, str]:
        info = infos[folder]
        started = str(info.started).replace(":", "-") if info else folder.name  # as the name has it
        return folder not in replaced, started, folder.name

    replaced = _replaced({folder: info for folder, info in infos.items() if info})
    return sorted(folders, key=age, reverse=True)


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
        return own.are_part_of(others) or (other.name > folder.name and own.are_of_one_run(others))

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
