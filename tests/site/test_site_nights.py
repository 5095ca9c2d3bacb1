"""What the pages say of the last night, of those before it, and of runs that share a night or a name."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, timedelta

import pytest

from perfdash.detect.curation import rename
from perfdash.detect.nightly_judging import judge_new
from perfdash.history import alert_store as kept
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from perfdash.records import Case
from perfdash.report.changes import NEW_FAILURE
from perfdash.site import testbed_history
from perfdash.site.cause_page import open_causes
from perfdash.site.compare_page import compare_view, night_options
from perfdash.site.regressions_page import unjudged
from tests.detect.simulated import farm, judge_last, slower
from tests.history.made import run
from tests.site.stored import FIRST, NAMES, Page, built, check, fill, night, result
from tests.stores import made_store


@pytest.fixture
def store(tmp_path):
    with made_store(tmp_path / "history.db") as opened_store:
        yield opened_store


@pytest.fixture
def site(store, tmp_path):
    """site(): the store's, checked."""

    def make(**other):
        folder = built(store, tmp_path / "site", **other)
        check(folder)
        return folder

    return make


def page(folder, pattern):
    (path,) = folder.glob(pattern)
    return Page(path)


def test_it_is_reported_how_long_before_the_other_night_was(store, site):
    fill(store, (0, 60))
    folder = site()
    for path in ("beds/*/compare.html", "index.html"):
        text = page(folder, path).text
        assert "60 days before" in text
        assert "against the night before" not in text.lower()


def two_nights(store, hosts):
    """The choices of any two nights; `hosts`: of each night."""
    for number, host in enumerate(hosts):
        fill(store, [number], host=host)
    with store.read() as connection:
        (bed,) = testbed_history.beds(connection)
        view = compare_view(connection, testbed_history.read_history(connection, bed))
    return night_options(view.nights, view.words)


def test_each_of_any_two_nights_has_its_machines(store):
    options = two_nights(store, ["xeon7", "xeon8", "xeon7+xeon8"])
    assert [one["hosts"] for one in options["nights"]] == [["xeon7"], ["xeon8"], ["xeon7", "xeon8"]]
    assert options["nights"][1]["label"] == "2026-01-06 01:00, xeon8"
    assert options["machines"].startswith("Measured on another machine: {old} | {new}. Machines of a class")


@pytest.mark.parametrize("hosts", [["xeon7"] * 4, [f"pod-{n}" for n in range(12)]])
def test_one_machine_and_names_that_change_every_night_are_not_named(store, hosts):
    options = two_nights(store, hosts)
    assert {tuple(one["hosts"]) for one in options["nights"]} == {()}
    assert options["nights"][0]["label"] == "2026-01-05 01:00"


def test_nights_without_a_result_in_both_are_not_called_unchanged(store, site):
    fill(store, (0,))
    lost = [result(Case("timm", name, threads=n), status="infra_error") for name in NAMES for n in (1, 4)]
    take_in(store, [run(str(FIRST + timedelta(days=1)), lost)])
    text = page(site(), "beds/*/compare.html").text
    assert "Nothing to compare: no case has a result on both sides." in text
    assert "Nothing changed" not in text


def test_runs_of_one_name_have_their_own_words_and_builds(store, site):
    for day in (5, 6):
        rows = [result(Case("timm", "resnet18"), night=day)]
        take_in(store, [run(f"2026-01-0{day}", rows, name="one.csv", git=f"{day}" * 40)])
    folder = site()
    text = page(folder, "beds/*/compare.html").text
    assert "perfdash compare 2026-01-05T01:00:00Z 2026-01-06T01:00:00Z" in text
    (suite,) = folder.glob("beds/*/suites/*.html")
    assert "2.15.0 5555555555" in suite.read_text()
    assert len(list(folder.glob("beds/*/data/one.csv-*.js"))) == 2


def test_runs_that_wait_are_counted_on_all_days_that_are_judged(store):
    for number in range(31):
        day = str(FIRST + timedelta(days=number))
        times = [f"{day}T{hour:02}:00:00Z" for hour in range(12 if number >= 26 else 1)]
        rows = [result(Case("timm", "resnet18"), night=number)]
        take_in(store, [run(day, rows, name=time, started=time) for time in times])
    with store.read() as connection:
        runs = list_runs(connection)
    judged = [replace(line, judged="2026-03-01T00:00:00Z") for line in runs]
    assert unjudged(runs[26:]) == 60
    assert unjudged([runs[26], *judged[27:]]) == 1
    assert unjudged([*runs[:2], *judged[2:]]) == 1, "only the latest 30 days are judged"


def dtypes(number: int, dtype: str, level: float = 10.0, name: str = "swin_base"):
    """A run of one dtype of a night that has two."""
    cases = [Case("timm", name, dtype=dtype) for name in NAMES]
    rows = [result(case, level if case.model == name else 10.0, night=number) for case in cases]
    day = str(FIRST + timedelta(days=number))
    hour = {"float32": 1, "bfloat16": 4}[dtype]
    return run(day, rows, name=f"{day}_{dtype}", started=f"{day}T0{hour}:00:00Z")


