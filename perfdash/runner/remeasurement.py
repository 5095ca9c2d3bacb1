"""Re-measure the suspected changes of a run beside the last good build (`perfdash confirm`)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfdash.detect import confirmation
from perfdash.detect.confirmation import PairedResult
from perfdash.detect.environment_changes import CPU_CAPABILITY, CPU_CAPABILITY_VARIABLE, other_build
from perfdash.detect.findings import Finding
from perfdash.detect.nightly_judging import Judged
from perfdash.errors import UsageError
from perfdash.files import now
from perfdash.history import alert_store as alert_rows
from perfdash.history.results import from_result
from perfdash.history.store import Store
from perfdash.records import Case, Result
from perfdash.redaction import MASK
from perfdash.runner.alternating_builds import (
    Budget,
    BuildPair,
    PairedSlots,
    beside,
    held,
    with_variables,
)
from perfdash.runner.compatibility import measured_variables
from perfdash.runner.cores import away_from, compile_cores, gpus_of, on_one_socket, slots_of, when_free
from perfdash.runner.messages import options_of
from perfdash.runner.run import signals_like_ctrl_c
from perfdash.runner.run_journal import read_plan
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned, equal_configuration, planned_from_json
from perfdash.suites.configuration import named


class NotTheGoodBuild(UsageError):
    """An interpreter has no build from before the changes; it may have that of other changes."""


def with_secrets(planned: Sequence[Planned]) -> list[Planned]:
    """Fill in the secrets that the run did not keep, from this process's environment.

    Raises UsageError if a variable is not set: the mask must not become its value.
    """
    restored = []
    for case in planned:
        hidden = [name for name, value in case.env.items() if value == MASK]
        for name in hidden:
            if name not in os.environ:
                raise UsageError(
                    f"{case.case.model}: the value of {name} was not kept; export {name} for this command"
                )
        restored.append(replace(case, env={**case.env, **{name: os.environ[name] for name in hidden}}))
    return restored


def with_variables_of(
    run: str, environment: Mapping[str, Any], planned: Planned, shell: Mapping[str, str]
) -> tuple[Planned, list[str]]:
    """The case with the variables that a run's shell had, and a note as of variables_of.

    Its own (--env) go before them. Raises UsageError.
    """
    variables, notes = variables_of(run, environment, planned.env, shell)
    return with_variables(planned, variables), notes


def variables_of(
    run: str, environment: Mapping[str, Any], own: Collection[str], shell: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The variables that a run's shell had, and a note of those that this shell has otherwise.

    environment: what the run recorded (host.facts); where it has no variables, those of this shell stay.
    own: names that are set anyway. shell: host.relevant_variables of this process. Raises UsageError for a
    variable that is set here and was not set then: a process cannot be started without it.
    """
    recorded = environment.get("variables")
    if recorded is None:
        return {}, []
    then, here = measured_variables(recorded), measured_variables(shell)
    if CPU_CAPABILITY not in environment:  # an older record, which has not its variable either
        here.pop(CPU_CAPABILITY_VARIABLE, None)
    if surplus := sorted(here.keys() - then.keys() - {*own}):
        raise UsageError(
            f"{', '.join(surplus)} is set in this shell, and was not set when {run} was measured: unset it "
            "and repeat the command"
        )
    variables = {name: value for name, value in then.items() if name not in own}
    words = ", ".join(f"{name}={value}" for name, value in variables.items() if shell.get(name) != value)
    return variables, [f"measured with variables of the shell of {run}: {words}"] if words else []


def planned_of_run(folder: Path, settings: RunSettings) -> dict[Case, Planned]:
    """The planned cases of a run folder, by case as the history knows it."""
    planned = {}
    for plain in read_plan(folder)["cases"]:
        case = planned_from_json(plain)
        if "inductor_config" not in plain:  # of an older perfdash, where these were the run's
            case = replace(case, compile_mode=settings.compile_mode, inductor_config=settings.inductor_config)
            of_history = named(replace(case.case, settings=equal_configuration(settings) or ""))
            case = replace(case, case=of_history)
        planned[case.case] = case
    return planned


