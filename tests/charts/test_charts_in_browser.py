"""Charts, tables and scripts in a real browser; and all without scripts, under the policy of Jenkins."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from perfdash.charts.axes import time_axis
from perfdash.charts.trend_chart import LEFT, RIGHT
from tests.browser import Browser, browser, serve  # noqa: F401 (fixtures)
from tests.charts.chart_pages import DAY, made_trends, made_weeks, write, write_weeks

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

SEEN = """(() => {
    const found = {};
    const look = (name, shape, property) => {
        const box = shape.getBoundingClientRect();
        const size = Math.max(box.width + box.height, found[name]?.[0] ?? 0);
        found[name] = [size, getComputedStyle(shape)[property]];
    };
    for (const svg of document.querySelectorAll("main svg:not(.sign-key)")) {
        const name = svg.getAttribute("class").split(" ").pop();
        look(name, svg, "color");
        for (const path of svg.querySelectorAll("path")) {
            const kind = `${name} ${path.getAttribute("class")}`;
            const filled = /band|range|sign|dot$/.test(kind);
            look(kind, path, filled ? "fill" : "stroke");
        }
    }
    return JSON.stringify(found);
})()"""


# Class of the drawing, then of a shape in it.
EXPECTED = (
    "trend", "spark", "heat", "strip", "bars", "trend line", "trend band", "trend range", "trend failed",
    "trend dots", "trend grid", "trend one", "trend sign", "heat w3", "heat missing", "heat failed",
    "strip samples s0", "bars dot", "spark line",
)  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write(tmp_path_factory.mktemp("page"))


@pytest.fixture
def at(request, page, serve):  # noqa: F811
    """The address of a file of the page's folder in one of the three worlds."""

    def address(name: str = "index.html") -> str:
        world = request.param
        if world == "file":
            return (page.parent / name).as_uri()
        return f"{serve(page.parent, jenkins=world == 'jenkins')}/{name}"

    return address


every = pytest.mark.parametrize("at", ["file", "http", "jenkins"], indirect=True)
scripted = pytest.mark.parametrize("at", ["file", "http"], indirect=True)


def open_page(browser: Browser, address: str, **how) -> None:  # noqa: F811
    """Opens a page and waits until its script has done what it does at the start."""
    browser.open(address, **how)
    browser.wait("window.perfdash && perfdash.sortable && document.querySelector('svg.trend[tabindex]')")


def first_cells(browser: Browser, column: int = 0) -> list[str]:  # noqa: F811
    code = f"""JSON.stringify([...document.querySelectorAll("#models tbody tr:not(.total)")]
        .filter(row => !row.hidden).map(row => row.cells[{column}])
        .map(cell => cell.dataset.v ?? cell.textContent))"""
    return json.loads(browser.ask(code))


@every
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_and_table_is_seen(browser, at, scheme):  # noqa: F811
    browser.open(at(), scheme=scheme)
    seen = json.loads(browser.ask(SEEN))
    assert set(EXPECTED) <= set(seen)
    for name, (size, colour) in seen.items():
        assert size > 0 or name.endswith(("dots", "s0", "s1")), name  # these have round ends and no length
        assert colour not in ("none", "rgba(0, 0, 0, 0)", "transparent"), name
    assert browser.ask("document.querySelector('#models').getBoundingClientRect().height") > 300
    background = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(16, 21, 27)")
    assert (
        browser.ask("getComputedStyle(document.querySelector('.badge.worse'), '::before').content") == '"▼"'
    )


@pytest.mark.parametrize("at", ["jenkins"], indirect=True)
def test_under_the_policy_only_the_script_is_refused(browser, at):  # noqa: F811
    browser.open(at())
    assert browser.ask("typeof perfdash") == "undefined"
    complaints = browser.complaints()
    assert complaints
    assert all("Blocked script execution" in text for text in complaints), complaints


@scripted
def test_nothing_is_complained_of(browser, at):  # noqa: F811
    open_page(browser, at())
    browser.open(at("compare.html"))
    browser.wait("document.querySelector('#any-two select')")
    assert browser.complaints() == []


