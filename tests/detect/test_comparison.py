from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from perfdash.detect.comparison import ComparedRuns, PastNoise, compare, refuse_overlap, refuse_unlike
from perfdash.detect.comparison_in_history import compare_in_history
from perfdash.errors import UsageError
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs, read_run
from perfdash.methods import CURRENT
from perfdash.stats.means import shared_variance
from tests.detect.simulated import farm, slower
from tests.effort import trials
from tests.history.made import case, row, run
from tests.stores import made_store


def side(*runs):
    return ComparedRuns("x", tuple(runs))


def past(sd):
    return PastNoise(sd, 40.0, np.ones(10))


def test_windows_tell_their_own_noise():
    runs = farm(20, models=60, noise=0.02, seed=5, change=slower("model03", 10, 1.08))
    comparison = compare(side(*runs[:10]), side(*runs[10:]))
    assert [compared_case.case.model for compared_case in comparison.both if compared_case.changed] == [
        "model03"
    ]
    first = comparison.both[0]
    assert first.case.model == "model03"
    assert first.regressed
    assert {name for name, delta in first.deltas.items() if delta.significant} == {"backend_ms"}
    assert first.deltas["backend_ms"].change == pytest.approx(math.log(1.08), abs=0.03)


def test_the_same_build_twice_is_nearly_always_the_same():
    """At a false-discovery rate of 5 %, at most one in twenty comparisons of equals says something."""
    false = 0
    for seed in range(20):
        runs = farm(6, models=50, noise=0.03, seed=seed)
        comparison = compare(side(*runs[:3]), side(*runs[3:]))
        false += any(compared_case.changed for compared_case in comparison.both)
    assert false <= 3


def test_single_runs_rest_on_what_the_history_knows():
    old, new = run(rows=[row("a", backend_ms=10.0)]), run(rows=[row("a", backend_ms=10.5)])
    (compared_case,) = compare(side(old), side(new)).both
    assert compared_case.deltas["backend_ms"].p is None
    assert not compared_case.changed
    quiet, loud = ({"backend_ms": {case("a"): past(sd)}} for sd in (0.005, 0.05))
    (compared_case,) = compare(side(old), side(new), quiet).both
    assert compared_case.regressed
    (compared_case,) = compare(side(old), side(new), loud).both
    assert not compared_case.changed


def test_what_got_faster_is_no_regression():
    noise = {metric: {case("a"): past(0.005)} for metric in ("backend_ms", "speedup")}
    old = run(rows=[row("a", backend_ms=10.0, speedup=1.0)])
    new = run(rows=[row("a", backend_ms=8.0, speedup=1.25)])
    (compared_case,) = compare(side(old), side(new), noise).both
    assert compared_case.changed
    assert not compared_case.regressed


def test_means_and_their_intervals():
    draw = np.random.default_rng(0)
    speedups = np.exp(draw.normal(0, 0.3, 40))
    old = run(rows=[row(f"m{k}", speedup=float(value)) for k, value in enumerate(speedups)])
    new = run(
        rows=[
            row(f"m{k}", speedup=float(value * 1.02 * math.exp(0.01 * draw.standard_normal())))
            for k, value in enumerate(speedups)
        ]
    )
    (means,) = compare(side(old), side(new)).means
    assert (means.metric, means.cases) == ("speedup", 40)
    ratio, low, high = means.ratio
    assert low < 1.02 < high
    assert high - low < 0.01, "what differs between models cancels"
    assert means.old[2] - means.old[1] > 0.1
    assert ratio == pytest.approx(means.new[0] / means.old[0])


