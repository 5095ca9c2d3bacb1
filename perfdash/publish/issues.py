"""Issues of regressions on GitHub: each is opened once, closed when fixed, opened again when it is back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from perfdash.errors import MachineError
from perfdash.publish import marker
from perfdash.publish.comments import Place, answered, bodies, myself, upsert
from perfdash.publish.failures import NoAnswer, Refused
from perfdash.publish.talk import Talk, sendable
from perfdash.publish.tracking import KIND, Existing, Move, Open, Tracked, steps

LABEL = "perfdash-regression"
_SETTLES_S = 3.0
_FUTILE = 4


@dataclass
class Tended:
    """What was done, as addresses of issues; `waiting`: alerts that the cap left without one."""

    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    reopened: list[str] = field(default_factory=list)
    waiting: int = 0


def tend(talk: Talk, repo: str, wanted: Sequence[Tracked], most: int, judged: Collection[str] = ()) -> Tended:
    """Brings the issues in step with the alerts; opens at most `most`, the first of `wanted`.

    An issue is known by its label, which only who may label can put on, and the marker in its body.
    `judged`: see `steps`. Raises MachineError.
    """
    repo = str(answered(talk.get(f"/repos/{repo}", f"repository {repo}"), "full_name", talk))
    done = Tended()
    made: dict[int, Existing] = {}
    chosen: list[Tracked] | None = None
    futile, fewest, doubt = 0, 1 << 30, None
    me: int | str | None = None
    while futile < _FUTILE:
        there = {one.number: one for one in (*_listed(talk, repo), *made.values())}
        todo = steps(list(there.values()), wanted, judged)
        fresh = [step.alert for step in todo if isinstance(step, Open)]
        if chosen is None:
            chosen, done.waiting = fresh[:most], len(fresh[most:])
            if todo:
                me = myself(talk)
            if chosen:
                _need_label(talk, repo)
        todo = [step for step in todo if isinstance(step, Move) or step.alert in chosen]
        if not todo:
            return done
        futile = 0 if len(todo) < fewest else futile + 1
        fewest = min(fewest, len(todo))
        try:
            for step in todo:
                one = (
                    _open(talk, repo, step)
                    if isinstance(step, Open)
                    else _move(talk, repo, step, there[step.number], me)
                )
                made[one.number] = one
                if isinstance(step, Open) or there[step.number].open != step.open:
                    _count(done, step, one)
        except NoAnswer as error:
            doubt = error
            talk.wait(_SETTLES_S, f"{error}; looking whether it was done")
    raise doubt or MachineError(f"the issues of {repo} change while they are written: post again later")


def _count(done: Tended, step: Open | Move, one: Existing) -> None:
    if isinstance(step, Open):
        done.opened.append(one.url)
    elif step.note:
        (done.reopened if step.open else done.closed).append(one.url)


def _listed(talk: Talk, repo: str) -> list[Existing]:
    asked = {"labels": LABEL, "state": "all"}
    found = talk.pages(f"/repos/{repo}/issues", f"the issues of {repo} with the label {LABEL}", asked)
    return [
        Existing(
            int(one["number"]), one.get("state") == "open", str(one["body"]), str(one.get("html_url") or "")
        )
        for one in found
        if marker.read(one.get("body"), KIND) is not None
    ]


def _need_label(talk: Talk, repo: str) -> None:
    what = f"the label {LABEL} of {repo}"
    try:
        talk.get(f"/repos/{repo}/labels/{LABEL}", what)
        return
    except Refused as error:
        if error.status != 404:
            raise
    label = {"name": LABEL, "color": "b60205", "description": "Found by perfdash"}
    try:
        talk.post(f"/repos/{repo}/labels", what, label, harmless=True)
    except Refused as error:
        if error.status == 422:  # it is there: another made it just now, or the try before
            return
        raise Refused(f"{error}; or make the label {LABEL} by hand", error.status) from None


def _open(talk: Talk, repo: str, step: Open) -> Existing:
    alert = step.alert
    body = f"{alert.marked('open', alert.blamed)}\n{sendable(alert.body)}"
    new = {"title": sendable(alert.title), "body": body, "labels": [LABEL]}
    answer = talk.post(f"/repos/{repo}/issues", f"opening an issue in {repo}", new)
    number, url = int(answered(answer, "number", talk)), str(answer.get("html_url") or "")
    if LABEL not in [each.get("name") for each in answer.get("labels") or []]:
        # Without the label it would not be known again. Who may not label has it dropped in silence.
        try:
            path = f"/repos/{repo}/issues/{number}/labels"
            talk.post(path, f"labelling issue {number} of {repo}", {"labels": [LABEL]}, harmless=True)
        except Refused as error:
            path = f"/repos/{repo}/issues/{number}"
            talk.patch(path, f"closing issue {number} of {repo}", {"state": "closed"})
            raise Refused(
                f"{error}. Without its label perfdash would not know issue {number} again, so it was closed: "
                "give the token's account the Triage role, or leave out --new-issue-on",
                error.status,
            ) from None
    return Existing(number, True, body, url)


def _move(talk: Talk, repo: str, step: Move, one: Existing, me: int | str | None) -> Existing:
    """The note first, the state after it: a command that is cut off between the two finds the note again."""
    what = f"issue {step.number} of {repo}"
    if step.note:
        of_it = {"series": step.alert.series, "state": step.alert.state, "at": step.alert.changed}
        if step.note == step.alert.blame:
            of_it = {"series": step.alert.series, "blamed": step.alert.blamed}
        note = bodies(step.note, "note", **of_it)
        upsert(talk, Place(repo, step.number, one.url, me), note, "note", **of_it)
    change: dict[str, str] = {"body": step.body}
    if one.open != step.open:
        change["state"] = "open" if step.open else "closed"
        if not step.open:
            change["state_reason"] = "completed" if step.alert.state == "fixed" else "not_planned"
    talk.patch(f"/repos/{repo}/issues/{step.number}", what, change)
    return Existing(step.number, step.open, step.body, one.url)
