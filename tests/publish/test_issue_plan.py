"""Which issues are opened, closed, opened again: what a person did by hand stands."""

import hashlib
from dataclasses import replace

import pytest

from perfdash.publish import marker
from perfdash.publish.issues import ExistingIssue, OpenIssue, UpdateIssue, WantedIssue, planned_steps

ALERT = WantedIssue("s1", "run1", "t1", "open", "t1", True, "title", "body", "note")
FIXED = replace(ALERT, state="fixed", open=False)
KNOWN = replace(ALERT, state="acknowledged", open=None)


def there(number=5, is_open=True, left="open", alert=ALERT, rest="by a person\nedited"):
    return ExistingIssue(number, is_open, f"{alert.marker_line(left)}\n{rest}")


def moved(steps):
    (step,) = steps
    assert isinstance(step, UpdateIssue)
    assert step.body == f"{ALERT.marker_line('open' if step.open else 'closed')}\nby a person\nedited"
    return step.open, step.note


def test_opened_once():
    assert planned_steps([], [ALERT]) == [OpenIssue(ALERT)]
    assert planned_steps([there()], [ALERT]) == []
    assert planned_steps([there(alert=replace(ALERT, series="s2"))], [ALERT]) == [OpenIssue(ALERT)]
    assert planned_steps([], [FIXED, KNOWN]) == []


def test_closed_when_fixed_and_opened_again_when_it_is_back():
    assert moved(planned_steps([there()], [FIXED])) == (False, "note")
    assert moved(planned_steps([there(is_open=False, left="closed")], [ALERT])) == (True, "note")
    assert planned_steps([there(is_open=False, left="closed")], [FIXED]) == []


def test_what_a_person_closed_stays_closed_until_it_was_fixed_and_is_back():
    assert planned_steps([there(is_open=False)], [ALERT]) == []
    assert moved(planned_steps([there(is_open=False)], [FIXED])) == (False, "")


def test_what_a_person_opened_stays_open():
    assert planned_steps([there(left="closed")], [FIXED]) == []
    assert moved(planned_steps([there(left="closed")], [ALERT])) == (True, "")


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("left", ["open", "closed"])
def test_what_someone_knows_of_is_left_as_it_is(is_open, left):
    assert planned_steps([there(is_open=is_open, left=left)], [KNOWN]) == []


def test_who_is_to_blame_is_reported_once_where_the_issue_is_open():
    blamed = replace(ALERT, blame="Bisected: culprit")
    (step,) = planned_steps([there()], [blamed])
    assert isinstance(step, UpdateIssue)
    assert (step.open, step.note) == (True, "Bisected: culprit")
    assert step.body == f"{ALERT.marker_line('open', blamed.blame_digest)}\nby a person\nedited"
    existing = ExistingIssue(5, True, step.body)
    assert planned_steps([existing], [blamed]) == []
    assert planned_steps([existing], [ALERT]) == []  # the history was made anew: nobody knows who it was
    assert planned_steps([there(is_open=False)], [blamed]) == []  # a person closed it
    (step,) = planned_steps([existing], [replace(FIXED, blame=blamed.blame)])
    assert isinstance(step, UpdateIssue)
    assert step.body.startswith(ALERT.marker_line("closed", blamed.blame_digest))


def test_of_two_issues_of_an_alert_the_later_is_closed():
    (step,) = planned_steps([there(9), there(5)], [ALERT])
    assert isinstance(step, UpdateIssue)
    assert (step.number, step.open, step.note) == (9, False, "The same as #5.")
    assert planned_steps([there(9, is_open=False, left="closed"), there(5)], [ALERT]) == []


BORN_ELSEWHERE = replace(ALERT, born="run2", opened="t2")


def test_an_alert_born_on_another_run_takes_over_the_issue():
    body = f"{BORN_ELSEWHERE.marker_line('open')}\nby a person\nedited"
    assert planned_steps([there()], [BORN_ELSEWHERE], ["run1", "run2"]) == [
        UpdateIssue(5, BORN_ELSEWHERE, True, body)
    ]
    assert planned_steps([there(), there(9, alert=BORN_ELSEWHERE)], [BORN_ELSEWHERE]) == []
    assert planned_steps([there()], [replace(BORN_ELSEWHERE, series="s2")])[-1:] == [
        OpenIssue(replace(BORN_ELSEWHERE, series="s2"))
    ]


def test_an_issue_with_an_alert_of_its_own_is_not_taken_over():
    assert planned_steps([there()], [BORN_ELSEWHERE, ALERT]) == [OpenIssue(BORN_ELSEWHERE)]
    assert planned_steps([there(is_open=False)], [BORN_ELSEWHERE]) == [OpenIssue(BORN_ELSEWHERE)]


