"""The loop over a scripted world: found, not found, broken, killed, marked, descended, confirmed."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from perfdash.bisection.engine import LimitReached
from perfdash.bisection.environments import KNOWN_NOT_TO_BUILD
from perfdash.bisection.journal import FILE, Journal, read
from perfdash.bisection.metrics import Reading
from perfdash.bisection.replay import Bisection
from perfdash.bisection.result import git_log, result_of
from perfdash.bisection.setup import marked
from perfdash.bisection.workbench import weights
from perfdash.errors import UsageError
from perfdash.files import finite
from perfdash.records import Case, Result, Status, to_json
from tests.bisection.scripted import Script, begin, bisected, go_on, noise, revision, revisions


def named(bisection):
    return [[commit.label for commit in culprit.revisions] for culprit in result_of(bisection).culprits]


def without_times(recorded):
    return [
        {key: value for key, value in event.items() if key not in ("at", "seconds")} for event in recorded
    ]


def test_a_step_is_found_confirmed_and_reported(tmp_path):
    script = Script.step(100, at=63, by=1.06)
    bisection = bisected(script, tmp_path)
    result = result_of(bisection)
    assert result.word == "found"
    (culprit,) = result.culprits
    assert [commit.label for commit in culprit.revisions] == ["63"]
    assert culprit.parent.label == "62"
    assert culprit.change.low < 1.06 < culprit.change.high
    assert culprit.confirmed == "confirmed"
    assert culprit.confirmed_change.low < 1.06 < culprit.confirmed_change.high
    assert culprit.eager is None  # it is what was looked at
    assert {label for label, fresh in script.built if fresh} == {"62", "63"}
    assert len(script.built) <= 15
    assert bisection.next_step() is None
    json.dumps(result.to_json(), allow_nan=False)


def test_the_same_journal_is_the_same_course(tmp_path):
    bisection = bisected(Script.step(60, at=20), tmp_path)
    again = Bisection(read(tmp_path))
    assert result_of(again) == result_of(bisection)


def test_why_compares_measurements_that_succeeded(tmp_path):
    """The build before the culprit times out once, after it was compiled."""
    script = Script.step(20, at=12, metric="backend")
    measure = script.measure

    def measured(built, log, fresh):
        reading, _ = measure(built, log, fresh)
        label = built.revision.label
        if script.measured.count(("11", False)) == 1 and (label, fresh) == ("11", False):
            reading = Reading("timeout", message="after 600 s")
        structure = {"guards": 44 if int(label) >= 12 else 40}
        case = Case("timm", "resnet18")
        result = Result(case, "2026-11-21T00:00:00Z", 9.0, Status(reading.status), structure=structure)
        return reading, finite(to_json(result))

    script.measure = measured
    result = result_of(bisected(script, tmp_path))
    assert next(tested for tested in result.ranges[0].tested if tested.label == "11").said["timeout"] == 1
    assert result.culprits[0].why == "The same kernels, with 44 guards instead of 40."


@pytest.mark.parametrize(("metric", "same"), [
    ("backend", "The generated code and all loaded files are the same"),
    ("eager", "Eager runs the same files"),
])  # fmt: skip
def test_builds_that_are_measured_in_turn_do_not_differ_by_the_host(tmp_path, metric, same):
    """A commit may change a table that the package reads, which no digest contains."""
    script = Script.step(20, at=12, metric=metric)
    structure = {
        "graphs": 1, "fingerprint": "a", "kernels": [], "text": "t",
        "loaded": {"libtorch.so": "1" * 16}, "model_files": {},
    }  # fmt: skip
    measure = script.measure

    def measured(built, log, fresh):
        result = Result(Case("timm", "m"), "2026-11-21T00:00:00Z", 9.0, Status.PASS, structure=structure)
        return measure(built, log, fresh)[0], finite(to_json(result))

    script.measure = measured
    (culprit,) = result_of(bisected(script, tmp_path)).culprits
    assert culprit.why == f"{same}: the cause is what no record shows, such as a file that the package reads."


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.slow
def test_cut_off_after_any_event_it_comes_to_the_same_end(tmp_path, seed):
    script = Script.step(40, at=11 + seed, by=1.05, unbuildable={"19": "no", "20": "no"})
    bisected(script, tmp_path / "whole")
    whole = read(tmp_path / "whole")
    lines = (tmp_path / "whole" / FILE).read_bytes().splitlines(keepends=True)
    for count in range(2, len(lines), 9):
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / FILE).write_bytes(b"".join(lines[:count]) + lines[count][: 7 * seed])
        again = Script.step(40, at=11 + seed, by=1.05, unbuildable={"19": "no", "20": "no"})
        # What was measured before is not measured again, so its noise goes on where it was.
        for event in whole[:count]:
            if event["event"] in ("measured", "confirm"):
                place = event["place"]
                again.measured.append((str(place), event["event"] == "confirm"))
        go_on(again, folder)
        assert without_times(read(folder)) == without_times(whole)


def test_no_change_is_not_reproduced(tmp_path):
    result = result_of(bisected(Script.step(64, at=999), tmp_path))
    assert result.word == "not reproduced"
    assert result.culprits == ()
    assert result.ranges[0].change.low < 1 < result.ranges[0].change.high
    assert {t.label for t in result.ranges[0].tested} == {"0", "63"}


def test_a_culprit_among_unbuildable_ones_is_a_set(tmp_path):
    script = Script.step(50, at=30, unbuildable={str(n): "it does not compile" for n in (29, 30, 31)})
    bisection = bisected(script, tmp_path)
    assert named(bisection) == [["29", "30", "31", "32"]]
    result = result_of(bisection)
    assert {commit.label for commit in result.ranges[0].skipped} == {"29", "30", "31"}
    assert result.culprits[0].parent.label == "28"


def test_revisions_of_a_set_that_are_known_not_to_build_are_listed_with_the_reason(tmp_path):
    """They failed in an earlier bisection, so this one does not try them; 3 is outside the set."""
    script = Script.step(50, at=30)
    known = {3, 29, 30, 31}
    script.costs = lambda listed, touched: [
        KNOWN_NOT_TO_BUILD if number in known else 20.0 for number in range(50)
    ]
    bisection = bisected(script, tmp_path)
    assert named(bisection) == [["29", "30", "31", "32"]]
    (top,) = result_of(bisection).ranges
    assert [skipped.label for skipped in top.skipped] == ["29", "30", "31"]
    assert {skipped.why for skipped in top.skipped} == {
        "known not to build, by an earlier bisection: its log is in failed/ of the build cache"
    }


@pytest.mark.parametrize("end", ["0", "29"])
def test_an_end_that_does_not_build_ends_it_at_once(tmp_path, end):
    script = Script.step(30, at=10, unbuildable={end: "gcc: no"})
    result = result_of(bisected(script, tmp_path))
    assert result.word == "end not measured"
    assert result.ranges[0].skipped[0].why == "gcc: no"
    assert script.measured == []


def test_what_fails_is_measured_once_more_and_then_skipped(tmp_path):
    script = Script.step(33, at=20, says={"16": "crash", "32": ["crash", None]})
    bisection = bisected(script, tmp_path)
    assert named(bisection) == [["20"]]
    assert script.measured.count(("16", False)) == 2
    assert result_of(bisection).ranges[0].skipped[0].why == "crash: because"
    assert result_of(bisection).ranges[0].tested[-1].said["crash"] == 1


def test_a_status_is_found_and_another_fault_is_skipped(tmp_path):
    says = {str(n): "fail_to_run" if n >= 21 else "pass" for n in range(40)} | {"20": "timeout", "22": "oom"}
    script = Script.step(40, at=0, metric="status", says=says)
    bisection = bisected(script, tmp_path)
    assert named(bisection) == [["20", "21"]]
    assert result_of(bisection).culprits[0].confirmed == "confirmed"


def test_a_fix_is_found_as_a_fault_is(tmp_path):
    says = {str(n): "wrong" if n < 9 else "right" for n in range(32)}
    bisection = bisected(Script.step(32, at=0, metric="accuracy", says=says), tmp_path)
    assert named(bisection) == [["9"]]


def test_a_fault_that_shows_now_and_then_is_found(tmp_path):
    says = {
        str(n): ["right"] if n < 18 else ["wrong" if noise(n, k) > -0.8 else "right" for k in range(40)]
        for n in range(32)
    }
    bisection = bisected(Script.step(32, at=0, metric="accuracy", says=says), tmp_path)
    assert named(bisection) == [["18"]]


def test_two_steps_are_found_one_after_the_other(tmp_path):
    script = Script.step(64, at=20, by=1.1)
    script.levels.update({str(n): 1.32 for n in range(45, 64)})
    assert named(bisected(script, tmp_path)) == [["20"], ["45"]]


def test_the_levels_of_a_culprit_end_at_the_next_one(tmp_path):
    """Eager moves at the second culprit alone, so the first one's report has it unchanged."""
    script = Script.step(64, at=20, by=1.3, metric="backend")
    script.levels.update({str(n): 1.3 * 1.25 for n in range(45, 64)})
    script.eager = {str(n): 3.75 for n in range(45, 64)}
    first, second = result_of(bisected(script, tmp_path)).culprits
    assert (first.revisions[0].label, second.revisions[0].label) == ("20", "45")
    for culprit, before, after in ((first, 1, 1.3), (second, 1.3, 1.625)):
        assert culprit.change.before == pytest.approx(before, rel=0.02)
        assert culprit.change.after == pytest.approx(after, rel=0.02)
        assert culprit.change.ratio == pytest.approx(after / before, rel=0.02)
    assert first.eager.low < 1 < first.eager.high
    assert second.eager.low > 1.2
    assert second.eager.after == pytest.approx(3.75, rel=0.02)


