"""The Python API: measure, load, compare, bisect and read the history, from a script or a notebook.

`import perfdash` gives these names and imports nothing heavy; torch never runs in the calling process. Faults
are exceptions of perfdash.errors with the messages of the command line. docs/api.md has examples.
"""

from __future__ import annotations

import html
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfdash.errors import MachineError, UsageError
from perfdash.records import Case, Result, RunInfo

if TYPE_CHECKING:
    import pandas as pd

    from perfdash.bisection.engine import Engine
    from perfdash.bisection.result import BisectionResult
    from perfdash.detect.comparison import Comparison
    from perfdash.runner.run import OpenRun
    from perfdash.runner.session import Watcher

Factory = str | os.PathLike[str] | Callable[..., Any]
Note = Callable[[str], None]
# Settings that choose among the models of suites, which measure() does not do.
_OF_SUITES = frozenset({"suite", "model", "models", "quick", "torchbench", "shard", "costs", "hours"})


@dataclass(frozen=True)
class Run:
    """A run and its results, as its folder has them.

    `interrupted`: the run ended early (Ctrl-C, a kill, a full disk), and `run(resume=...)` finishes it.
    `exit_code`: what the command line ends with where the run is not in the history or every case failed
    because of the machine, else 0.
    """

    folder: Path
    info: RunInfo
    results: list[Result]
    interrupted: bool = False
    exit_code: int = field(default=0, repr=False)

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __getitem__(self, model: str) -> Result:
        """The one result of a model. Raises KeyError for none, and for a model measured in several ways."""
        chosen = [result for result in self.results if result.case.model == model]
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            names = ", ".join(result.case.name for result in chosen)
            raise KeyError(f"{model} was measured in {len(chosen)} ways; choose with find(): {names}")
        names = ", ".join(sorted({result.case.model for result in self.results})) or "none"
        raise KeyError(f"{self.info.id} has no model {model!r}; there are: {names}")

    def find(self, pattern: str = "*", **fields: Any) -> list[Result]:
        """The results whose model matches, and whose case has these values: find("res*", dtype="float32")."""
        for name in fields:
            if name not in Case.__dataclass_fields__:
                raise UsageError(f"a case has no {name!r}; it has: {', '.join(Case.__dataclass_fields__)}")
        return [
            result
            for result in self.results
            if fnmatchcase(result.case.model, pattern)
            and all(getattr(result.case, name) == value for name, value in fields.items())
        ]

    def to_frame(self) -> pd.DataFrame:
        """A row for each result: the fields of its case, status, verdict, and the numbers by their columns.

        `remark`: why a pass counts in no mean (nothing captured, recompile limit, disturbed). `clock`: cpu if
        its latencies are CPU time, wall otherwise. Latencies are in milliseconds, durations in seconds,
        memory in bytes; NaN is not measured.
        """
        import pandas as pd

        from perfdash.history.pass_rates_and_means import remark
        from perfdash.history.results import clock_of, from_result
        from perfdash.metrics import NUMBERS

        rows = []
        for result in self.results:
            row = from_result(result)
            rows.append(
                {
                    **vars(row.case),
                    "status": str(row.status),
                    "verdict": row.verdict,
                    "remark": remark(row),
                    "clock": clock_of(row),
                    **{name: row.values.get(name) for name in NUMBERS},
                }
            )
        names = [*Case.__dataclass_fields__, "status", "verdict", "remark", "clock", *NUMBERS]
        return pd.DataFrame(rows, columns=names)

    def __repr__(self) -> str:
        from perfdash.report.terminal_tables import one_line

        lines = [f"perfdash run {self.info.id} ({self.info.state}), {len(self)} of {self.info.cases} cases"]
        lines += [f"  {one_line(result)}" for result in self.results]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The run as a notebook shows it: a heading and the main columns, escaped."""
        frame = self.to_frame()
        main = [name for name in _SHOWN if name in frame and frame[name].notna().any()]
        table = frame[main].to_html(index=False, escape=True, float_format="{:.4g}".format)
        title = f"perfdash run {self.info.id} ({self.info.state}), {len(self)} of {self.info.cases} cases"
        return f"<p>{html.escape(title)}</p>\n{table}"


_SHOWN = (
    "suite", "model", "batch_size", "dtype", "backend", "status", "speedup", "speedup_low", "speedup_high",
    "verdict", "eager_ms", "backend_ms", "compilation_s", "compression_ratio",
)  # fmt: skip


def run(*, resume: str | os.PathLike[str] | None = None, progress: bool = True, **settings: Any) -> Run:
    """Measure models, or go on with an earlier run.

    `settings` are the options of `perfdash run` with underscores: suite="timm", models=["res*"], quick=True,
    batch_size=[1, 8]. Others come from PERFDASH_* variables, perfdash.toml and the defaults, as on
    the command line; the run is saved below `out` and goes into the history. `progress`: print a line when a
    case begins and ends. Ctrl-C ends the measuring; what was measured is in the Run that is returned.
    """
    from perfdash.report.gates import check_settings
    from perfdash.runner import run as runs
    from perfdash.settings import resolve

    _refuse_in_worker("run")
    flags = _flags(settings)
    if resume is None:
        resolved = resolve(flags)[0]
        check_settings(resolved)
        prepared = runs.new_run(resolved, command=_as_command("run", flags))
        return measure_run(prepared, _watcher(progress), _warn)
    folder, info, resumed = runs.run_to_resume(os.fspath(resume), {"out": None, "db": None, **flags})
    check_settings(resumed)
    words = _as_command("run", {"resume": os.fspath(resume), **flags})
    prepared = runs.resumed_run(folder, info, resumed, set(), _warn, words)
    return measure_run(prepared, _watcher(progress), _warn)


def measure(model: Factory, backend: str | None = None, *, progress: bool = True, **settings: Any) -> Result:
    """Measure one model of your own: "net.py:make", or the function make itself.

    The function takes a batch size and returns (module, inputs), inputs a tuple or a dict. It is called in
    processes of its own. One of a notebook, a prompt or within another function goes there by cloudpickle;
    that run cannot be resumed. The run is an experiment and stays out of the history, unless
    no_history=False. Without `backend` it is inductor, or what the configuration says. Other settings as in
    run(), but those that choose models.
    """
    from perfdash.report.gates import check_settings
    from perfdash.runner import run as runs
    from perfdash.runner.notebook_model import notebook_model
    from perfdash.settings import RunSettings, resolve

    _refuse_in_worker("measure")
    if chosen := sorted(_OF_SUITES & settings.keys()):
        raise UsageError(f"measure() is for one model, and {chosen[0]} chooses among several: use run()")
    target = target_of(model)
    flags = _flags({"no_history": True, **settings})
    if backend is not None or not resolve(flags)[0].configuration:
        flags["backend"] = [backend or "inductor"]
    resolved = resolve(flags)[0]
    # Suites of perfdash.toml and of variables are not meant.
    none = {name: RunSettings.model_fields[name].default for name in _OF_SUITES}
    resolved = resolved.model_copy(update={**none, "model": (target,) if target else ()})
    check_settings(resolved)
    if target is None and resolved.instances:
        raise UsageError(
            f"instances {resolved.instances} start interpreters that cannot get a function of a notebook: "
            "write the function into a file (%%writefile net.py) and give it as 'net.py:make'"
        )
    with ExitStack() as stack:
        own = None
        if target is None:
            assert callable(model)
            own = stack.enter_context(notebook_model(model, model.__name__.strip("<>")))
            target = f"{own.name} of a notebook"  # in the record only: no command measures it
        prepared = runs.new_run(resolved, own, _as_command("run", {"model": target, **flags}))
        if len(prepared.plan.cases) != 1:
            prepared.journal.discard()
            names = ", ".join(planned.case.name for planned in prepared.plan.cases)
            raise UsageError(f"measure() is for one case, and these are several: {names}; use run()")
        measured = measure_run(prepared, _watcher(progress), _warn)
    if measured.interrupted:
        how = prepared.how_to_resume if own else f"To continue: perfdash.run(resume={str(measured.folder)!r})"
        raise KeyboardInterrupt(f"interrupted. {how}")
    return measured.results[0]


def load(run: str | os.PathLike[str] = "last", *, out: str | os.PathLike[str] | None = None) -> Run:
    """Read a run: its folder, its name below `out`, or `last`. Raises UsageError where there is none."""
    from perfdash.runner.last_run import run_folder
    from perfdash.runner.run_journal import is_being_measured, read_saved
    from perfdash.settings import resolve

    settings = resolve({"out": out})[0]
    folder = run_folder(os.fspath(run), settings.out, settings.history, _warn)
    measured_now = is_being_measured(folder)  # before it is read: it may end meanwhile
    info, results, warnings = read_saved(folder)
    for warning in warnings:
        _warn(warning)
    stopped = info.state != "done" and not measured_now  # a killed one is left as "running"
    return Run(folder, info, results, interrupted=stopped)


_COMPARED = ("metric", "old", "new", "ratio", "p", "significant", "regressed", "old_status", "new_status")


@dataclass(frozen=True)
class ComparedSides:
    """Two sides compared over their common cases; `sides` is all that is known of it."""

    sides: Comparison

    @property
    def nothing_to_compare(self) -> str | None:
        """Why no case could be compared; None where some were."""
        return self.sides.nothing_to_compare or None

    def to_frame(self) -> pd.DataFrame:
        """A row for each case and metric: old, new, ratio, p, significant; and the case's statuses.

        A case whose status changed, or that has no number on both sides, has a row with the metric `status`.
        """
        import pandas as pd

        from perfdash.report.comparison_text import to_plain

        rows: list[dict[str, Any]] = []
        for compared, case in zip(self.sides.both, to_plain(self.sides)["cases"], strict=True):
            metrics = dict(case["metrics"])
            if compared.other_status or not metrics:
                metrics["status"] = {"significant": compared.other_status}
            about = {name: case[name] for name in ("regressed", "old_status", "new_status")}
            rows += [
                {**case["case"], "metric": name, **numbers, **about} for name, numbers in metrics.items()
            ]
        names = [*Case.__dataclass_fields__, *_COMPARED, *(name for row in rows for name in row)]
        frame = pd.DataFrame(rows, columns=list(dict.fromkeys(names)))
        return frame.astype({"significant": bool, "regressed": bool})  # also without a row: they are masks

    def __repr__(self) -> str:
        from perfdash.report.comparison_text import comparison

        return comparison(self.sides)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def compare(
    old: str | Run, new: str | Run, *, db: str | None = None, out: str | os.PathLike[str] | None = None
) -> ComparedSides:
    """Compare two runs, nights, builds or windows of them, in the words of `perfdash compare`.

    Raises UsageError for runs that may not be compared (other hosts, threads, methods).
    """
    from perfdash.report.run_lookup import RunLookup
    from perfdash.settings import resolve

    settings = resolve({"db": db, "out": out})[0]
    words = [str(side.folder) if isinstance(side, Run) else side for side in (old, new)]
    return ComparedSides(RunLookup(settings.out, settings.history, _warn).comparison(*words))


# Options of `perfdash bisect` by name. Left out are those that only show something or bisect many alerts.
_BISECT_FLAGS = frozenset({"dynamic", "all_commits", "until_sure", "revert", "no_history"})
_BISECT_LISTS = frozenset({"inductor_config", "env", "prior", "pin_repo", "settings"})  # KEY=VALUE
_BISECT_PATHS = frozenset({"repo", "torchbench", "out"})
_BISECT_VALUES = frozenset({
    "recipe", "wheels", "metric", "suite", "model", "python", "threads", "cores", "processes", "batch_size",
    "device", "dtype", "amp_dtype", "backend", "scenario", "optimizer", "allocator", "weights",
    "compile_mode", "configuration", "timeout", "wait", "jobs", "confidence", "minimum_change", "max_builds",
    "alert", "db",
})  # fmt: skip
_ONLY_SHOWN = {"all_alerts": False, "dry_run": False, "as_json": False, "status": None}


def bisect(
    good: str | None = None,
    bad: str | None = None,
    *,
    command: Sequence[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    confirm: bool = True,
    progress: bool = True,
    **options: Any,
) -> BisectionResult:
    """Find the change between two revisions that made a model slower, bigger or wrong.

    `options` are those of `perfdash bisect` with underscores: repo=".", model="net.py:make", metric="eager";
    env, prior, pin_repo, inductor_config and settings (--set) are tables. `command` is your own, run in each
    build. Ctrl-C and max_builds end it early; the result then says "not finished", and
    bisect(resume=result.name) goes on. Raises UsageError and MachineError.
    """
    from perfdash.bisection.completion import Typist, completed
    from perfdash.bisection.setup import BisectionPlan, resumed, started
    from perfdash.report import reproduce
    from perfdash.report.alert_text import model_of, what
    from perfdash.report.bisection_files import work

    _refuse_in_worker("bisect")
    note: Note = _warn if progress else lambda text: None
    words = list(command) if command else None
    flags = _bisect_flags({**options, "good": good, "bad": bad, "confirm": confirm})
    flags["resume"] = None if resume is None else os.fspath(resume)
    with _signals_kept(), ExitStack() as stack:
        if flags["resume"] is not None:
            engine: Engine | BisectionPlan = stack.enter_context(resumed(flags["resume"], words, flags, note))
        else:
            typed = _as_command("bisect", flags, words)
            typist = Typist(
                words=typed,
                options=reproduce,
                describe=lambda evidence: f"{what(evidence.alert)} of {model_of(evidence.case)}",
                notify=note,
            )
            flags, chosen = completed(flags, words, typist)
            engine = stack.enter_context(started(chosen, flags, note, typed))
        assert not isinstance(engine, BisectionPlan)  # there is no dry run here
        return work(engine, note)[1]


class History:
    """The history of runs, as frames. `address`: a file or a database URL; by default history.db of `out`."""

    def __init__(self, address: str | None = None, *, out: str | os.PathLike[str] | None = None) -> None:
        from perfdash.settings import resolve, shown

        settings = resolve({"db": address, "out": out})[0]
        self.address = settings.history
        self._shown = shown(settings)["db"] or settings.history  # without a password

    def __repr__(self) -> str:
        return f"perfdash history {self._shown}"

    def runs(self) -> pd.DataFrame:
        """A row for each run, oldest first: name, started, state, host_class, torch, commit, results."""
        import pandas as pd

        from perfdash.history.queries import RUN_COLUMNS, list_runs
        from perfdash.history.store import open_store

        with open_store(self.address, create=False) as store, store.read() as connection:
            rows = [run.to_plain() for run in list_runs(connection)]
        return pd.DataFrame(rows, columns=list(RUN_COLUMNS))

    def series(self, model: str, metric: str = "speedup", *, run: str = "last") -> pd.DataFrame:
        """A metric of a model over the nights of the testbed of `run`: a row for each night and case.

        `remark`: why a pass counts in no mean (nothing captured, recompile limit, disturbed). `method`:
        values of different methods must not be compared. `excluded`: why a person excluded the run.

        Raises UsageError for an unknown metric, and for a model that was never measured there.
        """
        import pandas as pd

        from perfdash.history.queries import model_series
        from perfdash.history.run_selection import find_run
        from perfdash.history.store import open_store

        with open_store(self.address, create=False) as store, store.read() as connection:
            cases = model_series(connection, find_run(connection, run), model, [metric])
        return pd.DataFrame(
            [
                {**vars(case), "run": point.run, "started": point.started, "status": point.status,
                 "remark": point.remark, metric: point.value, "torch": point.torch,
                 "torch_git_version": point.torch_git_version, "method": point.method,
                 "excluded": point.excluded}
                for case, (points,) in cases
                for point in points
            ]
        )  # fmt: skip

    def regressions(self, *, everything: bool = False, worse: bool = False) -> pd.DataFrame:
        """The open alerts, a row for each; nights that are not judged yet are judged first.

        everything: also those that were fixed or dismissed. worse: only what got worse.
        """
        import pandas as pd

        from perfdash.detect.nightly_judging import judge_if_allowed
        from perfdash.history.store import open_store
        from perfdash.report.alert_text import ALERT_COLUMNS, open_alerts, to_plain
        from perfdash.settings import judging_rules

        with open_store(self.address, create=False) as store:
            judge_if_allowed(store, judging_rules(), _warn)
            alerts = open_alerts(store, everything=everything, worse=worse)
        frame = pd.json_normalize([to_plain(alert) for alert in alerts])
        return frame.reindex(columns=list(dict.fromkeys([*ALERT_COLUMNS, *frame.columns])))


def measure_run(prepared: OpenRun, watcher: Watcher, note: Note) -> Run:
    """Measure a prepared run to its end and record it in the history; `note` gets lines for the user."""
    from perfdash.runner.run import measure as measure_all
    from perfdash.runner.run import signals_like_ctrl_c
    from perfdash.runner.run_recording import lost_to_the_machine, record

    with signals_like_ctrl_c():
        measure_all(prepared, watcher, note)
        info, results, folder = prepared.info, prepared.results, prepared.journal.folder
        exit_code = record(prepared.settings, info, results, folder, note) if results else 0
    if lost := lost_to_the_machine(results):
        note(f"Nothing was measured: {lost} case{'' if lost == 1 else 's'} failed because of the machine")
        exit_code = MachineError.exit_code
    return Run(folder, info, results, prepared.interrupted, exit_code)


def target_of(model: Factory) -> str | None:
    """`file.py:function` of a function at the top level of a file; None for any other function.

    None also where the module has another object under that name, or only in this process: it was defined
    again, is decorated elsewhere, or below `if __name__ == "__main__":`. Raises UsageError for what is no
    function, and for one that this process put into another module.
    """
    from perfdash.runner.notebook_model import is_in_file

    if not callable(model):
        return os.fspath(model)
    if not (inspect.isfunction(model) or inspect.ismethod(model)):
        name = getattr(model, "__qualname__", type(model).__qualname__)
        raise UsageError(
            f"{name} is no function. Give a function that takes a batch size and returns (module, inputs), "
            "e.g. lambda batch_size: (net, (torch.randn(batch_size, 64),))"
        )
    name = model.__qualname__
    original = inspect.unwrap(model)
    file = inspect.getsourcefile(original)
    module = sys.modules.get(model.__module__)
    names = vars(module) if module else getattr(original, "__globals__", {})  # it was loaded by its path
    if names.get(name) is not model or not file or not Path(file).is_file():
        return None
    if not is_in_file(model, name, file):
        if module and model.__module__ != "__main__":  # cloudpickle would send a reference to the file's
            raise UsageError(
                f"{name} of the module {model.__module__} was replaced in this process, and the measuring "
                f"processes import the module anew. Give the new function another name, or change {file}"
            )
        return None
    return f"{Path(file).resolve()}:{name}"


def _refuse_in_worker(function: str) -> None:
    """Raises UsageError where a measuring process executes the script that holds the call."""
    from perfdash.runner.orphans import MARK

    if MARK in os.environ:
        raise UsageError(
            f"perfdash.{function}() was called while this file is loaded to measure a model of it. Put the "
            "call below `if __name__ == '__main__':`, or the model into a file of its own"
        )


def _bisect_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Every flag of `perfdash bisect` as the command line has it. Raises UsageError for an unknown name."""
    from perfdash.suggestions import did_you_mean

    flags: dict[str, Any] = {
        **dict.fromkeys(["good", "bad", *sorted(_BISECT_VALUES | _BISECT_LISTS | _BISECT_PATHS)]),
        **dict.fromkeys(sorted(_BISECT_FLAGS), False),
        **_ONLY_SHOWN,
        "confirm": True,
    }
    names = [name for name in flags if name not in _ONLY_SHOWN]
    for name, value in given.items():
        if name not in names:
            raise UsageError(
                f"bisect() has no option {name!r}{did_you_mean(name, names)}; there are: {', '.join(names)}"
            )
        if value is None:
            continue
        if name == "model" and callable(value):
            value = target_of(value)
            if value is None:
                raise UsageError(
                    "bisect() measures in many builds, perhaps for days: write the function into a file of "
                    "its own, e.g. net.py with %%writefile, and give model='net.py:make'"
                )
        elif name in _BISECT_LISTS and isinstance(value, Mapping):
            value = [f"{key}={_plain_value(item)}" for key, item in value.items()]
        flags[name] = Path(value) if name in _BISECT_PATHS else value
    return flags


