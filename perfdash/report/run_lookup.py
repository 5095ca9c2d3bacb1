"""Find the runs that a user names, in run folders first, then in the history."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from perfdash.detect.comparison import ComparedRuns, Comparison, compare, refuse_overlap, refuse_unlike
from perfdash.detect.comparison_in_history import compare_in_history
from perfdash.detect.nightly_judging import judge_if_allowed
from perfdash.detect.nights import other_machine
from perfdash.errors import MachineError, PerfdashError, UsageError
from perfdash.history import acts, schema
from perfdash.history.maintenance import read_stored_run
from perfdash.history.queries import read_run, run_before, testbed_of, trend
from perfdash.history.results import Imported, RunRow, from_run
from perfdash.history.run_selection import one_run, select
from perfdash.history.shards import COLUMNS, Shards, runs_with_common_shards
from perfdash.history.store import NoHistory, open_store
from perfdash.records import NOT_MEASURED, Case
from perfdash.report.digest import Digest
from perfdash.report.night import Night, against, nightlies_before, of_history
from perfdash.report.weekly_digest import weekly_digest
from perfdash.runner.build_comparison import changes_between
from perfdash.runner.code_files import with_code
from perfdash.runner.last_run import last_run
from perfdash.runner.run_journal import find_run, read_saved
from perfdash.settings import judging_rules, model_owners

Warn = Callable[[str], None]
_NOT_MEASURED = {str(status) for status in NOT_MEASURED}


def read_folder(folder: Path, warn: Warn, *, code: bool = False) -> Imported:
    """Read a run folder as the history keeps runs; `code`: with the generated code."""
    source = str(folder).encode(errors="replace").decode()  # a name need not be text
    info, results, warnings = read_saved(folder)
    for warning in warnings:
        warn(f"perfdash: {warning}")
    imported = from_run(info, results, source)
    return with_code(imported, folder) if code else imported


class RunLookup:
    """Look runs up below `out`, then in `history`; `warn` gets lines for the user."""

    def __init__(self, out: Path, history: str, warn: Warn) -> None:
        self.out, self.history, self._warn = out, history, warn

    def folder(self, word: str) -> Path | None:
        """The run's folder; None where there is none below `out` or under this path.

        None also for `last`, where all runs below `out` are excluded from judging.
        """
        try:
            return self._last if word == "last" else find_run(word, self.out)
        except UsageError:
            return None

    @cached_property
    def _last(self) -> Path | None:
        """The same for the whole command, and excluded runs are named once."""
        return last_run(self.out, self.history, self._warn)

    def weekly_digest(self, days: int, site_url: str | None = None) -> Digest:
        """The digest of the last days of the history. Raises UsageError where there is no history."""
        rules = judging_rules()
        with open_store(self.history, create=False) as store:
            judge_if_allowed(store, rules, self._warn)
            with store.read() as connection:
                now, owners = datetime.now(UTC), model_owners()
                return weekly_digest(connection, now, days, owners=owners, rules=rules, site_url=site_url)

    def run(self, word: str, *, code: bool = False) -> Imported:
        """One run with all its results. Raises UsageError where the word names none, or several.

        `code`: with the generated code of a run folder; what the history has of it is always there.
        """
        folder = self.folder(word)
        if folder is not None:
            return read_folder(folder, self._warn, code=code)
        try:
            with open_store(self.history, create=False) as store, store.read() as connection:
                return read_stored_run(connection, one_run(connection, word))
        except NoHistory:
            find_run(word, self.out)  # its error lists the runs that there are
            raise

    def first_names(self) -> dict[str, str]:
        """The names that renamed runs of the history had at first, by their present names."""
        with open_store(self.history, create=False) as store, store.read() as connection:
            return acts.first_names(connection)

    def previous(self, imported: Imported, case: Case) -> tuple[Imported, str]:
        """The last run before one that measured this case on the same testbed, and "".

        The last one of the same machine, if there is any. Where there is none of the testbed, the last one
        with other settings on such a host. Sentences say so. Raises UsageError without any.
        """
        for other_settings in (False, True):
            if before := self._previous(imported, case, other_settings):
                settings = (
                    f"No run before {imported.run.name} measured this with the same settings: it is compared "
                    f"with {before.run.name}, which had others."
                )
                elsewhere = other_machine(before.run, imported.run)
                machine = f"{before.run.name} measured it {elsewhere}." if elsewhere else ""
                return before, " ".join(filter(None, [settings if other_settings else "", machine]))
        raise UsageError(
            f"no run before {imported.run.name} measured {case.name} on this kind of host; "
            "give one with --against"
        )

    def _previous(self, imported: Imported, case: Case, other_settings: bool) -> Imported | None:
        run = imported.run
        try:
            with open_store(self.history, create=False) as store, store.read() as connection:
                if line := run_before(connection, run, case, other_settings=other_settings):
                    return read_stored_run(connection, line)
        except NoHistory:
            pass
        elsewhere = None
        for folder in sorted((path.parent for path in self.out.glob("*/run.json")), reverse=True):
            try:
                before = read_folder(folder, self._warn)
            except PerfdashError as error:
                if not other_settings:  # the second time it was said before
                    self._warn(f"perfdash: {folder.name} is not looked at for an earlier run: {error}")
                continue
            if before.run.started >= run.started:
                continue
            cases = [row.case for row in before.rows if row.status not in _NOT_MEASURED]
            if other_settings:
                is_alike = before.run.host_class == run.host_class
                cases = [replace(measured, settings=case.settings) for measured in cases]
            else:
                is_alike = before.run.testbed_digest == run.testbed_digest
            if is_alike and case in cases:
                if not other_machine(before.run, run):
                    return before
                elsewhere = elsewhere or before
        return elsewhere

    def night(self, word: str, baseline: str | None = None) -> Night:
        """A run and what changed: since `baseline` (a word for runs of its testbed), else by the history.

        Judges nights that are not judged yet. Without a history the night says why no change is known.
        """
        imported = self.run(word)
        if baseline is not None:
            comparison = self.comparison(baseline, word, imported.run.host_class, like=imported.run)
            return replace(against(imported, comparison), nightly=self._nightlies_before(imported))
        try:
            with open_store(self.history, create=False) as store:
                judge_if_allowed(store, judging_rules(), self._warn)
                with store.read() as connection:
                    return of_history(connection, imported)
        except NoHistory:
            return Night(imported, untold="there is no history to compare it with")
        except (MachineError, UsageError) as error:
            # The error may name the database and its host, which is not for a public comment.
            self._warn(f"No changes are reported: the history cannot be read: {error}")
            return Night(imported, untold="the history cannot be read")

    def refuse_to_replace_comment(self, imported: Imported) -> None:
        """Raise UsageError if the comment of a merged run would replace that of a run of the history.

        This run has all shards of the merged run, and others, or it is another night with half of them.
        """
        run, shards = imported.run, Shards.of(imported.key, imported.run)
        if not run.merged_from:
            return
        columns = schema.runs.c[COLUMNS]
        try:
            with open_store(self.history, create=False) as store, store.read() as connection:
                stored = runs_with_common_shards(connection, imported, sa.select(*columns))
                own = connection.execute(sa.select(columns.key).where(columns.key == imported.key)).first()
        except (MachineError, UsageError):  # whoever reads the night says so
            return
        for line in stored:
            whole = Shards.of(line.key, line)
            common = len(shards.common(whole))
            name = shlex.quote(line.name)
            which = (
                f"{run.name} has {common} of the {len(whole.names)} shards of {line.name}, which is in the "
                "history, so its comment would replace that of"
            )
            if shards.are_part_of(whole):
                raise UsageError(f"{which} the whole run. Post the whole run: perfdash post {name}")
            is_half = 2 * common >= min(len(shards.names), len(whole.names))  # as in the comments
            if own is None and is_half and not shards.are_of_one_run(whole):
                raise UsageError(
                    f"{which} {line.name}, but the two are not one run. Merge the shards of one night, or "
                    f"remove the old run and import this one: perfdash history remove {name} --yes && "
                    f"perfdash history import {shlex.quote(run.source)}"
                )

    def comparison(
        self, old: str, new: str, host_class: str | None = None, *, like: RunRow | None = None
    ) -> Comparison:
        """Compare two sides. Raises UsageError where they may not be compared.

        `like`: of the runs of the history that a word means only those of this run's testbed; without any
        only those of other lines of builds that were measured alike; without these all.
        """
        sides = [self._side(word, host_class, like) for word in (old, new)]
        refuse_unlike(*sides)
        refuse_overlap(*sides)
        old_folder, new_folder = self.folder(old), self.folder(new)
        paired = changes_between(old_folder, new_folder) if old_folder and new_folder else None
        return compare(sides[0], sides[1], **paired) if paired else self._compared(sides[0], sides[1])

    def trend(self, imported: Imported) -> tuple[list[dict[str, Any]], str]:
        """The nightly means of the run's suites up to it, or why there are none."""
        try:
            with open_store(self.history, create=False) as store, store.read() as connection:
                testbed = testbed_of(connection, imported.run)
                if testbed is None:
                    return [], "the history has no run that may be compared with it"
                suites = sorted({row.case.suite for row in imported.rows})
                nights = [night for suite in suites for night in trend(connection, suite, testbed_id=testbed)]
        except (NoHistory, MachineError) as error:
            return [], str(error)
        nights = [
            night
            for night in nights
            if night["started"] <= imported.run.started and night["excluded"] is None
        ]
        return nights, "the history has nothing of its suites"

    def _nightlies_before(self, imported: Imported) -> str | None:
        """One line on missing or broken earlier nightlies; None without a history."""
        try:
            with open_store(self.history, create=False) as store, store.read() as connection:
                return nightlies_before(connection, imported)
        except (MachineError, UsageError):
            return None

    def _side(self, word: str, host_class: str | None, like: RunRow | None) -> ComparedRuns:
        folder = self.folder(word)
        if folder is not None:
            return ComparedRuns(word, (read_folder(folder, self._warn),))
        try:
            store = open_store(self.history, create=False)
        except NoHistory:
            find_run(word, self.out)  # its error lists the runs that there are
            raise
        with store, store.read() as connection:
            lines = select(connection, word, host_class=host_class)
            if like is not None:
                of_testbed = [line for line in lines if line.testbed_digest == like.testbed_digest]
                lines = (
                    of_testbed
                    or [line for line in lines if line.way_of_measuring == like.way_of_measuring]
                    or lines
                )
            return ComparedRuns(word, tuple(read_run(connection, line) for line in lines))

    def _compared(self, old: ComparedRuns, new: ComparedRuns) -> Comparison:
        """Compare two sides that were measured apart, by the history if there is one."""
        try:
            with open_store(self.history, create=False) as store, store.read() as connection:
                return compare_in_history(connection, old, new)
        except NoHistory:
            pass
        except MachineError as error:
            self._warn(f"Compared without what the history knows of the noise: {error}")
        return compare(old, new)
