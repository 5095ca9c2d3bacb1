"""A machine more in a class: its first nights, and what changed of a machine as the first explanation."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import sqlalchemy as sa

from perfdash.detect.alert_evidence import gather
from perfdash.detect.causes import HOST, causes
from perfdash.detect.change_dates import lasting_changes
from perfdash.detect.environment_changes import environment_changes
from perfdash.detect.nightly_judging import judge_new
from perfdash.detect.nights import JUDGED_NIGHTS
from perfdash.history import alert_store, schema
from perfdash.history.alert_store import SHOWN, STATES
from perfdash.history.ingest import take_in
from perfdash.history.queries import cases_by_id, list_runs, panel
from perfdash.history.results import Imported
from perfdash.history.store import open_store
from perfdash.metrics import JUDGED
from tests.detect.simulated import FIRST, begin, farm, judge_last, judge_nights, slower
from tests.history.made import run
from tests.stores import as_revision_0010, made_store

MOVED = 25  # the night from which on another machine measures


@pytest.fixture
def store(tmp_path):
    with made_store(tmp_path / "history.db") as opened:
        yield opened


def on_another_machine(imported):
    return Imported(replace(imported.run, host="farm2", uid=f"{imported.run.uid} 2"), imported.rows)


def moved(nights, change=lambda night, name, values: values):
    """Nights on one machine, then on another, which is 5 % slower, and off by 2 % in single models."""
    own = dict(
        zip(
            (f"model{model:02}" for model in range(24)), np.random.default_rng(7).normal(size=24), strict=True
        )
    )

    def elsewhere(night, name, values):
        if night >= MOVED:
            for metric in ("eager_ms", "backend_ms", "compilation_cpu_s"):
                values[metric] *= float(np.exp(0.05 + 0.02 * own[name]))
        return change(night, name, values)

    runs = farm(nights, change=elsewhere)
    return runs[:MOVED] + [on_another_machine(one) for one in runs[MOVED:]]


LATENCIES = ("eager_ms", "backend_ms")
BAD = 25  # a night of the second machine
BACK = 45  # another


def in_turn(nights, until=10**6):
    """Every second night on another machine, which is 5 % faster; one model is 8 % slower from BAD on."""

    def changed(night, name, values):
        for metric in LATENCIES:
            values[metric] *= 0.95 if night % 2 else 1.0
        if name == "model03" and BAD <= night < until:
            values["backend_ms"] *= 1.08
        return values

    runs = farm(nights, change=changed)
    return [on_another_machine(one) if night % 2 else one for night, one in enumerate(runs)]


def night_by_night(store, runs, after_a_night=lambda connection: None, nights=range(10**6)):
    """Judge the later nights one by one, or some `nights`; the alert of the slower model and its states."""
    begin(store, runs[: BAD - 5])
    for night, one in enumerate(runs[BAD - 5 :], BAD - 5):
        take_in(store, [one])
        if night not in nights:
            continue
        judge_new(store, latest=1)
        with store.write() as connection:
            after_a_night(connection)
    with store.read() as connection:
        (slower,) = (
            alert
            for alert in alert_store.load(connection, states=STATES)
            if alert.metric == "backend_ms" and alert.change > 0.05
        )
        return slower, [event.state for event in alert_store.events(connection, slower.id)]


@pytest.mark.slow
def test_a_regression_stays_open_while_two_machines_measure_in_turn(store):
    slower, states = night_by_night(store, in_turn(50))
    assert slower.state == alert_store.OPEN
    assert not {alert_store.FIXED, alert_store.DISMISSED} & set(states)


@pytest.mark.slow
def test_a_regression_is_fixed_when_its_level_returns_on_machines_in_turn(store):
    slower, states = night_by_night(store, in_turn(52, until=BACK))
    assert slower.state == alert_store.FIXED
    assert states.count(alert_store.FIXED) == 1


def of_an_older_perfdash(connection):
    """Drop from the alerts what says on which machine their levels are."""
    for alert in alert_store.load(connection, states=STATES):
        details = {name: value for name, value in alert.details.items() if name != "machine"}
        alert_store.save(connection, replace(alert, details=details))


def forget_once_open(connection):
    if any(one.state == alert_store.OPEN for one in alert_store.load(connection)):
        of_an_older_perfdash(connection)


@pytest.mark.parametrize(
    ("until", "state"), [(10**6, alert_store.OPEN), (BACK, alert_store.FIXED)], ids=["it stays", "it returns"]
)
@pytest.mark.slow
def test_an_alert_without_its_machine_ends_by_a_certain_step_back(store, until, state):
    slower, states = night_by_night(store, in_turn(52, until), forget_once_open)
    assert slower.state == state
    assert states.count(alert_store.FIXED) == (state == alert_store.FIXED)


@pytest.mark.slow
def test_levels_are_those_of_the_machine_of_an_alert_before_another_joined(store):
    """An alert of one machine's nights; then another machine measures more nights than it did."""

    def changed(night, name, values):
        for metric in LATENCIES:
            values[metric] *= 0.9 if night >= BAD + 6 else 1.0
        if name == "model03" and night >= BAD:
            values["backend_ms"] *= 1.08
        return values

    runs = farm(BAD + 6 + 36, change=changed)
    slower, states = night_by_night(
        store, runs[: BAD + 6] + [on_another_machine(one) for one in runs[BAD + 6 :]]
    )
    assert slower.state == alert_store.OPEN
    assert alert_store.FIXED not in states


