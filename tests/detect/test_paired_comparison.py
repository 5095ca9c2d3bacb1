"""What pairs of runs of two builds decide: a change, none, or neither yet."""

import math
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from perfdash.detect.comparison import COMPARED, ComparedRuns, compare
from perfdash.detect.confirmation import PairedResult
from perfdash.detect.paired_comparison import (
    FALSE_CHANGE,
    false_alarm_of,
    is_enough,
    paired_deltas,
    paired_status,
)
from perfdash.errors import UsageError
from perfdash.report.comment import comment
from perfdash.report.comparison_text import comparison as comparison_text
from perfdash.report.comparison_text import to_plain
from perfdash.report.gates import comparison_gate
from perfdash.report.junit import write_comparison
from perfdash.report.night import against, compared_with, headline
from tests.history.made import row, run, with_worker

ALPHA = false_alarm_of(10)


def runs(rng, count, change=0.0, sd=0.01, metric="backend_ms", status="pass", clean=True):
    def side(level):
        values = {metric: level * math.exp(rng.normal(0, sd)), "calls_captured": 3.0}
        return PairedResult(status, values, clean)

    return [(side(10.0), side(10.0 * (1 + change))) for _ in range(count)]


@pytest.mark.parametrize("change", [0.1, -0.1])
def test_a_large_change_is_significant_in_its_direction(change):
    delta = paired_deltas(runs(np.random.default_rng(1), 8, change), ALPHA)["backend_ms"]
    assert (delta.significant, delta.undecided, delta.pairs, delta.p) == (True, False, 8, None)
    assert math.expm1(delta.change) == pytest.approx(change, abs=0.02)
    assert abs(delta.change - math.log1p(change)) <= delta.reach
    assert delta.new / delta.old == pytest.approx(1 + change, abs=0.03)


def test_both_levels_differ_by_the_change_also_where_one_pair_is_far_off():
    pairs = runs(np.random.default_rng(1), 8, sd=0.004)
    old, new = pairs[3]
    pairs[3] = old, replace(new, values={**new.values, "backend_ms": new.values["backend_ms"] * 1.6})
    delta = paired_deltas(pairs, ALPHA)["backend_ms"]
    assert delta.new / delta.old == pytest.approx(math.exp(delta.change))
    assert delta.old == pytest.approx(10, rel=0.03), "the other pairs'"


def test_two_equal_builds_are_the_same_after_few_pairs():
    pairs = runs(np.random.default_rng(2), 5, sd=0.002)
    delta = paired_deltas(pairs, ALPHA)["backend_ms"]
    assert not delta.significant
    assert not delta.undecided
    assert is_enough(pairs, ALPHA)


def test_noise_that_allows_a_change_is_undecided_and_more_pairs_are_wanted():
    pairs = runs(np.random.default_rng(3), 5, sd=0.05)
    assert paired_deltas(pairs, ALPHA)["backend_ms"].undecided
    assert not is_enough(pairs, ALPHA)
    assert is_enough(pairs, ALPHA, most=5), "no more are allowed"


def test_a_change_below_what_counts_is_none():
    pairs = runs(np.random.default_rng(4), 8, change=0.004, sd=0.001)
    delta = paired_deltas(pairs, ALPHA)["backend_ms"]
    assert not delta.significant
    assert not delta.undecided


def test_disturbed_latencies_and_failed_runs_are_no_pairs():
    rng = np.random.default_rng(5)
    disturbed = runs(rng, 4, change=0.5, clean=False)
    delta = paired_deltas(disturbed, ALPHA)["backend_ms"]
    assert (delta.significant, delta.undecided, delta.pairs, delta.reach) == (False, True, 0, None)
    assert not is_enough(disturbed, ALPHA), "a quiet pair may still come"
    assert "backend_peak_bytes" in paired_deltas(
        runs(rng, 4, metric="backend_peak_bytes", clean=False), ALPHA
    )
    failed = runs(rng, 2, status="crash")
    assert paired_deltas(failed, ALPHA) == {}
    assert is_enough(failed, ALPHA), "it would fail again"
    assert not is_enough(failed[:1], ALPHA)


