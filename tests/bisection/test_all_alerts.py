"""Many alerts at once: which member is bisected, what is measured in passing, and what a failure stops."""

import math
from types import SimpleNamespace

import pytest

from perfdash.bisection.all_alerts import (
    BISECTED,
    FAILED,
    IN_PASSING,
    INTERRUPTED,
    KNOWN,
    SKIPPED,
    Attempt,
    FoundStep,
    bisect_all,
    explains,
)
from perfdash.bisection.open_alerts import AlertGroup
from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.causes import Cause, can_be_bisected, steps_of_noise, strongest
from perfdash.errors import MachineError, UsageError
from perfdash.history.alert_store import Alert
from perfdash.records import Case


def member(number, change=0.1, sd=0.01, metric="backend_ms", kind="metric", case=True, **more):
    alert = Alert(
        kind, 1, 1 if case else None, metric, "confirmed", 1, 1, 2, 2, "2026-11-01", "2026-11-01",
        **{"change": change, "details": {"sd": sd} if sd else {}, "id": number, **more},
    )  # fmt: skip
    return AlertEvidence(alert, Case("timm", f"m{number}") if case else None, None, None, None)


def group(*members):
    return AlertGroup(Cause(members, None, None), members, strongest(members))


def test_the_largest_step_in_units_of_its_noise_is_bisected():
    assert group(member(1, 0.3, 0.05), member(2, 0.1, 0.01), member(3, -0.05, 0.01)).number == 2
    assert group(member(1, 0.3), member(2, None, None, "status", "status")).number == 2
    host = member(1, 9.0, 0.01, None, "host", case=False)
    assert group(host, member(2)).number == 2
    assert not can_be_bisected(host)
    assert not can_be_bisected(member(1, metric="eager_peak_bytes"))
    assert steps_of_noise(member(1, -0.1, 0.02)) == pytest.approx(5)
    assert steps_of_noise(member(1, 0.1, None)) == 0


def result(word="found", ratio=1.1, kind="ratio", status="pass", column="backend_ms", culprit="c1"):
    revision = SimpleNamespace(id=culprit)
    culprit = SimpleNamespace(change=SimpleNamespace(ratio=ratio), said=(status,), revisions=(revision,))
    culprits = (culprit,) if word == "found" else ()
    return SimpleNamespace(
        word=word, kind=kind, column=column, metric="", command=None, culprits=culprits, went_back=False
    )


class Scripted:
    """Answers by alert and by whether it is in passing; `calls` has what was asked."""

    def __init__(self, answers, inside=(), known=()):
        self.answers, self.inside, self.of_known, self.calls = answers, set(inside), dict(known), []

    def __call__(self, group, step):
        self.calls.append((group.number, step.label if step else None))
        answer = self.answers[group.number, bool(step)]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def is_inside(self, group, step):
        return (group.number, step.label) in self.inside

    def known(self, group):
        return self.of_known.get(group.number, ())


def found(label, **more):
    step = FoundStep("git", "before", label, label, 1, frozenset({label}))
    return Attempt(result(**more), "folder", (step,))


def outcomes(bisect, *numbers):
    made = bisect_all([group(member(n)) for n in numbers], bisect, describe=lambda group: f"m{group.number}")
    return [(outcome.number, outcome.how, outcome.why) for outcome in made]


def test_a_culprit_in_the_range_of_another_cause_is_measured_for_it_in_passing():
    bisect = Scripted(
        {(1, False): found("c1"), (2, True): Attempt(result(), ""), (3, False): found("c3")}, [(2, "c1")]
    )
    assert outcomes(bisect, 1, 2, 3) == [(1, BISECTED, ""), (2, IN_PASSING, ""), (3, BISECTED, "")]
    assert bisect.calls == [(1, None), (2, "c1"), (3, None)]


def test_a_cause_that_does_not_change_there_is_bisected_by_itself():
    bisect = Scripted(
        {(1, False): found("c1"), (2, True): Attempt(result("not reproduced"), ""), (2, False): found("c2")},
        [(2, "c1")],
    )
    assert outcomes(bisect, 1, 2) == [(1, BISECTED, ""), (2, BISECTED, "")]
    assert bisect.calls[1:] == [(2, "c1"), (2, None)]


def test_a_cause_of_another_commit_of_the_same_merge_is_bisected_by_itself():
    """What was measured in passing was not confirmed, since the other bisection confirmed another commit."""
    in_merge = Attempt(result(culprit="c2"), "")
    bisect = Scripted({(1, False): found("c1"), (2, True): in_merge, (2, False): found("c2")}, [(2, "c1")])
    assert outcomes(bisect, 1, 2) == [(1, BISECTED, ""), (2, BISECTED, "")]
    assert bisect.calls[1:] == [(2, "c1"), (2, None)]