def settings_of_run(configuration: dict[str, Any], **flags: str | None) -> RunSettings:
    """The settings of a run, changed by flags, for one case at a time on this machine, without instances."""
    recorded = {name: value for name, value in configuration.items() if name in RunSettings.model_fields}
    given = {name: value for name, value in flags.items() if value is not None}
    alone: dict[str, Any] = {
        "executor": "local", "scheduler": None, "jobs": 1, "cores": None, "instances": None, "fail_on": (),
    }  # fmt: skip
    return on_one_socket(RunSettings(**{**recorded, **alone, **given}))


@dataclass(frozen=True)
class Decision:
    """The result of re-measuring a finding: `word` is stands, dismissed, more or nothing."""

    case: Case
    finding: Finding
    word: str
    numbers: Any
    pairs: int

    def to_plain(self) -> dict[str, Any]:
        """The decision as plain values for JSON; changes are ratios, new / old."""
        change = self.finding.change
        words = {confirmation.STANDS: "confirmed", confirmation.DISMISSED: "dismissed"}
        return {
            "case": vars(self.case),
            "kind": self.finding.kind,
            "metric": self.finding.metric,
            "direction": int(self.finding.direction),
            "decision": words.get(self.word, "undecided"),
            "suspected_ratio": None if change is None else math.exp(change),
            "measured": self.numbers,
            "pairs": self.pairs,
        }


@signals_like_ctrl_c(others=())  # a night whose `confirm` alone is ended by SIGTERM is still told
def remeasure(
    store: Store,
    judged: Judged,
    folder: Path,
    settings: RunSettings,
    good_python: str,
    planned: Sequence[Planned],
    findings_of: Mapping[Case, list[Finding]],
    most_pairs: int | None,
    budget: Budget | None,
    decided: Callable[[Decision], None],
    notify: Callable[[str], None],
) -> int:
    """Measure suspected cases under the new build and the last good one, pair by pair.

    Alerts are saved and `decided` is called as each case is decided. `budget`: no pair begins after it; it
    begins with the first pair, not with the wait for cores. Returns the number of confirmed regressions.
    Raises UsageError if an interpreter has another build than the one that the history expects;
    NotTheGoodBuild if it is the last good one.
    """
    new = options_of(settings, of_build=True)
    old, cores = beside(new, good_python), slots_of(settings)
    limit = most_pairs or confirmation.PAIRS
    confirmed = seen = 0

    def judgements(case: Case, pairs: Sequence[BuildPair]) -> list[tuple[Finding, str, Any]]:
        sides = [(measured_side(pair.old), measured_side(pair.new)) for pair in pairs]
        return [(finding, *confirmation.decide(finding, sides, limit)) for finding in suspected[case]]

    def is_enough(planned: Planned, pairs: Sequence[BuildPair]) -> bool:
        return confirmation.MORE not in [word for _, word, _ in judgements(planned.case, pairs)]

    def save(planned: Planned, pairs: Sequence[BuildPair]) -> None:
        nonlocal confirmed, seen
        seen += 1
        decisions = []
        with store.write() as connection:
            alerts = alert_rows.load(connection, testbed_id=judged.run.testbed_id, states=alert_rows.SHOWN)
            for finding, word, numbers in judgements(planned.case, pairs):
                alert = confirmation.alert_after(finding, word, numbers, alerts, judged.panel, now())
                if alert:
                    alert_rows.save(connection, *alert)
                decisions.append(Decision(planned.case, finding, word, numbers, len(pairs)))
        for decision in decisions:  # after the transaction: a stopped terminal must not hold others up
            confirmed += decision.word == confirmation.STANDS and decision.finding.direction > 0
            decided(decision)

    slots = PairedSlots(cores, old, new, folder, gpus_of(settings), compile_cores(cores, settings))
    with away_from(cores), ExitStack() as stack:
        when_free(lambda: stack.enter_context(held([slots])), settings.wait, notify)
        workers = {name: build["worker"] for name, build in slots.introduce(planned).items()}
        of_planned = {planned_case.case: findings_of[planned_case.case] for planned_case in planned}
        suspected = _measured_before(judged, of_planned, workers, settings.python, good_python)
        left = [planned_case for planned_case in planned if suspected[planned_case.case]]
        if len(left) < len(planned):
            notify(f"{len(planned) - len(left)} cases changed before that build: they are left out")
        if budget:
            budget.begin()
        slots.measure(left, is_enough, save, budget=budget)
        if budget and budget.spent and (unmeasured := len(left) - seen):
            minutes = f"{round(budget.minutes, 1):g} minutes are over"
            notify(f"{minutes}: {unmeasured} of {len(left)} cases were not measured")
    return confirmed


