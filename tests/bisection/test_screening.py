"""Builds with the same code and libraries as another one are not timed; scripted builds."""

from __future__ import annotations

import pytest

from perfdash.bisection.events import Broken, Built, Marked, Measured, Question, Same
from perfdash.bisection.journal import Journal
from perfdash.bisection.posterior import SearchRange, look, start, with_observation
from perfdash.bisection.replay import Bisection
from perfdash.bisection.result import result_of
from perfdash.bisection.setup import marked
from perfdash.bisection.workbench import only_code
from tests.bisection.scripted import Script, begin, bisected, go_on

COUNT, AT = 40, 23


def structure(code, torch="t", **files):
    return {"text": code, "loaded": {"torch (Python)": torch, "timm (Python)": "1", **files}}


def scripted(structure_of):
    script = Script.step(COUNT, at=AT, by=1.06)
    script.structures = {commit.label: structure_of(number) for number, commit in enumerate(script.revisions)}
    return script


def culprits(bisection):
    return [[commit.label for commit in found.revisions] for found in result_of(bisection).culprits]


def timed(script):
    return {label for label, fresh in script.measured if not fresh}


def test_builds_that_are_the_same_are_never_timed(tmp_path):
    """Only one commit of forty touches what is measured: it is found from the two ends' timing alone."""
    script = scripted(lambda number: structure("new" if number >= AT else "old"))
    notes = []
    bisection = go_on(script, begin(script, tmp_path), notes.append)
    assert culprits(bisection) == [[str(AT)]]
    assert timed(script) == {"0", str(COUNT - 1)}
    assert script.screened
    assert any("has the generated code and loaded files of" in note for note in notes)


def test_the_journal_alone_leads_to_the_same_state(tmp_path):
    script = scripted(lambda number: structure("new" if number >= AT else "old"))
    bisection = bisected(script, tmp_path)
    with Journal(tmp_path) as journal:
        again = Bisection(journal.events())
    assert culprits(again) == culprits(bisection) == [[str(AT)]]
    assert again.stages[0].search.state.same == bisection.stages[0].search.state.same


@pytest.mark.parametrize(
    "structure_of",
    [
        lambda number: structure(f"code {number}"),  # each has other code
        lambda number: structure("code", **{"libc.so": str(number)}),  # the same code, other libraries
    ],
)
def test_a_build_that_differs_is_timed_after_it_was_screened_once(tmp_path, structure_of):
    script = scripted(structure_of)
    bisection = bisected(script, tmp_path)
    assert culprits(bisection) == [[str(AT)]]
    assert set(script.screened) == timed(script) - {"0", str(COUNT - 1)}
    assert len(script.screened) == len(set(script.screened))


@pytest.mark.parametrize(
    "structure_of",
    [
        lambda number: structure("code", torch=str(number)),  # torch itself is bisected
        lambda number: {},  # a back end without generated code
        lambda number: {"text": "code", "loaded": {}},
        lambda number: {"text": None, "loaded": {"torch (Python)": "t"}},
    ],
)
def test_where_no_two_builds_can_be_known_to_be_the_same_none_is_screened(tmp_path, structure_of):
    script = scripted(structure_of)
    assert culprits(bisected(script, tmp_path)) == [[str(AT)]]
    assert script.screened == []


def test_nothing_between_two_builds_that_are_the_same_is_the_culprit():
    state = start(Question(10))
    for observation in (
        Built(0),
        Built(10),
        *(Measured(place, 0.1 * (place == 10)) for place in (0, 10) * 4),
    ):
        state = with_observation(state, observation)
    state = with_observation(with_observation(state, Built(6)), Same(6, 0))
    places = look(state, SearchRange(0, 10), 0.5).belief.places
    assert places[:6].sum() == 0
    assert places[6:].min() > 0
    both = with_observation(state, Same(7, 10))
    assert look(both, SearchRange(0, 10), 0.5).belief.places.argmax() == 6
    # A change that was taken back leaves no place for a culprit: then all places are possible.
    none = with_observation(with_observation(state, Same(6, 10)), Same(5, 0))
    assert look(none, SearchRange(0, 10), 0.5).belief.places.sum() > 0


def test_a_build_whose_measurements_fail_stands_for_no_other_one(tmp_path):
    """Four commits compile to the same code and time out: the culprit may be any of them."""
    script = Script.step(12, at=9, says=dict.fromkeys("5678", "timeout"))
    codes = {number: "old" if number < 5 else "hangs" if number < 9 else "new" for number in range(12)}
    script.structures = {str(number): structure(code) for number, code in codes.items()}
    build = script.build

    def built(*args, **more):
        assert len(script.built) < 40, "it builds the same again and again"
        return build(*args, **more)

    script.build = built
    folder = begin(script, tmp_path)
    bisection = go_on(script, folder)
    assert result_of(bisection).word == "found"
    assert culprits(bisection) == [["5", "6", "7", "8", "9"]]
    marked(folder, "5", "good")
    assert culprits(go_on(script, folder)) == [["6", "7", "8", "9"]]


def test_a_commit_that_changes_data_is_no_copy_of_the_one_before_it(tmp_path):
    """Code and loaded files are the same everywhere: what differs is a table that the package reads."""
    script = scripted(lambda number: structure("code"))
    script.files[str(AT)] = ("pkg/tune.json", "pkg/code.py")
    result = result_of(bisected(script, tmp_path))
    assert [commit.label for culprit in result.culprits for commit in culprit.revisions] == [str(AT)]
    assert result.refuted == ()
    reasons = {skipped.label: skipped.why for skipped in result.ranges[0].skipped}
    same = "not timed: same generated code and loaded files as"
    assert reasons == {label: f"{same} {0 if int(label) < AT else COUNT - 1}" for label in script.screened}


@pytest.mark.parametrize("files", [(), ("pkg/tune.json",)])
def test_where_each_commit_changes_data_or_unknown_files_none_is_screened(tmp_path, files):
    script = scripted(lambda number: structure("new" if number >= AT else "old"))
    script.files = dict.fromkeys(script.structures, files)
    assert culprits(bisected(script, tmp_path)) == [[str(AT)]]
    assert script.screened == []


def test_only_code_and_documents_are_what_a_comparison_of_builds_sees():
    touched = [(), ("a.py",), ("docs/a.md", "b.rst", ".github/ci.yml"), ("a.py", "b.json"), ("a.txt",), ()]
    assert only_code(touched) == (True, True, False, False, False)


@pytest.mark.parametrize("observation", [Broken(5), Marked(5, "skip")])
def test_a_skipped_build_stands_for_no_other_one(observation):
    state = start(Question(10))
    for before in (Built(5), Built(8), Same(8, 5), Built(2), Same(2, 0)):
        state = with_observation(state, before)
    assert with_observation(state, observation).same == {2: 0}
