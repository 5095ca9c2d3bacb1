"""Say how a finer stage was opened, and what it showed of the culprit above it. Pure."""

from __future__ import annotations

import math

from perfdash.bisection.events import RangeOutcome
from perfdash.bisection.replay import MERGE, PIN, REVERT, RUNG, Bisection, kind_of
from perfdash.bisection.stage import Stage
from perfdash.metrics import Metric


def how_opened(bisection: Bisection, stage: Stage) -> str:
    """Say how a stage was opened; empty for the first."""
    if not stage.origin:
        return ""
    way = str(stage.origin["way"])
    above = bisection.stages[int(stage.origin["stage"])]
    label = above.revisions[int(stage.origin["place"])].label
    if way == RUNG:
        return f"between the builds around {label}"
    if way.startswith(MERGE):
        is_whole = int(stage.more.get("parts", 1)) == 1
        return f"inside the merge of {label}" + ("" if is_whole else f" up to {stage.revisions[-1].label}")
    if way == REVERT:
        return f"the change of {label} taken back"
    if kind_of(way) == PIN:
        name = stage.more.get("inside", {}).get("name", "what is pinned")
        return f"inside {name}, pinned anew by {label}"
    return way


def remarks(bisection: Bisection, stage: Stage, outcome: RangeOutcome) -> list[str]:
    """Why no finer stage explains a culprit, each in a sentence."""
    found = [why for (place, _), why in stage.dead_ends.items() if place == outcome.first]
    ways = bisection.ways(stage, outcome)
    children = {way: bisection.child(stage, outcome.first, way) for way in ways}
    searched = {way: child for way, child in children.items() if child and bisection.is_dismissed(child)}
    unchanged = [way for way, child in searched.items() if _is_unchanged(stage, child)]
    for way, child in searched.items():
        alike = [other for other in ways if kind_of(other) == kind_of(way)]
        how = how_opened(bisection, child)
        if way not in unchanged:
            found.append(f"{how} {_other_end(child, outcome)}")
        elif way == RUNG:
            found.append(
                f"{how} it shows no such change: what differs is how they were built, or their dependencies"
            )
        elif way == alike[-1] and set(alike) <= set(unchanged):
            itself = "the commit itself does"
            itself += ", or a merge into its branch" if child.more.get("merges") else ""
            found.append(f"{how} it shows no such change, so it is what {itself}")
        else:  # another part of the branch, another branch or another pin was not searched to its end
            found.append(f"{how} it shows no such change")
    return found


def unexplained_rest(bisection: Bisection, stage: Stage, outcome: RangeOutcome) -> str:
    """How much of a culprit's change the changes found inside it leave; empty if that may be nothing."""
    rest = bisection.rest(stage, outcome)
    if rest is None or bisection.next_way(stage, outcome) is not None:
        return ""
    steps = (outcome.step, rest.found, rest.step, rest.low, rest.high)
    whole, found, left, low, high = (_size(stage.metric, step) for step in steps)
    finer = bisection.finer(stage, outcome)
    itself = "how it was built, or a dependency"
    if finer[0].origin and finer[0].origin["way"] != RUNG:
        itself = "what the commit itself does"
        itself += ", or a merge into its branch" if any(child.more.get("merges") for child in finer) else ""
    return "; ".join([
        f"of the {whole} of {stage.revisions[outcome.last].label}, only {found} was found inside; the rest, "
        f"{left} ({low} to {high}), may be {itself}",
        *remarks(bisection, stage, outcome),
    ])  # fmt: skip


def _size(metric: Metric, step: float) -> str:
    return f"{math.expm1(step):+.2%}" if metric.comparison == "ratio" else f"{step:+.4g}"


def _is_unchanged(stage: Stage, child: Stage) -> bool:
    """Whether the ends of a finer stage do not differ; of answers, both are like the good end above."""
    verdict = child.done.outcomes[0].verdict if child.done else ""
    return verdict == "not reproduced" and child.answers(0)[:1] == stage.answers(0)[:1]


def _other_end(child: Stage, outcome: RangeOutcome) -> str:
    """How the search of a finer stage ended, if not with ends that are like the good end above."""
    assert child.done
    verdict, ends = child.done.outcomes[0].verdict, (0, child.question.last)
    if child.culprits:
        labels = ", ".join(child.revisions[culprit.last].label for culprit in child.culprits)
        if sum(culprit.step for culprit in child.culprits) * outcome.step > 0:
            return f"a smaller change was found ({labels}), less than half of this one"
        return f"another change was found ({labels}), which does not explain this one"
    if verdict == "undecided":
        return "it is undecided whether the ends differ"
    if verdict == "cannot tell":
        return "the ends differ, but no revision is likely enough to be the culprit"
    if verdict == "not reproduced":
        return f"could not be searched: both of its ends are {child.answers(0)[0]}"
    whys = [f"{child.revisions[end].label}: {child.broken[end]}" for end in ends if end in child.broken]
    return f"could not be searched: {'; '.join(whys)}"
