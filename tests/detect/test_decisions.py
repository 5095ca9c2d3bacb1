"""What people decide about alerts, and the rules for selected series."""

from __future__ import annotations

import math
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.detect import curation
from perfdash.detect.alert_evidence import gather
from perfdash.detect.curation import LevelSelection
from perfdash.detect.nightly_judging import judge_new, judge_run, noisiest
from perfdash.detect.selected_series import AcceptedLevel, SeriesSelection
from perfdash.errors import UsageError
from perfdash.history import acts, alert_store
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from perfdash.report.alert_text import alert_list
from perfdash.series_rules import SERIES, SeriesRule, read_rules, rule_for
from tests.detect.simulated import FIRST, begin, farm, judge_last, judge_nights, slower
from tests.history.made import case
from tests.stores import in_sqlite, made_store


@pytest.fixture
def quick(tmp_path):
    """One kind of store is enough where it only holds what is judged."""
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def fails(night, name):
    return "fail_accuracy" if name == "model05" and night >= 30 else "pass"


def is_sunday(night):
    return (FIRST + timedelta(days=night)).isoweekday() == 7


def alerts(store):
    with store.read() as connection:
        return [
            (alert.id, alert.kind, alert.state)
            for alert in alert_store.load(connection, states=alert_store.STATES)
        ]


def last_note(store, number):
    with store.read() as connection:
        return alert_store.events(connection, number)[-1].note


@pytest.mark.slow
def test_an_invalid_alert_is_over_and_its_finding_raises_no_other(store):
    runs = farm(37, change=slower("model03", 29, 1.2))
    judge_nights(store, runs[:31])
    ((number, _, state),) = alerts(store)
    assert state in alert_store.LIVE
    curation.invalidate(store, number, "the clock was off")
    with store.read() as connection:
        findings = judge_run(connection, list_runs(connection)[-1]).findings
    assert not [finding for finding in findings if finding.alarm]
    for night in runs[31:]:
        take_in(store, [night])
        judge_new(store)
    assert alerts(store) == [(number, "metric", "invalid")]
    assert last_note(store, number).endswith(": the clock was off")
    with pytest.raises(UsageError, match=rf"alert {number} is invalid \(.* on 20.*: the clock was off\)"):
        curation.invalidate(store, number, "me too")
    with pytest.raises(UsageError, match="there is no alert 77; `perfdash regressions --all` lists them"):
        curation.invalidate(store, 77, "what")


def test_a_suspected_change_is_called_invalid_but_not_acknowledged(quick):
    runs = farm(33, change=slower("model03", 30, 1.4))
    judge_nights(quick, runs[:31])
    assert alerts(quick) == [(1, "metric", "suspected")]
    with pytest.raises(UsageError, match="alert 1 is only suspected, and fails no gate"):
        curation.acknowledge(quick, 1)
    curation.invalidate(quick, 1, "the clock was off")
    for night in runs[31:]:
        take_in(quick, [night])
        judge_new(quick)
    assert alerts(quick) == [(1, "metric", "invalid")]


@pytest.mark.slow
def test_an_invalid_alert_is_not_raised_again_by_nights_that_are_judged_again(quick):
    runs = farm(34, models=8, change=slower("model03", 30, 1.2), statuses=fails)
    judge_nights(quick, runs)
    found = sorted((kind, state) for _, kind, state in alerts(quick))
    assert found == [("metric", "open"), ("status", "open")]
    for number, *_ in alerts(quick):
        curation.invalidate(quick, number, "the clock was off")
    # Without the first night the changes begin with the second, so the alerts are of that night afterwards.
    for night in (runs[30], runs[27]):
        curation.exclude(quick, night.run.name, "a wrong run")
        judge_new(quick)
        curation.restore(quick, night.run.name)
        judge_new(quick)
        assert [state for *_, state in alerts(quick)] == ["invalid", "invalid"]


