"""The nightlies of a history that are late, missing, partial or failed, or were."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from perfdash.detect.heartbeat import LATEST, Beat, health, problems_since
from perfdash.history import nightlies


def nightly_problems(connection: sa.Connection, now: datetime) -> list[Beat]:
    """What is wrong with the nightlies at a moment; empty where none was ever begun."""
    by_job = nightlies.latest_of_jobs(connection, LATEST)
    return [beat for beat in health(by_job, now) if not beat.good] if by_job else []


def nightly_problems_since(connection: sa.Connection, since: datetime, now: datetime) -> list[Beat]:
    """What was wrong with the nightlies of a time, those that came and those that did not, job by job."""
    of_jobs = [nightlies.load(connection, job=job) for job in nightlies.jobs(connection)]
    return [beat for of_job in of_jobs for beat in problems_since(of_job, since, now)]