def test_an_issue_whose_alert_is_gone_is_closed():
    (step,) = planned_steps([there()], [], ["run1"])
    assert moved([step])[0] is False
    assert "does not show this regression any more" in step.note
    assert planned_steps([there()], [], ["run2"]) == []  # of another history, or another kind of machine
    assert planned_steps([there(left="closed")], [], ["run1"]) == []
    assert planned_steps([there(is_open=False)], [], ["run1"]) == []
    suspected = replace(BORN_ELSEWHERE, state="new", open=None)
    assert [type(step) for step in planned_steps([there()], [suspected], ["run1"])] == [UpdateIssue]
    assert planned_steps([there()], [suspected], ["run1"])[0].open


def test_closing_comes_before_opening():
    other = replace(ALERT, series="s2", state="fixed", open=False)
    steps = planned_steps([there(alert=other)], [ALERT, other])
    assert [type(step) for step in steps] == [UpdateIssue, OpenIssue]


def cause(*names, is_open=True, **other):
    """A cause with an alert a name."""
    first, *others = [(name, "run1", "t1") for name in names]
    return WantedIssue(
        *first, "open" if is_open else "fixed", other.pop("changed", "t1"), is_open, "title", "body", "note",
        others=tuple(others), **other,
    )  # fmt: skip


def issue_of(wanted, number=5, is_open=True, left="open"):
    return ExistingIssue(number, is_open, f"{wanted.marker_line(left)}\nbody")


def test_a_cause_has_one_issue_however_many_alerts_it_has():
    many = cause(*(f"s{number}" for number in range(80)))
    assert planned_steps([], [many]) == [OpenIssue(many)]
    existing = issue_of(many)
    assert existing.members == many.members
    assert len(many.members) == 2 * 80
    assert planned_steps([existing], [many]) == []


def test_an_issue_of_thousands_of_alerts_fits_and_follows_them():
    many = cause(*(f"s{number}" for number in range(2000)))
    existing = issue_of(many)
    assert len(existing.body) < 15_000
    assert planned_steps([existing], [many]) == []
    fixed = [cause(f"s{number}", is_open=False) for number in range(100)]
    rest = cause(*(f"s{number}" for number in range(100, 2000)))
    (step,) = planned_steps([existing], [*fixed, rest])
    assert isinstance(step, UpdateIssue)
    assert (step.open, len(step.body) < 15_000) == (True, True)
    assert planned_steps([ExistingIssue(5, True, step.body)], [*fixed, rest]) == []


def test_an_issue_of_many_alerts_stays_open_while_those_of_one_machine_are():
    fixed_first = [f"a{number}" for number in range(600)]
    open_still = [f"b{number}" for number in range(600)]
    existing = issue_of(cause(*fixed_first, *open_still))
    steps = planned_steps([existing], [cause(*fixed_first, is_open=False), cause(*open_still)])
    assert [(type(step), step.open) for step in steps] == [(UpdateIssue, True)]


def test_a_pruned_history_names_the_same_alerts_of_many():
    many = cause(*(f"s{number}" for number in range(2000)))
    pruned = replace(many, born="", others=tuple((name, "", opened) for name, _, opened in many.others))
    assert planned_steps([issue_of(many)], [pruned]) == []


def test_an_issue_of_an_earlier_version_learns_the_second_name_of_its_last_open_alert():
    first, second = cause("s1", is_open=False), cause("s2")
    line = issue_of(cause("s1")).body.partition("\n")[0]
    by_run = hashlib.sha256(b"s2 run1").hexdigest()[:10]
    existing = ExistingIssue(5, True, line.replace(" -->", f" membersa={by_run} -->") + "\nbody")
    assert existing.members == {by_run}
    (step,) = planned_steps([existing], [first, second])
    assert isinstance(step, UpdateIssue)
    assert (step.open, step.note) == (True, "")
    later = ExistingIssue(5, True, step.body)
    assert planned_steps([later], [first, second]) == []
    assert planned_steps([later], [first, replace(second, born="")]) == []


def test_an_issue_stays_open_while_one_of_its_alerts_is():
    existing = issue_of(cause("s1", "s2", "s3"))
    fixed = [cause("s1", is_open=False), cause("s2", is_open=False, changed="t9", blame="")]
    assert planned_steps([existing], [*fixed, cause("s3")]) == []
    (step,) = planned_steps([existing], [*fixed, cause("s3", is_open=False)])
    assert isinstance(step, UpdateIssue)
    assert (step.open, step.note) == (False, "note")
    assert step.alert.changed == "t9", "the note of what was fixed last"
    assert ExistingIssue(5, False, step.body).members == existing.members


