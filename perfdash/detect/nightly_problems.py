"""The nightlies of a history that are late, missing, partial or failed."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from perfdash.detect.heartbeat import LATEST, Beat, health
from perfdash.history import nightlies


def nightly_problems(connection: sa.Connection, now: datetime) -> list[Beat]:
    """What is wrong with the nightlies at a moment; empty where none was ever begun."""
    by_job = nightlies.latest_of_jobs(connection, LATEST)
    return [beat for beat in health(by_job, now) if not beat.good] if by_job else []
