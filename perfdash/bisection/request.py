"""What a user asks of `perfdash bisect`, by flags or an alert, checked."""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from perfdash.bisection.alert_range import AlertRange, alert_range
from perfdash.bisection.recipes import Recipe, load_recipes
from perfdash.bisection.sources import BuildContext
from perfdash.bisection.sources.git_repository import without_credentials
from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.causes import gather_in_causes
from perfdash.errors import UsageError
from perfdash.history import alert_store, generated_code
from perfdash.history.store import open_store
from perfdash.metrics import METRICS
from perfdash.records import Case
from perfdash.redaction import mask_secrets
from perfdash.runner.cores import on_one_socket, with_slots
from perfdash.runner.remeasurement import variables_of
from perfdash.settings import RunSettings, resolve
from perfdash.suites.case_selection import Planned
from perfdash.suites.configuration import chosen
from perfdash.suites.torchbench_checkout import suite_named
from perfdash.worker import registry

HIDDEN = "***"
# Flags of `perfdash bisect` with another meaning than in `perfdash run`, or set here.
_OWN_FLAGS = {"jobs", "model"}
# With --alert: what a case is measured by and no flag of `perfdash bisect` says, but perfdash.toml may.
_OF_CASE = ("configuration", "instances", "model", "models", "suite")
OF_NIGHT = "of_night"
OF_SHELL = "of_shell"  # with --alert: the night's run, and what it recorded of its host
OF_HOST = "of_host"  # with --alert: the kind of its host
WENT_BACK = "went_back"  # with --alert: its later night measured the older revision
NOTES = "notes"  # with --alert: notes on its range
MODEL_FILES = "model_files"  # with --alert: the digests that files named by a relative path must have
_BOUNDS = {
    "confidence": (0.6, 0.9999),
    "minimum_change": (0, 1000),
    "max_builds": (2, 10**6),
    "jobs": (1, 999),
}