@pytest.mark.slow
def test_an_invalid_further_step_hides_no_earlier_one_that_is_judged_again(quick):
    def two_steps(night, model, values):
        values["backend_ms"] *= 1.2 ** ((night >= 30) + (night >= 36)) if model == "model03" else 1
        return values

    runs = farm(40, models=8, change=two_steps)
    judge_nights(quick, runs)
    assert alerts(quick) == [(1, "metric", "open"), (2, "metric", "open")]
    curation.invalidate(quick, 2, "the clock was off")
    for night in (runs[30], runs[27]):
        curation.exclude(quick, night.run.name, "a wrong run")
        judge_new(quick)
        assert alerts(quick) == [(1, "metric", "open"), (2, "metric", "invalid")]
        curation.restore(quick, night.run.name)
        judge_new(quick)
        assert alerts(quick) == [(1, "metric", "open"), (2, "metric", "invalid")]


@pytest.mark.slow
def test_alerts_of_a_level_that_was_called_invalid_and_stayed_name_that_one(quick):
    """Fourteen nights after it, the step looks like one of a later date, and like a drift."""
    runs = farm(46, models=4, change=slower("model03", 30, 1.2))
    judge_nights(quick, runs[:32])
    ((first, _, _),) = alerts(quick)
    curation.invalidate(quick, first, "the clock was off")
    for night in runs[32:]:
        take_in(quick, [night])
        judge_new(quick)
    assert [kind for _, kind, _ in alerts(quick)] == ["metric", "metric", "drift"]
    for number, *_ in alerts(quick)[1:]:
        with quick.read() as connection:
            text = alert_list(gather(connection, [alert_store.find(connection, number)]))
        assert f"{number}: the same change as alert {first}, which was called invalid" in text
        assert f"`perfdash regressions {number} --baseline-from RUN`" in text


@pytest.mark.slow
def test_an_invalid_drift_hides_the_same_one_only_while_its_night_is_read(quick):
    """The series drifts, goes back, and drifts again 210 nights later."""

    def drift(night, name, values):
        if name == "model03" and night % 210 <= 110:
            values["backend_ms"] *= 1 + 0.0005 * (night % 210)
        return values

    def sunday_before(night):
        return next(day for day in range(night, 0, -1) if is_sunday(day))

    runs = farm(321, models=6, noise=0.005, change=drift)
    judged = [sunday_before(102), sunday_before(109), sunday_before(102 + 210), sunday_before(109 + 210)]
    taken, found = 0, []
    for night in judged:
        take_in(quick, runs[taken : night + 1])
        judge_last(quick, 1)
        taken = night + 1
        drifts = [(number, state) for number, kind, state in alerts(quick) if kind == "drift"]
        found.append([state for _, state in drifts])
        if night == judged[0]:
            curation.invalidate(quick, drifts[0][0], "a fan")
    assert found == [["new"], ["invalid"], ["invalid", "new"], ["invalid", "confirmed"]]


@in_sqlite
def test_an_acknowledgement_ends_after_its_day(store, monkeypatch):
    judge_nights(store, farm(31, statuses=fails))
    ((number, *_),) = alerts(store)
    curation.acknowledge(store, number, "known: #12", "2026-12-24")
    assert judge_new(store) == []
    for moment, state in (("2026-12-24T23:59:59Z", "acknowledged"), ("2026-12-25T00:00:00Z", "new")):
        monkeypatch.setattr("perfdash.detect.nightly_judging.now", lambda moment=moment: moment)
        judge_new(store)
        assert alerts(store) == [(number, "status", state)]
    assert last_note(store, number) == "it was acknowledged until 2026-12-24"


