"""A browser under the server's own policy: nothing of a page is blocked, the form works without a script."""

import pytest
from selenium.webdriver.common.by import By

from perfdash.serve.server import assets
from tests.browser import browser  # noqa: F401 (fixture)
from tests.serve.served import serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(history):
    with serving(history, files=assets()) as server:
        yield f"http://127.0.0.1:{server.port}"


def test_pages_and_interactive_charts_are_let_through(site, browser):  # noqa: F811
    browser.open(f"{site}/")
    assert browser.complaints() == []
    links = "[...document.querySelectorAll('main a:not(svg a)')].map((one) => one.href)"
    for suite in browser.ask(f"{links}.filter((one) => one.includes('/suites/'))"):
        browser.open(suite)
        # Of several nights: a single one has no chart.
        if page := browser.ask(f"{links}.find((one) => /models.*model3/.test(one))"):
            break
    browser.open(page)
    button = (
        "[...document.querySelectorAll('figcaption button')].find((one) => one.textContent == 'Interactive')"
    )
    browser.wait(f"!!({button})")
    browser.ask(f"({button}).click()")
    browser.wait("!!document.querySelector('.plotly-box .main-svg')")
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
