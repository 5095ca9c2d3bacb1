"""Configurations in the history: old runs are nights of the configuration whose settings they have."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from perfdash.detect.nightly_judging import judge_new, read_night
from perfdash.detect.selected_series import AcceptedLevel
from perfdash.history import acts, alert_store, schema
from perfdash.history.alert_store import CONFIRMED, OPEN
from perfdash.history.ingest import KNOWN, REPLACED, TAKEN_IN, take_in
from perfdash.history.queries import case_numbers, cases_by_id, list_runs, rows_of, settings_of_run, trend
from perfdash.history.results import case_digest, digest, from_run, pruned_content
from perfdash.history.store import open_store
from perfdash.records import Case, Result, RunInfo, Status
from perfdash.site.model_page import read_other_metrics
from perfdash.site.testbed_history import beds, read_history
from tests.history.made import case, row, run
from tests.stores import as_revision_0007, filled, migrated

FIXTURES = Path(__file__).parents[1] / "fixtures"
FREEZING = '{"inductor_config":{"freezing":true}}'


def info(day: str, **configuration) -> RunInfo:
    return RunInfo(
        id=f"{day}T01-00-00Z_farm", started=f"{day}T01:00:00Z", host="farm", command=["perfdash", "run"],
        configuration=configuration, environment={"host_class": "Xeon x 100"}, cases=1, perfdash="0.1",
    )  # fmt: skip


def taken(day: str, of: Case, **configuration):
    return from_run(info(day, **configuration), [Result(of, "", 1.0, Status.PASS)], "")


def test_a_run_with_the_options_of_a_configuration_is_one_of_its_nights():
    by_option = taken("2026-11-01", case(), inductor_config={"freezing": True})
    by_name = taken(
        "2026-11-02", case(settings=FREEZING, configuration="freezing"), configuration=["freezing"]
    )
    assert by_option.run.testbed_digest == by_name.run.testbed_digest
    assert dict(by_option.run.setting) == {}
    for imported in (by_option, by_name):
        assert imported.rows[0].case == case(settings=FREEZING)
        assert imported.rows[0].case.configuration == "freezing"
    assert taken("2026-11-03", case(dynamic=True), dynamic=True).rows[0].case.configuration == "dynamic"


def test_a_run_with_a_line_has_a_testbed_of_its_own_and_one_without_keeps_its_digest():
    before = taken("2026-11-01", case())
    without = taken("2026-11-02", case(), line=None)
    main = taken("2026-11-03", case(), line="main", inductor_config={"freezing": True})
    assert without.run.testbed_digest == before.run.testbed_digest
    assert dict(main.run.setting) == {"line": "main"}
    assert main.rows[0].case.configuration == "freezing", "it is no setting of a case"


def test_other_options_stay_with_the_testbed():
    both = {"freezing": True, "cpp_wrapper": True}
    other = taken("2026-11-01", case(), inductor_config=both, allocator="jemalloc")
    assert dict(other.run.setting) == {"allocator": "jemalloc", "inductor_config": both}
    assert other.rows[0].case.settings == ""
    frozen = taken("2026-11-01", case(), inductor_config={"freezing": True}, allocator="jemalloc")
    assert dict(frozen.run.setting) == {"allocator": "jemalloc"}


@pytest.mark.parametrize(
    "option", [{"bind_memory": True}, {"sizes": [2, 4]}, {"sizes_of": "sequence"}, {"tf32": True}], ids=str
)
def test_an_option_that_changes_what_is_measured_makes_another_testbed(option):
    plain, other = taken("2026-11-01", case()), taken("2026-11-02", case(), **option)
    assert dict(other.run.setting) == option
    assert plain.run.testbed_digest != other.run.testbed_digest


def test_the_name_is_no_part_of_a_series_and_the_settings_are():
    assert case_digest(case(dynamic=True)) == case_digest(case(dynamic=True, configuration="dynamic"))
    assert case_digest(case()) != case_digest(case(settings=FREEZING))


def test_a_configuration_that_is_renamed_keeps_its_history(store):
    named = [case(settings=FREEZING, dtype="amp", amp_dtype="bfloat16", configuration=name) for name in "ab"]
    take_in(store, [run(f"2026-11-0{day}", [row(of=of), row()]) for day, of in enumerate(named, start=1)])
    with store.read() as connection:
        runs = list_runs(connection)
        assert settings_of_run(connection, runs[0].id) == settings_of_run(connection, runs[1].id)
        assert {each.configuration for each in case_numbers(connection, runs[0].testbed_id)} == {
            "b",
            "default",
        }
        points = [point for point in trend(connection, "timm") if point["settings"]]
    assert [point["configuration"] for point in points] == ["b", "b"]


def test_old_nights_that_are_imported_later_leave_a_configuration_its_new_name(store):
    def named(day: str, name: str):
        return run(day, [row(of=case(settings=FREEZING, configuration=name))])

    take_in(store, [named("2026-09-01", "max"), named("2026-11-01", "tuned")])
    take_in(store, [named("2026-01-01", "max")])  # the archive of another agent
    assert names_stored(store) == [{"tuned"}] * 2
    take_in(store, [named("2026-11-02", "best")])
    assert names_stored(store) == [{"best"}] * 2


def night_of(day: int, models: int = 4, slower: float = 1.0, configuration: str = "default"):
    """A night of `--backend aot-inductor`, or of the configuration that only names this back end."""
    rows = [
        row(of=case(f"m{number}", backend="aot-inductor", configuration=configuration), eager_ms=20.0,
            backend_ms=(10.0 + 0.01 * (day % 3)) * (slower if number == 0 else 1.0))
        for number in range(models)
    ]  # fmt: skip
    return run(f"2026-11-{day:02}", rows)


def names_stored(store) -> list[set[str]]:
    """The names of configurations in `cases` and in `summaries`."""
    with store.read() as connection:
        return [
            set(connection.execute(sa.select(table.c.configuration)).scalars())
            for table in (schema.cases, schema.summaries)
        ]


def test_a_run_by_hand_under_a_configuration_leaves_the_history_of_later_nights(store):
    take_in(store, [night_of(day) for day in range(1, 12)])
    take_in(store, [night_of(12, models=1, configuration="aot-inductor")])
    take_in(store, [night_of(day, models=5) for day in range(13, 19)])  # m4 is new
    take_in(store, [night_of(day, models=5, slower=1.5) for day in range(19, 22)])
    judged = judge_new(store)
    with store.read() as connection:
        assert len(read_night(connection, judged[-1].run).runs) == 21
        numbers = case_numbers(connection, judged[-1].run.testbed_id)
    found = {finding.case_id for night in judged for finding in night.findings if finding.kind == "metric"}
    assert found == {numbers[case("m0", backend="aot-inductor")]}
    assert names_stored(store) == [{"aot-inductor"}] * 2


def test_nights_whose_summaries_have_another_name_than_their_cases_are_compared(store):
    """As a store of before may have them; the next night gives all of them one name."""
    take_in(store, [night_of(day, configuration="aot-inductor") for day in range(1, 6)])
    with store.write() as connection:
        connection.execute(sa.update(schema.summaries).values(configuration="default"))
        runs = list_runs(connection)
        connection.execute(
            sa.update(schema.summaries)
            .where(schema.summaries.c.run_id == runs[0].id)
            .values(configuration="aot-inductor")
        )
        assert len(read_night(connection, runs[-1]).runs) == 5
    take_in(store, [night_of(6)])
    assert names_stored(store) == [{"aot-inductor"}] * 2


def test_a_regression_under_one_configuration_is_found_there_alone(store):
    for day in range(1, 13):
        slower = 1.3 if day > 10 else 1.0
        rows = [
            row(of=case(f"m{number}", settings=settings, configuration=name), eager_ms=20.0,
                backend_ms=(10.0 + 0.01 * (day % 3)) * (slower if settings and number == 0 else 1.0))
            for number in range(4)
            for settings, name in (("", "default"), (FREEZING, "freezing"))
        ]  # fmt: skip
        take_in(store, [run(f"2026-11-{day:02}", rows)])
    judged = judge_new(store)
    with store.read() as connection:
        numbers = case_numbers(connection, judged[-1].run.testbed_id)
    found = {finding.case_id for night in judged for finding in night.findings if finding.kind == "metric"}
    assert found == {numbers[case("m0", settings=FREEZING)]}


def test_a_night_without_a_configuration_is_a_gap_and_not_a_vanished_case(store):
    for day in range(1, 13):
        both = (("", "default"), (FREEZING, "freezing")) if day % 3 == 1 else (("", "default"),)
        rows = [
            row(of=case(f"m{number}", settings=settings, configuration=name), eager_ms=20.0, backend_ms=10.0)
            for number in range(4)
            for settings, name in both
        ]
        take_in(store, [run(f"2026-11-{day:02}", rows)])
    assert [finding for night in judge_new(store) for finding in night.findings] == []


@pytest.fixture
def of_before(tmp_path):
    """A history of schema 0003 whose six nights ran with freezing, one of its cases with dynamic shapes."""
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as connection:
        connection.executescript((FIXTURES / "history_schema0003.sql").read_text())
        freezing = json.dumps({"inductor_config": {"freezing": True}})
        connection.execute("update testbeds set setting = ?, digest = 'x'", (freezing,))
    connection.close()
    with open_store(str(path)) as opened:
        yield opened


def test_stored_runs_with_freezing_become_nights_of_the_configuration(of_before):
    with of_before.read() as connection:
        runs = list_runs(connection)
        rows = [rows_of(connection, line.id) for line in runs]
        settings = {setting[-1] for line in runs for setting in settings_of_run(connection, line.id)}
        names = connection.execute(sa.select(schema.summaries.c.configuration)).scalars()
        assert set(names) == {"freezing"}
        numbers = case_numbers(connection, runs[-1].testbed_id)
    assert [dict(line.setting) for line in runs] == [{}] * 6
    assert settings == {FREEZING}
    assert {each.case.settings for night in rows for each in night} == {FREEZING}
    # A night of the configuration is the seventh of the same series.
    line, last = runs[-1], rows[-1]
    again = replace(
        run("2027-01-01", last), run=replace(line, uid="x", name="new", started="2027-01-01T00:00:00Z")
    )
    assert take_in(of_before, [again]) == [TAKEN_IN]
    with of_before.read() as connection:
        assert case_numbers(connection, line.testbed_id) == numbers
    assert take_in(of_before, [again]) != [REPLACED]


def test_a_stored_run_with_freezing_that_is_imported_again_is_known(tmp_path):
    """Its cases have other digests than before the migration. Those of a pruned run have, too."""
    options = {"inductor_config": {"freezing": True}}
    nights = [run(f"2026-11-0{day}", [row("a"), row("b", "crash", wall_s=0.1)]) for day in (1, 2)]
    path = tmp_path / "history.db"
    with open_store(str(path)) as opened:
        take_in(opened, [replace(night, run=replace(night.run, setting=options)) for night in nights])
        runs = schema.runs
        with opened.write() as connection:
            content = connection.execute(sa.select(runs.c.content).where(runs.c.id == 2)).scalar_one()
            pruned = sa.update(runs).where(runs.c.id == 2).values(content=pruned_content(content))
            connection.execute(pruned)
    as_revision_0007(path)
    for place, night in enumerate(nights):
        cases = [replace(each.case, settings=FREEZING, configuration="freezing") for each in night.rows]
        rows = tuple(replace(each, case=of) for each, of in zip(night.rows, cases, strict=True))
        nights[place] = replace(night, rows=rows)
    with open_store(str(path)) as opened:
        with opened.read() as connection:
            contents = connection.execute(sa.select(runs.c.content).order_by(runs.c.id)).scalars().all()
        assert contents == [nights[0].content, pruned_content(nights[1].content)]
        assert take_in(opened, nights[:1]) == [KNOWN]


def test_a_regression_between_the_gaps_of_a_budget_is_found_without_false_alerts(store):
    """Each case is measured every second night, and skipped on the others; one becomes slower."""
    for day in range(1, 29):
        rows = []
        for number in range(6):
            factor = 1.3 if number == 0 and day > 18 else 1.0
            if (day + number) % 2:
                rows.append(row(f"m{number}", status="not_tonight", wall_s=0.0))
                continue
            rows.append(row(f"m{number}", eager_ms=20.0, backend_ms=factor * (10.0 + 0.01 * (day % 3))))
        take_in(store, [run(f"2026-11-{day:02}", rows)])
    judged = judge_new(store)
    with store.read() as connection:
        numbers = case_numbers(connection, judged[-1].run.testbed_id)
    findings = [finding for night in judged for finding in night.findings]
    assert {(finding.kind, finding.case_id) for finding in findings} == {("metric", numbers[case("m0")])}
    assert any(finding.alarm or finding.suspect for finding in findings)
    with store.read() as connection:
        (alert,) = alert_store.load(connection)
        good, bad = (
            list_runs(connection, ids=[number])[0] for number in (alert.good_run_id, alert.bad_run_id)
        )
    assert alert.state in (CONFIRMED, OPEN), "its date was made better by later nights"
    # m0 is measured on even days; the 18th is the last before it became slower.
    assert (good.started[:10], bad.started[:10]) == ("2026-11-18", "2026-11-20")


def test_each_size_has_a_series_of_its_own(store):
    of = case(scenario="sizes", configuration="dynamic-batch")
    for day, factor in ((1, 1.0), (2, 2.0)):
        sizes = {
            "by_size": {
                f"batch {size}": {"speedup": {"value": factor * size}, "cost": {"value": 1.1}}
                for size in (2, 4)
            },
            "overall": {"speedup": 3.0 * factor},
        }
        results = [Result(of, "", 1.0, Status.PASS, sizes=sizes)]
        take_in(store, [from_run(info(f"2026-11-0{day}"), results, "")])
    with store.read() as connection:
        (bed,) = beds(connection)
        history = read_history(connection, bed)
        (series,) = read_other_metrics(connection, history).values()
    assert {name: list(values.values()) for name, values in series.items()} == {
        "all sizes: speedup over eager": [3.0, 6.0],
        "batch 2: speedup over eager": [2.0, 4.0],
        "batch 2: times the static artefact's latency": [1.1, 1.1],
        "batch 4: speedup over eager": [4.0, 8.0],
        "batch 4: times the static artefact's latency": [1.1, 1.1],
    }


def _content(*digests):
    """The content of the run below, whose results have no numbers, by the digests of its cases."""
    return digest(["state", None, [[each, "pass", None, *[None] * 7, {}] for each in digests]])


def test_a_history_of_before_configurations_is_migrated(address):
    """Of either kind of database; the test above has all tables of an SQLite history of 0003."""
    engine = migrated(address, "0007")
    tables = sa.MetaData()
    with engine.begin() as connection:
        tables.reflect(connection)
        of = {
            name: tables.tables[name]
            for name in ("hosts", "testbeds", "environments", "runs", "cases", "results", "alerts", "acts")
        }
        assert "settings" not in of["cases"].columns
        freezing = {"inductor_config": {"freezing": True}}
        connection.execute(filled(of["hosts"], id=1, name="farm"))
        bed = filled(of["testbeds"], id=1, setting=freezing, host_class="Xeon x 100", digest="bed")
        connection.execute(bed)
        connection.execute(filled(of["environments"], id=1))
        connection.execute(
            filled(
                of["runs"], id=1, host_id=1, testbed_id=1, environment_id=1, origin="perfdash",
                content=_content("m1", "m2"),
            )
        )  # fmt: skip
        for model, dynamic in (("m1", False), ("m2", True)):
            insert = filled(of["cases"], model=model, dynamic=dynamic, digest=model)
            (number,) = connection.execute(insert).inserted_primary_key
            connection.execute(filled(of["results"], run_id=1, case_id=number, status="pass"))
        # A level that a person accepted, and an alert whose results were pruned.
        accepted = {"started": "2026-01-01T01:00:00Z", "metric": "backend_ms", "case": "m1"}
        connection.execute(filled(of["acts"], act=acts.BASELINE, testbed_id=1, details=accepted))
        insert = filled(of["cases"], model="pruned", digest="pruned")
        (number,) = connection.execute(insert).inserted_primary_key
        alert = {"testbed_id": 1, "state": OPEN, "metric": "backend_ms"}
        connection.execute(filled(of["alerts"], case_id=number, kind="metric", **alert))
        connection.execute(filled(of["alerts"], kind="host", **alert))
    engine.dispose()
    with open_store(address) as opened, opened.read() as connection:
        (line,) = list_runs(connection)
        rows = rows_of(connection, line.id)
        (act,) = acts.load(connection, act=acts.BASELINE, testbed_id=line.testbed_id)
        alert, _ = alert_store.load(connection, testbed_id=line.testbed_id)
        content = connection.execute(sa.select(schema.runs.c.content)).scalar_one()
        query = sa.select(schema.alerts.c.former_testbed).order_by(schema.alerts.c.id)
        former = connection.execute(query).scalars().all()
        cases = cases_by_id(connection, [alert.case_id])
    of_model = {row.case.model: row.case for row in rows}
    assert AcceptedLevel.of(act.details).selects(of_model["m1"], "backend_ms")
    assert not AcceptedLevel.of(act.details).selects(of_model["m2"], "backend_ms")
    assert (cases[alert.case_id].model, cases[alert.case_id].settings) == ("pruned", FREEZING)
    series = [["bed", "pruned", "metric", "backend_ms"], ["bed", None, "host", "backend_ms"]]
    assert former == [f"series {digest(one)[:20]}" for one in series]  # as their issues name them
    assert content == _content(*(case_digest(row.case) for row in rows))
    assert dict(line.setting) == {}
    assert {(row.case.model, row.case.settings, row.case.configuration) for row in rows} == {
        ("m1", FREEZING, "freezing"),
        ("m2", FREEZING, "freezing"),
    }