def test_a_merge_is_descended_into(tmp_path):
    script = Script.step(20, at=12)
    merge = revision(12, parents=2)
    script.revisions[12] = merge
    side = [script.revisions[5], *(revision(n, prefix="b") for n in range(8))]
    script.levels.update({f"b{n}": 1.1 if n >= 3 else 1.0 for n in range(8)})
    script.sides["12"] = side
    bisection = bisected(script, tmp_path)
    assert named(bisection) == [["b3"]]
    assert result_of(bisection).ranges[1].how == "inside the merge of 12"
    assert bisection.stages[0].fresh == {}  # what is confirmed is the finest
    text = git_log(bisection, result_of(bisection).ranges)
    assert f"# first bad commit: [{side[4].id}] change 3" in text


def test_a_merge_that_only_together_is_slow_is_the_culprit_itself(tmp_path):
    script = Script.step(20, at=12)
    script.revisions[12] = revision(12, parents=2)
    script.sides["12"] = [script.revisions[5], revision(1, prefix="b"), revision(2, prefix="b")]
    script.levels.update({"b1": 1.0, "b2": 1.0})
    bisection = bisected(script, tmp_path)
    assert named(bisection) == [["12"]]
    assert any("shows no such change" in more for more in result_of(bisection).culprits[0].more)