def _measured_before(
    judged: Judged,
    findings_of: Mapping[Case, list[Finding]],
    workers: Mapping[str, Mapping[str, Any]],
    python: str,
    good_python: str,
) -> dict[Case, list[Finding]]:
    """The findings for which a night before the change measured the old build.

    Raises UsageError if `python` has another build than the run measured; NotTheGoodBuild if there are no
    such findings, or if both interpreters have one build though the build changed with them.
    """
    changed = _changed(judged, findings_of)
    if other := other_build(judged.run.worker, workers["new"], changed):
        raise UsageError(
            f"{python} has another build than the run measured (run | interpreter): "
            f"{'; '.join(other)}: give the interpreter of that build by --python"
        )
    old = workers["old"]
    left = {
        case: [finding for finding in findings if confirmation.measured_before(finding, judged.panel, old)]
        for case, findings in findings_of.items()
    }
    # Checked first: both also have one build if the good interpreter is of a night after the change.
    if not any(left.values()):
        raise NotTheGoodBuild(
            f"--good-python {good_python} has torch of commit {old.get('torch_git_version')}"
            f"{_and_packages(old, changed)}, which no night before the changes measured"
        )
    changed = _changed(judged, left)
    if changed and not other_build(old, workers["new"], changed):
        raise NotTheGoodBuild(
            f"--good-python {good_python} and {python} have one build, though {', '.join(changed)} changed "
            "between the nights: give an interpreter that still has the build from before the change"
        )
    return left


def _changed(judged: Judged, findings_of: Mapping[Case, list[Finding]]) -> list[str]:
    """The names of what of the build changed with any of the findings."""
    findings = [finding for of_case in findings_of.values() for finding in of_case]
    return list(
        dict.fromkeys(
            name for finding in findings for name in confirmation.changed_with(finding, judged.panel)
        )
    )


def _and_packages(worker: Mapping[str, Any], changed: Sequence[str]) -> str:
    commits, versions = worker.get("commits") or {}, worker.get("packages") or {}
    others = [name for name in changed if name not in ("torch", "python") and name not in commits]
    words = [f"{name} of {commit[:10]}" for name, commit in commits.items()]
    words += [f"{name} {versions.get(name)}" for name in others]
    if "python" in changed:
        words.append(f"python {worker.get('python')}")
    return "".join(f", {text}" for text in words)


def measured_side(result: Result) -> PairedResult:
    """A result as detect.confirmation judges it."""
    row = from_result(result)
    return PairedResult(row.status, dict(row.values), _undisturbed(result))


def _undisturbed(result: Result) -> bool:
    """Whether its latencies are free of other programs' CPU time (docs/method.md)."""
    conditions = result.conditions
    if "clock" in conditions:
        by_cpu = conditions["clock"] == "cpu"
        return (by_cpu or conditions["pairs"] == "clean") and not conditions.get("widened_by")
    clean = conditions.get("clean_fraction")  # of an older record
    return clean is None or clean >= 0.5