REPLACED = BAD + 20  # so late that the change is not dated any more
OUT_OF_SIGHT = REPLACED + JUDGED_NIGHTS  # from this night on no night of the first machine is read


@pytest.mark.parametrize("after_a_night", [lambda connection: None, forget_once_open], ids=["new", "older"])
@pytest.mark.parametrize(
    ("factor", "until", "state"),
    [(0.95, 10**6, alert_store.OPEN), (1.07, OUT_OF_SIGHT + 5, alert_store.FIXED)],
    ids=["faster", "slower, repaired"],
)
@pytest.mark.slow
def test_a_replaced_machine_neither_ends_a_regression_nor_hides_its_repair(
    store, factor, until, state, after_a_night
):
    def changed(night, name, values):
        for metric in LATENCIES:
            values[metric] *= factor if night >= REPLACED else 1.0
        if name == "model03" and BAD <= night < until:
            values["backend_ms"] *= 1.08
        return values

    runs = farm(OUT_OF_SIGHT + 10, change=changed)  # the repair is followed by no Sunday, when more is read
    runs = runs[:REPLACED] + [on_another_machine(one) for one in runs[REPLACED:]]
    nights = {*range(BAD - 5, BAD + 8), *range(REPLACED + 1, OUT_OF_SIGHT - 2, 10)}
    nights |= set(range(OUT_OF_SIGHT - 2, OUT_OF_SIGHT + 10))
    slower, states = night_by_night(store, runs, after_a_night, nights)
    assert slower.state == state
    assert states.count(alert_store.FIXED) == (state == alert_store.FIXED)


@pytest.mark.parametrize("names", [10**6, 2], ids=["containers", "two in turn"])
@pytest.mark.slow
def test_the_machine_that_replaces_several_ends_no_older_regression_of_theirs(store, names):
    """A faster one. No machine is known of the alert's levels: of an older perfdash, or of containers."""

    def changed(night, name, values):
        for metric in LATENCIES:
            values[metric] *= 0.95 if night >= REPLACED else 1.0
        values = slower("model03", BAD, 1.08)(night, name, values)
        return {metric: values[metric] for metric in ("backend_ms", "calls_captured")}

    runs = farm(OUT_OF_SIGHT + 6, change=changed)
    hosts = [f"host{night % names}" if night < REPLACED else "new" for night in range(len(runs))]
    runs = [
        Imported(replace(one.run, host=host, uid=f"{one.run.uid} {host}"), one.rows)
        for one, host in zip(runs, hosts, strict=True)
    ]
    nights = {*range(BAD - 5, BAD + 8), *range(REPLACED + 1, OUT_OF_SIGHT - 2, 10)}
    nights |= set(range(OUT_OF_SIGHT - 2, OUT_OF_SIGHT + 6))
    regression, states = night_by_night(store, runs, forget_once_open, nights)
    assert "machine" not in regression.details or "+" in regression.details["machine"]
    assert (regression.state, states.count(alert_store.FIXED)) == (alert_store.OPEN, 0)


STEP = 28  # the third night after that on which another machine took over


def slower_from_step(night, name, values):
    if name == "model03" and night >= STEP:
        values["backend_ms"] *= 1.05
    return values


def with_another_machine(nights, is_elsewhere, change=slower_from_step):
    """Nights of which some are of another machine, which is 8 % slower."""

    def changed(night, name, values):
        for metric in LATENCIES:
            values[metric] *= 1.08 if is_elsewhere(night) else 1.0
        return change(night, name, values)

    runs = farm(nights, change=changed)
    return [on_another_machine(one) if is_elsewhere(night) else one for night, one in enumerate(runs)]


