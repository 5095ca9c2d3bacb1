"""What a bisection leaves with its alert: culprits that explain it, and apart from them other changes."""

import math
from dataclasses import replace

import pytest

from perfdash.bisection.alert_culprits import explaining, save_to_history
from perfdash.bisection.journal import read
from perfdash.bisection.replay import Bisection
from perfdash.bisection.result import MetricChange, result_of
from perfdash.bisection.setup import marked
from perfdash.history import alert_store
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from perfdash.report.alert_text import culprits
from perfdash.report.bisection_report import headline, main_text
from tests.bisection.scripted import Script, begin, bisected, go_on, revision
from tests.cli.alert_histories import environment_said, history
from tests.history.made import row, run

OTHER = "found another change, which does not explain this alert: "


@pytest.fixture
def db(tmp_path):
    """A history with an alert of +10 % of compiled latency."""
    return history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)])


def saved(db, folder, script, on="Xeon x 100", went_back=False, **confirmation):
    """The alert after the bisection of this folder was saved, and the note on it.

    on: the kind of host that measured it. went_back: the later night has the older revision. confirmation:
    what replaces that of the culprit.
    """
    asked = {"good": "0", "bad": "8", "recipe": "git", "went_back": went_back}
    bisection = bisected(script, folder, name=folder.name, alert=1, asked=asked, confirm=True, host_class=on)
    result = replace(result_of(bisection), state="done")
    result = replace(result, culprits=tuple(replace(one, **confirmation) for one in result.culprits))
    save_to_history(db, bisection, result, headline(result))
    with open_store(db, create=False) as store, store.read() as connection:
        return alert_store.find(connection, 1), alert_store.events(connection, 1)[-1].note


def test_a_change_of_the_other_sign_is_not_the_culprit(db, tmp_path):
    alert, note = saved(db, tmp_path / "b", Script.step(9, 4, by=0.95, metric="backend", sd=0.004))
    (line,) = culprits(alert)
    assert line.startswith(f"{OTHER}4 change 4 by Ann Author: -5.")
    assert alert.details["bisected"]["culprits"] == []
    assert note.startswith(f"bisected: {OTHER}")


def test_a_change_of_under_half_the_size_is_not_the_culprit(db, tmp_path):
    alert, _ = saved(db, tmp_path / "b", Script.step(9, 4, by=1.03, metric="backend", sd=0.002))
    assert [line.startswith(OTHER) for line in culprits(alert)] == [True]


def test_a_change_of_another_metric_is_not_the_culprit(db, tmp_path):
    alert, _ = saved(db, tmp_path / "b", Script.step(9, 4, by=1.1, metric="eager"))
    (line,) = culprits(alert)
    assert line.startswith(OTHER)
    assert "% eager latency" in line


def test_the_culprit_has_its_signed_size_and_stays_when_another_change_is_found(db, tmp_path):
    alert, _ = saved(db, tmp_path / "b", Script.step(9, 4, by=1.1, metric="backend"))
    (line,) = culprits(alert)
    assert line.startswith("culprit: 4 change 4 by Ann Author: +")
    alert, _ = saved(db, tmp_path / "c", Script.step(9, 6, by=0.95, metric="backend", sd=0.004))
    assert culprits(alert) == [line]


@pytest.mark.parametrize(("by", "is_own"), [(1 / 1.1, True), (1.1, False)])
def test_where_the_nights_went_back_the_loss_of_a_change_is_the_culprit(db, tmp_path, by, is_own):
    """Commit 4 made it faster, and the later night has an older commit: the alert is +10 %."""
    script = Script.step(9, 4, by=by, metric="backend", sd=0.002)
    alert, _ = saved(db, tmp_path / "b", script, went_back=True)
    (line,) = culprits(alert)
    size = "+10." if is_own else "-9."
    beginning = "culprit: " if is_own else OTHER
    assert line.startswith(f"{beginning}no longer has 4 change 4 by Ann Author: {size}")
    (noted,) = alert.details["bisected"]["culprits" if is_own else "others"]
    assert noted["low"] < noted["change"] < noted["high"]


@pytest.mark.parametrize("word", ["not reproduced", "end not measured"])
def test_the_culprit_stays_when_another_bisection_finds_nothing(db, tmp_path, word):
    found, _ = saved(db, tmp_path / "b", Script.step(9, 4, by=1.1, metric="backend"))
    script = Script.step(9, 4, by=1.0, metric="backend", sd=0.001)
    if word == "end not measured":
        script.unbuildable["0"] = "no compiler"
    alert, note = saved(db, tmp_path / "c", script)
    assert alert.details["bisected"] == found.details["bisected"]
    assert note.endswith("found 4")


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ("confirmed", "not confirmed", "4"),
        ("confirmed", "cannot tell", "4"),
        ("confirmed", "", "4"),
        ("", "not confirmed", "4"),
        ("confirmed", "confirmed", "6"),
        ("", "cannot tell", "6"),
        ("not confirmed", "", "6"),
        ("cannot tell", "confirmed", "6"),
    ],
)
def test_a_culprit_is_replaced_by_one_that_is_as_sure(db, tmp_path, first, second, named):
    saved(db, tmp_path / "b", Script.step(9, 4, by=1.1, metric="backend"), confirmed=first)
    alert, _ = saved(db, tmp_path / "c", Script.step(9, 6, by=1.1, metric="backend"), confirmed=second)
    (line,) = culprits(alert)
    assert line.startswith(f"culprit: {named} change {named} by Ann Author: +")


