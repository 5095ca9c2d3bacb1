"""Say how a finer stage was opened, and what it showed of the culprit above it. Pure."""

from __future__ import annotations

from perfdash.bisection.events import RangeOutcome
from perfdash.bisection.replay import MERGE, PIN, REVERT, RUNG, Bisection
from perfdash.bisection.stage import Stage


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
        return f"inside the merge of {label}" + ("" if is_whole else f", up to {stage.revisions[-1].label}")
    if way == REVERT:
        return f"the change of {label} taken back"
    if way == PIN:
        name = stage.more.get("inside", {}).get("name", "what is pinned")
        return f"inside {name}, pinned anew by {label}"
    return way


def remarks(bisection: Bisection, stage: Stage, outcome: RangeOutcome) -> list[str]:
    """Why no finer stage explains a culprit, each in a sentence."""
    found = [why for (place, _), why in stage.dead_ends.items() if place == outcome.first]
    for way in bisection.ways(stage, outcome):
        child = bisection.child(stage, outcome.first, way)
        if child is None or not bisection.is_dismissed(child):
            continue
        how = how_opened(bisection, child)
        if child.culprits:
            labels = ", ".join(child.revisions[culprit.last].label for culprit in child.culprits)
            found.append(f"{how} another change was found ({labels}), which does not explain this one")
        else:
            found.append(f"{how} it shows no such change, so it is what the commit itself does")
    return found
