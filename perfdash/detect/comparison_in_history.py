"""Compare two sides with what the history knows: the noise of nights before them, and their machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from perfdash.detect.comparison import (
    COMPARED,
    FEWEST_NIGHTS,
    ComparedRuns,
    Comparison,
    NoiseByCase,
    PastNoise,
    compare,
)
from perfdash.detect.findings import metric_logs
from perfdash.history.pass_rates_and_means import setting_of
from perfdash.history.queries import (
    Panel,
    RunLine,
    cases_by_id,
    list_runs,
    of_method,
    panel,
    testbed_of,
)
from perfdash.history.results import Imported
from perfdash.records import Case
from perfdash.stats.machine_levels import are_nameless
from perfdash.stats.nightly_test import FLOOR
from perfdash.stats.noise_level import noise_level

ReadPanel = Callable[[sa.Connection, Sequence[RunLine], Sequence[str]], Panel]
_PAST_NIGHTS = 20
_ON_ONE = 0.75  # share of a case's nights on one machine, up to which their noise has that of the machines


def compare_in_history(
    connection: sa.Connection, old: ComparedRuns, new: ComparedRuns, read: ReadPanel = panel
) -> Comparison:
    """Compare two sides of runs that were measured apart; `read` as in `noise_before`."""
    runs = [*old.runs, *new.runs]
    noise = noise_before(connection, runs, read)
    until = max(imported.run.started for imported in runs)
    nights = _nights(connection, runs, until, _PAST_NIGHTS)
    return compare(old, new, noise, nameless=are_nameless([night.hosts for night in nights]))


def noise_before(connection: sa.Connection, runs: Sequence[Imported], read: ReadPanel = panel) -> NoiseByCase:
    """Estimate the noise of each case from the nights before these runs that measured a setting of theirs.

    A step among those nights counts as noise. Only nights of the last run's method are used. `read`: reads
    numbers of runs, where they are at hand.
    """
    first = min(imported.run.started for imported in runs)
    nights = _nights(connection, runs, first, _PAST_NIGHTS + len(runs))
    before = [night for night in nights if night.started < first][-_PAST_NIGHTS:]
    if len(before) < FEWEST_NIGHTS:
        return {}
    past = of_method(read(connection, before, COMPARED), runs[-1].run.method)
    cases = cases_by_id(connection, past.case_ids)
    of_machines = [
        _is_of_machines(hosts[statuses != ""])
        for hosts, statuses in zip(past.machines, past.statuses, strict=True)
    ]
    noise: dict[str, dict[Case, PastNoise]] = {}
    for metric in COMPARED:
        level = noise_level(metric_logs(past, metric), floor=FLOOR)
        noise[metric] = {
            cases[past.case_ids[row]]: PastNoise(
                float(level.sd[row]), float(level.df[row]), level.inflation[row], of_machines[row]
            )
            for row in np.flatnonzero(level.count >= FEWEST_NIGHTS).tolist()
        }
    return noise


def _is_of_machines(hosts: NDArray[np.object_]) -> bool:
    """Whether any of several machines measured a case on a night: none did on nearly all nights."""
    nights = Counter(hosts.tolist())
    return bool(nights) and max(nights.values()) <= _ON_ONE * len(hosts)


def _nights(connection: sa.Connection, runs: Sequence[Imported], until: str, latest: int) -> list[RunLine]:
    """The latest runs of the runs' testbed up to a time that measured a setting of theirs, oldest first."""
    testbed = testbed_of(connection, runs[0].run)
    if testbed is None:
        return []
    return list_runs(
        connection,
        testbed_id=testbed,
        until=until,
        latest=latest,
        with_excluded=False,
        settings={setting_of(row) for imported in runs for row in imported.rows},
    )
