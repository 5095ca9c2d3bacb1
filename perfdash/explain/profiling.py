"""Profile a case under two builds in turn: the effects behind `perfdash explain --profile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfdash.detect.environment_changes import changed_in_build, other_build
from perfdash.errors import MachineError, UsageError
from perfdash.explain.profile_comparison import Pair
from perfdash.files import write
from perfdash.records import Case
from perfdash.runner.alternating_builds import PairedSlots, held, with_variables
from perfdash.runner.case_status import status_of
from perfdash.runner.code_files import model_of_folder
from perfdash.runner.compatibility import check_machine
from perfdash.runner.cores import (
    away_from,
    compile_cores,
    gpus_of,
    slots_needed,
    slots_of,
    when_free,
    with_slots,
)
from perfdash.runner.messages import Options, Order, ProcessOutcome, options_of
from perfdash.runner.plan import edited_files
from perfdash.runner.remeasurement import planned_of_run, settings_of_run, with_secrets, with_variables_of
from perfdash.runner.run_journal import read_info, read_json
from perfdash.runner.slot import Slot
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned

PAIRS = 5
FILE = "profile.json"  # what worker.profiling writes
CONSTANTS = "constants.pt"
INPUTS = "inputs.pt"  # what worker.failing_subgraph writes


@dataclass(frozen=True)
class ProfiledBuild:
    """A case as a run measured it: its settings, and the interpreter that is used now."""

    run: str
    planned: Planned
    settings: RunSettings
    worker: Mapping[str, Any]  # what the run's interpreter said of itself

    @property
    def options(self) -> Options:
        """How the case is measured."""
        return options_of(self.settings)


def build_of(
    folder: Path, case: Case, shell: Mapping[str, str], python: str | None = None, cores: str | None = None
) -> ProfiledBuild:
    """The case of a run folder, under `python` or the interpreter of the run, with the run's variables.

    shell: host.relevant_variables of this process. Raises UsageError where the run did not plan the case, or
    this shell has a variable that the run's had not.
    """
    info = read_info(folder)
    settings = settings_of_run(info.configuration, python=python, cores=cores)
    plan = planned_of_run(folder, settings)
    if case not in plan:
        raise UsageError(f"{folder.name} has no plan of {case.name}: only what it measured can be profiled")
    (planned,) = with_secrets([plan[case]])
    settings = with_slots(settings, *slots_needed(settings, planned))
    environment = info.environment
    planned, _ = with_variables_of(folder.name, environment, planned, shell)
    return ProfiledBuild(folder.name, planned, settings, environment.get("worker") or {})


def with_kept_model(
    build: ProfiledBuild, run: Path, recorded: Mapping[str, str], folder: Path
) -> ProfiledBuild:
    """The build with the model as the run measured it: from the run's own copy where it was edited since.

    `recorded`: digests of the model's files, by path below its folder. The copy goes into `folder`. Raises
    UsageError where the file was edited and the run kept no copy.
    """
    planned = build.planned
    edited = edited_files(planned, recorded)
    if not edited:
        return build
    file, _, function = planned.target.rpartition(":")
    kept = model_of_folder(run, planned.case)
    for name, data in kept.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, data.decode())
    copy = replace(planned, target=f"{folder.absolute() / Path(file).name}:{function}")
    if edited_files(copy, recorded):
        raise UsageError(
            f"{', '.join(edited)} was edited since {build.run} measured it, and the run kept no copy of it "
            "(--no-code, or an older perfdash): put the file back, or measure both versions again"
        )
    return replace(build, planned=copy)


def refuse_same_build(old: ProfiledBuild, new: ProfiledBuild) -> None:
    """Raise UsageError where both sides are one build with the same settings: nothing could differ."""
    if (old.options, old.planned) != (new.options, new.planned):
        return
    raise UsageError(
        f"{old.run} and {new.run} were measured under one interpreter ({new.settings.python}) with the same "
        "settings and the same model, so there is one build to profile. If that interpreter had another "
        "build for the older run, give one that has it by --old-python."
    )


def profile(
    old: ProfiledBuild,
    new: ProfiledBuild,
    folder: Path,
    pairs: int,
    wait_s: float | None,
    notify: Callable[[str], None],
    tlparse: Path | None = None,
) -> list[Pair]:
    """Profile both builds in turn, `pairs` times, into `folder`; returns the profiles.

    `tlparse`: TORCH_TRACE logs of the first pair go there. Raises UsageError if an interpreter has another
    build than the run measured, MachineError if a process fails.
    """
    builds = {"old": old, "new": new}
    check_machine(new.settings, [new.planned])
    cores, gpus = slots_of(new.settings)[:1], gpus_of(new.settings)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    profiles: list[Pair] = []
    slots = PairedSlots(cores, old.options, new.options, folder, gpus, compile_cores(cores, new.settings))
    with away_from(cores), ExitStack() as stack:
        when_free(lambda: stack.enter_context(held([slots])), wait_s, notify)
        _refuse_other_builds(builds, slots)
        for number in range(1, pairs + 1):
            order = ("old", "new") if number % 2 else ("new", "old")
            pair: dict[str, Any] = {}
            for side in order:
                traced = tlparse / side if tlparse and number == 1 else None
                pair[side] = _one(slots, side, builds[side], folder / f"{number}-{side}", traced)
            profiles.append((pair["old"], pair["new"]))
            notify(f"pair {number} of {pairs} is profiled")
    return profiles


def failing_subgraph(
    build: ProfiledBuild, old_worker: Mapping[str, Any], folder: Path, notify: Callable[[str], None]
) -> dict[str, Any]:
    """The smallest part of a case's graphs that this build compiles wrongly, as the worker writes it.

    `old_worker`: what the older run's interpreter said of itself. Raises UsageError where every graph passes
    alone, the case is no inference or the interpreter has another build than the run measured, MachineError
    where the process fails.
    """
    case = build.planned.case
    if case.scenario != "inference" or not case.backend.startswith("inductor"):
        raise UsageError(
            f"{case.name}: only the graphs of inference under inductor are bisected for wrong outputs"
        )
    check_machine(build.settings, [build.planned])
    cores = slots_of(build.settings)[:1]
    gpu = next(iter(gpus_of(build.settings)), None)
    (wider,) = compile_cores(cores, build.settings)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    log = folder / "logs" / "subgraph.log"
    notify("the graphs are bisected: every step compiles a part of them")
    with away_from(cores), Slot(cores[0], build.options, gpu=gpu, compile_cores=wider) as slot:
        worker = slot.introduce([build.planned])["environment"]["worker"]
        _refuse_other_build(build, worker, changed_in_build(old_worker, build.worker), "--python")
        order = Order(build.planned, role="subgraph", folder=str((folder / "subgraph").absolute()))
        outcome = slot.measure(order, log, lambda event: None).outcomes[0]
    answer = outcome.find("subgraph")
    if answer is None:
        raise MachineError(f"the graphs of {build.run} cannot be bisected: {_why(outcome)}; see {log}")
    if answer["found"] is None:
        raise UsageError(
            f"{case.name}: each of its graphs passes alone under {build.settings.python}, so there is no "
            "smaller part to show"
        )
    found: dict[str, Any] = answer["found"]
    return found


def new_folder(run: Path, case: Case) -> Path:
    """Where the profiles of a case go: beside the results of the newer run."""
    return run / "profiles" / f"{case.name}-{datetime.now(UTC):%Y%m%dT%H%M%S}"


def keep_report(folder: Path, text: str) -> None:
    """Write the report beside the traces that it is made of."""
    write(folder / "report.txt", f"{text}\n")


def _one(slots: PairedSlots, side: str, build: ProfiledBuild, folder: Path, traced: Path | None) -> Any:
    planned = build.planned
    if traced is not None:
        traced.mkdir(parents=True, exist_ok=True)
        planned = with_variables(planned, {"TORCH_TRACE": str(traced.absolute())})
    # What the other side keeps for itself: neither may find the other's half of a failed measurement.
    planned = replace(planned, skip_reason=None)
    order = Order(planned, role="profile", folder=str(folder.absolute()))
    log = folder.parent / "logs" / f"{folder.name}.log"
    outcome = slots.outcome(side, order, log)
    if not outcome.find("profiled"):
        raise MachineError(f"the {side} build ({build.run}) cannot be profiled: {_why(outcome)}; see {log}")
    return read_json((folder / FILE).read_bytes())


def _why(outcome: ProcessOutcome) -> str:
    _, phase, failure = status_of(outcome)
    return f"{failure.type} in {phase}: {failure.message}" if failure else "it ended without an answer"


def _refuse_other_builds(builds: Mapping[str, ProfiledBuild], slots: PairedSlots) -> None:
    """Raise UsageError where an interpreter now has another build than its run measured."""
    hellos = {
        side: environment["worker"] for side, environment in slots.introduce([builds["new"].planned]).items()
    }
    changed = changed_in_build(builds["old"].worker, builds["new"].worker)
    for side, build in builds.items():
        flag = "--old-python" if side == "old" else "--python"
        _refuse_other_build(build, hellos[side], changed, flag)


def _refuse_other_build(
    build: ProfiledBuild, worker: Mapping[str, Any], changed: Sequence[str], flag: str
) -> None:
    """Raise UsageError where an interpreter, by what it says of itself, has not the build of its run.

    Compared are torch, packages of a commit, and what differs between the runs: `changed`. A run that
    recorded nothing of its interpreter is compared with none. `flag`: gives another interpreter.
    """
    if build.worker and (other := other_build(build.worker, worker, changed)):
        raise UsageError(
            f"{build.run} measured another build than {build.settings.python} has now "
            f"(run | interpreter): {'; '.join(other)}: give the interpreter of the run's build by {flag}"
        )