def ends(*pairs):
    """Pairs that end with these statuses: "pass crash"."""
    values = {"backend_ms": 10.0, "calls_captured": 3.0}
    return [tuple(PairedResult(status, values) for status in pair.split()) for pair in pairs]


def compared_with_statuses(pairs):
    """Both sides' records are those of the last pair."""
    old, new = (run(f"2026-11-0{2 + side}", [row("a", pairs[-1][side].status)]) for side in (0, 1))
    of_case = old.rows[0].case
    return compare(
        *(ComparedRuns("x", (night,)) for night in (old, new)),
        paired={of_case: paired_deltas(pairs, ALPHA)},
        statuses={of_case: paired_status(pairs)},
    )


def test_a_build_that_fails_in_some_pairs_is_not_called_unchanged(capsys):
    pairs = ends("pass pass", "pass fail_accuracy", *["pass pass"] * 3)
    assert not is_enough(pairs, ALPHA), "a second failure may come"
    compared = compared_with_statuses(pairs)
    assert (compared.both[0].old_status, compared.both[0].new_status) == ("pass", "pass")
    note = f"{compared.both[0].case.name}: fail_accuracy in 1 of 5 pairs of the new side"
    assert note in comparison_text(compared)
    assert to_plain(compared)["cases"][0]["unsteady"] == note.partition(": ")[2]
    assert headline(against(compared.new.runs[0], compared)) != "Nothing changed"
    assert comparison_gate(compared, print) == 0
    assert note in capsys.readouterr().out


def test_a_build_that_fails_in_three_pairs_is_worse_whatever_the_last_one_was():
    pairs = ends("pass crash", "pass crash", "pass pass", "pass crash")
    assert [is_enough(pairs[:count], ALPHA) for count in range(1, 5)] == [False, False, False, True]
    compared = compared_with_statuses([*pairs, *ends("pass pass")])
    assert compared.both[0].regressed
    assert "crash in 3 of 5 pairs of the new side" in comparison_text(compared)
    assert compared_with_statuses(ends("pass crash", "pass crash")).both[0].regressed, "its minutes are over"


def test_the_pairs_in_which_a_failing_build_passed_give_no_numbers():
    """It is no improvement beside its own failure, and its report has no speedup of it."""
    values = {"backend_ms": 10.0, "speedup": 2.0, "calls_captured": 3.0}
    fast = {**values, "backend_ms": 5.0, "speedup": 4.0}
    pairs = [
        (PairedResult("pass", values), PairedResult(status, fast)) for status in ["pass", "fail_accuracy"] * 3
    ]
    compared = compared_with_statuses(pairs)
    assert (compared.both[0].new_status, compared.both[0].deltas) == ("fail_accuracy", {})
    assert compared.means == []
    assert compared.in_pairs
    night = against(compared.new.runs[0], compared)
    assert [change.what for change in night.changes] == ["status"]
    assert night.rows == compared.new.runs[0].rows, "without levels over pairs"


def test_a_model_that_fails_with_both_builds_now_and_then_is_not_worse():
    pairs = ends("crash pass", "pass timeout")
    assert is_enough(pairs, ALPHA), "no further failure would be the build's"
    compared = compared_with_statuses(pairs)
    assert not compared.both[0].regressed
    assert not compared.both[0].changed
    words = ": crash in 1 of 2 pairs of the old side; timeout in 1 of 2 pairs of the new side"
    assert words in comparison_text(compared)
    with pytest.raises(UsageError, match="not the same in all pairs"):
        comparison_gate(compared, print)
    broken = compared_with_statuses(ends("crash timeout", "crash timeout"))
    assert broken.both[0].unsteady == ""
    assert (broken.both[0].old_status, broken.both[0].new_status) == ("crash", "timeout")