def test_a_bisection_that_was_resumed_replaces_its_own_culprit(db, tmp_path):
    saved(db, tmp_path / "b", Script.step(9, 4, by=1.1, metric="backend"))
    again = Script.step(9, 4, by=1.0, metric="backend", sd=0.001)
    alert, _ = saved(db, tmp_path / "resumed" / "b", again)
    assert culprits(alert) == ["bisected: not reproduced"]


def test_of_two_culprits_only_that_of_the_alerts_direction_is_named(db, tmp_path):
    script = Script.step(12, 4, by=1.1, metric="backend", sd=0.002)
    script.levels |= {str(number): 1.1 * 0.97 for number in range(8, 12)}
    alert, _ = saved(db, tmp_path / "b", script)
    lines = culprits(alert)
    assert [line.partition(":")[0] for line in lines] == ["culprit", OTHER.partition(":")[0]]
    assert [size in line for size, line in zip((": +", ": -"), lines, strict=True)] == [True, True]


def test_steps_that_explain_an_alert_only_together(tmp_path):
    """Three small steps of the alert's direction are its culprits; a command's are taken as they are."""
    result = result_of(bisected(Script.step(9, 4, by=1.1, metric="backend"), tmp_path))
    (one,) = result.culprits
    steps = [replace(one, change=MetricChange(ratio=ratio)) for ratio in (1.04, 1.03, 1.03, 0.99)]
    alert = alert_store.Alert(
        "metric", 1, 1, "backend_ms", "confirmed", 1, 1, 2, 2, "2026-11-01", "2026-11-01", change=0.095
    )
    several = replace(result, culprits=tuple(steps))
    assert explaining(alert, several) == steps[:3]
    assert explaining(replace(alert, change=0.3), several) == []
    # The pairs of a re-measurement know the change better than the nights.
    pairs = {"remeasured": {"ratio": 1.1, "low": 1.09, "high": 1.11, "pairs": 9}}
    assert explaining(replace(alert, change=math.log(1.3), details=pairs), several) == steps[:3]
    assert explaining(replace(alert, change=0.3), replace(several, command=("./m.sh",))) == steps


@pytest.mark.parametrize(
    ("change", "ratios", "own"),
    [
        (1.75, (1.25, 1.4), (1.25, 1.4)),  # of one merge: together they are the alert's change
        (1 / 1.75, (1 / 1.4, 1 / 1.25), (1 / 1.4, 1 / 1.25)),
        (1.75, (1.4, 0.9, 1.25), (1.4, 1.25)),
        (1.4, (1.4, 1.1), (1.4,)),  # the ends lie farther apart than the alert's nights
        (1.4, (1.1, 1.38), (1.38,)),
        (1.4, (1.4, 1.25), (1.4, 1.25)),  # either alone may be the alert's
    ],
)
def test_a_smaller_step_is_the_alerts_if_it_brings_the_sum_nearer(tmp_path, change, ratios, own):
    result = result_of(bisected(Script.step(9, 4, by=1.1, metric="backend"), tmp_path))
    steps = tuple(replace(result.culprits[0], change=MetricChange(ratio=ratio)) for ratio in ratios)
    alert = replace(STATUS_ALERT, kind="metric", metric="backend_ms", change=math.log(change), details={})
    culprits = explaining(alert, replace(result, culprits=steps))
    assert tuple(culprit.change.ratio for culprit in culprits) == own


STATUS_ALERT = alert_store.Alert(
    "status", 1, 1, "status", "confirmed", 1, 1, 2, 2, "2026-11-01", "2026-11-01",
    details={"before": "pass", "after": "fail_accuracy"},
)  # fmt: skip


def of_status(structures=None):
    """Twelve revisions, of which the fifth and those after it have wrong outputs."""
    script = Script.step(12, at=5, metric="status")
    script.says = {str(number): "fail_accuracy" if number >= 5 else "pass" for number in range(12)}
    script.structures = structures or {}
    return script


@pytest.mark.parametrize("confirm", [True, False])
def test_a_culprit_that_was_not_timed_has_the_status_of_the_build_with_its_code(tmp_path, confirm):
    loaded = {"torch (Python)": "t"}
    codes = {str(number): "new" if number >= 5 else "old" for number in range(12)}
    script = of_status({label: {"text": code, "loaded": loaded} for label, code in codes.items()})
    result = result_of(bisected(script, tmp_path, confirm=confirm))
    assert {build.label for build in result.ranges[0].tested} == {"0", "11"}
    (culprit,) = result.culprits
    assert [commit.label for commit in culprit.revisions] == ["5"]
    assert explaining(STATUS_ALERT, result) == [culprit]
    other = replace(STATUS_ALERT, details={"before": "pass", "after": "crash"})
    assert explaining(other, result) == []


