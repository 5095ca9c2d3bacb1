"""Complete what a user typed: the repository, the recipe, the wheels, and what is measured.

All that is missing is named in one message, with a command to copy.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import perfdash
from perfdash.bisection.alert_range import recipe_of_alert
from perfdash.bisection.metrics import METRICS, OF_COMMAND, metric_named
from perfdash.bisection.open_alerts import AlertGroup, alert_groups, lying_between
from perfdash.bisection.recipe_choice import NAME, TORCH, End, choose_recipe
from perfdash.bisection.recipes import Recipe, load_recipes, recipe_names
from perfdash.bisection.request import CaseOptions, complete_from_alert
from perfdash.bisection.sources.git_repository import (
    GitFailed,
    enclosing,
    end_commit,
    find,
    known_commit,
    line,
    tags_and_branches,
    without_credentials,
)
from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.causes import gather_in_causes
from perfdash.errors import UsageError
from perfdash.history import alert_store
from perfdash.history.store import NoHistory, open_store
from perfdash.redaction import mask_secrets
from perfdash.runner import host
from perfdash.settings import BisectSettings, bisect_settings, resolve
from perfdash.suggestions import did_you_mean, nearest
from perfdash.suites.suite_file import CHECKOUT_SUITE, load_suite, suite_names

# Of the command that a message proposes: a small model that every installation has.
_A_MODEL = ("--suite", "timm", "--model", "lcnet_050")
_EXAMPLE_DAYS = 14


@dataclass(frozen=True)
class Typist:
    """How to speak with the user. words: the command line. describe: names the change of an alert.

    ask: lets the user choose one of some lines, by its place; None without a terminal.
    """

    words: Sequence[str]
    options: CaseOptions
    describe: Callable[[AlertEvidence], str]
    notify: Callable[[str], None]
    ask: Callable[[str, Sequence[str]], int] | None = None


Flags = dict[str, Any]
Command = Sequence[str] | None


def completed(flags: Mapping[str, Any], command: Command, typist: Typist) -> tuple[Flags, Command]:
    """The flags and the command with what the user did not type. Raises UsageError.

    Each comes from the first that has it: the command line, the alert, PERFDASH_BISECT_*, [bisect] of
    perfdash.toml, the folder, the recipe.
    """
    defaults = bisect_settings()
    if flags["alert"] is not None:
        only_wheels = bool(flags["wheels"] and not flags["repo"])
        return _of_alert(with_places(flags, defaults), command, typist, only_wheels), command
    draft = _Draft(flags, command, defaults)
    draft.fill(typist)
    if draft.faults:
        raise UsageError(draft.message(typist.words))
    if draft.group is not None:
        draft.flags["alert"] = draft.group.number
        chosen = draft.group.chosen
        typist.notify(f"Measured: alert {draft.group.number}, {typist.describe(chosen)}")
        return _of_alert(draft.flags, None, typist), None
    return draft.flags, draft.command


def with_places(flags: Mapping[str, Any], defaults: BisectSettings) -> Flags:
    """The flags with recipe, repository and wheels of PERFDASH_BISECT_* and perfdash.toml."""
    filled = dict(flags)
    for name in ("recipe", "repo", "wheels"):
        filled[name] = flags[name] or getattr(defaults, name)
    return filled


def _of_alert(flags: Flags, command: Command, typist: Typist, only_wheels: bool = False) -> Flags:
    """The flags with those of their alert; the recipe by what changed. Raises UsageError."""
    repo = _repository(flags["repo"])
    if flags["recipe"] is None and flags["good"] and flags["bad"]:
        flags["recipe"] = _chosen(flags, repo, of_command=bool(command), only_wheels=only_wheels)
    if flags["recipe"] is None:
        history = resolve({"db": flags["db"], "out": flags["out"]})[0].history
        with open_store(history, create=False) as store, store.read() as connection:
            (evidence,) = gather_in_causes(connection, [alert_store.find(connection, flags["alert"])])
        recipe = recipe_of_alert(evidence, None if only_wheels else repo, bool(flags["wheels"]))
        flags["recipe"] = "command" if command and recipe == "git" else recipe
        typist.notify(f"Recipe: {flags['recipe']}, by what changed at alert {flags['alert']}")
    rungs = load_recipes(flags["recipe"])
    of_recipe = _wheels_of(rungs)
    flags["wheels"] = flags["wheels"] or of_recipe
    if rungs[-1].kind == "commits":
        flags["repo"] = flags["repo"] or repo
    filled = complete_from_alert(flags, command, typist.options, typist.describe)
    if (python := filled.get("python")) and not flags["python"]:
        if shutil.which(python):
            origin = f"that of alert {flags['alert']}"
            if os.sep in python and not os.path.isabs(python):
                filled["python"] = python = os.path.abspath(python)
                origin = (
                    f"by the relative path of alert {flags['alert']}: another one if its night began in "
                    "another folder"
                )
            typist.notify(f"Interpreter: {python}, {origin} (--python takes another)")
        else:
            typist.notify(
                f"{python}, the interpreter of alert {flags['alert']}, is not there: this one is taken"
            )
            filled["python"] = None
    if filled["wheels"] == of_recipe and _has_no_builds_for(filled["device"], of_recipe):
        raise UsageError(_without_wheels(of_recipe))
    return filled


def _repository(given: Path | None) -> Path | None:
    """The repository that is meant: --repo, else the one around this folder. Raises UsageError.

    A checkout of perfdash itself, from which it runs, is meant only by --repo.
    """
    if given:
        return find(given)
    repo = enclosing(Path.cwd())
    is_own = (
        repo is not None
        and (repo / "perfdash" / "__init__.py").resolve() == Path(perfdash.__file__).resolve()
    )
    return None if is_own else repo


def _wheels_of(rungs: Sequence[Recipe]) -> str | None:
    return next((rung.versions.wheels for rung in rungs if rung.versions and rung.versions.wheels), None)


def _has_no_builds_for(device: str | None, index: str | None) -> bool:
    """Whether the device is a GPU and the index, by PyTorch's names of them, for the CPU only."""
    return device == "cuda" and index is not None and index.rstrip("/").endswith("/cpu")


