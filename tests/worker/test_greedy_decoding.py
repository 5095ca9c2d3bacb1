import copy
import functools

import pytest

from tests.lazy import lazy

torch = lazy("torch")
transformers = lazy("transformers", or_skip=True)
int8_weights = lazy("perfdash.worker.backends.int8_weights")
greedy_decoding = lazy("perfdash.worker.greedy_decoding")


BATCH, PROMPT, NEW, VOCABULARY = 3, 7, 6, 101
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SHAPE = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 32, "vocab_size": VOCABULARY}


@functools.cache
def model(name, dtype="float32"):
    # Weights ten times the usual size, so that the chosen tokens are far apart and differ from step to step.
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    wide = {**SHAPE, **NO_TOKENS, "initializer_range": 0.2}
    if name == "gpt2":
        made = transformers.GPT2LMHeadModel(transformers.GPT2Config(**wide))
    elif name == "multi_query":
        config = transformers.GPTBigCodeConfig(**wide, multi_query=True)
        made = transformers.GPTBigCodeForCausalLM(config)
    else:
        wide["hidden_size"] = wide.pop("n_embd")
        del wide["n_positions"]
        made = transformers.BloomForCausalLM(transformers.BloomConfig(**wide))
    return made.eval().to(getattr(torch, dtype))


def prompts(length=PROMPT):
    return {
        "input_ids": torch.randint(VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(1))
    }


