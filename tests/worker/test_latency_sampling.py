"""The sampling loop against a device that plays a script instead of a clock."""

import hashlib
import io
import math
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.records import Sampling
from perfdash.worker import failures
from tests.lazy import lazy

device = lazy("perfdash.worker.device")
latency = lazy("perfdash.worker.latency_sampling")
linux = lazy("perfdash.worker.linux")


class Script:
    """A device whose calls last what the callable says, in nanoseconds."""

    l2_flush = False
    garbage_bytes = math.inf

    def __init__(self):
        self.log = []

    def allocated(self):
        return 0

    def allocator_retries(self):
        return 0

    def between(self, start, end):
        return end - start

    def time(self, call, repeats):
        wall = sum(call() for _ in range(repeats))
        self.log.append(repeats)
        return device.Sample(wall, wall)


def test_clean_is_about_the_machine_not_the_model():
    assert latency.is_clean(device.Sample(1000, 995))
    assert not latency.is_clean(device.Sample(1000, 900, involuntary=1))
    assert not latency.is_clean(device.Sample(1000, 900))
    assert latency.is_clean(device.Sample(1000, 10, voluntary=1)), "the model slept"
    assert not latency.is_clean(device.Sample(1000, 10, voluntary=1, involuntary=1))
    assert latency.is_clean(device.Sample(1000, None))
    launched = {"wall_ns": 1000, "cpu_ns": None, "launch_ns": 300.0}
    assert latency.is_clean(device.Sample(**launched, involuntary=1)), "after the launches it had the core"
    assert latency.is_clean(device.Sample(**launched, lost_ns=90.0)), "the model waited"
    assert not latency.is_clean(device.Sample(**launched, lost_ns=90.0, involuntary=1))


def test_warm_up_goes_on_while_times_fall():
    times = iter([100, 90, 80, 70, 60, 50, *[50] * 100])
    device = Script()
    assert latency.warm_up(lambda: next(times), device) == 50
    assert len(device.log) == 11


class Circle:
    """A reference cycle, which only the garbage collector frees."""

    left = 0

    def __init__(self):
        self.itself = self
        Circle.left += 1

    def __del__(self):
        Circle.left -= 1


def test_garbage_that_fills_a_gpu_is_collected_though_gc_is_off():
    most = []

    class Small(Script):
        """Room for 5 objects beside what the warm-up left."""

        garbage_bytes = 5

        def allocated(self):
            most.append(Circle.left)
            return Circle.left

    def call():
        Circle()
        return 2_000_000

    latency.sample_pairs(call, call, Small(), Sampling(min_pairs=40, min_s=0, max_pairs=40, precision=0), 0)
    assert max(most) - most[0] <= 7, "two a pair, and the pair that passed the limit"


def test_launching_is_told_apart_by_side():
    class Gpu(Script):
        def time(self, call, repeats):
            wall = sum(call() for _ in range(repeats))
            return device.Sample(wall, None, launch_ns=wall / 4)

    pairs = latency.sample_pairs(
        lambda: 4_000_000, lambda: 2_000_000, Gpu(), Sampling(min_pairs=6, min_s=0, max_pairs=6), 0
    )
    assert pairs["launch_ns"] == {"eager": 1e6, "backend": 5e5}
    assert len(pairs["times_s"]) == len(pairs["clean"]) + 1
    assert pairs["times_s"] == sorted(pairs["times_s"])


class Decodes:
    """A step of three marks a call and more: the last part is of two steps, the second of which is slow."""

    parts = ("prefill", "decode")

    def __init__(self):
        self.marks = []

    def __call__(self):
        self.marks.append([0, 10, 30, 70])
        return 2_000_000


def test_the_last_part_is_the_sum_of_its_steps():
    pairs = latency.sample_pairs(
        Decodes(), Decodes(), Script(), Sampling(min_pairs=6, min_s=0, max_pairs=6), 0
    )
    assert pairs["parts"] == ["prefill", "decode"]
    assert pairs["eager_parts_ns"] == pairs["backend_parts_ns"] == [[10, 60]] * 6
    assert pairs["eager_steps_ns"] == [20, 40]
    assert latency.folded([1, 2, 3], 3) == [1, 2, 3]
    assert latency.of_last_part([[1, 2, 3]], [True], 3) == latency.of_last_part([], [], 3) == []


def test_the_steps_of_the_last_part_are_those_of_clean_pairs():
    class Sometimes(Decodes):
        """Only in some pairs, counted from 1, it has the core for itself."""

        def __init__(self, clean):
            super().__init__()
            self.clean, self.pair = clean, -6  # calls of the warm-up

        def __call__(self):
            self.pair += 1
            self.marks.append([0, 10, 30, 70] if self.pair in self.clean else [0, 10, 40, 170])
            return 2_000_000

    class Disturbed(Script):
        def time(self, call, repeats):
            sample = super().time(call, repeats)
            return sample if call.pair in call.clean else device.Sample(sample.wall_ns, 0.9 * sample.wall_ns)

    def sampled(clean):
        sides = Sometimes(clean), Sometimes(clean)
        return latency.sample_pairs(*sides, Disturbed(), Sampling(min_pairs=6, min_s=0, max_pairs=6), 0)

    pairs = sampled({1, 3, 5})
    assert pairs["clean"] == [True, False] * 3
    assert pairs["eager_steps_ns"] == pairs["backend_steps_ns"] == [20, 40]
    assert sampled({1, 3})["eager_steps_ns"] == []