def test_what_was_not_finished_in_passing_says_nothing_of_the_other_cause():
    unfinished = Attempt(result("not finished"), "")
    bisect = Scripted({(1, False): found("c1"), (2, True): unfinished}, [(2, "c1")])
    assert outcomes(bisect, 1, 2) == [(1, BISECTED, ""), (2, BISECTED, "")]


def test_a_cause_that_cannot_be_measured_there_is_bisected_by_itself():
    answers = {(1, False): found("c1"), (2, True): UsageError("an end"), (2, False): found("c2")}
    bisect = Scripted(answers, [(2, "c1")])
    assert outcomes(bisect, 1, 2) == [(1, BISECTED, ""), (2, BISECTED, "")]
    assert bisect.calls[1:] == [(2, "c1"), (2, None)]
    full = Scripted({**answers, (2, True): MachineError("no space")}, [(2, "c1")])
    assert outcomes(full, 1, 2) == [(1, BISECTED, ""), (2, FAILED, "no space")]


def test_a_failure_stops_only_its_own_cause():
    bisect = Scripted(
        {
            (1, False): UsageError("its model is gone"),
            (2, False): MachineError("no space"),
            (3, False): ZeroDivisionError("oops"),
            (4, False): found("c4"),
        }
    )
    assert outcomes(bisect, 1, 2, 3, 4) == [
        (1, FAILED, "its model is gone"),
        (2, FAILED, "no space"),
        (3, FAILED, "internal error: ZeroDivisionError: oops"),
        (4, BISECTED, ""),
    ]


def test_exit_codes_of_failures():
    bisect = Scripted({(1, False): UsageError("a"), (2, False): MachineError("b"), (3, False): KeyError("c")})
    made = bisect_all([group(member(n)) for n in (1, 2, 3)], bisect, describe=str)
    assert [outcome.exit_code for outcome in made] == [2, 3, 3]


def test_an_interruption_leaves_the_rest_out():
    stopped = Attempt(result("not finished"), "folder", interrupted=True)
    bisect = Scripted({(1, False): found("c1"), (2, False): stopped, (3, False): found("c3")})
    assert outcomes(bisect, 1, 2, 3) == [(1, BISECTED, ""), (2, INTERRUPTED, "")]


def test_what_is_known_is_not_looked_for_again_and_a_host_is_skipped():
    bisect = Scripted({}, known={1: ("culprit abc",)})
    made = list(bisect_all([group(member(1)), group(member(2, case=False))], bisect, describe=str))
    assert [outcome.how for outcome in made] == [KNOWN, SKIPPED]
    assert made[0].culprits == ("culprit abc",)
    assert made[1].exit_code == 0


@pytest.mark.parametrize(("wanted", "ratio", "answer"), [
    (0.10, math.exp(0.09), True),
    (0.10, math.exp(0.04), False),
    (0.10, math.exp(-0.1), False),
    (-0.10, math.exp(-0.1), True),
    (None, None, False),
])  # fmt: skip
def test_when_a_change_at_a_culprit_is_the_alerts(wanted, ratio, answer):
    assert explains(group(member(1, wanted)), result(ratio=ratio)) is answer
    assert not explains(group(member(1, wanted)), result("not reproduced"))


def test_a_bisection_that_finds_only_another_change_says_so():
    bisect = Scripted({(1, False): found("c1", ratio=0.95), (2, False): found("c2")})
    made = list(bisect_all([group(member(n)) for n in (1, 2)], bisect, describe=str))
    assert [(outcome.how, outcome.is_explained) for outcome in made] == [(BISECTED, False), (BISECTED, True)]


@pytest.mark.parametrize(("difference", "answer"), [(6, True), (3, True), (2, False), (-1, False)])
def test_a_count_that_changes_otherwise_at_a_culprit_is_another_change(difference, answer):
    breaks = group(member(1, None, metric="graph_breaks", kind="count", before=2.0, after=8.0))
    assert explains(breaks, result(ratio=float(difference), kind="count", column="graph_breaks")) is answer


@pytest.mark.parametrize(("status", "answer"), [("crash", True), ("fail_accuracy", False)])
def test_another_failure_at_a_culprit_is_another_change(status, answer):
    crashing = group(
        member(1, None, metric="status", kind="status", details={"before": "pass", "after": "crash"})
    )
    assert explains(crashing, result(ratio=None, kind="status", status=status)) is answer
