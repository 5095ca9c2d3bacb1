"""The search for the largest batch size; workers are played back."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.cli.find_batch_size import left_out_words, limit_words, words
from perfdash.errors import UsageError
from perfdash.records import Case, Status
from perfdash.runner import cores, find_batch_size
from perfdash.runner.cores import CoresTaken
from perfdash.runner.executors import Message
from perfdash.runner.find_batch_size import (
    EAGER,
    MOST,
    LargestBatch,
    judged,
    next_size,
    runs_its_batch_size,
    search,
    sides,
    smallest_batches,
)
from perfdash.runner.messages import Answer, ProcessOutcome
from perfdash.runner.plan import make_plan
from perfdash.settings import RunSettings, resolve
from tests.runner.planned import PLANNED

DONE = ProcessOutcome([{"event": "phase", "name": "eager"}, {"event": "done"}], 0)


def planned(name="m", backend="eager", **settings):
    case = Case("s", name, backend=backend, **{k: settings.pop(k) for k in ("dtype", "batch_size")
                                              if k in settings})  # fmt: skip
    return replace(PLANNED, case=case, skip_reason=None, variant={}, baseline_dtype=None, **settings)


def failed(status, message="why"):
    event = {"event": "failed", "status": status, "phase": "eager", "type": "E", "message": message}
    return ProcessOutcome([{"event": "phase", "name": "eager"}, event], 0)


class Played:
    """Slots that have room for so many of each role; `other` answers instead."""

    def __init__(self, slots=2, other=None, **room):
        self.slots, self.room, self.other = slots, room, other
        self.messages, self.tried, self.failing = [], [], failed("oom")

    def start(self, slot, order, log):
        size = order.planned.case.batch_size
        self.tried.append((order.role, size))
        outcome = DONE if size <= self.room.get(order.role, 0) else self.failing
        self.messages.append(
            Message(slot, "answer", Answer([self.other or outcome], "t", 1.0, 0.0, {"slot": slot}))
        )

    def wait(self, timeout_s):
        return self.messages.pop(0)


def test_every_try_is_reported_before_it_is_made(tmp_path):
    messages = []
    search(
        [planned(batch_size=4)], Played(try_eager=20), tmp_path, print, lambda _, size: messages.append(size)
    )
    assert messages[:4] == [4, 8, 16, 32]


@pytest.mark.parametrize(
    ("device", "given_gib", "default", "message"),
    [
        ("cpu", 2.0, 1 << 34, "Memory limit: 2 GiB."),
        ("cpu", None, 1 << 34, "16.0 GiB, 90 % of the memory of this machine or container"),
        ("cpu", None, None, "Memory limit: none known"),
        ("cuda", None, 1 << 34, "Memory limit: the free memory of the GPU. "),
        (
            "cuda",
            2.0,
            1 << 34,
            "the free memory of the GPU; the process may take 2 GiB of the host's memory.",
        ),
    ],
)
def test_it_says_how_much_memory_is_filled(device, given_gib, default, message):
    assert message in limit_words(device, given_gib, default)


@given(room=st.integers(0, 3 * MOST), start=st.integers(1, 3 * MOST))
def test_the_search_ends_close_below_the_first_that_fails(room, start):
    size_search = LargestBatch(Case("s", "m"), "eager")
    while (size := next_size(start, size_search.fits, size_search.fails)) is not None:
        assert 1 <= size <= MOST
        size_search = judged(size_search, size, None if size <= room else Status.OOM, "")
        assert size_search.tries < 40
    assert size_search.fits <= room
    if size_search.fails is None:
        assert 2 * size_search.fits > MOST
    else:
        assert size_search.fails > room
        assert size_search.fails - size_search.fits <= max(1, size_search.fits // 32)


def test_each_side_by_itself(tmp_path):
    cases = [planned(batch_size=4), planned(backend="inductor", batch_size=4)]
    executor = Played(try_eager=21, try_backend=50)
    seen = []
    sizes = search(cases, executor, tmp_path, seen.append)
    assert [
        (largest_batch.side, largest_batch.case.backend, largest_batch.fits, largest_batch.fails)
        for largest_batch in sizes
    ] == [
        ("eager", "eager", 21, 22),
        ("backend", "inductor", 50, 51),
    ]
    assert sorted(seen, key=str) == sorted(sizes, key=str)
    assert [size for role, size in executor.tried if role == "try_eager"][:4] == [4, 8, 16, 32]


def test_eager_is_looked_at_once_and_a_variant_is_another_side():
    plain, amp = planned(), planned(dtype="amp")
    cases = [plain, amp, planned(backend="inductor"), planned(backend="inductor", dtype="bfloat16")]
    assert [
        (planned_case.case.backend, planned_case.case.dtype, side) for planned_case, side in sides(cases)
    ] == [
        ("eager", "float32", "eager"),
        ("eager", "amp", "eager"),
        ("inductor", "float32", "backend"),
        ("eager", "bfloat16", "eager"),
        ("inductor", "bfloat16", "backend"),
    ]
    varied = replace(planned(), variant={"norm": "in_place"})
    assert [side for _, side in sides([varied])] == ["eager", "backend"]
    compared = replace(planned(dtype="bfloat16"), baseline_dtype="float32")
    assert [side for _, side in sides([planned(), compared])] == ["eager", "backend"]
    # Eager needs nothing of the back end whose case came first.
    (eager, _), _ = sides([replace(varied, backend_file="/mine.py", baseline_dtype="float32")])
    assert (eager.case.backend, eager.case.dtype) == ("eager", "float32")
    assert (eager.variant, eager.baseline_dtype, eager.backend_file) == ({}, None, None)
    assert sides([replace(planned(), skip_reason="not here")]) == []


def test_every_configuration_is_searched_from_its_smallest_batch_size():
    def under(configuration, batch_size, **fields):
        fields |= {"configuration": configuration, "batch_size": batch_size}
        return replace(PLANNED, case=Case("s", "m", **fields), skip_reason=None)

    frozen, dynamic = {"settings": '{"freezing":true}'}, {"dynamic": True}
    cases = [under("default", 8), under("default", 2), under("freezing", 8, **frozen)]
    cases += [under("dynamic", 4, **dynamic), under("freezing", 16, **frozen)]
    assert [(planned.case.configuration, planned.case.batch_size) for planned in smallest_batches(cases)] == [
        ("default", 2),
        ("freezing", 8),
        ("dynamic", 4),
    ]
    sizes = [LargestBatch(planned.case, side, fits=8) for planned, side in sides(smallest_batches(cases))]
    table = words(sizes)
    assert "inductor float32, freezing " in table
    assert "inductor float32, dynamic " in table
    assert table.count("eager float32 ") == 1


def test_eager_is_searched_once_for_each_optimizer():
    def under(configuration, **fields):
        case = Case("s", "m", scenario="training", configuration=configuration, settings=configuration)
        return replace(PLANNED, case=case, skip_reason=None, **fields)

    cases = [under("default"), under("adam", optimizer="adam"), under("freezing", env={}, compile_mode="x")]
    assert [
        (planned.optimizer, planned.case.configuration) for planned, side in sides(cases) if side == EAGER
    ] == [
        ("sgd", "default"),
        ("adam", "adam"),
    ]
    for order, unnamed in ((cases, 1), (cases[::-1], 0), ([cases[1], cases[0]], 1)):
        table = words([LargestBatch(planned.case, side, fits=8) for planned, side in sides(order)])
        assert table.count("eager float32, adam ") == 1, order
        assert table.count("eager float32 ") == unnamed, order
    alone = words([LargestBatch(planned.case, side, fits=8) for planned, side in sides(cases[1:2])])
    assert alone.count("eager float32 ") == 1, "of one kind of step"


def test_a_step_over_several_batch_sizes_is_not_searched():
    def planned_as(scenario, sizes_of="batch", **fields):
        case = Case("s", "m", scenario=scenario, **fields)
        return replace(PLANNED, case=case, skip_reason=None, sizes_of=sizes_of)

    sized = planned_as("sizes", configuration="dynamic-batch", settings="{}")
    cases = [planned_as("inference"), sized, planned_as("sizes", "sequence")]
    assert [runs_its_batch_size(planned) for planned in cases] == [True, False, True]
    assert left_out_words([sized]).endswith("runs the batch sizes of --sizes: m (dynamic-batch)")


def test_only_the_configurations_with_a_batch_size_are_searched():
    flags = {"suite": ("timm",), "models": ("resnest101e",), "configuration": ("default", "dynamic-batch")}
    plan, _ = make_plan(resolve(flags, environ={})[0], uncut=True)
    assert [planned.case.scenario for planned in plan.cases] == ["inference", "sizes"]
    assert [planned.case.scenario for planned in filter(runs_its_batch_size, plan.cases)] == ["inference"]


def test_not_even_one(tmp_path):
    (largest,) = search([planned(batch_size=8)], Played(), tmp_path, lambda room: None)
    assert (largest.fits, largest.fails, largest.status) == (0, 1, None)
    assert largest.reason == "why"


def test_what_fails_for_another_reason_ends_its_search_with_it(tmp_path):
    executor = Played(other=failed("eager_fail_to_run", "more than 1 value"))
    (largest,) = search([planned()], executor, tmp_path, lambda room: None)
    assert largest.status is Status.EAGER_FAIL_TO_RUN
    assert re.search("at batch size 1: more than 1 value", largest.reason)
    assert len(executor.tried) == 1


def test_what_fitted_before_that_is_still_reported(tmp_path):
    executor = Played(try_eager=4)
    executor.failing = failed("timeout", "took too long")
    (largest,) = search([planned()], executor, tmp_path, lambda room: None)
    assert (largest.fits, largest.status) == (4, Status.TIMEOUT)
    assert " 4 (timeout) |" in words([largest])
    assert "at batch size 8: took too long" in words([largest])


def test_a_slot_that_fails_is_an_error(tmp_path):
    executor = Played()
    executor.wait = lambda timeout_s: Message(0, "failed", RuntimeError("gone"))
    with pytest.raises(RuntimeError, match="gone"):
        search([planned()], executor, tmp_path, lambda room: None)


def test_memory_that_other_programs_hold_is_no_largest_batch(tmp_path):
    slots = Played(try_eager=4)
    start = slots.start

    def shared(slot, order, log):
        start(slot, order, log)
        slots.messages[-1].value.gpu = {"other_processes": 1}

    slots.start = shared
    (found, *_) = search([planned()], slots, tmp_path, lambda _: None)
    assert (found.fits, found.fails, found.status) == (4, None, Status.INFRA_ERROR)
    assert found.reason.startswith("at batch size 8: 1 process of other programs held memory of the GPU")


def test_it_waits_for_cores_that_another_run_has(monkeypatch):
    """They are free at the second try, which comes to an end of its own here."""
    lines, tries = [], []

    def opened(settings, slots, logs):
        tries.append(slots)
        if len(tries) == 1:
            raise CoresTaken("core 0 is being measured on by process 7; end it", ["core-of-no-machine"])
        raise UsageError("opened")

    monkeypatch.setattr(find_batch_size, "open_executor", opened)
    monkeypatch.setattr(cores, "_POLL_S", 0.01)
    settings = RunSettings(suite=("timm",), models="lcnet_050", backend="eager", wait=60.0)
    with pytest.raises(UsageError, match="opened"):
        find_batch_size.find_batch_sizes(settings, *[lambda *_: None] * 4, lines.append)
    assert lines == ["core 0 is being measured on by process 7; waiting for up to 60 s"]
