"""Start a new run, or resume an earlier one, and measure it to its end.

Prints nothing: what a user should know goes to `say` or to the watcher.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfdash import __version__
from perfdash.errors import PerfdashError, UsageError
from perfdash.files import now, remove_abandoned_folders
from perfdash.methods import CURRENT
from perfdash.records import NOT_MEASURED, Case, Result, RunInfo, Status
from perfdash.redaction import MASK, mask_secrets, mask_variables
from perfdash.run_options import CHANGED_BY_RESUME
from perfdash.runner import compatibility, noise, orphans, run_journal
from perfdash.runner.compatibility import check_machine
from perfdash.runner.cores import away_from, by_slots, slots_needed, slots_of, when_free, with_slots
from perfdash.runner.doctor import load_warning
from perfdash.runner.executors import open_executor
from perfdash.runner.messages import weights_of
from perfdash.runner.night_budget import as_left_out, within_hours
from perfdash.runner.notebook_model import NotebookModel
from perfdash.runner.plan import (
    Plan,
    differences,
    make_plan,
    plan_from_json,
    recorded_files,
    refuse_edited_model,
)
from perfdash.runner.run_journal import RunJournal, find_run, read_info, read_plan, read_results
from perfdash.runner.session import Policy, Session, Watcher, is_to_be_repeated
from perfdash.settings import RunSettings, has_password, resolve
from perfdash.stats.process_spread import ProcessRatios
from perfdash.suggestions import not_one_of
from perfdash.suites.case_selection import Planned, backend_names
from perfdash.suites.suite_file import NOTEBOOK

Say = Callable[[str], None]

BESIDE = "history.db"
"""The default history in run.json: beside the run's folder, wherever that is now."""

_ONE_INTERRUPT_S = 1.0  # signals within it are one Ctrl-C

NOT_RESUMED = "its model was defined in a notebook, and a run keeps no copy of such a model."


@dataclass
class OpenRun:
    """A run that is ready to be measured.

    `left` are the indices of its cases that have no result yet; `command`: the words that it was called with.
    """

    settings: RunSettings
    plan: Plan
    left: Sequence[int]
    dynamo_names: dict[str, str]
    slots: Sequence[tuple[int, ...]]
    journal: RunJournal
    info: RunInfo
    results: list[Result]  # the latest of each case
    command: list[str]
    interrupted: bool = False
    notebook: NotebookModel | None = None  # of the one case that comes from a notebook
    # A measured case of a run of which only the null at the end is left, for --strict.
    null_like: Planned | None = None

    @property
    def how_to_resume(self) -> str:
        """How the user measures what is left."""
        if self.notebook:
            return f"{NOT_RESUMED} Call perfdash.measure() again"
        return f"To continue: {run_journal.resume_command(self.journal.folder)}"


def new_run(
    settings: RunSettings, notebook: NotebookModel | None = None, command: Sequence[str] | None = None
) -> OpenRun:
    """Plan a run and make its folder. Raises UsageError or MachineError; then no folder is left.

    `notebook`: a model to measure, which exists in the calling process only. `command`: the words that mean
    the same on the command line, where this process was started for something else.
    """
    words = command_line(command)
    if notebook and settings.executor != "local":
        raise UsageError(
            f"{notebook.name} is defined in a notebook, and its pickle goes to no other machine: measure it "
            "with executor='local', or write it into a file and measure 'net.py:" + f"{notebook.name}'"
        )
    plan, dynamo_names = make_plan(settings, notebook=notebook.name if notebook else None)
    slots = _slots(settings, plan)
    plan = of_tonight(settings, plan)
    check_machine(settings, plan.cases)
    journal = RunJournal.create(settings.out)
    try:
        info = new_info(journal.folder.name, settings, plan, dynamo_names, words)
        journal.write_plan(plan.to_json())
    except PerfdashError:
        journal.discard()
        raise
    return OpenRun(
        settings, plan, plan.mine, dynamo_names, slots, journal, info, [], words, notebook=notebook
    )