def test_an_issue_whose_alerts_ended_in_different_ways_names_those_of_each():
    names = [f"s{number:02}" for number in range(13)]

    def ended(name, state, at, note):
        alert = cause(name, is_open=False, changed=at)
        return replace(alert, state=state, note=note, title=f"Regression: timm/{name}: compiled latency")

    existing = issue_of(cause(*names))
    accepted = [ended(name, "accepted", "t2", "The new level was accepted by alice: exact") for name in names]
    fixed = ended("s12", "fixed", "t3", "Fixed: back where it was.")
    (step,) = planned_steps([existing], [*accepted[:12], fixed])
    assert isinstance(step, UpdateIssue)
    assert not step.open
    assert step.alert.state not in ("accepted", "fixed"), "so GitHub does not call it completed"
    assert step.note.splitlines() == [
        "The new level was accepted by alice: exact",
        "",
        *(f"- `timm/{name}: compiled latency`" for name in names[:10]),
        "- and 2 more",
        "",
        "Fixed: back where it was.",
        "",
        "- `timm/s12: compiled latency`",
    ]
    assert ExistingIssue(5, False, step.body).members == existing.members
    (step,) = planned_steps([existing], accepted)
    assert (step.alert.state, step.note) == ("accepted", accepted[0].note)
    by_bob = replace(accepted[12], note="The new level was accepted by bob: safe")
    (step,) = planned_steps([existing], [*accepted[:12], by_bob])
    assert step.alert.state == "accepted"
    assert step.note.endswith("by bob: safe\n\n- `timm/s12: compiled latency`")


def test_each_marker_is_read_once_however_many_alerts_are_over(monkeypatch):
    past = [cause(f"s{number}", is_open=False) for number in range(100)]
    existing = [issue_of(past[number], number, is_open=False, left="closed") for number in range(20)]
    read, calls = marker.read, []
    monkeypatch.setattr(marker, "read", lambda *arguments: calls.append(1) or read(*arguments))
    assert planned_steps(existing, past) == []
    assert len(calls) == len(existing)


@pytest.mark.parametrize(
    ("of_issue", "of_alert", "is_same"),
    [
        (("run1", "t1"), ("run1", "t2"), True),
        (("run1", "t1"), ("run2", "t1"), False),
        (("run1", "t1"), ("", "t1"), True),
        (("run1", "t1"), ("", "t2"), False),
        (("", "t1"), ("run1", "t1"), True),
        (("", "t1"), ("run1", "t2"), False),
        (("", "t1"), ("", "t1"), True),
    ],
)
def test_an_alert_has_its_issue_by_the_run_or_else_by_the_time(of_issue, of_alert, is_same):
    old, new = (replace(ALERT, born=born, opened=opened) for born, opened in (of_issue, of_alert))
    (step,) = planned_steps([there(is_open=False, left="closed", alert=old)], [new])
    assert isinstance(step, UpdateIssue) == is_same


def test_alerts_that_join_a_cause_are_known_to_its_issue_from_then_on():
    (step,) = planned_steps([issue_of(cause("s1"))], [cause("s1", "s2")])
    assert isinstance(step, UpdateIssue)
    assert (step.open, step.note) == (True, "")
    later = ExistingIssue(5, True, step.body)
    assert planned_steps([later], [cause("s1", is_open=False), cause("s2")]) == []


def test_a_pruned_history_knows_every_alert_of_an_issue():
    existing = issue_of(cause("s1", "s2"))
    fixed, still_open = (replace(one, born="") for one in (cause("s1", is_open=False), cause("s2")))
    assert planned_steps([existing], [fixed, still_open]) == []
    assert planned_steps([existing], [fixed, replace(still_open, born="run2")])[-1:] == [
        OpenIssue(replace(still_open, born="run2"))  # a further step, judged in the same second
    ]


def test_two_issues_whose_causes_turn_out_to_be_one():
    first, second = issue_of(cause("s1"), 5), issue_of(cause("s2"), 6)
    closed = planned_steps([second, first], [cause("s1", "s2")])
    assert [(step.number, step.open, step.note) for step in closed] == [
        (5, True, ""),
        (6, False, "The same as #5."),
    ]


def test_a_cause_that_turns_out_to_be_two_keeps_its_issue_for_the_larger():
    existing = issue_of(cause("s1", "s2", "s3"))
    small, large = cause("s1"), cause("s2", "s3")
    assert planned_steps([existing], [small, large]) == [OpenIssue(small)]


def test_alerts_of_another_machine_keep_the_issue_open():
    existing = issue_of(cause("s1", "s2"))
    elsewhere = replace(cause("s2"), open=None)
    assert planned_steps([existing], [cause("s1", is_open=False), elsewhere]) == []