def test_what_all_models_of_a_run_share_is_no_change_of_their_mean():
    """However many models there are: a run whose fork parents are 0.7 % slower is of the same build."""

    def measured(day, moved):
        rows = [
            row(
                f"m{k}",
                speedup=value * moved,
                speedup_low=value * moved / 1.01,
                speedup_high=value * moved * 1.01,
            )
            for k, value in enumerate(np.exp(np.random.default_rng(0).normal(0, 0.3, 100)).tolist())
        ]
        return run(day, rows)

    old = measured("2026-11-01", 1.0)
    (means,) = compare(side(old), side(measured("2026-11-02", 1 / 1.007))).means
    assert means.ratio[1] < 1 < means.ratio[2]
    assert math.log(means.ratio[2] / means.ratio[1]) / 2 == pytest.approx(
        1.96 * math.sqrt(2 * shared_variance(100)), rel=1e-3
    )
    (means,) = compare(side(old), side(measured("2026-11-02", 1 / 1.03))).means
    assert means.ratio[2] < 1, "more than they share"
    nights = [measured(f"2026-11-0{day}", 1 / 1.007) for day in (2, 3, 4, 5, 6, 7)]
    before = [measured(f"2026-10-0{day}", 1.0) for day in (2, 3, 4, 5, 6, 7)]
    (means,) = compare(side(*before), side(*nights)).means
    assert means.ratio[2] < 1, "it is another one in each run"


def test_what_all_models_share_also_of_models_without_an_interval():
    """Models that were sampled in one process, of which no spread between processes is known."""

    def measured(day, moved):
        rows = [row(f"m{k}", speedup=(1.2 + k / 10) * moved) for k in range(10)]
        return run(day, [replace(each, basis="within") for each in rows])

    (means,) = compare(side(measured("2026-11-01", 1.0)), side(measured("2026-11-02", 1 / 1.007))).means
    assert means.ratio[1] < 1 < means.ratio[2]
    assert math.log(means.ratio[2] / means.ratio[1]) / 2 == pytest.approx(
        1.96 * math.sqrt(2 * shared_variance(10, 10)), rel=1e-3
    )


def test_what_reached_the_limit_of_recompiles_is_in_no_mean(tmp_path):
    rows = [row("a", speedup=2.0), replace(row("b", speedup=8.0), details={"recompile_limit": "reached"})]
    with made_store(tmp_path / "history.db") as store:
        take_in(store, [run("2026-11-01", rows), run("2026-11-02", rows)])
        with store.read() as connection:
            old, new = (ComparedRuns("", (read_run(connection, line),)) for line in list_runs(connection))
    (means,) = compare(old, new).means
    assert (means.cases, means.old[0]) == (1, pytest.approx(2.0))


def test_what_was_not_checked_is_in_no_mean_but_compared():
    old = run(rows=[row("a", speedup=1.2), row("big", "pass_due_to_skip", speedup=2.0)])
    new = run("2026-11-02", [row("a", speedup=1.2), row("big", "pass_due_to_skip", speedup=3.0)])
    comparison = compare(side(old), side(new))
    (means,) = comparison.means
    assert (means.cases, means.ratio[0]) == (1, pytest.approx(1.0))
    assert comparison.both[0].deltas["speedup"].change == pytest.approx(math.log(1.5))


def test_a_failure_before_the_last_night_leaves_its_case_in_the_means():
    nights = [
        run(f"2026-11-0{day}", [row("a", "crash" if day == 1 else "pass", speedup=2.0)]) for day in (1, 2, 3)
    ]
    (means,) = compare(side(*nights[:2]), side(nights[2])).means
    assert means.cases == 1


@pytest.mark.parametrize("is_repaired", [False, True], ids=["breaks", "is repaired"])
def test_a_case_that_fails_on_a_side_has_no_numbers_though_earlier_nights_passed(is_repaired):
    """Nights that pass at 10 ms, and nights of which two pass at 5 ms before three fail."""

    def nights(month, statuses, ms):
        return side(
            *(
                run(
                    f"2026-{month}-{day:02}",
                    [row("a", status, backend_ms=ms + day / 100, speedup=20 / ms)]
                    + [row(name, backend_ms=10 + day / 100, speedup=2.0) for name in "bcd"],
                )
                for day, status in enumerate(statuses, 1)
            )
        )

    passes = nights("10", ["pass"] * 5, 10)
    fails = nights("09" if is_repaired else "11", ["pass"] * 2 + ["fail_accuracy"] * 3, 5)
    compared = compare(fails, passes) if is_repaired else compare(passes, fails)
    assert [(means.metric, means.cases) for means in compared.means] == [("speedup", 3), ("backend_ms", 3)]
    assert [means.ratio[0] for means in compared.means] == pytest.approx([1.0, 1.0])
    (of_case,) = [one for one in compared.both if one.changed]
    assert (of_case.case.model, of_case.deltas, of_case.regressed) == ("a", {}, not is_repaired)
    assert compared.untested is None


