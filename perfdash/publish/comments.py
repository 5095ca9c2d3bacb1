"""The comments of a run below an issue: made, brought up to date, and no more than there should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from perfdash.errors import MachineError
from perfdash.publish import marker
from perfdash.publish.failures import NoAnswer, Refused
from perfdash.publish.plan import Action, Create, Edit, Remove, Seen, plan
from perfdash.publish.talk import Talk, sendable
from perfdash.report.comment_splitting import LIMIT, parts, size

KIND = "comment"
_FUTILE = 4  # rounds without progress before it is given up
_SETTLES_S = 3.0  # a request whose reply was lost may still be at work


@dataclass(frozen=True)
class Place:
    """An issue (or pull request) as it is found now, and the account that writes."""

    repo: str
    number: int
    url: str
    me: int | str | None  # the account's number; an app's login; None: an app that cannot know it


@dataclass
class Outcome:
    """What was done: the comments' addresses in their order, and how many of each."""

    urls: list[str] = field(default_factory=list)
    created: int = 0
    edited: int = 0
    removed: int = 0


def bodies(text: str, kind: str, **fields: object) -> list[str]:
    """The text as comments of at most LIMIT bytes, each with its marker as the first line."""
    longest = size(marker.marker(kind, **fields, part=999)) + 1
    return [
        f"{marker.marker(kind, **fields, part=number)}\n{part}"
        for number, part in enumerate(parts(sendable(text), LIMIT - longest), start=1)
    ]


def find(talk: Talk, repo: str, number: int) -> Place:
    """The issue, wherever it was moved to. Raises Refused."""
    found = talk.get(f"/repos/{repo}", f"repository {repo}")
    repo = str(answered(found, "full_name", talk))
    issue = talk.get(f"/repos/{repo}/issues/{number}", f"issue {number} of {repo}")
    number = int(answered(issue, "number", talk))
    now = str(issue.get("repository_url") or "").rpartition("/repos/")[2] or repo
    return Place(now, number, str(issue.get("html_url") or ""), myself(talk))


def myself(talk: Talk) -> int | str | None:
    """The number of the token's account; of an app's, which may not ask for it, the login, where told."""
    what = "the token's account"
    try:
        return int(answered(talk.get("/user", what), "id", talk))
    except Refused as error:
        if error.status not in (403, 404):
            raise
    try:
        answer = talk.post("/graphql", what, {"query": "query { viewer { login } }"}, harmless=True)
    except Refused:
        return None  # on an Enterprise server it lies elsewhere
    data = answer.get("data") if isinstance(answer, dict) else None
    viewer = data.get("viewer") if isinstance(data, dict) else None
    login = viewer.get("login") if isinstance(viewer, dict) else None
    return login if isinstance(login, str) and login else None


def upsert(
    talk: Talk, place: Place, wanted: Sequence[str], kind: str, since: str | None = None, **fields: object
) -> Outcome:
    """Leaves exactly the bodies `wanted` among our comments of this kind and these fields.

    `since` (ISO 8601): most likely no such comment is older; all are looked at before the first is made.
    Looks again after every doubt, and once more after it has made some: so a lost reply, a person who
    removes parts and another who posts at the same time all end with one set of comments. Raises
    MachineError.
    """
    known = {name: marker.known_as(str(value)) for name, value in fields.items()}
    done = Outcome()
    made: dict[int, Seen] = {}  # by this call: a list may lag behind
    gone: set[int] = set()
    first: set[int] | None = None
    futile, fewest, doubt = 0, 1 << 30, None
    while futile < _FUTILE:
        listed, others = _ours(talk, place, kind, known, since)
        if first is None and since and len(listed) < len(wanted):
            every, others = _ours(talk, place, kind, known, None)
            if len(every) > len(listed):  # posted when the run's clock was far ahead
                listed, since = every, None
        there = {one.id: one for one in (*listed, *made.values()) if one.id not in gone}
        if first is None:
            first = set(there)
            if others:
                talk.tell(f"{others} such comments are by another account: they are left as they are")
        actions = plan(list(there.values()), wanted)
        if not actions:
            done.urls = [there[number].url for number in sorted(there)]
            done.created = len(there.keys() - first)
            return done
        futile = 0 if len(actions) < fewest else futile + 1
        fewest = min(fewest, len(actions))
        try:
            for action in actions:
                made.update(_perform(talk, place, action, done, gone))
        except NoAnswer as error:
            doubt = error
            talk.wait(_SETTLES_S, f"{error}; looking whether it was done")
        except Refused as error:
            if isinstance(action, Create) or not (
                (isinstance(action, Edit) and error.status in (404, 410))  # someone removed it just now
                or (place.me is None and error.status == 403)  # another app's
            ):
                raise
            gone.add(action.id)
            made.pop(action.id, None)
    raise doubt or MachineError(
        f"the comments of issue {place.number} in {place.repo} change while they are written: is another "
        "perfdash posting there? Post again later"
    )


def _perform(talk: Talk, place: Place, action: Action, done: Outcome, gone: set[int]) -> dict[int, Seen]:
    """Carries out one action; the comment that it leaves, by its number."""
    of = f"a comment of issue {place.number} in {place.repo}"
    comments = f"/repos/{place.repo}/issues/comments"
    if isinstance(action, Remove):
        talk.delete(f"{comments}/{action.id}", f"removing {of}")
        gone.add(action.id)
        done.removed += 1
        return {}
    if isinstance(action, Edit):
        answer = talk.patch(f"{comments}/{action.id}", f"editing {of}", {"body": action.body})
        done.edited += 1
    else:
        assert isinstance(action, Create)
        path = f"/repos/{place.repo}/issues/{place.number}/comments"
        answer = talk.post(path, f"writing {of}", {"body": action.body})
    number = int(answered(answer, "id", talk))
    return {number: Seen(number, action.body, str(answer.get("html_url") or ""))}


def _ours(
    talk: Talk, place: Place, kind: str, known: Mapping[str, str], since: str | None
) -> tuple[list[Seen], int]:
    """Our comments with the marker, and how many others have it: copies by hand, which are left alone."""
    path = f"/repos/{place.repo}/issues/{place.number}/comments"
    what = f"the comments of issue {place.number} in {place.repo}"
    found, others = [], 0
    for one in talk.pages(path, what, {"since": since} if since else None):
        told = marker.read(one.get("body"), kind)
        if told is None or not marker.has(told, known):
            continue
        if _is_mine(one.get("user") or {}, place.me):
            found.append(Seen(int(one["id"]), str(one["body"]), str(one.get("html_url") or "")))
        else:
            others += 1
    return found, others


def _is_mine(user: Mapping[str, Any], me: int | str | None) -> bool:
    if me is None:
        return user.get("type") == "Bot"
    return bool(user.get("id" if isinstance(me, int) else "login") == me)


def answered(answer: Any, name: str, talk: Talk) -> Any:
    if not isinstance(answer, dict) or not answer.get(name):
        raise MachineError(f"{talk.host} does not answer like GitHub ({name} is missing); check --base-url")
    return answer[name]


def since(started: str, now: float) -> str | None:
    """A day before a run began (clocks differ): its comments are hardly older. None: nobody knows.

    A run that claims to begin after `now` (seconds since 1970) was measured under a wrong clock.
    """
    try:
        began = datetime.fromisoformat(started)
        began = began if began.tzinfo else began.replace(tzinfo=UTC)
        day = min(began.timestamp(), now) - timedelta(days=1).total_seconds()
        return datetime.fromtimestamp(day, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None