def test_short_calls_are_batched_to_a_millisecond():
    pairs = latency.sample_pairs(
        lambda: 100_000, lambda: 30_000, Script(), Sampling(min_pairs=10, min_s=0, max_pairs=20), 0
    )
    assert pairs["repeats"] == {"eager": 10, "backend": 34}
    assert pairs["eager_ns"][0] == 100_000
    assert pairs["backend_ns"][0] == 30_000
    assert pairs["stopped"] == "precision"
    assert len(pairs["clean"]) == 10


def test_it_goes_on_until_there_are_enough_clean_pairs():
    class Disturbed(Script):
        """Every second sample of the compiled side lost a tenth of its time to another program."""

        def time(self, call, repeats):
            sample = super().time(call, repeats)
            lost = sample.wall_ns == 2e6 and sum(1 for n in self.log) % 4 < 2
            return device.Sample(sample.wall_ns, sample.wall_ns * 0.9, involuntary=1) if lost else sample

    sampling = Sampling(min_pairs=30, min_s=0, max_pairs=400)
    pairs = latency.sample_pairs(lambda: 4e6, lambda: 2e6, Disturbed(), sampling, 0)
    assert pairs["stopped"] == "precision"
    assert sum(pairs["clean"]) == 30
    assert len(pairs["clean"]) > 30


def test_who_else_was_at_work_is_recorded(monkeypatch):
    ticks = iter([{0: (10, 1000)}, {0: (13, 1100)}])
    waited = iter([{1: 0.0, 2: 5.0}, {1: 1e-9, 2: 1e9, 3: 1e12}])
    monkeypatch.setattr(linux, "stolen_ticks", lambda cores: next(ticks))
    monkeypatch.setattr(linux, "waited_s", lambda: next(waited))
    sampling = Sampling(min_pairs=6, min_s=0, max_pairs=6)
    pairs = latency.sample_pairs(lambda: 2e6, lambda: 2e6, Script(), sampling, 0)
    assert pairs["steal"] == 0.03
    assert pairs["no_core"] > 1, "the thread that waited longest, not one that was not there before"
    assert pairs["waiting"] == 0.0


def test_a_sample_beside_own_threads_begins_on_idle_cores_with_an_uncounted_call(monkeypatch):
    """OpenMP's threads spin after a call of eager, and would take the cores of the back end's own threads."""
    order = []
    monkeypatch.setattr(linux, "await_idle_threads", lambda longest_s: order.append("idle"))

    class Clock(Script):
        def time(self, call, repeats):
            order.append("sample")
            return super().time(call, repeats)

    def side(name, call_ns):
        def call():
            order.append(name)
            return call_ns

        return call

    sampling = Sampling(min_pairs=6, min_s=0, max_pairs=6)
    sides = side("eager", 2e6), side("backend", 4e8)
    pairs = latency.sample_pairs(*sides, Clock(), sampling, 0, own_threads=True)
    begins = [place for place, word in enumerate(order) if word == "idle"]
    samples = [tuple(order[start : start + 3]) for start in begins]
    assert len(samples) == 12
    assert set(samples) == {("idle", "eager", "sample"), ("idle", "sample", "backend")}, "a long call is slow"
    assert set(pairs["eager_ns"]) == {2e6}
    order.clear()
    latency.sample_pairs(*sides, Clock(), sampling, 0)
    assert "idle" not in order


