"""Culprits on merged branches: histories made here, and what a revision is worth by the files in it."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest

from perfdash.bisection.metrics import OF_COMMAND
from perfdash.bisection.recipes import load_recipes
from perfdash.bisection.request import BisectionRequest
from perfdash.bisection.result import git_log, result_of
from perfdash.bisection.sources import BuildContext, open_source
from perfdash.bisection.workbench import LocalWorkbench, Setup
from perfdash.settings import RunSettings
from tests.bisection.scripted import Script, bisected
from tests.repositories import Repository

OLD_FAULT, FAULT = "old fault", "fault"


@pytest.fixture
def repo(tmp_path) -> Repository:
    """A main line, and a branch `side` that forks from its first commit."""
    made = Repository(tmp_path / "repo")
    made.commit("base", {"base": ""})
    made.git("branch", "side")
    return made


def on(repo, branch, *commits):
    """Commits on a branch: a title each, which is also a file, and further files; None removes one."""
    repo.git("checkout", "--quiet", branch)
    for title, *files in commits:
        changes = {title: "", **dict.fromkeys(files, "")}
        changes = {name.removeprefix("-"): None if name[:1] == "-" else "" for name in changes}
        repo.commit(title, changes)


def merged(repo, into, branch, *files):
    """Merge a branch, with further changes in the merge itself."""
    repo.git("checkout", "--quiet", into)
    repo.git("merge", "--quiet", "--no-ff", "--no-commit", branch)
    repo.commit(f"merge {branch}", dict.fromkeys(files, ""))


def searched(repo, folder, metric="stdout", all_commits=False):
    """The bisection from `good` to `main`. A file `x=1.03` makes what has it 3 % slower."""
    context = BuildContext(Path(sys.executable), repo.folder, first_parent=not all_commits)
    recipes = load_recipes("command")
    setup = Setup(
        BisectionRequest("good", "main", "command"), recipes, OF_COMMAND[metric], RunSettings(), None,
        ["true"], (), context,
    )  # fmt: skip
    source = open_source(recipes[0], context)
    script = Script(source.revisions("good", "main"), {}, sd=0.002, metric=metric)
    for commit in repo.git("rev-list", "--all").split():
        files = repo.git("ls-tree", "--name-only", commit).splitlines()
        script.levels[commit[:10]] = math.prod(float(name.partition("=")[2]) for name in files if "=" in name)
        if metric == "exit-code":
            script.says[commit[:10]] = "bad" if {FAULT, OLD_FAULT} & set(files) else "good"
    script.descend = LocalWorkbench(setup).descend
    bisection = bisected(script, folder)
    assert bisection.next_step() is None
    return bisection


def blamed(bisection):
    return [[revision.title for revision in c.revisions] for c in result_of(bisection).culprits]


def tops(bisection):
    return [(stage.revisions[0].title, stage.revisions[-1].title) for stage in bisection.stages[1:]]


def faster_before_good(repo):
    on(repo, "main", ("faster", "faster=0.8"), ("good",))
    repo.git("tag", "good")
    on(repo, "main", ("m1",), ("m2",))


def late(repo):
    on(repo, "main", *((f"late {n}",) for n in range(4)))


def test_a_branch_that_merged_main_is_not_blamed_for_what_main_had(repo, tmp_path):
    faster_before_good(repo)
    on(repo, "side", ("s1",), ("s2",))
    merged(repo, "side", "main")
    on(repo, "side", ("s3", "s3=1.03"), ("s4",))
    on(repo, "main", ("m3",))
    merged(repo, "main", "side")
    late(repo)
    bisection = searched(repo, tmp_path / "b")
    assert blamed(bisection) == [["s3"]]
    assert tops(bisection) == [("merge main", "s4")]
    assert result_of(bisection).ranges[1].how.endswith(f" up to {bisection.stages[1].revisions[-1].label}")


@pytest.mark.parametrize("updated", ["in the middle", "at the end", "twice"])
def test_what_a_branch_did_before_it_merged_main_is_found(repo, tmp_path, updated):
    faster_before_good(repo)
    on(repo, "side", ("s1",), ("s2", "s2=1.03"), ("s3",))
    merged(repo, "side", "main")
    if updated != "at the end":
        on(repo, "side", ("s4",))
    if updated == "twice":
        on(repo, "main", ("m3", "m3=0.9"))
        merged(repo, "side", "main")
    merged(repo, "main", "side")
    late(repo)
    bisection = searched(repo, tmp_path / "b")
    assert ["s2"] in blamed(bisection)
    assert not {"faster", "merge main"} & {title for titles in blamed(bisection) for title in titles}


def test_a_branch_of_the_branch_that_forked_from_a_newer_main(repo, tmp_path):
    """Its merge brings what main had: it is no culprit, and nothing is searched inside it."""
    faster_before_good(repo)
    on(repo, "side", ("s1",))
    repo.git("branch", "other", "main~1")
    on(repo, "other", ("o1",))
    merged(repo, "side", "other")
    on(repo, "side", ("s2", "s2=1.03"), ("s3",))
    merged(repo, "main", "side")
    late(repo)
    assert blamed(searched(repo, tmp_path / "b")) == [["s2"]]


def test_a_branch_merged_into_the_branch_is_searched(repo, tmp_path):
    faster_before_good(repo)
    repo.git("branch", "other", "side")
    on(repo, "other", ("o1",), ("o2", "o2=1.03"), ("o3",))
    on(repo, "side", ("s1",))
    merged(repo, "side", "other")
    on(repo, "side", ("s2",))
    merged(repo, "main", "side")
    late(repo)
    assert blamed(searched(repo, tmp_path / "b")) == [["o2"]]


@pytest.mark.parametrize("of_branch", [0.8, 1.01])
def test_a_change_that_is_not_the_merges_does_not_explain_it(repo, tmp_path, of_branch):
    """The branch changes another thing than its merge, or much less."""
    faster_before_good(repo)
    on(repo, "side", ("s1",), ("s2", f"s2={of_branch}"), ("s3",))
    merged(repo, "main", "side", f"merge={1.03 / of_branch}")
    late(repo)
    bisection = searched(repo, tmp_path / "b")
    assert blamed(bisection) == [["merge side"]]
    label = repo.git("rev-parse", "side~1")[:10]
    (culprit,) = result_of(bisection).culprits
    smaller = f"a smaller change was found ({label}), less than half of this one"
    other = f"another change was found ({label}), which does not explain this one"
    assert (other if of_branch == 0.8 else smaller) in culprit.more[0]
    assert label not in git_log(bisection, result_of(bisection).ranges)


def test_several_commits_of_a_branch_explain_its_merge_together(repo, tmp_path):
    faster_before_good(repo)
    on(repo, "side", ("s1", "s1=1.04"), ("s2",), ("s3", "s3=1.04"), ("s4",), ("s5", "s5=1.04"), ("s6",))
    merged(repo, "main", "side")
    late(repo)
    assert blamed(searched(repo, tmp_path / "b")) == [["s1"], ["s3"], ["s5"]]


def test_an_old_fault_hides_nothing_after_the_branch_has_merged_its_fix(repo, tmp_path):
    on(repo, "main", ("broken", OLD_FAULT))
    repo.git("branch", "--force", "side", "main")
    on(repo, "main", ("good", f"-{OLD_FAULT}"), ("m1",))
    repo.git("tag", "good", "main~1")
    on(repo, "side", ("s1",))
    merged(repo, "side", "main")
    on(repo, "side", ("s2",), ("s3", FAULT), ("s4",))
    merged(repo, "main", "side")
    late(repo)
    assert blamed(searched(repo, tmp_path / "b", "exit-code")) == [["s3"]]


@pytest.mark.parametrize("of_branch", [(FAULT,), (f"-{OLD_FAULT}",)])
def test_a_branch_with_an_old_fault_is_not_searched_for_the_new_one(repo, tmp_path, of_branch):
    """Both of its ends fail; or it mends the old fault by itself, and its merge makes a new one."""
    on(repo, "main", ("broken", OLD_FAULT))
    repo.git("branch", "--force", "side", "main")
    on(repo, "main", ("good", f"-{OLD_FAULT}"), ("m1",))
    repo.git("tag", "good", "main~1")
    on(repo, "side", ("s1",), ("s2", *of_branch), ("s3",))
    merged(repo, "main", "side", FAULT)
    late(repo)
    bisection = searched(repo, tmp_path / "b", "exit-code")
    assert blamed(bisection) == [["merge side"]]
    (remark,) = result_of(bisection).culprits[0].more
    if of_branch == (FAULT,):
        assert remark.endswith("could not be searched: both of its ends are bad")
    else:
        assert "another change was found" in remark


@pytest.mark.parametrize("all_commits", [False, True])
def test_a_culprit_on_a_parallel_line_is_found(repo, tmp_path, all_commits):
    """The branch has the level of the good end: a list of both lines would show a step at its merge."""
    on(repo, "main", ("good",))
    repo.git("tag", "good")
    repo.git("branch", "pr1")
    on(repo, "main", ("b1",), ("b2", "b2=1.05"), ("b3",))
    on(repo, "pr1", ("p1",), ("p2",), ("p3",))
    merged(repo, "main", "pr1")
    on(repo, "main", ("m2",))
    assert blamed(searched(repo, tmp_path / "b", all_commits=all_commits)) == [["b2"]]


def test_from_a_branch_that_was_merged_the_main_line_is_searched(repo, tmp_path):
    """The line of all commits comes from the branch, so that the merge brings the main line."""
    on(repo, "side", ("s1",), ("good",), ("s2",))
    repo.git("tag", "good", "side~1")
    on(repo, "main", ("m1",), ("m2", "m2=1.05"), ("m3",))
    merged(repo, "main", "side")
    late(repo)
    assert blamed(searched(repo, tmp_path / "b", all_commits=True)) == [["m2"]]


@pytest.mark.parametrize(
    ("older", "newer", "own", "found"),
    [
        (1.02, 1.04, 1.0, [["s2"], ["s6"]]),
        (1.04, 1.02, 1.0, [["s2"], ["s6"]]),
        (1.0, 1.04, 1.0, [["s6"]]),
        (1.0, 1.04, 1.03, [["s6"]]),
        (1.04, 1.02, 1.03, [["s2"], ["s6"]]),
    ],
)
def test_the_parts_of_a_branch_are_searched_until_they_explain_its_merge(
    repo, tmp_path, older, newer, own, found
):
    on(repo, "main", ("good",))
    repo.git("tag", "good")
    on(repo, "main", ("m1",), ("m2",))
    on(repo, "side", ("s1",), ("s2", f"s2={older}"), ("s3",))
    merged(repo, "side", "main")
    on(repo, "side", ("s5",), ("s6", f"s6={newer}"), ("s7",))
    merged(repo, "main", "side", f"merge={own}")
    late(repo)
    bisection = searched(repo, tmp_path / "b")
    assert blamed(bisection) == found
    assert len(bisection.stages) == (2 if own == older == 1.0 else 3)
    log = tmp_path / "log"
    log.write_text(git_log(bisection, result_of(bisection).ranges))
    repo.git("bisect", "replay", str(log))
    assert repo.git("bisect", "log").endswith("] s2" if older > newer else "] s6")
    texts = result_of(bisection).unexplained
    if own == 1.0:
        assert not texts
        return
    (text,) = texts
    rest = float(re.search(r"the rest, ([+-][\d.]+)%", text)[1]) / 100
    assert rest == pytest.approx(own - 1, abs=0.004)
    assert "may be what the commit itself does, or a merge into its branch" in text


@pytest.mark.parametrize("of_both", [1.0, 1.03])
def test_all_branches_of_a_merge_are_searched_until_they_explain_it(repo, tmp_path, of_both):
    """No branch explains the merge alone. What both have is one culprit."""
    on(repo, "main", ("good",))
    repo.git("tag", "good")
    on(repo, "side", ("s1", f"s1={of_both}"), ("s2",))
    repo.git("branch", "other")
    on(repo, "side", ("s3", "s3=1.03"), ("s4",))
    on(repo, "other", ("o1",), ("o2", "o2=1.04"), ("o3",))
    repo.git("checkout", "--quiet", "main")
    repo.git("merge", "--quiet", "--no-ff", "-m", "merge both", "side", "other")
    late(repo)
    bisection = searched(repo, tmp_path / "b")
    shared = [["s1"]] if of_both > 1 else []
    assert sorted(blamed(bisection)) == sorted([*shared, ["s3"], ["o2"]])
    assert not result_of(bisection).unexplained
