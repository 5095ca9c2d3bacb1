"""The issue of a regression; PERFDASH_UPDATE_GOLDEN=1 writes the golden files anew."""

from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from test_alerts import BAD, GOOD, SHOWN, SLOWER, golden

from perfdash.detect.evidence import Evidence
from perfdash.history.alerts import DISMISSED, FIXED, REOPENED
from perfdash.report.regression_issue import body, note, title
from tests.history.made import case

HOSTILE = "a|b`c``@all #1 <script>alert(1)</script> ![x](http://x/y) https://x.example \n\x1b[31m \u202e 😀"


def rendered(text):
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


@pytest.mark.parametrize("place", range(len(SHOWN)))
def test_golden(place):
    each = SHOWN[place]
    page = "https://perf.example/beds/x/models/y.html" if each.case else None
    text = f"{title(each)}\n\n{body(each, page=page, ran=('perfdash', 'run', '--suite', 'mine.toml'))}\n"
    notes = [note(replace(each, alert=replace(each.alert, state=s))) for s in (FIXED, DISMISSED, REOPENED)]
    golden(f"regression_issue_{each.alert.kind}.md", text + "\n".join(notes) + "\n")
    assert "\n" not in title(each)


def test_nothing_that_a_model_is_called_becomes_markup():
    hostile = case(HOSTILE, backend=HOSTILE)
    each = Evidence(
        replace(SLOWER, details={"changed": [HOSTILE, "```\n</details>"]}), hostile, GOOD, BAD, None
    )
    html = rendered(body(each) + note(each))
    assert "<script" not in html
    assert "<img" not in html
    assert "</details" not in html
    assert html.count("<a ") <= 1  # to the commits
    assert html.count("<table>") == 1
    outside = html
    for mark in ("code", "pre"):
        while f"<{mark}>" in outside:
            before, _, rest = outside.partition(f"<{mark}>")
            outside = before + rest.partition(f"</{mark}>")[2]
    assert "@all" not in outside
    assert "#1" not in outside
    head = title(each)
    assert len(head) <= 200
    assert not set(head) & set("\n\x1b\u202e`")


def test_what_is_not_known_is_not_made_up():
    bare = Evidence(replace(SLOWER, details={}, before=None, after=None, p=None), case("x"), None, None, None)
    text = body(bare)
    assert "its interval is not known" in text
    assert "not known" in text
    assert "nan" not in text.lower()
    assert "None" not in text
    strange = replace(SLOWER, change=float("nan"), before=float("nan"), after=float("inf"), p=float("nan"))
    text = body(Evidence(strange, case("x"), None, None, None))
    assert "nan" not in text
    assert "inf " not in text


def test_what_a_failing_model_said():
    text = body(SHOWN[2], error="RuntimeError: @all\n```\n<b>\x1b" + "x" * 500)
    assert "````\nRuntimeError: @all\n```\n<b>\\u001b" in text
    assert max(map(len, text.splitlines())) < 400


def test_commits_of_torch_are_linked_where_they_are_two():
    assert f"compare/{'a' * 12}...{'b' * 12}" in body(SHOWN[0])
    assert "compare/" not in body(replace(SHOWN[0], good=BAD))
    assert "compare/" not in body(replace(SHOWN[0], good=replace(GOOD, torch_git_version="../../x")))