@pytest.mark.parametrize("share", [0.02, 0.1, 0.25, 0.4, 0.6, 0.9, 1.0])
def test_a_model_that_fails_at_random_rarely_seems_to_change_its_status(share):
    """docs/history.md has the number."""
    chances = {"": 1.0}
    false = 0.0
    outcomes = {"pass pass": (1 - share) ** 2, "crash crash": share**2}
    outcomes |= dict.fromkeys(("pass crash", "crash pass"), share * (1 - share))
    for _ in range(8):
        after: dict[str, float] = {}
        for past, chance in chances.items():
            for outcome, own in outcomes.items():
                pairs = [*filter(None, past.split(",")), outcome]
                key = ",".join(sorted(pairs))  # their order decides nothing
                after[key] = after.get(key, 0.0) + chance * own
        chances = {}
        for key, chance in after.items():
            pairs = ends(*key.split(","))
            broken = sum(side.status == "crash" for pair in pairs for side in pair)
            if broken and is_enough(pairs, ALPHA, most=8):
                status = paired_status(pairs)
                false += chance * (status.old != status.new)
            elif len(pairs) < 8:
                chances[key] = chance
    assert false < 0.12, "of both directions"


@pytest.mark.parametrize("cases", [1, 20])
def test_any_false_change_of_a_comparison_is_as_rare_as_promised(cases):
    rng = np.random.default_rng(6)
    alpha = false_alarm_of(cases)
    assert alpha * 2 * cases * len(COMPARED) == pytest.approx(FALSE_CHANGE)
    comparisons = 400 // cases
    false = 0
    for _ in range(comparisons):
        some = [runs(rng, 8, sd=float(rng.uniform(0.005, 0.03))) for _ in range(cases)]
        # Looked at after each pair, as the runner does.
        false += any(
            paired_deltas(pairs[:n], alpha)["backend_ms"].significant for pairs in some for n in range(1, 9)
        )
    # One metric of several is drawn here, so much fewer than 5 % are expected.
    assert false <= max(1, 0.05 * comparisons)


def test_pairs_that_decide_nothing_are_not_called_unchanged(capsys):
    """Either other programs disturbed every pair, or the pairs are too noisy."""
    nights = [run(f"2026-11-0{day}", [row("a")]) for day in (1, 2)]
    rng = np.random.default_rng(7)

    def compared(pairs):
        sides = (ComparedRuns("x", (night,)) for night in nights)
        return compare(*sides, paired={nights[0].rows[0].case: paired_deltas(pairs, ALPHA)})

    disturbed = compared(runs(rng, 4, change=1.0, clean=False))
    assert disturbed.nothing_to_compare == (
        "numbers of 1 of 1 cases could not be tested, as other programs disturbed every pair of runs"
    )
    with pytest.raises(UsageError, match="disturbed every pair"):
        comparison_gate(disturbed, print)
    noisy = compared(runs(rng, 5, sd=0.05))
    assert noisy.nothing_to_compare is None
    assert comparison_gate(noisy, print) == 0
    assert "not checked: numbers of 1 of 1 cases are not decided yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("commit", "words"),
    [
        ("a" * 40, "a build is compared with itself, unless a package is installed from a folder"),
        ("b" * 40, f"Builds (old | new): timm: 1.0.31 {'a' * 10} | 1.0.31 {'b' * 10}"),
    ],
)
def test_text_and_comment_say_which_builds_were_compared(commit, words):
    nights = []
    for day, of_day in ((1, "a" * 40), (2, commit)):
        night = run(f"2026-11-0{day}", [row("a")])
        nights.append(replace(night, run=with_worker(night.run, commits={"timm": of_day})))
    pairs = runs(np.random.default_rng(9), 5, sd=0.002)
    sides = [ComparedRuns("x", (night,)) for night in nights]
    compared = compare(*sides, paired={nights[0].rows[0].case: paired_deltas(pairs, ALPHA)})
    assert words in comparison_text(compared)
    assert words in " ".join(compared_with(against(nights[1], compared)))
    assert words not in comparison_text(compare(*sides)), "two runs that were measured apart"