def of_tonight(settings: RunSettings, plan: Plan) -> Plan:
    """The plan within --hours, by what the history has of its cases. Raises UsageError."""
    if settings.hours is None:
        return plan
    if settings.shard:
        raise UsageError("--hours and --shard: give each machine hours and cases of its own, without shards")
    if settings.executor != "local":
        raise UsageError(
            "--hours counts the hours of the cores of this machine: give it with --executor local, or leave "
            f"it out with --executor {settings.executor}"
        )
    if settings.no_history:
        raise UsageError(
            "--hours needs the history, which knows what each case waited and takes: leave out --no-history "
            "or --hours"
        )
    from perfdash.history.earlier_nights import NightsOfCase, measured_on
    from perfdash.history.results import setting_of_options
    from perfdash.history.store import NoHistory, open_store

    setting, case_settings = setting_of_options(_kept_options(settings))
    known: dict[Case, NightsOfCase] = {}
    try:
        with open_store(settings.history, create=False) as store, store.read() as connection:
            measured = measured_on(connection, _host(), setting)
        for planned in plan.cases:
            stored = replace(planned.case, settings=planned.case.settings or case_settings)
            if stored in measured:
                known[planned.case] = measured[stored]
    except NoHistory:
        pass  # the first night: the suites' hints of costs decide
    side_by_side = [1] * len(plan.cases)
    for group, places in by_slots(settings, plan.cases):
        for place in places:
            side_by_side[place] = max(1, len(slots_of(group)))
    return within_hours(plan, settings.hours, side_by_side, now(), known)


def _host() -> str:
    return socket.gethostname().split(".")[0]


def _slots(settings: RunSettings, plan: Plan) -> list[tuple[int, ...]]:
    """The slots of the run's own threads. Raises UsageError where a configuration's cannot be had."""
    measured = {slots_needed(settings, case) for case in plan.cases if case.skip_reason is None}
    others = measured - {(settings.threads, settings.bind_memory)}
    if others and settings.executor != "local":
        raise UsageError(
            f"--configuration: {', '.join(str(threads) for threads, _ in sorted(others))} threads are for "
            f"--executor local; a cluster's slots have {settings.threads}"
        )
    for threads, binds in sorted(others):
        slots_of(with_slots(settings, threads, binds))
    return slots_of(settings)


def run_to_resume(name: str, flags: Mapping[str, Any]) -> tuple[Path, RunInfo, RunSettings]:
    """Find an earlier run: its folder, its run.json and its settings, changed by the flags.

    Raises UsageError where there is none, or where a flag would measure something else.
    """
    here, origins = resolve({"out": flags["out"], "db": flags["db"]})
    folder = find_run(name, here.out, without_results=True)
    info = read_info(folder)
    settings = resumed_settings(info, flags)
    begun = info.configuration.get("db")  # None: the default, by an older perfdash
    if begun == BESIDE:
        begun = str(folder.absolute().parent / BESIDE)
    if origins["db"] == "--db" or (begun == MASK and origins["db"] == "PERFDASH_DB"):
        begun = None
    if begun == MASK and not settings.no_history:
        raise UsageError(
            f"Cannot resume {info.id}: the address of its history was given with a password, which is not "
            "kept. Set PERFDASH_DB again, or name a history by --db."
        )
    db = begun or here.db or str(folder.absolute().parent / "history.db")
    return folder, info, settings.model_copy(update={"db": db})


def resumed_run(
    folder: Path,
    info: RunInfo,
    settings: RunSettings,
    retry: Collection[Status],
    say: Say,
    command: Sequence[str] | None = None,
) -> OpenRun:
    """Reopen an earlier run: cases without result, and cases whose status is to be retried.

    Raises UsageError where the settings give another plan.
    """
    plan, dynamo_names = plan_as_begun(folder, settings)
    slots = _slots(settings, plan)
    check_machine(settings, plan.cases)
    journal = RunJournal.reopen(folder)
    for line in journal.damaged:
        say(f"{line}: moved to {journal.set_aside.name}; its case is measured again")
    results = read_results(folder)
    done = {result.case: result.status for result in results}
    # One of an earlier method stays as it is: a repeat would mix the methods.
    disturbed = {result.case for result in results if is_to_be_repeated(result) and result.method == CURRENT}
    left = [
        index
        for index in plan.mine
        if done.get(case := plan.cases[index].case) in {None, *retry} or case in disturbed
    ]
    if left:
        try:
            compatibility.refuse_other_method(results, folder.name)
            refuse_edited_model(results, plan.cases, folder.name)
        except UsageError:
            journal.close()
            raise
    lost = sum(status == "infra_error" for status in done.values())
    if lost and "infra_error" not in retry:
        say(f"{lost} cases ended in infra_error; --retry infra_error measures them again")
    words = command_line(command)
    null_like = None
    if not left and settings.strict and noise.lacks_end(info) and "refused" not in info.noise:
        measured = [result.case for result in results if result.status not in NOT_MEASURED]
        null_like = next((planned for planned in plan.cases if planned.case in measured[-1:]), None)
    if null_like:
        say("Only the A/A null at the end is left to measure, by which --strict judges the run")
    return OpenRun(
        settings, plan, left, dynamo_names, slots, journal, info, results, words, null_like=null_like
    )


