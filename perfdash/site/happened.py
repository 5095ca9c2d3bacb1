"""What happened on a testbed: the alerts that live, those that ended, and what changed on the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import sqlalchemy as sa

from perfdash.detect.alert_evidence import AlertEvidence, gather
from perfdash.detect.environment_changes import environment_changes
from perfdash.history import alert_store as kept
from perfdash.history.alert_store import Alert, AlertEvent
from perfdash.history.queries import RunLine, cases_by_id
from perfdash.report.alert_text import commit
from perfdash.report.changes import (
    APPEARED,
    BAD,
    IMPROVEMENT,
    NEW_FAILURE,
    REGRESSION,
    REPAIRED,
    VANISHED,
    RunChange,
    of_alert,
    ordered,
)
from perfdash.site.history import Bed
from perfdash.site.kinds import newest

MOST = 100  # alerts on one page with all that is known of them; the largest come first
_TORCH = "torch: "
# The word of one change of a group.
WORDS = {
    REGRESSION: "regression", IMPROVEMENT: "improvement", NEW_FAILURE: "new failure", REPAIRED: "fixed",
    APPEARED: "appeared", VANISHED: "vanished",
}  # fmt: skip
# Where torch is another one on more nights than this fraction, that is how it is measured: no event.
_OFTEN = 0.1


@dataclass(frozen=True)
class Alerts:
    """A testbed's alerts on some page: `changes` are shown, all of `every` are counted."""

    changes: list[RunChange]
    every: list[RunChange]

    @property
    def left_out(self) -> int:
        return len(self.every) - len(self.changes)

    @property
    def worse(self) -> int:
        return len(self._bad)

    @property
    def fresh(self) -> int:
        """How many of what is worse were seen on the last night for the first time."""
        return sum(change.fresh for change in self._bad)

    @property
    def acknowledged(self) -> int:
        """How many of what is worse somebody knows of."""
        return sum(change.acknowledged for change in self._bad)

    @property
    def counts(self) -> list[str]:
        """What is worse, in words, by kind."""
        groups = [change.group for change in self._bad]
        return [_counted(groups.count(group), WORDS[group]) for group in BAD if group in groups]

    @property
    def _bad(self) -> list[RunChange]:
        return [change for change in self.every if change.group in BAD]


@dataclass(frozen=True)
class Known:
    """The alerts that stand on the last night or ended with it: all that is known of the largest, and
    the `others`. `heads`: the last night of each kind, as the testbed may be measured in several runs."""

    evidence: list[AlertEvidence]
    others: list[Alert]
    heads: list[RunLine]


def known(connection: sa.Connection, bed: Bed, runs: Sequence[RunLine], most: int = MOST) -> Known:
    """The alerts that live, and those that ended on the last night; `runs` all of them, oldest first."""
    heads = newest(connection, runs)
    last = {run.id for run in heads}
    found = [
        alert
        for alert in kept.load(connection, testbed_id=bed.id, states=(*kept.LIVE, kept.FIXED))
        if alert.state in kept.LIVE or alert.details.get("fixed_run_id") in last
    ]
    ranked = sorted(found, key=_rank)
    return Known(gather(connection, ranked[:most]), ranked[most:], heads)


def live(known: Known, most: int) -> Alerts:
    """They as the comment on the last night tells them, the most important so many."""
    heads = {run.id: run for run in known.heads}
    changes = ordered(_on_its_night(each, heads) for each in known.evidence)
    others = [
        _on_its_night(AlertEvidence(alert, None, None, heads.get(alert.bad_run_id or -1), None), heads)
        for alert in known.others
    ]
    return Alerts(changes[:most], changes + others)


def _on_its_night(each: AlertEvidence, heads: Mapping[int, RunLine]) -> RunChange:
    """An alert as it stands on the last night of its kind: the one where it was fixed or first seen."""
    _, bad = each.between
    details = each.alert.details
    its = [details.get("born_run_id"), bad.id if bad else None]
    if each.alert.state == kept.FIXED:
        its = [details.get("fixed_run_id")]
    return of_alert(each, next((number for number in heads if number in its), -1))


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' if count > 1 and word != WORDS[VANISHED] else ''}"


def _rank(alert: Alert) -> tuple[object, ...]:
    return alert.state not in kept.LIVE, -alert.direction, -abs(alert.change or 9.0), alert.id


@dataclass(frozen=True)
class Life:
    """One alert with all that it went through."""

    change: RunChange
    alert: Alert
    events: list[AlertEvent]


def lives(
    connection: sa.Connection, bed: Bed, runs: Mapping[int, RunLine], known: Known, most: int = MOST
) -> tuple[list[Life], int]:
    """The alerts of a testbed: those known as they live, then the latest that ended; how many more."""
    every = kept.load(connection, testbed_id=bed.id, states=kept.STATES)
    evidence = [each for each in known.evidence if each.alert.state in kept.LIVE]
    ended = sorted(
        (alert for alert in every if alert.state not in kept.LIVE),
        key=lambda alert: (alert.changed, alert.id),
        reverse=True,
    )[:most]
    cases = cases_by_id(connection, (alert.case_id for alert in ended if alert.case_id is not None))
    evidence += [
        AlertEvidence(
            alert,
            cases.get(alert.case_id or -1),
            runs.get(alert.good_run_id or -1),
            runs.get(alert.bad_run_id or -1),
            runs.get(alert.seen_run_id or -1),
        )
        for alert in ended
    ]
    found = [
        Life(
            # Of an ended one it is told what it was, not what it is now.
            replace(of_alert(each, -1), state=each.alert.state),
            each.alert,
            kept.events(connection, each.alert.id or 0),
        )
        for each in evidence
    ]
    return found, len(every) - len(found)


def unjudged(runs: Sequence[RunLine]) -> int:
    """How many of the latest runs nobody has looked for changes in yet."""
    return sum(run.judged is None and run.results > 0 for run in runs[-30:])


def machine_changes(runs: Sequence[RunLine]) -> list[tuple[RunLine, list[str]]]:
    """The runs whose machine or packages differ from those of the run before, with what differs.

    Where torch is built anew night after night, that alone is no event: each point names its commit.
    """
    found = []
    for old, new in pairwise(runs):
        if old.environment_id != new.environment_id or old.host != new.host:
            lines = [line for line in environment_changes(old, new) if line]
            if lines:
                found.append((new, lines))
    nightly = sum(lines[0].startswith(_TORCH) and len(lines) == 1 for _, lines in found)
    if nightly <= max(3, _OFTEN * len(runs)):
        return found
    return [(run, lines) for run, lines in found if len(lines) > 1 or not lines[0].startswith(_TORCH)]


def build_words(run: RunLine | None) -> str:
    """torch's version and commit, as far as known."""
    if run is None:
        return ""
    sha = (run.torch_git_version or "")[:10]
    return " ".join(word for word in (run.torch or "", sha) if word) or commit(run)