@pytest.mark.parametrize(
    ("is_elsewhere", "hosts"),
    [(lambda night: night >= MOVED, {"farm2"}), (lambda night: night % 2 == 1, {"farm", "farm2"})],
    ids=["moved", "in turn"],
)
def test_the_range_of_an_alert_holds_the_night_of_the_change_on_two_machines(store, is_elsewhere, hosts):
    found = [
        evidence
        for evidence in alerts_of(store, with_another_machine(STEP + 10, is_elsewhere))
        if evidence.case.model == "model03" and evidence.alert.metric == "backend_ms"
    ]
    good, bad = found[0].between
    night = f"{FIRST + timedelta(days=STEP)}"
    assert good.started < night < bad.started
    assert bad.started < f"{FIRST + timedelta(days=STEP + 5)}"
    # The machine that took over nights before the change is no explanation.
    assert {good.host, bad.host} <= hosts
    assert found[0].changed[0].startswith("host:") == (len(hosts) == 2 and good.host != bad.host)


def test_another_machine_is_no_lasting_change(store):
    take_in(store, with_another_machine(70, lambda night: night >= 50 or night % 2 == 1))
    with store.read() as connection:
        whole = panel(connection, list_runs(connection), JUDGED)
        cases = cases_by_id(connection, whole.case_ids)
    (change,) = lasting_changes(whole)
    assert (cases[change.case_id].model, change.metric) == ("model03", "backend_ms")
    assert change.good.started < str(FIRST + timedelta(days=STEP)) < change.bad.started


def alerts_of(store, runs):
    take_in(store, runs)
    judge_last(store, 12)
    with store.read() as connection:
        return gather(connection, alert_store.load(connection, states=STATES))


def test_another_machine_of_the_class_raises_no_alert(store):
    assert [one.alert for one in alerts_of(store, moved(MOVED + 5))] == []


def on_two_machines(nights, host_of, change=lambda night, name, values: values, factor=1.05, **of_farm):
    """Nights of two machines at a time, as a cluster or merged shards; `n2` is slower."""

    def changed(night, name, values):
        for metric in LATENCIES:
            values[metric] *= factor if host_of(night, name) == "n2" else 1.0
        return change(night, name, values)

    return [
        Imported(
            replace(one.run, host="n1+n2"),
            tuple(
                replace(row, details={"conditions": {"host": host_of(night, row.case.model)}})
                for row in one.rows
            ),
        )
        for night, one in enumerate(farm(nights, change=changed, **of_farm))
    ]


def halves(night, name):
    """The first models on one machine, the others on the other; on the last night they change places."""
    return "n1" if (int(name.removeprefix("model")) < 12) == (night < MOVED) else "n2"


def by_chance(night, name):
    return np.random.default_rng([night, int(name.removeprefix("model"))]).choice(["n1", "n2"])


@pytest.mark.slow
def test_the_range_of_an_alert_holds_a_night_on_which_its_case_was_on_another_machine_of_the_run(store):
    """Other cases tell how fast that machine is."""

    def host_of(night, name):
        others_turn = name != "model03" and (night + int(name.removeprefix("model"))) % 3 == 0
        return "n2" if others_turn or night == STEP - 1 else "n1"

    (found,) = alerts_of(store, on_two_machines(STEP + 8, host_of, slower("model03", STEP, 1.15)))
    days = [run.started[:10] for run in found.between]
    assert days == [f"{FIRST + timedelta(days=night)}" for night in (STEP - 1, STEP)]


@pytest.mark.parametrize("host_of", [halves, by_chance])
def test_a_case_that_moves_to_another_machine_of_its_run_raises_no_alert(store, host_of):
    assert [one.alert for one in alerts_of(store, on_two_machines(MOVED + 1, host_of))] == []


@pytest.mark.parametrize("kind", ["status", "count"])
def test_a_failure_of_one_machine_of_a_run_is_one_alert_while_its_case_changes_machines(store, kind):
    def is_broken(night, name):
        return name == "model03" and night in (5, 7, 9)

    def change(night, name, values):
        return {**values, "graph_breaks": 2.0 * (kind == "count" and is_broken(night, name))}

    def statuses(night, name):
        return "crash" if kind == "status" and is_broken(night, name) else "pass"

    def host_of(night, name):
        return "n2" if name == "model03" and night % 2 else "n1"

    nights = on_two_machines(12, host_of, change, models=4, statuses=statuses)
    judge_nights(store, nights, first=5)
    with store.read() as connection:
        (alert,) = alert_store.load(connection, states=STATES)
        states = [event.state for event in alert_store.events(connection, alert.id)]
    assert (alert.kind, states) == (kind, ["new", "confirmed", "open", "fixed"])