def test_a_way_down_that_lacked_something_is_tried_again_by_another_session(tmp_path):
    script = Script.step(20, at=12)
    bisection = bisected(script, tmp_path, pins=True)
    assert bisection.stages[0].dead_ends == {(12, "pin"): "nothing there"}
    bisection.apply({"event": "session"})
    assert bisection.next_step().way == "pin"


def only_in_first_builds(script):
    """No fresh build shows the step: what differs is not in the commits."""
    measure, true = script.measure, dict(script.levels)

    def measured(built, log, fresh):
        script.levels = dict.fromkeys(true, 1.0) if fresh else true
        return measure(built, log, fresh)

    script.measure = measured
    return script


def test_a_step_that_no_fresh_build_shows_ends_not_confirmed(tmp_path):
    result = result_of(bisected(only_in_first_builds(Script.step(30, at=10)), tmp_path))
    assert result.word == "found, not confirmed"
    assert [culprit.confirmed for culprit in result.culprits] == ["not confirmed"]
    assert [refuted.label for refuted in result.refuted] == ["10", "11"]
    assert result.culprits[0].revisions[0].label == "12"
    assert result.counts["confirming"] >= 3 * 2 * 3


@pytest.mark.parametrize(("disturbed", "refuted"), [("9", "9"), ("10", "11")])
def test_a_refuted_culprit_resumes_the_search_at_its_neighbours(tmp_path, disturbed, refuted):
    """The first ten measurements of a build beside the step show the other side."""
    script = Script.step(30, at=10)
    measure, true = script.measure, dict(script.levels)
    other_side = {"9": 1.1, "10": 1.0}[disturbed]

    def measured(built, log, fresh):
        is_wrong = built.revision.label == disturbed and script.measured.count((disturbed, False)) < 10
        script.levels[disturbed] = other_side if is_wrong and not fresh else true[disturbed]
        return measure(built, log, fresh)

    script.measure = measured
    result = result_of(bisected(script, tmp_path))
    assert [culprit.revisions[0].label for culprit in result.culprits] == ["10"]
    assert result.culprits[0].confirmed == "confirmed"
    assert [earlier.label for earlier in result.refuted] == [refuted]