@dataclass(frozen=True)
class BisectionRequest:
    """What a user asks of `perfdash bisect`, as the journal keeps it.

    repo, pin_repos: absolute paths. priors: weights by patterns of touched files; other files have 1.
    settings: keys of the recipe that are set anew. went_back: the later night of the alert measured the older
    revision.
    """

    good: str
    bad: str
    recipe: str
    repo: str | None = None
    wheels: str | None = None
    first_parent: bool = True
    pin_repos: dict[str, str] = field(default_factory=dict)
    priors: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    jobs: int = 1
    confidence: float = 0.9
    minimum_change: float = 0.0
    confirm: bool = True
    revert: bool = False
    until_sure: bool = False
    went_back: bool = False

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any], command: Sequence[str] | None) -> BisectionRequest:
        """Read the command line. Raises UsageError."""
        for name in ("good", "bad"):
            if not flags[name]:
                raise UsageError(f"--{name} is missing: between which two revisions? (good is the older one)")
        for name, (low, high) in _BOUNDS.items():
            if flags[name] is not None and not low <= flags[name] <= high:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} {flags[name]}: give a number from {low} to {high}")
        repo = flags["repo"]
        priors = pairs(flags["prior"], "--prior")
        return cls(
            good=flags["good"],
            bad=flags["bad"],
            recipe=absolute_recipe(flags["recipe"] or ("command" if command else "git")),
            repo=os.path.abspath(repo.expanduser()) if repo else None,
            wheels=absolute_wheels(flags["wheels"]),
            first_parent=not flags["all_commits"],
            pin_repos=pin_clones(flags),
            priors={pattern: _weight(pattern, text) for pattern, text in priors.items()},
            settings=recipe_settings(flags["settings"]),
            jobs=flags["jobs"] or 1,
            confidence=flags["confidence"] or 0.9,
            minimum_change=flags["minimum_change"] or 0.0,
            confirm=flags["confirm"],
            revert=flags["revert"],
            until_sure=flags["until_sure"],
            went_back=bool(flags.get(WENT_BACK)),
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BisectionRequest:
        """The inverse of to_json. Raises UsageError for one of a newer perfdash."""
        try:
            return cls(**data)
        except TypeError as error:
            raise UsageError(f"it was started by another version of perfdash: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Plain values for the journal."""
        return asdict(self)

    def without_secrets(self) -> BisectionRequest:
        """A copy that may be written down. Secrets are HIDDEN, and given again when it is resumed."""
        settings = {}
        for key, value in self.settings.items():
            texts = [f"{name}={item}" for name, item in value.items()] if isinstance(value, dict) else []
            texts.append(f"{key}={value}")
            settings[key] = value if mask_secrets(texts) == texts else HIDDEN
        wheels = without_credentials(self.wheels) if self.wheels else self.wheels
        return replace(self, wheels=wheels, settings=settings)

    def recipes(self) -> tuple[Recipe, ...]:
        """The rungs of the ladder, coarse first, each with its --set. Raises UsageError."""
        rungs = load_recipes(self.recipe)
        chosen = []
        for recipe in rungs:
            settings = {
                key: value
                for key, value in self.settings.items()
                if len(rungs) == 1 or key.startswith("versions.") == (recipe.kind == "versions")
            }
            chosen.append(recipe.with_settings(settings) if settings else recipe)
        return tuple(chosen)

    def context(self, python: str, cores: Callable[[], tuple[int, ...]]) -> BuildContext:
        """Where revisions come from, and the interpreter below their builds. Raises UsageError.

        cores: gives those that a build may use when it begins.
        """
        path = python if os.sep in python else shutil.which(python)
        if not path or not os.access(path, os.X_OK):
            raise UsageError(f"--python {python}: there is no such interpreter")
        return BuildContext(
            python=Path(os.path.abspath(path)),
            repo=Path(self.repo) if self.repo else None,
            links=self.wheels,
            first_parent=self.first_parent,
            cores=cores,
            builders=self.jobs,
        )


def pin_clones(flags: Mapping[str, Any]) -> dict[str, str]:
    """The clones of pinned dependencies by name (--pin-repo). Raises UsageError."""
    return {name: os.path.abspath(path) for name, path in pairs(flags["pin_repo"], "--pin-repo").items()}


def recipe_settings(given: Sequence[str] | None) -> dict[str, Any]:
    """The values of --set by key. Raises UsageError."""
    return {key: _literal(text) for key, text in pairs(given, "--set").items()}


def run_settings(flags: Mapping[str, Any], metric: str | None) -> RunSettings:
    """The settings of a measurement, as in `perfdash run`. Raises UsageError.

    flags[OF_NIGHT]: names of the options by which an alert's case was measured. Today's perfdash.toml and
    variables do not change them, also where they are empty.
    """
    given = {name: flags.get(name) for name in RunSettings.model_fields if name not in _OWN_FLAGS}
    if flags["suite"] and flags["model"]:
        given["models"] = [glob.escape(flags["model"]).replace(",", "?")]  # no wildcards
    elif flags["model"]:
        given["model"] = [flags["model"]]
    of_night = flags.get(OF_NIGHT) or ()
    for name in of_night:
        given[name] = given.get(name) or RunSettings.model_fields[name].default
    settings = resolve(given, given=of_night)[0]
    configured = any("backend" in each.values for each in chosen(settings.configuration))
    is_free = not flags["backend"] and not configured
    if metric == "eager" and is_free and _runs_eager_alone(_scenario(settings)):
        settings = settings.model_copy(update={"backend": ("eager",)})  # nothing has to be compiled
    for configuration in chosen(settings.configuration):
        applied = configuration.applied(settings)
        settings = with_slots(settings, applied.threads, applied.bind_memory)
    alone = {"jobs": 1, "executor": "local", "scheduler": None, "shard": None, "costs": None}
    return on_one_socket(settings.model_copy(update=alone))


def _scenario(settings: RunSettings) -> str:
    """The scenario of the case that is bisected, by its configuration, option or suite. Raises UsageError."""
    configured = [configuration.values.get("scenario") for configuration in chosen(settings.configuration)]
    suites = [suite_named(name, settings.torchbench).scenario for name in settings.suite]
    return next(filter(None, [*configured, settings.scenario, *suites]), "inference")


def _runs_eager_alone(scenario: str) -> bool:
    """Whether eager can be measured without a back end in a scenario."""
    return scenario in registry.backend_facts("eager").SCENARIOS


def planned_case(settings: RunSettings) -> Planned:
    """The case that is measured. Raises UsageError if there is none, or several."""
    from perfdash.runner.plan import make_plan

    if not settings.model and not settings.models:
        raise UsageError(
            "what is measured? give --suite S --model M, --model file.py:function, or -- a command"
        )
    cases = make_plan(settings, uncut=True)[0].cases
    if len(cases) != 1:
        names = ", ".join(planned.case.name for planned in cases[:4])
        raise UsageError(f"one case at a time is bisected, and these are {len(cases)}: {names} ...")
    if cases[0].skip_reason:
        raise UsageError(f"{cases[0].case.model} is not measured: {cases[0].skip_reason}")
    return cases[0]


def refuse_other_files(planned: Planned, flags: Mapping[str, Any]) -> None:
    """Raise UsageError if the model's files are not those of the night, where flags[MODEL_FILES] has them.

    A file that is gone is no other file: a model may write a module and import it.
    """
    from perfdash.runner.plan import edited_files

    file, _, function = planned.target.rpartition(":")
    recorded = flags.get(MODEL_FILES) or {}
    there = {name: digest for name, digest in recorded.items() if (Path(file).parent / name).exists()}
    if edited := edited_files(planned, there):
        option = "--suite" if flags["suite"] else "--model"
        own = flags["suite"] or f"{file}:{function}"
        raise UsageError(
            f"--alert {flags['alert']}: {Path(file).parent / edited[0]} is not the file that the night "
            "measured: its path is relative, and this folder has another file of that name, or it was edited "
            f"since. Change to the folder that the night began in, or give {option} {own} to measure this one"
        )


def in_shell_of_night(
    own: Collection[str], flags: Mapping[str, Any], shell: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The variables of the shell of an alert's night, and a note of those that differ here.

    own: names that the case, the command's --env or the recipe sets. shell: host.relevant_variables of this
    process. Raises UsageError for a variable that is set here and was not set then.
    """
    run, facts = flags.get(OF_SHELL) or ("", {})
    return variables_of(run, facts, own, shell)


def pairs(given: Sequence[str] | None, flag: str) -> dict[str, str]:
    """Read ["KEY=VALUE", ...]. Raises UsageError."""
    table = {}
    for item in given or ():
        key, equals, text = item.partition("=")
        if not (key and equals):
            raise UsageError(f"{flag} {item!r} is not KEY=VALUE")
        table[key] = text
    return table


def refuse_script_of_the_checkout(command: Sequence[str], repo: str | None) -> None:
    """Raise UsageError for a script given by its whole path in the user's checkout.

    Python imports from the script's folder first: the checkout would be measured for every revision.
    """
    if repo is None:
        return
    tops = {os.path.realpath(repo), os.path.realpath(os.path.join(repo, "src"))}
    for word in command:
        if word.endswith(".py") and os.path.isabs(word) and os.path.dirname(os.path.realpath(word)) in tops:
            raise UsageError(
                f"{word} lies in the checkout itself, so Python would import what lies beside it there, and "
                f"not what was built: give it as {os.path.basename(word)} (then each revision's own is run), "
                "or a copy of it elsewhere"
            )


def _weight(pattern: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 < weight < 1e9:
        raise UsageError(
            f"--prior {pattern}={text}: the weight is a number above 0; files without one have 1"
        )
    return weight


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def absolute_recipe(text: str) -> str:
    """The recipe with absolute paths, so that any folder can resume it."""
    words = []
    for word in text.split(","):
        file, suffix, argument = word.strip().partition(".toml")
        words.append(
            os.path.abspath(os.path.expanduser(file)) + suffix + argument if suffix else word.strip()
        )
    return ",".join(words)


def absolute_wheels(text: str | None) -> str | None:
    """The absolute path of a folder; an address is unchanged."""
    if not text or "://" in text:
        return text
    return os.path.abspath(os.path.expanduser(text))


class CaseOptions(Protocol):
    """Options that measure a recorded case again. The module perfdash.report.reproduce has them."""

    OWN: str

    def source_of(self, case: Case, ran: Sequence[str]) -> list[str]:
        """The options that select the case's suite or file."""

    def backend_of(self, case: Case, ran: Sequence[str]) -> str:
        """The back end's name, or the user's file."""

    def with_options(self, setting: Mapping[str, Any], case: Case) -> dict[str, Any]:
        """The setting of a run with what the case's configuration sets."""

    def of_run(self, ran: Sequence[str]) -> dict[str, Any]:
        """The limits of a run's command line, and its interpreter."""

    def as_pairs(self, setting: Mapping[str, Any], name: str) -> list[str]:
        """A table of a setting as KEY=VALUE."""


def complete_from_alert(
    flags: dict[str, Any],
    command: Sequence[str] | None,
    options: CaseOptions,
    describe: Callable[[AlertEvidence], str],
) -> dict[str, Any]:
    """Fill in the flags that the user did not give from the alert. Raises UsageError.

    describe: names the change of an alert, for messages.
    """
    number = flags["alert"]
    if flags["recipe"] is None:
        raise UsageError(
            f"--alert {number}: say how a version becomes a build, by --recipe, e.g. wheels:torch"
        )
    history = resolve({"db": flags["db"], "out": flags["out"]})[0].history
    with open_store(history, create=False) as store, store.read() as connection:
        (evidence,) = gather_in_causes(connection, [alert_store.find(connection, number)])
        run = evidence.seen or evidence.bad
        ran = run.command if run else ()
        files = _model_files(connection, evidence) if evidence.case else {}
    filled: dict[str, Any] = {OF_SHELL: (run.name, run.facts) if run else None}
    filled[OF_HOST] = run.host_class if run else None
    if not command:
        if evidence.case is None:
            raise UsageError(f"--alert {number} is of the whole host, not of a model")
        setting = run.setting if run else {}
        of_case = _case(evidence.case, setting, ran, options)
        filled |= {
            OF_NIGHT: (*of_case, *_OF_CASE),
            **of_case,
            **options.of_run(ran),
            **_source(evidence.case, ran, flags, number, options, files),
        }
        filled["metric"] = flags["metric"] or _metric(evidence, number, describe)
        if filled["metric"] == "eager" and _runs_eager_alone(evidence.case.scenario):
            del filled["backend"]
        flags = {**flags, "env": _env(filled["env"], flags["env"], number)}
    revisions = _range(evidence, flags)
    if revisions:
        filled |= {"good": revisions.good, "bad": revisions.bad, NOTES: revisions.notes(number)}
        filled[WENT_BACK] = revisions.went_back
    # Also what the command has no flag of, as bind_memory.
    return {**filled, **{name: value or filled.get(name, value) for name, value in flags.items()}}


def _range(evidence: AlertEvidence, flags: Mapping[str, Any]) -> AlertRange | None:
    """The revisions of an alert; None if they are unknown, and both ends are typed. Raises UsageError."""
    try:
        return alert_range(evidence, flags["recipe"], flags.get("repo"))
    except UsageError:
        if flags["good"] and flags["bad"]:
            return None
        raise


def _env(then: Sequence[str], given: Sequence[str] | None, number: int) -> list[str]:
    """The variables of that night and those given now. Raises UsageError for a secret that was not kept."""
    env = {**pairs(then, "--env"), **pairs(given, "--env")}
    if hidden := [key for key, value in env.items() if value == HIDDEN]:
        raise UsageError(
            f"--alert {number}: the value of {hidden[0]} was not kept; give --env {hidden[0]}=..."
        )
    return [f"{key}={value}" for key, value in env.items()]


def _metric(evidence: AlertEvidence, number: int, describe: Callable[[AlertEvidence], str]) -> str:
    alert = evidence.alert
    if alert.kind == "status":
        return "status"
    metric = METRICS.get(alert.metric or "")
    if alert.kind in ("metric", "count", "drift") and metric and metric.name:
        return metric.name
    raise UsageError(
        f"--alert {number}: {describe(evidence)} is nothing that can be bisected; give a "
        "command of yours, after --"
    )


def _model_files(connection: sa.Connection, evidence: AlertEvidence) -> Mapping[str, str]:
    """The digests of the user's own model files at an alert, by path; empty where none are recorded."""
    for run in filter(None, (evidence.seen, evidence.bad, evidence.good)):
        for structure, _ in generated_code.load(connection, run.id, evidence.alert.case_id).values():
            if files := structure.get("model_files"):
                return dict(files)
    return {}


def _source(
    case: Case,
    ran: Sequence[str],
    flags: Mapping[str, Any],
    number: int,
    options: CaseOptions,
    model_files: Mapping[str, str],
) -> dict[str, Any]:
    """The flags of the measured suite and model, or of the user's file. Raises UsageError if it is gone.

    model_files: digests, for a file that the night names by a relative path.
    """
    if _is_file(flags["model"]):
        return {}
    if flags["suite"] or flags["model"]:
        return {"suite": case.suite, "model": case.model}
    words = options.source_of(case, ran)
    if case.suite == options.OWN:
        target = words[1] if words[0] == "--model" and len(words) == 2 else ""
        if not Path(target.rpartition(":")[0]).is_file():
            raise UsageError(
                f"--alert {number}: {case.model} is a model of a file"
                + (f", {target}, which is not there now" if target else "")
                + f": {_or_change_folder(target)}give --model file.py:function"
            )
        return {"model": target, MODEL_FILES: {} if os.path.isabs(target) else model_files}
    files = [value for option, value in pairwise(words) if option == "--suite"]
    files = [file for file in files if file.endswith(".toml")]
    if gone := [file for file in files if not Path(file).is_file()]:
        raise UsageError(
            f"--alert {number}: suite {case.suite} came from {', '.join(files)}, which is not there now: "
            f"{_or_change_folder(gone[0])}give its file by --suite"
        )
    source: dict[str, Any] = {"suite": ",".join(files) or case.suite, "model": case.model}
    if not all(map(os.path.isabs, files)):
        source[MODEL_FILES] = model_files
    if "--torchbench" in words:
        source["torchbench"] = Path(words[words.index("--torchbench") + 1])
    return source


def _or_change_folder(file: str) -> str:
    """The start of an advice where a file of the night's command line is missing."""
    return "change to the folder that the night began in, or " if file and not os.path.isabs(file) else ""


def _is_file(model: str | None) -> bool:
    return model is not None and ".py:" in model


def _case(case: Case, setting: Mapping[str, Any], ran: Sequence[str], options: CaseOptions) -> dict[str, Any]:
    """The flags of how a case was measured. A setting that is not recorded had its default."""
    flags = {
        "batch_size": case.batch_size,
        "device": case.device,
        "dtype": case.dtype,
        "amp_dtype": case.amp_dtype,
        "backend": options.backend_of(case, ran),
        "scenario": case.scenario,
        "dynamic": case.dynamic,
        "threads": case.threads,
    }
    setting = options.with_options(setting, case)
    names = ("allocator", "bind_memory", "compile_mode", "optimizer", "sizes", "sizes_of", "tf32", "weights")
    for name in names:
        flags[name] = setting.get(name, RunSettings.model_fields[name].default)
    for name in ("env", "inductor_config"):
        flags[name] = options.as_pairs(setting, name)
    return flags
