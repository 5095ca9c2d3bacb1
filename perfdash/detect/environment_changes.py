"""Differences between the environments of two runs, as lines `name: old | new`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from perfdash.history.results import RunRow
from perfdash.records import COMMIT_IN_WHEEL

# Packages that no build is made of: pip only installs, and the perfdash of the command measures both sides.
NOT_OF_A_BUILD = {"perfdash", "pip"}
# Facts that are compared part by part, and totals, which are no fact of the machine.
_NOT_A_VALUE = {"variables", "gpu_facts", "published"}
# The widest vector instructions of torch's own kernels. Older records have neither the fact nor its variable.
CPU_CAPABILITY, CPU_CAPABILITY_VARIABLE = "aten_cpu_capability", "ATEN_CPU_CAPABILITY"
# What of the machine moves numbers most comes first.
_FIRST = ("host_class", "cpu", "microcode", "kernel", "governor", "turbo", "cpu_limit")


def environment_changes(old: RunRow, new: RunRow) -> list[str]:
    """The differences between two runs' machines, then between their packages."""
    return machine_changes(old, new) + package_changes(old, new)


def machine_changes(old: RunRow, new: RunRow) -> list[str]:
    """The differences between two runs' machines; first what moves numbers most.

    Of runs that several machines measured, the host differs if they have no machine in common.
    """
    lines = []
    if set(old.hosts).isdisjoint(new.hosts):
        lines.append(f"host: {old.host} | {new.host}")
    old_facts, new_facts = old.facts, new.facts
    names = sorted({*old_facts, *new_facts} - _NOT_A_VALUE)
    for name in sorted(names, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)):
        values = old_facts.get(name), new_facts.get(name)
        if name == CPU_CAPABILITY and None in values:
            continue
        if values[0] != values[1] and not any(isinstance(value, list) for value in values):
            lines.append(f"{name}: {values[0]} | {values[1]}")
    old_gpu, new_gpu = gpu_facts(old_facts), gpu_facts(new_facts)
    for name in old_gpu:
        if name in new_gpu and old_gpu[name] != new_gpu[name]:
            lines.append(f"{name}: {old_gpu[name]} | {new_gpu[name]}")
    variables = [facts.get("variables") or {} for facts in (old_facts, new_facts)]
    for name in sorted({*variables[0], *variables[1]} - {CPU_CAPABILITY_VARIABLE}):
        if variables[0].get(name) != variables[1].get(name):
            lines.append(f"variable {name}: {variables[0].get(name)} | {variables[1].get(name)}")
    return lines


def gpu_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What numbers of a GPU depend on and is known of it: {"gpu driver": ...}, without its UUID.

    Numbers of two GPUs of one kind are compared.
    """
    known = facts.get("gpu_facts") or {}
    return {f"gpu {name}": value for name, value in known.items() if name != "uuid" and value is not None}


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


def build_changes(old: RunRow, new: RunRow) -> list[str]:
    """The differences between the packages that two measured builds are made of."""
    lines = package_changes(old, new)
    return [line for line in lines if line.partition(":")[0] not in NOT_OF_A_BUILD]


def _only_recorded_since(old: RunRow, new: RunRow, name: str) -> bool:
    """Whether two runs had the same version of a wheel, whose commit only one of them recorded.

    Runs of an older perfdash have no commits of wheels.
    """
    has_one = name in COMMIT_IN_WHEEL and (name in old.commits) != (name in new.commits)
    return has_one and old.packages.get(name) == new.packages.get(name)


def changed_in_build(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The names of what differs between two measured builds: `torch`, `python`, packages.

    Both are what a worker says of itself. Empty where one recorded no packages.
    """
    packages = [side.get("packages") or {} for side in (old, new)]
    if not all(packages):
        return []
    return list(_differences(old, new, ["python", *sorted({*packages[0], *packages[1]})]))


def other_build(
    measured: Mapping[str, Any], worker: Mapping[str, Any], compared: Collection[str] = ()
) -> list[str]:
    """Differences between a measured build and that of an interpreter: `torch: measured | interpreter's`.

    Torch and every package that has a commit on either side are compared by commit, or by version where the
    measured one recorded no commit. `compared`: names of more packages, or `python`, whose versions must be
    equal, too.
    """
    pairs = _differences(measured, worker, compared)
    return [f"{name}: {old} | {new}" for name, (old, new) in pairs.items()]


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], compared: Collection[str]
) -> dict[str, tuple[Any, Any]]:
    """What differs between two workers, by name, of what other_build compares."""
    commits, versions = ([side.get(name) or {} for side in (old, new)] for name in ("commits", "packages"))
    of_torch = "torch_git_version" if old.get("torch_git_version") else "torch"
    pairs = {"torch": (old.get(of_torch), new.get(of_torch))}
    for name in dict.fromkeys([*commits[0], *commits[1], *compared]):
        if name == "python":
            pairs[name] = old.get(name), new.get(name)
        # Old runs were stored without commits: equal versions are enough.
        elif name != "torch" and (name in commits[0] or versions[0].get(name) != versions[1].get(name)):
            of_old, of_new = (
                commit.get(name, version.get(name)) for commit, version in zip(commits, versions, strict=True)
            )
            pairs[name] = of_old, of_new
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] and name not in NOT_OF_A_BUILD}


def package_words(run: RunRow, name: str) -> str:
    """A package's version, and its commit if it comes from a repository."""
    return f"{run.packages.get(name)} {run.commits.get(name, '')[:10]}".strip()


def _torch(run: RunRow) -> str:
    return " ".join(text for text in (run.torch, (run.torch_git_version or "")[:10]) if text) or "unknown"
