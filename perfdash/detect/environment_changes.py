"""Differences between the environments of two runs, as lines `name: old | new`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfdash.history.results import RunRow
from perfdash.records import COMMIT_IN_WHEEL

# What of the machine moves numbers most comes first.
_FIRST = ("host_class", "cpu", "microcode", "kernel", "governor", "turbo", "cpu_limit")


def environment_changes(old: RunRow, new: RunRow) -> list[str]:
    """The differences between two runs' machines, then between their packages."""
    return machine_changes(old, new) + package_changes(old, new)


def machine_changes(old: RunRow, new: RunRow) -> list[str]:
    """The differences between two runs' machines; first what moves numbers most."""
    lines = []
    if old.host != new.host:
        lines.append(f"host: {old.host} | {new.host}")
    old_facts, new_facts = old.facts, new.facts
    names = sorted({*old_facts, *new_facts} - {"variables", "published"})  # totals are no fact of the machine
    for name in sorted(names, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)):
        values = old_facts.get(name), new_facts.get(name)
        if values[0] != values[1] and not any(isinstance(value, list) for value in values):
            lines.append(f"{name}: {values[0]} | {values[1]}")
    variables = [facts.get("variables") or {} for facts in (old_facts, new_facts)]
    for name in sorted({*variables[0], *variables[1]}):
        if variables[0].get(name) != variables[1].get(name):
            lines.append(f"variable {name}: {variables[0].get(name)} | {variables[1].get(name)}")
    return lines


def package_changes(old: RunRow, new: RunRow) -> list[str]:
    """The differences between two runs' packages: torch with its commit first."""
    lines = []
    if (old.torch, old.torch_git_version) != (new.torch, new.torch_git_version):
        lines.append(f"torch: {_torch(old)} | {_torch(new)}")
    if old.python != new.python:
        lines.append(f"python: {old.python} | {new.python}")
    for name in sorted({*old.packages, *new.packages}):
        old_package, new_package = package_words(old, name), package_words(new, name)
        if old_package != new_package and name != "torch" and not _only_recorded_since(old, new, name):
            lines.append(f"{name}: {old_package} | {new_package}")
    return lines


def _only_recorded_since(old: RunRow, new: RunRow, name: str) -> bool:
    """Whether two runs had the same version of a wheel, whose commit only one of them recorded.

    Runs of an older perfdash have no commits of wheels.
    """
    has_one = name in COMMIT_IN_WHEEL and (name in old.commits) != (name in new.commits)
    return has_one and old.packages.get(name) == new.packages.get(name)


def other_commits(run: RunRow, worker: Mapping[str, Any]) -> list[str]:
    """Differences of commits between a run and an interpreter: `torch: the run's | the interpreter's`.

    They cover torch and every package that has a commit on either side.
    """
    commits, versions = worker.get("commits") or {}, worker.get("packages") or {}
    pairs = {"torch": (run.torch_git_version, worker.get("torch_git_version"))}
    for name in dict.fromkeys([*run.commits, *commits]):
        pairs[name] = run.commits.get(name, run.packages.get(name)), commits.get(name, versions.get(name))
        # Old runs were stored without commits: compare the versions instead.
        if name not in run.commits and run.packages.get(name) == versions.get(name):
            del pairs[name]
    return [
        f"{name}: {of_run} | {of_interpreter}"
        for name, (of_run, of_interpreter) in pairs.items()
        if of_run != of_interpreter
    ]


def package_words(run: RunRow, name: str) -> str:
    """A package's version, and its commit if it comes from a repository."""
    return f"{run.packages.get(name)} {run.commits.get(name, '')[:10]}".strip()


def _torch(run: RunRow) -> str:
    return " ".join(text for text in (run.torch, (run.torch_git_version or "")[:10]) if text) or "unknown"
