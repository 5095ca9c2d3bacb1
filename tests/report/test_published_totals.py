"""An imported dashboard shows its own sums beside perfdash's."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.detect.environment_changes import machine_changes
from perfdash.history.importers import ImportOptions, read
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs, rows_of
from perfdash.report.dashboard_tables import DashboardSetting
from perfdash.report.full_tables import full_tables
from perfdash.report.night import Night
from perfdash.report.published_totals import published
from perfdash.report.terminal_tables import run_rows
from tests.history.made import row
from tests.site.stored import Page, built
from tests.stores import made_store

DASHBOARD = Path(__file__).parents[1] / "fixtures" / "inductor_cpu_dashboard.md"


@pytest.fixture(scope="module")
def imported():
    (run,) = read([DASHBOARD], ImportOptions(started="2023-02-01"))
    return run


@pytest.fixture(scope="module")
def lines(imported):
    """The cells of each line of the table."""
    text = published(imported.run.environment, imported.rows)
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]


def below(lines, title):
    place = next(number for number, line in enumerate(lines) if line[0] == title)
    return lines[place : place + 3]


def test_pass_rates(lines):
    theirs, again, ours = below(lines, "Passrate")
    assert theirs[1:3] == ["published", "91%, 49/54"]
    assert again[1:3] == ["its rules, its rows", "49/54"]
    assert ours[1:3] == ["perfdash", "90%, 46/51 (+3 not checked)"]


def test_means(lines):
    theirs, again, ours = below(lines, "Geometric mean speedup")
    assert theirs[2:] == ["1.04x", "1.00x", "1.07x"]
    assert again[2] == "1.04x clipped, 0.926x not"
    assert ours[2] == "0.936x (46 cases)"
    for title in (
        "Mean compilation time (seconds)",
        "Peak memory footprint compression ratio (higher is better)",
    ):
        theirs, again, _ = below(lines, title)
        assert [float(cell.strip("x")) for cell in again[2:]] == pytest.approx(
            [float(cell.strip("x")) for cell in theirs[2:]], abs=0.011
        )


def test_it_says_why_they_differ(imported):
    text = published(imported.run.environment, imported.rows)
    assert "not clipped" in text
    assert re.search(r"counts \d+ cases as passed whose outputs were not checked \(pass_due_to_skip\)", text)


def test_it_is_in_the_comment(imported):
    text = full_tables(Night(imported))
    assert "What the source published, and what perfdash makes of its rows" in text
    assert "49/54" in text


FLOAT32 = "Performance Dashboard for float32 precision -- Single-core Single-thread"
BFLOAT16 = FLOAT32.replace("float32", "bfloat16")


def shown(tmp_path, edit):
    """What `history show` shows of the sums, by setting: of the dashboard, and again in bfloat16, edited."""
    text = DASHBOARD.read_text()
    again = text[text.index(f"# {FLOAT32}") :].replace("float32", "bfloat16")
    path = tmp_path / "two.md"
    path.write_text(f"{text}\n{edit(again)}")
    with made_store(tmp_path / "h.db") as store:
        take_in(store, read([path], ImportOptions(started="2023-02-01")))
        with store.read() as connection:
            (line,) = list_runs(connection)
            parts = run_rows(line, rows_of(connection, line.id)).split("What the source published")
    return {part.partition("\n")[0].removeprefix(": "): part for part in parts[1:]}


def test_two_sections_each_beside_its_own_rows(tmp_path):
    output = shown(tmp_path, lambda again: again.replace("1.07x", "1.27x"))
    assert {title: "1.27x" in part for title, part in output.items()} == {FLOAT32: False, BFLOAT16: True}


def test_sums_of_one_of_two_sections_are_not_the_others(tmp_path):
    def without_sums(again):
        return again[: again.index("Passrate")] + again[again.index("## torchbench suite") :]

    assert list(shown(tmp_path, without_sums)) == [FLOAT32]


def test_sections_of_other_settings_are_found_by_their_rows(tmp_path):
    """The headings do not name 56 threads as perfdash does, nor the dtype of autocast."""
    text = DASHBOARD.read_text().replace("Single-core Single-thread", "Single-socket Multi-threads")
    again = text[text.index("# Performance Dashboard") :].replace("float32", "amp").replace("1.07x", "1.27x")
    path = tmp_path / "two.md"
    path.write_text(f"{text}\n{again}")
    options = ImportOptions(started="2023-02-01", threads=56, amp_dtype="bfloat16")
    with made_store(tmp_path / "h.db") as store:
        take_in(store, read([path], options))
        with store.read() as connection:
            (line,) = list_runs(connection)
            output = run_rows(line, rows_of(connection, line.id))
        folder = built(store, tmp_path / "site")
    assert output.count("49/54") == 4, "published, and its rules, of both"
    for dtype, mean in (("float32", "1.07x"), ("amp-bfloat16", "1.27x")):
        (page,) = folder.glob(f"beds/*/suites/timm_cpu_{dtype}_t56_*.html")
        assert f"Geometric mean speedup {mean}" in Page(page).text


def test_sections_that_were_stored_by_their_headings_keep_their_sums(imported):
    ((section,), rows) = imported.run.environment["published"], imported.rows
    other = {"Passrate": {"timm": {"inductor": "1%, 1/100"}}}
    text = published(
        {"published": {FLOAT32: section["tables"], BFLOAT16: other}}, rows, DashboardSetting.of(rows[0])
    )
    assert "89%, 54/61" in text
    assert "1/100" not in text


def test_published_sums_are_no_change_of_the_machine(imported):
    old = imported.run
    published = [{**section, "tables": {}} for section in old.environment["published"]]
    new = replace(old, environment={**old.environment, "published": published})
    assert machine_changes(old, new) == []
    by_heading = replace(old, environment={**old.environment, "published": {FLOAT32: {}}})
    assert machine_changes(by_heading, new) == []


def test_a_source_without_sums():
    assert published({}, [row()]) == ""
    assert published({"published": None}, [row()]) == ""
