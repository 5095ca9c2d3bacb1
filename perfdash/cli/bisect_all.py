"""`perfdash bisect --all-alerts`: begin, resume or read the bisection of each cause; print one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from perfdash import files
from perfdash.bisection.all_alerts import (
    NOT_OF_ONE,
    Attempt,
    FoundStep,
    GroupOutcome,
    bisect_all,
    found_steps,
    has_same_culprit,
)
from perfdash.bisection.completion import Flags, Typist, completed
from perfdash.bisection.engine import INTERRUPTED, Engine
from perfdash.bisection.journal import FILE, FOLDER, read
from perfdash.bisection.open_alerts import AlertGroup, alert_groups, lying_between
from perfdash.bisection.replay import Bisection
from perfdash.bisection.request import WENT_BACK, absolute_recipe
from perfdash.bisection.result import BisectionResult, result_of
from perfdash.bisection.setup import BisectionPlan, resumed, started
from perfdash.cli.bisect_output import notify, typist
from perfdash.detect.causes import can_be_bisected
from perfdash.errors import PerfdashError, UsageError
from perfdash.files import dumps
from perfdash.history.store import open_store
from perfdash.report.alert_text import culprits
from perfdash.report.bisection_files import save, work
from perfdash.report.bisection_report import all_to_json, headline, markdown_of_all
from perfdash.runner import host
from perfdash.settings import resolve

REPORT = "all-alerts"
# Flags of this session that a resumed bisection takes; the rest is in its journal.
_OF_RESUMED = (
    "cores", "max_builds", "pin_repo", "db", "out", "no_history", "confirm", "wait", "repo", "wheels", "env",
    "settings",
)  # fmt: skip
# What each alert says for itself, and what belongs to one bisection.
_NOT_OF_MANY = (
    "alert", "good", "bad", "suite", "model", "metric", "resume", "status", "batch_size", "dtype", "backend",
    "scenario", "revert",
)  # fmt: skip


def bisect_all_alerts(flags: Mapping[str, Any], command: Sequence[str] | None) -> int:
    """Bisect one member of each cause of open alerts, and print the report: the exit code."""
    given = [name for name in _NOT_OF_MANY if flags[name]]
    if command or given:
        what = f"--{given[0].replace('_', '-')}" if given else "a command after --"
        raise UsageError(f"--all-alerts: each alert says what is measured, so {what} does not go with it")
    settings = resolve({name: flags[name] for name in ("db", "out", "no_history")})[0]
    with open_store(settings.history, create=False) as store, store.read() as connection:
        groups = alert_groups(connection, host.host_class(host.facts()))
    if not groups:
        notify("No alert is open.")
    speaker = typist()
    one = _OneOfMany(flags, speaker, settings.out, None if settings.no_history else settings.history)
    if flags["dry_run"]:
        return one.show_plans(groups, flags["as_json"])
    outcomes: list[GroupOutcome] = []
    interrupted = False
    try:
        for outcome in bisect_all(groups, one, describe=one.title):
            outcomes.append(outcome)
            if outcome.why:
                notify(f"alert {outcome.number}: {outcome.how}: {outcome.why}")
            interrupted = outcome.how == INTERRUPTED
    except KeyboardInterrupt:
        interrupted = True
    if outcomes:
        _report(outcomes, len(groups), settings.out / FOLDER, flags["as_json"])
    if interrupted:
        notify("Interrupted. The same command continues.")
        return 130
    return max((outcome.exit_code for outcome in outcomes), default=0)


def _report(outcomes: Sequence[GroupOutcome], groups: int, folder: Path, as_json: bool) -> None:
    text = markdown_of_all(outcomes, left=groups - len(outcomes))
    data = dumps(all_to_json(outcomes), indent=1) + "\n"
    typer.echo(data if as_json else text, nl=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / f"{REPORT}.md", text)
        files.write(folder / f"{REPORT}.json", data)
    except OSError as error:
        notify(f"The report cannot be written to {folder}: {error.strerror}")
        return
    notify(f"Saved in {(folder / REPORT).absolute()}.md and .json")


class _OneOfMany:
    """Begins, resumes or reads the bisection of one group. See all_alerts.Bisect.

    history: takes finished bisections that their alerts do not know, since it could not be written then.
    """

    def __init__(self, flags: Mapping[str, Any], speaker: Typist, out: Path, history: str | None) -> None:
        self._flags = dict(flags)
        self._history = history
        self._speaker = speaker
        self._completed: dict[int, Flags] = {}
        journals = sorted((out / FOLDER).glob(f"*/{FILE}"), reverse=True)
        self._begun = [(path.parent, _begun(path.parent)) for path in journals]

    def title(self, group: AlertGroup) -> str:
        """What the bisected member of a group measures."""
        return self._speaker.describe(group.chosen)

    def show_plans(self, groups: Sequence[AlertGroup], as_json: bool) -> int:
        """Print what would be done for each group: the exit code."""
        code = 0
        plans: list[dict[str, Any]] = []
        for group in groups:
            others = len(group.members) - 1
            also = f" (and {others} more of its cause)" if others else ""
            if not as_json:
                typer.echo(f"alert {group.number}: {self.title(group)}{also}")
            found: dict[str, Any] = {"plan": None, "problem": None}
            try:
                if not can_be_bisected(group.chosen):
                    raise UsageError(NOT_OF_ONE)
                with started(None, self._of(group), notify) as plan:
                    assert isinstance(plan, BisectionPlan)
                    found["plan"] = plan.to_plain()
                    text = plan.text()
            except PerfdashError as error:
                found["problem"] = text = str(error)
                code = max(code, error.exit_code if can_be_bisected(group.chosen) else 0)
            if not as_json:
                typer.echo(f"{text}\n")
            plans.append({"alert": group.number, "title": self.title(group), "others": others, **found})
        if as_json:
            typer.echo(dumps(plans, indent=1))
        return code

    def __call__(self, group: AlertGroup, step: FoundStep | None) -> Attempt:
        """See all_alerts.Bisect."""
        flags = dict(self._of(group))
        if step is not None:
            flags.update(good=step.before, bad=step.culprit, confirm=False)
        where = f", on both sides of {step.label}" if step else ""
        notify(f"alert {group.number}: {self.title(group)}{where}")
        folder = self._earlier(flags)
        if folder is not None:
            bisection = Bisection(read(folder))
            result = result_of(bisection)
            if result.state == "done":
                notify(f"{folder}: {headline(result)}")
                known = group.chosen.alert.details.get("bisected") or {}
                is_known = known.get("finished") and known.get("name", "") >= result.name
                is_wanted = not is_known and not bisection.begun["settings"].get("no_history")
                if self._history and is_wanted and _is_of_alert(group, step, result):
                    save(self._history, folder.absolute(), bisection, result, notify)
                return Attempt(result, str(folder), found_steps(bisection, group.number))
        with ExitStack() as stack:
            engine = self._engine(stack, flags, folder)
            state, result = work(engine, notify, is_saved=lambda result: _is_of_alert(group, step, result))
            notify(headline(result))
            steps = found_steps(engine.bisection, group.number)
            return Attempt(result, str(engine.journal.folder), steps, state == INTERRUPTED)

    def is_inside(self, group: AlertGroup, step: FoundStep) -> bool:
        """See all_alerts.Bisect."""
        flags = self._of(group)
        recipe, repo = flags["recipe"], flags["repo"]
        same = absolute_recipe(recipe) == step.recipe
        return same and bool(lying_between([group], step.before, step.culprit, recipe, repo))

    def known(self, group: AlertGroup) -> list[str]:
        """See all_alerts.Bisect. Bisections in this folder are read or resumed instead."""
        flags = self._of(group)
        mine = [begun for _, begun in self._begun if begun.get("alert") == group.number]
        if any(_is_of(begun, flags) or not begun["asked"]["confirm"] for begun in mine):
            return []
        found = [m for m in group.members if (m.alert.details.get("bisected") or {}).get("culprits")]
        return [line for member in found[:1] for line in culprits(member.alert)]

    def _of(self, group: AlertGroup) -> Flags:
        """The flags of a group's alert, completed once."""
        if group.number not in self._completed:
            own = {**self._flags, "alert": group.number}
            self._completed[group.number] = completed(own, None, self._speaker)[0]
        return self._completed[group.number]

    def _earlier(self, flags: Mapping[str, Any]) -> Path | None:
        """The latest bisection of the same alert, ends and recipe, unless its ends could not be measured."""
        for folder, begun in self._begun:
            if _is_of(begun, flags):
                bisection = Bisection(read(folder))
                if bisection.stages and result_of(bisection).word != "end not measured":
                    return folder
        return None

    def _engine(self, stack: ExitStack, flags: Flags, folder: Path | None) -> Engine:
        """Resume a bisection, or begin it anew if that cannot be. Raises UsageError, MachineError."""
        if folder is not None:
            kept = {name: self._flags[name] for name in _OF_RESUMED}
            try:
                return stack.enter_context(
                    resumed(str(folder), None, dict.fromkeys(self._flags) | kept, notify)
                )
            except UsageError as error:
                notify(f"{folder} cannot be resumed, so it starts again: {error}")
        engine = stack.enter_context(started(None, flags, notify))
        assert isinstance(engine, Engine)
        return engine


def _is_of_alert(group: AlertGroup, step: FoundStep | None, result: BisectionResult) -> bool:
    """Whether a result is stored with the alert of a group: in passing only the other group's culprit."""
    return step is None or has_same_culprit(group, step, result)


def _is_of(begun: Mapping[str, Any], flags: Mapping[str, Any]) -> bool:
    """Whether a bisection was begun with the alert, ends and recipe of some flags."""
    asked = begun.get("asked", {})
    same_ends = (asked.get("good"), asked.get("bad")) == (flags["good"], flags["bad"])
    same_recipe = asked.get("recipe") == absolute_recipe(flags["recipe"])
    same_direction = asked.get("went_back", False) == flags.get(WENT_BACK, False)
    return begun.get("alert") == flags["alert"] and same_ends and same_recipe and same_direction


def _begun(folder: Path) -> Mapping[str, Any]:
    """The first event of a bisection; empty if it cannot be read."""
    try:
        return read(folder)[0]
    except UsageError:
        return {}