@pytest.mark.slow
def test_a_regression_is_found_on_whatever_machine_of_the_run_a_case_is(store):
    def slower(night, name, values):
        if name == "model03" and night >= MOVED:
            values["backend_ms"] *= 1.15
        return values

    found = alerts_of(store, on_two_machines(MOVED + 4, by_chance, slower))
    assert [(one.case.model, one.alert.metric, one.alert.direction) for one in found] == [
        ("model03", "backend_ms", 1)
    ]
    assert found[0].alert.change == pytest.approx(np.log(1.15), abs=0.03)


def test_a_new_machine_shows_a_regression_on_its_third_night(store):
    def slower(night, name, values):
        if name == "model03" and night >= MOVED + 2:
            values["backend_ms"] *= 1.3
        return values

    (found,) = alerts_of(store, moved(MOVED + 3, slower))
    assert (found.case.model, found.alert.metric, found.alert.direction) == ("model03", "backend_ms", 1)
    assert found.alert.change == pytest.approx(np.log(1.3), abs=0.06)


def test_counts_and_statuses_of_a_new_machine_are_judged_from_its_first_night(store):
    def broken(night, name, values):
        if name == "model03" and night == MOVED:
            values["graph_breaks"] = 2.0
        return values

    (found,) = alerts_of(store, moved(MOVED + 1, broken))
    assert (found.alert.kind, found.alert.metric) == ("count", "graph_breaks")


def test_a_kernel_that_came_with_a_new_torch_is_the_first_explanation(store):
    def slower(night, name, values):
        if night >= 28 and name in ("model01", "model02"):
            values["eager_ms"] *= 1.3
            values["backend_ms"] *= 1.3
        return values

    facts = {"kernel": "6.1", "microcode": "0x1", "governor": "performance"}
    runs = farm(34, change=slower, facts=lambda night: facts if night < 28 else {**facts, "kernel": "6.2"})
    found = [one for one in alerts_of(store, runs) if one.alert.state in SHOWN]
    assert found
    for one in found:
        assert one.changed[0] == "kernel: 6.1 | 6.2"
        assert one.changed[1].startswith("torch:")
        assert one.alert.details["changed"][0] == "kernel: 6.1 | 6.2"
    (cause,) = causes(found)
    assert cause.attribution == HOST


def test_what_moves_numbers_most_is_named_first():
    def night(**facts):
        made = run("2026-11-01")
        return replace(made.run, environment={**made.run.environment, **facts})

    old = night(libc="2.36", kernel="6.1", microcode="0x1", governor="performance", turbo=True)
    new = replace(
        night(libc="2.37", kernel="6.2", microcode="0x2", governor="powersave", turbo=False), host="other"
    )
    names = [line.partition(":")[0] for line in environment_changes(old, new)]
    assert names == ["host", "microcode", "kernel", "governor", "turbo", "libc"]


@pytest.mark.parametrize(
    ("machine", "judged_before"), [("n1+n2", 1), (None, 3)], ids=["suspected", "confirmed"]
)
@pytest.mark.slow
def test_an_alert_of_several_machines_taken_for_one_ends_when_its_level_returns(
    store, tmp_path, machine, judged_before
):
    """The history is of an earlier perfdash until so many nights of the change are judged."""
    until = BAD + 6

    def changed(night, name, values):
        if name == "model03" and BAD <= night < until:
            values["backend_ms"] *= 1.12
        return values

    def as_of_one_machine(one):
        take_in(store, [one])
        with store.write() as connection:
            connection.execute(sa.delete(schema.result_hosts))

    runs = on_two_machines(until + 5, by_chance, changed, factor=1.02)
    for one in runs[: BAD - 1]:
        as_of_one_machine(one)
    judge_last(store, 1)
    states = []
    for night, one in enumerate(runs[BAD - 1 :], start=BAD - 1):
        if night < BAD + judged_before:
            as_of_one_machine(one)
        else:
            take_in(store, [one])
        if night == BAD + judged_before:
            as_revision_0010(store)
            open_store(str(tmp_path / "history.db")).close()
            with store.write() as connection:
                for alert in alert_store.load(connection, states=SHOWN):
                    details = {**alert.details, **({"machine": machine} if machine else {})}
                    alert_store.save(connection, replace(alert, details=details))
        judge_new(store)
        with store.read() as connection:
            states.append([alert.state for alert in alert_store.load(connection, states=STATES)])
    assert states[until - BAD] == [alert_store.OPEN]
    assert states[-1] == [alert_store.FIXED]
