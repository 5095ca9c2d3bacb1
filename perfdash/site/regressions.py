"""The life of every alert, testbed by testbed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from perfdash.history.queries import RunLine
from perfdash.site.happened import Known, Life, known, lives, unjudged
from perfdash.site.history import Bed


@dataclass(frozen=True)
class BedLives:
    """A testbed's alerts, those that live first; `left_out` older ones, `unjudged` nights not looked at."""

    bed: Bed
    lives: list[Life]
    left_out: int
    unjudged: int


def bed_lives(
    connection: sa.Connection, bed: Bed, runs: Sequence[RunLine], alerts: Known | None = None
) -> BedLives:
    """The alerts of a testbed; `runs` all of them, oldest first; `alerts` where they are read already."""
    alerts = alerts or known(connection, bed, runs)
    found, left_out = lives(connection, bed, {run.id: run for run in runs}, alerts)
    return BedLives(bed, found, left_out, unjudged(runs))