@pytest.mark.parametrize(
    ("small", "large"), [((11, 1.13), (12, 2.0)), ((13, 1.13), (12, 2.0)), ((13, 1.05), (12, 1.3))]
)
def test_a_small_change_beside_the_culprit_does_not_refute_it(tmp_path, small, large):
    """The step of the search has both changes, the pairs around the culprit have the larger one alone."""
    listed = revisions(20)
    levels = {
        commit.label: 10.0 * math.prod(by for at, by in (small, large) if number >= at)
        for number, commit in enumerate(listed)
    }
    result = result_of(bisected(Script(listed, levels, sd=0.005), tmp_path))
    assert result.word == "found"
    assert not result.refuted
    (culprit,) = [culprit for culprit in result.culprits if culprit.revisions[0].label == "12"]
    assert culprit.confirmed == "confirmed"
    assert culprit.confirmed_change.ratio == pytest.approx(large[1], rel=0.02)


@pytest.mark.slow
def test_what_refutes_a_culprit_survives_a_kill(tmp_path):
    bisection = bisected(only_in_first_builds(Script.step(30, at=10)), tmp_path)
    with Journal(tmp_path) as journal:
        recorded = journal.events()
    assert sum(event["event"] == "refuted" for event in recorded) == 2
    refutations = [number for number, event in enumerate(recorded) if event["event"] == "refuted"]
    for cut in sorted({*range(3, len(recorded), 9), *refutations}):
        again = Bisection(recorded[:cut])
        step = again.next_step()
        if cut in refutations:
            assert type(step).__name__ == "Reopen"
    assert result_of(Bisection(recorded)) == result_of(bisection)


def test_what_cannot_be_built_anew_is_not_confirmed_nor_refuted(tmp_path):
    result = result_of(bisected(Script.step(30, at=10, not_fresh={"9": "the index is gone"}), tmp_path))
    assert result.word == "found"
    assert result.culprits[0].confirmed == "cannot tell"
    assert "the index is gone" in result.culprits[0].confirmed_why


def test_without_confirming(tmp_path):
    script = Script.step(30, at=10)
    result = result_of(bisected(script, tmp_path, confirm=False))
    assert (result.word, result.culprits[0].confirmed) == ("found", "")
    assert not any(fresh for _, fresh in script.built)


def test_a_limit_of_builds_stops_it_and_more_of_them_go_on(tmp_path):
    script = Script.step(60, at=20)
    begin(script, tmp_path)
    with pytest.raises(LimitReached):
        go_on(script, tmp_path, most_builds=4)
    assert len(script.built) == 4
    result = result_of(Bisection(read(tmp_path)))
    assert result.word == "not finished"
    standing = result.ranges[0].standing
    assert standing.phase == "searching"
    assert standing.first <= 20 <= standing.last
    assert named(go_on(script, tmp_path)) == [["20"]]


