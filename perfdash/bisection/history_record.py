"""A bisection into the history: its row, and the culprit into the alert that it began with."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from perfdash.bisection.replay import Course
from perfdash.bisection.result import Account
from perfdash.files import now
from perfdash.history import alert_store
from perfdash.history.alert_store import BisectionRow, save_bisection
from perfdash.history.store import open_store
from perfdash.settings import RunSettings

if TYPE_CHECKING:
    import sqlalchemy as sa

_NOTED = 10  # revisions of a set that the alert names


def save(settings: RunSettings, course: Course, said: Account, headline: str) -> None:
    """Saves the row of a bisection, and its `headline` in the alert that it began with."""
    asked = course.begun["asked"]
    culprits = [revision.id for one in said.culprits for revision in one.revisions]
    details = said.to_json()
    for each in details["ranges"]:
        each["tested"] = [{**t, "values": []} for t in each["tested"]]  # the journal has them
    row = BisectionRow(
        name=said.name,
        alert_id=said.alert,
        started=said.began,
        ended=said.ended or None,
        state=said.word if said.state == "done" else said.state,
        good=asked["good"],
        bad=asked["bad"],
        culprit=culprits[0] if len(culprits) == 1 else ",".join(culprits[:_NOTED]) or None,
        details=details,
    )
    with open_store(settings.history) as store, store.write() as connection:
        if said.alert is not None:
            alert = alert_store.find(connection, said.alert)
            if said.state == "done":
                _note(connection, alert, said, headline)
        save_bisection(connection, row)


def _note(connection: sa.Connection, alert: alert_store.Alert, said: Account, headline: str) -> None:
    """The alert learns what was found, once."""
    found = [
        {
            "commits": [dataclasses.asdict(revision) for revision in one.revisions[:_NOTED]],
            "of": len(one.revisions),
            "probability": one.probability,
            "change": one.change.ratio,
            "low": one.change.low,
            "high": one.change.high,
            "confirmed": one.confirmed,
        }
        for one in said.culprits
    ]
    bisected = {"name": said.name, "word": said.word, "culprits": found}
    if alert.details.get("bisected") == bisected:
        return
    changed = dataclasses.replace(alert, changed=now(), details={**alert.details, "bisected": bisected})
    alert_store.save(connection, changed, note=f"bisected: {headline}"[:400])
