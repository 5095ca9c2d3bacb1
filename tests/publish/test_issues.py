"""Issues of regressions against a GitHub with faults: each alert has one, in step with its life."""

import threading
from dataclasses import replace

import pytest

from perfdash.errors import MachineError
from perfdash.publish.http_failures import Refused
from perfdash.publish.issues import LABEL, IssueChanges, WantedIssue, sync_issues
from tests.publish.server import ALICE

WANTED = [
    WantedIssue(
        f"s{number}",
        "run1",
        "t1",
        "open",
        "t1",
        True,
        f"Regression {number}",
        f"body {number}",
        "It is back.",
    )
    for number in range(4)
]


def fixed(alert, at="t2", state="fixed"):
    return replace(alert, state=state, changed=at, open=False, note=f"No longer: {state}.")


def ours(hub):
    return [issue for issue in hub.issues if issue["number"] != 3]


def titles(hub):
    return [issue["title"] for issue in ours(hub)]


def test_one_issue_each_and_only_once(hub, talk, another):
    done = sync_issues(talk, "team/perf", WANTED, 10)
    assert titles(hub) == [f"Regression {number}" for number in range(4)]
    assert done.opened == [issue["html_url"] for issue in ours(hub)]
    assert hub.labels == {LABEL}
    assert ours(hub)[0]["body"] == f"{WANTED[0].marker_line('open')}\nbody 0"
    before = len(hub.writes())
    assert sync_issues(another(), "team/perf", WANTED, 10).opened == []
    assert len(hub.writes()) == before


def test_a_cap_and_the_rest_reported(hub, talk):
    done = sync_issues(talk, "team/perf", WANTED, 2)
    assert titles(hub) == ["Regression 0", "Regression 1"]
    assert done.waiting == 2
    assert sync_issues(talk, "team/perf", WANTED, 1).waiting == 1
    assert len(ours(hub)) == 3


def test_nothing_to_do_makes_no_label(hub, talk):
    sync_issues(talk, "team/perf", [fixed(WANTED[0])], 5)
    assert hub.writes() == []


def test_its_whole_life(hub, talk):
    alert = WANTED[0]
    sync_issues(talk, "team/perf", [alert], 5)
    (issue,) = ours(hub)
    issue["body"] += "\nedited by a person"
    done = sync_issues(talk, "team/perf", [fixed(alert)], 5)
    assert done.closed == [issue["html_url"]]
    assert (issue["state"], issue["state_reason"]) == ("closed", "completed")
    assert issue["body"].endswith("body 0\nedited by a person")
    assert [body.partition("\n")[2] for body in hub.of(issue["number"])] == ["No longer: fixed."]
    sync_issues(talk, "team/perf", [fixed(alert)], 5)
    again = replace(alert, state="reopened", changed="t3")
    assert sync_issues(talk, "team/perf", [again], 5).reopened == [issue["html_url"]]
    assert issue["state"] == "open"
    sync_issues(talk, "team/perf", [fixed(alert, "t4", "dismissed")], 5)
    assert issue["state_reason"] == "not_planned"
    assert [body.partition("\n")[2] for body in hub.of(issue["number"])] == [
        "No longer: fixed.",
        "It is back.",
        "No longer: dismissed.",
    ]


def test_a_culprit_that_is_found_later_is_noted_once(hub, talk):
    alert = WANTED[0]
    sync_issues(talk, "team/perf", [alert], 5)
    (issue,) = ours(hub)
    blamed = replace(alert, changed="t2", blame="Bisected: culprit: abc", body="body 0, culprit: abc")
    done = sync_issues(talk, "team/perf", [blamed], 5)
    assert (done.opened, done.closed, done.reopened) == ([], [], [])
    sync_issues(talk, "team/perf", [replace(blamed, changed="t3")], 5)
    assert [body.partition("\n")[2] for body in hub.of(issue["number"])] == ["Bisected: culprit: abc"]
    assert issue["state"] == "open"
    # One that is opened with it needs no note.
    sync_issues(talk, "team/perf", [blamed, replace(blamed, series="s9")], 5)
    sync_issues(talk, "team/perf", [blamed, replace(blamed, series="s9")], 5)
    assert hub.of(ours(hub)[1]["number"]) == []


def test_a_history_made_anew_leaves_one_issue_each(hub, talk, another):
    sync_issues(talk, "team/perf", WANTED[:2], 5)
    anew = [replace(WANTED[0], born="run2", opened="t9")]
    for _ in range(2):
        sync_issues(another(), "team/perf", anew, 5, ["run1", "run2"])
        assert [issue["state"] for issue in ours(hub)] == ["open", "closed"]
        assert [len(hub.of(issue["number"])) for issue in ours(hub)] == [0, 1]
    assert ours(hub)[1]["state_reason"] == "not_planned"


FAULTS = {
    "reply lost": ("lose", {}),
    "502 after it acted": ("broken", {}),
    "502 before": (502, {}),
    "429": (429, {"headers": {"Retry-After": "3"}}),
}


