from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.detect.alert_evidence import gather
from perfdash.detect.causes import (
    COMPILER,
    HOST,
    LIBRARY,
    UNKNOWN,
    build_of,
    causes,
    gather_in_causes,
    runs_that_date_open_alerts,
)
from perfdash.history import alert_store as kept
from perfdash.history.alert_store import SHOWN
from perfdash.history.ingest import take_in
from perfdash.history.maintenance import prune
from perfdash.history.queries import list_runs
from perfdash.history.results import Imported
from tests.detect.simulated import farm, judge_last, of_setting
from tests.history.made import row, run
from tests.stores import made_store


@pytest.fixture
def store(tmp_path):
    opened = made_store(tmp_path / "history.db")
    yield opened
    opened.close()


def slower(*steps, metric="backend_ms"):
    """steps: (first model, last model, night, factor)."""

    def change(night, name, values):
        number = int(name.removeprefix("model"))
        for low, high, first, factor in steps:
            if low <= number <= high and night >= first:
                values[metric] *= factor
        return values

    return change


def elsewhere(runs, hours="05"):
    """The same builds on another kind of machine."""
    return [
        Imported(
            replace(
                one.run, name=one.run.name + "_b", uid=one.run.uid + "b", host="farm-b", host_class="EPYC",
                started=one.run.started.replace("T01", f"T{hours}"),
            ),
            one.rows,
        )
        for one in runs
    ]  # fmt: skip


def causes_of(store, runs):
    take_in(store, sorted(runs, key=lambda one: one.run.started))
    judge_last(store, 14)
    with store.read() as connection:
        return causes(gather(connection, kept.load(connection, states=SHOWN)))


def models(cause):
    return sorted({int(member.case.model.removeprefix("model")) for member in cause.members if member.case})


@pytest.mark.slow
def test_two_changes_a_few_nights_apart_are_two_causes(store):
    first, second = causes_of(store, farm(40, change=slower((0, 5, 28, 1.14), (10, 12, 31, 1.10))))
    assert (models(first), models(second)) == ([0, 1, 2, 3, 4, 5], [10, 11, 12])
    assert [first.good.started[:10], first.bad.started[:10]] == ["2026-01-28", "2026-01-29"]
    assert first.attribution == COMPILER
    assert first.change == pytest.approx(0.131, abs=0.01)
    assert not first.is_suspected
    assert first.nights == 12
    assert {member.between[1].started[:10] for member in first.members} == {"2026-01-29"}


@pytest.mark.slow
def test_both_sides_of_a_model_are_one_cause_of_the_library(store):
    change = slower((0, 3, 28, 1.2))

    def both(night, name, values):
        return slower((0, 3, 28, 1.15), metric="eager_ms")(night, name, change(night, name, values))

    # Each night on another GPU of the same kind, which is no change of the host.
    nights = farm(36, change=both, facts=lambda night: {"gpu_facts": {"uuid": f"GPU-{night}", "ecc": True}})
    (cause,) = causes_of(store, nights)
    assert len(cause.members) == 8
    assert cause.eager_moved
    assert cause.attribution == LIBRARY
    assert {member.alert.metric for member in cause.main} == {"backend_ms"}


@pytest.mark.slow
def test_other_shards_of_a_night_on_another_machine_are_no_change_of_the_machine(store):
    """The slower models are on the machine that measures in every night."""

    def host_of(night, name):
        return "a" if int(name.removeprefix("model")) < 12 else "b" if night < 28 else "c"

    def both(night, name, values):
        return slower((1, 1, 28, 1.2), metric="eager_ms")(
            night, name, slower((1, 1, 28, 1.2))(night, name, values)
        )

    nights = [
        Imported(
            replace(one.run, host="a+b" if night < 28 else "a+c"),
            tuple(
                replace(row, details={"conditions": {"host": host_of(night, row.case.model)}})
                for row in one.rows
            ),
        )
        for night, one in enumerate(farm(32, change=both))
    ]
    (cause,) = causes_of(store, nights)
    assert models(cause) == [1]
    assert cause.attribution == LIBRARY
    for member in cause.members:
        assert member.alert.details["changed"][0].startswith("torch:")


