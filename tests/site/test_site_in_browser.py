"""The whole site in a real browser: with scripts from a file, and as Jenkins serves it, without."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from perfdash.history.ingest import take_in
from perfdash.history.results import Imported, Row
from perfdash.history.store import open_store
from perfdash.records import Case
from tests.browser import Browser, browser, serve  # noqa: F401 (fixtures)
from tests.detect.simulated import judge_last
from tests.history.made import run
from tests.site.stored import FIRST, built, fill, night, result

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

KINDS = {
    "overview": "index.html",
    "cause": "causes/*.html",
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
CHARTS = {"overview": 3, "suite": 6, "model": 4}

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


CAPTIONS = """[...document.querySelectorAll("figcaption")].filter((one) => one.offsetHeight > 34)
    .map((one) => one.textContent)"""
LONG = "a_model_whose_name_nobody_ever_wanted_to_read_" * 4 + "and_which_ends_at_220_characters___"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A site with weeks, nights, alerts and a failure."""
    home = tmp_path_factory.mktemp("site")
    with open_store(str(home / "history.db")) as store:
        fill(store, range(110))
        for number in range(110, 113):
            night_run = night(number)
            rows = [*night_run.rows, result(Case("timm", "failing"), status="timeout")]
            rows[0] = slow(number)
            take_in(store, [Imported(night_run.run, tuple(rows))])
        judge_last(store, 6)
        return built(store, home / "site")


@pytest.fixture(scope="module")
def two_machines(tmp_path_factory):
    """A site of two testbeds, with names of 220 characters among its models, suites and hosts."""
    home = tmp_path_factory.mktemp("two")
    with open_store(str(home / "history.db")) as store:
        for host in ({}, {"host": f"host_{LONG}"[:220], "host_class": f"Xeon {LONG}"[:220]}):
            for number in range(40):
                level = 20.0 if number >= 36 else 14.0
                values = {"backend_ms": level + 0.01 * (number % 3)}
                rows = [result(Case("timm", LONG), 10.0, night=number, **values)]
                rows += [result(Case(f"suite_{LONG}"[:220], "net"), 10.0, night=number)]
                status = "crash" if number > 37 else "pass"
                rows += [result(Case("timm", "failing"), 10.0, night=number, status=status)]
                made = run(str(FIRST + timedelta(days=number)), rows, git=f"{number:040x}", **host)
                take_in(store, [made])
        judge_last(store, 6)
        return built(store, home / "site")


def slow(number: int) -> Row:
    """The first case of a night after a regression."""
    return result(night(number).rows[0].case, 17.0, night=number)


def path_of(folder, kind: str) -> str:
    path = sorted(folder.glob(KINDS[kind]))[0]
    return path.relative_to(folder).as_posix()


