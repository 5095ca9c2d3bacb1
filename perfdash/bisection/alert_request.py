"""What an alert of the history says of a bisection: model, metric, and the two ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from packaging.utils import canonicalize_name

from perfdash.bisection.recipes import load_recipes
from perfdash.bisection.request import HIDDEN, pairs
from perfdash.bisection.sources.git_repository import commit_of, find
from perfdash.detect.alert_evidence import AlertEvidence, gather
from perfdash.errors import UsageError
from perfdash.history import alert_store
from perfdash.history.queries import RunLine, command_of
from perfdash.history.store import open_store
from perfdash.metrics import METRICS
from perfdash.records import Case
from perfdash.settings import RunSettings, resolve


class CaseOptions(Protocol):
    """The options that measure a recorded case again: the module perfdash.report.reproduce."""

    OWN: str

    def source_of(self, case: Case, ran: Sequence[str]) -> list[str]:
        """The options that select where the case came from."""

    def backend_of(self, case: Case, ran: Sequence[str]) -> str:
        """The back end's name, or the user's file."""

    def as_pairs(self, setting: Mapping[str, Any], name: str) -> list[str]:
        """A table of a setting as KEY=VALUE."""


def filled(
    flags: dict[str, Any],
    command: Sequence[str] | None,
    options: CaseOptions,
    describe: Callable[[AlertEvidence], str],
) -> dict[str, Any]:
    """The flags, completed from the alert where the user gave none. Raises UsageError.

    `describe` says what changed in an alert, for messages.
    """
    number = flags["alert"]
    if flags["recipe"] is None:
        raise UsageError(
            f"--alert {number}: say how a version becomes a build, by --recipe, e.g. wheels:torch"
        )
    history = resolve({"db": flags["db"], "out": flags["out"]})[0].history
    with open_store(history, create=False) as store, store.read() as connection:
        (found,) = gather(connection, [alert_store.find(connection, number)])
        run = found.seen or found.bad
        ran = command_of(connection, run) if run else []
    said: dict[str, Any] = {}
    if not command:
        if found.case is None:
            raise UsageError(f"--alert {number} is of the whole host, not of a model")
        setting = run.setting if run else {}
        said = {
            **_case(found.case, setting, ran, options),
            **_source(found.case, ran, flags, number, options),
        }
        said["metric"] = flags["metric"] or _metric(found, number, describe)
        if said["metric"] == "eager":
            del said["backend"]  # nothing has to be compiled
        flags = {**flags, "env": _env(said["env"], flags["env"], number)}
    good, bad = found.between
    if not flags["good"] or not flags["bad"]:
        if good is None or bad is None:
            raise UsageError(f"--alert {number}: the runs around it were pruned; give --good and --bad")
        rung = load_recipes(flags["recipe"])[0]
        package = rung.versions.package if rung.versions else None
        known = _commits(good, bad, flags["repo"], number) if package is None and flags.get("repo") else None
        said["good"], said["bad"] = known or (_version(run, package, number) for run in (good, bad))
        if said["good"] == said["bad"]:
            raise UsageError(
                f"--alert {number}: both nights measured {package or 'commit'} {said['good']}: it was "
                "something else that changed; `perfdash regressions` shows what"
                + ("" if package or flags.get("repo") else "; where it is a package, give its --repo PATH")
            )
    return {name: value if value or name not in said else said[name] for name, value in flags.items()}


def _env(then: Sequence[str], given: Sequence[str] | None, number: int) -> list[str]:
    """The variables of that night with those given now. Raises UsageError for a secret that was not kept."""
    env = {**pairs(then, "--env"), **pairs(given, "--env")}
    if hidden := [key for key, value in env.items() if value == HIDDEN]:
        raise UsageError(
            f"--alert {number}: the value of {hidden[0]} was not kept; give --env {hidden[0]}=..."
        )
    return [f"{key}={value}" for key, value in env.items()]


def _metric(found: AlertEvidence, number: int, describe: Callable[[AlertEvidence], str]) -> str:
    alert = found.alert
    if alert.kind == "status":
        return "status"
    metric = METRICS.get(alert.metric or "")
    if alert.kind in ("metric", "count", "drift") and metric and metric.name:
        return metric.name
    raise UsageError(
        f"--alert {number}: {describe(found)} is nothing that can be bisected; give a "
        "command of yours, after --"
    )


def _source(
    case: Case, ran: Sequence[str], flags: Mapping[str, Any], number: int, options: CaseOptions
) -> dict[str, Any]:
    """Suite and model, or the user's own file that the night measured, unless others are given.

    Raises UsageError where that is not there.
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
                + ": give --model file.py:function"
            )
        return {"model": target}
    files = [value for option, value in pairwise(words) if option == "--suite"]
    if any(file.endswith(".toml") and not Path(file).is_file() for file in files):
        raise UsageError(
            f"--alert {number}: suite {case.suite} came from {', '.join(files)}, which is not there now: "
            "give its file by --suite"
        )
    said: dict[str, Any] = {"suite": ",".join(files) or case.suite, "model": case.model}
    if "--torchbench" in words:
        said["torchbench"] = Path(words[words.index("--torchbench") + 1])
    return said


