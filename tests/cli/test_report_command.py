"""perfdash report as typed, on runs that were never measured."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET

import pytest


@pytest.mark.slow
def test_every_format(command, farmed):
    comment = command("report", "--site-url", "https://perf.example/")
    assert comment.code == 0, comment.err
    assert comment.out.startswith("# 1 regression")
    assert "timm/model03 bs 1" in comment.out
    assert "https://perf.example/beds/" in comment.out
    assert "<details>" not in command("report", "--format", "markdown").out
    assert command("report", "--format", "html", "--to", "night.html").code == 0
    assert "<table>" in (farmed / "night.html").read_text()
    plain = json.loads(command("report", "--format", "json").out)
    assert (len(plain["results"]), plain["changes"][0]["case"]["model"]) == (24, "model03")
    lines = list(csv.DictReader(command("report", "--format", "csv").out.splitlines()))
    assert (len(lines), lines[0]["status"]) == (24, "pass")
    quiet = ET.fromstring(command("report", "--format", "junit").out.encode())
    assert [suite.get("failures") for suite in quiet] == ["0"]
    assert command("report", "--format", "grid").out.startswith("# Ways to run each model")
    plots = command("report", "--format", "plot-csv", "--to", "plots")
    assert plots.code == 0, plots.err
    assert sorted(path.name for path in (farmed / "plots").iterdir()) == sorted(
        line.rpartition("/")[2] for line in plots.out.split()
    )


def test_a_gate(command, farmed):
    gated = command("report", "--format", "junit", "--fail-on", "regression")
    assert gated.code == 1
    assert "timm/model03 bs 1: compiled latency" in gated.err
    suites = {suite.get("name"): suite.get("failures") for suite in ET.fromstring(gated.out.encode())}
    assert suites == {"timm": "0", "regressions": "1"}


def test_another_baseline(command, farmed):
    result = command("report", "--baseline", "2026-01-01..2026-01-20", "--format", "json")
    assert result.code == 0, result.err
    changes = json.loads(result.out)["changes"]
    assert ("model03", "compiled latency") in [
        (change["case"]["model"], change["what"]) for change in changes
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "nothing"),
        (["2026-01"], "give the id of one of them: id:"),
        (["--format", "pdf"], "not one of comment"),
        (["--format", "plot-csv"], "--to"),
        (["--site-url", "perf.example"], "https://"),
        (["--baseline", "2031-01-01"], "is no run in the history"),
        (["--fail-on", "slower"], "only regression"),
    ],
)
def test_wrong_use(command, farmed, words, message):
    result = command("report", *words)
    assert result.code == 2
    assert message in result.err


def test_what_cannot_be_written(command, farmed):
    (farmed / "file").write_text("")
    result = command("report", "--to", "file/night.md")
    assert result.code == 3
    assert "cannot be written" in result.err


def test_no_run_at_all(command):
    result = command("report")
    assert result.code == 2
    assert "no run 'last'" in result.err


@pytest.mark.slow
def test_the_digest_of_the_last_days(command, farmed):
    done = command("report", "--format", "digest")
    assert done.code == 0
    assert done.out.startswith("perfdash: 7 days to ")
    assert command("report", "--format", "digest", "--days", "30", "--to", "week.txt").code == 0
    assert "30 days to" in (farmed / "week.txt").read_text()
    for words in (["some-run", "--format", "digest"], ["--format", "csv", "--days", "3"]):
        assert command("report", *words).code == 2


def test_a_page_has_its_style_beside_it(command, farmed):
    """Jenkins' policy lets no page have style of its own."""
    assert command("report", "--format", "html", "--to", "night.html").code == 0
    text = (farmed / "night.html").read_text()
    assert '<link rel="stylesheet" href="night.css">' in text
    assert "<style" not in text
    assert "font:" in (farmed / "night.css").read_text()