def plan_as_begun(folder: Path, settings: RunSettings) -> tuple[Plan, dict[str, str]]:
    """The plan of a run folder, with what its plan.json does not hold. Raises UsageError for another plan."""
    old = read_plan(folder)
    if any(planned["loader"] == NOTEBOOK for planned in old["cases"]):
        raise UsageError(
            f"Cannot resume {folder.name}: {NOT_RESUMED} Call perfdash.measure() again in the notebook, or "
            "write the function into a file, e.g. net.py with %%writefile, and measure 'net.py:FUNCTION'"
        )
    fresh, dynamo_names = make_plan(settings, uncut=True)
    fresh = replace(fresh, cases=tuple(as_left_out(fresh.cases, plan_from_json(old).cases)))
    then = plan_from_json(old)
    if not {planned.case for planned in then.cases} & {planned.case for planned in fresh.cases}:
        raise UsageError(
            f"Cannot resume {folder.name}: it measures other cases than this command "
            f"({_suites(then.cases)} | {_suites(fresh.cases)}). Leave out "
            "--suite and --model, or start a new run "
            "without --resume."
        )
    if changed := differences(old, fresh.to_json()):
        raise UsageError(
            f"Cannot resume {folder.name}: its plan differs from this command (then | now):\n"
            f"{compatibility.as_lines(changed)}\nStart a new run without --resume."
        )
    by_case = {planned.case: planned for planned in fresh.cases}
    return replace(then, cases=tuple(by_case[planned.case] for planned in then.cases)), dynamo_names


def _suites(cases: Sequence[Planned]) -> str:
    """The suites of some cases, with the number of cases in each."""
    counts = Counter(planned.case.suite for planned in cases)
    return ", ".join(f"{suite}: {count} case{'s' * (count > 1)}" for suite, count in counts.items())


def measure(run: OpenRun, watcher: Watcher, say: Say) -> None:
    """Measure what is left of a run, and close its journal.

    A run in which no case was started leaves no folder. Ctrl-C ends it: then `run.interrupted` is set.
    """
    try:
        if run.settings.executor == "local" and (warning := load_warning()):
            say(warning)
        optimizer = getattr(run.settings, "optimizer", None)
        if optimizer and all(planned.case.scenario != "training" for planned in run.plan.cases):
            say(
                f"optimizer {optimizer} acts in no case of this run: none is of scenario training. A run "
                "with this option is compared only with runs that have it too: leave it out, unless earlier "
                "nights have it"
            )
        orphans.end_strays()
        remove_abandoned_folders()
        cases = [run.plan.cases[index] for index in run.left]
        parts = by_slots(run.settings, [run.null_like] if run.null_like else cases)
        for number, (settings, places) in enumerate(parts):
            left = [run.left[place] for place in places] if run.left else []
            _measure_part(run, settings, left, watcher, say, is_further=number > 0)
            if run.interrupted:
                break
    finally:
        run.journal.close()


def _measure_part(
    run: OpenRun, settings: RunSettings, left: Sequence[int], watcher: Watcher, say: Say, *, is_further: bool
) -> None:
    """Measure some cases, which share the settings of the slots, as one session of the run.

    `is_further`: another part of the run is done, which the run is not while this one waits for its cores.
    """
    plan, info, journal = run.plan, run.info, run.journal
    info.sessions.append(
        {
            "started": now(),
            "command": run.command,
            "executor": settings.executor,
            "slots": [],
            **({"bind_memory": True} if settings.bind_memory else {}),
        }
    )
    if is_further:
        _reopen(info)
        journal.write_state(info, "running")
    policy = Policy(
        settings.allocator,
        settings.processes,
        settings.retries,
        settings.retry_pause,
        settings.strict,
        share=not settings.no_share,
    )
    planned = [plan.cases[index] for index in left]
    costs = [plan.costs[index] for index in left]
    own_slots = run.slots if settings is run.settings else slots_of(settings)
    slots = own_slots if left or run.null_like else ()
    session = None
    try:
        with away_from(own_slots), ExitStack() as stack:
            executor = when_free(
                lambda: stack.enter_context(open_executor(settings, slots, journal.logs, run.notebook)),
                settings.wait,
                say,
            )
            session = Session(
                planned, costs, policy, executor, journal, info, watcher, run.dynamo_names, run.results,
                earlier=lambda info: earlier_nights(settings, info, plan, watcher.say),
                null_like=run.null_like,
                executed=recorded_files(run.results, plan.cases),
            )  # fmt: skip
            session.run()
    except KeyboardInterrupt:
        run.interrupted = True
        only_a_part = session and info.state == "done" and len(session.results) < info.cases
        if only_a_part:
            _reopen(info)
        if session is None or only_a_part:
            _keep_state(run, "interrupted", say)
    except PerfdashError:
        if len(info.sessions) == 1 and not (session and session.begun):
            journal.discard()
        else:
            if session is None:
                _keep_state(run, "failed", say)
            saved = len(session.results if session else run.results)
            say(f"{saved} of {info.cases} cases are saved. {run.how_to_resume}")
        raise
    if session:
        run.results = session.results