@every
@pytest.mark.parametrize("name", ["index.html", "compare.html"])
def test_a_phone_scrolls_no_page_sideways(browser, at, name):  # noqa: F811
    browser.open(at(name), width=360, height=740)
    assert browser.sideways() == 0
    browser.show_at(width=320, height=600)
    assert browser.sideways() == 0


@scripted
def test_sorting_by_click_and_by_key(browser, at):  # noqa: F811
    open_page(browser, at())
    buttons = browser.driver.find_elements(By.CSS_SELECTOR, "#models thead button")
    buttons[1].click()
    values = [float(text) for text in first_cells(browser, 1)]
    assert values == sorted(values, reverse=True), "numbers: the largest first"
    assert (
        browser.ask("document.querySelector('#models th[aria-sort]').getAttribute('aria-sort')")
        == "descending"
    )
    assert browser.ask("location.hash") == "#sort=models.speedup-"
    buttons[1].send_keys(Keys.ENTER)
    assert [float(text) for text in first_cells(browser, 1)] == sorted(values)
    assert browser.ask("location.hash") == "#sort=models.speedup"
    buttons[3].click()
    breaks = first_cells(browser, 3)
    assert breaks[-5:] == [""] * 5, "what has no value comes last"
    assert [int(text) for text in breaks[:-5]] == sorted((int(text) for text in breaks[:-5]), reverse=True)
    assert browser.ask("document.querySelector('#models tbody tr:last-child').className") == "total"


@scripted
def test_the_address_brings_back_filter_and_order(browser, at):  # noqa: F811
    open_page(browser, at() + "#q=model_1+better&sort=models.model-")
    assert first_cells(browser) == ["model_16", "model_11", "model_1"]
    assert browser.ask("document.querySelector('.filter span').textContent") == "3 of 20"
    box = browser.driver.find_element(By.CSS_SELECTOR, "input[type=search]")
    box.clear()
    box.send_keys("model_7")
    assert first_cells(browser) == ["model_7"]
    assert "q=model_7" in browser.ask("location.hash")
    browser.ask("location.hash = '#q=model_3'")
    browser.wait("document.querySelector('input[type=search]').value === 'model_3'")
    assert first_cells(browser) == ["model_3"]


@scripted
def test_hover_tells_night_value_interval_and_commit(browser, at):  # noqa: F811
    open_page(browser, at())
    drawing = browser.driver.find_element(By.CSS_SELECTOR, "figure[data-chart=backend_ms] svg")
    browser.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", drawing)
    ActionChains(browser.driver).move_to_element(drawing).perform()
    tip = "document.querySelector('figure[data-chart=backend_ms] .tip')"
    night, torch, value = browser.ask(f"{tip}.textContent").split("\n")[:3]
    k = int(night.removeprefix("night ").removesuffix(" <b>"))
    assert 80 < k < 120
    assert torch == f"torch 2.15.0 {k // 3:010x}"
    data = made_trends()["backend_ms"]
    assert value.startswith(f"{float(f'{data.values[k]:.5g}'):g} ms (")
    assert value.endswith("95 %)")
    drawing.send_keys(Keys.END)
    assert browser.ask(f"{tip}.textContent").startswith("night 199")
    drawing.send_keys(Keys.ARROW_LEFT)
    assert browser.ask(f"{tip}.textContent").startswith("night 198")
    drawing.send_keys(Keys.ESCAPE)
    assert browser.ask(f"{tip}.hidden")
    cells = browser.driver.find_element(By.CSS_SELECTOR, "svg.heat")
    browser.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", cells)
    ActionChains(browser.driver).move_to_element(cells).perform()
    name, date, ratio = browser.ask("[...document.querySelectorAll('.tip')].at(-1).textContent").split("\n")
    assert name.startswith("model_")
    assert date.startswith("2026-")
    assert re.fullmatch("[0-9.]+x, [0-9.]+\N{GREEK SMALL LETTER SIGMA} (worse|better)", ratio) or ratio in (
        "failed",
        "no number",
    )


