"""What is said of a culprit whose finer stage found nothing that explains it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfdash.bisection.engine import DeadEnd
from perfdash.bisection.events import Done, RangeOutcome
from perfdash.bisection.finer_stages import remarks
from perfdash.bisection.journal import read
from perfdash.bisection.metrics import OF_COMMAND
from perfdash.bisection.request import BisectionRequest
from perfdash.bisection.result import result_of
from perfdash.bisection.sources import BuildContext, open_source
from perfdash.bisection.workbench import LocalWorkbench, Setup
from perfdash.settings import RunSettings
from tests.bisection.scripted import Script, bisected, revision
from tests.repositories import Repository

HOW = {
    "merge 2": "inside the merge of 12",
    "pin": "inside inner, pinned anew by 12",
    "rung": "between the builds around 12",
}
UNCHANGED = {
    "merge 2": "it shows no such change, so it is what the commit itself does",
    "pin": "it shows no such change, so it is what the commit itself does",
    "rung": "it shows no such change: what differs is how they were built, or their dependencies",
}


@pytest.fixture
def bisect(tmp_path):
    """A bisection that finds 12, in which each finer stage `more` (way -> for the journal) has no change."""

    def run(more, parents=1, **scripted):
        script = Script.step(20, at=12, **scripted)
        script.revisions[12] = revision(12, parents)
        side = [script.revisions[5], *(revision(n, prefix="b") for n in range(1, 6))]
        script.levels.update({f"b{n}": 1.0 for n in range(6)})

        def descend(bisection, step, builder):
            if step.way not in more:
                raise DeadEnd("nothing there")
            origin = {"stage": step.stage.number, "place": step.outcome.first, "way": step.way}
            return {**script.stage(len(bisection.stages), side, origin), "more": more[step.way]}

        script.descend = descend
        return bisected(script, tmp_path, rungs=2 if "rung" in more else 1, pins="pin" in more)

    return run


def told(bisection):
    return remarks(bisection, bisection.stages[0], bisection.stages[0].culprits[0])


MORE = {"merge 2": {}, "pin": {"inside": {"name": "inner"}}, "rung": {"rung": 1}}


@pytest.mark.parametrize("way", MORE)
def test_a_finer_stage_without_the_change(bisect, way):
    bisection = bisect({way: MORE[way]}, parents=2 if way == "merge 2" else 1)
    assert told(bisection) == [f"{HOW[way]} {UNCHANGED[way]}"]


@pytest.mark.parametrize("way", MORE)
@pytest.mark.parametrize(("verdict", "words"), [
    ("undecided", "it is undecided whether the ends differ"),
    ("cannot tell", "the ends differ, but no revision is likely enough to be the culprit"),
])  # fmt: skip
def test_a_finer_stage_without_an_answer(bisect, way, verdict, words):
    bisection = bisect({way: MORE[way]}, parents=2 if way == "merge 2" else 1)
    bisection.stages[1].search.action = Done((RangeOutcome(verdict, 0, 5),))
    assert told(bisection) == [f"{HOW[way]} {words}"]


@pytest.mark.parametrize("way", MORE)
def test_a_finer_stage_with_an_end_that_cannot_be_measured(bisect, way):
    why = "it does not compile any more"
    bisection = bisect({way: MORE[way]}, parents=2 if way == "merge 2" else 1, unbuildable={"b5": why})
    assert told(bisection) == [f"{HOW[way]} could not be searched: b5: {why}"]


def test_only_the_last_part_of_a_merge_says_that_it_is_the_commit_itself(bisect):
    parts = {"parts": 2, "merges": 1}
    bisection = bisect({"merge 2": parts, "merge 2 part 2": parts}, parents=2)
    unchanged = "inside the merge of 12 up to b5 it shows no such change"
    assert told(bisection) == [
        unchanged,
        f"{unchanged}, so it is what the commit itself does, or a merge into its branch",
    ]


def test_of_three_parents_one_that_could_not_be_searched_leaves_it_open(bisect):
    bisection = bisect({"merge 2": {}}, parents=3)
    assert told(bisection) == ["nothing there", "inside the merge of 12 it shows no such change"]


PINS = """
name = "own"
kind = "commits"
exclusive = true
[[pins]]
name = "inner"
repository = "https://example.org/inner"
file = "pin.txt"
"""
TWO_PINS = PINS + PINS[PINS.index("[[pins]]") :].replace("inner", "other").replace("pin.txt", "other.txt")


def search_of_pins(tmp_path, recipe_text, pins, clones, outer, pinned=None):
    """The culprit between two commits with these files of pins, and the bisection. pinned: levels in pins."""
    old, new = pins
    for number, files in enumerate((old, old, new, new)):
        outer.commit(f"change {number}", {**files, "number": str(number)})
    recipe = tmp_path / "own.toml"
    recipe.write_text(recipe_text)
    context = BuildContext(Path(sys.executable), outer.folder)
    pin_repos = {name: str(clone.folder) for name, clone in clones.items()}
    request = BisectionRequest("HEAD~3", "HEAD", str(recipe), pin_repos=pin_repos)
    setup = Setup(
        request, request.recipes(), OF_COMMAND["stdout"], RunSettings(), None, ["true"], (), context
    )
    revisions = open_source(setup.recipes[0], context).revisions("HEAD~3", "HEAD")
    levels = {revision.label: 1.0 + 0.1 * (place > 1) for place, revision in enumerate(revisions)}
    script = Script(revisions, levels, sd=0.002, metric="stdout")
    for clone in clones.values():
        script.levels.update({commit[:10]: 1.0 for commit in clone.git("rev-list", "--all").split()})
    script.levels.update({commit[:10]: level for commit, level in (pinned or {}).items()})
    script.descend = LocalWorkbench(setup).descend
    return revisions[2].label, bisected(script, tmp_path / "b", pins=True)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "main",
            "main~1",
            "it takes inner back from {old} to {new}, so the commits between are not searched",
        ),
        (
            "main",
            "side",
            "the commits of inner before and after it, {old} and {new}, are on different branches",
        ),
        ("main~1", "main", None),
    ],
)
def test_a_pin_that_goes_back_or_aside_is_not_searched(tmp_path, old, new, words):
    inner, outer = Repository(tmp_path / "inner"), Repository(tmp_path / "outer")
    inner.commit("first", {"a": "1"})
    inner.git("branch", "side")
    inner.commit("second", {"a": "2"})
    inner.git("checkout", "--quiet", "side")
    inner.commit("aside", {"b": "1"})
    pinned = {name: inner.git("rev-parse", name) for name in (old, new)}
    pins = [{"pin.txt": pinned[name]} for name in (old, new)]
    label, bisection = search_of_pins(tmp_path, PINS, pins, {"inner": inner}, outer)
    (remark,) = told(bisection)
    if words is None:
        assert remark == f"inside inner, pinned anew by {label} {UNCHANGED['pin']}"
        return
    assert remark.startswith(words.format(old=pinned[old][:10], new=pinned[new][:10]))
    (end,) = (event for event in read(tmp_path / "b") if event["event"] == "dead end")
    assert not end["again"]


@pytest.mark.parametrize("is_cloned", [True, False])
def test_a_pin_that_goes_back_does_not_hide_one_that_goes_forward(tmp_path, is_cloned):
    inner, other = Repository(tmp_path / "inner"), Repository(tmp_path / "other")
    first, second = (inner.commit(f"change {n}", {"a": str(n)}) for n in range(2))
    older, newer = (other.commit(f"change {n}", {"b": str(n)}) for n in range(2))
    pins = [{"pin.txt": second, "other.txt": older}, {"pin.txt": first, "other.txt": newer}]
    clones = {"inner": inner, **({"other": other} if is_cloned else {})}
    label, bisection = search_of_pins(tmp_path, TWO_PINS, pins, clones, Repository(tmp_path / "outer"))
    remark, *others = told(bisection)
    assert remark.startswith("it takes inner back from")
    assert others == [f"inside other, pinned anew by {label} it shows no such change"] * is_cloned
    if is_cloned:
        return
    assert "give --pin-repo other=PATH with --resume" in remark
    (end,) = (event for event in read(tmp_path / "b") if event["event"] == "dead end")
    assert end["again"]


@pytest.mark.parametrize(
    ("of_inner", "of_other", "cloned", "found", "rest"),
    [
        (1.03, 1.07, ("inner", "other"), ["inner", "other"], None),
        (1.1, 1.0, ("inner", "other"), ["inner"], None),
        (1.0, 1.1, ("inner", "other"), ["other"], None),
        (1.06, 1.0, ("inner", "other"), ["inner"], "inside other, pinned anew by"),
        (1.06, 1.04, ("inner",), ["inner"], "give --pin-repo other=PATH with --resume"),
    ],
)
def test_the_pins_that_a_commit_changes_are_searched_until_they_explain_it(
    tmp_path, of_inner, of_other, cloned, found, rest
):
    clones = {name: Repository(tmp_path / name) for name in ("inner", "other")}
    old, new = (
        {name: clone.commit(f"{name} {n}", {name: str(n)}) for name, clone in clones.items()} for n in (1, 2)
    )
    pins = [{"pin.txt": commits["inner"], "other.txt": commits["other"]} for commits in (old, new)]
    levels = {new["inner"]: of_inner, new["other"]: of_other}
    used = {name: clones[name] for name in cloned}
    bisection = search_of_pins(tmp_path, TWO_PINS, pins, used, Repository(tmp_path / "outer"), levels)[1]
    result = result_of(bisection)
    assert sorted(c.revisions[0].title for c in result.culprits) == [f"{name} 2" for name in found]
    assert [rest in text for text in result.unexplained] == [True] * (rest is not None)
    assert bisection.next_step() is None
