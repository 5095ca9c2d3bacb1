"""Which issues of regressions are opened, closed and opened again, by those that are there. Pure.

The issue's marker says how perfdash left it, so what a person closed or opened by hand stays so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdash.publish import marker

KIND = "alert"


@dataclass(frozen=True)
class Tracked:
    """An alert as its issue should be. `open` None: someone knows of it, so the issue is left as it is.

    `series`, `born` (name of a run) and `opened` (a time) say which alert it is; `state` and `changed`
    what it came to, and when.
    """

    series: str
    born: str
    opened: str
    state: str
    changed: str
    open: bool | None
    title: str
    body: str
    note: str

    @property
    def fields(self) -> dict[str, str]:
        return {"series": self.series, "born": self.born, "opened": self.opened}

    def marked(self, left: str) -> str:
        """The issue's marker when perfdash leaves it `open` or `closed`."""
        return marker.marker(KIND, **self.fields, left=left)


@dataclass(frozen=True)
class Existing:
    """An issue of ours: its number, whether it is open, and its body with the marker."""

    number: int
    open: bool
    body: str
    url: str = ""

    @property
    def fields(self) -> dict[str, str]:
        return marker.read(self.body, KIND) or {}


@dataclass(frozen=True)
class Open:
    """A new issue."""

    alert: Tracked


@dataclass(frozen=True)
class Move:
    """An issue is closed or opened again, with a note; without one only the marker is brought up to date."""

    number: int
    alert: Tracked
    open: bool
    body: str
    note: str = ""


Step = Open | Move


def steps(existing: Sequence[Existing], wanted: Sequence[Tracked]) -> list[Step]:
    """What is to be done, issues that are closed first. Of several issues of an alert the oldest counts."""
    found: list[Step] = []
    of_series: dict[str, list[Existing]] = {}
    for one in sorted(existing, key=lambda one: one.number):
        of_series.setdefault(one.fields.get("series", ""), []).append(one)
    for alert in wanted:
        asked = {name: marker.known_as(value) for name, value in alert.fields.items()}
        of_it = [one for one in of_series.get(asked["series"], ()) if marker.same(one.fields, asked)]
        if not of_it:
            if alert.open:
                found.append(Open(alert))
            continue
        found += _of_first(of_it[0], alert)
        found += [
            Move(one.number, alert, False, _left(one, alert, "closed"), f"The same as #{of_it[0].number}.")
            for one in of_it[1:]
            if one.open and one.fields.get("left") == "open"
        ]
    return sorted(found, key=lambda step: isinstance(step, Open))


def _of_first(one: Existing, alert: Tracked) -> list[Step]:
    left = one.fields.get("left")
    if alert.open is None or (alert.open and left == "open") or (not alert.open and left == "closed"):
        return []
    word = "open" if alert.open else "closed"
    # Who found it so already was a person: only the marker follows.
    note = alert.note if one.open != alert.open else ""
    return [Move(one.number, alert, alert.open, _left(one, alert, word), note)]


def _left(one: Existing, alert: Tracked, word: str) -> str:
    """The issue's body as a person may have edited it, under the new marker."""
    return f"{alert.marked(word)}\n{one.body.partition(chr(10))[2]}"
