"""The GitHub issues of regressions: opened, closed when fixed, reopened when back.

The marker in an issue's body says how perfdash left it, so what a person closed or opened by hand stays so.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from perfdash.errors import MachineError
from perfdash.publish import marker
from perfdash.publish.comments import TargetIssue, account_of, bodies, upsert
from perfdash.publish.github import GitHubClient, apply_until_done, required, sendable
from perfdash.publish.http_failures import Refused
from perfdash.report.markdown import code

KIND = "alert"
LABEL = "perfdash-regression"
_ASSIGNEES = 10  # that GitHub takes
_NAMED = 10  # alerts of an issue that ended in the same way
_MOST_MEMBERS = 500  # alerts that a marker names: 12 KB of the 64 KB of a body


@dataclass(frozen=True)
class WantedIssue:
    """A cause and what its issue should be.

    `series`, `born` (name of a run) and `opened` (a time) identify its first alert, `others` its other
    alerts in the same way. `state` and `changed` are the present state, and since when. `open` None: someone
    knows of it, so its issue is left as it is. `blame`: a note on the culprit, which the body has as well;
    empty where it is not known. `owners`: accounts that a new issue is assigned to.
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
    others: tuple[tuple[str, str, str], ...] = ()
    owners: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, str]:
        return {"series": self.series, "born": self.born, "opened": self.opened}

    @property
    def alerts(self) -> list[dict[str, str]]:
        """The fields that identify each of its alerts, as a marker has them."""
        keys = [(self.series, self.born, self.opened), *self.others]
        return [
            dict(zip(("series", "born", "opened"), map(marker.known_as, key), strict=True)) for key in keys
        ]

    @property
    def members(self) -> frozenset[str]:
        """The names in the marker of a new issue; none for a single alert, which the fields identify."""
        return self.names if self.others else frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Short names of its alerts; of many, a share of each machine's, the same every night.

        Each has two: by the run on which it was born, and by the time, for a history that no longer has the
        run (`history prune`).
        """
        names = sorted((_short({**alert, "born": ""}), _short(alert)) for alert in self.alerts)
        return frozenset(name for both in names[:_MOST_MEMBERS] for name in both)

    @property
    def blame_digest(self) -> str:
        """The marker's field by which an issue is known to name this culprit."""
        return hashlib.sha256(self.blame.encode(errors="replace")).hexdigest()[:12] if self.blame else ""

    def marker_line(self, left: str, blamed: str = "") -> str:
        """The marker of an issue that perfdash leaves `open` or `closed`, naming this culprit."""
        return _marker_line(self.fields, left, blamed, self.members)


def _marker_line(identity: dict[str, str], left: str, blamed: str, members: Collection[str]) -> str:
    more = {"blamed": blamed} if blamed else {}
    # A value of a marker is limited in length, so the members stand in several fields.
    names = sorted(members)
    for place in range(0, len(names), _IN_A_FIELD):
        more[f"members{_letters(place // _IN_A_FIELD)}"] = ".".join(names[place : place + _IN_A_FIELD])
    return marker.marker(KIND, **identity, left=left, **more)


_IN_A_FIELD = 12