def test_what_was_disturbed_is_not_compared():
    spoilt = replace(row("a", backend_ms=20.0, speedup=1.0, compilation_cpu_s=30.0), verdict="disturbed")
    (compared_case,) = compare(
        side(run(rows=[row("a", backend_ms=10.0, speedup=2.0, compilation_cpu_s=30.0)])),
        side(run(rows=[spoilt])),
    ).both
    assert list(compared_case.deltas) == ["compilation_cpu_s"]
    assert not compared_case.regressed


def test_an_interval_of_an_earlier_method_is_of_another_run():
    """It is wider by the root of two for the same noise, so the change is as certain."""

    def delta(method, reach):
        values = {"speedup": 2.0, "speedup_low": 2.0 / reach, "speedup_high": 2.0 * reach}
        worse = {"speedup": 1.9, "speedup_low": 1.9 / reach, "speedup_high": 1.9 * reach}
        nights = [run(rows=[row("a", **numbers)], method={"speedup": method}) for numbers in (values, worse)]
        (compared_case,) = compare(side(nights[0]), side(nights[1])).both
        return compared_case.deltas["speedup"]

    now, before = delta(3, 1.02), delta(2, math.exp(math.sqrt(2) * math.log(1.02)))
    assert now.p == pytest.approx(before.p)


def test_a_machine_in_another_state_changes_no_speedup():
    """Measured: lcnet_050, the same build; another tenant of the host was at work in the second run."""

    def numbers(speedup, low, high, eager):
        return {"speedup": speedup, "speedup_low": low, "speedup_high": high, "eager_ms": eager}

    def compared(eager):
        nights = [
            run(rows=[row("lcnet_050", **values)], method={"speedup": 4})
            for values in (numbers(1.172, 1.150, 1.195, 4.291), numbers(1.287, 1.264, 1.310, eager))
        ]
        return compare(side(nights[0]), side(nights[1]))

    busy, quiet = compared(5.668), compared(4.3)
    assert not busy.both[0].deltas["speedup"].significant
    assert math.exp(busy.eager_moved) == pytest.approx(5.668 / 4.291)
    # On the same machine in the same state it is a change.
    assert quiet.both[0].deltas["speedup"].significant
    assert quiet.eager_moved is None


def test_a_status_that_broke_is_a_regression_whatever_the_numbers():
    (compared_case,) = compare(
        side(run(rows=[row("a")])), side(run(rows=[row("a", "fail_accuracy", speedup=9.0)]))
    ).both
    assert compared_case.regressed
    assert compared_case.deltas == {}


def test_unlike_hosts_are_refused():
    here = run(rows=[row()])
    refuse_unlike(side(here), side(run(rows=[row()], host="farm2")))
    with pytest.raises(UsageError, match=r"never compared(.|\n)*EPYC x 8"):
        refuse_unlike(side(here), side(run(rows=[row()], host_class="EPYC x 8")))
    with pytest.raises(UsageError, match="side_by_side 4"):
        refuse_unlike(side(here), side(run(rows=[row()], setting={"side_by_side": 4})))
    with pytest.raises(UsageError, match="gpus"):
        refuse_unlike(side(here), side(run(rows=[row()], setting={"gpus": ["H200"], "env": {"A": "1"}})))


def test_two_lines_of_builds_are_compared_and_one_side_mixes_none():
    main = run(rows=[row()], setting={"line": "main"})
    feature = run("2026-11-02", rows=[row()], setting={"line": "feature"})
    refuse_unlike(side(main), side(feature))
    with pytest.raises(UsageError, match="line feature"):
        refuse_unlike(side(main, feature), side(main))


def test_windows_that_overlap_are_refused():
    nights = farm(5)
    refuse_overlap(side(nights[0]), side(nights[0]))
    with pytest.raises(UsageError, match="on both sides"):
        refuse_overlap(side(*nights[:3]), side(*nights[2:]))


