"""Which issues of regressions are opened, closed and opened again, by those that are there. Pure.

The issue's marker says how perfdash left it, so what a person closed or opened by hand stays so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perfdash.publish import marker

KIND = "alert"


@dataclass(frozen=True)
class Tracked:
    """An alert as its issue should be. `open` None: someone knows of it, so the issue is left as it is.

    `series`, `born` (name of a run) and `opened` (a time) say which alert it is; `state` and `changed`
    what it came to, and when. `blame`: a note of who is to blame, which the body has as well; empty where
    that is not known.
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
    blame: str = ""

    @property
    def fields(self) -> dict[str, str]:
        return {"series": self.series, "born": self.born, "opened": self.opened}

    @property
    def blamed(self) -> str:
        """What an issue's marker says where it tells of this blame."""
        return hashlib.sha256(self.blame.encode(errors="replace")).hexdigest()[:12] if self.blame else ""

    def marked(self, left: str, blamed: str = "") -> str:
        """The issue's marker when perfdash leaves it `open` or `closed`, and it tells of this blame."""
        known = {"blamed": blamed} if blamed else {}
        return marker.marker(KIND, **self.fields, left=left, **known)


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
    """An issue is closed or opened again, or told of what is new, with a note; without one only the marker is
    brought up to date."""

    number: int
    alert: Tracked
    open: bool
    body: str
    note: str = ""


Step = Open | Move


def steps(
    existing: Sequence[Existing], wanted: Sequence[Tracked], judged: Collection[str] = ()
) -> list[Step]:
    """What is to be done, issues that are closed first. Of several issues of an alert the oldest counts.

    A history made anew may have the same step born on another run: an open issue whose alert is gone goes
    to one of its series that has none, else it is closed. `judged`: names of the runs that the history
    has, for only of an alert born on one of these can it say that it is gone.
    """
    found: list[Step] = []
    of_series: dict[str, list[Existing]] = {}
    for one in sorted(existing, key=lambda one: one.number):
        of_series.setdefault(one.fields.get("series", ""), []).append(one)
    lone = {one.number: one for one in existing if one.open and one.fields.get("left") == "open"}
    without: list[Tracked] = []
    for alert in wanted:
        asked = {name: marker.known_as(value) for name, value in alert.fields.items()}
        of_it = [one for one in of_series.get(asked["series"], ()) if marker.same(one.fields, asked)]
        if not of_it:
            without.append(alert)
            continue
        for one in of_it:
            lone.pop(one.number, None)
        found += _of_first(of_it[0], alert)
        found += [
            Move(one.number, alert, False, _left(one, alert, "closed"), f"The same as #{of_it[0].number}.")
            for one in of_it[1:]
            if one.open and one.fields.get("left") == "open"
        ]
    for alert in sorted(without, key=lambda alert: not alert.open):
        if alert.open is False:
            continue
        adopted = next((one for one in of_series.get(alert.series, ()) if one.number in lone), None)
        if adopted:
            del lone[adopted.number]
            found.append(Move(adopted.number, alert, True, _left(adopted, alert, "open")))
        elif alert.open:
            found.append(Open(alert))
    known = {marker.known_as(name) for name in judged}
    found += [_gone(one) for _, one in sorted(lone.items()) if one.fields.get("born") in known]
    return sorted(found, key=lambda step: isinstance(step, Open))


def _gone(one: Existing) -> Move:
    """Closes the issue of an alert that is no more."""
    series, born, opened = (one.fields.get(name, "") for name in ("series", "born", "opened"))
    note = "The history was judged anew, and does not show this regression any more."
    alert = Tracked(series, born, opened, "gone", opened, False, "", "", note)
    return Move(one.number, alert, False, _left(one, alert, "closed"), note)


def _of_first(one: Existing, alert: Tracked) -> list[Step]:
    left = one.fields.get("left")
    if alert.open and left == "open" and one.open and alert.blamed not in ("", one.fields.get("blamed")):
        return [Move(one.number, alert, True, _left(one, alert, "open", alert.blamed), alert.blame)]
    if alert.open is None or (alert.open and left == "open") or (not alert.open and left == "closed"):
        return []
    word = "open" if alert.open else "closed"
    # Who found it so already was a person: only the marker follows.
    note = alert.note if one.open != alert.open else ""
    return [Move(one.number, alert, alert.open, _left(one, alert, word), note)]


def _left(one: Existing, alert: Tracked, word: str, blamed: str | None = None) -> str:
    """The issue's body as a person may have edited it, under the new marker."""
    told = one.fields.get("blamed", "") if blamed is None else blamed
    return f"{alert.marked(word, told)}\n{one.body.partition(chr(10))[2]}"