def test_the_comment_has_the_levels_of_all_quiet_pairs_not_those_of_the_last():
    ratios = (1.005, 0.997, 1.1, 1.003, 0.9)
    values = {"speedup": 1.5, "calls_captured": 3.0}
    pairs = [
        tuple(PairedResult("pass", {**values, "speedup": speed}) for speed in (1.5, 1.5 * ratio))
        for ratio in ratios
    ]
    old, new = (
        run(f"2026-11-0{day}", [row("a", speedup=value, speedup_low=value, speedup_high=value)])
        for day, value in ((1, 1.5), (2, 1.35))
    )
    new = replace(new, rows=tuple(replace(each, verdict="slower") for each in new.rows))
    sides = (ComparedRuns("x", (night,)) for night in (old, new))
    compared = compare(*sides, paired={old.rows[0].case: paired_deltas(pairs, ALPHA)})
    (shown,) = against(new, compared).rows
    assert shown.verdict is None, "it is of the interval of one process"
    text = comment(against(new, compared))
    assert "| 1.498x | -0.1% (1) |" in text
    assert "against the base" in text
    assert "1.350" not in text


def test_the_means_are_of_all_quiet_pairs_not_of_the_last_alone():
    """The rows are those of the last pair: with one model, its mean would differ from its own change."""
    old, new = (run(f"2026-11-0{day}", [row("a", backend_ms=10.0 - day)]) for day in (1, 2))

    def compared(pairs):
        sides = (ComparedRuns("x", (night,)) for night in (old, new))
        return compare(*sides, paired={old.rows[0].case: paired_deltas(pairs, ALPHA)})

    rng = np.random.default_rng(8)
    pairs = [*runs(rng, 1, change=0.1, sd=0.0), *runs(rng, 1, change=-0.1, sd=0.0)]
    both = compared(pairs)
    delta, (mean,) = both.both[0].deltas["backend_ms"], both.means
    assert (mean.metric, mean.cases) == ("backend_ms", 1)
    assert (mean.old[0], mean.new[0]) == pytest.approx((delta.old, delta.new))
    assert mean.ratio[0] == pytest.approx(math.sqrt(1.1 * 0.9))
    assert compared(runs(rng, 2, change=0.1, clean=False)).means == []


def test_what_the_models_of_a_run_share_is_another_in_each_pair():
    rows = [row(f"m{number}", speedup=1.5, speedup_low=1.49, speedup_high=1.51) for number in range(4)]
    old, new = run("2026-11-01", rows), run("2026-11-02", rows)

    def width(pairs):
        side = PairedResult("pass", {"speedup": 1.5, "calls_captured": 3.0})
        paired = {each.case: paired_deltas([(side, side)] * pairs, ALPHA) for each in rows}
        (means,) = compare(ComparedRuns("x", (old,)), ComparedRuns("x", (new,)), paired=paired).means
        return math.log(means.ratio[2] / means.ratio[1])

    assert width(8) == pytest.approx(width(2) / 2)


def test_a_case_whose_every_pair_was_disturbed_is_in_no_mean_of_the_comment_and_skipped_in_junit(tmp_path):
    """Its row is of one pair, and was not disturbed enough to have that as its verdict."""

    def values(ms):
        return {"backend_ms": ms, "speedup": 20 / ms, "compilation_cpu_s": 9.0, "calls_captured": 3.0}

    def night(day, ms):
        return run(f"2026-11-0{day}", [row("quiet", **values(10.0)), row("busy", **values(ms))])

    def pairs(clean):
        return [tuple(PairedResult("pass", values(10.0), clean) for _ in range(2))] * 4

    old, new = night(1, 10.0), night(2, 14.0)
    compared = compare(
        *(ComparedRuns("x", (each,)) for each in (old, new)),
        paired={
            each.case: paired_deltas(pairs(each.case.model == "quiet"), ALPHA, most=4) for each in old.rows
        },
    )
    shown = against(new, compared)
    assert [each.verdict for each in shown.rows] == [None, "disturbed"]
    text = comment(shown)
    assert "| 2.000x | +0.0% (1) |" in text
    (means,) = [means for means in compared.means if means.metric == "speedup"]
    assert (means.cases, means.ratio[0]) == (1, pytest.approx(1.0))
    write_comparison(tmp_path / "junit.xml", compared)
    tests = ET.parse(tmp_path / "junit.xml").getroot().iter("testcase")
    skipped = {test.get("name"): [part.get("message") for part in test] for test in tests}
    assert skipped == {old.rows[0].case.name: [], old.rows[1].case.name: ["could not be tested"]}