@pytest.mark.slow
def test_what_is_new_is_judged_by_the_last_night_of_its_kind(store, site):
    """A night in two runs, of which the first has the regression; and a desk run in the morning."""
    for number in range(22):
        level = 40.0 if number >= 20 else 10.0
        take_in(store, [dtypes(number, "float32", level), dtypes(number, "bfloat16")])
    judge_last(store, 5)
    desk = [result(Case("timm", "resnet18"), night=21)]
    take_in(store, [run("2026-01-26", desk, name="desk", started="2026-01-26T09:00:00Z")])
    overview = page(site(), "index.html").text
    assert "1 regression" in overview
    assert "none new" not in overview
    assert "timm/swin_base bs 1 296% slower, eager too" in overview
    assert overview.index("2026-01-26_float32") < overview.index("Last run: desk")
    for number, level in ((22, 40.0), (23, 10.0)):
        take_in(store, [dtypes(number, "float32", level), dtypes(number, "bfloat16")])
    judge_new(store)
    assert "back where it was before" in page(site(), "index.html").text


@pytest.mark.slow
def test_all_that_is_worse_is_counted_and_nothing_else(store, site, monkeypatch):
    names = [f"model{k}" for k in range(8)]
    fill(store, range(20), names=names)
    judge_last(store, 1)
    for number in (20, 21, 22):
        night_run = night(number, names)
        rows = [
            result(row.case, {"model0": 40.0, "model1": 40.0, "model2": 2.0}.get(row.case.model, 10.0))
            if row.case.model in names[:3] else row for row in night_run.rows
        ]  # fmt: skip
        take_in(store, [replace(night_run, rows=tuple(rows))])
        judge_new(store)
    for most in (30, 1):
        monkeypatch.setattr("perfdash.site.render._CAUSES", most)
        text = page(site(), "index.html").text
        assert "1 regression (2 models" in text
        assert "2 timm models 247% slower, eager too; 1 other better" in text


def test_noise_is_reported_with_its_night(store, site):
    fill(store, range(2), noise={"null": {"worst": 0.01}})
    fill(store, range(2, 4))
    assert "Noise on 2026-01-06" in page(site(), "index.html").text


TITLE = "Slow | <script>alert(1)</script> `x` @all\n\x1b[31m"


@pytest.mark.slow
def test_the_culprit_of_an_alert_stands_beside_it(store, site):
    fill(store, range(40))
    for number, commit in ((40, "b" * 40), (41, "b" * 40), (42, "b" * 40)):
        slow = night(number)
        worker = {**slow.run.environment["worker"], "commits": {"lib": commit}}
        rows = tuple(result(row.case, 20.0, night=number) for row in slow.rows)
        info = replace(slow.run, environment={**slow.run.environment, "worker": worker})
        take_in(store, [replace(slow, run=info, rows=rows)])
    judge_last(store, 5)
    assert "culprit" not in page(site(), "regressions.html").text
    with store.write() as connection:
        alert = next(candidate for candidate in kept.load(connection) if candidate.state in kept.LIVE)
        commits = [{"id": "c" * 40, "label": "cccccccccc", "title": TITLE, "author": "<b>Eve</b>"}]
        bisected = {"word": "found", "culprits": [{"commits": commits, "of": 1, "confirmed": "confirmed"}]}
        details = {**alert.details, "bisected": bisected}
        kept.save(connection, replace(alert, details=details, changed="2026-02-20T00:00:00Z"), note=TITLE)
    folder = site()
    source = (folder / "regressions.html").read_text()
    (text,) = re.findall(rf'<tr id="alert-{alert.id}">.*?</tr>', source, re.S)
    open_, _, folded = text.partition("<details>")
    assert "culprit: cccccccccc Slow | &lt;script&gt;alert(1)&lt;/script&gt; `x` @all" in open_
    assert "by &lt;b&gt;Eve&lt;/b&gt; (confirmed)" in open_
    assert "<script>" not in text
    assert "\x1b" not in text
    assert "culprit" not in folded
    assert "lib ? .. lib bbbbbbbbbb" in open_  # torch is the same
    assert "culprit: cccccccccc" in page(folder, "index.html").text


def test_a_lost_improvement_is_one_failure(store):
    def statuses(night, model):
        return "crash" if model == "model03" and not 27 <= night < 32 else "pass"

    take_in(store, farm(33, 6, statuses=statuses))
    judge_last(store, 8)
    with store.read() as connection:
        views, _ = open_causes(connection, testbed_history.testbeds_with_runs(connection))
    assert [view.cause.group for view in views] == [NEW_FAILURE]


def test_what_happened_to_a_cause_has_days_also_after_a_run_was_renamed(store):
    runs = farm(33, 6, change=slower("model03", 28, 1.3))
    take_in(store, runs)
    judge_new(store, latest=5)
    rename(store, runs[29].run.name, "wheel-2.15-final")
    with store.read() as connection:
        views, _ = open_causes(connection, testbed_history.testbeds_with_runs(connection))
    days = [day for view in views for day, _ in view.events]
    assert days == sorted(days)
    assert runs[29].run.started[:10] in days
    assert all(date.fromisoformat(day) for day in days)


@pytest.mark.slow
def test_a_crash_of_one_model_on_another_machine_is_not_what_is_open_for_good(store, site):
    nights = [night(number) for number in range(28)]
    case = Case("timm", "resnet18")
    tried = run(str(FIRST), [result(case, status="crash")], host="laptop", host_class="Laptop x 8")
    take_in(store, [tried, *nights])
    judge_new(store)
    html = (site() / "index.html").read_text()
    assert "0%, 0/1 pass" in html
    assert "verdict same" in html
    assert "Nothing is known to be worse" in html
