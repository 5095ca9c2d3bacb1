"""The issue of a regression; PERFDASH_UPDATE_GOLDEN=1 writes the golden files anew."""

import re
from dataclasses import replace
from html import unescape

import pytest
from markdown_it import MarkdownIt

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.history.alert_store import DISMISSED, FIXED, REOPENED
from perfdash.report.alert_text import alert_list
from perfdash.report.cause_text import of_changes
from perfdash.report.changes import REGRESSION, of_alert
from perfdash.report.comment import comment
from perfdash.report.digest import run_digest
from perfdash.report.issue_text import blame, body, note, title
from tests.history.made import case, with_worker
from tests.report.golden_files import golden
from tests.report.nights import good_night
from tests.report.shown_alerts import BAD, GOOD, SHOWN, SLOWER

HOSTILE = "a|b`c``@all #1 <script>alert(1)</script> ![x](http://x/y) https://x.example \n\x1b[31m \u202e 😀"


def rendered(text):
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


@pytest.mark.parametrize("place", range(len(SHOWN)))
def test_golden(place):
    evidence = SHOWN[place]
    page = "https://perf.example/beds/x/models/y.html" if evidence.case else None
    text = f"{title(evidence)}\n\n{body(evidence, page=page)}\n"
    notes = [
        note(replace(evidence, alert=replace(evidence.alert, state=s))) for s in (FIXED, DISMISSED, REOPENED)
    ]
    golden(f"issue_text_{evidence.alert.kind}.md", text + "\n".join(notes) + "\n")
    assert "\n" not in title(evidence)


def test_nothing_that_a_model_is_called_becomes_markup():
    hostile = case(HOSTILE, backend=HOSTILE)
    evidence = AlertEvidence(
        replace(SLOWER, details={"changed": [HOSTILE, "```\n</details>"]}), hostile, GOOD, BAD, None
    )
    html = rendered(body(evidence) + note(evidence))
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
    head = title(evidence)
    assert len(head) <= 200
    assert not set(head) & set("\n\x1b\u202e`")


def test_the_culprit_is_reported_and_becomes_no_markup():
    commits = [{"label": "c" * 10, "title": HOSTILE, "author": HOSTILE}]
    culprit = {"word": "found", "culprits": [{"commits": commits, "of": 1, "confirmed": "confirmed"}]}
    evidence = AlertEvidence(replace(SLOWER, details={"bisected": culprit}), case("x"), GOOD, BAD, None)
    change = replace(of_alert(evidence, 11), group=REGRESSION)
    night = replace(good_night(), causes=tuple(of_changes([change])))
    for text in (body(evidence), comment(night), blame(evidence)):
        (line,) = [line for line in text.splitlines() if "culprit: cccccccccc" in line]
        assert "@all" not in line
        assert "#1" not in line
        html = rendered(text)
        assert "cccccccccc a|b`c``@" in unescape(html).replace("<!-- -->", "")
        assert not re.search("<script|<img|<a [^>]*x.example", html)
        assert html.count("<table>") == {blame(evidence): 0, comment(night): 2}.get(text, 1)
    (line,) = [line for line in alert_list([evidence]).splitlines() if "culprit" in line]
    assert "\x1b" not in line
    assert "culprit: cccccccccc a|b" in run_digest(night).mail()


def test_what_is_not_known_is_not_made_up():
    bare = AlertEvidence(
        replace(SLOWER, details={}, before=None, after=None, p=None), case("x"), None, None, None
    )
    text = body(bare)
    assert "its interval is not known" in text
    assert "not known" in text
    assert "nan" not in text.lower()
    assert "None" not in text
    strange = replace(SLOWER, change=float("nan"), before=float("nan"), after=float("inf"), p=float("nan"))
    text = body(AlertEvidence(strange, case("x"), None, None, None))
    assert "nan" not in text
    assert "inf " not in text


def test_output_of_a_failing_model():
    text = body(SHOWN[2], error="RuntimeError: @all\n```\n<b>\x1b" + "x" * 500)
    assert "````\nRuntimeError: @all\n```\n<b>\\u001b" in text
    assert max(map(len, text.splitlines())) < 400


def test_commits_of_torch_are_linked_where_they_are_two():
    assert f"compare/{'a' * 12}...{'b' * 12}" in body(SHOWN[0])
    assert "compare/" not in body(replace(SHOWN[0], good=BAD))
    assert "compare/" not in body(replace(SHOWN[0], good=with_worker(GOOD, torch_git_version="../../x")))
