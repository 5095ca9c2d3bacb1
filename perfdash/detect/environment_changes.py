"""Differences between the environments of two runs, as lines `name: old | new`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from perfdash.history.results import RunRow
from perfdash.records import COMMIT_IN_WHEEL

# Packages that no build is made of: pip only installs, and the perfdash of the command measures both sides.
_NOT_OF_A_BUILD = {"perfdash", "pip"}
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
    lines += [
        f"{name}: {package_words(old, name)} | {package_words(new, name)}"
        for name in _changed_packages(old, new)
    ]
    return lines


def changed_in_build(old: RunRow, new: RunRow) -> list[str]:
    """The names of what changed between two runs' builds: `torch`, `python`, packages.

    Empty where a run recorded no packages.
    """
    if not (old.packages and new.packages):
        return []
    names = ["torch"] if (old.torch, old.torch_git_version) != (new.torch, new.torch_git_version) else []
    names += ["python"] if old.python != new.python else []
    return names + [name for name in _changed_packages(old, new) if name not in _NOT_OF_A_BUILD]


def _changed_packages(old: RunRow, new: RunRow) -> list[str]:
    """The names of the packages, without torch, whose version or commit differs between two runs."""
    return [
        name
        for name in sorted({*old.packages, *new.packages})
        if package_words(old, name) != package_words(new, name)
        and name != "torch"
        and not _only_recorded_since(old, new, name)
    ]


def _only_recorded_since(old: RunRow, new: RunRow, name: str) -> bool:
    """Whether two runs had the same version of a wheel, whose commit only one of them recorded.

    Runs of an older perfdash have no commits of wheels.
    """
    has_one = name in COMMIT_IN_WHEEL and (name in old.commits) != (name in new.commits)
    return has_one and old.packages.get(name) == new.packages.get(name)


def other_build(
    measured: Mapping[str, Any], worker: Mapping[str, Any], compared: Collection[str] = ()
) -> list[str]:
    """Differences between a measured build and that of an interpreter: `torch: measured | interpreter's`.

    Both are what a worker says of itself. Torch and every package that has a commit on either side are
    compared by commit, or by version where the measured one recorded no commit. `compared`: names of more
    packages, or `python`, whose versions must be equal, too.
    """
    commits, versions = (
        [side.get(name) or {} for side in (measured, worker)] for name in ("commits", "packages")
    )
    pairs = {"torch": _torch_of_both(measured, worker)}
    for name in dict.fromkeys([*commits[0], *commits[1]]):
        pairs[name] = (
            commits[0].get(name, versions[0].get(name)),
            commits[1].get(name, versions[1].get(name)),
        )
        # Old runs were stored without commits: compare the versions instead.
        if name not in commits[0] and versions[0].get(name) == versions[1].get(name):
            del pairs[name]
    for name in compared:
        if name == "python":
            pairs[name] = measured.get(name), worker.get(name)
        elif name != "torch" and name not in commits[0] and name not in commits[1]:
            pairs[name] = versions[0].get(name), versions[1].get(name)
    return [f"{name}: {old} | {new}" for name, (old, new) in pairs.items() if old != new]


def _torch_of_both(measured: Mapping[str, Any], worker: Mapping[str, Any]) -> tuple[Any, Any]:
    """Torch's commit on both sides, or its version where the measured side recorded no commit."""
    name = "torch_git_version" if measured.get("torch_git_version") else "torch"
    return measured.get(name), worker.get(name)


def package_words(run: RunRow, name: str) -> str:
    """A package's version, and its commit if it comes from a repository."""
    return f"{run.packages.get(name)} {run.commits.get(name, '')[:10]}".strip()


def _torch(run: RunRow) -> str:
    return " ".join(text for text in (run.torch, (run.torch_git_version or "")[:10]) if text) or "unknown"
