"""What the history tells a run of how far processes differed on earlier nights."""

import math
from dataclasses import replace

import pytest

from perfdash.history.earlier_nights import earlier_processes
from perfdash.history.ingest import take_in
from perfdash.history.results import from_run
from perfdash.methods import CURRENT
from perfdash.records import Case, Result, RunInfo, Speedup, Status
from perfdash.stats.process_spread import ProcessRatios
from tests.stores import made_store

CASE = Case("s", "m")


def night(number, *ratios, case=CASE, host_class="h x 2", verdict="inconclusive", method=CURRENT):
    info = RunInfo(
        f"run{number}", f"2026-01-{number:02}T00:00:00Z", "h", [], {}, {"host_class": host_class}, 1, "0"
    )
    result = Result(case, info.started, 1.0, Status.PASS, speedup=Speedup(1, 1, 1, verdict))
    result.method = dict(method)
    result.conditions = {"process_ratios": list(ratios), "within_variance": 1e-6}
    return info, from_run(info, [result], f"run{number}")


@pytest.fixture
def store(tmp_path):
    with made_store(tmp_path / "history.db") as store:
        yield store


def spreads_of(store, info, **options):
    with store.read() as connection:
        run = from_run(info, [], "").run
        return earlier_processes(connection, run, {CASE}, **options)


def test_the_nights_before_on_the_same_testbed_newest_first(store):
    nights = [
        night(1, 1.5, 1.6),
        night(2, 1.5, 1.51, 1.52),
        night(3, 1.5),  # one process
        night(4, 1.5, 1.7, case=replace(CASE, batch_size=8)),
        night(5, 1.5, 1.8, host_class="other"),
        night(7, 1.5, 1.9),  # later
    ]
    take_in(store, [imported for _, imported in nights])
    tonight, _ = night(6, 1.0, 1.0)
    earlier = spreads_of(store, tonight)
    assert list(earlier) == [CASE]
    first, second = earlier[CASE]
    assert first.ratios == pytest.approx([math.log(ratio) for ratio in (1.5, 1.51, 1.52)])
    assert second == ProcessRatios((pytest.approx(math.log(1.5)), pytest.approx(math.log(1.6))), 1e-6)
    assert len(spreads_of(store, tonight, nights=3)[CASE]) == 1


def test_runs_of_other_settings_are_no_nights(store):
    nights = [night(number, 1.5, 1.6) for number in (1, 2)]
    nights += [night(number, 1.5, 1.6, case=replace(CASE, dtype="bfloat16")) for number in (3, 4, 5)]
    take_in(store, [imported for _, imported in nights])
    assert len(spreads_of(store, night(6, 1.0)[0], nights=2)[CASE]) == 2


def test_disturbed_nights_are_left_out(store):
    nights = [night(1, 1.5, 1.6), night(2, 1.5, 2.6, verdict="disturbed")]
    take_in(store, [imported for _, imported in nights])
    (only,) = spreads_of(store, night(3, 1.0, 1.0)[0])[CASE]
    assert only.ratios == pytest.approx([math.log(1.5), math.log(1.6)])


def test_nights_by_another_method_of_speedup_are_left_out(store):
    nights = [
        night(number, 1.5, ratio, method={**CURRENT, **method})
        for number, (ratio, method) in enumerate([(1.6, {"speedup": 3}), (1.7, {}), (1.8, {"latency": 1})], 1)
    ]
    take_in(store, [imported for _, imported in nights])
    (only,) = spreads_of(store, night(4, 1.0, 1.0)[0])[CASE]
    assert only.ratios == pytest.approx([math.log(1.5), math.log(1.7)])


def test_nights_on_which_eagers_threads_disturbed_openvino_are_left_out(store):
    own = replace(CASE, backend="openvino", threads=2)
    nights = [
        night(number, 1.5, 1.6, case=case, method={**CURRENT, "own_threads": version})
        for number, (case, version) in enumerate([(CASE, 1), (own, 1), (own, 2)], 1)
    ]
    take_in(store, [imported for _, imported in nights])
    with store.read() as connection:
        run = from_run(night(4, 1.0, 1.0)[0], [], "").run
        earlier = earlier_processes(connection, run, {CASE, own})
    assert {case: len(spreads) for case, spreads in earlier.items()} == {CASE: 1, own: 1}


def test_no_nights(store):
    assert spreads_of(store, night(1, 1.0, 1.0)[0]) == {}