def test_hover_finds_the_night_under_it_where_time_is_split(browser, page):  # noqa: F811
    write_weeks(page.parent)
    open_page(browser, (page.parent / "weeks.html").as_uri())
    times = made_weeks().times
    axis = time_axis(times[0], times[-1], times[200] - DAY / 2)
    drawing = browser.driver.find_element(By.CSS_SELECTOR, "figure[data-chart=ms] svg")
    browser.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", drawing)
    size = drawing.size["width"] / 560
    for k in (10, 120, 205, 250, 285):
        x = (LEFT + axis.at(times[k]) * (560 - RIGHT - LEFT)) * size
        action = ActionChains(browser.driver)
        action.move_to_element_with_offset(drawing, round(x - drawing.size["width"] / 2), 0).perform()
        text = browser.ask("document.querySelector('.tip').textContent")
        assert abs(int(text.split("\n")[0].split()[1]) - k) <= 1
        cursor = browser.ask("document.querySelector('.cursor').getAttribute('d')")
        assert abs(float(cursor[1:].split()[0]) * size - x) < 4


@scripted
def test_any_two_nights(browser, at):  # noqa: F811
    address = at("compare.html")
    browser.open(address)
    browser.wait("document.querySelectorAll('#any-two select').length === 3")
    assert browser.ask("document.querySelector('#two')") is None
    old, new = "2026-01-01T01-00-00Z_farm", "2026-01-03T01-00-00Z_farm"
    browser.open(f"{address}#old={old}.js&new={new}.js&metric=speedup")
    browser.wait("document.querySelector('#two')")
    text = browser.ask("document.querySelector('#any-two').textContent")
    assert f"perfdash compare '{old} night' '{new} night'" in text
    assert "(unclipped) over the 3 cases" in text
    assert "Only in the old (1): gone" in text
    cells = "Array.from(row.cells, one => one.textContent)"
    cells = f"Array.from(document.querySelectorAll('#two tbody tr'), row => {cells})"
    rows = json.loads(browser.ask(f"JSON.stringify({cells})"))
    assert rows[0][0] == "bert"
    assert rows[0][5].startswith("fail_accuracy → timeout")
    assert rows[1][:4] == ["resnet18", "2.000x", "1.653x", "0.826"]
    # sqrt(2) times the half width of one: exp(0.01 * sqrt(2)) about the ratio.
    assert rows[1][4] == "0.815 to 0.838"
    assert rows[3][0].startswith("a|b`c`<script>")
    ratio = (1.6529 / 2) ** (1 / 3)
    assert f"new / old {ratio:.3f}" in text
    select = browser.driver.find_elements(By.CSS_SELECTOR, "#any-two select")[2]
    select.send_keys("compilation")
    browser.wait("location.hash.includes('compilation_s')")
    browser.wait("document.querySelector('#two caption').textContent.startsWith('compilation')")
    assert "NaN" not in browser.ask("document.body.textContent")


def test_a_missing_night_says_so(browser, page, tmp_path):  # noqa: F811
    shutil.copytree(page.parent, tmp_path / "copy")
    (tmp_path / "copy" / "data" / "2026-01-02T01-00-00Z_farm.js").unlink()
    address = (tmp_path / "copy" / "compare.html").as_uri()
    browser.open(f"{address}#old=2026-01-02T01-00-00Z_farm.js&new=2026-01-03T01-00-00Z_farm.js")
    assert "could not be loaded" in browser.wait("document.querySelector('#any-two .warn')?.textContent")


@scripted
def test_the_theme_is_chosen_and_kept(browser, at):  # noqa: F811
    address = at()
    open_page(browser, address)
    dark, light = "rgb(16, 21, 27)", "rgb(255, 255, 255)"
    colour = "getComputedStyle(document.body).backgroundColor"
    button = browser.driver.find_element(By.CSS_SELECTOR, "button.theme")
    button.click()
    assert browser.ask(colour) == dark
    open_page(browser, address)
    assert browser.ask(colour) == dark
    browser.driver.find_element(By.CSS_SELECTOR, "button.theme").click()
    browser.scheme("dark")
    assert browser.ask(colour) == light
    browser.driver.find_element(By.CSS_SELECTOR, "button.theme").click()
    assert browser.ask(colour) == dark, "the system's again"