def test_an_acknowledgement_that_is_over_does_not_return_when_nights_are_judged_again(quick, monkeypatch):
    runs = farm(8, 4, statuses=lambda night, name: "crash" if night >= 4 and name == "model03" else "pass")
    judge_nights(quick, runs[:5], first=4)
    curation.acknowledge(quick, 1, "known: #12", "2026-12-24")
    monkeypatch.setattr("perfdash.detect.nightly_judging.now", lambda: "2026-12-25T00:00:00Z")
    monkeypatch.setattr("perfdash.detect.curation.now", lambda: "2026-12-25T00:00:00Z")
    for night in runs[5:]:
        take_in(quick, [night])
        judge_new(quick)
    assert alerts(quick) == [(1, "status", "open")]
    curation.exclude(quick, runs[6].run.name, "the fan was broken")
    assert alerts(quick) == [(1, "status", "confirmed")]
    judge_new(quick)
    assert alerts(quick) == [(1, "status", "open")]
    with quick.read() as connection:
        states = [event.state for event in alert_store.events(connection, 1)]
    assert states.count("acknowledged") == 1


def test_an_acknowledgement_of_nights_before_those_judged_again_stays_over(quick, monkeypatch):
    def use_clock(at):
        for module in ("nightly_judging", "curation"):
            monkeypatch.setattr(f"perfdash.detect.{module}.now", lambda: at)

    runs = farm(8, 4, statuses=lambda night, name: "crash" if night >= 4 and name == "model03" else "pass")
    judge_nights(quick, runs[:6], first=4)
    use_clock("2026-12-24T00:00:00Z")
    curation.acknowledge(quick, 1, "known: #12", "2026-12-24")
    for night in runs[6:]:
        take_in(quick, [night])
        judge_new(quick)
    use_clock("2026-12-25T00:00:00Z")
    judge_new(quick)
    assert alerts(quick) == [(1, "status", "open")]
    curation.exclude(quick, runs[6].run.name, "the fan was broken")
    assert alerts(quick) == [(1, "status", "open")]


@pytest.mark.slow
def test_an_accepted_level_ends_its_alerts_and_is_the_new_baseline(store):
    runs = farm(38, change=slower("model03", 29, 1.2))
    judge_nights(store, runs[:33])
    ((number, *_),) = alerts(store)
    _, cases, ended, nights = curation.accept_level(
        store, runs[29].run.name, "the fix of #7 costs this", LevelSelection(alert=number)
    )
    assert (cases, ended, nights) == (1, [number], 4)
    for night in runs[33:]:
        take_in(store, [night])
        judge_new(store)
    assert alerts(store) == [(number, "metric", "accepted")]
    with pytest.raises(UsageError, match="accepted this level of the same series on"):
        curation.accept_level(store, runs[29].run.name, "again", LevelSelection(alert=number))


@in_sqlite
@pytest.mark.slow
def test_after_an_accepted_level_the_series_is_judged_by_it(store):
    def change(night, name, values):
        return slower("model03", 36, 1.3)(night, name, slower("model03", 29, 1.2)(night, name, values))

    runs = farm(40, change=change)
    judge_nights(store, runs[:30])
    curation.accept_level(store, runs[29].run.name, "meant", LevelSelection(model="model03"))
    for night in runs[30:]:
        take_in(store, [night])
        judge_new(store)
    with store.read() as connection:
        (alert,) = [candidate for candidate in alert_store.load(connection) if candidate.kind == "metric"]
    assert alert.change == pytest.approx(math.log(1.3), abs=0.03)


@in_sqlite
def test_a_status_from_an_accepted_run_on_raises_no_alert(store):
    runs = farm(33, statuses=fails)
    judge_nights(store, runs)
    ((number, *_),) = alerts(store)
    curation.accept_level(store, runs[30].run.name, "meant", LevelSelection(model="MODEL05", metric="status"))
    judge_new(store)
    assert alerts(store) == [(number, "status", "accepted")]


@pytest.mark.parametrize("selection", [LevelSelection(alert=1), LevelSelection(model="model05")])
def test_a_model_that_is_no_longer_measured_is_accepted_alone(quick, selection):
    def change(night, name, values):
        return None if name in ("model03", "model05") and night >= 30 else values

    runs = farm(34, models=8, change=change)
    judge_nights(quick, runs[:33], 29)
    assert [alert[1:] for alert in alerts(quick)] == [("vanished", "open")] * 2
    number = selection.alert or 2
    _, cases, ended, _ = curation.accept_level(quick, runs[31].run.name, "it was removed", selection)
    assert (cases, ended) == (1, [number])
    judge_new(quick)
    for night in runs[33:]:
        take_in(quick, [night])
        judge_new(quick)
    states = {1: "open", 2: "open", number: "accepted"}
    assert alerts(quick) == [(each, "vanished", state) for each, state in states.items()]
    with pytest.raises(UsageError, match="select none of its series"):
        curation.accept_level(quick, runs[33].run.name, "why", LevelSelection(model="vgg*"))