@pytest.mark.parametrize(("broken", "is_own"), [("fail_accuracy", True), ("crash", False)])
def test_where_the_nights_went_back_the_loss_of_a_repair_is_the_culprit(tmp_path, broken, is_own):
    script = of_status()
    script.says = {str(number): "pass" if number >= 5 else broken for number in range(12)}
    asked = {"good": "0", "bad": "11", "recipe": "git", "went_back": True}
    result = result_of(bisected(script, tmp_path, asked=asked))
    (culprit,) = result.culprits
    assert [commit.label for commit in culprit.revisions] == ["5"]
    assert explaining(STATUS_ALERT, result) == [culprit] * is_own


def test_a_culprit_that_was_marked_has_the_status_of_the_next_measured_build(tmp_path):
    folder = begin(of_status(), tmp_path, confirm=False)
    marked(folder, "4", "good")
    marked(folder, "5", "bad")
    result = result_of(go_on(of_status(), folder))
    assert "5" not in {build.label for build in result.ranges[0].tested}
    (culprit,) = result.culprits
    assert [commit.label for commit in culprit.revisions] == ["5"]
    assert explaining(STATUS_ALERT, result) == [culprit]


@pytest.mark.parametrize(("later", "is_noted"), [({"returns": 1}, False), ({}, True)])
def test_an_alert_whose_change_returned_gets_nothing_from_a_bisection_of_its_first_time(
    db, tmp_path, later, is_noted
):
    """Its ends are those of then. An alert that later nights only date anew gets its culprit."""
    with open_store(db) as store:
        take_in(store, [run("2099-01-01", [row(backend_ms=1.2)])])
    with open_store(db) as store, store.write() as connection:
        last = list_runs(connection)[-1]
        before = alert_store.find(connection, 1)
        details = {**later, "born_run_id": last.id if later else before.bad_run_id}
        alert_store.save(connection, replace(before, bad_run_id=last.id, details=details), "again")
    alert, note = saved(db, tmp_path / "b", Script.step(9, 4, by=1.1, metric="backend"))
    assert ("bisected" in alert.details, note != "again") == (is_noted, is_noted)


@pytest.mark.parametrize(("on", "is_finished"), [("Xeon x 100", True), ("laptop x 8", False)])
@pytest.mark.parametrize("by", [1.0, 0.95])
def test_what_another_kind_of_host_does_not_find_is_left_to_that_of_the_alert(
    db, tmp_path, on, is_finished, by
):
    """Its nightly leaves alerts that have a finished bisection. A culprit is one on any host."""
    nothing, found = (Script.step(9, 4, by=step, metric="backend", sd=0.001) for step in (by, 1.1))
    alert, _ = saved(db, tmp_path / "b", nothing, on)
    assert alert.details["bisected"]["finished"] == is_finished
    alert, _ = saved(db, tmp_path / "c", found, on)
    assert (len(alert.details["bisected"]["culprits"]), alert.details["bisected"]["finished"]) == (1, True)
    again, _ = saved(db, tmp_path / "resumed" / "c", nothing, on)
    assert (again.details["bisected"]["culprits"], again.details["bisected"]["finished"]) == ([], True)


def test_what_is_found_before_the_end_of_the_search_is_called_not_finished(db, tmp_path):
    """Stopped inside a merge, and before its culprit is confirmed."""
    script = Script.step(20, 12, by=1.1, metric="backend")
    script.revisions[12] = revision(12, parents=2)
    script.sides["12"] = [script.revisions[5], *(revision(n, prefix="b") for n in range(6))]
    script.levels.update({f"b{n}": 1.1 if n >= 3 else 1.0 for n in range(6)})
    asked = {"good": "0", "bad": "19", "recipe": "git"}
    bisected(script, tmp_path, name="b", alert=1, asked=asked, host_class="Xeon x 100")
    recorded = read(tmp_path)
    kinds = [event["event"] for event in recorded]
    ends = (kinds.index("stage", 2) + 1, kinds.index("confirm"), len(kinds))
    for end, label in zip(ends, ("12", "b3", "b3"), strict=True):
        is_done = end == len(kinds)
        ended = {"event": "ended", "state": "done" if is_done else "stopped", "at": recorded[-1]["at"]}
        bisection = Bisection([*recorded[:end], ended])
        result = result_of(bisection)
        assert (result.word == "not finished") is not is_done
        told = headline(result)
        assert told.endswith(f": found {label}" if is_done else f": found so far {label}; not finished")
        assert ("`--resume` continues it" in main_text(result)) is not is_done
        assert ("not yet confirmed" in repr(result)) is not is_done
        save_to_history(db, bisection, result, told)
        with open_store(db, create=False) as store, store.read() as connection:
            (line,) = culprits(alert_store.find(connection, 1))
        assert line.startswith(f"culprit: {label} change")
        assert line.endswith("(confirmed)" if is_done else "(not yet confirmed; the search is not finished)")