@pytest.mark.parametrize("world", ["file", "jenkins"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_is_seen(browser: Browser, serve, folder, kind, world):  # noqa: F811
    path = path_of(folder, kind)
    address = (folder / path).as_uri() if world == "file" else f"{serve(folder, jenkins=True)}/{path}"
    colours = set()
    browser.open(address)
    browser.wait("document.readyState === 'complete'")
    for width, scheme in ((1280, "light"), (360, "dark")):
        browser.show_at(width, scheme=scheme)
        look = json.loads(str(browser.ask(LOOK)))
        assert look["styled"] != "block", "the style sheet was not taken"
        assert look["charts"] >= CHARTS.get(kind, 0)
        assert (look["undrawn"], look["unseen"]) == (0, 0), look
        assert browser.sideways() == 0, (kind, width)
        colours.add((look["back"], look["front"]))
        # Under the policy the browser says that the script is not run: that is all it may say.
        complaints = browser.complaints()
        assert world == "jenkins" or complaints == []
        assert all("Blocked script execution" in line for line in complaints), complaints
    assert len(colours) == 2, "no dark scheme"


BARRIER_KINDS = {
    **{kind: KINDS[kind] for kind in ("overview", "cause", "suite", "failure", "compare", "regressions")},
    "machines": "machines.html",
    "model": "beds/*/models/*a-model*.html",
}


@pytest.fixture(scope="module", params=BARRIER_KINDS)
def page_of_two_machines(browser: Browser, two_machines, request):  # noqa: F811
    """The browser with a page of each kind, opened once for the tests that only look at it."""
    path = sorted(two_machines.glob(BARRIER_KINDS[request.param]))[0]
    browser.open(path.as_uri())
    browser.wait("document.readyState === 'complete'")
    return browser


def test_a_long_name_pushes_nothing_off_the_page(page_of_two_machines: Browser):
    page = page_of_two_machines
    for width in (1440, 390):
        page.show_at(width)
        assert page.sideways() == 0
        cells = (
            "td, th" if width > 600 else "table:not(.causes) tbody th"
        )  # these stay while a table is scrolled
        widest = page.ask(
            f"Math.max(0, ...[...document.querySelectorAll('{cells}')].map((c) => c.offsetWidth))"
        )
        assert widest <= width / 2, "a name in a cell is broken into lines"
        captions = page.ask(CAPTIONS)
        assert captions == [], "captions of one line"


def test_nothing_keeps_people_from_using_a_page(page_of_two_machines: Browser):
    """Landmarks are told apart, what can be focused is in nothing that hides it, colours can be read."""
    for width in (1440, 390):
        for scheme in ("light", "dark"):
            page_of_two_machines.show_at(width, scheme=scheme)
            assert page_of_two_machines.barriers() == [], (width, scheme)


def test_the_choices_of_nights_are_no_wider_than_a_phone(browser: Browser, tmp_path):  # noqa: F811
    """They were as wide as the version of a nightly build with its commit."""
    with open_store(str(tmp_path / "history.db")) as store:
        for day in range(3):
            take_in(store, [night(day, torch=f"2.14.0.dev2026010{5 + day}+cpu")])
        folder = built(store, tmp_path / "site")
    browser.open((folder / path_of(folder, "compare")).as_uri(), width=390)
    browser.wait("document.querySelectorAll('#any-two select').length === 3")
    assert browser.sideways() == 0


@pytest.mark.parametrize("kind", ["overview", "suite", "regressions", "compare", "machines"])
def test_all_columns_are_on_paper_and_dark_on_white(browser: Browser, folder, kind):  # noqa: F811
    browser.open((folder / path_of(folder, kind)).as_uri(), width=718)  # A4 upright without its margins
    browser.wait("document.readyState === 'complete'")
    browser.ask("document.documentElement.dataset.theme = 'dark'")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.sideways() == 0
        assert browser.ask("getComputedStyle(document.body).color") == "rgb(26, 32, 39)"
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.parametrize("kind", ["cause", "model", "suite"])
def test_the_newest_night_is_seen_on_a_phone(browser: Browser, folder, kind):  # noqa: F811
    """A chart that is scrolled sideways would show only the nights before the change."""
    browser.open((folder / path_of(folder, kind)).as_uri(), width=390, scheme="dark")
    browser.wait("document.readyState === 'complete'")
    assert browser.complaints() == []  # all other tests load a page at the size of a desktop
    assert browser.ask("document.documentElement.clientWidth") == 390, "laid out as for a desktop"
    edges = browser.ask("""[...document.querySelectorAll("main svg:is(.trend, .strip, .heat)")]
        .map((one) => one.getBoundingClientRect().right - innerWidth)""")
    assert edges
    assert max(edges) <= 0


def test_the_names_of_models_are_whole_at_their_left(browser: Browser, two_machines):  # noqa: F811
    """Also bold ones with the sign of an open alert; and the end is seen, as names often differ there."""
    for path in sorted(two_machines.glob("beds/*/suites/timm*")):
        browser.open(path.as_uri(), width=1440)
        browser.wait("document.readyState === 'complete'")
        for chart in ("heat", "bars"):
            names = f"[...document.querySelectorAll('#f-{chart} a text')]"
            assert (
                browser.ask(f"{names}.filter((one) => one.getBBox().x < 0).map((one) => one.textContent)")
                == []
            )
            assert browser.ask(f"{names}.filter((one) => one.textContent.includes('…')).length") == 1
            assert browser.ask(
                f"{names}.some((one) => one.firstChild.data.endsWith(LONG))".replace("LONG", repr(LONG[-5:]))
            )


def test_any_two_nights_with_a_script(browser: Browser, folder):  # noqa: F811
    address = (folder / path_of(folder, "compare")).as_uri()
    browser.open(address)
    browser.wait("document.querySelectorAll('#any-two select').length === 3")
    nights = json.loads(str(browser.ask("document.querySelector('#compare-data').textContent")))["nights"]
    assert nights[-1]["name"] == night(112).run.name
    browser.open(f"{address}#old={nights[-4]['file']}&new={nights[-1]['file']}&metric=backend_ms")
    browser.wait("document.querySelectorAll('#any-two table tbody tr').length >= 6")
    cells = "Array.from(row.cells, one => one.textContent)"
    rows = f"Array.from(document.querySelectorAll('#two tbody tr'), row => {cells})"
    shown = {name: cells for name, *cells in json.loads(str(browser.ask(f"JSON.stringify({rows})")))}
    for old, new in zip(night(109).rows, (slow(112), *night(112).rows[1:]), strict=True):
        before, after = (float(f"{entry.values['backend_ms']:.6g}") for entry in (old, new))
        assert shown[old.case.name][:3] == [f"{before:.4g}", f"{after:.4g}", f"{after / before:.3f}"]
    text = str(browser.ask("document.querySelector('#any-two').textContent"))
    assert f"perfdash compare {nights[-4]['name']} {nights[-1]['name']}" in text
    link = str(browser.ask("document.querySelector('#any-two tbody a').href"))
    assert link.endswith(".html")
    browser.open(link)
    assert browser.ask("document.querySelector('h1').textContent")
    assert browser.complaints() == []


def test_nights_of_one_name_are_kept_apart(browser: Browser, tmp_path):  # noqa: F811
    """As runs of another program are, which are named after a file that each night overwrites."""
    case = Case("timm", "resnet18")
    with open_store(str(tmp_path / "history.db")) as store:
        for day, speedup in ((5, 1.0), (6, 2.0), (7, 3.0)):
            take_in(store, [run(f"2026-01-0{day}", [result(case, speedup=speedup)], name="a 'file'")])
        folder = built(store, tmp_path / "site")
    browser.open((folder / path_of(folder, "compare")).as_uri())
    browser.wait("document.querySelectorAll('#any-two select').length === 3")
    for which, place in (("Old", 2), ("New", 0)):  # the newest comes first
        browser.ask(f"""(() => {{
            const label = [...document.querySelectorAll("#any-two label")]
                .find((one) => one.textContent.startsWith("{which}"));
            label.querySelector("select").selectedIndex = {place};
            label.querySelector("select").dispatchEvent(new Event("change"));
        }})()""")
    browser.wait("document.querySelector('#two tbody td:nth-child(4)')?.textContent === '3.000'")
    row = str(browser.ask("document.querySelector('#two tbody tr').textContent"))
    assert "1.000x3.000x" in row
    text = str(browser.ask("document.querySelector('#any-two').textContent"))
    assert "perfdash compare 2026-01-05T01:00:00Z 2026-01-07T01:00:00Z" in text


def test_any_two_nights_name_their_machines_where_they_have_none_in_common(browser: Browser, tmp_path):  # noqa: F811
    with open_store(str(tmp_path / "history.db")) as store:
        for day, host in enumerate(("xeon7", "xeon7", "xeon8")):
            take_in(store, [night(day, host=host)])
        folder = built(store, tmp_path / "site")
    address = (folder / path_of(folder, "compare")).as_uri()
    browser.open(address)
    browser.wait("document.querySelectorAll('#any-two select').length === 3")
    nights = json.loads(str(browser.ask("document.querySelector('#compare-data').textContent")))["nights"]
    for old, new, note in ((1, 2, "Measured on another machine: xeon7 | xeon8. Machines"), (0, 1, None)):
        browser.open(f"{address}#old={nights[old]['file']}&new={nights[new]['file']}&metric=eager_ms")
        browser.wait("document.querySelector('#two')")
        shown = browser.ask("document.querySelector('#any-two .warn')?.textContent ?? null")
        assert shown.startswith(note) if note else shown is None


def test_nights_by_different_methods_are_not_compared(browser: Browser, tmp_path):  # noqa: F811
    with open_store(str(tmp_path / "history.db")) as store:
        for day, method in ((0, {}), (1, {"latency": 2})):
            take_in(store, [night(day, method=method)])
        folder = built(store, tmp_path / "site")
    address = (folder / path_of(folder, "compare")).as_uri()
    browser.open(address)
    browser.wait("document.querySelectorAll('#any-two select').length === 3")
    nights = json.loads(str(browser.ask("document.querySelector('#compare-data').textContent")))["nights"]
    ratio = "document.querySelector('#two tbody td:nth-child(4)')?.textContent"
    two = f"{address}#old={nights[0]['file']}&new={nights[1]['file']}"
    browser.open(f"{two}&metric=backend_ms")
    browser.wait(f"{ratio} === ''")
    text = str(browser.ask("document.querySelector('#any-two').textContent"))
    assert "not compared: compiled latency, ms: latency 1 | latency 2." in text
    browser.open(f"{two}&metric=compilation_s")
    browser.wait(f"{ratio} === '1.000'")
    assert "not compared" not in str(browser.ask("document.querySelector('#any-two').textContent"))
    browser.open((folder / path_of(folder, "model")).as_uri())
    line = "document.querySelector('figure[data-chart=backend_ms] path.line')"
    assert "L" not in str(browser.ask(f"{line}?.getAttribute('d') ?? ''")), "the two nights are joined"
    assert browser.complaints() == []


def test_a_table_is_sorted_and_filtered(browser: Browser, folder):  # noqa: F811
    browser.open((folder / path_of(folder, "suite")).as_uri() + "#q=swin")
    browser.wait("document.querySelectorAll('#models tbody tr:not([hidden])').length === 1")
    assert "swin" in str(browser.ask("document.querySelector('#models tbody tr:not([hidden])').textContent"))
    browser.open((folder / path_of(folder, "suite")).as_uri())
    heads = "document.querySelectorAll('#models thead th')"
    place = f"[...{heads}].findIndex((one) => one.dataset.key === 'speedup')"
    browser.wait(f"{heads}[{place}].querySelector('button')")
    cells = f"[...document.querySelectorAll('#models tbody tr')].map((row) => row.cells[{place}].textContent)"
    for down in (False, True):  # it comes with the fastest on top
        browser.ask(f"{heads}[{place}].querySelector('button').click()")
        shown = json.loads(str(browser.ask(f"JSON.stringify({cells})")))
        numbers = [float(text.split("x")[0]) for text in shown if "x" in text]
        assert len(set(numbers)) == 3
        assert numbers == sorted(numbers, reverse=down)