@pytest.mark.parametrize("kind", ["t3", "autoregressive", "outliers"])
@pytest.mark.parametrize("nights", [(1, 10), (10, 10)])
def test_noise_that_is_not_gaussian_stays_silent_too(kind, nights):
    """Equal builds, 100 cases at 3 %: at most a few comparisons in ten say that anything changed."""
    draw = np.random.default_rng(7)
    spoken = 0
    for _ in range(10):
        total = sum(nights)
        if kind == "t3":
            noise = draw.standard_t(3, (100, total)) / math.sqrt(3)
        else:
            noise = draw.standard_normal((100, total))
        if kind == "autoregressive":
            for night in range(1, total):
                noise[:, night] = 0.5 * noise[:, night - 1] + math.sqrt(0.75) * noise[:, night]
        logs = 0.03 * noise
        if kind == "outliers":
            logs = logs + math.log(1.3) * (draw.random(logs.shape) < 0.02)
        runs = [
            run(
                f"2026-01-{night + 1:02}",
                [row(f"m{k}", backend_ms=math.exp(logs[k, night])) for k in range(100)],
            )
            for night in range(total)
        ]
        comparison = compare(side(*runs[: nights[0]]), side(*runs[nights[0] :]))
        spoken += any(compared_case.changed for compared_case in comparison.both)
    assert spoken <= 3


@pytest.mark.parametrize("nothing", ["not_tonight", "infra_error", "skipped"])
def test_a_last_night_that_says_nothing_of_a_case_leaves_it_the_status_of_the_night_before(nothing):
    def compared(old, new):
        nights = [run(f"2026-11-{day:02}", [row("a", status)]) for day, status in enumerate((*old, *new), 1)]
        return compare(side(*nights[: len(old)]), side(*nights[len(old) :])).both[0]

    broken = compared(["pass"] * 3, ["fail_accuracy", "fail_accuracy", nothing])
    assert (broken.old_status, broken.new_status) == ("pass", "fail_accuracy")
    assert broken.regressed
    assert not compared(["pass"] * 3, ["pass", "pass", nothing]).changed
    assert not compared(["pass", "pass", nothing], ["pass"]).changed
    assert compared(["pass"], [nothing]).new_status == nothing


def test_statuses_are_compared_where_the_night_that_has_one_checked_alike():
    """The last night of the old side checked by the newer method, but did not measure the case."""
    older, newer = {**CURRENT, "accuracy": 1}, dict(CURRENT)
    old = run("2026-11-01", [row("a")], method=older), run("2026-11-02", [row("a", "skipped")], method=newer)
    (compared,) = compare(side(*old), side(run("2026-11-03", [row("a", "fail_accuracy")], method=newer))).both
    assert not compared.checked_alike


def test_what_the_status_says():
    def compared(old, new, **values):
        rows = [replace(row("a", status), values={**row("a").values, **values}) for status in (old, new)]
        (compared_case,) = compare(side(run(rows=rows[:1])), side(run(rows=rows[1:]))).both
        return compared_case

    assert compared("pass", "crash").regressed
    assert not compared("pass", "infra_error").regressed
    assert not compared("pass", "skipped").regressed
    assert compared("crash", "pass").changed
    assert compared("pass", "pass", calls_captured=0.0).deltas == {}


def with_interval(speedup, half_width=0.016, **other):
    ends = {"speedup_low": speedup * math.exp(-half_width), "speedup_high": speedup * math.exp(half_width)}
    return {"speedup": speedup, **ends, **other}


def nights_of(*rows):
    return side(*(run(f"2026-11-{day:02}", [one]) for day, one in enumerate(rows, 1)))


def test_two_runs_a_side_rest_on_the_intervals_of_their_speedups():
    slow, fast = ([row("a", **with_interval(speedup))] * 2 for speedup in (0.75, 1.5))
    (compared_case,) = compare(nights_of(*fast), nights_of(*slow)).both
    assert compared_case.regressed


def test_a_second_run_makes_a_comparison_more_certain():
    def delta(*old):
        new = row("a", **with_interval(1.45, eager_ms=10.0))
        (compared_case,) = compare(nights_of(*old), nights_of(new)).both
        return compared_case.deltas["speedup"]

    one = row("a", **with_interval(1.5, eager_ms=10.0))
    spoilt = replace(row("a", **with_interval(1.5, 0.1, eager_ms=12.0)), verdict="disturbed")
    single = delta(one)
    assert delta(one, one).reach == pytest.approx(single.reach * math.sqrt(0.75))
    for nights in ((one, spoilt), (row("a", "timeout", eager_ms=12.0), one)):
        assert delta(*nights) == pytest.approx(single), "only runs with a speedup count"


