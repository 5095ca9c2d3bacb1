"""The dashboard's comment: every number of it, and its sums; tables in text."""

import csv
import math
from pathlib import Path

import pytest

from perfdash.errors import UsageError
from perfdash.history.importers import ImportOptions, read
from perfdash.history.importers.dashboard import read_page
from perfdash.history.importers.foreign_files import FilePlace
from perfdash.stats.means import clipped_geometric_mean, geometric_mean

FIXTURES = Path(__file__).parents[1] / "fixtures"
DASHBOARD = FIXTURES / "inductor_cpu_dashboard.md"
SUITES = ("torchbench", "huggingface", "timm")


@pytest.fixture(scope="module")
def imported():
    (run,) = read([DASHBOARD], ImportOptions(started="2023-02-01"))
    return run


def of(imported, suite):
    return [row for row in imported.rows if row.case.suite == suite]


def test_run(imported):
    assert len(imported.rows) == 159
    run = imported.run
    assert (run.origin, run.started, run.name) == (
        "dynamo-dashboard",
        "2023-02-01T00:00:00Z",
        "2023-02-01T00-00-00Z_inductor_cpu_dashboard",
    )
    assert run.host_class == "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz"
    (section,) = run.environment["published"]
    assert section["tables"]["Passrate"]["timm"] == {"inductor": "89%, 54/61"}
    setting = [section[name] for name in ("device", "dtype", "amp_dtype", "threads", "scenario")]
    assert setting == ["cpu", "float32", None, 1, "inference"]
    cases = {row.case for row in imported.rows}
    assert len(cases) == 159
    assert {(c.device, c.dtype, c.threads, c.scenario, c.backend) for c in cases} == {
        ("cpu", "float32", 1, "inference", "inductor")
    }


@pytest.mark.parametrize("suite", SUITES)
def test_every_value_of_the_tables(imported, suite):
    with (FIXTURES / "dashboard" / f"{suite}.csv").open() as file:
        expected = {row["name"]: row for row in csv.DictReader(file)}
    rows = {row.case.model: row for row in of(imported, suite)}
    assert rows.keys() == expected.keys()
    for name, row in rows.items():
        want = expected[name]
        # The speedup table has 0 for what did not run; the accuracy table may know more.
        assert row.case.batch_size == int(want["bs"]) or int(want["bs"]) == 0
        assert row.status == {"0.0000": "fail_to_run"}.get(want["accuracy"], want["accuracy"])
        for metric, column in (
            ("speedup", "speedup"),
            ("compilation_s", "compile_s"),
            ("compression_ratio", "mem_ratio"),
        ):
            number = float(want[column])
            assert row.values.get(metric) == (None if number == 0 or math.isnan(number) else number)


@pytest.mark.parametrize(
    ("suite", "clipped", "unclipped"),
    [("torchbench", 1.04, 0.926), ("huggingface", 1.00, 0.764), ("timm", 1.07, 0.854)],
)
def test_the_published_means_come_out(imported, suite, clipped, unclipped):
    speedups = [
        row.values["speedup"]
        for row in of(imported, suite)
        if row.status in ("pass", "pass_due_to_skip") and "speedup" in row.values
    ]
    assert round(clipped_geometric_mean(speedups), 2) == clipped
    assert round(geometric_mean(speedups), 3) == unclipped


@pytest.fixture
def edited(tmp_path):
    """The dashboard with a text replaced."""

    def edit(old, new, count=1):
        text = DASHBOARD.read_text()
        assert old in text
        path = tmp_path / "comment.md"
        path.write_text(text.replace(old, new, count))
        return path

    return edit


ROW = "|        shufflenet_v2_x1_0         | 1  |  1.4924  |"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (ROW, f"{ROW}\n{ROW}", "line 103: shufflenet_v2_x1_0 again, it is in line 102 too"),
        (ROW, "| shufflenet_v2_x1_0 | 1 |", "line 102: the row has 2 cells, the table 3 columns"),
        (ROW, ROW.replace("1.4924", "-1.4924"), "line 102: speedup is -1.4924, which cannot be"),
        (ROW, "", "line 102: the table before has no end here"),
        (f"{ROW}\n", "", "line 57: the summary says 49 of 54 pass for torchbench, the tables 48 of 54"),
        ("49/54", "50/54", "the summary says 50 of 54"),
        ("Performance speedup", "Performance slowdown", "title is 'Performance slowdown'"),
        (
            "## timm_models suite with float32 precision",
            "## gone",
            "says 54 of 61 pass for timm, the tables 0 of 0",
        ),
        ("-- Single-core Single-thread", "-- Multi-threads", "give --threads"),
        ("iteration of forward pass", "iteration", "does not say the scenario: give --scenario"),
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "a machine", "does not say the device"),
        ("| pass_due_to_skip |", "| passed_by_skip   |", "accuracy is 'passed_by_skip', which no version"),
    ],
)
def test_edited_comments_are_refused(edited, old, new, message):
    with pytest.raises(UsageError, match=message):
        read([edited(old, new)])


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9, 0.98])
def test_a_comment_that_is_cut_off_is_refused(tmp_path, share):
    text = DASHBOARD.read_text()
    path = tmp_path / "comment.md"
    path.write_text(text[: int(len(text) * share)])
    with pytest.raises(UsageError):
        read([path])


def test_line_ends_of_a_browser_do_not_matter(tmp_path, imported):
    path = tmp_path / "inductor_cpu_dashboard.md"
    path.write_bytes(DASHBOARD.read_bytes().replace(b"\n", b"\r\n").rstrip())
    (again,) = read([path], ImportOptions(started="2023-02-01"))
    assert again == type(again)(again.run, imported.rows)


def page(text):
    return read_page((FilePlace(Path("x"), n), line) for n, line in enumerate(text.splitlines(), 1))


def test_drawn_tables_and_those_of_markdown():
    runs_read = page(
        "# One #\n## Two\nA title\n```\n# no heading\n"
        "+---+----+\n| a | b  |\n+---+----+\n| 1 | x y |\n+---+----+\n"
        "```\n# Three\n\nOther\n\n| c | d |\n|:--|---:|\n| 2 | p \\| q |\n| 3 |  |\nend\n"
    ).tables
    assert [(t.headings, t.title, t.columns) for t in runs_read] == [
        (("One", "Two"), "# no heading", ["a", "b"]),
        (("Three",), "Other", ["c", "d"]),
    ]
    assert [cells for _, cells in runs_read[0].rows] == [["1", "x y"]]
    assert [(where.line, cells) for where, cells in runs_read[1].rows] == [
        (18, ["2", "p | q"]),
        (19, ["3", ""]),
    ]


def test_a_table_of_prettytable_is_read():
    from prettytable import PrettyTable, TableStyle

    table = PrettyTable(["name", "speedup"])
    table.add_row(["a", "1.5x"])
    table.add_row(["b", ""])
    drawn = page(f"```\n{table}\n```").tables
    table.set_style(TableStyle.MARKDOWN)
    marked = page(str(table)).tables
    assert [[c for _, c in t.rows] for t in drawn + marked] == [[["a", "1.5x"], ["b", ""]]] * 2
