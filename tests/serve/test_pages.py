"""The live site: the pages that the static one has, under the same paths, with any comparison."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from types import SimpleNamespace
from urllib.parse import urljoin, urlsplit

import pytest

from perfdash.detect.curation import exclude, rename
from perfdash.history import nightlies
from perfdash.history.ingest import take_in
from perfdash.history.store import open_store
from perfdash.records import Case
from perfdash.report import site_links
from perfdash.serve import cached_answers, live_pages
from perfdash.site.build import build
from tests.history.made import case, row, run
from tests.serve.served import EVIL

HREF = re.compile(r'(?:href|src)="([^"]*)"')


def crawl(server, start="/"):
    """Every page that is reached from the first one, by path."""
    pages_read, left = {}, [start]
    while left:
        path = left.pop()
        if path in pages_read:
            continue
        reply = server.get(path)
        pages_read[path] = reply
        if reply.headers["content-type"].startswith("text/html"):
            for href in HREF.findall(reply.text):
                target = urlsplit(urljoin(f"http://x{path}", unescape(href)))
                if href.startswith("https://github.com/pytorch/pytorch/compare/"):
                    continue
                assert target.netloc == "x", f"{path} leads to {href}"
                left.append(target.path)
    return pages_read


@pytest.fixture(scope="module")
def pages(server):
    return crawl(server)


def test_every_link_leads_to_a_page(pages):
    assets = {"/assets/icon.svg"}  # not among those of the test's server
    bad = {path for path, reply in pages.items() if reply.status != 200}
    assert bad <= assets
    kinds = {path.split("/")[3] for path in pages if path.startswith("/beds/") and path.count("/") == 4}
    assert kinds == {"suites", "models"}
    assert sum("/models/" in path for path in pages) == 15
    assert {
        f"/{page}"
        for page in (site_links.OVERVIEW, site_links.COMPARE, site_links.REGRESSIONS, site_links.MACHINES)
    } <= set(pages)


def test_names_are_escaped_everywhere(pages):
    for path, reply in pages.items():
        assert "<script>alert" not in reply.text, path
    assert any("&lt;script&gt;alert(1)" in reply.text for reply in pages.values())


def test_pages_are_those_of_the_static_site(server, history, tmp_path):
    with open_store(history) as store:
        build(store, tmp_path / "site", jobs=1)
    out = tmp_path / "site"
    files = [path for path in out.rglob("*.html") if path.name != site_links.COMPARE]
    assert len(files) > 18
    for path in files:
        name = str(path.relative_to(out))
        assert server.get(f"/{name}").text == path.read_text(), name


def test_the_root_is_the_overview(server):
    assert server.get("/").text == server.get("/index.html").text


def test_anything_compared_with_anything(server):
    page = server.get("/compare.html?old=2026-10-08..2026-10-13&new=2026-10-15..2026-10-20").text
    assert "6 runs, 2026-10-08T01-00-00Z_farm to 2026-10-13T01-00-00Z_farm; 6 builds of torch" in page
    assert "model3" in page
    assert "perfdash compare 2026-10-08..2026-10-13 2026-10-15..2026-10-20" in page
    assert 'value="2026-10-08..2026-10-13"' in page
    assert "not clipped" in page


def test_the_machines_of_a_comparison_are_chosen_where_a_date_has_several(tmp_path):
    from tests.serve.served import serving

    address = str(tmp_path / "history.db")
    with open_store(address) as store:
        for day in ("2026-11-01", "2026-11-08"):
            take_in(store, [run(day, [row()]), run(day, [row()], host_class="EPYC x 2", host="desk")])
    with serving(address) as server:
        sides = "old=2026-11-01&new=2026-11-08"
        assert server.get(f"/compare.html?{sides}").status == 400
        reply = server.get(f"/compare.html?{sides}&host_class=Xeon%20x%20100")
    assert reply.status == 200
    assert "<option selected>Xeon x 100</option>" in reply.text
    assert "perfdash compare 2026-11-01 2026-11-08 --host-class 'Xeon x 100'</code>" in unescape(reply.text)


def test_nothing_in_common_is_not_called_unchanged(tmp_path):
    from tests.serve.served import serving

    address = str(tmp_path / "history.db")
    with open_store(address) as store:
        take_in(store, [run(f"2026-11-0{n}", [row(of=case(batch_size=min(n, 8)))]) for n in (1, 8, 9)])
    with serving(address) as server:
        pages = [server.get(f"/compare.html?old=2026-11-0{n}&new=2026-11-08").text for n in (1, 9)]
    assert "Nothing to compare: no case is in both (batch_size 1 | 8)." in pages[0]
    assert "Nothing to compare: numbers of 1 of 1 cases could not be tested" in pages[1]
    assert not any("Nothing changed" in page for page in pages)


def test_the_configuration_of_a_case_that_only_one_side_has_is_named(tmp_path):
    from tests.serve.served import serving

    ways = [case(), case(configuration="freezing", settings='{"mode": "x"}')]
    address = str(tmp_path / "history.db")
    with open_store(address) as store:
        take_in(store, [run(f"2026-11-0{n}", [row(of=of) for of in ways[: 3 - n]]) for n in (1, 2)])
    with serving(address) as server:
        page = server.get("/compare.html?old=2026-11-01&new=2026-11-02").text
    only_old = page.partition("<p>Only in the old: ")[2].partition("</p>")[0]
    assert "freezing" in re.sub("<[^>]*>", "", only_old)


def test_eager_that_took_another_time_is_said_beside_the_speedups(tmp_path):
    from tests.serve.served import serving

    address = str(tmp_path / "history.db")
    with open_store(address) as store:
        take_in(store, [run(f"2026-11-0{n}", [row(eager_ms=ms)]) for n, ms in ((1, 10.0), (8, 12.0))])
    with serving(address) as server:
        page = server.get("/compare.html?old=2026-11-01&new=2026-11-08").text
    assert '<p class="note warn">Eager itself took 20% longer on the new side' in page


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("", 200, "Compare anything with anything"),
        ("old=last", 400, "Both sides are needed."),
        ("old=2019&new=last", 404, "is no run in the history"),
        ("old=2026-10-24&new=2026-10-30", 400, "unlike hosts"),
        ("old=%22%3E%3Cscript%3Ealert(1)&new=last", 404, "&#34;&gt;&lt;script&gt;alert(1)"),
    ],
)
def test_what_cannot_be_compared_is_reported_on_the_page(server, query, status, message):
    reply = server.get(f"/compare.html?{query}")
    assert reply.status == status
    assert message in reply.text
    assert "<form" in reply.text
    assert "<script>alert" not in reply.text


def test_an_empty_history_has_pages(tmp_path):
    from tests.serve.served import serving

    address = str(tmp_path / "history.db")
    open_store(address).close()
    with serving(address) as empty:
        for page in ("", "index.html", "compare.html", "regressions.html", "machines.html", "method.html"):
            assert empty.get(f"/{page}").status == 200, page
        assert empty.get("/api/runs").json["runs"] == []
        assert empty.get("/api/cases").status == 404
        assert empty.get("/compare.html?old=last&new=last").status == 404


def test_the_overview_says_that_nightlies_do_not_come(tmp_path, monkeypatch):
    """Nothing in the history changes but the time: neither the page nor a browser's copy of it is kept."""
    from tests.serve.served import serving

    def at(hours):
        moment = datetime(2026, 11, 20, 1, tzinfo=UTC) + timedelta(hours=hours)
        for module in (live_pages, cached_answers):
            monkeypatch.setattr(module, "datetime", SimpleNamespace(now=lambda _: moment))

    address = str(tmp_path / "history.db")
    nightly = nightlies.Nightly("nightly", "2026-11-20", "2026-11-20T01:00:00Z", 24 * 3600, 3 * 3600)
    with open_store(address) as store:
        take_in(store, [run("2026-11-20", [row(of=case())])])
        with store.write() as connection:
            nightlies.begin(connection, nightly)
            nightlies.end(connection, nightly.job, nightly.night, at="2026-11-20T06:00:00Z", state="ok")
    at(8)
    with serving(address) as server:
        first = server.get("/")
        assert "<strong>Nightly" not in first.text
        at(9)
        assert server.get("/", if_none_match=first.headers["etag"]).status == 304
        at(80)
        later = server.get("/", if_none_match=first.headers["etag"])
        assert later.status == 200
        assert "<strong>Nightly nightly missing</strong>: 3 did not come" in later.text