def _reopen(info: RunInfo) -> None:
    """A part of the run is done, and another one is left."""
    info.state = "running"
    info.noise.get("null", {}).pop("end", None)


def _keep_state(run: OpenRun, state: str, say: Say) -> None:
    """Write how a run ended between two parts, or while it waited for cores; a full disk hides no error."""
    if run.info.state != "running":  # a run that was resumed, and not begun again
        return
    try:
        run.journal.write_state(run.info, state)
    except PerfdashError as error:
        say(str(error))


def earlier_nights(
    settings: RunSettings, info: RunInfo, plan: Plan, say: Say
) -> dict[Case, list[ProcessRatios]]:
    """The processes of earlier nights on this machine, where there is a history to read.

    A history that cannot be read makes intervals wider, and is no reason not to measure.
    """
    if settings.no_history:
        return {}
    from perfdash.history.earlier_nights import earlier_processes
    from perfdash.history.results import from_run
    from perfdash.history.store import NoHistory, open_store

    try:
        with open_store(settings.history, create=False) as store, store.read() as connection:
            return earlier_processes(
                connection, from_run(info, [], "").run, {planned.case for planned in plan.cases}
            )
    except NoHistory:
        return {}
    except PerfdashError as error:
        say(f"the noise of earlier nights cannot be read from the history: {error}")
        return {}


def parse_statuses(words: Sequence[str]) -> set[Status]:
    """The statuses that --retry names. Raises UsageError for a word that is none."""
    names = [str(status) for status in Status]
    statuses = set()
    for word in (part.strip() for item in words for part in item.split(",")):
        if word not in names:
            raise UsageError(not_one_of("--retry", word, names))
        statuses.add(Status(word))
    return statuses


def resumed_settings(info: RunInfo, flags: Mapping[str, Any]) -> RunSettings:
    """The settings of an earlier run, changed by the flags that a resume may change.

    Raises UsageError for a flag that would measure something else, with both values.
    """
    given, origins = resolve(flags, environ={}, folder=Path("/nonexistent"))
    whole = {**given.model_dump(mode="json"), **_absolute_paths(given)}
    changes = {key: value for key, value in whole.items() if origins[key] != "default"}
    then = dict(info.configuration)
    may_change = CHANGED_BY_RESUME
    if "executor" in changes:  # these belong to the other executor
        may_change = may_change | {"jobs"}
        for key in ("scheduler", "jobs", "cores"):
            then.pop(key, None)
    env = {**then.get("env", {}), **changes.pop("env", {})}
    hidden = [key for key, value in env.items() if value == MASK]
    if hidden:
        raise UsageError(f"--resume: the value of {hidden[0]} was not kept; give --env {hidden[0]}=... again")
    refused = [key for key, value in changes.items() if key not in may_change and value != then.get(key)]
    if refused:
        options = ", ".join(f"--{key.replace('_', '-')}" for key in refused)
        values = [
            f"  --{key.replace('_', '-')}: {_spell(then.get(key))} | {_spell(changes[key])}"
            for key in refused
        ]
        raise UsageError(
            f"Cannot resume {info.id}: its settings differ from this command (then | now):\n"
            + "\n".join(values)
            + f"\nLeave out {options}, or start a new run without --resume."
        )
    try:
        return RunSettings(**{**then, **changes, "env": env})
    except ValidationError as error:
        raise UsageError(f"{info.id} cannot be resumed: its run.json is of an older perfdash") from error