@pytest.mark.parametrize("tool", [None, "pip"])
@pytest.mark.slow
def test_a_change_of_the_host_alone(store, tool):
    """Another pip is nothing that is measured."""
    runs = farm(
        36, change=slower((0, 3, 28, 1.2)), facts=lambda night: {"kernel": "6.1" if night < 28 else "6.2"}
    )
    build = runs[0].run.environment["worker"]
    for night, one in enumerate(runs):
        tools = {tool: str(night // 28)} if tool else {}
        one.run.environment["worker"] = {**build, "packages": {**build["packages"], **tools}}
    (cause,) = causes_of(store, runs)
    assert cause.attribution == HOST


RECORDED = {"a": {}, "b": {}}


@pytest.mark.parametrize(("before", "model", "attribution", "changed"), [
    ({"kernel": "6.1", "by_host": RECORDED}, "model00", UNKNOWN, []),
    ({"kernel": "6.1", "by_host": RECORDED}, "model02", HOST, ["kernel: 6.1 | 6.8 (b)"]),
    ({"kernel": "6.1"}, "model02", UNKNOWN, []),  # of an older perfdash: b may have had 6.8 before
])  # fmt: skip
def test_a_change_of_one_machine_of_a_run_explains_only_its_own_cases(
    store, before, model, attribution, changed
):
    """Models 0 and 1 are measured on machine a, 2 and 3 on b, which has another kernel from night 6 on."""
    now = {"by_host": {"a": {"kernel": "6.1"}, "b": {"kernel": "6.8"}}}
    runs = farm(8, 4, statuses=lambda night, name: "crash" if night >= 6 and name == model else "pass")
    build = runs[0].run.environment["worker"]
    nights = []
    for one in runs:
        shared = {name: value for name, value in one.run.environment.items() if name != "kernel"}
        facts = before if len(nights) < 6 else now
        rows = tuple(
            replace(row, details={"conditions": {"host": "ab"[row.case.model >= "model02"]}})
            for row in one.rows
        )
        environment = {**shared, **facts, "worker": build}
        nights.append(Imported(replace(one.run, host="a+b", environment=environment), rows))
    (cause,) = causes_of(store, nights)
    (member,) = cause.members
    assert (member.case.model, cause.attribution, member.changed) == (model, attribution, changed)


@pytest.mark.parametrize("tool", ["pip", "perfdash"])
def test_runs_that_differ_in_what_is_not_measured_have_one_build(tmp_path, tool):
    with made_store(tmp_path / "h.db") as store:
        for day, version in enumerate(("1.0", "1.1", "1.1"), start=1):
            night = run(f"2026-11-0{day}", [row()])
            night.run.environment["worker"]["packages"] = {"timm": "1" if day < 3 else "2", tool: version}
            night.run.environment["worker"]["commits"] = {tool: version}
            take_in(store, [night])
        with store.read() as connection:
            first, second, third = map(build_of, list_runs(connection))
    assert first == second != third


@pytest.mark.slow
def test_nothing_known_changed(store):
    runs = farm(36, change=slower((0, 3, 28, 1.2)))
    build = runs[0].run.environment["worker"]
    runs = [
        Imported(replace(one.run, environment={**one.run.environment, "worker": build}), one.rows)
        for one in runs
    ]
    (cause,) = causes_of(store, [*runs, *elsewhere(runs)])[:1]
    assert cause.attribution == UNKNOWN
    assert len(cause.testbeds) == 1, "no build came with it, so the other machine's change is its own"


@pytest.mark.slow
def test_two_machines_that_saw_one_build_are_one_cause(store):
    change = slower((0, 3, 28, 1.2))
    here, there = farm(36, change=change), elsewhere(farm(36, seed=1, change=change))
    (cause,) = causes_of(store, [*here, *there])
    assert len(cause.testbeds) == 2
    assert len(cause.members) == 8
    assert (cause.good.started[:10], cause.bad.started[:10]) == ("2026-01-28", "2026-01-29")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("early", "late", "ranges"),
    [
        (28, 29, [("2026-01-28", "2026-01-29"), ("2026-01-29", "2026-01-30")]),  # night 0 is of 1 January
        (29, 28, [("2026-01-28", "2026-01-29"), ("2026-01-29", "2026-01-30")]),
        (28, 28, [("2026-01-28", "2026-01-29")]),
    ],
)
def test_runs_of_one_night_have_one_build(store, early, late, ranges):
    """Two runs a night, of other settings: a change of one on the next night did not come with this build."""
    runs = [of_setting(night, 2) for night in farm(36, change=slower((5, 5, early, 1.3)))]
    runs += [of_setting(night, 4) for night in farm(36, seed=1, change=slower((3, 3, late, 1.3)))]
    found = causes_of(store, runs)
    assert sorted((cause.good.started[:10], cause.bad.started[:10]) for cause in found) == ranges
    for cause in found:
        for member in cause.members:
            first = early if member.case.threads == 2 else late
            assert member.between[1].started[:10] == f"2026-01-{first + 1}"


@pytest.mark.slow
def test_a_machine_that_missed_nights_joins_the_cause_whose_build_it_skipped(store):
    change = slower((0, 3, 28, 1.2))
    here, there = farm(38, change=change), elsewhere(farm(38, seed=1, change=change))
    (cause,) = causes_of(store, [*here, *there[:26], *there[31:]])
    assert len(cause.testbeds) == 2
    assert (cause.good.started[:10], cause.bad.started[:10]) == ("2026-01-28", "2026-01-29")
    ranges = {member.alert.testbed_id: member.between for member in cause.members}
    assert sorted((good.started[:10], bad.started[:10]) for good, bad in ranges.values()) == [
        ("2026-01-26", "2026-02-01"),
        ("2026-01-28", "2026-01-29"),
    ]


def on_testbed(runs, host, hour, local, python):
    """The runs on a host whose torch is another build, with a timm released on 13 January."""
    made = []
    for one in runs:
        day = one.run.started[:10]
        timm = "1.0.20" if day < "2026-01-13" else "1.0.21"
        worker = {
            "torch": f"2.14.0{local}", "torch_git_version": "a" * 40, "python": python,
            "packages": {"timm": timm, "torch": f"2.14.0{local}"},
        }  # fmt: skip
        run = replace(
            one.run, host=host, host_class=f"{host} class", started=f"{day}T{hour}:00:00Z",
            name=f"{day}T{hour}_{host}", uid=f"{day}{host}",
            environment={**one.run.environment, "worker": worker},
        )  # fmt: skip
        made.append(Imported(run, one.rows))
    return made


def test_a_cause_of_two_testbeds_has_for_each_the_runs_of_its_own(store):
    """What differs between two machines did not change."""
    change = slower((0, 0, 12, 1.2))
    here = on_testbed(farm(16, 4, change=change), "xeon", "01", "+cpu", "3.11.9")
    there = on_testbed(farm(16, 4, seed=1, change=change), "gpubox", "03", "+cu130", "3.12.4")
    take_in(store, sorted([*here, *there], key=lambda one: one.run.started))
    with store.write() as connection:
        lines = list_runs(connection)
        for host in ("xeon", "gpubox"):
            own = [line for line in lines if line.host == host]
            alert = kept.Alert(
                "metric", own[0].testbed_id, 1, "backend_ms", kept.CONFIRMED, 1, own[11].id, own[12].id,
                own[-1].id, "2026-01-13", "2026-01-13", before=10.0, after=12.0, change=0.182, p=1e-9,
                details={"sd": 0.01, "nights": 4},
            )  # fmt: skip
            kept.save(connection, alert)
    with store.read() as connection:
        (cause,) = causes(gather(connection, kept.load(connection, states=SHOWN)))
    assert len(cause.testbeds) == 2
    assert cause.attribution == LIBRARY
    for member in cause.members:
        good, bad = member.between
        assert good.testbed_id == bad.testbed_id == member.alert.testbed_id
        assert (good.started[:10], bad.started[:10]) == ("2026-01-12", "2026-01-13")
        assert member.changed == ["timm: 1.0.20 | 1.0.21"]
    for testbed in cause.testbeds:
        seen = cause.on(testbed)
        assert (seen.good.testbed_id, seen.bad.testbed_id) == (testbed, testbed)
        assert seen.attribution == LIBRARY


WITH_ANOTHER_TORCH = [
    ("status", 1, "pass", "fail_to_run", COMPILER),
    ("status", 1, "pass", "fail_accuracy", COMPILER),
    ("status", 1, "pass", "nothing captured", COMPILER),
    ("status", -1, "fail_to_run", "pass", COMPILER),
    ("status", 1, "pass", "eager_fail_to_run", LIBRARY),
    ("status", 1, "pass", "eager_oom", LIBRARY),
    ("status", -1, "eager_two_runs_differ", "pass", LIBRARY),
    ("status", 1, "pass", "no_finite_output", LIBRARY),
    ("status", 1, "pass", "model_fail_to_load", LIBRARY),
    ("status", 1, "pass", "missing_dependency", LIBRARY),
    ("status", 1, "pass", "needs_network", UNKNOWN),
    ("status", -1, "missing_data", "pass", UNKNOWN),
    ("vanished", 1, "", "", UNKNOWN),
]


@pytest.mark.parametrize(("kind", "direction", "before", "after", "attribution"), WITH_ANOTHER_TORCH)
def test_the_compiler_is_named_only_where_it_has_run(nightlies, kind, direction, before, after, attribution):
    """Each night has another torch."""
    store, (good, bad) = nightlies
    details = {"before": before, "after": after} if kind == "status" else {}
    alert = kept.Alert(
        kind, good.testbed_id, 1, None, kept.CONFIRMED, direction, good.id, bad.id, bad.id,
        "2026-01-02", "2026-01-02", details=details, id=1,
    )  # fmt: skip
    with store.read() as connection:
        (cause,) = causes(gather(connection, [alert]))
    assert cause.attribution == attribution


@pytest.mark.parametrize("failure", ["crash", "timeout"])
@pytest.mark.parametrize(
    ("phase", "attribution"),
    [("load", LIBRARY), ("eager", LIBRARY), ("compile", COMPILER), ("start", COMPILER), (None, COMPILER)],
)
@pytest.mark.parametrize("direction", [1, -1])
def test_a_crash_or_timeout_before_the_compiler_runs_does_not_point_to_it(
    store, failure, phase, attribution, direction
):
    """Each night has another torch. The statuses are the same in each phase."""
    failing = 1 if direction == 1 else 0
    nights = farm(2, 1, statuses=lambda night, name: failure if night == failing else "pass")
    rows = [replace(row, details={"failed_phase": phase}) for row in nights[failing].rows]
    nights[failing] = replace(nights[failing], rows=tuple(rows))
    take_in(store, nights)
    before, after = ("pass", failure) if direction == 1 else (failure, "pass")
    with store.read() as connection:
        good, bad = sorted(list_runs(connection), key=lambda line: line.started)
        alert = kept.Alert(
            "status", good.testbed_id, 1, None, kept.CONFIRMED, direction, good.id, bad.id, bad.id,
            "2026-01-02", "2026-01-02", details={"before": before, "after": after}, id=1,
        )  # fmt: skip
        (cause,) = causes(gather(connection, [alert]))
    assert cause.attribution == attribution


@pytest.fixture(scope="module")
def nightlies(tmp_path_factory):
    """Two nights in a store."""
    with made_store(tmp_path_factory.mktemp("nightlies") / "history.db") as opened:
        take_in(opened, farm(2, 1))
        with opened.read() as connection:
            lines = list_runs(connection)
        yield opened, sorted(lines, key=lambda line: line.started)


@pytest.mark.slow
def test_failures_are_apart_and_by_their_status(store):
    def statuses(night, name):
        if night >= 35 and name in ("model00", "model01"):
            return "crash"
        return "fail_accuracy" if night >= 35 and name == "model02" else "pass"

    found = causes_of(store, farm(36, change=slower((5, 9, 35, 1.25)), statuses=statuses))
    assert [(cause.is_failure, models(cause), cause.is_suspected) for cause in found] == [
        (True, [0, 1], False),
        (True, [2], False),
        (False, [5, 6, 7, 8, 9], True),
    ]


@pytest.mark.slow
def test_the_number_of_a_cause_is_its_oldest_alerts(store):
    (cause,) = causes_of(store, farm(36, change=slower((0, 5, 28, 1.14))))
    assert cause.id == min(member.alert.id for member in cause.members)


@pytest.mark.slow
def test_one_alert_has_the_range_of_its_cause(store):
    """By its own nights a change of 2.5 % may have come on several of them."""
    take_in(store, farm(40, noise=0.006, change=slower((0, 9, 28, 1.025))))
    judge_last(store, 14)
    with store.read() as connection:
        alerts = kept.load(connection, states=SHOWN)
        (cause,) = causes(gather(connection, alerts))
        alone = [item.between for item in gather(connection, alerts)]
        together = [item.between for item in gather_in_causes(connection, alerts[:1])]
    assert len(alone) > 5
    assert any(good.started[:10] != "2026-01-28" for good, _ in alone)
    assert [(good.started[:10], bad.started[:10]) for good, bad in together] == [("2026-01-28", "2026-01-29")]
    assert cause.bad.started[:10] == "2026-01-29"


@pytest.mark.slow
def test_causes_whose_nights_are_pruned_keep_their_dates_and_alerts(store):
    causes_of(store, farm(36, 24, change=slower((2, 7, 24, 1.06), (2, 4, 12, 0.8), (10, 10, 26, 1.2))))

    def dated():
        with store.read() as connection:
            return [
                (cause.good, cause.bad, [(member.alert.id, member.before >= 5) for member in cause.members])
                for cause in causes(gather(connection, kept.load(connection, states=SHOWN)))
            ]

    before = dated()
    assert sorted(len(members) for *_, members in before) == [1, 3, 6]
    with store.read() as connection:
        ids = runs_that_date_open_alerts(connection)
        old = list_runs(connection)[:34]
    prune(store, [line for line in old if line.id not in ids])
    assert dated() == before
    assert len(ids) < len(old) - 10