def _is_file(model: str | None) -> bool:
    return model is not None and ".py:" in model


def _case(case: Case, setting: Mapping[str, Any], ran: Sequence[str], options: CaseOptions) -> dict[str, Any]:
    """How it was measured. A setting is of the testbed where it differed from the default."""
    said = {
        "batch_size": case.batch_size,
        "device": case.device,
        "dtype": case.dtype,
        "amp_dtype": case.amp_dtype,
        "backend": options.backend_of(case, ran),
        "scenario": case.scenario,
        "dynamic": case.dynamic,
        "threads": case.threads,
    }
    for name in ("allocator", "weights", "compile_mode", "optimizer"):
        said[name] = setting.get(name, RunSettings.model_fields[name].default)
    for name in ("env", "inductor_config"):
        said[name] = options.as_pairs(setting, name)
    return said


def _commits(good: RunLine, bad: RunLine, repo: Path, number: int) -> tuple[str, str] | None:
    """The commits of what is in the repository and changed: a package's, else (None) torch's.

    Raises UsageError where there are several, or none.
    """
    folder = find(repo)
    changed = {
        name: (good.commits[name], commit)
        for name, commit in bad.commits.items()
        if good.commits.get(name, commit) != commit
    }
    mine = {name: ends for name, ends in changed.items() if all(_has(folder, each) for each in ends)}
    if len(set(mine.values())) > 1:
        raise UsageError(
            f"--alert {number}: {', '.join(mine)} are all of --repo {repo}, and changed to other commits: "
            "give --good and --bad"
        )
    if mine:
        return next(iter(mine.values()))
    ends = [run.torch_git_version or "" for run in (good, bad)]
    if ends[0] != ends[1] and all(each and _has(folder, each) for each in ends):
        return None
    elsewhere = [*changed, *(["torch"] if ends[0] != ends[1] else [])]
    raise UsageError(
        f"--alert {number}: between the two nights no package came to another commit of --repo {repo}; "
        + (f"other commits: {', '.join(elsewhere)} (git fetch?)" if elsewhere else "no commit changed at all")
        + "; `perfdash regressions` shows what did, or give --good and --bad"
    )


def _has(repo: Path, commit: str) -> bool:
    try:
        return commit_of(repo, commit) == commit
    except UsageError:
        return False


def _version(run: RunLine, package: str | None, number: int) -> str:
    """What a run measured: a version of the package, or torch's commit."""
    if package is None:
        found = run.torch_git_version
    else:
        packages = {canonicalize_name(name): version for name, version in run.packages.items()}
        found = packages.get(canonicalize_name(package))
        found = run.torch if found is None and package == "torch" else found
    if not found:
        raise UsageError(
            f"--alert {number}: {run.name} does not say which {package or 'commit of torch'} it measured; "
            "give --good and --bad"
        )
    return found