def _spell(value: Any) -> str:
    """A setting as it is typed; `none` for one that was not given."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "none"
    return "none" if value in (None, "", {}) else str(value)


def _absolute_paths(settings: RunSettings) -> dict[str, Any]:
    """Settings that may name files, with absolute paths."""
    data = settings.data and os.path.abspath(settings.data.expanduser())
    backends = list(backend_names(settings))
    return {"backend": backends, "weights": weights_of(settings), "data": data}


def _kept_options(settings: RunSettings) -> dict[str, Any]:
    """The options as run.json keeps them: with absolute paths, and without secrets.

    So the run can be resumed from another folder.
    """
    options: dict[str, Any] = settings.model_dump(mode="json")
    options["db"] = kept_address(settings)
    options["env"] = mask_variables(settings.env)
    for key, names in (("suite", settings.suite), ("configuration", settings.configuration)):
        options[key] = [os.path.abspath(name) if name.endswith(".toml") else name for name in names]
    file_names = {Path(target).name for target in settings.model}
    if len(file_names) == len(settings.model):  # else a model's name would depend on the folder
        options["model"] = [os.path.abspath(target) for target in settings.model]
    if settings.torchbench:
        options["torchbench"] = os.path.abspath(settings.torchbench.expanduser())
    options.update(_absolute_paths(settings))
    if os.sep in settings.python:
        options["python"] = os.path.abspath(settings.python)
    return options


def new_info(
    run_id: str, settings: RunSettings, plan: Plan, dynamo_names: dict[str, str], command: list[str]
) -> RunInfo:
    """The run.json of a run that begins; its environment is filled in by the first worker."""
    return RunInfo(
        id=run_id,
        started=now(),
        host=_host(),
        command=_with_sources(command, settings, plan),
        configuration=_kept_options(settings),
        environment={},
        cases=len(plan.mine),
        perfdash=__version__,
        plan={
            "fingerprint": plan.fingerprint,
            "total": len(plan.cases),
            "shard": f"{plan.shard[0]}/{plan.shard[1]}" if plan.shard else None,
            "dynamo_names": dynamo_names,
            "uid": uuid.uuid4().hex,
        },
    )


def _with_sources(command: Sequence[str], settings: RunSettings, plan: Plan) -> list[str]:
    """A command with the suites and models, the back end's file and the checkout that it does not name.

    They are those of perfdash.toml or of a variable; another folder or shell has others.
    """
    has_file = any(name.endswith(".py") for name in settings.backend)
    uses_checkout = any(planned.loader == "torchbench" for planned in plan.cases)
    sources = {
        "--suite": settings.suite,
        "--model": settings.model,
        "--backend": settings.backend if has_file else (),
        "--torchbench": (str(settings.torchbench),) if settings.torchbench and uses_checkout else (),
    }
    given = {word.partition("=")[0] for word in command}
    added = {flag: values for flag, values in sources.items() if values and flag not in given}
    return [*command, *(word for flag, values in added.items() for word in (flag, ",".join(values)))]


def kept_address(settings: RunSettings) -> str:
    """The address of the history as run.json keeps it: no password, and no relative path but BESIDE."""
    if has_password(settings.history):
        return MASK
    scheme = "sqlite:///" if settings.history.startswith("sqlite:///") else ""
    if "://" in settings.history and not scheme:
        return settings.history
    path = os.path.abspath(settings.history.removeprefix(scheme))
    return BESIDE if path == os.path.abspath(settings.out / BESIDE) else f"{scheme}{path}"


def command_line(words: Sequence[str] | None = None) -> list[str]:
    """The words of this command, or of one that means the same, without secrets."""
    return ["perfdash", *mask_secrets(list(sys.argv[1:] if words is None else words))]


@contextmanager
def signals_like_ctrl_c(others: Collection[int] = (signal.SIGTERM, signal.SIGHUP)) -> Iterator[None]:
    """Let other signals interrupt as Ctrl-C does, and signals within a second only once.

    A time limit passes on the signal that it got with the whole group, and a terminal that closes sends two.
    Python allows handlers in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    until = -math.inf

    def interrupt(*_: object) -> None:
        nonlocal until
        now_s = time.monotonic()
        if now_s > until:
            until = now_s + _ONE_INTERRUPT_S
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *others)}
    for number, handler in before.items():
        # With nohup SIGHUP stays ignored; a program that uses the API may have Ctrl-C for something else.
        if handler is not signal.SIG_IGN and (
            number != signal.SIGINT or handler is signal.default_int_handler
        ):
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: installed by C code
                signal.signal(number, handler)