@pytest.mark.parametrize("where", ["GET .*issues$", "POST .*issues$", "POST .*labels$", "GET .*labels"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_while_opening(hub, talk, another, fault, where):
    kind, more = FAULTS[fault]
    hub.fault(where, kind, times=2 if "issues" in where else 1, **more)
    sync_issues(talk, "team/perf", WANTED, 10)
    assert not hub.faults
    assert titles(hub) == [f"Regression {number}" for number in range(4)]
    if kind in ("lose", "broken"):  # it acted: nothing was sent twice
        assert hub.writes().count("POST /repos/team/perf/issues") == 4
    sync_issues(another(), "team/perf", WANTED, 10)
    assert len(ours(hub)) == 4


@pytest.mark.parametrize("where", ["PATCH .*issues", "POST .*comments", "GET .*comments"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_while_closing(hub, talk, another, fault, where):
    sync_issues(talk, "team/perf", WANTED, 10)
    kind, more = FAULTS[fault]
    hub.fault(where, kind, times=2, **more)
    gone = [fixed(alert) for alert in WANTED]
    sync_issues(another(), "team/perf", gone, 10)
    assert not hub.faults
    sync_issues(another(), "team/perf", gone, 10)
    assert {issue["state"] for issue in ours(hub)} == {"closed"}
    for our in ours(hub):
        assert len(hub.of(our["number"])) == 1


def test_two_at_once_leave_one_open_issue_each(hub, another):
    hub.labels.add(LABEL)
    barrier, waiting = threading.Barrier(2, timeout=120), [1, 1]

    def meet(line):  # both have listed before either opens one
        if line == "POST /repos/team/perf/issues" and waiting:
            waiting.pop()
            barrier.wait()

    hub.before = meet
    talks = [another(), another()]
    threads = [threading.Thread(target=sync_issues, args=(talk, "team/perf", WANTED, 10)) for talk in talks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sync_issues(another(), "team/perf", WANTED, 10)
    still = [issue["title"] for issue in ours(hub) if issue["state"] == "open"]
    assert sorted(still) == [f"Regression {number}" for number in range(4)]


def test_cut_off_between_note_and_state(hub, talk, another):
    sync_issues(talk, "team/perf", WANTED[:1], 5)
    hub.fault("PATCH .*issues/\\d+$", 422)
    with pytest.raises(Refused):
        sync_issues(talk, "team/perf", [fixed(WANTED[0])], 5)
    sync_issues(another(), "team/perf", [fixed(WANTED[0])], 5)
    (issue,) = ours(hub)
    assert issue["state"] == "closed"
    assert len(hub.of(issue["number"])) == 1


def test_an_issue_that_refuses_a_note_stops_no_other(hub, talk):
    sync_issues(talk, "team/perf", WANTED[:2], 5)
    locked, other = ours(hub)
    hub.locked.add(locked["number"])
    changes = IssueChanges()
    wanted = [fixed(WANTED[0]), fixed(WANTED[1]), *WANTED[2:]]
    with pytest.raises(Refused, match=f"comment of issue {locked['number']} .*The issue is locked"):
        sync_issues(talk, "team/perf", wanted, 5, changes=changes)
    assert [issue["state"] for issue in ours(hub)] == ["open", "closed", "open", "open"]
    assert changes.closed == [other["html_url"]]
    assert changes.opened == [issue["html_url"] for issue in ours(hub)[2:]]
    hub.locked.clear()
    assert sync_issues(talk, "team/perf", wanted, 5).closed == [locked["html_url"]]


def test_a_refused_issue_is_named_also_where_the_end_is_another_failure(hub, talk):
    sync_issues(talk, "team/perf", WANTED[:1], 5)
    (locked,) = ours(hub)
    hub.locked.add(locked["number"])
    hub.fault("POST .*issues$", 403, message="may not open")
    with pytest.raises(MachineError, match=rf"issue {locked['number']} .*is locked.*\n.*may not open"):
        sync_issues(talk, "team/perf", [fixed(WANTED[0]), *WANTED[1:]], 5)


def test_an_issue_that_github_takes_for_invalid_stops_no_other(hub, talk):
    hub.labels.add(LABEL)
    hub.fault("POST .*issues$", 422, message="Validation Failed")
    with pytest.raises(Refused, match=r"Regression 0.*Validation Failed"):
        sync_issues(talk, "team/perf", WANTED, 5)
    assert titles(hub) == [f"Regression {number}" for number in range(1, 4)]


def test_an_issue_by_another_without_the_label_counts_for_nothing(hub, talk):
    hub.add_issue("forged", body=f"{WANTED[0].marker_line('open')}\nx", user=ALICE)
    sync_issues(talk, "team/perf", WANTED[:1], 5)
    assert titles(hub) == ["forged", "Regression 0"]


def test_many_pages_of_issues(hub, talk):
    for number in range(150):
        hub.add_issue(f"old {number}", body="no marker", labels=[{"name": LABEL}])
    sync_issues(talk, "team/perf", WANTED[:1], 5)
    sync_issues(talk, "team/perf", WANTED[:1], 5)
    assert len(ours(hub)) == 151


def test_who_may_not_label_is_reported_and_leaves_nothing_open(hub, talk):
    hub.labels.add(LABEL)
    hub.may_label = False
    with pytest.raises(MachineError, match="give the token's account the Triage role"):
        sync_issues(talk, "team/perf", WANTED, 5)
    assert [issue["state"] for issue in ours(hub)] == ["closed"]


def test_who_may_not_make_the_label_opens_nothing(hub, talk):
    hub.fault("POST .*labels", 403, message="Resource not accessible")
    with pytest.raises(MachineError, match="make the label perfdash-regression by hand"):
        sync_issues(talk, "team/perf", WANTED, 5)
    assert ours(hub) == []


def test_owners_are_assigned_where_github_lets_them(hub, talk):
    owned = [replace(WANTED[0], owners=("bob", "org/team")), replace(WANTED[1], owners=(ALICE["login"],))]
    sync_issues(talk, "team/perf", owned, 10)
    assert [issue.get("assignees") for issue in ours(hub)] == [["bob"], None]
    assert titles(hub) == ["Regression 0", "Regression 1"]
