"""A night in a few lines; PERFDASH_UPDATE_GOLDEN=1 writes the golden files anew."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.metrics import METRICS
from perfdash.records import Case
from perfdash.report.cause_text import of_changes
from perfdash.report.changes import REPAIRED, RunChange
from perfdash.report.comment import comment
from perfdash.report.digest import broken_nightly, run_digest
from perfdash.report.night_export import plot_csv
from tests.report.nights import (
    CHANGES,
    NIGHTS,
    bad_night,
    first_night,
    good_night,
    hostile,
    huge,
    imported,
    row,
)

GOLDEN = Path(__file__).parent / "golden"
SITE = "https://perf.example/dash"


def golden(name, text):
    path = GOLDEN / name
    if os.environ.get("PERFDASH_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_golden():
    changes = (replace(CHANGES[1], notes=("culprit: 0123456789ab Slower by Ann (confirmed)",)), *CHANGES[2:])
    story = "Before this nightly: 2026-11-19 partial (timm cpu amp)"
    night = replace(bad_night(), causes=tuple(of_changes(changes)), nightly=story)
    golden("digest_mail.txt", run_digest(night, site_url=SITE, link="https://ci.example/12?a=1&b=2").mail())
    golden("digest_chat.txt", run_digest(night, site_url=SITE, link="https://ci.example/12?a=1&b=2").chat())
    golden("digest_broken.txt", broken_nightly("stage torch failed: no wheel\n\n<!channel>").chat())


@pytest.mark.parametrize("name", NIGHTS)
def test_every_night_is_short(name):
    text = run_digest(NIGHTS[name](), site_url=SITE)
    assert len(text.chat()) < 10_000
    assert text.mail().startswith(text.title)
    assert text.title.startswith("perfdash: ")


def test_a_quiet_night():
    text = run_digest(good_night())
    assert text.title == "perfdash: Nothing changed"
    assert len(text.lines) == 3
    assert text.lines[1] == "5 of 5 cases pass."
    assert text.links == ()


def test_a_first_night_on_which_all_fails_says_so():
    crashes = imported([row("timm", f"model{number}", status="crash") for number in range(12)])
    text = run_digest(replace(first_night(), imported=crashes))
    assert text.title == "perfdash: No case passes, not compared with other runs"
    assert "0 of 12 cases pass." in text.lines


@pytest.mark.parametrize(("other", "passes"), [(None, None), ("crash", 0), ("pass", 1), ("skipped", None)])
def test_what_the_machine_lost_is_not_counted_as_failing(other, passes):
    lost = [row("timm", f"model{number}", status="infra_error") for number in range(6)]
    rows = [*lost, row("timm", "other", status=other)] if other else lost
    text = run_digest(replace(first_night(), imported=imported(rows)))
    counted = [one for one in text.lines if "cases pass" in one]
    assert counted == ([] if passes is None else [f"{passes} of 1 cases pass."])
    assert "6 cases failed because of the machine" in text.title


def test_all_reports_count_passes_alike_where_the_machine_lost_a_case():
    statuses = {"a": "pass", "b": "pass", "lost": "infra_error", "wrong": "fail_accuracy"}
    rows = [row("timm", model, status=status) for model, status in statuses.items()]
    night = replace(first_night(), imported=imported(rows))
    assert "2 of 3 cases pass." in run_digest(night).lines
    assert "| 67%, 2/3 (+1 failed because of the machine) |" in comment(night)
    assert float(plot_csv(rows)["pass_rate_percent.csv"].split()[-1]) == pytest.approx(200 / 3, rel=1e-3)


def test_cases_that_the_hours_left_out_are_counted():
    rows = [
        *(row("timm", f"model{number}") for number in range(4)),
        *(row("timm", f"late{number}", status="not_tonight") for number in range(6)),
    ]
    text = run_digest(replace(good_night(), imported=imported(rows)))
    assert text.lines[1:3] == (
        "4 of 4 cases pass.",
        "6 of 10 cases were not measured tonight: the hours went to others.",
    )


def test_a_failure_is_new_on_its_first_night_only():
    def heading(*fresh):
        changes = [replace(CHANGES[0], fresh=one, case=Case("timm", f"m{one}")) for one in fresh]
        lines = run_digest(replace(good_night(), causes=tuple(of_changes(changes)))).lines
        return lines[lines.index("") + 1]

    assert heading(True) == "New failures:"
    assert heading(False) == "Failing:"
    assert heading(True, False) == "Failing:"


def test_many_changes_of_one_cause_are_one_line():
    (line,) = [line for line in run_digest(huge()).lines if line.startswith("- ")]
    assert line.startswith("- 60 models (30 huggingface, 30 timm) 15% slower, since 2026-11-20")


def test_each_kind_of_fix_is_a_line():
    def fixed(model, metric, change=None, before="", after=""):
        what = "status" if metric == "status" else METRICS[metric].title
        case = Case("timm", model)
        return RunChange(REPAIRED, case, what, before, after, change, state="fixed", metric=metric)

    changes = [
        fixed("a", "status", before="crash", after="pass"),
        fixed("b", "status", before="oom", after="pass"),
        fixed("swin", "backend_ms", -0.1),
        fixed("vit", "eager_ms", -0.2),
    ]
    text = run_digest(replace(good_night(), causes=tuple(of_changes(changes))))
    assert text.title == "perfdash: 4 fixed"
    assert [line for line in text.lines if line.startswith("- ")] == [
        "- 2 timm models work again",
        "- timm/vit bs 1 18% faster in eager",
        "- timm/swin bs 1 10% faster",
    ]


def test_what_is_acknowledged_is_not_reported():
    assert "graph breaks" not in run_digest(bad_night()).mail()


def test_hostile_names_stay_in_their_block():
    night = replace(hostile(), against="```\n<!channel> @all [x](http://e.vil)\n```")
    text = run_digest(night).chat()
    assert text.count("```") == 2
    before, inside, after = text.split("```")
    assert after == ""
    assert "e.vil" not in before
    assert "<" not in text
    assert "\u202e" not in text
    assert "&lt;!channel&gt;" in inside


def test_a_long_story_is_cut():
    text = broken_nightly("\n".join(f"line {number} " + "x" * 999 for number in range(99)))
    assert len(text.lines) == 21
    assert text.lines[-1] == "and 79 more lines"
    assert broken_nightly("").mail() == "perfdash: the nightly broke\n\n"