def test_a_level_that_selects_nothing_is_refused(store):
    runs = farm(3, models=2)
    judge_nights(store, runs)
    name = runs[-1].run.name
    for selection, message in (
        (LevelSelection(model="vgg*"), "select none of its series; models of it: model00, model01"),
        (LevelSelection(metric="speed"), "matches no metric that is judged: eager_ms"),
        (LevelSelection(alert=5), "no alert 5"),
    ):
        with pytest.raises(UsageError, match=message):
            curation.accept_level(store, name, "why", selection)
    with pytest.raises(UsageError, match="the history has no run 'nights'"):
        curation.accept_level(store, "nights", "why", LevelSelection())
    curation.exclude(store, name, "wrong")
    with pytest.raises(UsageError, match="is excluded from judging"):
        curation.accept_level(store, name, "why", LevelSelection())
    with store.read() as connection:
        assert [act.act for act in acts.load(connection)] == ["exclude"]


@in_sqlite
def test_a_larger_minimum_change_of_one_model_raises_no_alert_below_it(store):
    def change(night, name, values):
        return slower("model04", 29, 1.2)(night, name, slower("model03", 29, 1.2)(night, name, values))

    judge_nights(store, farm(34, change=change), rules=[SeriesRule(model="model03", minimum_change=0.4)])
    with store.read() as connection:
        cases = [alert.case_id for alert in alert_store.load(connection, states=alert_store.STATES)]
        assert len(cases) == 1
        (case_,) = curation.cases_by_id(connection, cases).values()
    assert case_.model == "model04"


@in_sqlite
def test_a_smaller_minimum_change_of_a_quiet_model_finds_a_small_step(store):
    runs = farm(36, noise=0.001, change=slower("model03", 29, 1.012))
    judge_nights(store, runs, rules=[SeriesRule(model="model03", metric="backend_ms", minimum_change=0.005)])
    assert [alert[1] for alert in alerts(store)] == ["metric"]


@in_sqlite
def test_what_is_not_judged_raises_no_alert_and_its_open_alert_ends(store):
    runs = farm(34, statuses=fails, change=slower("model03", 25, 1.3))
    judge_nights(store, runs[:32])
    assert sorted(alert[1:] for alert in alerts(store)) == [("metric", "open"), ("status", "confirmed")]
    rules = [SeriesRule(model="model0[35]")]
    for night in runs[32:]:
        take_in(store, [night])
        judge_new(store, rules=rules)
    assert {alert[2] for alert in alerts(store)} == {"dismissed"}
    assert "[[thresholds]]" in last_note(store, 1)


def test_the_parts_of_a_step_follow_the_level_of_their_step():
    level = AcceptedLevel(SeriesRule(metric="backend_ms"), "2026-01-01T00:00:00Z")
    assert level.selects(case(), "forward_ms")
    assert not level.selects(case(), "eager_ms")


RULES = [
    {"model": "resnet*", "minimum_change": 0.1},
    {"metric": "compilation_cpu_s", "minimum_change": 1},
    {"suite": "TIMM", "model": "vgg16", "judge": False},
]


def test_the_last_rule_that_matches_holds():
    rules = read_rules(RULES, "perfdash.toml")
    assert rule_for(rules, "timm", "ResNet18", "backend_ms").minimum_change == 0.1
    assert rule_for(rules, "timm", "resnet18", "compilation_cpu_s").minimum_change == 1.0
    assert rule_for(rules, "timm", "vgg16", "status").minimum_change is None
    assert rule_for(rules, "timm", "vit", "status") is None
    assert rule_for(rules[::-1], "timm", "vgg16", "status").minimum_change is None


