"""The machines page: testbeds, their hosts, and the changes of their environments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfdash.detect.environment_changes import environment_changes, package_words, value_words
from perfdash.history.queries import RunLine
from perfdash.history.results import BY_HOST
from perfdash.site.overview_page import noise_of
from perfdash.site.testbed_history import Testbed
from perfdash.site.timeline import build_words

SHOWN = 120  # periods of a testbed
_MOST = 4000  # runs in which they are looked for
# What changes on more runs than this fraction is what is being watched, not the machine.
_OFTEN = 0.1


@dataclass(frozen=True)
class MachinePeriod:
    """Runs in a row with the same environment, but for what changes night after night.

    `hosts`: the machines that measured them; `builds`: how many different builds of torch they had; `build`:
    torch in the first and the last of them; `changed`: what differs from the period before.
    """

    first: RunLine
    last: RunLine
    runs: int
    hosts: list[str]
    builds: int
    build: str
    changed: list[str]


@dataclass(frozen=True)
class MachineView:
    """A testbed; `periods` newest first, `left_out` older ones; `excluded` runs, newest first."""

    bed: Testbed
    hosts: list[tuple[str, int, str]]  # name, runs, last
    origins: list[str]
    runs: int
    first: RunLine
    last: RunLine
    facts: list[tuple[str, str]]
    packages: list[tuple[str, str]]
    noise: float | None
    periods: list[MachinePeriod]
    nightly: list[str]  # what changes night after night, and begins no period
    left_out: int
    excluded: list[RunLine]


def machine_view(bed: Testbed, runs: Sequence[RunLine], excluded: Sequence[RunLine] = ()) -> MachineView:
    """Describe a testbed's machine; `runs` are oldest first, at least one, without the excluded ones."""
    hosts: dict[str, list[RunLine]] = {}
    for run in runs:
        hosts.setdefault(run.host, []).append(run)
    last = runs[-1]
    periods, nightly = _periods(runs)
    return MachineView(
        bed,
        [(name, len(host_runs), host_runs[-1].started[:10]) for name, host_runs in sorted(hosts.items())],
        sorted({run.origin for run in runs}),
        len(runs),
        runs[0],
        last,
        sorted(
            (name, _shown(value))
            for name, value in last.facts.items()
            if name
            not in ("variables", "published", BY_HOST)  # a dashboard's totals are on the suites' pages
        )
        + _facts_by_host(last)
        + sorted((f"variable {k}", _shown(v)) for k, v in (last.facts.get("variables") or {}).items()),
        sorted((name, package_words(last, name)) for name in last.packages),
        noise_of(last),
        periods[:SHOWN],
        nightly,
        max(0, len(periods) - SHOWN),
        list(excluded[::-1]),
    )


def _facts_by_host(run: RunLine) -> list[tuple[str, str]]:
    """The facts in which the machines of a run differ, each with its values and their machines."""
    by_host = run.facts.get(BY_HOST) or {}
    names = sorted({name for facts in by_host.values() for name in facts})
    values = {name: {host: _shown(facts.get(name)) for host, facts in by_host.items()} for name in names}
    return [(name, value_words(of_hosts)) for name, of_hosts in values.items()]


def _periods(runs: Sequence[RunLine]) -> tuple[list[MachinePeriod], list[str]]:
    """The periods, newest first, and what changes too often to begin one."""
    runs = runs[-_MOST:]
    groups: list[list[RunLine]] = []
    for run in runs:
        before = groups[-1][-1] if groups else None
        if before and before.environment_id == run.environment_id and before.host == run.host:
            groups[-1].append(run)
        else:
            groups.append([run])
    changes = [[], *(environment_changes(old[-1], new[0]) for old, new in pairwise(groups))]
    names = Counter(_name(line) for lines in changes for line in lines)
    nightly = {name for name, count in names.items() if count > max(3, _OFTEN * len(runs))}
    periods: list[tuple[list[RunLine], list[str]]] = []
    for group, lines in zip(groups, changes, strict=True):
        others = [line for line in lines if _name(line) not in nightly]
        if periods and not others:
            periods[-1][0].extend(group)
        else:
            periods.append((list(group), others))
    return [_period(group, others) for group, others in reversed(periods)], sorted(nightly)


def _period(runs: Sequence[RunLine], changed: list[str]) -> MachinePeriod:
    hosts = sorted({host for run in runs for host in run.hosts})
    builds = {(run.torch_git_version, build_words(run)) for run in runs}
    build = " to ".join(dict.fromkeys([build_words(runs[0]), build_words(runs[-1])]))
    return MachinePeriod(runs[0], runs[-1], len(runs), hosts, len(builds), build, changed)


def _name(line: str) -> str:
    """What a line of `environment_changes` is about."""
    return line.partition(": ")[0]


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())[:300]
    if isinstance(value, list):
        text = " ".join(map(str, value))
        return text if len(text) <= 300 else f"{text[:300]} ..."
    return str(value)[:300]
