"""The headline of a cause: what is certain first, then what is only suspected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.findings import BETTER
from perfdash.report.cause_text import reported
from tests.history.made import case
from tests.report.shown_alerts import BAD, GOOD, SLOWER


def evidence(number, model, state, metric="backend_ms", **case_values):
    alert = replace(SLOWER, id=number, case_id=number, state=state, metric=metric, details={})
    dates = ((GOOD, -1e9), (BAD, 0.0))
    return AlertEvidence(alert, case(model, **case_values), GOOD, BAD, BAD, dates=dates)


def better(item):
    return replace(item, alert=replace(item.alert, change=-0.02, direction=BETTER))


def headline(*items):
    (cause,) = reported(items, BAD.id)
    return cause.headline


@pytest.mark.parametrize(
    ("metric", "words"),
    [("backend_ms", "15% slower"), ("compilation_cpu_s", "takes 15% longer: compilation CPU seconds")],
)
def test_a_headline_counts_the_suspected_models_of_its_metric(metric, words):
    certain = evidence(1, "a", "new", metric)
    suspected = [evidence(number, model, "suspected", metric) for number, model in ((2, "b"), (3, "c"))]
    assert headline(certain, *suspected) == f"timm/a bs 1 {words}; 2 other models suspected"
    assert headline(certain, *suspected[:1]) == f"timm/a bs 1 {words}; 1 other model suspected"
    eager_too = evidence(4, "b", "new", "eager_ms")
    if metric == "backend_ms":
        assert headline(certain, eager_too, *suspected).endswith(
            "slower, eager too; 2 other models suspected"
        )


def test_a_headline_counts_the_suspected_cases_of_its_own_model():
    certain = evidence(1, "a", "new")
    suspected = [evidence(number, "a", "suspected", threads=number) for number in (2, 3)]
    assert headline(certain, *suspected) == "timm/a bs 1 15% slower; 2 other cases suspected"


def test_a_headline_states_no_suspicion_as_a_fact():
    """Neither a suspected change of the other direction nor one of another metric."""
    certain = evidence(1, "a", "new")
    other_way = better(evidence(2, "b", "suspected"))
    others = [evidence(3, "c", "suspected", "eager_ms"), evidence(4, "d", "suspected", "compilation_cpu_s")]
    assert headline(certain, other_way, *others) == "timm/a bs 1 15% slower"
    assert headline(certain, better(evidence(2, "b", "new"))) == "timm/a bs 1 15% slower; 1 other better"


def test_a_cause_that_is_only_suspected_names_all_its_models():
    suspected = [evidence(number, model, "suspected") for number, model in ((1, "a"), (2, "b"))]
    assert headline(*suspected) == "2 timm models 15% slower"