def _plain_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _as_command(name: str, flags: Mapping[str, Any], command: Sequence[str] | None = None) -> list[str]:
    """The words of the command line that mean the same, for messages and records."""
    words = [name]
    for flag, value in flags.items():
        option = "--set" if flag == "settings" else f"--{flag.replace('_', '-')}"
        if flag == "confirm":
            words += [] if value else ["--no-confirm"]
        elif value is True:
            words.append(option)
        elif isinstance(value, Mapping):
            words += [word for key in value for word in (option, f"{key}={_plain_value(value[key])}")]
        elif value is not None and value is not False:
            items = value if isinstance(value, (list, tuple)) else [value]
            words += [word for item in items for word in (option, str(item))]
    return [*words, "--", *command] if command else words


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Set the handlers of signals back at the end: a bisection takes them for itself."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if handler is not None:  # None: installed by C code
                    signal.signal(number, handler)


def _flags(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as flags give them: lists for what repeats. Raises UsageError for an unknown name."""
    from perfdash.settings import RunSettings
    from perfdash.suggestions import did_you_mean

    for name in settings:
        if name not in RunSettings.model_fields:
            raise UsageError(
                f"there is no setting {name!r}{did_you_mean(name, list(RunSettings.model_fields))}; "
                "`perfdash config` lists them"
            )
    return {name: os.fspath(value) if isinstance(value, Path) else value for name, value in settings.items()}


def _watcher(progress: bool) -> Watcher:
    from perfdash.report.progress import Plain, Silent

    return Plain() if progress else Silent()


def _warn(text: str) -> None:
    print(text, file=sys.stderr)