def _without_wheels(of_recipe: str | None) -> str:
    why = "; the recipe's own index has builds for the CPU only" if of_recipe else ""
    return (
        "--wheels is missing: say where the wheels are, a folder or the address of an index "
        f"(or wheels in [bisect] of perfdash.toml, or PERFDASH_BISECT_WHEELS){why}"
    )


def _chosen(flags: Mapping[str, Any], repo: Path | None, *, of_command: bool, only_wheels: bool) -> str:
    """The recipe of the two ends as typed. Raises UsageError if it cannot be told.

    only_wheels: --wheels was typed without --repo, so this folder's repository is not meant.
    """
    good, bad = (
        End(text, repo is not None and known_commit(repo, text) is not None)
        for text in (flags["good"], flags["bad"])
    )
    return choose_recipe(
        good,
        bad,
        command=of_command,
        repository=repo is not None and not only_wheels,
        wheels=bool(flags["wheels"]),
        package=_package_of(repo) or TORCH,
    )


class _Draft:
    """The flags as far as they are complete. faults: what is missing or wrong.

    additions, corrections: options to propose, and other values of those that were given.
    """

    def __init__(self, flags: Mapping[str, Any], command: Command, defaults: BisectSettings) -> None:
        self.flags = with_places(flags, defaults)
        self.command = command
        self.defaults = defaults
        self.group: AlertGroup | None = None
        self.faults: list[str] = []
        self.additions: list[str] = []
        self.corrections: dict[str, str] = {}
        self._repo: Path | None = None
        self._only_wheels = bool(flags["wheels"] and not flags["repo"])
        self._is_chosen = False  # the recipe, by the ends
        self._has_range = bool(flags["good"] and flags["bad"])

    def fill(self, typist: Typist) -> None:
        """Fill in all that can be known; what cannot goes into faults."""
        measured = bool(self.command or self.flags["suite"] or self.flags["model"])
        names = OF_COMMAND if self.command else METRICS
        if measured and not self.flags["metric"] and self.defaults.metric in names:
            self.flags["metric"] = self.defaults.metric
        try:
            self._repo = _repository(self.flags["repo"])
        except UsageError as error:
            self.faults.append(str(error))
        self._ends()
        wanted = self._recipe()
        self._metric()
        if measured:
            self._model()
        elif not self._of_history(typist, wanted) and not self._of_settings():
            self._ask_what()
        if self._is_chosen and not self.faults:
            typist.notify(f"Recipe: {self.flags['recipe']} (--recipe takes another)")

    def _ends(self) -> None:
        """Note missing ends, with some that this repository has, or days of nightlies."""
        if self._has_range:
            return
        older, newer = self._proposed_ends()
        for name, proposal, which in (("good", older, "the older"), ("bad", newer, "the newer")):
            if not self.flags[name]:
                self.faults.append(
                    f"--{name} is missing: {which} of the two revisions: a commit, tag, version or date"
                )
                self.additions += [f"--{name}", proposal]

    def _proposed_ends(self) -> tuple[str, str]:
        recipe = str(self.flags["recipe"] or "")
        if recipe.startswith(("pypi", "wheels")):
            return ("2.13.0", "2.14.0") if recipe.endswith(f":{TORCH}") else ("OLDER", "NEWER")
        if self._repo is not None and not recipe.startswith("nightly"):
            with suppress(GitFailed):
                tip = line("rev-parse", "--abbrev-ref", "HEAD", cwd=self._repo)
                try:
                    return line("describe", "--tags", "--abbrev=0", "HEAD^", cwd=self._repo), tip
                except GitFailed:
                    root = line("rev-list", "--max-parents=0", "--first-parent", "HEAD", cwd=self._repo)
                    return root.split()[0][:10], tip
        today = date.today()
        return str(today - timedelta(days=_EXAMPLE_DAYS)), str(today - timedelta(days=1))

    def _recipe(self) -> bool:
        """Choose the recipe, and note which place of revisions is missing. Returns whether there is one."""
        flags = self.flags
        if flags["recipe"] is None and not self._has_range:
            return False
        if flags["recipe"] is None:
            try:
                flags["recipe"] = _chosen(
                    flags, self._repo, of_command=bool(self.command), only_wheels=self._only_wheels
                )
            except UsageError as error:
                self.faults.append(str(error))
                if self._repo is None and NAME in {End(flags[name]).kind for name in ("good", "bad")}:
                    self.additions += ["--repo", "PATH"]
                return False
            self._is_chosen = True
        try:
            rungs = load_recipes(flags["recipe"])
        except UsageError as error:
            name, colon, argument = str(flags["recipe"]).partition(":")
            names = [f"{other}{colon}{argument}" for other in recipe_names()]
            self._wrong("--recipe", str(error), f"{name}{colon}{argument}", names)
            return False
        if rungs[-1].kind == "commits":
            flags["repo"] = flags["repo"] or self._repo
        if rungs[0].kind == "commits" and flags["repo"] is None:
            self.faults.append(
                "--repo is missing: commits come from a repository, and this folder is in none: "
                "change to it, or give its folder, --repo PATH"
            )
            self.additions += ["--repo", "PATH"]
        elif rungs[0].kind == "commits" and self._has_range:
            self._check_ends(find(flags["repo"]))
        versions = rungs[0].versions
        if versions and not flags["wheels"] and versions.only_binary:
            if not _has_no_builds_for(flags["device"], versions.wheels):
                flags["wheels"] = versions.wheels
            if not flags["wheels"]:
                self.faults.append(_without_wheels(versions.wheels))
                self.additions += ["--wheels", "FOLDER"]
        return True

    def _check_ends(self, repo: Path) -> None:
        """Note ends that are no commits, with the nearest tags and branches."""
        tip = "HEAD"
        for name in ("bad", "good"):
            word = self.flags[name]
            try:
                commit = end_commit(repo, word, tip, f"--{name}")
            except UsageError as error:
                self._wrong(f"--{name}", str(error), word, tags_and_branches(repo))
                self._has_range = False
            else:
                tip = commit if name == "bad" else tip

    def _of_history(self, typist: Typist, wanted: bool) -> bool:
        """Take what is measured from the open alert whose range lies there. Returns whether there is one."""
        flags = self.flags
        if not (wanted and self._has_range) or (flags["repo"] is None and self._is_of_commits()):
            return False
        try:
            history = resolve({"db": flags["db"], "out": flags["out"]})[0].history
            with open_store(history, create=False) as store, store.read() as connection:
                groups = alert_groups(connection, host.host_class(host.facts()))
        except NoHistory:
            return False
        groups = lying_between(groups, flags["good"], flags["bad"], flags["recipe"], flags["repo"])
        if len(groups) > 1:
            title = "Several open alerts have their range there"
            lines = [f"alert {group.number}: {typist.describe(group.chosen)}" for group in groups]
            if typist.ask is None:
                commands = [_copied(typist.words, ["--alert", str(group.number)], {}) for group in groups]
                listed = "\n".join(f"  {text}\n    {cmd}" for text, cmd in zip(lines, commands, strict=True))
                raise UsageError(f"{title}; say which is bisected:\n{listed}")
            groups = [groups[typist.ask(title, lines)]]
        self.group = groups[0] if groups else None
        return self.group is not None

    def _is_of_commits(self) -> bool:
        return load_recipes(self.flags["recipe"])[0].kind == "commits"

    def _of_settings(self) -> bool:
        """Take what is measured from perfdash.toml or the environment. Returns whether it is there."""
        flags, defaults = self.flags, self.defaults
        flags["metric"] = flags["metric"] or defaults.metric
        if defaults.command:
            self.command = defaults.command
            if flags["recipe"] == "git":
                flags["recipe"] = "command"
            return True
        flags["suite"], flags["model"] = defaults.suite, defaults.model
        if flags["model"]:
            self._model()
            return True
        settings = resolve({})[0]
        return len(settings.model) + len(settings.models) == 1

    def _model(self) -> None:
        """Note a missing or unknown model or suite, with the nearest names."""
        suite, model = self.flags["suite"], self.flags["model"]
        of_checkout = self.flags["torchbench"] or CHECKOUT_SUITE in (suite or "").split(",")
        if self.command or of_checkout or (model and ".py:" in model):
            return  # the plan names what is wrong
        if not suite:
            if not resolve({})[0].suite:
                self._without_suite(model)
            return
        try:
            names = [item.name for word in suite.split(",") for item in load_suite(word.strip()).models]
        except UsageError as error:
            self._wrong("--suite", str(error), suite, suite_names())
            if owners := _suites_with(model):
                self.corrections["--suite"] = owners[0]
            return
        if not model:
            self.faults.append(
                f"--model is missing: which model of {suite}? `perfdash list {shlex.quote(suite)}` shows them"
            )
            self.additions += ["--model", names[0]]
        elif model not in names:
            owners = _suites_with(model)
            others = f"; it is a model of {' and of '.join(owners)}" if owners else ""
            message = f"--model {model} is no model of {suite}{did_you_mean(model, names)}{others}"
            if owners:
                self.faults.append(message)
                self.corrections["--suite"] = owners[0]
            else:
                self._wrong(
                    "--model", f"{message}; `perfdash list {shlex.quote(suite)}` shows them all", model, names
                )

    def _without_suite(self, model: str) -> None:
        if owners := _suites_with(model):
            self.faults.append(f"--suite is missing: {model} is a model of {' and of '.join(owners)}")
            self.additions += ["--suite", owners[0]]
            return
        names = sorted({item.name for name in suite_names() for item in load_suite(name).models})
        message = (
            f"--model {model}: no suite has such a "
            f"model{did_you_mean(model, names)}; `perfdash list SUITE` shows "
            "them; a model of your own is given as file.py:function"
        )
        self._wrong("--model", message, model, names)
        if close := nearest(model, names):
            self.additions += ["--suite", _suites_with(close[0])[0]]

    def _metric(self) -> None:
        name, of_command = self.flags["metric"], bool(self.command)
        if name:
            try:
                metric_named(name, of_command)
            except UsageError as error:
                self._wrong("--metric", str(error), name, list(OF_COMMAND if of_command else METRICS))

    def _wrong(self, option: str, message: str, word: str, names: Sequence[str]) -> None:
        """Note a wrong name; the proposed command has the nearest."""
        self.faults.append(message)
        if close := nearest(word, list(names)):
            self.corrections[option] = close[0]

    def _ask_what(self) -> None:
        self.faults.append(
            "what is measured? No open alert of the history has its range there, and perfdash.toml has no "
            "[bisect]: give --suite S --model M, --model file.py:function, or -- and a command of yours"
        )
        self.additions += _A_MODEL

    def message(self, words: Sequence[str]) -> str:
        """List all faults, then the user's command with the missing options filled in."""
        text = self.faults[0]
        if len(self.faults) > 1:
            listed = "\n".join(f"  - {fault}" for fault in self.faults)
            text = f"{len(self.faults)} things are missing or wrong:\n{listed}"
        if not self.additions and not self.corrections:
            return text
        return f"{text}\nFor example:\n  {_copied(words, self.additions, self.corrections)}"


