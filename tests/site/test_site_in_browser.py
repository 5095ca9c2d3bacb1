"""The whole site in a real browser: with scripts from a file, and as Jenkins serves it, without."""

from __future__ import annotations

import json

import pytest
from browser import Browser, browser, serve  # noqa: F401 (fixtures)
from stored import built, fill, night, result

from perfdash.detect.nightly import judge_new
from perfdash.history.ingest import take_in
from perfdash.history.rows import Imported
from perfdash.history.store import open_store
from perfdash.records import Case

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

KINDS = {
    "overview": "index.html",
    "suite": "beds/*/suites/*_t1_*.html",
    "model": "beds/*/models/*resnet18*_t1_*.html",
    "failure": "beds/*/models/*failing*.html",
    "compare": "beds/*/compare.html",
    "which": "compare.html",
    "regressions": "regressions.html",
    "machines": "machines.html",
    "method": "method.html",
}
# Kinds that have charts, and how many at least.
CHARTS = {"overview": 8, "suite": 6, "model": 9}

LOOK = """(() => {
    const seen = (node) => {
        const box = node.getBoundingClientRect();
        const style = getComputedStyle(node);
        return box.width > 0 && box.height > 0 && style.visibility === "visible" && style.opacity !== "0";
    };
    const drawn = (svg) => seen(svg) && [...svg.querySelectorAll("path, circle, rect, line")].some((one) => {
        const style = getComputedStyle(one);
        return ![style.stroke, style.fill].every((paint) => ["none", "rgba(0, 0, 0, 0)"].includes(paint));
    });
    const open = (node) => !node.closest("details:not([open])");
    const charts = [...document.querySelectorAll("main svg:not(.sign-key)")];
    const tables = [...document.querySelectorAll("main table")].filter(open);
    return JSON.stringify({
        charts: charts.length, undrawn: charts.filter((svg) => !drawn(svg)).length,
        tables: tables.length,
        unseen: tables.filter((one) => !seen(one) || !one.querySelector("tbody td, tbody th")).length,
        styled: getComputedStyle(document.querySelector("header.top")).display,
        back: getComputedStyle(document.body).backgroundColor, front: getComputedStyle(document.body).color,
    });
})()"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A site with weeks, nights, alerts and a failure."""
    home = tmp_path_factory.mktemp("site")
    with open_store(str(home / "history.db")) as store:
        fill(store, range(110))
        for number in range(110, 113):
            one = night(number)
            rows = [*one.rows, result(Case("timm", "failing"), status="timeout")]
            rows[0] = result(rows[0].case, 17.0, night=number)
            take_in(store, [Imported(one.run, tuple(rows))])
        judge_new(store)
        return built(store, home / "site")


def path_of(folder, kind: str) -> str:
    (path,) = folder.glob(KINDS[kind])
    return path.relative_to(folder).as_posix()


@pytest.mark.parametrize("world", ["file", "jenkins"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_is_seen(browser: Browser, serve, folder, kind, world):  # noqa: F811
    path = path_of(folder, kind)
    address = (folder / path).as_uri() if world == "file" else f"{serve(folder, jenkins=True)}/{path}"
    colours = set()
    for width, scheme in ((1280, "light"), (360, "dark")):
        browser.open(address, width=width, scheme=scheme)
        browser.wait("document.readyState === 'complete'")
        found = json.loads(str(browser.ask(LOOK)))
        assert found["styled"] != "block", "the style sheet was not taken"
        assert found["charts"] >= CHARTS.get(kind, 0)
        assert (found["undrawn"], found["unseen"]) == (0, 0), found
        assert browser.sideways() == 0, (kind, width)
        colours.add((found["back"], found["front"]))
        # Under the policy the browser says that the script is not run: that is all it may say.
        said = browser.complaints()
        assert world == "jenkins" or said == []
        assert all("Blocked script execution" in line for line in said), said
    assert len(colours) == 2, "no dark scheme"


def test_any_two_nights_with_a_script(browser: Browser, folder):  # noqa: F811
    address = (folder / path_of(folder, "compare")).as_uri()
    names = [night(number).run.name for number in (110, 112)]
    browser.open(f"{address}#old={names[0]}&new={names[1]}")
    browser.wait("!document.querySelector('#any-two').hidden")
    browser.wait("document.querySelectorAll('#any-two select').length >= 2")
    browser.wait("document.querySelectorAll('#any-two table tbody tr').length >= 6")
    text = str(browser.ask("document.querySelector('#any-two').textContent"))
    assert "perfdash compare" in text
    link = str(browser.ask("document.querySelector('#any-two tbody a').href"))
    assert link.endswith(".html")
    browser.open(link)
    assert browser.ask("document.querySelector('h1').textContent")
    assert browser.complaints() == []


def test_a_table_is_sorted_and_filtered(browser: Browser, folder):  # noqa: F811
    browser.open((folder / path_of(folder, "suite")).as_uri() + "#q=swin")
    browser.wait("document.querySelectorAll('#models tbody tr:not([hidden])').length === 1")
    assert "swin" in str(browser.ask("document.querySelector('#models tbody tr:not([hidden])').textContent"))


def test_the_charts_of_a_model_become_interactive(browser: Browser, folder):  # noqa: F811
    browser.open((folder / path_of(folder, "model")).as_uri())
    browser.wait("document.querySelector('figure[data-chart=speedup] button')")
    browser.ask("document.querySelector('figure[data-chart=speedup] button').click()")
    browser.wait("document.querySelector('figure[data-chart=speedup] .js-plotly-plot .main-svg')")
    assert browser.complaints() == []
