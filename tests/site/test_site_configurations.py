"""The page of configurations beside each other: what differs, and which outcome is the better one."""

from __future__ import annotations

import re

import pytest

from perfdash.history.ingest import take_in
from perfdash.history.results import Row
from perfdash.history.store import open_store
from perfdash.records import Case
from tests.history.made import run
from tests.site.stored import FIRST, built, check, result

CONFIGURATIONS = (("default", ""), ("freezing", '{"inductor_config":{"freezing":true}}'))
# A model's outcomes under default and under freezing.
OUTCOMES = {
    "same": ("pass", "pass"),
    "left_out": ("pass", "skipped"),
    "another_night": ("not_tonight", "pass"),
    "waits": ("crash", "not_tonight"),
    "broken": ("pass", "fail_to_run"),
    "mended": ("crash", "pass"),
    "fails_otherwise": ("crash", "oom"),
}


def outcome(model: str, place: int) -> Row:
    configuration, settings = CONFIGURATIONS[place]
    case = Case("timm", model, configuration=configuration, settings=settings)
    status = OUTCOMES[model][place]
    if status in ("skipped", "not_tonight"):
        return Row(case, status, {}, details={"skip_reason": "no time"})
    return result(case, status=status)


@pytest.fixture
def lines(tmp_path):
    """The lines of the table of models that differ, by model."""
    rows = [outcome(model, place) for model in OUTCOMES for place in range(2)]
    with open_store(str(tmp_path / "history.db")) as store:
        take_in(store, [run(str(FIRST), rows)])
        folder = built(store, tmp_path / "site")
    check(folder)
    (page,) = folder.glob("beds/*/configurations.html")
    table = page.read_text().partition('id="differing"')[2]
    return dict(re.findall(r'<tr><th scope="row">(\w+) (.*?)</tr>', table, re.DOTALL))


def test_what_was_not_run_differs_from_nothing(lines):
    assert set(lines) == {"broken", "mended", "fails_otherwise"}


@pytest.mark.parametrize(
    ("model", "badge"),
    [
        ("broken", 'badge worse">fail to run<'),
        ("mended", 'badge better">pass<'),
        ("fails_otherwise", 'badge info">oom<'),
    ],
)
def test_the_badge_says_which_side_passes(lines, model, badge):
    assert badge in lines[model]
    assert lines[model].count("badge ") == 1
