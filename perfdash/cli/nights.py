"""Which run a command tells of: a run folder by path, name or `last`, else one of the history."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfdash.errors import UsageError

if TYPE_CHECKING:
    from perfdash.detect.comparing import Comparison, Noise, Side
    from perfdash.history.rows import Imported
    from perfdash.report.night import Night
    from perfdash.settings import RunSettings


def folder_of(word: str, settings: RunSettings) -> Path | None:
    """The run's folder; None where there is none below `--out` or under this path."""
    from perfdash.runner.journal import find_run

    try:
        return find_run(word, settings.out)
    except UsageError:
        return None


def read_folder(folder: Path) -> Imported:
    """A run folder as the history keeps it."""
    from perfdash.history.rows import from_run
    from perfdash.runner.journal import read_saved

    source = str(folder).encode(errors="replace").decode()  # a name need not be text
    info, results, warnings = read_saved(folder)
    for warning in warnings:
        typer.echo(f"perfdash: {warning}", err=True)
    return from_run(info, results, source)


def imported_of(word: str, settings: RunSettings) -> Imported:
    """One run with all that is known of it. Raises UsageError where the word means none, or several."""
    folder = folder_of(word, settings)
    if folder is not None:
        return read_folder(folder)
    from perfdash.history.selection import select
    from perfdash.history.store import NoHistory, open_store
    from perfdash.history.upkeep import stored
    from perfdash.runner.journal import find_run

    try:
        with open_store(settings.history, create=False) as store, store.read() as connection:
            found = select(connection, word)
            if len(found) > 1:
                names = ", ".join(run.name for run in found[-5:])
                raise UsageError(f"{word!r} means {len(found)} runs; give one of them: {names}")
            return stored(connection, found[0])
    except NoHistory:
        find_run(word, settings.out)  # which says what runs there are
        raise


def night_of(word: str, settings: RunSettings, *, baseline: str | None = None) -> Night:
    """A run, and what changed: since `baseline` (what `compare` takes), else by the history.

    Without a history the night says why nothing is told. Judges nights that wait for it.
    """
    from dataclasses import replace

    from perfdash.detect.nightly import judge_new
    from perfdash.errors import MachineError
    from perfdash.history.store import NoHistory, open_store
    from perfdash.report.night import Night, against, of_history

    imported = imported_of(word, settings)
    if baseline is not None:
        return replace(
            against(imported, compared(baseline, word, settings, imported.run.host_class)),
            nightly=_heartbeat(imported, settings),
        )
    try:
        with open_store(settings.history, create=False) as store:
            judge_new(store)
            with store.read() as connection:
                return of_history(connection, imported)
    except NoHistory:
        return Night(imported, untold="there is no history to compare it with")
    except (MachineError, UsageError) as error:
        # What it says may name the database and its host: nothing for a comment that all can read.
        typer.echo(f"What changed is not told: {error}", err=True)
        return Night(imported, untold="the history cannot be read")


def _heartbeat(imported: Imported, settings: RunSettings) -> str | None:
    """What was wrong with the nightlies before this one; nothing where no history can say."""
    from perfdash.errors import MachineError
    from perfdash.history.store import open_store
    from perfdash.report.night import nightlies_before

    try:
        with open_store(settings.history, create=False) as store, store.read() as connection:
            return nightlies_before(connection, imported)
    except (MachineError, UsageError):
        return None


def compared(old: str, new: str, settings: RunSettings, host_class: str | None = None) -> Comparison:
    """Two sides by their words. Raises UsageError where they may not be compared."""
    from perfdash.detect.comparing import compare as compare_sides
    from perfdash.detect.comparing import refuse_overlap, refuse_unlike

    sides = [_side(word, settings, host_class) for word in (old, new)]
    refuse_unlike(*sides)
    refuse_overlap(*sides)
    return compare_sides(sides[0], sides[1], _noise(sides, settings))


def _side(word: str, settings: RunSettings, host_class: str | None) -> Side:
    """A side by its word: a run folder, else runs of the history."""
    from perfdash.detect.comparing import Side
    from perfdash.history.selection import read, select
    from perfdash.history.store import NoHistory, open_store
    from perfdash.runner.journal import find_run

    folder = folder_of(word, settings)
    if folder is not None:
        return Side(word, (read_folder(folder),))
    try:
        store = open_store(settings.history, create=False)
    except NoHistory:
        find_run(word, settings.out)  # which says what runs there are
        raise
    with store, store.read() as connection:
        lines = select(connection, word, host_class=host_class)
        return Side(word, tuple(read(connection, line) for line in lines))


def _noise(sides: list[Side], settings: RunSettings) -> Noise:
    """What the history knows of the noise; nothing where there is no history."""
    from perfdash.detect.noise import noise_before
    from perfdash.errors import MachineError
    from perfdash.history.store import NoHistory, open_store

    try:
        with open_store(settings.history, create=False) as store, store.read() as connection:
            return noise_before(connection, [imported.run for side in sides for imported in side.runs])
    except NoHistory:
        return {}
    except MachineError as error:
        typer.echo(f"Compared without what the history knows of the noise: {error}", err=True)
        return {}
