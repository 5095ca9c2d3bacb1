"""The comment; PERFDASH_UPDATE_GOLDEN=1 writes the golden files anew, to be read in the diff."""

from __future__ import annotations

import math
import os
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from perfdash.detect.comparison import ComparedRuns, compare
from perfdash.history.importers import ImportOptions, dashboard
from perfdash.history.results import Imported
from perfdash.report.cause_text import of_changes
from perfdash.report.changes import MEASURED_AGAIN, REGRESSION, REPAIRED, Machine, RunChange
from perfdash.report.comment import LARGEST, comment, page, whole_report
from perfdash.report.digest import run_digest
from perfdash.report.full_tables import full_tables
from perfdash.report.junit import document
from perfdash.report.markdown import code, escaped, fenced, table
from perfdash.report.night import RUN_BEFORE, Night, headline
from perfdash.report.night_export import to_csv, to_plain
from tests.report.nights import (
    BAD,
    CHANGES,
    GOOD,
    HOSTILE,
    NIGHTS,
    bad_night,
    configurations,
    good_night,
    hostile,
    huge,
    imported,
    row,
)

GOLDEN = Path(__file__).parent / "golden"
REFERENCE = Path(__file__).parents[1] / "fixtures" / "inductor_cpu_dashboard.md"


def rendered(text):
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)


@pytest.mark.parametrize("name", NIGHTS)
def test_golden(name):
    site = "https://perf.example/dash/" if name == "bad_night" else None
    text = comment(NIGHTS[name](), site_url=site)
    path = GOLDEN / f"comment_{name}.md"
    if os.environ.get("PERFDASH_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", NIGHTS)
def test_golden_tables(name):
    text = full_tables(NIGHTS[name]())
    path = GOLDEN / f"tables_{name}.md"
    if os.environ.get("PERFDASH_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", NIGHTS)
def test_every_form_of_every_night(name):
    night = NIGHTS[name]()
    assert "<details>" not in whole_report(night, fold=False)
    assert len(comment(night).encode()) <= LARGEST
    assert page(night).startswith("<!DOCTYPE html>")
    assert len(to_plain(night)["results"]) == len(night.rows)
    assert to_csv(night).count("\n") >= len(night.rows) + 1
    ET.fromstring(document(night.run.name, night.rows, night.changes))


def test_what_is_bad_stands_first():
    assert headline(bad_night()) == (
        "Incomplete (7 of 9 cases), 1 new failure, 1 regression (none new), 1 vanished, 1 fixed, "
        "1 improvement, 1 appeared"
    )
    text = comment(bad_night())
    places = [text.index(f"| {word}") for word in ("new failure", "regression", "improvement", "suite |")]
    assert places == sorted(places)


def test_a_wrong_result_is_never_a_plain_number():
    text = full_tables(bad_night())
    (line,) = re.findall(r"\|\s+wrong\s+\| 1\s+\|\s+(3\.0 \*)\s+\|", text)
    assert line == "3.0 *"


def test_the_legend_of_the_asterisk_has_every_reason():
    disturbed = replace(row("timm", "disturbed", 1.832), verdict="disturbed")
    gave_up = row("timm", "gave_up", 1.732, details={"recompile_limit": True})
    text = full_tables(Night(imported([disturbed, gave_up, row("timm", "quiet", 1.632)])))
    assert "1.832 *" in text
    assert "1.732 *" in text
    assert "1.632 *" not in text
    for words in ("A number with an asterisk is not in the means", "Models that fail"):
        (line,) = [line for line in text.splitlines() if words in line]
        assert "other programs disturbed" in line
        assert "dynamo's limit of recompiles" in line


def test_hostile_names_stay_text():
    """No tag, link, image, mention or reference, and no new row of a table."""
    html = rendered(comment(hostile()))
    assert "<script" not in html
    assert "<img" not in html
    links = re.findall(r'<a href="([^"]*)"', html)
    assert {address.partition("/compare/")[0] for address in links} <= {"https://github.com/pytorch/pytorch"}
    shown = re.sub(r"<code>.*?</code>|<pre>.*?</pre>", "", html, flags=re.DOTALL)
    assert "@team" not in shown
    assert "#12" not in shown
    assert "\u202e" not in html
    for line in re.findall(r"^\|.*$", comment(hostile()), flags=re.MULTILINE):
        assert "\n" not in line
    assert HOSTILE.partition("<")[0] in html.replace("&#124;", "|")


