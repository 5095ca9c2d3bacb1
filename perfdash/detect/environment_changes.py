"""Differences between the machines and packages of two runs, a line each: `name: old | new`. Pure."""

from __future__ import annotations

from perfdash.history.queries import RunLine


def environment_changes(old: RunLine, new: RunLine) -> list[str]:
    """Differences of machine, then of packages."""
    lines = []
    if old.host != new.host:
        lines.append(f"host: {old.host} | {new.host}")
    for name in sorted({*old.facts, *new.facts}):
        old_value, new_value = old.facts.get(name), new.facts.get(name)
        if (
            old_value != new_value
            and name != "variables"
            and not isinstance(old_value, list)
            and not isinstance(new_value, list)
        ):
            lines.append(f"{name}: {old_value} | {new_value}")
    variables = [run.facts.get("variables") or {} for run in (old, new)]
    for name in sorted({*variables[0], *variables[1]}):
        if variables[0].get(name) != variables[1].get(name):
            lines.append(f"variable {name}: {variables[0].get(name)} | {variables[1].get(name)}")
    return lines + package_changes(old, new)


def package_changes(old: RunLine, new: RunLine) -> list[str]:
    """Differences of packages, torch with its commit first."""
    lines = []
    if (old.torch, old.torch_git_version) != (new.torch, new.torch_git_version):
        lines.append(f"torch: {_torch(old)} | {_torch(new)}")
    if old.python != new.python:
        lines.append(f"python: {old.python} | {new.python}")
    for name in sorted({*old.packages, *new.packages}):
        old_package, new_package = package_words(old, name), package_words(new, name)
        if old_package != new_package and name != "torch":
            lines.append(f"{name}: {old_package} | {new_package}")
    return lines


def package_words(run: RunLine, name: str) -> str:
    """A package's version, and its commit if it comes from a repository."""
    return f"{run.packages.get(name)} {run.commits.get(name, '')[:10]}".strip()


def _torch(run: RunLine) -> str:
    return " ".join(text for text in (run.torch, (run.torch_git_version or "")[:10]) if text) or "unknown"
