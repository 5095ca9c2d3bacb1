"""Measure two builds in turn, pair by pair of runs, until it is known what changed.

`perfdash compare-builds` leaves the run folder of the change, and the base's as `base` inside it. Every pair
is a line of the change's confirm.jsonl. Nothing of it goes into a history.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfdash.detect.paired_comparison import (
    MOST_PAIRS,
    PairedRun,
    false_alarm_of,
    is_enough,
    paired_deltas,
    paired_status,
)
from perfdash.errors import MachineError, PerfdashError, UsageError
from perfdash.files import now, remove_abandoned_folders
from perfdash.records import Case, Result, RunInfo, Status
from perfdash.runner import orphans
from perfdash.runner.alternating_builds import (
    Budget,
    BuildPair,
    PairedSlots,
    beside,
    held,
    read_pairs,
    unspoilt,
)
from perfdash.runner.compatibility import check_machine, refuse_other_environment
from perfdash.runner.cores import away_from, by_slots, compile_cores, gpus_of, slots_of, when_free
from perfdash.runner.launcher import uninterrupted
from perfdash.runner.messages import options_of
from perfdash.runner.plan import Plan, make_plan, recorded_files, refuse_edited_model
from perfdash.runner.remeasurement import measured_side
from perfdash.runner.result_record import skipped
from perfdash.runner.run import (
    command_line,
    new_info,
    plan_as_begun,
    run_to_resume,
    signals_like_ctrl_c,
)
from perfdash.runner.run_journal import RunJournal, read_info, resume_command
from perfdash.runner.slot import FirstHellos
from perfdash.settings import RunSettings
from perfdash.stats.speedup import margin_of, set_speedups
from perfdash.suites.case_selection import Planned

_REASONS = 5  # why cases are skipped, in a message
BASE = "base"  # the base's run folder, inside the change's
_KEY = "compared_with"  # of a plan in run.json: the base's interpreter, and how many pairs are allowed

Notify = Callable[[str], None]


@dataclass
class BuildComparison:
    """Two builds that are compared. journals, infos: of the sides `old` (the base) and `new` (the change)."""

    settings: RunSettings
    base_python: str
    most_pairs: int
    plan: Plan
    dynamo_names: dict[str, str]
    journals: dict[str, RunJournal]
    infos: dict[str, RunInfo]
    pairs: dict[Case, list[BuildPair]]
    executed: dict[str, str] = field(default_factory=dict)  # digests of the user's own files, by path
    interrupted: bool = False
    incomplete: bool = False  # what is undecided is measured on by --resume

    @property
    def folder(self) -> Path:
        return self.journals["new"].folder

    @property
    def cases(self) -> list[Planned]:
        return [self.plan.cases[index] for index in self.plan.mine]

    @property
    def measured(self) -> list[Planned]:
        """The cases that are not skipped."""
        return [planned for planned in self.cases if planned.skip_reason is None]

    @property
    def skipped(self) -> list[Planned]:
        return [planned for planned in self.cases if planned.skip_reason is not None]

    @property
    def spoilt(self) -> list[Planned]:
        """The measured cases that an edit of their model, or failures of the machine, left undecided.

        --resume measures them again.
        """
        return [
            planned
            for planned in self.measured
            if self.is_enough(planned, pairs := self.pairs.get(planned.case, []))
            and not self._decides(unspoilt(pairs))
        ]

    @property
    def undecided(self) -> list[Planned]:
        """The measured cases that further pairs could decide."""
        return [
            planned
            for planned in self.measured
            if not self.is_enough(planned, self.pairs.get(planned.case, []))
        ]

    def is_enough(self, planned: Planned, pairs: Sequence[BuildPair]) -> bool:
        return self._decides(unspoilt(pairs)) or self._decides(pairs)

    def _decides(self, pairs: Sequence[BuildPair]) -> bool:
        return is_enough(_sides(pairs), false_alarm_of(len(self.cases)), self.most_pairs)


def new_comparison(settings: RunSettings, base_python: str, most_pairs: int | None) -> BuildComparison:
    """Plan a comparison and make its folders. Raises UsageError or MachineError; then no folder is left."""
    base_python = os.path.abspath(os.path.expanduser(base_python))
    here: dict[str, Any] = {"executor": "local", "scheduler": None, "shard": None, "costs": None}
    settings = settings.model_copy(update=here)
    plan, dynamo_names = make_plan(settings)
    if all(planned.skip_reason for planned in plan.cases):
        reasons = list(dict.fromkeys(str(planned.skip_reason) for planned in plan.cases))
        more = f"; and {len(reasons) - _REASONS} more reasons" if len(reasons) > _REASONS else ""
        raise UsageError(
            f"nothing to measure: all {len(plan.cases)} cases are skipped: "
            f"{'; '.join(reasons[:_REASONS])}{more}"
        )
    check_machine(settings, plan.cases, base_python)
    beside(options_of(settings), base_python)
    most = most_pairs or MOST_PAIRS
    journal = RunJournal.create(settings.out)
    try:
        (journal.folder / BASE / "logs").mkdir(parents=True)
        journals = {"new": journal, "old": RunJournal(journal.folder / BASE)}
        infos = {
            side: new_info(journal.folder.name, settings, plan, dynamo_names, command_line())
            for side in journals
        }
        for side, info in infos.items():
            info.configuration["no_history"] = True
            info.plan[_KEY] = {"python": base_python, "pairs": most}
            journals[side].write_plan(plan.to_json())
        infos["old"].id += f"-{BASE}"
        infos["old"].configuration["python"] = base_python
        infos["old"].plan["uid"] = uuid.uuid4().hex
    except (PerfdashError, OSError) as error:
        journal.discard()
        if isinstance(error, OSError):
            raise MachineError(f"{journal.folder} cannot be written: {error.strerror}") from error
        raise
    return BuildComparison(settings, base_python, most, plan, dynamo_names, journals, infos, {})


def resumed_comparison(name: str, flags: Mapping[str, Any], most_pairs: int | None) -> BuildComparison:
    """Reopen a comparison: whole pairs are kept.

    Raises UsageError for a folder or flags that do not fit, or if the model was edited since.
    """
    folder, info, settings = run_to_resume(name, flags)
    known = info.plan.get(_KEY)
    if not known:
        raise UsageError(
            f"{folder.name} is a run and no comparison of two builds: resume it by {resume_command(folder)}"
        )
    plan, dynamo_names = plan_as_begun(folder, settings)
    pairs = read_pairs(folder)
    kept = [result for of_case in pairs.values() for pair in of_case for result in (pair.old, pair.new)]
    refuse_edited_model(kept, plan.cases, folder.name)
    check_machine(settings, plan.cases, str(known["python"]))
    most = most_pairs or int(known["pairs"])
    journals = {"new": RunJournal.reopen(folder), "old": RunJournal.reopen(folder / BASE)}
    infos = {"new": info, "old": read_info(folder / BASE)}
    for side_info in infos.values():
        side_info.plan[_KEY] = {**known, "pairs": most}
    executed = recorded_files(kept, plan.cases)
    python = str(known["python"])
    return BuildComparison(settings, python, most, plan, dynamo_names, journals, infos, pairs, executed)


@signals_like_ctrl_c()
def measure(comparison: BuildComparison, minutes: float | None, notify: Notify) -> None:
    """Measure pair after pair of every case, one pair of each at a time, until all is decided.

    Ctrl-C (or SIGTERM, SIGHUP) ends it and sets `interrupted`; so does the end of `minutes`, with
    `incomplete`. What was measured is kept either way. An edit of a model, or repeated failures of the
    machine, end the case, and set `incomplete`, too.
    """
    orphans.end_strays()
    remove_abandoned_folders()
    state, sessions = "failed", len(comparison.infos["new"].sessions)
    try:
        kinds = _kinds(comparison)
        every = [slots for slots, _ in kinds]
        with ExitStack() as stack:
            when_free(lambda: stack.enter_context(held(every)), comparison.settings.wait, notify)
            with away_from(every[0].cores):
                _introduce(comparison, every)
            _measure_rounds(comparison, kinds, Budget(minutes) if minutes is not None else None, notify)
        state = "incomplete" if comparison.incomplete else "done"
    except KeyboardInterrupt:
        comparison.interrupted, state = True, "interrupted"
    finally:
        with uninterrupted():
            # Refused before it was resumed:
            if sessions and len(comparison.infos["new"].sessions) == sessions:
                _close(comparison)
            else:
                _finish(comparison, state)


def changes_between(old: Path, new: Path) -> dict[str, Any]:
    """The changes and statuses of each case, as compare() takes them, of two folders of one comparison.

    Empty where they are two runs that were measured apart.
    """
    if old.absolute() != (new / BASE).absolute():
        return {}
    info = read_info(new)
    known = info.plan.get(_KEY)
    if not known:
        return {}
    sides = {case: _sides(pairs) for case, pairs in read_pairs(new).items()}
    alpha, most = false_alarm_of(info.cases), int(known["pairs"])
    statuses = {case: paired_status(of_case) for case, of_case in sides.items()}
    return {
        "paired": {case: paired_deltas(of_case, alpha, most) for case, of_case in sides.items()},
        "statuses": {case: status for case, status in statuses.items() if status},
    }


def _sides(pairs: Sequence[BuildPair]) -> list[PairedRun]:
    return [(measured_side(pair.old), measured_side(pair.new)) for pair in pairs]


def _kinds(comparison: BuildComparison) -> list[tuple[PairedSlots, list[Planned]]]:
    """The measured cases by the threads and bound memory that they need, with slots for both builds."""
    kinds = []
    first_hellos: dict[str, FirstHellos] = {"old": {}, "new": {}}  # the builds are the same for all kinds
    for settings, places in by_slots(comparison.settings, comparison.measured):
        new, cores = options_of(settings, of_build=True), slots_of(settings)
        old, wider = beside(new, comparison.base_python), compile_cores(cores, settings)
        slots = PairedSlots(
            cores,
            old,
            new,
            comparison.folder,
            gpus_of(settings),
            wider,
            executed=comparison.executed,
            first_hellos=first_hellos,
        )
        kinds.append((slots, [comparison.measured[place] for place in places]))
    return kinds


def _introduce(comparison: BuildComparison, every: Sequence[PairedSlots]) -> None:
    environments = every[0].introduce(comparison.measured)
    for slots in every:
        slots.vector_isas = {side: build.get("vector_isa") for side, build in environments.items()}
    for side, environment in environments.items():
        info = comparison.infos[side]
        if info.environment:
            refuse_other_environment(info.environment, environment, info.id)
    for side, environment in environments.items():
        info = comparison.infos[side]
        info.environment = environment
        info.sessions.append({"started": now(), "command": command_line(), "executor": "pairs"})
        info.state = "running"
        comparison.journals[side].write_info(info)
        for planned in comparison.skipped if len(info.sessions) == 1 else ():
            comparison.journals[side].append(skipped(planned, now()))


def _measure_rounds(
    comparison: BuildComparison,
    kinds: Sequence[tuple[PairedSlots, list[Planned]]],
    budget: Budget | None,
    notify: Notify,
) -> None:
    """Measure pair after pair. `kinds`: slots, and the cases that need them."""
    for number in range(1, comparison.most_pairs + 1):
        undecided = comparison.undecided
        if not undecided or (budget and budget.spent):
            break
        again = [case for case in undecided if _failed_by_machine(comparison.pairs.get(case.case, ()))]
        if again:
            pause = comparison.settings.retry_pause
            notify(f"{len(again)} cases failed because of the machine: measured again in {pause:g} s")
            time.sleep(pause)
        notify(f"pair {number}: {len(undecided)} of {len(comparison.measured)} cases are not decided")

        def has_this_pair(planned: Planned, pairs: Sequence[BuildPair], number: int = number) -> bool:
            return len(pairs) >= number

        for slots, cases in kinds:
            own = [case for case in cases if case in undecided]
            if not own:
                continue
            with away_from(slots.cores):
                slots.measure(
                    own,
                    has_this_pair,
                    lambda planned, pairs: _keep(comparison, planned, pairs, notify),
                    comparison.pairs,
                    budget,
                )
    if left := comparison.undecided:
        comparison.incomplete = True
        minutes = f"{budget.minutes:g} minutes are over" if budget else "no pairs are left"
        notify(f"{minutes}: {len(left)} cases are not decided")
    spoilt = comparison.spoilt
    edited = [case for case in spoilt if any(pair.edited for pair in comparison.pairs[case.case])]
    comparison.incomplete = comparison.incomplete or bool(spoilt)
    if edited:
        names = ", ".join(dict.fromkeys(planned.case.model for planned in edited))
        notify(f"{names}: not decided, its file was edited. Put the file back and use --resume")
    if failed := [case for case in spoilt if case not in edited]:
        names = ", ".join(dict.fromkeys(planned.case.model for planned in failed))
        notify(f"{names}: not decided, as the machine failed. --resume measures it again")


def _failed_by_machine(pairs: Sequence[BuildPair]) -> bool:
    """Whether the last pair of a case failed because of the machine."""
    return bool(pairs) and pairs[-1].spoilt and not pairs[-1].edited


def _keep(comparison: BuildComparison, planned: Planned, pairs: list[BuildPair], notify: Notify) -> None:
    if len(pairs) == len(comparison.pairs.get(planned.case, ())):
        return
    comparison.pairs[planned.case] = pairs
    last = pairs[-1]
    comparison.journals["old"].append(last.old)
    comparison.journals["new"].append(last.new)
    notify(f"{planned.case.model}: pair {len(pairs)}, {_latencies(last)}")


def _latencies(pair: BuildPair) -> str:
    words = []
    for result in (pair.old, pair.new):
        latency = result.backend_ms
        passed = latency is not None and result.status is Status.PASS
        words.append(f"{latency.median:.4g} ms" if latency and passed else str(result.status))
    return " -> ".join(words)


def _finish(comparison: BuildComparison, state: str) -> None:
    """Write what a run folder holds; a new folder without any pair is removed.

    A resumed one may have had failures of the machine alone, which count as no pairs.
    """
    try:
        if not comparison.pairs and len(comparison.infos["new"].sessions) < 2:
            comparison.journals["old"].close()
            comparison.journals["new"].discard()
            return
        for side, journal in comparison.journals.items():
            info = comparison.infos[side]
            if results := _results(comparison, side):
                set_speedups(results, margin=margin_of(info))
                journal.rewrite(results)
                journal.write_csv(results, comparison.dynamo_names, info)
            info.state, info.ended = state, now()
            info.sessions[-1].update(state=state, ended=info.ended)
            journal.write_info(info)
    finally:
        _close(comparison)


def _close(comparison: BuildComparison) -> None:
    for journal in comparison.journals.values():
        journal.close()


def _results(comparison: BuildComparison, side: str) -> list[Result]:
    """A result of each measured case on one side: the last one that ended as its pairs decide.

    Preferably an undisturbed one; of a case whose pairs are all spoilt the last one.
    """
    chosen = []
    for planned in comparison.measured:
        if pairs := comparison.pairs.get(planned.case):
            kept = unspoilt(pairs)
            status = paired_status(_sides(kept))
            results = [getattr(pair, side) for pair in kept or pairs]
            sides = [measured_side(result) for result in results]
            ranks = [(not status or one.word == getattr(status, side), one.clean) for one in sides]
            chosen.append(results[max(range(len(ranks)), key=lambda place: (ranks[place], place))])
    return chosen
