"""Nights by different methods: never compared, a new baseline, no alert."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfdash import methods
from perfdash.detect.alert_evidence import gather
from perfdash.detect.change_dates import lasting_changes
from perfdash.detect.comparison_in_history import noise_before
from perfdash.detect.confirmation import of_this_method
from perfdash.detect.findings import Finding
from perfdash.detect.nightly_judging import judge_new
from perfdash.history import alert_store as kept
from perfdash.history import queries
from perfdash.history.ingest import take_in
from perfdash.history.queries import case_numbers, cases_by_id, list_runs, of_method, panel, series
from perfdash.methods import CURRENT
from perfdash.metrics import JUDGED
from tests.detect.simulated import farm, judge_nights, slower
from tests.stores import made_store

LATENCY, MEMORY, ACCURACY, CAPTURE = ({name: 2} for name in ("latency", "memory", "accuracy", "capture"))


@pytest.fixture
def store(tmp_path):
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def by(method, runs, from_night):
    """The runs, of another method from a night on."""
    return [
        replace(night_run, run=replace(night_run.run, method=method if night >= from_night else {}))
        for night, night_run in enumerate(runs)
    ]


def judged(store, runs, first=11):
    judge_nights(store, runs, first)
    return alerts(store)


def alerts(store):
    with store.read() as connection:
        return [
            (alert.kind, alert.metric, alert.direction, [e.state for e in kept.events(connection, alert.id)])
            for alert in kept.load(connection, states=kept.STATES)
        ]


def everything(factor, from_night, *metrics):
    """A change of all models at once."""

    def change(night, name, values):
        if night >= from_night:
            for metric in metrics:
                values[metric] *= factor
        return values

    return change


@pytest.mark.parametrize(
    ("models", "change", "method"),
    [
        (4, slower("model03", 12, 1.2), LATENCY),
        (24, everything(1.2, 12, "backend_ms", "eager_ms"), LATENCY),
        (4, everything(1.3, 12, "eager_peak_bytes"), MEMORY),
        (4, everything(3.0, 12, "fallbacks"), CAPTURE),
    ],
)
def test_a_change_of_method_raises_no_alert(store, models, change, method):
    assert judged(store, by(method, farm(16, models, change=change), 12)) == []


def test_what_eagers_threads_disturbed_starts_anew_and_other_cases_go_on(store):
    """The method of back ends with threads of their own: of their cases with several threads alone."""
    runs = by({"own_threads": 2}, farm(16, 4, change=everything(0.6, 12, "backend_ms")), 12)
    others = {"model00": ("openvino", 2), "model01": ("openvino", 1), "model02": ("inductor", 2)}

    def renamed(row):
        backend, threads = others.get(row.case.model, ("inductor", 1))
        return replace(row, case=replace(row.case, backend=backend, threads=threads))

    runs = [replace(run, rows=tuple(map(renamed, run.rows))) for run in runs]
    judge_nights(store, runs, 11)
    with store.read() as connection:
        found = {alert.case_id for alert in kept.load(connection, states=kept.STATES)}
        models = {case.model for case in cases_by_id(connection, found - {None}).values()}
        (case_id,) = (
            number for case, number in case_numbers(connection, 1).items() if case.model == "model00"
        )
        seen = panel(connection, list_runs(connection), ["backend_ms", "backend_peak_bytes"], [case_id])
        points = series(connection, case_id, "backend_ms")
    assert models == {"model01", "model02", "model03"}
    assert np.isnan(seen.values["backend_ms"][0]).tolist() == [True] * 12 + [False] * 4
    assert not np.isnan(seen.values["backend_peak_bytes"]).any()
    assert [point.method["own_threads"] for point in points] == [1] * 12 + [2] * 4


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.6, 1.0])
def test_an_alert_about_what_eagers_threads_disturbed_is_superseded_and_not_fixed(store, monkeypatch, factor):
    def change(night, name, values):
        values["backend_ms"] *= 1.3 if night >= 12 and name in ("model00", "model01") else 1.0
        values["backend_ms"] *= factor if night >= 16 and name == "model00" else 1.0
        values["backend_ms"] *= 1.5 if night >= 24 and name == "model00" else 1.0
        return values

    def renamed(row):
        threads = 2 if row.case.model == "model00" else 1
        return replace(row, case=replace(row.case, backend="openvino", threads=threads))

    runs = by({"own_threads": 2}, farm(28, 6, change=change), 16)
    runs = [replace(run, rows=tuple(map(renamed, run.rows))) for run in runs]
    with monkeypatch.context() as earlier:  # perfdash before the method
        for module in (methods, queries):
            earlier.setattr(module, "OWN_THREADS", ())
        judge_nights(store, runs[:16], 11)
    for night in runs[16:]:
        take_in(store, [night])
        judge_new(store)
    with store.read() as connection:
        states, found = {}, kept.load(connection, states=kept.STATES)
        cases = cases_by_id(connection, {alert.case_id for alert in found})
        for alert in found:
            states.setdefault(cases[alert.case_id].model, []).append(
                [event.state for event in kept.events(connection, alert.id)]
            )
    raised = ["suspected", "new", "confirmed", "open"]
    assert states["model01"] == [raised]
    assert sorted(states["model00"]) == [raised[:4], [*raised, "superseded"]], "the new one is not superseded"


def test_a_wavering_host_raises_no_alert_while_the_baseline_is_new(store):
    off = np.random.default_rng(1).normal(0, 0.03, 20)

    def change(night, name, values):
        return values | {metric: values[metric] * np.exp(off[night]) for metric in ("eager_ms", "backend_ms")}

    for *_, states in judged(store, by(LATENCY, farm(20, 24, change=change), 11), 14):
        assert states == ["suspected", "dismissed"]


def test_the_same_change_without_one_does(store):
    alert_rows = judged(store, by(MEMORY, farm(16, 4, change=slower("model03", 12, 1.2)), 12))
    assert alert_rows == [("metric", "backend_ms", 1, ["suspected", "new", "confirmed"])]


def test_only_nights_by_the_new_method_are_the_new_baseline(store):
    runs = by(LATENCY, farm(24, 4, change=slower("model03", 20, 1.2)), 12)
    assert [night_run[:3] for night_run in judged(store, runs, 19)] == [("metric", "backend_ms", 1)]
    with store.read() as connection:
        (alert,) = kept.load(connection)
        (evidence,) = gather(connection, [alert])
    assert alert.details["method"] == LATENCY
    assert evidence.before == 8, "nights by the old method are no baseline"
    assert evidence.between[1].started.startswith("2026-01-21")


@pytest.mark.parametrize(("night", "judged_again"), [(14, False), (15, True)])
def test_the_new_baseline_is_judged_from_its_fourth_night_on(store, night, judged_again):
    take_in(store, by(LATENCY, farm(night + 1, 4, change=slower("model03", night, 3.0)), 12))
    (last,) = judge_new(store, latest=1)
    assert bool(last.findings) == judged_again


def failing(first, last, status="fail_accuracy"):
    return lambda night, name: status if name == "model01" and first <= night < last else "pass"


@pytest.mark.parametrize("method", [ACCURACY, CAPTURE])
def test_a_status_by_another_method_of_checking_is_no_failure(store, method):
    assert judged(store, by(method, farm(14, 4, statuses=failing(12, 99)), 12)) == []


@pytest.mark.parametrize("method", [ACCURACY, CAPTURE])
@pytest.mark.parametrize("status", ["crash", "timeout", "oom", "fail_to_run", "model_fail_to_load"])
def test_a_model_that_stops_running_that_night_is_a_failure(store, method, status):
    alert_rows = judged(store, by(method, farm(18, 4, statuses=failing(12, 17, status)), 12))
    assert alert_rows == [("status", "status", 1, ["new", "confirmed", "open", "fixed"])]
    with store.read() as connection:
        (alert,) = kept.load(connection, states=kept.STATES)
    (name,) = method
    assert (alert.details["before"], alert.details["after"]) == ("pass", status)
    assert f"perfdash's method: {name} 1 -> 2" in alert.details["changed"]


def test_a_model_that_crashed_before_is_no_new_failure(store):
    alert_rows = judged(store, by(ACCURACY, farm(16, 4, statuses=failing(5, 99, "crash")), 12))
    assert alert_rows == []


def test_a_model_that_passes_again_that_night_is_no_repair(store):
    assert judged(store, by(ACCURACY, farm(14, 4, statuses=failing(5, 12, "crash")), 12)) == []


def test_an_alert_is_over_when_its_metric_is_measured_otherwise(store):
    back = slower("model03", 12, 1.2, until=16)  # which would read as fixed
    alert_rows = judged(store, by(LATENCY, farm(20, 4, change=back), 16))
    assert alert_rows == [("metric", "backend_ms", 1, ["suspected", "new", "confirmed", "superseded"])]
    with store.read() as connection:
        assert kept.load(connection) == []
        (alert,) = kept.load(connection, states=[kept.SUPERSEDED])
        last = kept.events(connection, alert.id)[-1]
    assert last.note.startswith("latency 1 -> 2: 2026-01-17T01-00-00Z_farm")


def of_job(runs, threads):
    """The runs as another job measures them on the same testbed, hours later."""
    return [
        replace(
            run,
            run=replace(
                run.run,
                name=f"{run.run.name}_{threads}",
                uid=f"{run.run.uid} {threads}",
                started=run.run.started.replace("T01", f"T{threads + 1:02}"),
            ),
            rows=tuple(replace(row, case=replace(row.case, threads=threads)) for row in run.rows),
        )
        for run in runs
    ]


@pytest.mark.parametrize(("changed", "last"), [({1}, "open"), ({4}, "open"), ({1, 4}, "superseded")])
def test_a_host_alert_is_over_when_the_job_that_saw_it_last_measures_otherwise(store, changed, last):
    """Two jobs on one testbed measure other cases, of which each sees the move of the host."""
    jobs = [
        by(LATENCY, of_job(farm(16, 24, change=everything(1.2, 12, "backend_ms"), seed=job), job), night)
        for job, night in ((job, 15 if job in changed else 99) for job in (1, 4))
    ]
    alert_rows = judged(store, [run for night in zip(*jobs, strict=True) for run in night], 22)
    assert [(alert[0], alert[1], alert[3][-1]) for alert in alert_rows] == [("host", "backend_ms", last)]


def test_a_failure_that_the_new_check_sees_too_goes_on(store):
    alert_rows = judged(store, by(ACCURACY, farm(18, 4, statuses=failing(12, 17)), 15))
    assert alert_rows == [("status", "status", 1, ["new", "confirmed", "open", "open", "fixed"])]


def test_a_failure_that_the_new_check_does_not_see_is_not_called_fixed(store):
    alert_rows = judged(store, by(ACCURACY, farm(18, 4, statuses=failing(12, 15)), 15))
    assert alert_rows == [("status", "status", 1, ["new", "confirmed", "open", "superseded"])]


def test_what_was_fixed_by_the_old_method_is_not_reopened(store):
    def change(night, name, values):
        bad = 12 <= night < 15 or night >= 24
        return slower("model03", 0 if bad else 10**6, 1.2)(night, name, values)

    alert_rows = judged(store, by(LATENCY, farm(28, 4, change=change), 17))
    assert [states[-1] for *_, states in alert_rows] == ["fixed", "confirmed"]


def test_change_points_lie_within_one_method(store):
    def change(night, name, values):
        if name == "model01":
            values["backend_ms"] *= (1.0 if night < 20 else 1.2) * (1.0 if night < 40 else 0.6)
        return values

    take_in(store, by(LATENCY, farm(60, models=3, change=change), 40))
    with store.read() as connection:
        runs = list_runs(connection)
        changes = list(lasting_changes(panel(connection, runs, JUDGED)))
    assert [(point.metric, point.first.started[:10]) for point in changes] == [("backend_ms", "2026-01-21")]


def test_the_noise_of_another_method_says_nothing(store):
    runs = by(LATENCY, farm(12, models=3), 9)
    take_in(store, runs)
    with store.read() as connection:
        noise = noise_before(connection, [runs[-2], runs[-1]])
    assert noise["backend_ms"] == {}
    assert len(noise["backend_peak_bytes"]) == 3


def test_what_was_captured_says_of_each_night_whether_it_counts(store):
    take_in(store, by(CAPTURE, farm(4, models=1), 2))
    with store.read() as connection:
        runs = list_runs(connection)
        values = of_method(panel(connection, runs, ["calls_captured", "fallbacks"]), runs[-1].method)
    assert values.values["calls_captured"].tolist() == [[100.0] * 4]
    assert values.values["fallbacks"].tolist()[0][2:] == [1.0, 1.0]
    assert str(values.values["fallbacks"][0, 0]) == "nan"


def test_only_what_is_measured_as_that_night_is_confirmed(store, monkeypatch):
    take_in(store, by({}, farm(1, models=1), 0))
    with store.read() as connection:
        (run,) = list_runs(connection)
    findings = [Finding("metric", 1, name, 1, 0, 1) for name in ("backend_ms", "backend_peak_bytes")]
    monkeypatch.setitem(CURRENT, "memory", 1)
    monkeypatch.setitem(CURRENT, "latency", 1)
    assert of_this_method(findings, run) == findings
    monkeypatch.setitem(CURRENT, "latency", 2)
    assert of_this_method(findings, run) == findings[1:]
