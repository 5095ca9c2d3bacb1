"""The nightlies of a history that are late, missing, partial or failed."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from perfdash.detect.heartbeat import Beat, health
from perfdash.history import nightlies

_LATEST = 200  # nightlies, among which a missing one is sought


def nightly_problems(connection: sa.Connection, now: datetime) -> list[Beat]:
    """What is wrong with the nightlies at a moment; empty where none was ever begun."""
    by_job: dict[str, list[nightlies.Nightly]] = {}
    for nightly in nightlies.load(connection, latest=_LATEST):
        by_job.setdefault(nightly.job, []).append(nightly)
    return [beat for beat in health(by_job, now) if not beat.good] if by_job else []
