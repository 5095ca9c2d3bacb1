"""Reports as HTML files in a real browser, under the policy that each brings: nothing of them is blocked."""

from __future__ import annotations

import pytest

from perfdash.bisection.journal import read
from perfdash.bisection.replay import Bisection
from perfdash.bisection.result import result_of
from perfdash.report import bisection_report, comment
from perfdash.report.markdown import STYLE
from tests.bisection.scripted import Script, bisected
from tests.browser import browser, serve  # noqa: F401 (fixtures)
from tests.report.nights import bad_night

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("world", ["file", "http"])
@pytest.mark.parametrize("style", [None, "night.css"])
def test_a_night(browser, serve, tmp_path, world, style):  # noqa: F811
    (tmp_path / "night.css").write_text(STYLE)
    (tmp_path / "night.html").write_text(comment.page(bad_night(), style=style))
    folder = serve(tmp_path) if world == "http" else tmp_path.as_uri()
    browser.open(f"{folder}/night.html")
    assert browser.ask("getComputedStyle(document.querySelector('td')).borderStyle") == "solid"
    assert browser.ask("getComputedStyle(document.querySelector('td.right')).textAlign") == "right"
    assert [line for line in browser.complaints() if "favicon" not in line] == []


def test_a_bisection(browser, tmp_path):  # noqa: F811
    bisected(Script.step(100, at=63, by=1.08, metric="backend"), tmp_path)
    result = result_of(Bisection(read(tmp_path)))
    (tmp_path / "bisection.html").write_text(bisection_report.page(result))
    browser.open((tmp_path / "bisection.html").as_uri(), width=360)
    assert browser.sideways() == 0
    words = "[...document.querySelectorAll('figure svg text')]"
    heights = f"{words}.map((one) => one.getBoundingClientRect().height)"
    assert browser.ask(f"Math.min(...{heights})") >= 9, "words of the axes are readable on a phone"
    assert browser.complaints() == []
