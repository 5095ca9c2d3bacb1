"""A generation as a step that is timed and judged."""

from __future__ import annotations

import copy

import pytest

from perfdash.records import Case, Job
from perfdash.worker.backends import int8_weights
from perfdash.worker.failures import Unmeasurable
from tests.lazy import lazy

torch = lazy("torch")
transformers = lazy("transformers", or_skip=True)
greedy_decoding = lazy("perfdash.worker.greedy_decoding")
device = lazy("perfdash.worker.device")
held_memory = lazy("perfdash.worker.held_memory")
generation = lazy("perfdash.worker.scenarios.generation")
eager_and_compiled = lazy("perfdash.worker.eager_and_compiled")


def made(new_tokens=5, positions=32, **settings):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=64, n_head=4, n_layer=2, n_positions=positions, vocab_size=101, initializer_range=0.2,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    module = transformers.GPT2LMHeadModel(config).eval()
    inputs = {"input_ids": torch.randint(101, (3, 7))}
    job = Job(Case("s", "m", scenario="generation"), "python", "", new_tokens=new_tokens, **settings)
    return eager_and_compiled.eager_side(module, inputs, job, torch.device("cpu"))


def test_prefill_and_decode_are_timed_apart():
    side = made()
    step = generation.make_step(side.module, side, device.Cpu(1))
    tokens = step()
    assert tokens.shape == (3, 5)
    assert torch.equal(step(), tokens)
    assert [len(row) for row in step.marks] == [6, 6], "before, after prefill, after each of four steps"
    assert all(row == sorted(row) for row in step.marks)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_another_model_is_judged_along_the_tokens_of_eager(cache):
    side = made(cache=cache)
    other = copy.deepcopy(side.module)
    torch.nn.init.normal_(other.transformer.h[1].mlp.c_proj.weight, std=0.5)
    eager = generation.make_step(side.module, side, device.Cpu(1))
    own = generation.make_step(other, side, device.Cpu(1))
    expected = eager.observe()["logits"]
    alone = own.observe()["logits"]
    own.follow(eager)
    along = own.observe()["logits"]
    assert expected.shape == along.shape == (3, 5, 101)
    tokens = torch.cat([side.inputs["input_ids"], eager.tokens[:, :-1]], 1)
    by_hand = other(input_ids=tokens).logits[:, -5:]
    torch.testing.assert_close(along, by_hand, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(alone[:, -1], along[:, -1]), "alone it goes its own way"


class Elsewhere:
    """Tokens on another device: all that can be done with them is to copy them."""

    def __init__(self, tokens):
        self._tokens = tokens

    def to(self, where):
        assert where == torch.device("cpu")
        return self._tokens


def test_the_judge_on_the_cpu_follows_tokens_of_the_gpu():
    side = made()
    eager = generation.make_step(side.module, side, device.Cpu(1))
    expected = eager.observe()["logits"]
    eager.tokens = Elsewhere(eager.tokens)
    judge = generation.make_step(copy.deepcopy(side.module), side, device.Cpu(1))
    judge.follow(eager)
    torch.testing.assert_close(judge.observe()["logits"], expected)


def test_more_tokens_than_positions():
    side = made(new_tokens=30)
    with pytest.raises(Unmeasurable, match="has 32 positions"):
        generation.make_step(side.module, side, device.Cpu(1))


def test_int8_weights_are_a_copy_a_quarter_of_the_size():
    pytest.importorskip("torchao")
    side = made()
    before = copy.deepcopy(side.module.state_dict())
    model = int8_weights.prepare(side.module, side.inputs, side.job)
    assert all(torch.equal(tensor, before[name]) for name, tensor in side.module.state_dict().items())
    held = sum(held_memory.storage_bytes(int8_weights.held_tensors(model)).values())
    whole = sum(held_memory.storage_bytes(held_memory.weights(side.module)).values())
    inside = 2 * 12 * 64 * 64  # elements of the linear layers: 12 hidden^2 a layer
    assert held == pytest.approx(whole - 3 * inside, rel=0.06)
    assert "8 linear layers" in int8_weights.notes(model)[0]
    step = generation.make_step(model, side, device.Cpu(1))
    assert step().shape == (3, 5)


def test_int8_weights_where_torch_cannot_tell_its_precision(monkeypatch):
    """It raises where a model's file has set one switch alone."""
    pytest.importorskip("torchao")

    def raises():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", raises)
    assert int8_weights.to_int8(made().module).int8_note


@pytest.mark.slow
def test_int8_weights_leave_eager_its_precision(monkeypatch):
    """quantize_ of older releases sets it for the process."""
    quantization = pytest.importorskip("torchao.quantization")
    quantize = quantization.quantize_

    def sets(*arguments, **keywords):
        torch.set_float32_matmul_precision("high")
        quantize(*arguments, **keywords)

    monkeypatch.setattr(quantization, "quantize_", sets)
    before = torch.get_float32_matmul_precision()
    try:
        int8_weights.to_int8(made().module)
        assert torch.get_float32_matmul_precision() == before
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_cannot_fit_is_not_tried():
    side = made(memory_limit_bytes=1000)
    step = generation.make_step(side.module, side, device.Cpu(1))
    for call in (step, step.observe):
        with pytest.raises(
            MemoryError, match="3 prompts of 7 and 5 new tokens need at least 1 MB, and there are 0 MB"
        ):
            call()
    ample = made(memory_limit_bytes=1 << 30)
    assert generation.make_step(ample.module, ample, device.Cpu(1))().shape == (3, 5)


def test_of_a_back_end_only_weights_and_cache_are_sure():
    side = made()
    dtype = torch.float32
    batch, prompt = side.inputs["input_ids"].shape
    least = greedy_decoding.weight_bytes(side.module, dtype)
    least += greedy_decoding.cache_bytes(side.module.config, batch, prompt + 4, dtype)
    assert least < greedy_decoding.least_bytes(side.module, batch, prompt, 5, dtype)
    tight = made(memory_limit_bytes=least)
    with pytest.raises(MemoryError):
        generation.make_step(tight.module, tight, device.Cpu(1))()
    assert generation.make_step(copy.deepcopy(tight.module), tight, device.Cpu(1))().shape == (3, 5)


def test_a_model_whose_code_was_not_read_is_tried():
    side = made(memory_limit_bytes=1000)
    side.module.config.model_type = "another"
    assert generation.make_step(side.module, side, device.Cpu(1))().shape == (3, 5)
