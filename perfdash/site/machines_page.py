"""The machines page: testbeds, their hosts, and the changes of their environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdash.detect.environment_changes import environment_changes, package_words
from perfdash.history.queries import RunLine
from perfdash.site.overview_page import noise_of
from perfdash.site.testbed_history import Testbed
from perfdash.site.timeline import build_words

SHOWN = 120  # periods of a testbed


@dataclass(frozen=True)
class Period:
    """Runs in a row in one environment; `changed` is what differs from the period before."""

    first: RunLine
    last: RunLine
    runs: int
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
    periods: list[Period]
    left_out: int
    excluded: list[RunLine]


def machine_view(bed: Testbed, runs: Sequence[RunLine], excluded: Sequence[RunLine] = ()) -> MachineView:
    """Describe a testbed's machine; `runs` are oldest first, at least one, without the excluded ones."""
    hosts: dict[str, list[RunLine]] = {}
    for run in runs:
        hosts.setdefault(run.host, []).append(run)
    last = runs[-1]
    periods = _periods(runs)
    return MachineView(
        bed,
        [(name, len(host_runs), host_runs[-1].started[:10]) for name, host_runs in sorted(hosts.items())],
        sorted({run.origin for run in runs}),
        len(runs),
        runs[0],
        last,
        sorted((name, _shown(value)) for name, value in last.facts.items() if name != "variables")
        + sorted((f"variable {k}", _shown(v)) for k, v in (last.facts.get("variables") or {}).items()),
        sorted((name, package_words(last, name)) for name in last.packages),
        noise_of(last),
        periods[:SHOWN],
        max(0, len(periods) - SHOWN),
        list(excluded[::-1]),
    )


def _periods(runs: Sequence[RunLine]) -> list[Period]:
    """Newest first."""
    groups: list[list[RunLine]] = []
    for run in runs:
        before = groups[-1][-1] if groups else None
        if before and before.environment_id == run.environment_id and before.host == run.host:
            groups[-1].append(run)
        else:
            groups.append([run])
    periods = []
    start = max(0, len(groups) - SHOWN)
    for place, group in enumerate(groups):
        changed = environment_changes(groups[place - 1][-1], group[0]) if place > start else []
        periods.append(Period(group[0], group[-1], len(group), build_words(group[0]), changed))
    return periods[::-1]


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())[:300]
    if isinstance(value, list):
        text = " ".join(map(str, value))
        return text if len(text) <= 300 else f"{text[:300]} ..."
    return str(value)[:300]