def _letters(number: int) -> str:
    """0 as "a", 1 as "b", 26 as "ba": names of fields have letters only."""
    text = chr(ord("a") + number % 26)
    return _letters(number // 26) + text if number >= 26 else text


def _short(alert: dict[str, str]) -> str:
    """A short name of an alert: of its series, and of the run on which it was born or the time."""
    born = alert.get("born") or alert.get("opened")
    return hashlib.sha256(f"{alert.get('series')} {born}".encode()).hexdigest()[:10]


@dataclass(frozen=True)
class ExistingIssue:
    """An issue that perfdash opened: number, state, and body with the marker."""

    number: int
    open: bool
    body: str
    url: str = ""

    @cached_property
    def fields(self) -> dict[str, str]:
        return marker.read(self.body, KIND) or {}

    @property
    def identity(self) -> dict[str, str]:
        """The fields of its first alert."""
        return {name: self.fields.get(name, "") for name in ("series", "born", "opened")}

    @property
    def members(self) -> frozenset[str]:
        """The short names of the alerts that it ever had, as far as there is room; empty if it has one."""
        lists = [value for name, value in self.fields.items() if name.startswith("members")]
        return frozenset(name for value in lists for name in value.split(".") if name)


class _AlertIndex:
    """Finds the causes whose alerts an issue names, without a look at each of thousands of past alerts."""

    def __init__(self, wanted: Sequence[WantedIssue]) -> None:
        self._places: list[int] = []  # of the cause of each alert
        self._alerts: list[dict[str, str]] = []
        self._by_name: dict[tuple[str, ...], list[int]] = {}
        for place, item in enumerate(wanted):
            for alert in item.alerts:
                series = alert["series"]
                for name in ((_short(alert),), (series, "born", alert["born"]), (series, alert["opened"])):
                    self._by_name.setdefault(name, []).append(len(self._alerts))
                self._alerts.append(alert)
                self._places.append(place)

    def shared(self, issue: ExistingIssue) -> list[tuple[int, int]]:
        """The places of the causes that share alerts with an issue, in order, with how many they share."""
        fields = issue.fields
        series, born, opened = issue.identity.values()
        found = {
            number
            for name in ((series, "born", born), (series, opened))
            for number in self._by_name.get(name, ())
            if marker.same(fields, self._alerts[number])
        }
        for member in issue.members:
            found.update(self._by_name.get((member,), ()))
        return sorted(Counter(self._places[number] for number in found).items())


@dataclass(frozen=True)
class OpenIssue:
    """Open a new issue."""

    alert: WantedIssue


@dataclass(frozen=True)
class UpdateIssue:
    """Close, reopen or comment on an issue; without a note only update its marker."""

    number: int
    alert: WantedIssue
    open: bool
    body: str
    note: str = ""


Step = OpenIssue | UpdateIssue


@dataclass
class IssueChanges:
    """The addresses of the changed issues; `waiting`: alerts that the cap left without one."""

    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    reopened: list[str] = field(default_factory=list)
    waiting: int = 0


def sync_issues(
    client: GitHubClient,
    repo: str,
    wanted: Sequence[WantedIssue],
    most: int,
    judged: Collection[str] = (),
    changes: IssueChanges | None = None,
) -> IssueChanges:
    """Open, update and close issues to match the alerts; open at most `most`.

    An issue is recognised by its label, which only collaborators can set, and the marker in its body.
    `judged`: see `planned_steps`. `changes`: gets what was done, also where this fails. Raises MachineError;
    Refused, after all others were done, for issues that GitHub does not let perfdash write.
    """
    repo = str(required(client.get(f"/repos/{repo}", f"repository {repo}"), "full_name", client))
    sync = _Sync(client, repo, wanted, most, judged, IssueChanges() if changes is None else changes)
    conflict = f"the issues of {repo} change while they are written: post again later"
    try:
        apply_until_done(client, sync.planned, sync.apply, conflict)
    except MachineError as error:
        if sync.refused:
            raise MachineError("\n".join([*sync.refused.values(), str(error)])) from error
        raise
    if sync.refused:
        raise Refused("\n".join(sync.refused.values()))
    return sync.changes


class _Sync:
    """One call of sync_issues: the issues that it saw and wrote."""

    def __init__(
        self,
        client: GitHubClient,
        repo: str,
        wanted: Sequence[WantedIssue],
        most: int,
        judged: Collection[str],
        changes: IssueChanges,
    ) -> None:
        self.client, self.repo, self.wanted, self.most, self.judged = client, repo, wanted, most, judged
        self.changes = changes
        self.refused: dict[int | WantedIssue, str] = {}  # by number; an issue that is to be opened by itself
        self._existing: dict[int, ExistingIssue] = {}
        self._written: dict[int, ExistingIssue] = {}  # GitHub's list may lag behind what was just written
        self._to_open: list[WantedIssue] | None = None
        self._account: int | str | None = None

    def planned(self) -> Sequence[Step]:
        """List our issues and plan what is left to do. The first call chooses the alerts to open."""
        self._existing = {issue.number: issue for issue in (*self._listed(), *self._written.values())}
        steps = planned_steps(list(self._existing.values()), self.wanted, self.judged)
        if self._to_open is None:
            new = [step.alert for step in steps if isinstance(step, OpenIssue)]
            self._to_open, self.changes.waiting = new[: self.most], len(new[self.most :])
            if steps:
                self._account = account_of(self.client)
            if self._to_open:
                self._ensure_label()
        return [
            step
            for step in steps
            if (isinstance(step, UpdateIssue) or step.alert in self._to_open)
            and _written_by(step) not in self.refused
        ]

    def apply(self, step: Step) -> None:
        """Carry out one step and count it; a step that GitHub refuses is left out from then on."""
        # An issue may be locked, deleted or moved. An account that may open none may open no other either.
        one_of_many = (403, 404, 410, 422) if isinstance(step, UpdateIssue) else (422,)
        try:
            self._carry_out(step)
        except Refused as error:
            if error.status not in one_of_many:
                raise
            self.refused[_written_by(step)] = str(error)

    def _carry_out(self, step: Step) -> None:
        if isinstance(step, OpenIssue):
            issue = self._open(step.alert)
            self.changes.opened.append(issue.url)
        else:
            before = self._existing[step.number]
            issue = self._update(step, before)
            if before.open != step.open and step.note:
                (self.changes.reopened if step.open else self.changes.closed).append(issue.url)
        self._written[issue.number] = issue

    def _listed(self) -> list[ExistingIssue]:
        what = f"the issues of {self.repo} with the label {LABEL}"
        items = self.client.pages(f"/repos/{self.repo}/issues", what, {"labels": LABEL, "state": "all"})
        return [
            ExistingIssue(
                int(item["number"]),
                item.get("state") == "open",
                str(item["body"]),
                str(item.get("html_url") or ""),
            )
            for item in items
            if marker.read(item.get("body"), KIND) is not None
        ]

    def _ensure_label(self) -> None:
        what = f"the label {LABEL} of {self.repo}"
        try:
            self.client.get(f"/repos/{self.repo}/labels/{LABEL}", what)
            return
        except Refused as error:
            if error.status != 404:
                raise
        label = {"name": LABEL, "color": "b60205", "description": "Found by perfdash"}
        try:
            self.client.post(f"/repos/{self.repo}/labels", what, label, harmless=True)
        except Refused as error:
            if error.status == 422:  # it exists: another command created it, or our lost request did
                return
            raise Refused(f"{error}; or make the label {LABEL} by hand", error.status) from None

    def _open(self, alert: WantedIssue) -> ExistingIssue:
        client, repo = self.client, self.repo
        body = f"{alert.marker_line('open', alert.blame_digest)}\n{sendable(alert.body)}"
        new: dict[str, object] = {"title": sendable(alert.title), "body": body, "labels": [LABEL]}
        people = [owner for owner in alert.owners if "/" not in owner]
        what = f"opening the issue {sendable(alert.title)!r} in {repo}"
        try:
            assigned = {**new, "assignees": people[:_ASSIGNEES]} if people else new
            answer = client.post(f"/repos/{repo}/issues", what, assigned)
        except Refused as error:
            if not people or error.status != 422:  # an owner may not be assigned there; the body names them
                raise
            answer = client.post(f"/repos/{repo}/issues", what, new)
        number, url = int(required(answer, "number", client)), str(answer.get("html_url") or "")
        if LABEL not in [label.get("name") for label in answer.get("labels") or []]:
            # GitHub silently drops the label for an account that may not label. Without it the issue would
            # not be recognised, and the next night would open another one.
            try:
                path = f"/repos/{repo}/issues/{number}/labels"
                client.post(path, f"labelling issue {number} of {repo}", {"labels": [LABEL]}, harmless=True)
            except Refused as error:
                path = f"/repos/{repo}/issues/{number}"
                client.patch(path, f"closing issue {number} of {repo}", {"state": "closed"})
                raise Refused(
                    f"{error}. Without its label perfdash would not know issue {number} again, so it was "
                    "closed: give the token's account the Triage role, or leave out --new-issue-on",
                    error.status,
                ) from None
        return ExistingIssue(number, True, body, url)

    def _update(self, step: UpdateIssue, issue: ExistingIssue) -> ExistingIssue:
        """Write the note first, then the state: an interrupted command finds the note again."""
        if step.note:
            alert = step.alert
            fields = {"series": alert.series, "state": alert.state, "at": alert.changed}
            if step.note == alert.blame:
                fields = {"series": alert.series, "blamed": alert.blame_digest}
            target = TargetIssue(self.repo, step.number, issue.url, self._account)
            upsert(self.client, target, bodies(step.note, "note", **fields), "note", posted=None, **fields)
        change: dict[str, str] = {"body": step.body}
        if issue.open != step.open:
            change["state"] = "open" if step.open else "closed"
            if not step.open:
                change["state_reason"] = "completed" if step.alert.state == "fixed" else "not_planned"
        path = f"/repos/{self.repo}/issues/{step.number}"
        self.client.patch(path, f"issue {step.number} of {self.repo}", change)
        return ExistingIssue(step.number, step.open, step.body, issue.url)


def _written_by(step: Step) -> int | WantedIssue:
    """Which issue a step writes: its number, or what is to be opened."""
    return step.number if isinstance(step, UpdateIssue) else step.alert


def planned_steps(
    existing: Sequence[ExistingIssue], wanted: Sequence[WantedIssue], judged: Collection[str] = ()
) -> list[Step]:
    """What is to be done, closing first.

    A cause has the issues that name one of its alerts; of several the oldest counts. An issue of which
    several causes have alerts is the one's that has most of them, and is closed when no cause of it is open.
    A history made anew may have the same change born on another run: an open issue whose alerts are gone is
    adopted by a cause that has an alert of its series and no issue, else it is closed. `judged`: names of the
    runs in the history; only of an alert born on one of these can it say that the alert is gone.
    """
    steps: list[Step] = []
    alerts = _AlertIndex(wanted)
    has_issue: set[int] = set()  # of wanted, by place
    own: dict[int, list[ExistingIssue]] = {}  # of wanted, by place
    orphans: list[ExistingIssue] = []
    for issue in sorted(existing, key=lambda issue: issue.number):
        related = alerts.shared(issue)
        has_issue.update(place for place, _ in related)
        if not related:
            orphans += [issue] if issue.open and issue.fields.get("left") == "open" else []
            continue
        is_open = [(place, shared) for place, shared in related if wanted[place].open]
        if is_open:
            owner = max(is_open, key=lambda item: item[1])[0]
            own.setdefault(owner, []).append(issue)
        elif all(wanted[place].open is False for place, _ in related):
            steps += _step_of(issue, _ended([wanted[place] for place, _ in related]))
    for place, item in enumerate(wanted):
        issues = own.get(place, [])
        if issues:
            steps += _step_of(issues[0], item)
            steps += [
                UpdateIssue(
                    issue.number,
                    item,
                    False,
                    _new_body(issue, item, "closed"),
                    f"The same as #{issues[0].number}.",
                )
                for issue in issues[1:]
                if issue.open and issue.fields.get("left") == "open"
            ]
    without = [
        item
        for place, item in enumerate(wanted)
        if place not in own and (item.open or (item.open is None and place not in has_issue))
    ]
    for item in sorted(without, key=lambda item: not item.open):
        series = {alert["series"] for alert in item.alerts}
        adopted = next((issue for issue in orphans if issue.fields.get("series") in series), None)
        if adopted:
            orphans.remove(adopted)
            steps.append(UpdateIssue(adopted.number, item, True, _adopted_body(adopted, item)))
        elif item.open:
            steps.append(OpenIssue(item))
    judged_runs = {marker.known_as(name) for name in judged}
    steps += [_close_orphan(issue) for issue in orphans if issue.fields.get("born") in judged_runs]
    return sorted(steps, key=lambda step: isinstance(step, OpenIssue))


def _ended(alerts: Sequence[WantedIssue]) -> WantedIssue:
    """The alert that ended last, for the issue of several that are over.

    Where they ended in different ways its note says so of each, and its state is none of theirs.
    """
    last = max(alerts, key=lambda alert: alert.changed)
    titles: dict[str, list[str]] = {}
    for alert in alerts:
        titles.setdefault(alert.note, []).append(alert.title.removeprefix("Regression: "))
    states = {alert.state for alert in alerts}
    if states == {"fixed"} or len(titles) == 1:
        return last
    return replace(
        last,
        state=last.state if len(states) == 1 else "ended in different ways",
        note="\n\n".join(f"{note}\n\n{_listed(names)}" for note, names in titles.items()),
    )


def _listed(names: Sequence[str]) -> str:
    lines = [f"- {code(name)}" for name in names[:_NAMED]]
    return "\n".join([*lines, *([f"- and {len(names) - _NAMED} more"] if len(names) > _NAMED else [])])


def _close_orphan(issue: ExistingIssue) -> UpdateIssue:
    """Close the issue of an alert that no longer exists."""
    series, born, opened = issue.identity.values()
    note = "The history was judged anew, and does not show this regression any more."
    alert = WantedIssue(series, born, opened, "gone", opened, False, "", "", note)
    return UpdateIssue(issue.number, alert, False, _new_body(issue, alert, "closed"), note)


def _step_of(issue: ExistingIssue, cause: WantedIssue) -> list[Step]:
    """The step for a cause's issue; none where it is as it should be."""
    left, blamed = issue.fields.get("left"), cause.blame_digest
    if cause.open and left == "open":
        if issue.open and blamed not in ("", issue.fields.get("blamed")):
            return [
                UpdateIssue(issue.number, cause, True, _new_body(issue, cause, "open", blamed), cause.blame)
            ]
        if _names(issue, cause) <= issue.members:
            return []
        # More alerts joined the cause, or an earlier version gave them one name: only the marker follows.
        return [UpdateIssue(issue.number, cause, issue.open, _new_body(issue, cause, "open"))]
    if cause.open is None or (not cause.open and left == "closed"):
        return []
    state = "open" if cause.open else "closed"
    # Where a person has closed or opened it already, only the marker follows.
    note = cause.note if issue.open != cause.open else ""
    return [UpdateIssue(issue.number, cause, cause.open, _new_body(issue, cause, state), note)]


def _new_body(issue: ExistingIssue, cause: WantedIssue, left: str, blamed: str | None = None) -> str:
    """An issue's body below its new marker, with the edits of people kept."""
    blamed = issue.fields.get("blamed", "") if blamed is None else blamed
    names = _names(issue, cause)
    room = max(0, 2 * _MOST_MEMBERS - len(names))
    earlier = sorted(issue.members - names)[:room]
    line = _marker_line(issue.identity, left, blamed, names.union(earlier))
    return f"{line}\n{issue.body.partition(chr(10))[2]}"


def _names(issue: ExistingIssue, cause: WantedIssue) -> frozenset[str]:
    """The names of a cause in its issue's marker; of a single alert only if the issue names others."""
    return cause.names if issue.members else cause.members


def _adopted_body(issue: ExistingIssue, cause: WantedIssue) -> str:
    """The body of an issue that is another alert's from now on."""
    line = cause.marker_line("open", issue.fields.get("blamed", ""))
    return f"{line}\n{issue.body.partition(chr(10))[2]}"
