"""Change points, heat map and a cause's chart where several machines of a class measured."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from perfdash.detect.nightly_judging import judge_new
from perfdash.history.ingest import take_in
from perfdash.history.queries import read_run
from perfdash.history.results import Imported
from perfdash.records import Case
from perfdash.report.comment import comment
from perfdash.report.night import of_history
from perfdash.site import testbed_history
from perfdash.site.cause_page import open_causes
from perfdash.site.compare_page import pairs
from perfdash.site.machines_page import machine_view
from perfdash.site.overview_page import overview_of
from perfdash.site.suite_heat_map import heat_lines, heat_nights
from perfdash.site.testbed_history import beds, read_history
from perfdash.site.timeline import case_changes
from tests.detect.simulated import farm, judge_nights
from tests.history.made import run
from tests.site.stored import FIRST, built, check, result
from tests.stores import made_store

NIGHTS, STEP = 60, 40
LATENCIES = ("eager_ms", "backend_ms")


def on_machines(machine_of, stepped=("model03",), factor=1.08, *, of_b=1.05, models=6):
    """Nights on several machines; `b` takes `of_b` times as long, `stepped` models `factor` from STEP on."""

    def change(night, name, values):
        for metric in LATENCIES:
            values[metric] *= of_b if machine_of(night) == "b" else 1.0
        if name in stepped and night >= STEP:
            values["backend_ms"] *= factor
        return values

    runs = farm(NIGHTS, models, change=change, noise=0.005)
    return [
        Imported(replace(one.run, host=machine_of(night), uid=f"{one.run.uid} {machine_of(night)}"), one.rows)
        for night, one in enumerate(runs)
    ]


def in_shards(host_of, machine_of, stepped=("model03",), factor=1.08, *, of_b=1.04):
    """Nights that several machines shared, by name `host_of(night)`; `machine_of(night, model)` measured."""

    def change(night, name, values):
        for metric in LATENCIES:
            values[metric] *= of_b if machine_of(night, name) == "b" else 1.0
        if name in stepped and night >= STEP:
            values["backend_ms"] *= factor
        return values

    runs = []
    for night, one in enumerate(farm(NIGHTS, 6, change=change, noise=0.005)):
        details = [{"conditions": {"host": machine_of(night, row.case.model)}} for row in one.rows]
        rows = [replace(row, details=more) for row, more in zip(one.rows, details, strict=True)]
        runs.append(Imported(replace(one.run, host=host_of(night)), tuple(rows)))
    return runs


def marks(tmp_path, runs):
    """The lasting changes that the pages of the models mark: model, metric, night, change."""
    with made_store(tmp_path / "history.db") as store:
        take_in(store, runs)
        with store.read() as connection:
            (bed,) = beds(connection)
            history = read_history(connection, bed)
    place = {run.name: night for night, run in enumerate(history.recent)}
    return [
        (history.cases[number].model, event.metric, place[event.run], event.text)
        for number in history.row
        for event in case_changes(history, number)
        if event.kind == "change"
    ]


@pytest.mark.parametrize(
    "machine_of",
    [lambda night: "a" if night < 30 else "b", lambda night: "ab"[night % 2]],
    ids=["moved", "in turn"],
)
def test_another_machine_of_the_class_is_no_change_and_a_step_is_marked_once(tmp_path, machine_of):
    (mark,) = marks(tmp_path, on_machines(machine_of))
    assert mark[:2] == ("model03", "backend_ms")
    assert abs(mark[2] - STEP) <= 2
    assert float(mark[3].split("latency +")[1].split("%")[0]) == pytest.approx(8, abs=1)


def test_names_that_change_every_night_are_one_machine(tmp_path):
    (mark,) = marks(tmp_path, on_machines(lambda night: f"container{night}"))
    assert mark[:3] == ("model03", "backend_ms", STEP)


def test_a_case_that_moves_to_another_machine_of_the_night_has_no_mark(tmp_path):
    def machine_of(night, name):
        return "b" if (night >= 30) == (name == "model01") else "a"

    (mark,) = marks(tmp_path, in_shards(lambda night: "a+b", machine_of))
    assert mark[:3] == ("model03", "backend_ms", STEP)


def test_a_case_that_stays_on_its_machine_has_its_mark_whoever_else_measured_the_night(tmp_path):
    def machine_of(night, name):
        return "a" if name in ("model00", "model03") else f"m{night % 15}"

    (mark,) = marks(tmp_path, in_shards(lambda night: f"a+m{night % 15}", machine_of))
    assert mark[:3] == ("model03", "backend_ms", STEP)
    assert float(mark[3].split("latency +")[1].split("%")[0]) == pytest.approx(8, abs=1)


def heat(tmp_path, runs):
    """The rows of the heat map by model."""
    with made_store(tmp_path / "history.db") as store:
        take_in(store, runs)
        with store.read() as connection:
            (bed,) = beds(connection)
            history = read_history(connection, bed)
    numbers = list(history.row)
    lines, _ = heat_lines(history, numbers, heat_nights(history, numbers), False, {})
    return {line.label: line for line in lines}


def test_another_machine_colours_nothing_in_the_heat_map(tmp_path):
    runs = on_machines(lambda night: "a" if night < 45 else "b", (), of_b=1.08)
    lines = heat(tmp_path, runs)
    assert len(lines) == 6
    for line in lines.values():
        assert line.ratios == pytest.approx([1.0] * NIGHTS, abs=0.03)


def test_machines_that_measure_in_turn_hide_no_change_in_the_heat_map(tmp_path):
    lines = heat(tmp_path, on_machines(lambda night: "ab"[night % 2], of_b=1.2))
    slower = lines["model03"]
    assert slower.ratios[STEP:] == pytest.approx([1 / 1.08] * (NIGHTS - STEP), abs=0.03)
    assert max(line.spread for line in lines.values()) < 0.01


def test_the_machines_that_share_the_nights_are_apart_in_the_heat_map(tmp_path):
    def machine_of(night, name):
        return "ab"[(night + int(name[-1])) % 2]

    lines = heat(tmp_path, in_shards(lambda night: "a+b", machine_of, (), of_b=1.2))
    for line in lines.values():
        assert line.ratios == pytest.approx([1.0] * NIGHTS, abs=0.03)
        assert line.spread < 0.01


@pytest.mark.slow
def test_the_chart_of_a_cause_is_at_the_level_of_one_machine(tmp_path):
    """An improvement looked worse once a slower machine took over."""
    better = ("model03", "model04", "model05")
    runs = on_machines(lambda night: "a" if night < 48 else "b", better, 0.92, of_b=1.12, models=24)
    with made_store(tmp_path / "history.db") as store:
        judge_nights(store, runs)
        with store.read() as connection:
            views, _ = open_causes(connection, testbed_history.testbeds_with_runs(connection))
    (view,) = [view for view in views if view.lines]
    assert {change.case.model for change in view.members} == set(better)
    assert view.lines.median[:STEP] == pytest.approx([1.0] * STEP, abs=0.02)
    after = [value for value in view.lines.median[STEP:] if value is not None]
    assert after == pytest.approx([0.92] * len(after), abs=0.02)


def nights_of(hosts):
    """A run for each host, a day each; on `b` speedups are 5 % lower than on other machines."""
    runs = []
    for night, host in enumerate(hosts):
        level = 1.5 * (0.95 if host == "b" else 1.0)
        rows = []
        for model in range(10):
            speedup = level * (1 + 0.002 * ((night * 7 + model * 3) % 5 - 2))
            bounds = {"speedup_low": 0.99 * speedup, "speedup_high": 1.01 * speedup}
            rows.append(result(Case("timm", f"m{model}"), 10.0, night=night, speedup=speedup, **bounds))
        runs.append(run(str(FIRST + timedelta(days=night)), rows, host=host))
    return runs


@pytest.mark.parametrize(
    ("hosts", "before", "machines"),
    [
        ("ab" * 5, "b", ""),
        ("aaaaab", "a", "on another machine: a | b"),
    ],
)
def test_a_night_is_compared_with_the_last_one_of_its_machine(tmp_path, hosts, before, machines):
    """Two machines of a class differ: between them nothing is better or worse."""
    with made_store(tmp_path / "history.db") as store:
        take_in(store, nights_of(hosts))
        judge_new(store)
        with store.read() as connection:
            (bed,) = beds(connection)
            history = read_history(connection, bed)
            (tile,) = overview_of(connection, bed, history.runs, []).settings
            first, *_ = pairs(connection, history.runs)
            night = of_history(connection, read_run(connection, history.runs[-1]))
        folder = built(store, tmp_path / "site")
    check(folder)
    assert (tile.word, tile.machines, tile.old.host) == ("same", machines, before)
    assert (first.old.host, first.comparison.machines) == (before, machines)
    assert night.baseline.runs[-1].run.host == before
    assert ("5.0% (10) on another machine: a" in comment(night)) == bool(machines)
    for path in (folder / "index.html", *folder.glob("beds/*/compare.html")):
        assert ("on another machine: a | b" in path.read_text()) == bool(machines)


def test_the_environments_name_all_hosts_that_take_turns_and_count_each_build_once(tmp_path):
    """A period had the first night's host alone, and a build for each change of the host."""
    with made_store(tmp_path / "history.db") as store:
        take_in(store, nights_of("ab" * 10))
        with store.read() as connection:
            (bed,) = beds(connection)
            view = machine_view(bed, read_history(connection, bed).runs)
        folder = built(store, tmp_path / "site")
    (period,) = view.periods
    assert (view.nightly, period.runs, period.hosts, period.builds) == (["host"], 20, ["a", "b"], 1)
    html = (folder / "machines.html").read_text()
    assert "host changes night after night" in html
    assert '<td class="wrap">a, b</td>' in html


