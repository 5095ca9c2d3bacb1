"""Nights by different methods on the site: no line, level, median or ratio goes across."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from perfdash.history.ingest import take_in
from perfdash.history.queries import case_numbers, rows_of, series, trend
from perfdash.records import Case
from perfdash.report.terminal_tables import series_table
from perfdash.site import render
from perfdash.site.compare_page import compare_view, night_file
from perfdash.site.model_page import read_model_view
from perfdash.site.overview_page import overview_of
from perfdash.site.render import render_compare, render_model, render_suite
from perfdash.site.suite_page import read_trends, suite_view
from perfdash.site.testbed_history import beds, read_history
from perfdash.site.timeline import case_changes
from tests.history.made import run
from tests.site.stored import FIRST, result
from tests.stores import made_store

CASE = Case("timm", "resnet18")
LATENCY = {"latency": 2}


@pytest.fixture
def store(tmp_path):
    with made_store(tmp_path / "history.db") as opened_store:
        yield opened_store


def fill(store, nights, since, method=LATENCY, level=lambda night: 10.0):
    """One case a night, by another method from `since` on, which reads half as much."""
    runs = []
    for night in range(nights):
        half = 0.5 if night >= since else 1.0
        speedup = 1.3 / half
        numbers = {"speedup": speedup, "speedup_low": speedup * 0.97, "speedup_high": speedup * 1.03}
        row = result(CASE, night=night, backend_ms=level(night) * half, **numbers)
        day = str(FIRST + timedelta(days=night))
        runs.append(run(day, [row], method=method if night >= since else {}))
    take_in(store, runs)


def opened(store, connection):
    (bed,) = beds(connection)
    (number,) = case_numbers(connection, bed.id).values()
    return bed, number


def test_a_week_is_that_of_its_last_method(store):
    fill(store, 120, 3)
    with store.read() as connection:
        history = read_history(connection, opened(store, connection)[0])
    assert history.weeks.tried[0, 0] == 7
    assert history.weeks.values["backend_ms"][0, 0].tolist() == [5.0, 5.0, 5.0]
    assert history.weeks.values["compilation_s"][0, 0].tolist() == [30.0, 30.0, 30.0]


def test_a_week_is_drawn_for_a_case_that_its_last_run_has_not(store):
    """By the method that measured the case, and parted where another one begins."""
    fill(store, 120, 7)
    desk = run(str(FIRST + timedelta(days=6)), [result(Case("timm", "other"))], name="desk", method=LATENCY)
    take_in(store, [replace(desk, run=replace(desk.run, started=desk.run.started.replace("T01", "T20")))])
    with store.read() as connection:
        (bed,) = beds(connection)
        history = read_history(connection, bed)
        number = case_numbers(connection, bed.id)[CASE]
        view = read_model_view(connection, bed, number)
    assert history.weeks.values["backend_ms"][history.row[number], 0].tolist() == [10.0, 10.0, 10.0]
    breaks = {line.name: line.breaks for line in view.lines}
    assert breaks["backend_ms"] == {1: "latency 1 -> 2"}


@pytest.mark.parametrize("since", [10, 20])
def test_a_models_lines_are_parted_and_marked_where_the_method_changes(store, since):
    """Among the weeks, and among the nights."""
    fill(store, 120 if since == 10 else 30, since)
    with store.read() as connection:
        bed, number = opened(store, connection)
        view = read_model_view(connection, bed, number)
    breaks = {line.name: line.breaks for line in (*view.lines, *view.steady)}
    place = 1 if since == 10 else 20
    assert breaks["backend_ms"] == breaks["speedup"] == {place: "latency 1 -> 2"}
    assert breaks["compilation_s"] == breaks["eager_peak_bytes"] == {}
    (event,) = [event for event in view.events if event.kind == "method"]
    assert (event.run, event.text.partition(";")[0]) == (
        f"{FIRST + timedelta(days=since)}T01-00-00Z_farm",
        "another method from here on: latency 1 -> 2",
    )
    drawn = {figure.name: figure.svg for figure in render.model_figures(view)[0]}
    assert "another method from here on (latency 1 -&gt; 2)" in drawn["backend_ms"]
    assert drawn["backend_ms"].count('class="mark method"') == 1
    assert "compilation_s" not in drawn, "it never moved"
    assert len(re.findall("M", re.search('class="line" d="([^"]*)"', drawn["backend_ms"])[1])) == 2
    assert "another method from here on" in render_model(view)


def test_levels_and_change_points_are_of_one_method(store):
    fill(store, 45, 20, level=lambda night: 10.0 if night < 30 else 13.0)
    with store.read() as connection:
        bed, number = opened(store, connection)
        history = read_history(connection, bed)
        changes = case_changes(history, number)
        (trend_,) = read_trends(connection, bed, history.runs)
        view = suite_view(history, trend_, rows_of(connection, history.runs[-1].id), {})
    starts = [event.run[:10] for event in changes if event.metric == "backend_ms"]
    assert starts == [str(FIRST + timedelta(days=30))]
    (heat,) = view.heat
    assert heat.ratios[:20] == [1.0] * 20, "not half as fast as by the new method"
    assert sorted(set(heat.ratios[20:])) == pytest.approx([1.0, 1.3], abs=0.001)


def test_a_suites_means_are_parted_and_marked(store):
    fill(store, 120, 3)
    with store.read() as connection:
        bed, _ = opened(store, connection)
        history = read_history(connection, bed)
        (trend_,) = read_trends(connection, bed, history.runs)
        view = suite_view(history, trend_, rows_of(connection, history.runs[-1].id), {})
    lines = {line.name: line for line in view.drawn.lines}
    assert lines["speedup"].breaks == {}, "the first week is drawn as the last of its nights"
    week = [column[0] for column in (lines["speedup"].lows, lines["speedup"].values, lines["speedup"].highs)]
    assert week == pytest.approx([2.6] * 3), "nights by the old method are not in the week"
    whole = {line.name: line for line in trend_.lines(trend_.nights)}
    assert whole["speedup"].breaks == {3: "latency 1 -> 2"}
    assert whole["pass_rate"].breaks == whole["compression_ratio"].breaks == {}
    render_suite(view)


def test_a_pass_rate_is_parted_by_the_method_of_checking(store):
    fill(store, 4, 2, {"accuracy": 2})
    with store.read() as connection:
        bed, _ = opened(store, connection)
        (trend_,) = read_trends(connection, bed, read_history(connection, bed).runs)
    breaks = {line.name: line.breaks for line in trend_.lines(trend_.nights)}
    assert breaks["pass_rate"] == {2: "accuracy 1 -> 2"}
    assert breaks["speedup"] == {}


def test_the_noise_is_parted_by_the_method_of_the_ratio(store):
    runs = [
        run(
            str(FIRST + timedelta(days=night)),
            [result(CASE, night=night)],
            method=({}, {}, LATENCY, {**LATENCY, "memory": 2})[night],
            noise={"null": {"worst": 0.01}},
        )
        for night in range(4)
    ]
    take_in(store, runs)
    with store.read() as connection:
        bed, _ = opened(store, connection)
        view = overview_of(connection, bed, read_history(connection, bed).runs, [])
    assert view.noise_breaks == {2: "latency 1 -> 2"}
    drawn = render.noise_chart(view, "noise")
    assert drawn.count('class="mark method"') == 1
    assert len(re.findall("M", re.search('class="line" d="([^"]*)"', drawn)[1])) == 2


def test_nights_that_are_compared_say_by_which_method(store):
    fill(store, 4, 3)
    with store.read() as connection:
        bed, _ = opened(store, connection)
        history = read_history(connection, bed)
        html = render_compare(compare_view(connection, history))
    assert "Measured by different methods, so not compared: latency 1 -&gt; 2." in html
    old, new = (json.loads(night_file(history, k)[len("perfdash.night(") : -3])["methods"] for k in (2, 3))
    assert {name for name in old if old[name] != new[name]} == {"speedup", "backend_ms", "eager_ms"}


def test_a_series_says_where_another_method_begins(store):
    fill(store, 3, 2)
    with store.read() as connection:
        _, number = opened(store, connection)
        names = ["backend_ms", "compilation_s"]
        points = [series(connection, number, name) for name in names]
        nights = trend(connection, "timm")
    assert [point.method for point in points[0]] == [{"latency": 1}, {"latency": 1}, {"latency": 2}]
    assert [night["method"] for night in nights] == [{}, {}, LATENCY]
    row = series_table(CASE, names, points).splitlines()[-1]
    assert row == (
        "backend_ms: another method from 2026-01-07T01-00-00Z_farm on (latency 1 -> 2), "
        "not comparable with before"
    )
    assert np.isfinite([point.value for point in points[1]]).all()
    own = [
        [replace(point, method={**point.method, "own_threads": version})]
        for point, version in zip(points[0][:2], (1, 2), strict=True)
    ]
    assert "(own_threads 1 -> 2)" in series_table(CASE, names[:1], [[*own[0], *own[1]]])