@pytest.mark.parametrize("runs", [1, 2])
def test_speedups_that_moved_as_far_as_eager_have_not_changed(runs):
    """Eager got faster in every model, the compiled latency is the same."""

    def nights(first, factor):
        rows = [
            row(
                f"m{k}",
                **with_interval(1.5 / factor, 0.0157, eager_ms=10 / factor, backend_ms=6.667),
            )
            for k in range(40)
        ]
        return side(*(run(f"2026-11-{first + day:02}", rows) for day in range(runs)))

    comparison = compare(nights(1, 1.0), nights(11, 1.3))
    assert not any(compared_case.changed for compared_case in comparison.both)


def test_two_runs_that_disagree_are_less_certain():
    """One of the old runs was in another state; its interval of 1.6 % does not know."""
    old, new = ([row("a", **with_interval(speedup)) for speedup in side] for side in ((1.5, 1.2), (1.2, 1.2)))
    (compared_case,) = compare(nights_of(*old), nights_of(*new)).both
    assert not compared_case.regressed


@pytest.mark.parametrize("known", [{}, {"speedup": {case("a"): past(0.003)}}], ids=["three", "history"])
def test_two_runs_that_disagree_are_less_certain_beside_known_noise(known):
    speedups = ((1.5, 1.503) if known else (1.5, 1.503, 1.497), (1.5, 1.2))
    old, new = ([row("a", speedup=value, backend_ms=10 / value) for value in side] for side in speedups)
    known |= {"backend_ms": known["speedup"]} if known else {}
    (compared_case,) = compare(nights_of(*old), nights_of(*new), known).both
    assert compared_case.deltas["backend_ms"].tested
    assert not compared_case.regressed


def speedups_of_nights(draw, spread, per_side, models=40):
    """Two sides of equal builds: intervals of 0.8 % (standard error), and nights that differ by `spread`."""
    sd = math.hypot(0.008, spread)
    nights = [
        run(
            f"2026-11-{night + 1:02}",
            [
                row(f"m{k}", **with_interval(math.exp(draw.normal(0, sd)), 1.96 * 0.008))
                for k in range(models)
            ],
        )
        for night in range(sum(per_side))
    ]
    return side(*nights[: per_side[0]]), side(*nights[per_side[0] :])


@pytest.mark.parametrize("per_side", [(2, 2), (1, 2)])
def test_nights_that_differ_by_more_than_the_intervals_raise_few_false_alarms(per_side):
    """Equal builds, 40 models; by the intervals alone, a third of the cases had p < 0.05."""
    draw = np.random.default_rng(3)
    p = [
        compared_case.deltas["speedup"].p
        for _ in range(trials(5))
        for compared_case in compare(*speedups_of_nights(draw, 0.02, per_side)).both
    ]
    assert np.mean(np.array(p) < 0.05) < 0.05


def test_one_run_in_another_state_hides_no_regression_of_other_models():
    speedups = {
        "odd": (1.5, 1.2, 1.2, 1.2),
        "slower": (1.5, 1.5, 1.3, 1.3),
        **{f"m{k}": (1.5,) * 4 for k in range(8)},
    }
    nights = [
        run(
            f"2026-11-{night + 1:02}",
            [row(name, **with_interval(of[night])) for name, of in speedups.items()],
        )
        for night in range(4)
    ]
    comparison = compare(side(*nights[:2]), side(*nights[2:]))
    assert [c.case.model for c in comparison.both if c.regressed] == ["slower"]


@pytest.mark.parametrize("per_side", [3, 5])
def test_one_case_that_was_rarely_measured_hides_no_regression_of_others(per_side):
    draw = np.random.default_rng(5)

    def night(number, after):
        rows = [
            row(
                f"m{k}", backend_ms=10.0 * math.exp(draw.normal(0, 0.005)) * (1.1 if after and k < 5 else 1.0)
            )
            for k in range(40)
        ]
        if number < 2 or after:
            rows.append(row("rare", backend_ms=(10.0, 12.0)[number % 2] if not after else 10.0))
        return run(f"2026-{10 + after}-{number + 1:02}", rows)

    sides = [side(*(night(number, after) for number in range(per_side))) for after in (False, True)]
    found = {c.case.model for c in compare(*sides).both if c.regressed}
    assert found == {f"m{k}" for k in range(5)}


