"""Differences between the environments of two runs, as lines `name: old | new`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from perfdash.history.queries import Panel, RunLine
from perfdash.history.results import BY_HOST, RunRow
from perfdash.methods import changes
from perfdash.records import COMMIT_IN_WHEEL

# Packages that no build is made of: pip only installs, and the perfdash of the command measures both sides.
NOT_OF_A_BUILD = {"perfdash", "pip"}
# Facts that are compared part by part, and totals, which are no fact of the machine.
_NOT_A_VALUE = {"variables", "gpu_facts", "published", BY_HOST}
_SHOWN = 4  # hosts of one value that are named
# The widest vector instructions of torch's own kernels. Older records have neither the fact nor its variable.
CPU_CAPABILITY, CPU_CAPABILITY_VARIABLE = "aten_cpu_capability", "ATEN_CPU_CAPABILITY"
# What of the machine moves numbers most comes first.
_FIRST = ("host_class", "cpu", "microcode", "kernel", "governor", "turbo", "cpu_limit")


def environment_changes(old: RunRow, new: RunRow, hosts: Collection[str] = ()) -> list[str]:
    """The differences between two runs' machines, then between their packages. `hosts`: machine_changes."""
    return machine_changes(old, new, hosts) + package_changes(old, new)


def machine_changes(old: RunRow, new: RunRow, hosts: Collection[str] = ()) -> list[str]:
    """The differences between two runs' machines; first what moves numbers most.

    Of runs that several machines measured, the host differs if they have no machine in common, and facts are
    compared machine by machine. `hosts`: the machines that measured what is compared; none: all of the runs.
    """
    lines = []
    if set(old.hosts).isdisjoint(new.hosts):
        lines.append(f"host: {old.host} | {new.host}")
    old_machines, new_machines = facts_by_host(old), facts_by_host(new)
    is_by_host = not any("+" in host for host in (*old_machines, *new_machines))
    old_hosts, new_hosts = (
        _of_hosts(machines, hosts) if is_by_host else machines for machines in (old_machines, new_machines)
    )
    names = {name for facts in (*old_hosts.values(), *new_hosts.values()) for name in facts} - _NOT_A_VALUE
    for name in sorted(names, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)):
        old_values, new_values = _of_fact(name, old_hosts), _of_fact(name, new_hosts)
        values = [*old_values.values(), *new_values.values()]
        if any(isinstance(value, list) for value in values) or (name == CPU_CAPABILITY and None in values):
            continue
        # A value of one of several machines (a+b), which is unknown: each may have had it before.
        is_known = is_by_host or not any(value in new_values.values() for value in old_values.values())
        of_all = _changed(_of_fact(name, old_machines), _of_fact(name, new_machines))
        is_alike = of_all.keys() == new_machines.keys() and len({*map(str, of_all.values())}) == 1
        if is_known and (change := _change(old_values, new_values, is_alike)):
            lines.append(f"{name}: {change}")
    old_facts, new_facts = old.facts, new.facts
    old_gpu, new_gpu = gpu_facts(old_facts), gpu_facts(new_facts)
    for name in old_gpu:
        if name in new_gpu and old_gpu[name] != new_gpu[name]:
            lines.append(f"{name}: {old_gpu[name]} | {new_gpu[name]}")
    variables = [facts.get("variables") or {} for facts in (old_facts, new_facts)]
    for name in sorted({*variables[0], *variables[1]} - {CPU_CAPABILITY_VARIABLE}):
        if variables[0].get(name) != variables[1].get(name):
            lines.append(f"variable {name}: {variables[0].get(name)} | {variables[1].get(name)}")
    return lines


def changed_with(kind: str, panel: Panel, case_id: int | None, good: RunLine, bad: RunLine) -> dict[str, Any]:
    """What changed with an alert of this kind, as its details say it: `changed`, `hosts`.

    `changed`: the differences between two runs of the panel. `hosts`: the machines that measured the case in
    them, where they are known.
    """
    hosts = _measured_on(panel, case_id, good, bad)
    lines = environment_changes(good, bad, hosts)
    if kind == "status":
        method_changes = changes(good.method, bad.method, "status")
        lines += [f"perfdash's method: {method_change}" for method_change in method_changes]
    if kind == "host":
        lines += _null_widened(good, bad)
    return {"changed": lines, **({"hosts": hosts} if hosts else {})}


def _measured_on(panel: Panel, case_id: int | None, *runs: RunLine) -> list[str]:
    """The machines that measured a case in some runs, of which one had several; none if not all are known."""
    if case_id not in panel.case_ids or all(len(run.hosts) == 1 for run in runs):
        return []
    places = {run.id: place for place, run in enumerate(panel.runs)}
    row = panel.machines[panel.case_ids.index(case_id)]
    hosts = sorted({str(row[places[run.id]]) for run in runs})
    return [] if any("+" in host for host in hosts) else hosts


def _null_widened(good: RunLine, bad: RunLine) -> list[str]:
    """A line if the run's A/A noise was three times that of the run before."""
    before, after = ((run.noise.get("null") or {}).get("worst") for run in (good, bad))
    if before is not None and after is not None and after > max(3 * before, 0.01):
        return [f"A/A null: off by {before:.2%} | {after:.2%}"]
    return []


def facts_by_host(run: RunRow) -> dict[str, dict[str, Any]]:
    """The facts of each machine of a run, by its name.

    A run of several machines that did not record them by machine has one entry, under all names (`a+b`).
    """
    shared = run.facts
    by_host = shared.pop(BY_HOST, None)
    if by_host is None:
        return {run.host: shared}
    return {host: {**shared, **facts} for host, facts in by_host.items()}


def value_words(values: Mapping[str, Any]) -> str:
    """A fact of some machines: `6.1 (node1, node2), 6.8 (node3)`."""
    hosts: dict[str, list[str]] = {}
    for host, value in sorted(values.items()):
        hosts.setdefault(str(value), []).append(host)
    return ", ".join(f"{value} ({_names(names)})" for value, names in hosts.items())


def _names(hosts: Sequence[str]) -> str:
    more = len(hosts) - _SHOWN
    return ", ".join(hosts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _of_hosts(by_host: dict[str, dict[str, Any]], hosts: Collection[str]) -> dict[str, dict[str, Any]]:
    """The facts of those machines that are among `hosts`; of all, if none is."""
    return {host: facts for host, facts in by_host.items() if host in hosts} or by_host


def _of_fact(name: str, by_host: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The values of a fact on some machines."""
    return {host: facts.get(name) for host, facts in by_host.items()}


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a fact on the machines of a later run on which it changed.

    A machine that only the new run has shows a change if no machine of the old run had its value.
    """
    return {
        host: value
        for host, value in new.items()
        if (old[host] != value if host in old else value not in old.values())
    }


def _change(old: Mapping[str, Any], new: Mapping[str, Any], is_alike: bool) -> str:
    """How a fact changed, `old | new`, by its values on the machines of two runs; empty if it did not.

    `is_alike`: whether all machines of the new run, also those that are not compared, have one new value;
    otherwise machines are named.
    """
    changed = _changed(old, new)
    if not changed:
        return ""
    before = {host: old[host] for host in changed if host in old}
    before = before if before.keys() == changed.keys() else dict(old)
    words = [str(value) for value in before.values()], [str(value) for value in changed.values()]
    old_words = words[0][0] if len({*words[0]}) == 1 else value_words(before)
    return f"{old_words} | {words[1][0] if is_alike else value_words(changed)}"


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