def test_folded_titles_have_no_escapes_of_markdown():
    """GitHub and the page show a summary as the HTML that it is."""
    rows = [row("timm", f"mobile_net_{number}<b> @team #12", 1.2) for number in range(2)]
    changes = [
        replace(CHANGES[1], case=rows[0].case, alert=1),
        replace(CHANGES[1], case=rows[0].case, alert=2),
    ]
    night = Night(imported(rows), tuple(of_changes(changes)), "x")
    (summary,) = re.findall(r"<summary>(timm.*)</summary>", rendered(comment(night)))
    title = "timm/mobile_net_0&lt;b&gt; @<!-- -->team #<!-- -->12 bs 1 15% slower: 2 changes"
    assert summary == title
    assert f"<summary>{title}</summary>" in page(night)
    assert "**timm/mobile_net_0" in comment(night, fold=False)


def test_a_case_that_is_measured_again():
    back = [
        RunChange(REPAIRED, row("timm", name).case, MEASURED_AGAIN, state="fixed", alert=number)
        for number, name in enumerate(("gone", "too"), 1)
    ]
    assert of_changes(back[:1])[0].headline == "timm/gone bs 1 is measured again"
    assert of_changes(back)[0].headline == "2 timm models are measured again"
    faster = [
        replace(CHANGES[1], group=REPAIRED, case=row("timm", name).case, good=None, bad=None, change=-0.14)
        for name in ("gone", "fast")
    ]
    assert [cause.headline for cause in of_changes([*faster, back[0]])] == [
        "timm/gone bs 1 is measured again",
        "2 timm models 13% faster",
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["EPYC"], None),
        (["EPYC", "Xeon"], "seen on 2 machines"),
        (["EPYC", "EPYC", "Xeon"], "seen on 2 machines"),
        (["EPYC", "EPYC"], "seen on one machine with 2 settings"),
    ],
)
def test_the_settings_of_a_machine_are_not_counted_as_machines(settings, words):
    machines = [Machine(str(number), f"{name} {number}", name) for number, name in enumerate(settings)]
    (cause,) = of_changes(CHANGES[1:2])
    members = tuple(replace(cause.members[0], machine=machine) for machine in machines)
    names = tuple(machine.name for machine in machines)
    night = replace(bad_night(), causes=(replace(cause, members=members, machines=names),))
    assert re.findall(r"seen on [a-z0-9 ]*[a-z]", comment(night)) == ([words] if words else [])


def test_long_names_push_nothing_out_of_the_comment():
    """Ten causes and thirty suites, all names of 220 characters: every size and every number stays."""
    rows = [
        row(f"suite_{number:02}_{'s' * 207}end", f"model_{number:02}_{'m' * 207}end") for number in range(40)
    ]
    size = math.log(1.14), (0.1, 0.2)
    change = RunChange(
        REGRESSION, None, "compiled latency", "20 ms", "23 ms", *size, GOOD, BAD, metric="backend_ms"
    )
    changed = [replace(change, case=one.case, alert=place) for place, one in enumerate(rows[:20])]
    causes = [cause for one in changed for cause in of_changes([one])]
    assert of_changes(changed)[0].headline == "20 models of 20 suites 14% slower"
    text = comment(Night(imported(rows), tuple(causes), "x"), site_url="https://perf.example")
    assert len(text.encode()) <= LARGEST
    lines = [line for line in text.splitlines() if line.startswith("| regression")]
    assert lines
    assert all("mmend bs 1 14% slower" in line for line in lines)
    assert all("s…" in line for line in text.splitlines() if line.startswith("| [suite"))
    assert f"And {20 - len(lines)} smaller ones" in text


@given(st.text(max_size=60) | st.text(alphabet="aé1_. \\", max_size=12))
def test_any_text_is_shown_as_it_is(text):
    """A code span and an escaped text in a cell show their text, and nothing else is made of it."""
    html = rendered(table(["a", "b"], [[code(text), escaped(text)]]))
    assert html.count("<td") == 2
    assert not re.search(r"<(?!/?(table|thead|tbody|tr|th|td|code)\b|!-- -->)", html)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("fail_accuracy of n__m2", "fail_accuracy of n__m2"),
        ("_a_ b_ é_é _", r"\_a\_ b\_ é_é \_"),
        ("__a__.", r"\_\_a\_\_."),
    ],
)
def test_only_underscores_that_could_mean_emphasis_are_escaped(text, written):
    assert escaped(text) == written


@given(st.text(alphabet="`x\n", max_size=30))
def test_nothing_ends_a_block_early(text):
    html = rendered(fenced(text) + "\n\nafter")
    assert html.count("<pre>") == 1
    assert "<p>after</p>" in html


