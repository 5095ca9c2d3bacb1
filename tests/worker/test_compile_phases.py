"""The phases of compiling add up, by a clock that stands still but where a test has planted time."""

from __future__ import annotations

import sys
import threading
import types

import pytest

from tests.lazy import lazy

torch = lazy("torch")
compile_phases = lazy("perfdash.worker.compile_phases")


class Hand:
    """A clock that only `spend` moves."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time

    def spend(self, seconds):
        self.time += seconds


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def clock(hand):
    return compile_phases.PhaseClock(hand)


def spending(hand, seconds, function):
    """The function after some seconds have passed."""

    def spends(*args, **kwargs):
        hand.spend(seconds)
        return function(*args, **kwargs)

    return spends


def test_a_phase_within_another_is_not_counted_twice(clock, hand):
    clock.enter("dynamo")
    hand.spend(1)
    clock.enter("lowering")
    hand.spend(2)
    clock.enter("dynamo")
    hand.spend(4)
    clock.leave()
    clock.leave()
    hand.spend(8)
    clock.leave()
    hand.spend(16)  # between two compilations
    clock.enter("load")
    hand.spend(32)
    clock.leave()
    assert clock.figures(65.0) == {"dynamo": 13, "lowering": 2, "load": 32, "rest": 18}


def test_a_thread_of_the_compilers_pool_is_not_counted(clock, hand):
    def compiles():
        entered.append(clock.enter("compiler"))
        hand.spend(3)

    entered = []
    clock.enter("load")
    worker = threading.Thread(target=compiles)
    worker.start()
    worker.join()
    clock.leave()
    worker = threading.Thread(target=compiles)  # a backward pass compiled by autograd's thread
    worker.start()
    worker.join()
    assert entered == [False, True]
    assert clock.figures(3.0) == {"load": 3, "rest": 0}


def test_where_nothing_is_compiled_there_are_no_phases(clock):
    assert clock.figures(0.1) is None


def test_a_torch_without_a_function_leaves_its_time_in_the_phase_around(clock, hand, monkeypatch):
    module = types.ModuleType("another_torch")
    module.scheduled = lambda: hand.spend(2)

    def lowered():
        hand.spend(1)
        module.scheduled()

    module.lowered = lowered
    monkeypatch.setitem(sys.modules, "another_torch", module)
    functions = [
        ("lowering", "another_torch", "lowered"),
        ("code_generation", "another_torch", "Gone.codegen"),
        ("load", "not_imported", "load"),
    ]
    monkeypatch.setattr(compile_phases, "_FUNCTIONS", functions)
    with compile_phases.timed(clock):
        module.lowered()
    assert module.lowered is lowered, "the original is put back"
    assert clock.seconds == {"lowering": 3}
    (note,) = clock.notes()
    assert "dynamo, aot_autograd, cache, code_generation, compiler, load" in note


def test_an_error_while_compiling_ends_its_phases(clock, monkeypatch):
    module = types.ModuleType("another_torch")

    class Cache:
        @classmethod
        def load(cls):
            raise OSError(cls.__name__)

        @staticmethod
        def key():
            return 1

    module.Cache = Cache
    monkeypatch.setitem(sys.modules, "another_torch", module)
    functions = [("load", "another_torch", "Cache.load"), ("cache", "another_torch", "Cache.key")]
    monkeypatch.setattr(compile_phases, "_FUNCTIONS", functions)
    with compile_phases.timed(clock):
        assert Cache.key() == 1
        with pytest.raises(OSError, match="Cache"):
            Cache.load()
    assert set(clock.seconds) == {"cache", "load"}
    assert clock.enter("dynamo"), "no phase is open"


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 4])
def test_seconds_planted_in_inductor_are_in_their_phases(clock, hand, monkeypatch, tmp_path, threads):
    """Other seconds in every phase of this torch, in one thread and where a pool compiles the kernels."""
    import torch._inductor.config
    import torch._inductor.runtime.triton_heuristics
    from torch._inductor import codecache, compile_fx, cpp_builder, scheduler
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    convert_frame, backends = torch._dynamo.convert_frame, torch._dynamo.backends.common

    def plant(owner, name, seconds):
        monkeypatch.setattr(owner, name, spending(hand, seconds, getattr(owner, name)))

    plant(convert_frame, "transform_code_object", 1)
    plant(backends, "aot_module_simplified", 2)
    plant(codecache, "torch_key", 4)
    plant(compile_fx, "_recursive_post_grad_passes", 8)
    plant(scheduler.Scheduler, "compute_dependencies", 16)
    plant(PythonWrapperCodegen, "generate", 32)
    plant(cpp_builder, "_run_compile_cmd", 64)
    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(4, 4 + threads), torch.nn.Softmax(1)))
    pool = torch._inductor.config.patch(compile_threads=threads)
    with pool, torch.no_grad(), compile_phases.timed(clock):
        model(torch.ones(2, 4))
    torch._dynamo.reset()
    assert clock.missing == []
    seconds = clock.seconds
    # A pool may spend the seconds before the main thread waits for it.
    compiler = seconds["compiler"] + (seconds["load"] if threads > 1 else 0.0)
    # One command a kernel, and one for each thing that this process has not asked the compiler before.
    assert compiler >= 64
    assert compiler % 64 == 0
    assert (seconds["dynamo"], seconds["aot_autograd"]) == (1, 2)
    assert seconds["cache"] in range(4, 4 * 9, 4)
    assert (seconds["lowering"], seconds["code_generation"]) == (24, 32)
    assert sum(seconds.values()) == hand.time, "nothing is lost between the phases"
