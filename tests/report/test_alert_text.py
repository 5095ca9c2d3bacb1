"""What is said of alerts; PERFDASH_UPDATE_GOLDEN=1 writes the golden files anew."""

import math
from dataclasses import replace

import pytest

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.change_dates import Dated
from perfdash.history.alert_store import AlertEvent
from perfdash.report.alert_text import alert_list, change_list, life, origin, to_plain
from perfdash.report.changes import of_alert
from perfdash.stats.changepoints import ChangePoint
from tests.history.made import case
from tests.report.golden_files import golden
from tests.report.shown_alerts import BAD, GOOD, SHOWN, STATUS, run


def test_a_list_of_alerts():
    golden("alerts.txt", alert_list(SHOWN) + "\n")
    assert alert_list([]) == "No alerts"


def test_what_several_alerts_have_in_common_is_one_line():
    """Fifteen alerts of one build have the same packages, culprit and reason."""
    act = {"who": "ann", "at": "2026-11-12", "why": "known: #12"}
    details = {**SHOWN[0].alert.details, "act": act, "bisected": {"word": "cannot tell"}}
    alerts = [
        replace(SHOWN[0], alert=replace(SHOWN[0].alert, id=number, state="acknowledged", details=details))
        for number in (3, 10, 14)
    ]
    lines = alert_list(alerts).splitlines()[7:]
    changed = "changed with it (before | after): torch: 2.15.0 aaaaaaaaaa | 2.15.0 bbbbbbbbbb"
    assert f"3, 10, 14: {changed}" in lines
    assert len({line.partition(": ")[2] for line in lines}) == len(lines)
    assert "3, 10, 14: bisected: cannot tell" in lines


def test_a_list_has_no_column_that_one_alert_alone_needs():
    assert "torch between" not in alert_list(SHOWN)
    assert "2e-07" not in alert_list(SHOWN)
    assert origin(SHOWN[0]) == "torch between aaaaaaaaaa and bbbbbbbbbb, p = 2e-07"
    assert origin(SHOWN[2]) == "torch between ? and bbbbbbbbbb"


def test_changes_over_time():
    change = ChangePoint(11, 20.0, 23.0, 0.15, 0.9999, 11, 12, True)
    dated = [
        Dated(1, "backend_ms", change, GOOD, BAD, run(12, "c")),
        Dated(None, "eager_ms", replace(change, change=-0.3), GOOD, BAD, BAD),
    ]
    golden("changes.txt", change_list(dated, {1: case("resnet50")}) + "\n")
    assert change_list([], {}) == "No lasting changes"


def test_a_life():
    events = [
        AlertEvent("2026-11-11T06:00:00Z", "new", "run1", None),
        AlertEvent("2026-11-12T06:00:00Z", "acknowledged", None, "known: #12"),
    ]
    assert life(events).splitlines()[1] == "2026-11-12T06:00:00Z  acknowledged  known: #12"


def test_for_programs():
    plain = to_plain(SHOWN[0], [AlertEvent("t", "new", "run1", None)])
    assert plain["side"] == "compiled"
    assert plain["direction"] == "worse"
    assert plain["testbed_id"] == SHOWN[0].alert.testbed_id
    assert plain["good"]["torch_git_version"] == "a" * 40
    assert plain["events"] == [{"at": "t", "state": "new", "run": "run1", "note": None, "started": None}]
    assert to_plain(SHOWN[1])["case"] is None
    assert to_plain(SHOWN[2])["side"] is None


def test_a_status_and_a_count_that_were_measured_again():
    """Their re-measurement has two words, no ratio."""
    details = {"before": "pass", "after": "crash", "remeasured": {"old": "pass", "new": "crash"}}
    shown = alert_list([AlertEvidence(replace(STATUS, details=details), case("vit"), GOOD, BAD, BAD)])
    assert "measured again: pass -> crash" in shown
    change = of_alert(AlertEvidence(replace(STATUS, details=details), case("vit"), GOOD, BAD, BAD), BAD.id)
    assert "measured again: pass -> crash" in change.notes


@pytest.fixture
def smaller_again():
    """An alert of +15 % by the nights, of which a re-measurement found +6 %."""
    again = {"pairs": 6, "ratio": 1.06, "low": 1.045, "high": 1.075}
    details = {**SHOWN[0].alert.details, "remeasured": again, "fixed_run_id": BAD.id}
    return replace(SHOWN[0], alert=replace(SHOWN[0].alert, details=details))


def size_of_levels(change):
    before, after = (float(level.split()[0]) for level in (change.before, change.after))
    return math.log(after / before)


def test_the_size_of_a_change_is_that_of_its_interval(smaller_again):
    change = of_alert(smaller_again, BAD.id)
    low, high = change.interval
    assert low < change.change < high
    assert any("by the nights +15.0%" in note for note in change.notes)
    assert size_of_levels(change) == pytest.approx(change.change, abs=0.01), "and of its levels"


def test_a_repair_has_the_size_of_its_levels(smaller_again):
    fixed = replace(smaller_again, alert=replace(smaller_again.alert, state="fixed"))
    change = of_alert(fixed, BAD.id)
    assert size_of_levels(change) == pytest.approx(change.change, abs=0.01)
    assert change.change < 0