def test_several_builders_build_at_once(tmp_path):
    script = Script.step(128, at=77)
    begin(script, tmp_path, jobs=3)
    stages = []
    assert named(go_on(script, tmp_path, stages.append)) == [["77"]]
    assert stages[2].startswith("building")


def test_a_mark_reopens_it_and_is_kept(tmp_path):
    script = Script.step(40, at=20, says={"19": "crash"})
    folder = begin(script, tmp_path / "one")
    assert named(go_on(script, folder)) == [["19", "20"]]
    assert marked(folder, "19", "good").label == "19"
    assert named(go_on(script, folder)) == [["20"]]
    assert result_of(Bisection(read(folder))).ranges[0].tested


@pytest.mark.parametrize(("word", "side", "why"), [
    ("19", "worse", "good, bad or skip"),
    ("zz", "good", "no revision"),
    ("0", "bad", "an end"),
    ("00000", "bad", "several"),
])  # fmt: skip
def test_marks_that_cannot_be(tmp_path, word, side, why):
    folder = begin(Script.step(40, at=20), tmp_path)
    with pytest.raises(UsageError, match=why):
        marked(folder, word, side)


def test_a_mark_stands_for_what_was_measured(tmp_path):
    script = Script.step(40, at=20)
    folder = begin(script, tmp_path)
    go_on(script, folder)
    assert "19" in {label for label, _ in script.measured}
    marked(folder, "19", "bad")
    (labels,) = named(go_on(script, folder))
    assert labels[-1] == "19"


def test_contradicting_marks_are_refused_before_they_are_written(tmp_path):
    script = Script.step(40, at=20)
    folder = begin(script, tmp_path)
    go_on(script, folder)
    marked(folder, "10", "bad")
    before = len(read(folder))
    with pytest.raises(UsageError, match="contradict"):
        marked(folder, "15", "good")
    assert len(read(folder)) == before


def test_another_environment_under_the_same_name_is_refused(tmp_path):
    script = Script.step(40, at=20)
    folder = begin(script, tmp_path)
    with pytest.raises(LimitReached):
        go_on(script, folder, most_builds=3)
    build = script.build

    def changed(*args, **kwargs):
        built = build(*args, **kwargs)
        return dataclasses.replace(built, key=f"{built.key}-other")

    script.build = changed
    with pytest.raises(UsageError, match="has changed"):
        go_on(script, folder)


def test_a_journal_that_does_not_fit_together_is_refused_with_the_line(tmp_path):
    script = Script.step(10, at=5)
    folder = begin(script, tmp_path)
    with Journal(folder) as journal:
        journal.append({"event": "built", "stage": 0, "place": 3, "commit": "other", "environment": "k"})
    with pytest.raises(UsageError, match="line 3"):
        Bisection(read(folder))


def test_priors_weigh_by_what_is_touched():
    touched = [(), ("docs/x.md",), ("src/a.py", "docs/x.md"), ("src/deep/b.c",)]
    assert weights(touched, {}) == ()
    assert weights(touched, {"src": 5.0, "*.c": 9.0}) == (1.0, 5.0, 9.0)


def test_a_revert_is_measured_against_the_bad_end(tmp_path):
    script = Script.step(20, at=12)
    script.levels["taken back"] = 1.0
    back = dataclasses.replace(revision(99), label="taken back")
    descend = script.descend

    def descended(bisection, step, builder):
        if step.way != "revert":
            return descend(bisection, step, builder)
        origin = {"stage": step.stage.number, "place": step.outcome.first, "way": step.way}
        return script.stage(len(bisection.stages), [script.revisions[-1], back], origin)

    script.descend = descended
    bisection = bisected(script, tmp_path, revert=True)
    (culprit,) = result_of(bisection).culprits
    assert culprit.reverted == "found"
    assert culprit.reverted_change.low < 1 / 1.1 < culprit.reverted_change.high
    assert [tested.side for tested in result_of(bisection).ranges[1].tested] == ["", ""]
    assert named(bisection) == [["12"]]
    assert "taken back" not in git_log(bisection, result_of(bisection).ranges)
    assert bisection.next_step() is None