def test_facts_in_which_the_machines_of_a_run_differ_are_shown_by_machine(tmp_path):
    """And no period begins where an older perfdash recorded the first shard's alone."""
    first, second = nights_of(["a+b", "a+b"])
    shared = {**first.run.environment, "system": "Debian"}
    by_host = {"by_host": {"a": {"kernel": "6.1"}, "b": {"kernel": "6.8"}}}
    environments = {**shared, "kernel": "6.1"}, {**shared, **by_host}
    with made_store(tmp_path / "history.db") as store:
        for night, environment in zip((first, second), environments, strict=True):
            take_in(store, [replace(night, run=replace(night.run, environment=environment))])
        with store.read() as connection:
            (bed,) = beds(connection)
            view = machine_view(bed, read_history(connection, bed).runs)
    assert {"kernel": "6.1 (a), 6.8 (b)", "system": "Debian"}.items() <= dict(view.facts).items()
    assert "by_host" not in dict(view.facts)
    assert [(period.runs, period.changed) for period in view.periods] == [(2, [])]


def test_an_environment_of_containers_names_only_some_of_its_hosts(tmp_path):
    """A container has a new name every night: years of them made one cell of thousands of names."""
    with made_store(tmp_path / "history.db") as store:
        take_in(store, nights_of([f"pod-{night:02}" for night in range(30)]))
        folder = built(store, tmp_path / "site")
    (cell,) = re.findall(r"<td class=\"wrap\">(pod-.*?)</td>", (folder / "machines.html").read_text())
    first = ", ".join(f"pod-{night:02}" for night in range(8))
    assert cell == f'{first} <span class="muted">and 22 more</span>'
