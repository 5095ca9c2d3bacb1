"""A bisection in the words of `git bisect log`, which `git bisect replay` takes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from perfdash.bisection.account import Range, Tested
from perfdash.bisection.course import PIN, REVERT, Course
from perfdash.bisection.stage import Stage


def git_log(course: Course, ranges: tuple[Range, ...]) -> str:
    """The stages over one repository's commits, coarse first; or over versions, foreign to git."""
    commits = [stage for stage in course.stages if _is_of_commits(stage) and not _is_elsewhere(course, stage)]
    chosen = commits or course.stages[:1]
    lines = ["git bisect start"]
    for stage in chosen:
        lines += _of_stage(stage, ranges[stage.number])
    for stage, outcome in course.culprits():
        if stage in chosen:
            named = [stage.revisions[place] for place in range(outcome.first, outcome.last + 1)]
            word = "first bad commit" if len(named) == 1 else "possible first bad commit"
            lines += [f"# {word}: [{one.id}] {_one_line(one.title)}" for one in named]
    return "\n".join(lines) + "\n"


def _of_stage(stage: Stage, each: Range) -> Iterator[str]:
    last = stage.question.last
    sides = {tested.place: _side(tested) for tested in each.tested}
    sides.update(dict.fromkeys(stage.broken, "skip"))
    sides.update(stage.bisection.state.marks)
    sides.update({0: "good", last: "bad"})
    # Of several bad ones git takes the last that it is told for the oldest.
    rest = sorted(place for place in sides if place not in (0, last))
    bad = [place for place in rest if sides[place] == "bad"]
    for place in (last, 0, *(place for place in rest if sides[place] != "bad"), *reversed(bad)):
        revision, side = stage.revisions[place], sides[place]
        yield f"# {side or 'cannot tell'}: [{revision.id}] {_one_line(revision.title)}"
        if side:
            yield f"git bisect {side} {revision.id}"


def _side(tested: Tested) -> str:
    side = tested.mark or tested.side
    return side if side in ("good", "bad", "skip") else ""


def _is_of_commits(stage: Stage) -> bool:
    name = stage.revisions[-1].id
    return len(name) >= 40 and set(name) <= set("0123456789abcdef")


def _is_elsewhere(course: Course, stage: Stage) -> bool:
    """Whether its commits are of another repository."""
    while stage.origin:
        if stage.origin["way"] in (PIN, REVERT):
            return True
        stage = course.stages[int(stage.origin["stage"])]
    return False


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