@pytest.mark.parametrize("change", [
    lambda store: exclude(store, "2026-11-02T01-00-00Z_farm", "the clock was off"),
    lambda store: rename(store, "2026-11-02T01-00-00Z_farm", "before-the-upgrade"),
])  # fmt: skip
def test_pages_follow_what_people_correct(tmp_path, change):
    from tests.serve.served import serving

    address = str(tmp_path / "history.db")
    with open_store(address) as store:
        take_in(store, [run(f"2026-11-0{n}", [row(of=case())]) for n in (1, 2)])
    with serving(address) as server:
        before = server.get("/api/runs")
        with open_store(address) as store:
            change(store)
        after = server.get("/api/runs", if_none_match=before.headers["etag"])
        assert after.status == 200
        assert after.text != before.text


def test_a_suite_that_only_an_excluded_run_measured_has_no_page(tmp_path):
    from tests.serve.served import serving

    address = str(tmp_path / "history.db")
    other = Case("torchbench", "dcgan")
    with open_store(address) as store:
        take_in(store, [run("2026-11-01", [row(of=case())]), run("2026-11-02", [row(of=other)])])
    bed = run().run.testbed_digest
    paths = [f"/{page(bed, other)}" for page in (site_links.suite_page, site_links.model_page)]
    with serving(address) as server:
        assert [server.get(path).status for path in paths] == [200, 200]
        with open_store(address) as store:
            exclude(store, "2026-11-02T01-00-00Z_farm", "the clock was off")
        assert [server.get(path).status for path in paths] == [404, 404]
        assert server.get(f"/{site_links.suite_page(bed, case())}").status == 200


def test_the_api_answers_by_default_of_the_last_run_that_counts(tmp_path):
    from tests.serve.served import serving

    address = str(tmp_path / "history.db")
    stray = run("2026-11-02", [row("stray")], host="laptop", host_class="i7 x 8")
    with open_store(address) as store:
        take_in(store, [run("2026-11-01", [row("resnet18")]), stray])
        exclude(store, stray.run.name, "a stray run")
    with serving(address) as server:
        (found,) = server.get("/api/cases").json["cases"]
        assert found["model"] == "resnet18"
        assert len(server.get(f"/api/series?case={found['id']}").json["points"]) == 1
        assert len(server.get("/api/trend?suite=timm").json["nights"]) == 1
        with open_store(address) as store:
            exclude(store, "2026-11-01T01-00-00Z_farm", "no run counts")
        assert server.get("/api/cases").status == 200


def test_an_odd_name_in_the_api_and_on_its_page(server, pages):
    (path,) = (path for path in pages if "script-alert" in path)
    assert EVIL.partition("\n")[0].replace("<", "&lt;").replace(">", "&gt;") in pages[path].text