def on_hosts(nights, host_of, factor=1.04):
    """Nights of which those of other hosts than the first take longer."""
    runs = []
    for number, night in enumerate(nights):
        host = host_of(number)
        by = 1.0 if host == host_of(0) else factor
        rows = [
            replace(one, values={name: value * by for name, value in one.values.items()})
            for one in night.rows
        ]
        runs.append(replace(night, run=replace(night.run, host=host, uid=night.run.uid + host), rows=rows))
    return runs


def test_of_two_machines_only_statuses_are_judged():
    statuses = ["pass"] * 5 + ["crash"] * 5
    nights = farm(10, 6, statuses=lambda night, name: statuses[night] if name == "model01" else "pass")
    nights = on_hosts(nights, lambda night: "bench-1" if night < 5 else "bench-4")
    compared = compare(side(*nights[:5]), side(*nights[5:]))
    assert compared.machines == "on another machine: bench-1 | bench-4"
    assert [case.case.model for case in compared.both if case.changed or case.regressed] == ["model01"]
    assert "as they were measured on another machine: bench-1 | bench-4" in compared.untested
    unchanged = compare(side(*nights[:5]), side(*(replace(one, rows=one.rows[2:]) for one in nights[5:])))
    assert "on another machine: bench-1 | bench-4" in unchanged.nothing_to_compare
    assert not compare(side(*nights[:6]), side(*nights[6:])).machines, "bench-4 measured both"


@pytest.mark.parametrize(
    ("host_of", "machines"),
    [
        (lambda night: "bench-1" if night < 14 else "bench-4", "on another machine: bench-1 | bench-4"),
        (lambda night: f"pod-{night}", ""),
    ],
    ids=["replaced", "containers"],
)
def test_host_names_that_change_every_night_tell_no_machines(tmp_path, host_of, machines):
    nights = on_hosts(farm(15, 6, change=slower("model03", 14, 1.5)), host_of, 1.0)
    with made_store(tmp_path / "history.db") as store:
        take_in(store, nights)
        with store.read() as connection:
            compared = compare_in_history(connection, side(nights[13]), side(nights[14]))
    assert compared.machines == machines
    assert [case.case.model for case in compared.both if case.regressed] == ([] if machines else ["model03"])


def in_shards(nights, machine_of):
    """Nights that bench-1 and bench-4 share; the latter takes longer. machine_of(night, number of a case)."""
    runs = []
    for number, night in enumerate(nights):
        rows = []
        for place, one in enumerate(night.rows):
            host = machine_of(number, place)
            values = {name: value * (1.2 if host == "bench-4" else 1.0) for name, value in one.values.items()}
            rows.append(replace(one, values=values, details={"conditions": {"host": host}}))
        runs.append(replace(night, run=replace(night.run, host="bench-1+bench-4"), rows=rows))
    return runs


@pytest.mark.parametrize("is_cluster", [False, True])
def test_a_case_of_two_machines_is_not_judged_though_others_have_one(tmp_path, is_cluster):
    """Shards change places. On a cluster any machine measures a case: the noise has their differences."""
    draw = np.random.default_rng(0)

    def machine_of(night, place):
        second = draw.random() < 0.5 if is_cluster and night < 20 else (place < 3) != (night == 21)
        return "bench-4" if second and place < 6 else "bench-1"

    nights = in_shards(farm(22, 12, change=slower("model09", 21, 1.5)), machine_of)
    with made_store(tmp_path / "history.db") as store:
        take_in(store, nights)
        with store.read() as connection:
            old, new = (read_run(connection, run) for run in list_runs(connection)[-2:])
            compared = compare_in_history(connection, side(old), side(new))
    assert not compared.machines
    assert [one.case.model for one in compared.both if one.regressed] == ["model09"]
    assert ("numbers of 6 of 12 cases could not be tested" in (compared.untested or "")) is not is_cluster