MODELS = pytest.mark.parametrize("name", ["gpt2", "multi_query", "bloom"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
CACHES = ("dynamic", "static")
BOTH = pytest.mark.parametrize("cache", CACHES)


@MODELS
@DTYPES
@BOTH
def test_tokens_are_those_of_generate_and_of_every_later_call(name, dtype, cache):
    module = model(name, dtype)
    decode = greedy_decoding.GreedyDecoder(module, module, prompts(), NEW, cache)
    tokens = decode().tokens
    kind = "static" if cache == "static" else None  # which generate compiles on GPUs only
    expected = module.generate(
        **prompts(),
        attention_mask=torch.ones(BATCH, PROMPT, dtype=torch.int64),
        max_new_tokens=NEW,
        do_sample=False,
        cache_implementation=kind,
    )[:, PROMPT:]
    assert (tokens.shape, tokens.dtype) == ((BATCH, NEW), torch.int64)
    assert len(tokens.unique()) > NEW // 2
    assert torch.equal(tokens, expected)
    assert torch.equal(decode().tokens, tokens)
    other = greedy_decoding.GreedyDecoder(
        module, module, {"input_ids": prompts()["input_ids"] * 0 + 5}, NEW, cache
    )
    other()
    assert torch.equal(decode().tokens, tokens)


@MODELS
@DTYPES
@BOTH
def test_logits_are_those_of_a_forward_pass_over_all_tokens(name, dtype, cache):
    module = model(name, dtype)
    decode = greedy_decoding.GreedyDecoder(module, module, prompts(), NEW, cache)
    tokens, logits = decode(keep_logits=BATCH)
    with torch.no_grad():
        whole = torch.cat([prompts()["input_ids"], tokens], dim=1)
        expected = module(input_ids=whole, use_cache=False).logits[:, PROMPT - 1 : -1]
    assert logits.shape == (BATCH, NEW, VOCABULARY)
    assert error(logits, expected) < (1e-5 if dtype == "float32" else 2e-2)
    assert decode().logits is None


def test_some_logits_are_of_the_first_and_the_last_prompts():
    module = model("gpt2")
    many = {"input_ids": torch.randint(VOCABULARY, (7, PROMPT), generator=torch.Generator().manual_seed(3))}
    decode = greedy_decoding.GreedyDecoder(module, module, many, NEW)
    every = decode(keep_logits=7).logits
    assert torch.equal(decode(keep_logits=3).logits, every[[0, 1, 6]])
    assert torch.equal(decode(keep_logits=1).logits, every[[0]])
    assert torch.equal(decode(keep_logits=9).logits, every)


def test_forced_tokens_are_gone_on_with_instead_of_the_chosen_ones():
    module = model("gpt2")
    forced = torch.randint(VOCABULARY, (BATCH, NEW), generator=torch.Generator().manual_seed(2))
    tokens, logits = greedy_decoding.GreedyDecoder(module, module, prompts(), NEW)(
        keep_logits=BATCH, forced=forced
    )
    with torch.no_grad():
        whole = torch.cat([prompts()["input_ids"], forced], dim=1)
        expected = module(input_ids=whole, use_cache=False).logits[:, PROMPT - 1 : -1]
    assert error(logits, expected) < 1e-5
    assert torch.equal(tokens, expected.argmax(-1))


class Calls:
    """A model that notes, with the marks of a clock that it is too, how long each input was."""

    def __init__(self, module):
        self.module, self.seen = module, []

    def __call__(self, input_ids, **keywords):
        self.seen.append(input_ids.shape[1])
        return self.module(input_ids=input_ids, **keywords)

    def mark(self):
        self.seen.append("mark")


@BOTH
def test_prefill_and_each_step_lie_between_marks(cache):
    module = model("gpt2")
    calls = Calls(module)
    greedy_decoding.GreedyDecoder(calls, module, prompts(), 3, cache)(calls)
    assert calls.seen == ["mark", PROMPT, "mark", 1, "mark", 1, "mark"]
    calls.seen.clear()
    assert greedy_decoding.GreedyDecoder(calls, module, prompts(), 1, cache)(calls).tokens.shape == (BATCH, 1)
    assert calls.seen == ["mark", PROMPT, "mark"]


@pytest.mark.slow
@MODELS
@pytest.mark.parametrize(("cache", "graphs"), [("static", 2), ("dynamic", 3)])
def test_compiles_whole_and_in_the_first_call_only(name, cache, graphs):
    made = []

    def count(graph, inputs):
        made.append(graph)
        return graph.forward

    torch._dynamo.reset()
    module = model(name)
    compiled = torch.compile(module, backend=count, fullgraph=True)
    decode = greedy_decoding.GreedyDecoder(compiled, module, prompts(), NEW, cache)
    plain = greedy_decoding.GreedyDecoder(module, module, prompts(), NEW, cache)().tokens
    for _ in range(3):
        assert torch.equal(decode().tokens, plain)
        assert len(made) == graphs
    decode(keep_logits=1, forced=plain)
    assert len(made) == graphs, "what is checked is what is timed"
    torch._dynamo.reset()


def test_the_last_position_and_not_one_more():
    module = model("gpt2")
    greedy_decoding.check(module, 20, 12)
    with pytest.raises(ValueError, match=r"prompt of 20 and 13 new tokens are 33; GPT2LMHeadModel has 32"):
        greedy_decoding.GreedyDecoder(module, module, prompts(20), 13)
    greedy_decoding.check(model("bloom"), 20, 10_000)


def test_models_without_a_cache_are_refused():
    settings = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": VOCABULARY}
    config = transformers.BertConfig(**settings, intermediate_size=64)
    masked = transformers.BertForMaskedLM(config).eval()
    with pytest.raises(ValueError, match="BertForMaskedLM has no cache"):
        greedy_decoding.GreedyDecoder(masked, masked, prompts(), NEW)
    # It fills a cache even where its attention looks both ways.
    encoder = transformers.BertLMHeadModel(config).eval()
    with pytest.raises(ValueError, match="BertLMHeadModel is configured as an encoder"):
        greedy_decoding.GreedyDecoder(encoder, encoder, prompts(), NEW)
    config.is_decoder = True
    greedy_decoding.GreedyDecoder(encoder, encoder, prompts(), NEW)


@BOTH
def test_a_model_that_leaves_the_cache_empty_is_refused(cache):
    module = model("gpt2")

    def forgetful(input_ids, past_key_values, use_cache, logits_to_keep):
        return module(input_ids=input_ids, use_cache=False)

    with pytest.raises(ValueError, match="left it empty"):
        greedy_decoding.GreedyDecoder(forgetful, module, prompts(), NEW, cache)()


def test_inputs_that_are_no_prompts_are_refused():
    module = model("gpt2")
    assert greedy_decoding.CACHES == CACHES
    with pytest.raises(ValueError, match="input_ids of shape"):
        greedy_decoding.GreedyDecoder(module, module, {**prompts(), "labels": prompts()["input_ids"]}, NEW)
    with pytest.raises(ValueError, match="no cache 'paged'"):
        greedy_decoding.GreedyDecoder(module, module, prompts(), NEW, "paged")
    with pytest.raises(ValueError, match="both must be at least 1"):
        greedy_decoding.GreedyDecoder(module, module, prompts(), 0)


@MODELS
def test_linear_layers_compute_what_conv1d_layers_did(name):
    module = model(name)
    changed = int8_weights.with_linear_layers(copy.deepcopy(module))
    assert not [layer for layer in changed.modules() if type(layer).__name__ == "Conv1D"]
    with torch.no_grad():
        assert error(changed(**prompts()).logits, module(**prompts()).logits) < 1e-6


@MODELS
@DTYPES
def test_int8_is_near_and_the_original_untouched(name, dtype):
    pytest.importorskip("torchao")
    module = model(name, dtype)
    dtype = getattr(torch, dtype)
    tokens, logits = greedy_decoding.GreedyDecoder(module, module, prompts(), NEW)(keep_logits=BATCH)
    small = int8_weights.to_int8(module)
    near = greedy_decoding.GreedyDecoder(small, small, prompts(), NEW)(
        keep_logits=BATCH, forced=tokens
    ).logits
    assert 0 < error(near, logits) < 0.1
    assert torch.equal(
        greedy_decoding.GreedyDecoder(module, module, prompts(), NEW)(keep_logits=BATCH).logits, logits
    )
    assert small.int8_note.startswith("int8 weights in 8 linear layers, with ")
    assert greedy_decoding.weight_bytes(small, dtype) < 0.6 * greedy_decoding.weight_bytes(module, dtype)


@pytest.mark.parametrize(
    ("name", "heads"), [("gpt2", 4), ("multi_query", 1), ("bloom", 4)], ids=["gpt2", "multi_query", "bloom"]
)
def test_the_cache_is_as_large_as_calculated(name, heads):
    module = model(name)
    # 2 (keys and values) x 2 layers x 3 prompts x heads x 13 positions x 16 values x 4 bytes
    assert greedy_decoding.cache_bytes(module.config, 3, 13, torch.float32) == 2 * 2 * 3 * heads * 13 * 16 * 4
    made = transformers.StaticCache(config=module.config, max_cache_len=13)
    with torch.no_grad():
        module(**prompts(), past_key_values=made, use_cache=True)
    cache_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in made.layers)
    assert cache_bytes == greedy_decoding.cache_bytes(module.config, 3, 13, torch.float32)


def test_estimate_by_hand():
    module = model("gpt2")
    # GPT-2: embeddings of 101 tokens and 32 positions, two blocks of 12 h^2 + 13 h, the last norm of 2 h.
    weights = 4 * (101 * 64 + 32 * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64)
    assert greedy_decoding.weight_bytes(module, torch.float32) == weights
    # Prefill: keys and values of 20 positions; four tensors of 4 h in GELU beside two of h.
    prefill = 2 * 2 * 3 * 20 * 64 * 4 + 3 * 20 * (4 * 256 + 2 * 64) * 4
    assert greedy_decoding.least_bytes(module, 3, 20, 2, torch.float32) == weights + prefill
    # Last step of many: keys and values of 31 positions, the last token's not; the activations of one token.
    step = 2 * 2 * 3 * 31 * 64 * 4 + 3 * (4 * 256 + 2 * 64) * 4
    assert greedy_decoding.least_bytes(module, 3, 1, 31, torch.float32) == weights + step


def test_estimate_of_the_reference_size_needs_no_memory():
    shape = {"hidden_size": 2048, "n_head": 16, "n_layer": 24, "vocab_size": 50_258}
    with torch.device("meta"):
        module = transformers.BloomForCausalLM(transformers.BloomConfig(**shape))
    assert greedy_decoding.weight_bytes(module, torch.bfloat16) == 2 * 1_311_535_104
    estimate = greedy_decoding.least_bytes(module, 1, 8, 100, torch.bfloat16)
    assert 2.6e9 < estimate < 2.7e9
    # Keys and values of a bfloat16 token: 196,608 bytes.
    assert greedy_decoding.least_bytes(module, 1920, 8, 100, torch.bfloat16) - estimate > 1919 * 107 * 196_608


def error(actual, expected):
    """Relative root mean square of the difference."""
    actual, expected = actual.double(), expected.double()
    return ((actual - expected).square().mean() / expected.square().mean()).sqrt().item()
