"""A testbed's history as arrays: nights, weeks, what is kept of them and when it is made anew."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.detect.nights import latest_days
from perfdash.history.ingest import take_in
from perfdash.history.queries import panel
from perfdash.records import Case
from perfdash.site import testbed_history as module
from perfdash.site.site_folder import ArrayCache
from perfdash.site.suite_page import drawn, read_suite_view, read_trends
from perfdash.site.testbed_history import DAYS, Period, _gaps_filled, beds, period_of, read_history, three
from tests.history.made import run
from tests.site.stored import FIRST, Page, built, fill, night, result
from tests.stores import made_store

CASE = Case("timm", "one")


@pytest.fixture
def store(tmp_path):
    with made_store(tmp_path / "history.db") as opened_store:
        yield opened_store


def level(store, levels, status="pass", start=0):
    """A night each: compiled latency of the one case; None where it failed."""
    for place, value in enumerate(levels, start=start):
        night_result = result(CASE, status="crash") if value is None else result(CASE, backend_ms=value)
        take_in(store, [run(str(FIRST + timedelta(days=place)), [night_result])])


def read(store, cache=None, **other):
    with store.read() as connection:
        (bed,) = beds(connection)
        return read_history(connection, bed, cache, **other)


def test_old_nights_are_weeks_and_the_rest_is_drawn_one_by_one(store):
    level(store, [10.0, 12.0, None, 11.0, 30.0, 10.5, 11.5] + [10.0] * (DAYS + 13))
    history = read(store)
    first = history.recent[history.daily].started[:10]
    assert first == str(FIRST + timedelta(days=14))  # 111 nights less 91 days, back to a Monday
    assert [str(period.begin) for period in history.weeks.periods] == [
        str(FIRST),
        str(FIRST + timedelta(days=7)),
    ]
    assert history.weeks.values["backend_ms"][0, 0].tolist() == [11.25, 10.0, 30.0]
    assert history.weeks.tried[0].tolist() == [7, 7]
    assert history.weeks.passed[0].tolist() == [6, 7]


def test_all_nights_are_kept_where_there_are_few(store):
    level(store, [10.0] * 5)
    history = read(store)
    assert (history.daily, len(history.recent), history.weeks.periods) == (0, 5, [])


def test_many_runs_a_day_are_weeks_sooner(store):
    level(store, [10.0] * 20)
    history = read(store, nights=3)
    assert len(history.recent) == 3
    assert history.daily == 0
    assert history.weeks.tried[0].sum() == 17


def test_nights_are_dates_however_many_runs_each_has(store):
    for day in range(6):
        for hour in range(4):
            at = f"{FIRST + timedelta(days=day)}T0{hour}:00:00Z"
            take_in(store, [run(at[:10], [result(CASE)], name=at, started=at)])
    history = read(store, nights=5)
    assert len(history.recent) == 5 * 4
    assert history.recent[0].started[:10] == str(FIRST + timedelta(days=1))
    assert history.daily == 0
    with store.read() as connection:
        (bed,) = beds(connection)
        (trend,) = read_trends(connection, bed, history.runs)
    assert len(latest_days([run for run, _ in trend.nights], 2)) == 2 * 4
    assert latest_days([], 2) == []


def test_what_was_skipped_is_no_failure(store):
    statuses = ["pass", "skipped", "pass", "crash", "pass_due_to_skip", "infra_error", *["skipped"] * 6]
    for day, status in enumerate([*statuses, *["pass"] * (DAYS + 7)]):
        take_in(store, [run(str(FIRST + timedelta(days=day)), [result(CASE, status=status)])])
    history = read(store)
    assert history.weeks.tried[0].tolist() == [7, 7]
    assert history.weeks.failed[0].tolist() == [1, 0]
    assert history.weeks.passed[0].tolist() == [3, 2]


def test_values_of_a_failure_are_of_something_else(store):
    take_in(store, [run("2026-01-05", [result(CASE, status="fail_accuracy", backend_ms=3.0)])])
    take_in(store, [run("2026-01-06", [result(CASE, calls_captured=0)])])
    take_in(store, [run("2026-01-07", [result(CASE)])])
    none = result(CASE, graphs=0)
    values = {name: value for name, value in none.values.items() if name != "calls_captured"}
    take_in(store, [run("2026-01-08", [replace(none, values=values)])])
    assert read(store).passed[0].tolist() == [False, False, True, False]


@pytest.mark.parametrize("later", [0, DAYS + 13])  # then the nights are weeks
def test_means_leave_out_nights_on_which_a_model_does_not_count(store, later):
    """On the first nights it reaches the recompile limit, or is not checked."""
    faster = {"speedup": 3.0, "speedup_low": 2.9, "speedup_high": 3.1}
    eager = {"speedup": 1.0, "speedup_low": 0.9, "speedup_high": 1.1}
    other = replace(CASE, model="other")
    limited = replace(result(CASE, **eager), details={"recompile_limit": "reached"})
    first = [limited, result(CASE, status="pass_due_to_skip", **eager)] * (3 if later else 1)
    days = [*first, *[result(CASE, **faster)] * (1 + later)]
    take_in(
        store,
        [
            run(str(FIRST + timedelta(days=day)), [row, result(other, **{**faster, "speedup": 1.5})])
            for day, row in enumerate(days)
        ],
    )
    with store.read() as connection:
        (bed,) = beds(connection)
        (trend,) = read_trends(connection, bed, read_history(connection, bed).runs)
        view = read_suite_view(connection, bed, trend.setting)
    (line,) = [line for line in view.drawn.lines if line.name == "speedup"]
    assert view.drawn.weekly == (2 if later else 0)
    assert line.values == pytest.approx([math.sqrt(3 * 1.5)] * len(line.values))


def test_numbers_of_the_back_end_eager_count_though_it_captures_nothing(store, tmp_path):
    eager = replace(CASE, dtype="bfloat16", backend="eager")
    for day in range(3):
        row = result(eager, night=day, graphs=0, calls_captured=0)
        take_in(store, [run(str(FIRST + timedelta(days=day)), [row])])
    assert read(store).passed.tolist() == [[True, True, True]]
    (model,) = built(store, tmp_path / "site").glob("beds/*/models/*.html")
    assert 'id="f-speedup"' in model.read_text()
    assert "nothing captured" not in Page(model).text.partition("Over time")[0]


def test_what_is_kept_is_what_is_read(store, tmp_path, monkeypatch):
    fill(store, range(120))
    plain = read(store)
    cache = ArrayCache(tmp_path / "kept")
    read(store, cache)
    monkeypatch.setattr(module, "panel", None)  # nothing is read of the results now
    again = read(store, ArrayCache(tmp_path / "kept"))
    assert again.cases == plain.cases
    assert (again.statuses == plain.statuses).all()
    for name, values in plain.values.items():
        np.testing.assert_array_equal(values, again.values[name])
    for name, values in plain.weeks.values.items():
        np.testing.assert_array_equal(values, again.weeks.values[name])


def test_only_what_is_new_is_read(store, tmp_path, monkeypatch):
    fill(store, range(120))
    read(store, ArrayCache(tmp_path / "kept"))
    take_in(store, [night(120)])
    queries = []
    real = module.panel

    def panel(connection, runs, *other):
        queries.extend(run.name for run in runs)
        return real(connection, runs, *other)

    monkeypatch.setattr(module, "panel", panel)
    read(store, ArrayCache(tmp_path / "kept"))
    assert queries == [night(120).run.name]


def test_the_cache_forgets_what_nobody_asks_for(tmp_path):
    cache = ArrayCache(tmp_path)
    first, second, third = ("a" * 64, "b" * 64, "c" * 64)
    cache.put(first, {"x": np.arange(3)})
    cache.put(second, {"x": np.arange(3)})
    theirs = ["mine.npz", "download.part", f"{'a' * 63}.npz", f"{second}.part"]
    for name in [*theirs, f"{second}.123.part"]:
        (tmp_path / name).write_bytes(b"x")
    again = ArrayCache(tmp_path)
    assert again.get(first)["x"].tolist() == [0, 1, 2]
    assert again.get(third) is None
    again.tidy()
    assert {path.name for path in tmp_path.iterdir()} == {f"{first}.npz", *theirs}


def test_the_cache_unpickles_nothing(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{"code": 1}], dtype=object))
    assert ArrayCache(tmp_path).get("a") is None


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=8))
def test_summary_of_three_numbers(values):
    finite = [value for value in values if math.isfinite(value)]
    summary = three(np.array([values or [math.nan]], dtype=np.float32))[0]
    if finite:
        assert summary[1:].tolist() == [min(finite), max(finite)]
        assert min(finite) <= summary[0] <= max(finite)
    else:
        assert np.isnan(summary).all()


def test_a_trend_leaves_out_runs_of_a_few_cases(store):
    fill(store, range(8))
    take_in(store, [run("2026-01-20", [result(Case("timm", "resnet18"))])])
    fill(store, range(20, 23))
    with store.read() as connection:
        (bed,) = beds(connection)
        first, second = read_trends(connection, bed, read(store).runs)
        history = read_history(connection, bed, nights=4)
    assert (len(first.nights), first.partial) == (11, 1)
    assert (len(second.nights), second.partial) == (11, 0)
    lines = drawn(first, history, {})
    assert lines.weekly == 2
    assert len(lines.times) == len(lines.names) == 2 + 3
    assert [len(line.values) for line in lines.lines] == [5] * 4
    assert lines.lines[0].values == [100.0] * 5


def test_what_is_older_than_a_year_lies_in_four_weeks():
    """Whole ones, whatever the day: a week is never in two points, and each begins on a Monday."""
    for day in (0, 1, 6, 13, 27):
        newest = str(FIRST + timedelta(days=1000 + day))
        found = [period_of(str(FIRST + timedelta(days=number)), newest) for number in range(1000 + day)]
        sizes = Counter(found)
        whole = list(sizes)[1:-1]
        assert all(sizes[period] == 7 * period.weeks for period in whole)
        assert all(period.begin.weekday() == 0 for period in sizes)
        assert found == sorted(found)
        fours = [period for period in sizes if period.weeks == 4]
        assert 365 - 28 <= (FIRST + timedelta(days=1000 + day) - fours[-1].begin).days - 28 <= 365 + 28
    assert Period(FIRST, 4).middle == Period(FIRST, 1).middle + 10.5 * 86400


def test_a_mean_does_not_move_because_a_model_fails(store):
    """The slowest to compile fails from the third night on: the mean did not become shorter."""
    costs = {"quick": 10.0, "usual": 20.0, "slow": 90.0}
    for number in range(90):
        failing = {"slow"} if number >= 80 else {"usual"} if number == 70 else set()
        rows = [
            result(Case("timm", name), 10.0, compilation_s=cost, night=number,
                   status="crash" if name in failing else "pass")
            for name, cost in costs.items()
        ]  # fmt: skip
        take_in(store, [run(str(FIRST + timedelta(days=number)), rows)])
    with store.read() as connection:
        (bed,) = beds(connection)
        history = read_history(connection, bed, nights=60)
        (trend,) = read_trends(connection, bed, history.runs)
        numbers = {case.model: number for number, case in history.cases.items()}
        raw = {line.name: line for line in drawn(trend, history, {}).lines}
        counted = {name: [numbers["quick"], numbers["usual"]] for name in ("speedup", "compilation_s")}
        same = {line.name: line for line in drawn(trend, history, counted).lines}
    assert len(set(raw["compilation_s"].values)) == 3
    assert same["compilation_s"].values == pytest.approx([15.0] * len(raw["compilation_s"].values))
    assert same["pass_rate"] == raw["pass_rate"]
    last, before = same["speedup"].values[-1], raw["speedup"].values[-1]
    assert last == pytest.approx(before), "it ends where the headline is"
    assert same["speedup"].lows[-1] == pytest.approx(raw["speedup"].lows[-1])


def test_a_night_of_other_models_only_is_a_gap(store):
    """Neither the mean of those, nor one that nobody measured."""
    for number in range(110):
        name = "other" if number in (3, *range(7, 14), 100) else "counts"
        level = {"other": 500.0, "counts": 20.0}[name]
        rows = [result(Case("timm", name), 10.0, night=number, compilation_s=level)]
        take_in(store, [run(str(FIRST + timedelta(days=number)), rows)])
    with store.read() as connection:
        (bed,) = beds(connection)
        history = read_history(connection, bed)
        (trend,) = read_trends(connection, bed, history.runs)
        (number,) = [number for number, case in history.cases.items() if case.model == "counts"]
    lines = drawn(trend, history, {"compilation_s": [number]}).lines
    line = next(line for line in lines if line.name == "compilation_s")
    assert line.values[:3] == [pytest.approx(20.0), None, *line.values[2:3]]
    assert set(line.values) == {None, 20.0}
    assert line.values.count(None) == 2


def test_each_mean_ends_at_the_headline_though_a_passing_model_has_no_such_value(store):
    """As of a model whose memory became too small for a compression ratio: 2.0x, on the first night only."""
    for number in range(2):
        ratios = {"large": 1.5, "same": 1.0, "small": 0.0 if number else 2.0}
        rows = [
            result(Case("timm", name), night=number, compression_ratio=ratio)
            for name, ratio in ratios.items()
        ]
        take_in(store, [run(str(FIRST + timedelta(days=number)), rows)])
    with store.read() as connection:
        (bed,) = beds(connection)
        (trend,) = read_trends(connection, bed, read(store).runs)
        view = read_suite_view(connection, bed, trend.setting)
    lines = {line.name: line for line in view.drawn.lines}
    assert lines["compression_ratio"].values == pytest.approx([1.5**0.5] * 2)
    for name in ("speedup", "compilation_s", "compression_ratio"):
        assert lines[name].values[-1] == pytest.approx(getattr(view.summary, name)), name


@given(st.lists(st.lists(st.sampled_from([math.nan, 1.0, 2.0, 3.0]), min_size=4, max_size=4), min_size=1))
def test_gaps_are_filled_within_a_method(rows):
    values, methods = np.array(rows), np.array([0, 0, 1, 1])
    filled = _gaps_filled(values, methods)
    known = np.isfinite(values)
    assert (filled[known] == values[known]).all()
    for part in (slice(0, 2), slice(2, 4)):
        assert (np.isfinite(filled[:, part]).all(axis=1) == known[:, part].any(axis=1)).all()


def test_numbers_of_some_nights_from_memory_are_those_of_the_store(tmp_path):
    """In 32 bits. What memory lacks is read: nights that are no longer kept one by one, other metrics."""
    with made_store(tmp_path / "history.db") as store:
        fill(store, range(12))
        take_in(store, [run("2026-02-01", [result(CASE, status="fail_accuracy")])])
        with store.read() as connection:
            (bed,) = beds(connection)
            history = read_history(connection, bed, nights=8)
            for runs, metrics in [
                (history.recent[-3:-1], ["speedup", "eager_ms"]),
                (history.recent[-1:], ["backend_ms"]),
                (history.runs[:4], ["speedup"]),
                (history.recent, ["wall_s"]),
            ]:
                stored, known = panel(connection, runs, metrics), history.panel(connection, runs, metrics)
                order = [known.case_ids.index(number) for number in stored.case_ids]
                assert len(known.case_ids) == len(stored.case_ids)
                assert known.runs == list(runs)
                assert np.array_equal(known.statuses[order], stored.statuses)
                for name in metrics:
                    np.testing.assert_allclose(known.values[name][order], stored.values[name], rtol=1e-6)