def test_as_many_dashboards_as_settings():
    text = whole_report(huge())
    assert text.count("# Performance Dashboard for float32 precision") == 2
    assert "| inductor |" in text
    assert "torchscript" in text
    assert "and 40 more" in text


def test_a_table_of_suites_that_is_cut_says_so(monkeypatch):
    site = "https://perf.example"
    assert "pages of the suites above" in comment(configurations(), site_url=site)
    monkeypatch.setattr("perfdash.report.comment._SHOWN", ((0, 3, 2),))
    text = comment(configurations(), site_url=site)
    assert "and 1 more" in text.partition("<details>")[0], "of three configurations"
    assert "pages of the suites above" not in text


def test_a_quiet_night_says_so():
    assert headline(good_night()) == "Nothing changed"
    assert headline(Night(Imported(good_night().run, ()))) == "Nothing was measured"


def cells(text):
    """{(suite, table, model): [(batch size, cell)]} of a comment in the form of the dashboard."""
    by_title, suite, title = {}, "", ""
    for line in text.splitlines():
        if match := re.match(r"## (\w+) suite with", line):
            suite = {"timm_models": "timm"}.get(match[1], match[1])
        elif line.startswith("|") and suite:
            name, *rest = [cell.strip() for cell in line.strip("|").split("|")]
            if name != "name" and len(rest) == 2:
                by_title.setdefault((suite, title, name), []).append(tuple(rest))
        elif line.strip() and not line.startswith(("+", "```", "|")):
            title = line.strip()
    return by_title


def test_the_reference_dashboard_comes_out_again():
    """All rows of the four tables, equal to the last digit shown."""
    options = ImportOptions(host="aws", host_class="Xeon 8375C", started="2023-01-01")
    (run,) = dashboard.read([REFERENCE], options)
    reference = cells(REFERENCE.read_text())
    titles = {title for _, title, _ in reference}
    ours = {key: value for key, value in cells(full_tables(Night(run))).items() if key[1] in titles}
    assert len(reference) == 159 * 4
    assert ours.keys() == reference.keys()
    for key, ((size, cell),) in reference.items():
        ((our_size, our_cell),) = ours[key]
        counted = our_cell.removesuffix(" *")
        if key[1] == "Accuracy":
            # For some that did not run it has a number instead of a word.
            assert (our_size, counted) == (size, "fail_to_run" if cell == "0.0000" else cell)
            continue
        # The reference writes a number that was not measured 0.0, 0.0000 or nan, with batch size 0.
        if float(cell) == 0 or math.isnan(float(cell)):
            assert counted in ("0.0", "nan")
            assert size == "0"
        else:
            assert (our_size, counted) == (size, cell)


def test_a_comment_that_is_shortened_compares_the_mean_of_each_setting_once(monkeypatch):
    """The baseline may be the runs of a year."""
    compared = []

    def counted(old, new):
        compared.append(new)
        return compare(old, new)

    monkeypatch.setattr("perfdash.report.comment.compare", counted)
    monkeypatch.setattr("perfdash.report.comment.LARGEST", 10)
    comment(configurations())
    assert len(compared) == 6


@pytest.mark.parametrize(
    ("ways", "shown"), [(("default",), 1), (("default", "freezing"), 4)], ids=["one", "several"]
)
def test_mean_speedups_of_different_methods_are_not_compared(ways, shown):
    """On the first night after an upgrade, also with --baseline."""
    settings = {"default": "", "freezing": '{"inductor_config":{"freezing":true}}'}
    rows = [
        row("timm", name, 1.2, configuration=way, settings=settings[way]) for name in "ab" for way in ways
    ]
    tonight = imported(rows)
    before = imported(
        [replace(one, values={**one.values, "speedup": 1.0}) for one in rows], method=tonight.run.method
    )
    earlier = replace(before.run, method={**before.run.method, "speedup": 1})
    alike, other_method = (
        Night(tonight, against="x", baseline=ComparedRuns(RUN_BEFORE, (previous,)))
        for previous in (before, Imported(earlier, before.rows))
    )
    assert comment(alike).count("+20.0%") == shown
    assert "+20.0%" not in comment(other_method)


def test_a_null_far_out_of_bounds_stands_above_the_changes():
    night = bad_night()
    run = replace(night.run, noise={"null": {"worst": 0.176}})
    disturbed = replace(night, imported=replace(night.imported, run=run))
    text = comment(disturbed)
    assert text.splitlines()[2].startswith("**WARNING: this machine was disturbed")
    assert "off by 17.6%" in run_digest(disturbed).mail()
    assert "WARNING" not in comment(night) + run_digest(night).mail()
