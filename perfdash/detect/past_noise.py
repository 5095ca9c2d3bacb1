"""Estimate noise from earlier nights, for comparisons of single runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa

from perfdash.detect.comparison import COMPARED, NoiseByCase, PastNoise
from perfdash.detect.findings import logs
from perfdash.history.ingest import testbed_values
from perfdash.history.queries import cases_by_id, list_runs, of_method, panel
from perfdash.history.results import RunRow
from perfdash.history.schema import testbeds
from perfdash.records import Case
from perfdash.stats.nightly_test import FLOOR
from perfdash.stats.noise_level import noise_level

NIGHTS = 20
_FEWEST = 5


def noise_before(connection: sa.Connection, runs: Sequence[RunRow]) -> NoiseByCase:
    """The noise of the nights before these runs; a step among them counts as noise.

    Only nights of the last run's method count.
    """
    digest = testbed_values(runs[0])["digest"]
    testbed = connection.execute(sa.select(testbeds.c.id).where(testbeds.c.digest == digest)).scalar()
    if testbed is None:
        return {}
    first = min(run.started for run in runs)
    before = [
        line
        for line in list_runs(connection, testbed_id=testbed, until=first, latest=NIGHTS + len(runs))
        if line.started < first
    ][-NIGHTS:]
    if len(before) < _FEWEST:
        return {}
    past = of_method(panel(connection, before, COMPARED), runs[-1].method)
    cases = cases_by_id(connection, past.case_ids)
    noise: dict[str, dict[Case, PastNoise]] = {}
    for metric in COMPARED:
        level = noise_level(logs(past, metric), floor=FLOOR)
        noise[metric] = {
            cases[past.case_ids[row]]: PastNoise(
                float(level.sd[row]), float(level.df[row]), level.inflation[row]
            )
            for row in np.flatnonzero(level.count >= _FEWEST).tolist()
        }
    return noise