def with_options(words: Sequence[str], values: Mapping[str, str], additions: Sequence[str] = ()) -> list[str]:
    """The words of a command line without secrets, with other values of its options, and more options.

    values: of options that were given, as `--good v1` or `--good=v1`. The words from `--` on are a command of
    the user's and stay as they are.
    """
    at = words.index("--") if "--" in words else len(words)
    own = list(words[:at])
    for place, word in enumerate(own):
        option, equals, _ = word.partition("=")
        if equals and option in values:
            own[place] = f"{option}={values[option]}"
        elif place and own[place - 1] in values:
            own[place] = values[own[place - 1]]
    more = [*own, *additions, *words[at:]]
    return [without_credentials(word) for word in mask_secrets(more)]


def _copied(words: Sequence[str], additions: Sequence[str], values: Mapping[str, str]) -> str:
    """The command line that a message proposes, for a shell."""
    return shlex.join(["perfdash", *with_options(words, values, additions)])


def _suites_with(model: str) -> list[str]:
    return [name for name in suite_names() if any(item.name == model for item in load_suite(name).models)]


def _package_of(repo: Path | None) -> str | None:
    """The package of a repository, by [project] name in its pyproject.toml; None if that says none."""
    try:
        data = tomllib.loads((repo / "pyproject.toml").read_text(encoding="utf-8")) if repo else {}
    except (OSError, ValueError):
        return None
    project = data.get("project")
    name = project.get("name") if isinstance(project, dict) else None
    return name if isinstance(name, str) and name else None
