"""Parts of a long comment: nothing is lost, each is whole by itself and short enough."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prettytable import PrettyTable

from perfdash.report.comment import whole_report
from perfdash.report.comment_splitting import LIMIT, size, split_text
from tests.effort import trials
from tests.report.nights import NIGHTS


def table(rows, first=0, width=20):
    made = PrettyTable(["model", "speedup"])
    for number in range(first, first + rows):
        made.add_row([f"row{number}" + "é" * width, "1.00x"])
    return str(made)


def piped(rows, first=0):
    lines = ["| model | speedup |", "| --- | ---: |"]
    return "\n".join([*lines, *(f"| row{number} | `x\\|y` |" for number in range(first, first + rows))])


def fold(title, body):
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"


def check_whole(part):
    """Fences and folds are closed, in their order; tables have a head, and bordered ones are closed."""
    fence, folds, inside = None, 0, []
    lines = part.split("\n")
    for number, line in enumerate(lines):
        mark = re.match(r"(`{3,}|~{3,})(.*)", line)
        if fence:
            if mark and mark[1][0] == fence[0] and len(mark[1]) >= len(fence) and not mark[2].strip():
                fence = None
                check_bordered(inside)
            else:
                inside.append(line)
        elif mark:
            fence, inside = mark[1], []
        elif line.startswith("<details"):
            folds += 1
            assert "<summary>" in line or lines[number + 1].startswith("<summary>")
        elif line == "</details>":
            folds -= 1
            assert folds >= 0
        elif line.startswith("|") and not lines[number - 1].startswith("|"):
            assert re.fullmatch(r"[| :-]+", lines[number + 1])
    assert fence is None
    assert folds == 0


def check_bordered(lines):
    """Every run of rows begins with border, head, border and is not without rows."""
    text = "".join("b" if line.startswith("+-") else "r" if line.startswith("|") else " " for line in lines)
    for run in text.split():
        assert re.fullmatch(r"(brbr+b?)+", run), lines


def rows_in(text):
    return re.findall(r"row\d+", text)


def test_short_enough_stays_as_it_is():
    assert split_text("a\n\n```\nb") == ["a\n\n```\nb"]
    assert split_text("é" * 500, 1000) == ["é" * 500]


def test_a_table_goes_on_under_its_head():
    text = "# Night\n\n" + fold("timm", f"~~~\n{table(40)}\n~~~") + "\n\nlast words"
    parts = split_text(text, 1200)
    assert len(parts) > 2
    for number, part in enumerate(parts, start=1):
        assert part.startswith(f"*Part {number} of {len(parts)}*\n\n")
        assert size(part) <= 1200
        check_whole(part)
        if "row" in part:
            assert "| speedup |" in part
            assert "<summary>timm</summary>" in part
    assert rows_in("\n".join(parts)) == [f"row{number}" for number in range(40)]
    assert parts[-1].endswith("last words")


def test_a_cut_between_sections_is_preferred():
    text = "\n\n".join(fold(f"suite{number}", f"```\n{table(8, number * 8)}\n```") for number in range(6))
    parts = split_text(text, 2000)
    assert all(part.endswith("</details>") for part in parts)
    assert all(part.count("<details>") == part.count("| speedup |") for part in parts)
    assert sum(part.count("<details>") for part in parts) == 6


def test_a_heading_stays_with_what_follows():
    text = "\n\n".join(f"## Title {number}\n\n" + "word " * 60 for number in range(20))
    for part in split_text(text, 1000):
        assert not re.search(r"## Title \d+$", part.strip())


@pytest.mark.parametrize("limit", [1000, 1340, 2020, 2870])
def test_a_title_stays_with_its_table_below_the_headings(limit):
    suites = [
        f"{title} of row{n}:\n\n```\n{table(5, n)}\n```" for n in range(9) for title in ("Speed", "Memory")
    ]
    text = "\n\n".join(
        ["# inference bfloat16", "## Summary", *suites, "# training float32", "## All", *suites]
    )
    parts = split_text(text, limit)
    for part in parts:
        assert size(part) <= limit
        check_whole(part)
        assert re.match(r"\*Part .*\*\n\n# (inference bf|training f).*\n\n## (Summary|All)\n", part)
        for before, _ in re.findall(r"(.*)\n+(```\n\+)", part):
            assert re.fullmatch(r"(Speed|Memory) of row\d+:", before)
    assert sum(part.count("# inference") for part in parts) > 2
    assert split_text(text) == [text]


@pytest.mark.parametrize("around", ["{}", "```\n{}\n```", "| a |\n| --- |\n| {} |"])
def test_one_monstrous_line(around):
    words = [f"row{number}" for number in range(2000)]
    parts = split_text(around.format(" ".join(words)), 2000)
    assert max(map(size, parts)) <= 2000
    assert rows_in("\n".join(parts)) == words
    for part in parts:
        assert part.count("```") % 2 == 0
    parts = split_text(around.format("😀" * 3000), 1500)
    assert max(map(size, parts)) <= 1500
    assert sum(part.count("😀") for part in parts) == 3000


def test_monstrous_titles_and_heads_are_not_repeated():
    made = PrettyTable(["model" * 100, "speedup"])
    for number in range(50):
        made.add_row([f"row{number}", "1"])
    parts = split_text(fold("title " * 150, f"```\n{made}\n```"), 4000)
    assert max(map(size, parts)) <= 4000
    assert rows_in("\n".join(parts)) == [f"row{number}" for number in range(50)]


def test_lone_surrogates_and_strange_line_ends_do_no_harm():
    parts = split_text("row1\ud800\r\n\x00\u2028" * 300, 1000)
    assert len(rows_in("".join(parts))) == 300


blocks = st.lists(
    st.tuples(st.sampled_from(["words", "bordered", "piped", "fold", "nested", "code"]), st.integers(1, 30)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=trials(60))
@given(blocks, st.integers(2000, 5000))
def test_nothing_is_lost_and_each_part_is_whole(wanted, limit):
    texts, number = [], 0
    for kind, rows in wanted:
        names = [f"row{place}" for place in range(number, number + rows)]
        if kind == "words":
            text = "\n".join(f"{name} of words, with `code` and <b>more</b>" for name in names)
        elif kind == "bordered":
            text = f"~~~\n{table(rows, number)}\n~~~"
        elif kind == "piped":
            text = piped(rows, number)
        elif kind == "code":
            text = "\n".join(["````sh", "```", *(f"{name} </details>" for name in names), "````"])
        elif kind == "fold":
            text = fold("a <b>title</b>", f"```\n{table(rows, number)}\n```\n\n{piped(2, 9990)}")
        else:
            text = fold("outer", fold("inner", f"```\n{table(rows, number)}\n```") + f"\n\n{piped(1, 9990)}")
        texts.append(text)
        number += rows
    text = "\n\n".join(texts)
    parts = split_text(text, limit)
    assert rows_in("\n".join(parts)) == rows_in(text)
    for part in parts:
        assert size(part) <= limit
        check_whole(part)


@pytest.mark.parametrize("limit", [4000, LIMIT])
@pytest.mark.parametrize("name", NIGHTS)
def test_every_kind_of_comment(name, limit):
    text = whole_report(NIGHTS[name]())
    parts = split_text(text, limit)
    lines = [line for line in text.split("\n") if re.match(r"\|.*[0-9]", line)]
    again = [line for part in parts for line in part.split("\n") if re.match(r"\|.*[0-9]", line)]
    heads = {line for line in lines if max(lines.count(line), again.count(line)) > 1}
    assert [line for line in again if line not in heads] == [line for line in lines if line not in heads]
    for part in parts:
        assert size(part) <= limit
        check_whole(part)
