"""What the pages say, of histories as they come: empty, failing, foreign, with names of any kind."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import timedelta
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from perfdash.charts.heat_map import bucket
from perfdash.detect import curation
from perfdash.detect.causes import gather_in_causes
from perfdash.history import alert_store as kept
from perfdash.history.importers import ImportOptions, read
from perfdash.history.ingest import take_in
from perfdash.history.queries import case_numbers, list_runs, rows_of
from perfdash.history.results import Row
from perfdash.records import Case
from perfdash.serve import live_pages
from perfdash.site.machines_page import machine_view
from perfdash.site.model_page import case_changes, model_context, model_view, newest_results, read_model_view
from perfdash.site.render import printable, render_model, render_suite
from perfdash.site.suite_page import SuiteSetting, open_changes, read_suite_view, read_trends, suite_view
from perfdash.site.testbed_history import beds, read_history
from tests.detect.simulated import farm, judge_last, slower
from tests.history.made import row, run
from tests.site.stored import FIRST, HOSTILE, NAMES, Page, built, check, fill, night, result
from tests.stores import made_store

DASHBOARD = Path(__file__).parents[1] / "fixtures" / "inductor_cpu_dashboard.md"


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


def test_no_run(site):
    folder = site()
    for name in ("index", "compare", "regressions", "machines"):
        assert "The history holds no run yet" in page(folder, f"{name}.html").text


def test_one_run(store, site):
    fill(store, range(1))
    folder = site()
    assert "only one night" in page(folder, "beds/*/compare.html").text
    overview = page(folder, "index.html").text
    assert "6 of 6 results" in overview
    assert "100%, 3/3" in overview


def test_a_run_without_results(store, site):
    take_in(store, [run("2026-01-05", [])])
    assert "0 results" in page(site(), "index.html").text


@pytest.mark.parametrize("nights", [1, 3, 100])
def test_only_failures(store, site, nights):
    for number in range(nights):
        night_run = night(number)
        rows = tuple(result(row.case, status="timeout") for row in night_run.rows)
        take_in(store, [replace(night_run, rows=rows)])
    folder = site()
    assert "0%, 0/3" in page(folder, "index.html").text
    model = page(folder, "beds/*/models/*resnet18*_t1_*.html")
    assert "timeout" in model.text
    assert "no <b>kernel</b> for resnet18" in model.text
    assert "Nothing was measured that could be drawn" in model.text


def test_a_night_on_which_all_fail_after_good_ones(store, site):
    """The means end before it; no axis is drawn without a point."""
    fill(store, range(5))
    failing = night(5)
    rows = tuple(result(row.case, status="timeout") for row in failing.rows)
    take_in(store, [replace(failing, rows=rows)])
    suite = page(site(), "beds/*/suites/*_t1_*.html")
    assert "All means are over" not in suite.text
    assert (
        "No model counts on the last night: each mean is over the models that counted on its own night."
        in suite.text
    )
    assert "f-speedup" in suite.ids
    assert "f-bars" not in suite.ids


def test_names_of_any_kind(store, site):
    for number in range(3):
        rows = [result(Case(f"timm{name[:20]}", name), 10.0, night=number) for name in HOSTILE]
        rows += [result(Case("timm", name), status="crash") for name in HOSTILE]
        take_in(store, [run(f"2026-01-0{number + 5}", rows, host_class="<img src=x onerror=alert(1)>")])
    folder = site()
    texts = [path.read_text() for path in folder.rglob("*.html")]
    assert len(texts) == 2 * len(HOSTILE) + len({f"timm{name[:20]}" for name in HOSTILE}) + 1 + 1 + 5
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", "".join(texts))
    assert "<script>alert" not in "".join(texts)
    assert "<img" not in "".join(texts)
    overview = Page(folder / "index.html")
    for name in HOSTILE:
        shown = re.sub("[\x00-\x1f]", "\ufffd", name.replace("\n", " "))
        assert any(shown in re.sub(r"\s+", " ", unescape(text)) for text in texts), name
    assert "timm{{ 7 * 7 }}" in overview.text


def test_what_no_page_may_hold_is_replaced():
    """Of all characters: controls but tab and line feed, halves of characters, and two that XML forbids."""
    bad = {*range(9), *range(0x0B, 0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF}
    for code in range(0x110000):
        assert printable(f"a{chr(code)}") == ("a\ufffd" if code in bad else f"a{chr(code)}")


def test_each_suite_has_a_page_of_its_own_however_it_is_called(store, site):
    take_in(store, [run("2026-01-05", [result(Case(name, "resnet18")) for name in ("a b", "a-b", "a/b")])])
    suites = {path.name for path in site().glob("beds/*/suites/*.html")}
    assert len(suites) == 3


def test_testbeds_are_kept_apart(store, site):
    fill(store, range(3))
    fill(store, range(2, 5), host_class="Xeon x 8", host="other")
    folder = site()
    overview = page(folder, "index.html").text
    assert overview.count("Last night:") == 2
    folders = sorted(folder.glob("beds/*"))
    assert len(folders) == 2
    for bed in folders:
        text = (bed / "compare.html").read_text()
        assert ("Xeon x 8" in text) != ("Xeon x 100" in text)
        assert len(list(bed.glob("data/2026*.js"))) == 3


def test_the_compare_page_names_the_configuration_of_a_case_that_only_one_night_has(store, site):
    ways = [Case("timm", "net"), Case("timm", "net", configuration="freezing", settings='{"mode": "x"}')]
    take_in(
        store,
        [run(f"2026-01-0{day}", [result(of) for of in ways[:count]]) for day, count in ((1, 2), (2, 1))],
    )
    (path,) = site().glob("beds/*/compare.html")
    only_old = path.read_text().partition("<p>Only in the old: ")[2].partition("</p>")[0]
    assert "freezing" in re.sub("<[^>]*>", "", only_old)


def test_alerts_stand_on_top_and_on_the_model(store, site):
    fill(store, range(40))
    for number in (40, 41, 42):
        slow = night(number)
        rows = tuple(
            result(row.case, 20.0 if row.case.model == "swin_base" else 10.0 + place, night=number)
            for place, row in enumerate(slow.rows)
        )
        take_in(store, [replace(slow, rows=rows)])
    broken = night(43)
    rows = tuple(
        result(r.case, status="fail_to_run") if r.case.model == "resnet18" else r for r in broken.rows
    )
    take_in(store, [replace(broken, rows=rows)])
    judge_last(store, 5)
    folder = site()
    overview = page(folder, "index.html")
    assert "2 new failures" in overview.text
    assert "timm/resnet18 fails: fail_to_run" in overview.text
    model = page(folder, "beds/*/models/*swin*_t1_*.html")
    assert any("regressions.html#alert-" in a.get("href", "") for _, a in model.tags)
    assert "alert: worse" in model.text
    regressions = page(folder, "regressions.html")
    assert "fail_to_run" in regressions.text
    sorted_by = re.findall(r'data-v="([^"]*)">([^<]+) ms</td>', (folder / "regressions.html").read_text())
    assert sorted_by
    assert all(number == text for number, text in sorted_by), "a unit sorts as a word"
    assert [name for name in regressions.ids if name.startswith("alert-")]


def test_the_heat_map_has_what_is_open_first_in_spreads_of_its_own(store):
    """A noisy model that moves by 6 % is as usual, a quiet one that does is not."""
    draw = np.random.default_rng(3)
    for number in range(60):
        shift = 1.06 if number >= 55 else 1.0
        levels = {"a_quiet": 0.004, "noisy": 0.05, "z_slower": 0.004}
        rows = [
            result(Case("timm", name), 10.0, backend_ms=10 * shift * math.exp(sd * draw.standard_normal()))
            for name, sd in levels.items()
        ]
        rows.append(result(Case("timm", "zz_broken"), 10.0, status="crash" if number > 57 else "pass"))
        take_in(store, [run(str(FIRST + timedelta(days=number)), rows)])
    with store.read() as connection:
        (bed,) = beds(connection)
        history = read_history(connection, bed)
        numbers = {case.model: number for number, case in history.cases.items()}
        (trend,) = read_trends(connection, bed, history.runs)
        alert = kept.Alert(
            "metric",
            bed.id,
            numbers["z_slower"],
            "backend_ms",
            kept.OPEN,
            1,
            *[None] * 3,
            "",
            "",
            change=0.058,
        )
        broken = replace(alert, kind="status", case_id=numbers["zz_broken"], state=kept.NEW)
        fixed = replace(alert, case_id=numbers["a_quiet"], state=kept.FIXED)
        changes = open_changes([fixed, alert, broken])
        view = suite_view(history, trend, rows_of(connection, history.runs[-1].id), changes)
    assert [(line.label, line.open) for line in view.heat] == [
        ("zz_broken", "fail"), ("z_slower", "worse"), ("a_quiet", ""), ("noisy", ""),
    ]  # fmt: skip
    spreads = {line.label: line.spread for line in view.heat}
    assert spreads["z_slower"] < 0.009
    assert 0.03 < spreads["noisy"] < 0.08
    cells = {line.label: [bucket(ratio, line.spread, (3, 5, 8)) for ratio in line.ratios[-5:] if ratio]
             for line in view.heat}  # fmt: skip
    assert set(cells["z_slower"]) <= {"w2", "w3"}
    assert set(cells["noisy"]) == {"same"}


def test_a_new_torch_every_night_is_no_row_of_the_machines_page(store, site):
    """The kernel that changed is one."""
    for number in range(60):
        made = run(str(FIRST + timedelta(days=number)), [result(Case("timm", "a"))], git=f"{number:040x}")
        environment = {**made.run.environment, "kernel": "6.1" if number < 30 else "6.2"}
        take_in(store, [replace(made, run=replace(made.run, environment=environment))])
    with store.read() as connection:
        (bed,) = beds(connection)
        view = machine_view(bed, read_history(connection, bed).runs)
    assert view.nightly == ["torch"]
    assert [(period.runs, period.builds) for period in view.periods] == [(30, 30), (30, 30)]
    newest, oldest = view.periods
    assert newest.changed == ["kernel: 6.1 | 6.2"]
    assert oldest.build.startswith("2.15.0 0000000000")
    text = page(site(), "machines.html").text
    assert "torch changes night after night" in text
    assert "30 builds" in text


def test_the_verdict_of_a_model_comes_first_and_slower_has_two_words(store, site):
    """Slower than eager is no news; slower than before is. Their words and colours differ."""
    for number in range(45):
        level = 20.0 if number >= 42 else 14.0
        rows = [result(Case("timm", "swin"), 10.0, night=number, backend_ms=level + 0.01 * (number % 3))]
        rows = [replace(rows[0], verdict="slower"), result(Case("timm", "still"), 10.0, night=number)]
        take_in(store, [run(str(FIRST + timedelta(days=number)), rows)])
    judge_last(store, 5)
    folder = site()
    (path,) = folder.glob("beds/*/models/*swin*.html")
    html = path.read_text()
    verdict = re.search(r'<section class="verdict worse".*?</section>', html, re.DOTALL)[0]
    assert html.index("<h1>") < html.index(verdict) < html.index("<dl")
    assert re.search(r'<span class="badge worse">slower than before</span>: <a href="[^"]*#alert-', verdict)
    assert "since 2026-02-16, " in verdict
    assert '<span class="badge behind">slower than eager</span>' in verdict
    still = page(folder, "beds/*/models/*still*.html").text
    assert "no change is open" in still
    assert "faster than eager" in still


def test_an_alert_has_its_measured_size_and_the_range_of_its_cause(store):
    take_in(store, farm(25, 4, noise=0.02, seed=2, change=slower("model01", 20, 1.10)))
    judge_last(store, 5)
    with store.write() as connection:
        (alert,) = kept.load(connection, states=kept.SHOWN)
        again = {"ratio": 1.08, "low": 1.07, "high": 1.09, "pairs": 8}
        kept.save(connection, replace(alert, details={**alert.details, "remeasured": again}))
    with store.read() as connection:
        (evidence,) = gather_in_causes(connection, [kept.find(connection, alert.id)])
        (bed,) = beds(connection)
        view = read_model_view(connection, bed, alert.case_id)
    since = evidence.between[1].started[:10]
    assert since != evidence.bad.started[:10]
    assert view.open[0].text == f"compiled latency +8.0% since {since}, new"
    (mark,) = [event for event in view.events if event.href]
    assert "compiled latency +8.0%" in mark.text
    assert mark.run.startswith(since)


def test_a_line_that_never_moved_is_a_sentence(store, site):
    """Peaks that stay within 1 %; a step of 3 % in one is drawn, and latencies always are."""
    for number in range(40):
        step = 1.03 if number >= 30 else 1.0
        values = {"eager_peak_bytes": 5e7 * (1 + 0.0001 * (number % 3)), "backend_peak_bytes": 4e7 * step}
        take_in(
            store, [run(str(FIRST + timedelta(days=number)), [result(Case("timm", "a"), 10.0, **values)])]
        )
    html = next(site().glob("beds/*/models/*.html")).read_text()
    drawn = re.findall(r'data-chart="(\w+)"', html)
    assert re.search(r"Within 1 % on all nights: .*eager peak memory 50", html), re.findall(
        "Within[^<]*", html
    )
    assert drawn == ["speedup", "backend_ms", "eager_ms", "backend_peak_bytes"]


@pytest.mark.slow
def test_a_suite_of_which_no_night_is_left(store, site):
    take_in(store, [run(str(FIRST), [result(Case("gone", "net"))])])
    fill(store, range(1, 130))
    assert "One night so far" in page(site(nights=20), "beds/*/suites/gone_*.html").text


@pytest.mark.parametrize(("kind", "direction", "word"), [
    ("metric", 1, "worse"), ("metric", -1, "better"), ("status", 1, "fail"), ("status", 0, "fail"),
    ("status", -1, "better"), ("vanished", 1, "fail"),
])  # fmt: skip
def test_the_word_of_an_open_alert(kind, direction, word):
    alert = kept.Alert(kind, 1, 2, None, kept.OPEN, direction, None, None, None, "", "")
    assert open_changes([alert])[2].word == word


def test_nights_that_nobody_judged_are_reported(store, site):
    fill(store, range(3))
    text = page(site(), "index.html").text
    assert "3 of the last runs were not judged yet" in text
    assert "Nothing is known to be worse" not in text


def test_a_pass_with_nothing_captured_is_no_plain_pass(store, site):
    rows = [result(Case("timm", "empty"), graphs=0, calls_captured=0), result(Case("timm", "full"))]
    take_in(store, [run("2026-01-05", rows)])
    folder = site()
    suite = page(folder, "beds/*/suites/*.html")
    assert "nothing captured" in suite.text
    assert "Geometric mean speedup of 1" in suite.text
    assert "nothing captured" in page(folder, "beds/*/models/*empty*.html").text


def test_a_pass_that_reached_the_limit_of_recompiles_is_in_no_mean_and_says_so(store, site):
    details = {"recompile_limit": "recompile_limit reached"}
    partly = replace(result(Case("timm", "partly"), speedup=9.0), details=details)
    take_in(store, [run("2026-01-05", [result(Case("timm", "whole")), partly])])
    folder = site()
    suite = page(folder, "beds/*/suites/*.html")
    assert "recompile limit" in suite.text
    assert "Geometric mean speedup of 1" in suite.text
    assert "recompile limit" in page(folder, "beds/*/models/*partly*.html").text
    assert "recompile limit" not in page(folder, "beds/*/models/*whole*.html").text


def test_what_was_disturbed_is_in_no_mean_and_says_so(store, site):
    spoilt = replace(result(Case("timm", "spoilt"), speedup=9.0), verdict="disturbed")
    take_in(store, [run("2026-01-05", [result(Case("timm", "fine")), spoilt])])
    folder = site()
    suite = page(folder, "beds/*/suites/*.html")
    assert "disturbed" in suite.text
    assert "Geometric mean speedup of 1" in suite.text
    assert "disturbed" in page(folder, "beds/*/models/*spoilt*.html").text
    assert "disturbed" not in page(folder, "beds/*/models/*fine*.html").text
    (night,) = folder.glob("beds/*/data/2026*.js")  # of which the browser makes means
    metrics = json.loads(night.read_text().removeprefix("perfdash.night(")[:-3])["metrics"]
    assert metrics["speedup"]["v"].count(None) == 1
    assert None not in metrics["compilation_s"]["v"]


def test_a_disturbed_night_says_so_and_only_failures_have_crosses(store, site):
    """Such nights were "not measured", and what was disturbed, skipped or not checked had a red cross."""
    for number in range(4):
        spoilt = [
            result(Case("timm", "spoilt", dtype=dtype), night=number) for dtype in ("float32", "bfloat16")
        ]
        if number == 3:
            spoilt = [replace(row, verdict="disturbed") for row in spoilt]
        others = [
            result(Case("timm", "fine"), night=number),
            replace(result(Case("timm", "unchecked"), night=number), status="pass_due_to_skip"),
            replace(result(Case("timm", "idle")), status="skipped", values={}, samples={}),
            result(Case("timm", "broken"), status="crash"),
        ]
        take_in(store, [run(str(FIRST + timedelta(days=number)), [*spoilt, *others])])
    folder = site()
    (suite,) = folder.glob("beds/*/suites/*float32*.html")
    html = suite.read_text()
    heat, bars = (html.partition(f'id="f-{name}"')[2].partition("</figure>")[0] for name in ("heat", "bars"))
    assert "not measured" not in heat
    assert "2 without a number" in heat
    assert bars.count('class="failed"') == 1
    assert bars.count('class="missing"') == 3
    for path in folder.glob("beds/*/models/*spoilt*.html"):
        text = path.read_text()
        assert text.count("_farm: disturbed") == 1
        assert '<span class="muted">disturbed</span>' in text, "of the other dtype"


def test_no_graph_is_nothing_captured_too(store, site):
    """Where the calls are not known: one word, and below what counts, on every page."""
    none = result(Case("timm", "empty"), 1.0, graphs=0)
    values = {name: value for name, value in none.values.items() if name != "calls_captured"}
    rows = [replace(none, values={**values, "speedup": 9.0}), result(Case("timm", "full"))]
    take_in(store, [run("2026-01-05", rows)])
    folder = site()
    suite = page(folder, "beds/*/suites/*.html").text
    assert suite.count("nothing captured") >= 2  # in the table and in the bars
    models = suite[suite.index("memory ratio") :]
    assert models.index("full") < models.index("empty")
    model = page(folder, "beds/*/models/*empty*.html")
    assert re.search("nothing captured.*Newest result", model.text, re.DOTALL), "in the verdict"
    assert "faster" not in model.text


def test_what_was_not_checked_stands_below_and_says_so(store, site):
    rows = [result(Case("timm", "checked")), result(Case("timm", "unchecked"), status="pass_due_to_skip")]
    rows[1] = replace(rows[1], values={**rows[0].values, "speedup": 9.0})
    take_in(store, [run("2026-01-05", rows)])
    folder = site()
    suite = page(folder, "beds/*/suites/*.html")
    models = suite.text[suite.text.index("memory ratio") :]
    assert models.index("checked") < models.index("unchecked")
    assert "Geometric mean speedup of 1" in suite.text
    assert models.count("faster") == 1
    assert "not checked" in models
    assert not [a for tag, a in suite.tags if tag == "tr" and a.get("class") == "fail"]
    model = page(folder, "beds/*/models/*unchecked*.html").text
    assert "not checked" in model
    assert "could be drawn" not in model  # its numbers are its own


def test_what_was_skipped_is_no_failure_on_any_chart(store, site):
    for number in range(20):
        night_run = night(number)
        flaky = result(Case("timm", "flaky"), night=number)
        if number >= 10:
            status = "infra_error" if number == 15 else "skipped"  # which the machine lost
            flaky = replace(flaky, status=status, values={}, samples={}, details={"skip_reason": "why"})
        if number == 5:
            flaky = replace(flaky, values={**flaky.values, "graphs": 0})
        take_in(store, [replace(night_run, rows=(*night_run.rows, flaky))])
    folder = site()
    (path,) = folder.glob("beds/*/models/*flaky*.html")
    text = path.read_text()
    assert set(re.findall(r'"failed":\[([^]]*)\]', text)) == {""}
    assert "Failed on" not in text
    assert text.count("_farm: skipped") >= 9
    assert "_farm: infra_error" in text
    assert "_farm: nothing captured" in text
    suite = page(folder, "beds/*/suites/*_t1_*.html")
    assert not [a for tag, a in suite.tags if tag == "span" and a.get("class") == "badge fail"]
    assert [a for tag, a in suite.tags if tag == "span" and a.get("class") == "badge info"]


def test_a_model_links_only_to_alerts_that_are_reported(store, site):
    """`check` fails on a link that leads nowhere: of many that ended the page has the latest hundred."""
    fill(store, range(6))
    with store.write() as connection:
        runs = list_runs(connection)
        bed = runs[0].testbed_id
        number = min(case_numbers(connection, bed).values())
        kept.set_judged(connection, [line.id for line in runs], "2026-01-20")
        for alert_number in range(110):
            at = f"2026-01-09T{alert_number // 60:02}:{alert_number % 60:02}"
            ids = runs[3].id, runs[4].id, runs[-1].id
            alert = kept.Alert(
                "metric", bed, number, "backend_ms", "fixed", 1, *ids, at, at, 10, 12, 0.2, 1e-5, {}
            )
            kept.save(connection, alert)
    folder = site()
    hrefs = {a.get("href", "") for path in folder.glob("beds/*/models/*.html") for _, a in Page(path).tags}
    assert len([href for href in hrefs if "#alert-" in href]) == 100
    with store.read() as connection:
        (night_run,) = beds(connection)
        view = read_model_view(connection, night_run, number)
    assert (folder / view.page).read_text() == render_model(view)


def test_graph_breaks_and_how_an_interval_came_about_are_reported(store, site):
    broken = result(Case("timm", "broken"), graphs=3, graph_breaks=2)
    details = {"break_reasons": ["call to print"], "notes": ["eager differed by 2 %"]}
    within = replace(result(Case("timm", "within")), basis="within")
    values = {name: value for name, value in within.values.items() if not name.startswith("speedup_")}
    take_in(store, [run("2026-01-05", [replace(broken, details=details), replace(within, values=values)])])
    folder = site()
    suite = page(folder, "beds/*/suites/*.html").text
    assert "no interval" in suite
    assert "(within)" in suite
    model = page(folder, "beds/*/models/*broken*.html").text
    assert "call to print" in model
    assert "eager differed by 2 %" in model


def test_cpu_time_is_marked_on_the_pages_of_the_model_and_its_suite(store, site):
    rows = []
    for name, clock in (("disturbed", "cpu"), ("quiet", "wall")):
        made = result(Case("timm", name))
        rows.append(replace(made, details={"conditions": {"clock": clock}}))
    take_in(store, [run("2026-01-05", rows)])
    folder = site()
    disturbed = page(folder, "beds/*/models/*disturbed*.html").text
    assert "Eager 13.13 ms 13 to 13.26 CPU time" in disturbed
    assert "CPU time instead of wall time, because other programs used the core" in disturbed
    assert "medians with 95 % intervals; CPU time" in disturbed
    assert "CPU time" not in page(folder, "beds/*/models/*quiet*.html").text
    suite = page(folder, "beds/*/suites/*.html").text
    assert "13.130 cpu" in suite
    assert suite.count("cpu: CPU time instead of wall time") == 1


def test_numbers_of_other_programs(store, site):
    """No speedup, no batch size, no interval; metrics that perfdash has no column for."""
    rows = [
        Row(Case("tigerbeetle", f"model{k}", batch_size=0), "pass", {}, others={"tokens/s | <b>": 12.5 + k})
        for k in range(3)
    ]
    for day in ("2026-01-05", "2026-01-06"):
        take_in(store, [run(day, rows, origin="benchmark-json", environment={}, host_class="unknown")])
    folder = site()
    model = page(folder, "beds/*/models/*model1*.html").text
    assert "tokens/s | <b> 13.5" in model
    assert "tokens/s | <b> as the other program has it" in model
    assert "batch size not known" in model
    assert "benchmark-json" in model
    assert "--batch-size" not in model
    assert "could be drawn" not in model
    assert "No means: no case has checked numbers on both nights" in page(folder, "beds/*/compare.html").text


def test_an_imported_dashboard_shows_what_it_published(store, site):
    (dashboard,) = read([DASHBOARD], ImportOptions(started="2023-02-01"))
    take_in(store, [dashboard])
    folder = site()
    overview = page(folder, "index.html").text
    assert "90%, 46/51 (+3 not checked) published: 91%, 49/54" in overview
    assert "0.936x no interval published: 1.04x" in overview
    assert "The page of the suite says why it differs" in overview
    suite = page(folder, "beds/*/suites/torchbench_*.html").text
    assert "Passrate 91%, 49/54 49/54 90%, 46/51 (+3 not checked)" in suite
    assert "Geometric mean speedup 1.04x 1.04x clipped, 0.926x not 0.936x (46 cases)" in suite
    assert "counts 3 cases as passed whose outputs were not checked" in suite


@pytest.mark.parametrize(
    "published", [3, {"a": 4}, {"a": {"Passrate": [5]}}, {"a": {"Passrate": {"timm": 6}}}]
)
def test_what_is_no_table_is_not_published(store, site, published):
    made = night(0)
    facts = {**made.run.environment, "published": published}
    take_in(store, [replace(made, run=replace(made.run, environment=facts))])
    assert "published" not in page(site(), "index.html").text


def test_published_words_are_escaped(store, site):
    made = night(0)
    cells = {"<b>Passrate</b>": {"timm": {"inductor": "<script>alert(1)</script>" + "x" * 300}}}
    facts = {**made.run.environment, "published": {"section": cells}}
    take_in(store, [replace(made, run=replace(made.run, environment=facts))])
    folder = site()
    for text in (page(folder, "index.html").text, page(folder, "beds/*/suites/*_t1_*.html").text):
        assert "<script>alert(1)</script>xx" in text
        assert "x" * 200 not in text
    assert "<b>Passrate</b>" in text


def test_a_run_of_perfdash_has_no_published_sums(store, site):
    fill(store, range(2))
    folder = site()
    assert "ublished" not in page(folder, "index.html").text
    assert "ublished" not in page(folder, "beds/*/suites/*_t1_*.html").text


def test_bare_values_and_a_partial_run(store, site):
    fill(store, range(6))
    take_in(store, [run("2026-02-01", [row("resnet18", of=Case("timm", "resnet18"))])])
    folder = site()
    overview = page(folder, "index.html").text
    assert "Last night: 2026-01-10" in overview  # the one model measured later is no night
    assert "Last run: 2026-02-01" in overview
    suite = page(folder, "beds/*/suites/timm_cpu_float32_t1_inference_inductor.html").text
    assert "1 run has under half of the cases" in suite


def test_a_desk_run_makes_no_page_say_that_its_model_was_not_measured(store, site):
    fill(store, range(6))
    desk = [result(Case("timm", "resnet18"))]
    take_in(store, [run("2026-01-11", desk, torch="2.16.0a0+mybranch")])
    folder = site()
    verdict = (folder / "index.html").read_text().partition("</section>")[0]
    assert "last night 2026-01-10, torch 2.15.0" in " ".join(verdict.split())
    assert "Not measured" not in page(folder, "beds/*/models/*swin*_t1_*.html").text
    assert "2026-01-10T01-00-00Z_farm" in page(folder, "beds/*/compare.html").text
    take_in(store, [night(7, ["resnet18", "ghostnet_100"])])
    assert "Not measured on the last night" in page(site(), "beds/*/models/*swin*_t1_*.html").text


def test_runs_of_two_kinds_are_compared_each_with_its_own(store, site):
    """A night in two runs: one of each dtype."""
    for number in range(4):
        for dtype, hour in (("float32", 1), ("bfloat16", 4)):
            rows = [result(Case("timm", name, dtype=dtype), night=number) for name in NAMES]
            day = f"2026-01-0{number + 5}"
            take_in(store, [run(day, rows, name=f"{day}_{dtype}", started=f"{day}T0{hour}:00:00Z")])
    folder = site()
    text = page(folder, "beds/*/compare.html").text
    assert "2026-01-08_bfloat16 against the night before" in text
    assert "2026-01-08_float32 against the night before" in text
    assert "No means: no case has checked numbers on both nights" not in text
    assert "Not measured" not in page(folder, "beds/*/models/*swin*float32*.html").text


@pytest.mark.slow
def test_what_is_long_gone_has_its_page_still(store, site):
    take_in(store, [night(0, [*NAMES, "gone"])])
    fill(store, range(1, 130))
    folder = site(nights=20)
    model = page(folder, "beds/*/models/*gone*_t1_*.html").text
    assert "Not measured on the last night" in model
    assert "One night so far: trends begin with the second" in model
    suite = page(folder, "beds/*/suites/*_t1_*.html").text
    assert "1 case not measured on the last night" in suite


@pytest.mark.slow
def test_a_page_alone_is_the_same_as_among_all(store):
    """As a server makes it."""
    fill(store, range(130))
    with store.read() as connection:
        (bed,) = beds(connection)
        history = read_history(connection, bed)
        trends = read_trends(connection, bed, history.runs)
        every = model_context(connection, history)
        last = newest_results(connection, history, list(history.row), trends)
        for number in list(history.row)[:3]:
            view = model_view(every, number, last[number], case_changes(history, number))
            assert render_model(read_model_view(connection, bed, number)) == render_model(view)


@pytest.mark.slow
def test_a_suite_alone_is_the_same_as_among_all(store, site):
    fill(store, range(130))
    folder = site()
    with store.read() as connection:
        (bed,) = beds(connection)
        view = read_suite_view(connection, bed, SuiteSetting.of(Case("timm", "x")))
    assert (folder / view.page).read_text() == render_suite(view)


def test_a_generation_is_shown_by_its_parts_and_in_tokens(store, site):
    case = Case("generation", "gpt2", batch_size=4, scenario="generation")
    nights = []
    for number in range(4):
        made = result(case, 200.0, night=number, prefill_ms=20.0 + number, decode_ms=180.0)
        parts = {"backend": {"prefill": {"median": 20.0}, "decode": {"median": 180.0}}}
        details = {**made.details, "parts_ms": parts, "conditions": {"new_tokens": 10}}
        nights.append(run(f"2026-01-0{5 + number}", [replace(made, details=details)]))
    take_in(store, nights)
    folder = site()
    model = page(folder, "beds/*/models/generation_gpt2*.html").text
    assert re.search(r"Prefill \(first token\)\s*23 ms", model)
    assert re.search(r"ms per output token\s*20\b", model)
    assert "Tokens per second" in model
    assert "Compiled prefill" in model, "a chart over the nights"
    assert "Compiled forward pass" not in model
    suite = page(folder, "beds/*/suites/generation*.html").text
    assert "prefill ms" in suite
    assert "forward ms" not in suite


def test_an_excluded_run_is_struck_through_and_in_no_chart(store, site):
    fill(store, range(4))
    runs = [night(number).run.name for number in range(4)]
    curation.exclude(store, runs[2], "a stray <build>")
    folder = site()
    machines = (folder / "machines.html").read_text()
    assert f"<s>{runs[2]}</s>" in machines
    assert "a stray &lt;build&gt;" in machines
    assert "3 runs in all" in page(folder, "index.html").text
    with store.read() as connection:
        (bed,) = beds(connection)
        history = read_history(connection, bed)
        view = live_pages.machines(connection)
    counted = [runs[0], runs[1], runs[3]]
    assert ([run.name for run in history.runs], [run.name for run in history.excluded]) == (
        counted,
        [runs[2]],
    )
    model = next(folder.glob("beds/*/models/*.html")).read_text()
    assert f"<s>{runs[2]}</s>" in model
    assert "excluded: a stray &lt;build&gt;" in model
    assert f"<s>{runs[2]}</s>" in view
    for name in counted:
        curation.exclude(store, name, "all of it")
    assert "The history holds no run yet" in page(site(), "index.html").text


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case("own", "net.make"), "--model net.py:make"),
        (Case("mine", "m"), "--suite mine.toml"),
    ],
)
def test_the_command_of_a_model_is_that_of_its_newest_run(store, case, words):
    environment = {"variables": {"TORCHINDUCTOR_FREEZING": "1"}}
    command = ("perfdash", "run", *words.split())
    take_in(store, [run("2026-01-05", [result(case)], command=command, environment=environment)])
    with store.read() as connection:
        (bed,) = beds(connection)
        ((_, number),) = case_numbers(connection, bed.id).items()
        view = read_model_view(connection, bed, number)
    assert view.command.startswith(f"perfdash run {words} ")
    assert ("--env TORCHINDUCTOR_FREEZING=1" in view.command) == (case.suite == "own")
