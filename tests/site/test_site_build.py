"""The site as a whole: what is written, when, and that an update is a build from nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from datetime import timedelta

import pytest

from perfdash.detect.curation import rename
from perfdash.detect.nightly_judging import judge_new
from perfdash.errors import MachineError, UsageError
from perfdash.history.ingest import take_in
from perfdash.history.maintenance import prune
from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from perfdash.records import Case
from perfdash.serve import live_pages
from perfdash.site import build_record, cause_page, regressions_page
from perfdash.site import site_folder as folders
from perfdash.site.site_folder import MARKER, STATE, opened
from perfdash.site.testbed_history import read_history
from tests.detect.simulated import judge_last
from tests.history.made import run
from tests.site.stored import FIRST, NAMES, built, check, files, fill, fresh, night, result
from tests.stores import made_store


@pytest.fixture
def store(tmp_path):
    with made_store(tmp_path / "history.db") as opened_store:
        yield opened_store


@pytest.fixture
def site(tmp_path):
    return tmp_path / "site"


@pytest.mark.slow
def test_every_link_leads_somewhere_and_nothing_is_asked_of_others(store, site):
    fill(store, range(130))
    judge_last(store, 5)
    # 6 cases, two settings, the testbed's comparisons, and five at the top.
    assert check(built(store, site)) == 6 + 2 + 1 + 5
    assert len(list(site.glob("beds/*/data/*.js"))) == 130 + 1


def test_a_second_build_writes_nothing(store, site):
    from perfdash.site.build import build

    fill(store, range(20))
    built(store, site)
    times = {path: path.stat().st_mtime_ns for path in site.rglob("*") if path.is_file()}
    assert build(store, site, jobs=1).written == 0
    assert times == {path: path.stat().st_mtime_ns for path in site.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_with_nothing_new_nothing_is_read_or_made(store, site, monkeypatch):
    """Until a run, an alert, a file of the site, the options or perfdash itself is another."""
    from perfdash.site import build as module

    fill(store, range(20))
    first = module.build(store, site, jobs=1)
    read = []
    monkeypatch.setattr(module, "read_history", lambda *a, **k: read.append(1) or read_history(*a, **k))
    again = module.build(store, site, jobs=1)
    assert (again.pages, again.testbeds, again.written) == (first.pages, first.testbeds, 0)
    assert not read
    index = site / "index.html"
    index.write_text("damaged")
    assert module.build(store, site, jobs=1).written == 1
    assert "damaged" not in index.read_text()
    next(site.glob("beds/*/models/*.html")).unlink()
    assert module.build(store, site, jobs=1).written == 1
    assert len(read) == 2
    take_in(store, [night(20)])
    assert module.build(store, site, jobs=1).written > 6
    judge_new(store)
    module.build(store, site, jobs=1, nights=10)
    assert len(read) == 4
    monkeypatch.setattr(build_record, "_program", lambda: "another")
    module.build(store, site, jobs=1, nights=10)
    assert len(read) == 5
    (site / STATE / "last-build.json").write_text("torn {")
    module.build(store, site, jobs=1, nights=10)
    assert len(read) == 6
    module.build(store, site, jobs=1, nights=10)
    assert len(read) == 6


@pytest.mark.slow
def test_the_page_of_a_cause_that_ended_says_so(store, site):
    """Comments and issues link to it."""
    fill(store, range(40))
    for number in (40, 41, 42):
        slow = night(number)
        rows = tuple(result(row.case, 20.0 + place, night=number) for place, row in enumerate(slow.rows))
        take_in(store, [replace(slow, rows=rows)])
    judge_last(store, 5)
    built(store, site)
    (page,) = site.glob("causes/*.html")
    assert "This is no longer open" not in page.read_text()
    fill(store, range(43, 50))
    judge_new(store)
    check(built(store, site))
    assert "This is no longer open" in page.read_text()
    assert f"regressions.html#alert-{page.stem}" in page.read_text()


def test_a_cause_links_only_to_alerts_that_the_page_of_regressions_has(store, site, monkeypatch):
    """`check` fails on a link that leads nowhere; served alone the page is the same."""
    monkeypatch.setattr(regressions_page, "MOST", 1)
    fill(store, range(40))
    for number in (40, 41, 42):
        slow = night(number)
        rows = tuple(result(row.case, 20.0 + place, night=number) for place, row in enumerate(slow.rows))
        take_in(store, [replace(slow, rows=rows)])
    judge_last(store, 5)
    assert check(built(store, site))
    (path,) = site.glob("causes/*.html")
    text = path.read_text()
    assert text.count("regressions.html#alert-") == 1
    assert len(re.findall(r">alert \d+", text)) == 12
    assert "11 more alerts, 11 of them open" in (site / "regressions.html").read_text()
    with store.read() as connection:
        assert live_pages.cause(connection, f"causes/{path.name}") == text


@pytest.mark.slow
def test_the_page_of_an_open_cause_stays_where_worse_ones_come(store, site, monkeypatch):
    """It has no chart then, and is not said to be over."""
    monkeypatch.setattr(cause_page, "MOST", 1)

    def slower(number, factors):
        slow = night(number)
        rows = tuple(
            result(row.case, factors.get(place, 1.0) * (10.0 + place), night=number)
            for place, row in enumerate(slow.rows)
        )
        take_in(store, [replace(slow, rows=rows)])

    fill(store, range(40))
    for number in (40, 41, 42):
        slower(number, {0: 1.3})
    judge_last(store, 5)
    built(store, site)
    (page,) = site.glob("causes/*.html")
    assert "<figure" in page.read_text()
    for number in (43, 44, 45, 46):
        slower(number, {0: 1.3, 1: 3.0, 2: 3.0})
    judge_new(store)
    check(built(store, site))
    assert len(list(site.glob("causes/*.html"))) == 2
    assert "no longer open" not in page.read_text()
    assert "<figure" not in page.read_text()
    assert "What it changed" in page.read_text()


def test_the_page_of_a_cause_lists_what_else_changed(store, site):
    """The host as well as packages."""
    fill(store, range(40))
    for number in (40, 41, 42):
        slow = night(number)
        rows = tuple(result(row.case, 20.0 + place, night=number) for place, row in enumerate(slow.rows))
        environment = {**slow.run.environment, "governor": "powersave"}
        take_in(store, [replace(slow, run=replace(slow.run, environment=environment), rows=rows)])
    judge_last(store, 5)
    built(store, site)
    (page,) = site.glob("causes/*.html")
    (listed,) = re.findall(r"<h2>What else changed with it</h2>\n<ul>(.*?)</ul>", page.read_text())
    assert "governor: performance | powersave" in listed


def test_no_page_has_a_secret(store, site, monkeypatch):
    monkeypatch.setenv("PERFDASH_SMTP_PASSWORD", "correct-horse-battery")
    case = Case("timm", "resnet18")
    details = {"error": {"type": "Error", "message": "cannot log in with correct-horse-battery"}}
    take_in(store, [run("2026-01-05", [replace(result(case, status="fail_to_run"), details=details)])])
    built(store, site)
    (page,) = site.glob("beds/*/models/*.html")
    assert "cannot log in with ***" in page.read_text()
    assert not [name for name, data in files(site).items() if b"correct-horse" in data]


@pytest.mark.slow
def test_an_update_is_a_build_from_nothing(store, site, tmp_path):
    """Through all that can happen to a history."""
    fill(store, range(124))
    judge_last(store, 5)
    built(store, site)

    def same(title):
        assert files(built(store, site)) == fresh(store, tmp_path / "fresh"), title

    for number in range(124, 128):  # over the border of a week, and of what is drawn night by night
        take_in(store, [night(number)])
        judge_new(store)
        same(f"night {number}")
    late = night(50)
    changed = replace(late.rows[0], values={**late.rows[0].values, "backend_ms": 99.0})
    take_in(store, [replace(late, rows=(changed, *late.rows[1:]), run=replace(late.run, ended="2027"))])
    same("an old run replaced")
    recent = night(125)
    rows = (*recent.rows[:-1], result(recent.rows[-1].case, 77.0))
    take_in(store, [replace(recent, rows=rows, run=replace(recent.run, ended="2027"))])
    same("a recent run replaced")
    take_in(store, [night(-1), night(60, host="farm2")])
    same("older runs taken in late")
    with store.read() as connection:
        runs = list_runs(connection)
    prune(store, runs[:10])
    same("the oldest pruned")
    prune(store, runs[-3:-1])
    same("recent ones pruned")
    prune(store, [runs[30]], samples_only=True)
    same("an old one's samples pruned")
    old = night(29)
    assert old.run.started == runs[30].started
    rows = tuple(result(row.case, 55.0, night=29) for row in old.rows)
    take_in(store, [replace(old, rows=rows, run=replace(old.run, ended="2028"))])
    prune(store, [runs[30]], samples_only=True)
    same("replaced and pruned again, with nothing built in between")
    slower = night(128)
    rows = [result(row.case, 30.0 + place, night=128) for place, row in enumerate(slower.rows)]
    rows.append(result(Case("timm", "appeared"), 5.0))
    take_in(store, [replace(slower, rows=tuple(rows))])
    judge_new(store)
    same("alerts, and a new model")


def test_fewer_nights_are_an_update_too(store, site, tmp_path):
    fill(store, range(40))
    built(store, site)
    assert files(built(store, site, nights=10)) == fresh(store, tmp_path / "fresh", nights=10)
    assert len(list(site.glob("beds/*/data/*.js"))) == 10 + 1


def test_another_history_in_the_same_folder(store, site, tmp_path):
    fill(store, range(20))
    built(store, site)
    with made_store(tmp_path / "other.db") as other:
        take_in(other, [night(number, ["other", "resnet18"]) for number in range(15, 25)])
        assert files(built(other, site)) == fresh(other, tmp_path / "fresh")
        assert not list(site.glob("**/*swin*"))


@pytest.mark.slow
def test_what_is_torn_is_mended(store, site, tmp_path):
    fill(store, range(110))
    built(store, site)
    whole = files(site)
    for path in [*site.rglob("*.html"), *(site / STATE).iterdir()]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (site / MARKER).write_bytes(b'{"perf')
    bed = next(site.glob("beds/*"))
    (bed / "models" / ".half.html.part").write_text("half a page")
    (site / ".index.html.part").write_text("half a page")
    for path in (bed / "data").iterdir():
        path.write_bytes(path.read_bytes()[:-9])
    built(store, site)
    assert files(site) == whole
    shutil.rmtree(bed / "data")
    built(store, site)
    assert files(site) == whole


def test_what_is_stale_goes_and_what_is_not_ours_stays(store, site):
    fill(store, range(10))
    built(store, site)
    (site / "CNAME").write_text("perf.example.org")
    gone = next(site.glob("beds/*/models")) / "gone.html"
    gone.write_text("old")
    with store.read() as connection:
        runs = list_runs(connection)
    built(store, site)
    assert not gone.exists()
    prune(store, runs)
    built(store, site)
    assert (site / "CNAME").exists()
    assert not list(site.glob("beds/*"))
    assert check(site) == 5


@pytest.mark.slow
def test_several_processes_make_the_same(store, site, tmp_path, monkeypatch):
    from perfdash.site import build

    monkeypatch.setattr(build, "_FEWEST", 1)
    fill(store, range(100))
    built(store, site, jobs=2)
    assert files(site) == fresh(store, tmp_path / "fresh")


def test_a_foreign_folder_is_refused(store, site):
    fill(store, range(2))
    site.mkdir()
    (site / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="not empty and holds no site"):
        built(store, site)
    assert os.listdir(site) == ["thesis.tex"]
    (site / "thesis.tex").unlink()
    site.rmdir()
    site.write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        built(store, site)


def test_a_site_of_a_newer_perfdash_is_refused(store, site):
    fill(store, range(2))
    site.mkdir()
    (site / MARKER).write_text(json.dumps({"perfdash": "site", "version": folders.VERSION + 1}))
    with pytest.raises(UsageError, match="newer perfdash"):
        built(store, site)


def test_one_build_at_a_time(store, site):
    fill(store, range(2))
    with opened(site, "x"), pytest.raises(MachineError, match="another `perfdash site`"):
        built(store, site)
    built(store, site)


def test_neither_password_nor_address_is_left_in_the_folder(store, site):
    fill(store, range(2))
    store.shown = "postgresql://perfdash:***@host/name"
    built(store, site)
    assert store.shown not in (site / MARKER).read_text()


@pytest.mark.slow
@pytest.mark.postgres
def test_a_server_gives_the_same_site_as_a_file(store, site, tmp_path, postgres_address):
    with open_store(postgres_address) as served:
        for database in (store, served):
            fill(database, range(105))
            rows = [result(Case("bench", "x", batch_size=0), other_values={"tokens/s": 3.5})]
            take_in(database, [run("2026-06-01", rows, origin="benchmark-json", host_class="unknown")])
            for _ in judge_new(database):
                pass
        assert fresh(store, site) == fresh(served, tmp_path / "served")


def test_the_state_may_lie_elsewhere(store, site, tmp_path):
    fill(store, range(5))
    built(store, site, state=tmp_path / "state")
    assert list((tmp_path / "state").glob("*/*.npz"))
    assert not (site / STATE).exists()


def test_sites_that_share_a_state_leave_each_other_what_they_kept(store, site, tmp_path):
    state = tmp_path / "state"
    fill(store, range(5))
    built(store, site, state=state)
    (state / "mine.npz").write_bytes(b"x")
    before = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    with made_store(tmp_path / "other.db") as other:
        take_in(other, [night(number, ["other"]) for number in range(5)])
        built(other, tmp_path / "second", state=state)
    after = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    assert before.items() <= after.items()
    assert len(after) > len(before)


def test_nights_have_their_files(store, site):
    fill(store, range(3))
    built(store, site)
    bed = next(site.glob("beds/*"))
    text = next(bed.glob(f"data/{FIRST}*.js")).read_text()
    data = json.loads(text.removeprefix("perfdash.night(").removesuffix(");\n"))
    assert data["name"] == f"{FIRST}T01-00-00Z_farm"
    assert data["status"] == ["pass"] * 6
    assert set(data["metrics"]) >= {"speedup", "backend_ms", "eager_ms", "compression_ratio"}
    assert all(len(column) == 6 for metric in data["metrics"].values() for column in metric.values())
    cases = json.loads((bed / "data/cases.js").read_text().removeprefix("perfdash.cases(")[:-3])
    assert set(data["case"]) <= set(cases["case"])
    assert all((bed / "data" / page).resolve().is_file() for page in cases["page"])


def test_a_run_that_was_renamed_has_its_new_name_everywhere(store, site, tmp_path):
    case = Case("timm", NAMES[0])
    levels = [10.0] * 15 + [14.0] * 15
    nights = [
        run(str(FIRST + timedelta(days=number)), [result(case, level, night=number)])
        for number, level in enumerate(levels)
    ]
    take_in(store, nights)
    built(store, site)
    old = nights[15].run.name
    rename(store, old, "broken-fan")
    built(store, site)
    assert files(site) == fresh(store, tmp_path / "fresh")
    assert not any(old.encode() in content for content in files(site).values())
