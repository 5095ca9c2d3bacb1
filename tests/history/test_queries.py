from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from perfdash.errors import UsageError
from perfdash.history.earlier_nights import NightsOfCase, measured_on
from perfdash.history.ingest import take_in
from perfdash.history.queries import (
    case_numbers,
    cases_by_id,
    list_runs,
    panel,
    run_before,
    series,
    trend,
)
from perfdash.history.run_selection import find_run
from perfdash.records import NOT_MEASURED
from tests.history.made import case, nights, row, run


def test_runs_by_time_and_name(store):
    take_in(store, [run(f"2026-{month:02}-05", [row()]) for month in (1, 2, 3, 11, 12)])
    with store.read() as connection:

        def months(**wanted):
            return [line.started[5:7] for line in list_runs(connection, **wanted)]

        assert months() == ["01", "02", "03", "11", "12"]
        assert months(since="2026-03") == ["03", "11", "12"]
        assert months(until="2026-03") == ["01", "02", "03"]
        assert months(since="2026-02-05", until="2026-02-05") == ["02"]
        assert months(latest=2) == ["11", "12"]
        assert find_run(connection, "last").started[5:7] == "12"
        assert find_run(connection, "2026-03-05T01-00-00Z_farm").started[5:7] == "03"
        with pytest.raises(UsageError, match=r"no run 'x'; the latest in it: .*2026-12-05"):
            find_run(connection, "x")


def test_a_series_and_a_panel(store):
    take_in(store, nights({"a": [1.0, 2.0, 3.0], "b": [5.0, None, 7.0]}))
    with store.read() as connection:
        runs = list_runs(connection)
        numbers = case_numbers(connection, runs[0].testbed_id)
        assert set(numbers) == {case("a"), case("b")}
        points = series(connection, numbers[case("b")], "backend_ms")
        assert [(point.started[:10], point.value) for point in points] == [
            ("2026-01-01", 5.0),
            ("2026-01-03", 7.0),
        ]
        assert points[1].torch_git_version == f"{2:040x}"
        values = panel(connection, runs, ["backend_ms", "eager_ms"])
    by_case = dict(zip(values.case_ids, values.values["backend_ms"].tolist(), strict=True))
    assert by_case[numbers[case("a")]] == [1.0, 2.0, 3.0]
    assert by_case[numbers[case("b")]][0::2] == [5.0, 7.0]
    assert math.isnan(by_case[numbers[case("b")]][1])
    assert values.statuses[values.case_ids.index(numbers[case("b")])].tolist() == ["pass", "", "pass"]
    assert math.isnan(values.values["eager_ms"][0][0])


def test_what_was_disturbed_is_not_in_a_panel(store):
    spoilt = replace(row("spoilt"), verdict="disturbed")
    take_in(store, [run("2026-11-09", [spoilt, row("fine")])])
    with store.read() as connection:
        values = panel(connection, [find_run(connection, "last")], ["backend_ms", "compilation_s"])
        names = {number: case.model for number, case in cases_by_id(connection, values.case_ids).items()}
    models = [names[number] for number in values.case_ids]
    measured = dict(zip(models, np.isfinite(values.values["backend_ms"][:, 0]).tolist(), strict=True))
    assert measured == {"spoilt": False, "fine": True}
    assert np.isfinite(values.values["compilation_s"]).all(), "compiling is not sampled"


@pytest.mark.parametrize("status", ["not_tonight", "skipped", "infra_error"])
def test_the_run_before_measured_the_case(store, status):
    words = {"2026-11-01": "pass", "2026-11-02": status, "2026-11-03": "pass"}
    runs = [run(day, [row(status=word), row("other")]) for day, word in words.items()]
    take_in(store, runs)
    with store.read() as connection:
        for other_settings in (False, True):
            before = run_before(connection, runs[-1].run, case(), other_settings=other_settings)
            assert before.started == runs[0].run.started
        assert run_before(connection, runs[-1].run, case("other")).started == runs[1].run.started


@pytest.mark.parametrize(
    ("hosts", "day"),
    [
        (("farm", "barn", "farm"), 1),
        (("farm+barn", "barn", "farm"), 1),
        (("farm", "farm+barn", "farm"), 2),
        (("mill", "barn", "farm"), 2),
    ],
)
def test_the_run_before_is_of_the_same_machine_if_it_measured_the_case(store, hosts, day):
    """Machines of a class differ in latency."""
    runs = [run(f"2026-11-{n:02}", [row()], host=host) for n, host in enumerate(hosts, start=1)]
    take_in(store, runs)
    with store.read() as connection:
        for other_settings in (False, True):
            before = run_before(connection, runs[-1].run, case(), other_settings=other_settings)
            assert before.started == runs[day - 1].run.started


@pytest.mark.parametrize("status", sorted(NOT_MEASURED))
def test_what_a_host_has_measured_of_a_case(store, status):
    runs = [run("2026-11-01", [row(wall_s=1800.0)]), run("2026-11-02", [row(status=status, wall_s=0.4)])]
    take_in(store, runs)
    with store.read() as connection:
        measured = measured_on(connection, "farm", {})
    failed = (runs[1].run.started,) if status == "infra_error" else ()
    assert measured == {case(): NightsOfCase(1, runs[0].run.started, 1800.0, failed)}


def test_what_a_run_of_a_wrong_clock_measured_is_no_night_that_others_wait_for(store):
    runs = [run("2026-11-01", [row(wall_s=1800.0)]), run("2999-11-02", [row(wall_s=1.0), row("b")])]
    take_in(store, runs)
    with store.read() as connection:
        measured = measured_on(connection, "farm", {})
    assert measured == {case(): NightsOfCase(1, runs[0].run.started, 1800.0)}


def test_of_a_night_of_several_machines_a_host_has_measured_its_own_cases(store):
    """The night was resumed on another host."""
    on = {
        "here": replace(row("here"), details={"conditions": {"host": "farm"}}),
        "there": replace(row("there"), details={"conditions": {"host": "other"}}),
    }
    runs = [
        run("2026-11-01", [on["here"], on["there"], row("skipped", "infra_error")], host="farm+other"),
        run("2026-11-02", [row("here")], host="other"),
    ]
    take_in(store, runs)
    with store.read() as connection:
        measured = {host: measured_on(connection, host, {}) for host in ("farm", "other")}
    nights = {
        host: {case.model: nights.nights for case, nights in cases.items()}
        for host, cases in measured.items()
    }
    assert nights == {"farm": {"here": 1}, "other": {"there": 1, "here": 1}}


def test_the_nights_on_which_a_case_failed_because_of_the_machine(store):
    words = ["pass", "infra_error", "pass", "infra_error", "not_tonight", "infra_error"]
    take_in(
        store,
        [
            run(f"2026-11-0{day}", [row(status=word, wall_s=60.0 * day), row("never", "infra_error")])
            for day, word in enumerate(words, start=1)
        ],
    )
    with store.read() as connection:
        measured = measured_on(connection, "farm", {})
    assert measured[case()] == NightsOfCase(
        2, "2026-11-03T01:00:00Z", 180.0, ("2026-11-06T01:00:00Z", "2026-11-04T01:00:00Z")
    )
    assert (measured[case("never")].nights, measured[case("never")].last) == (0, None)
    assert len(measured[case("never")].failed) == 6


def test_a_panel_of_no_runs(store):
    with store.read() as connection:
        assert panel(connection, [], ["eager_ms"]).values["eager_ms"].shape == (0, 0)
        assert trend(connection, "timm") == []