def test_a_part_is_judged_as_its_step_is():
    selection = SeriesSelection([SeriesRule(metric="backend_ms")], cases={1: case()})
    assert not selection.is_judged(1, "backend_ms")
    assert not selection.is_judged(1, "forward_ms")
    assert selection.is_judged(1, "eager_ms")
    assert selection.is_judged(1, None)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"mode": "x", "judge": False}, "has no key 'mode'"),
        ({"model": 3, "judge": False}, "model = 3: give a name or a pattern"),
        ({"metric": "speed", "judge": False}, "'speed' matches no metric that is judged: eager_ms"),
        ({"metric": "graph_breaks", "minimum_change": 0.1}, "every change counts"),
        ({"model": "x"}, "give one of minimum_change"),
        ({"minimum_change": 0.1, "judge": False}, "give one of minimum_change"),
        ({"judge": True}, "only false is possible"),
        ({"minimum_change": 0}, "a fraction above 0"),
        ({"minimum_change": 25}, "a fraction above 0"),
        ({"minimum_change": True}, "a fraction above 0"),
        ({"minimum_change": math.nan}, "a fraction above 0"),
        ({"minimum_change": "5 %"}, "a fraction above 0"),
        (3, "write \\[\\[thresholds\\]\\] before each rule"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_place(rule, message):
    with pytest.raises(UsageError, match=message) as refused:
        read_rules([RULES[0], rule], "perfdash.toml")
    assert str(refused.value).startswith("perfdash.toml: ")
    assert "\n" not in str(refused.value)
    if rule != 3:
        assert "[[thresholds]] rule 2" in str(refused.value)


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text("ax*[\n", max_size=5)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["suite", "model", "metric", "minimum_change", "judge"]), anything)
    )
)
def test_any_rules_are_read_or_refused_in_one_line(tables):
    message = ""
    rules = ()
    try:
        rules = read_rules(tables, "perfdash.toml")
    except UsageError as error:
        message = str(error)
    assert "\n" not in message
    for metric in SERIES:
        rule_for(rules, "timm", "resnet18", metric)


def test_the_noisiest_series_come_first_with_what_each_shows(quick):
    draw = np.random.default_rng(7)

    def change(night, name, values):
        if name in ("model03", "model04"):
            values["backend_ms"] *= math.exp(0.1 * draw.standard_normal())
        return values

    take_in(quick, farm(40, noise=0.01, change=change))
    rules = [SeriesRule(model="model04"), SeriesRule(model="model05", minimum_change=0.3)]
    with quick.read() as connection:
        last = list_runs(connection)[-1]
        listed = noisiest(connection, last, 200, rules)
        assert noisiest(connection, last, 3, rules) == listed[:3]
    assert (listed[0].case.model, listed[0].metric, listed[0].nights) == ("model03", "backend_ms", 40)
    assert listed[0].sd == pytest.approx(0.1, rel=0.3)
    first_change, two, five = (change or math.inf for change in listed[0].least)
    assert first_change >= two >= five > 0.1
    assert "model04" not in {series.case.model for series in listed}
    assert {series.minimum for series in listed if series.case.model == "model05"} == {0.3}
    usual = next(entry for entry in listed if (entry.case.model, entry.metric) == ("model07", "eager_ms"))
    assert usual.least[2] == pytest.approx(0.02, abs=0.01)


@pytest.mark.slow
def test_what_is_promised_after_five_nights_is_found(quick):
    runs = farm(45, noise=0.02, seed=4)
    begin(quick, runs[:40])
    with quick.read() as connection:
        listed = noisiest(connection, list_runs(connection)[-1], 200)
    (least,) = (s.least[2] for s in listed if (s.case.model, s.metric) == ("model07", "backend_ms"))
    for night in farm(45, noise=0.02, seed=4, change=slower("model07", 40, 1 + 2 * least))[40:]:
        take_in(quick, [night])
        judge_new(quick)
    assert [alert[1] for alert in alerts(quick)] == ["metric"]