def test_beside_own_threads_only_waits_during_samples_count(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(latency.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(linux, "await_idle_threads", lambda longest_s: waits.append(100.0))
    waits = []

    def waited_s():
        """Thread 1 waits 100 s before each sample, and 0.25 s within it."""
        readings.append(0.25 * (len(readings) % 2))
        return {1: sum(waits) + sum(readings)}

    readings = [0.0]
    monkeypatch.setattr(linux, "waited_s", waited_s)
    monkeypatch.setattr(linux, "stolen_ticks", lambda cores: {})
    sampling = Sampling(min_pairs=6, min_s=0, max_pairs=6)
    sides = lambda: 2e6, lambda: 2e6
    pairs = latency.sample_pairs(*sides, Script(), sampling, 0, own_threads=True)
    assert pairs["no_core"] == 0.25, "each sample took a second"


def test_the_wait_for_idle_threads_ends_when_they_sleep_or_its_time_is_over():
    ended = threading.Event()

    def work():
        hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)  # without the GIL
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    linux.await_idle_threads(0.0)
    assert not ended.is_set()
    linux.await_idle_threads(60.0)
    assert ended.is_set()
    thread.join()


def test_steal_is_that_of_the_worst_core_also_where_this_thread_is_pinned_to_another(monkeypatch):
    """A pinned thread may run on one core, and the threads beside it on others."""
    asked, times = [], iter(range(2))

    def stolen_ticks(cores):
        asked.append(set(cores))
        later = next(times)
        every = {1: (0, 100 * later), 2: (4 * later, 100 * later), 3: (1 * later, 100 * later), 4: (0, 0)}
        return {core: every[core] for core in cores if core in every}

    monkeypatch.setattr(linux, "stolen_ticks", stolen_ticks)
    sampling = Sampling(min_pairs=6, min_s=0, max_pairs=6)
    pairs = latency.sample_pairs(lambda: 2e6, lambda: 2e6, Script(), sampling, 0, [1, 2, 3, 4])
    assert asked == [{1, 2, 3, 4}] * 2
    assert pairs["steal"] == 0.04


def test_steal_is_unknown_where_the_kernel_does_not_tell(monkeypatch):
    monkeypatch.setattr(linux, "stolen_ticks", lambda cores: {})
    sampling = Sampling(min_pairs=6, min_s=0, max_pairs=6)
    assert latency.sample_pairs(lambda: 2e6, lambda: 2e6, Script(), sampling, 0)["steal"] is None


def test_what_the_kernel_tells_of_waiting():
    ticks = linux.stolen_ticks(os.sched_getaffinity(0))
    assert set(ticks) == os.sched_getaffinity(0)
    assert all(0 <= stolen <= total for stolen, total in ticks.values())
    assert linux.stolen_ticks([10**6]) == {}
    waited = linux.waited_s()
    assert threading.get_native_id() in waited
    assert all(seconds >= 0 for seconds in waited.values())


def test_waiting_is_unknown_where_the_kernel_does_not_count_it(monkeypatch):
    """Without CONFIG_SCHED_INFO every schedstat is 0 0 0; other kernels have no such file."""
    monkeypatch.setattr(linux, "open", lambda path: io.StringIO("0 0 0\n"), raising=False)
    assert linux.waited_s() == {}
    monkeypatch.undo()
    monkeypatch.setattr(linux, "waited_s", dict)
    sampling = Sampling(min_pairs=6, min_s=0, max_pairs=6)
    assert latency.sample_pairs(lambda: 2e6, lambda: 2e6, Script(), sampling, 0)["no_core"] is None


@pytest.mark.parametrize("calls", [0, 30])
@pytest.mark.parametrize(
    ("failing", "error", "status"),
    [
        ("eager", ValueError, "eager_fail_to_run"),
        ("backend", ValueError, "fail_to_run"),
        ("eager", MemoryError, "oom"),
        ("backend", MemoryError, "oom"),
    ],
)
def test_an_error_of_eager_is_not_one_of_the_back_end(calls, failing, error, status):
    """In warming up, and later. A lack of memory may be due to what the other side holds."""
    done = {"eager": 0, "backend": 0}

    def side(name):
        def call():
            done[name] += 1
            if name == failing and done[name] > calls:
                raise error("it is over")
            return 2_000_000

        return call

    sampling = Sampling(min_pairs=40, min_s=0, max_pairs=40)
    with pytest.raises(error) as raised:
        latency.sample_pairs(side("eager"), side("backend"), Script(), sampling, 7)
    assert failures.describe("latency", raised.value)["status"] == status


def test_the_order_within_pairs_is_random_and_seeded():
    order = []

    def side(name):
        def call():
            order.append(name)
            return 2_000_000

        return call

    def run():
        order.clear()
        latency.sample_pairs(side("a"), side("b"), Script(), Sampling(min_pairs=40, min_s=0, max_pairs=40), 7)
        return order[-80:]

    first = run()
    firsts = first[0::2]
    assert 8 < firsts.count("a") < 32
    assert all({left, two} == {"a", "b"} for left, two in zip(first[0::2], first[1::2], strict=True))
    assert run() == first


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=300))
def test_half_width_is_finite_and_within_the_range(ratios):
    assert 0 <= latency.half_width(ratios) <= (max(ratios) - min(ratios)) / 2


def test_half_width_of_few_is_infinite():
    assert latency.half_width([0.0] * 5) == math.inf


def test_cpu_samples_tell_cpu_time_and_waiting():
    import time

    busy = device.Cpu(threads=1).time(lambda: sum(range(200_000)), 1)
    assert busy.cpu_ns is not None
    assert busy.cpu_ns > 0
    asleep = device.Cpu(threads=1).time(lambda: time.sleep(0.01), 1)
    assert asleep.voluntary >= 1
    assert asleep.wall_ns > 9e6
    assert asleep.cpu_ns < 5e6
    assert device.Cpu(threads=2).time(lambda: None, 1).cpu_ns is None
