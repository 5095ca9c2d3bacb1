"""A browser under the server's own policy: nothing of a page is blocked, the form works without a script."""

import re

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from perfdash.serve.server import assets
from tests.browser import browser  # noqa: F401 (fixture)
from tests.serve.served import serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(history):
    with serving(history, files=assets()) as server:
        yield f"http://127.0.0.1:{server.port}"


def test_every_kind_of_page_is_let_through(site, browser):  # noqa: F811
    seen, left = set(), [f"{site}/"]
    links = "[...document.querySelectorAll('a:not(svg a)')].map((one) => one.href)"
    while left:
        browser.open(left.pop())
        browser.wait("window.perfdash && document.readyState == 'complete'")
        assert browser.complaints() == [], browser.driver.current_url
        for address in browser.ask(links):
            if match := re.fullmatch(rf"{site}/(?:beds/\w+/)?([a-z]+(?:/|\.html)).*", address):
                if match[1] not in seen:
                    left.append(address)
                seen.add(match[1])
    assert seen == {
        "index.html", "compare.html", "regressions.html", "machines.html", "method.html",
        "configurations.html", "causes/", "suites/", "models/",
    }  # fmt: skip


def test_keys_go_along_a_chart_under_the_policy(site, browser):  # noqa: F811
    browser.open(f"{site}/")
    links = "[...document.querySelectorAll('main a:not(svg a)')].map((one) => one.href)"
    for suite in browser.ask(f"{links}.filter((one) => one.includes('/suites/'))"):
        browser.open(suite)
        # Of several nights: a single one has no chart.
        if page := browser.ask(f"{links}.find((one) => /models.*model3/.test(one))"):
            break
    browser.open(page)
    drawing = "document.querySelector('figure.chart svg.trend[tabindex]')"
    browser.wait(f"!!{drawing}")
    browser.ask(f"{drawing}.focus()")
    browser.driver.switch_to.active_element.send_keys(Keys.END)
    tip = "document.querySelector('.tip:not([hidden])')"
    assert "2026-10-24" in browser.wait(f"{tip}?.textContent")
    assert browser.ask(f"getComputedStyle({tip}).left") != "0px", (
        "the policy stops the script from placing it"
    )
    assert browser.complaints() == []


def test_two_windows_are_compared_by_the_form(site, browser):  # noqa: F811
    browser.open(f"{site}/compare.html", width=400, height=800, scheme="dark")
    for name, text in (("old", "2026-10-08..2026-10-13"), ("new", "2026-10-15..2026-10-20")):
        browser.driver.find_element(By.NAME, name).send_keys(text)
    browser.driver.find_element(By.CSS_SELECTOR, "form button").click()
    browser.wait("!!document.getElementById('changes')")
    assert "old=2026-10-08..2026-10-13" in browser.driver.current_url
    assert "model3" in browser.driver.find_element(By.ID, "changes").text
    assert browser.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.complaints() == []
