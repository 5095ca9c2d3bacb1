"""What is said of alerts; PERFDASH_UPDATE_GOLDEN=1 writes the golden files anew."""

import os
from dataclasses import replace

from test_tables import GOLDEN

from perfdash.detect.dating import Dated
from perfdash.detect.evidence import Evidence
from perfdash.history.alerts import Alert, Event
from perfdash.history.queries import RunLine
from perfdash.report.alerts import alert_list, change_list, life, to_plain
from perfdash.report.changes import of_alert
from perfdash.stats.changepoints import Change
from tests.history.made import case


def run(day, commit):
    return RunLine(
        id=day, name=f"2026-11-{day:02}T01-00-00Z_farm", started=f"2026-11-{day:02}T01:00:00Z", state="done",
        origin="perfdash", source="runs", host="farm", testbed_id=1, host_class="Xeon x 100", setting={},
        environment_id=1, torch="2.15.0", torch_git_version=commit * 40, python="3.11", packages={}, facts={},
        noise={}, expected=10, results=10, judged=None,
    )  # fmt: skip


GOOD, BAD = run(10, "a"), run(11, "b")
SLOWER = Alert(
    "metric", 1, 1, "backend_ms", "confirmed", 1, 10, 11, 11, "2026-11-11T06:00:00Z", "2026-11-12T06:00:00Z",
    before=20.0, after=23.0, change=0.1398, p=2e-7, id=3,
    details={
        "changed": ["torch: 2.15.0 aaaaaaaaaa | 2.15.0 bbbbbbbbbb"],
        "remeasured": {"pairs": 4, "ratio": 1.148, "low": 1.12, "high": 1.18},
    },
)  # fmt: skip
HOST = Alert(
    "host", 1, None, "compilation_cpu_s", "new", 1, 10, 11, 11, "t", "t", change=0.22, p=1e-9, id=4,
    details={"changed": ["microcode: 0x1 | 0x2"]},
)  # fmt: skip
STATUS = Alert(
    "status", 1, 2, "status", "open", 1, 10, 11, 11, "t", "t", id=5,
    details={"before": "pass", "after": "nothing captured"},
)  # fmt: skip
SHOWN = [
    Evidence(SLOWER, case("resnet50"), GOOD, BAD, BAD, speedup=(1.31, 1.14)),
    Evidence(HOST, None, GOOD, BAD, BAD),
    Evidence(STATUS, case("vit", dtype="amp", amp_dtype="bfloat16"), None, BAD, BAD),
    Evidence(replace(SLOWER, kind="drift", id=6, details={}), case("dcgan", batch_size=8), GOOD, BAD, BAD),
    Evidence(replace(STATUS, kind="vanished", metric=None, id=7, details={}), case("gone"), GOOD, BAD, BAD),
    Evidence(
        replace(STATUS, kind="count", metric="graph_breaks", before=0.0, after=3.0, id=8, details={}),
        case("breaks"), GOOD, BAD, BAD,
    ),
]  # fmt: skip


def golden(name, text):
    path = GOLDEN / name
    if os.environ.get("PERFDASH_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_a_list_of_alerts():
    golden("alerts.txt", alert_list(SHOWN) + "\n")
    assert alert_list([]) == "No alerts"


def test_changes_over_time():
    change = Change(11, 20.0, 23.0, 0.15, 0.9999, 11, 12, True)
    dated = [
        Dated(1, "backend_ms", change, GOOD, BAD, run(12, "c")),
        Dated(None, "eager_ms", replace(change, change=-0.3), GOOD, BAD, BAD),
    ]
    golden("changes.txt", change_list(dated, {1: case("resnet50")}) + "\n")
    assert change_list([], {}) == "No lasting changes"


def test_a_life():
    events = [
        Event("2026-11-11T06:00:00Z", "new", "run1", None),
        Event("2026-11-12T06:00:00Z", "acknowledged", None, "known: #12"),
    ]
    assert life(events).splitlines()[1] == "2026-11-12T06:00:00Z  acknowledged  known: #12"


def test_for_programs():
    plain = to_plain(SHOWN[0], [Event("t", "new", "run1", None)])
    assert plain["side"] == "compiled"
    assert plain["direction"] == "worse"
    assert plain["good"]["torch_git_version"] == "a" * 40
    assert plain["events"] == [{"at": "t", "state": "new", "run": "run1", "note": None}]
    assert to_plain(SHOWN[1])["case"] is None
    assert to_plain(SHOWN[2])["side"] is None


def test_a_status_and_a_count_that_were_measured_again():
    """Their re-measurement has two words, no ratio."""
    details = {"before": "pass", "after": "crash", "remeasured": {"old": "pass", "new": "crash"}}
    shown = alert_list([Evidence(replace(STATUS, details=details), case("vit"), GOOD, BAD, BAD)])
    assert "measured again: pass -> crash" in shown
    told = of_alert(Evidence(replace(STATUS, details=details), case("vit"), GOOD, BAD, BAD), BAD.id)
    assert "measured again: pass -> crash" in told.notes


def test_the_size_of_a_change_is_that_of_its_interval():
    told = of_alert(SHOWN[0], BAD.id)
    low, high = told.interval
    assert low < told.change < high
    assert any("by the nights +15.0%" in note for note in told.notes)
