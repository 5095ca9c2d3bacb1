"""A night for programs, and addresses and names that would break what they stand in."""

from __future__ import annotations

import csv
import io
import json

import pytest
from markdown_it import MarkdownIt

from perfdash.history.pass_rates_and_means import summarize
from perfdash.report.markdown import link
from perfdash.report.night import Night
from perfdash.report.night_export import to_csv, to_plain
from tests.report.nights import imported, row


def test_a_name_is_one_cell_whatever_is_in_it():
    names = ["lone \ud800 half", "a\rb", "a\nb", "\x00\x1b", "\t=1+1", "=1+1", "x" * 300, "模型 🚀", 'a,"b']
    text = to_csv(Night(imported([row("timm", name) for name in names])))
    read = list(csv.DictReader(io.StringIO(text.encode().decode(), newline="")))
    assert [line["model"] for line in read] == [
        r"lone \ud800 half", r"a\u000db", r"a\u000ab", r"\u0000\u001b", r"\u0009=1+1", "'=1+1", "x" * 300,
        "模型 🚀", 'a,"b',
    ]  # fmt: skip
    assert len(text.splitlines()) == len(names) + 1
    assert {line["eager_ms"] for line in read} == {"12.0"}


def test_every_result_has_its_command():
    night = Night(imported([row("timm", "a")]))
    (result,) = json.loads(json.dumps(to_plain(night)))["results"]
    assert result["command"].startswith("perfdash run --suite timm --models a --batch-size 1 ")
    (result,) = to_plain(Night(imported([row("timm", "a")], origin="dynamo-csv")))["results"]
    assert result["command"] is None


def test_a_pass_that_counts_in_no_mean_is_marked():
    limited = row("timm", "a", details={"recompile_limit": "reached"})
    night = Night(imported([limited, row("timm", "b")]))
    assert [line["remark"] for line in csv.DictReader(io.StringIO(to_csv(night)))] == ["recompile limit", ""]
    assert [result["remark"] for result in to_plain(night)["results"]] == ["recompile limit", None]


def test_eager_against_itself_has_means():
    means = summarize([row("timm", name, 1.01, backend="eager", graphs=0, calls_captured=0) for name in "ab"])
    assert (means.measured, means.passed) == (2, 2)
    assert means.speedup == pytest.approx(1.01)


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("https://p.example/a b/i.html", "https://p.example/a%20b/i.html"),
        ("https://p.example/a)b", "https://p.example/a%29b"),
        ("https://p.example/a(b", "https://p.example/a%28b"),
        ("https://p.example/a%20b?x=1&y=~#z", "https://p.example/a%20b?x=1&y=~#z"),
        ("https://p.example/\n<`|\\", "https://p.example/%0A%3C%60%7C%5C"),
    ],
)
def test_an_address_ends_where_it_ends(address, written):
    assert link("t", address) == f"[t]({written})"
    html = MarkdownIt("commonmark").render(link("t", address))
    assert html == f'<p><a href="{written.replace("&", "&amp;")}">t</a></p>\n'


def test_no_address_no_link():
    assert link("`t`", None) == "`t`"
