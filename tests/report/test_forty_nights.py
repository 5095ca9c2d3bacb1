"""What people read after forty nights of 90 models with two open causes, a suspected one and two failures."""

from __future__ import annotations

from datetime import datetime

import pytest

from perfdash.history.ingest import take_in
from perfdash.history.store import open_store
from perfdash.owners import read_owners
from perfdash.publish.tracked_regressions import tracked_regressions
from perfdash.report import night as nights
from perfdash.report.comment import LARGEST, comment
from perfdash.report.digest import run_digest
from perfdash.report.weekly_digest import weekly_digest
from tests.detect.simulated import forty_nights, judge_last


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    where = str(tmp_path_factory.mktemp("forty") / "history.db")
    with open_store(where) as store:
        take_in(store, forty_nights())
        judge_last(store, 13)
    return where


@pytest.fixture(scope="module")
def last_night(address):
    with open_store(address) as store, store.read() as connection:
        return nights.of_history(connection, forty_nights()[-1])


@pytest.mark.slow
def test_the_comment_names_each_cause_once(last_night):
    text = comment(last_night, site_url="https://perf.example/")
    assert len(text.encode()) <= LARGEST
    assert text.splitlines()[0] == (
        "# 2 new failures, 2 regressions (44 models, none new), 1 suspected regression (5 models)"
    )
    lines = [line for line in text.splitlines() if "https://perf.example/causes/" in line]
    assert len(lines) == 4
    for line, words in zip(
        lines,
        (
            ("2 timm models fail: crash", "2026-02-09", "held 1 night"),
            ("36 timm models 14% slower", "2026-01-29", "held 12 nights", "compiler"),
            ("8 timm models 10% slower", "2026-02-04", "held 6 nights", "compiler"),
            ("5 timm models 25% slower", "2026-02-09", "suspected (to be measured again)"),
        ),
        strict=True,
    ):
        for word in words:
            assert word in line


def test_all_members_have_the_range_of_their_cause(last_night):
    for cause in last_night.causes:
        assert len(cause.between) == 1
        assert cause.bad is not None
        assert {line.split(":")[0] for line in cause.changed} == {"torch"}


def test_one_issue_for_each_confirmed_cause(address, last_night):
    issues = tracked_regressions(last_night, address, None).issues
    assert [(issue.title, len(issue.alerts)) for issue in issues if issue.open] == [
        ("Regression: 36 timm models 14% slower", 36),
        ("Regression: 8 timm models 10% slower", 8),
    ]


def test_mail_has_a_line_for_each_cause(last_night):
    lines = [line for line in run_digest(last_night).lines if line.startswith("- ")]
    assert len(lines) == 4


def test_the_week(address):
    owners = read_owners({"timm": "alice"}, "perfdash.toml")
    with open_store(address) as store, store.read() as connection:
        digest = weekly_digest(
            connection, datetime(2026, 2, 9, 8), 7, owners=owners, site_url="https://x.example"
        )
        quiet = weekly_digest(connection, datetime(2026, 1, 1, 8), 7)
    assert digest.title == "perfdash: 7 days to 2026-02-09: 3 came, 0 fixed, 4 open"
    text = digest.mail()
    assert "- 8 timm models 10% slower, since 2026-02-04, held 6 nights, compiler [alice]" in text
    assert "- 11 days: 36 timm models 14% slower" in text
    assert text.count("backend_ms") == 0
    assert "Noisiest series, with the noise of a night:" in text
    assert "https://x.example/index.html" in text
    assert quiet.title.endswith("4 came, 0 fixed, 4 open"), "all of them are later than this day"
