"""Models of text, sound, recommendation and control, at small sizes; their true sizes without memory."""

import importlib

import pytest

from tests.lazy import lazy

torch = lazy("torch")
deeprecommender = lazy("perfdash.worker.models.deeprecommender")
demucs = lazy("perfdash.worker.models.demucs")
dlrm = lazy("perfdash.worker.models.dlrm")
soft_actor_critic = lazy("perfdash.worker.models.soft_actor_critic")
speech_transformer = lazy("perfdash.worker.models.speech_transformer")
tacotron2 = lazy("perfdash.worker.models.tacotron2")
transformer = lazy("perfdash.worker.models.transformer")
tts_angular = lazy("perfdash.worker.models.tts_angular")
pytree = lazy("perfdash.worker.pytree")


PARAMETERS = {
    "bert_pytorch": 115_798_306,
    "deeprecommender": 204_475_711,
    "demucs": 265_679_496,
    "dlrm": 514_499_137,
    "fastnlp_bert": 108_893_186,
    "lennard_jones": 865,
    "soft_actor_critic": 67_330,
    "speech_transformer": 46_471_168,
    "tacotron2": 28_193_153,
    "transformer": 58_727_936,
    "tts_angular": 9_381_888,
}
TEXT = {"vocabulary": 50, "width": 128, "layers": 1}
SMALL = {
    "bert_pytorch": {**TEXT, "length": 12},
    "deeprecommender": {"items": 60},
    "demucs": {"channels": 4, "samples": 20_000, "cut": 0},
    "dlrm": {"rows": 50},
    "fastnlp_bert": {**TEXT, "length": 24},
    "lennard_jones": {},
    "soft_actor_critic": {},
    "speech_transformer": {**TEXT, "frames": 8},
    "tacotron2": {"characters": 10, "frames": 3},
    "transformer": {**TEXT, "length": 8},
    "tts_angular": {},
}
HAVE_LSTM = {"demucs", "tacotron2", "tts_angular"}  # dynamo breaks the graph there


def small(name, batch_size=2):
    torch.manual_seed(0)
    module, inputs = importlib.import_module(f"perfdash.worker.models.{name}").build(
        batch_size, **SMALL[name]
    )
    return module.eval(), inputs


def run(module, inputs):
    torch.manual_seed(1)
    with torch.no_grad():
        return module(*inputs)


def tensors(value):
    return list(pytree.tensors_in(value))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name):
    with torch.device("meta"):
        module, _ = importlib.import_module(f"perfdash.worker.models.{name}").build(1)
    assert sum(parameter.numel() for parameter in module.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", SMALL)
def test_a_seed_settles_the_output_and_the_batch_is_free(name):
    first, again = (tensors(run(*small(name))) for _ in range(2))
    larger = tensors(run(*small(name, batch_size=3)))
    for a, b, c in zip(first, again, larger, strict=True):
        assert a.isfinite().all()
        assert torch.equal(a, b)
        assert (a.shape[0], c.shape[0]) == (2, 3)
        assert a.shape[1:] == c.shape[1:]


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("name", SMALL)
def test_other_precisions(name, dtype):
    dtype = getattr(torch, dtype)

    def cast(tensor):
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    module, inputs = small(name)
    reference = tensors(run(module, inputs))
    pytree.cast_module(module, cast)
    outputs = tensors(run(module, pytree.map_tensors(inputs, cast)))
    assert all(output.dtype == dtype for output in outputs)
    error = 0.1 if dtype == torch.bfloat16 else 1e-4
    for output, expected in zip(outputs, reference, strict=True):
        assert (output - expected).abs().max() < error * max(1, expected.abs().max())


@pytest.mark.parametrize("name", sorted(SMALL.keys() - HAVE_LSTM))
def test_one_graph(name):
    module, inputs = small(name)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for a, b in zip(tensors(run(module, inputs)), tensors(run(compiled, inputs)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_the_loop_over_frames_is_one_graph():
    module, (text, mels) = small("tacotron2")
    inputs = (torch.randn(2, text.shape[1], tacotron2.TEXT), text != transformer.PAD, mels)
    torch.compiler.reset()
    run(torch.compile(module.decoder, backend="aot_eager", fullgraph=True), inputs)


def more_padding(tokens):
    return torch.nn.functional.pad(tokens, (0, 3), value=transformer.PAD)


def test_translation_sees_neither_padding_nor_later_words():
    module, (source, target) = small("transformer")
    logits = run(module, (source, target))
    torch.testing.assert_close(run(module, (more_padding(source), target)), logits)
    other = target.clone()
    other[:, 5:] = 7
    torch.testing.assert_close(run(module, (source, other))[:, :5], logits[:, :5])
    assert not torch.allclose(run(module, (source, other)), logits)


@pytest.mark.parametrize("name", ["bert_pytorch", "fastnlp_bert"])
def test_bert_does_not_see_padding(name):
    module, (tokens, segments) = small(name)
    longer = run(module, (more_padding(tokens), more_padding(segments)))
    for a, b in zip(run(module, (tokens, segments)), longer, strict=True):
        torch.testing.assert_close(a, b[:, : a.shape[1]])


def test_bert_gives_log_probabilities():
    next_sentence, words = run(*small("bert_pytorch"))
    for output in (next_sentence, words):
        torch.testing.assert_close(output.exp().sum(dim=-1), torch.ones(output.shape[:-1]))


def test_speech_beyond_its_length_is_not_heard():
    module, (features, _, targets) = small("speech_transformer")
    lengths = torch.tensor([8, 5])
    noisy = features.clone()
    noisy[1, 5:] = 100
    logits = run(module, (features, lengths, targets))
    torch.testing.assert_close(run(module, (noisy, lengths, targets)), logits)
    assert not torch.allclose(run(module, (noisy, torch.tensor([8, 6]), targets)), logits)


def test_speech_from_text_does_not_see_padding():
    module, (text, mels) = small("tacotron2")
    text[1, 6:] = transformer.PAD
    before = run(module, (text, mels))
    with torch.no_grad():
        module.encoder.embedding.weight[transformer.PAD] += 1
    torch.testing.assert_close(run(module, (text, mels)), before)
    alignment = before[3]
    assert (alignment[1, :, 6:] == 0).all()
    torch.testing.assert_close(alignment.sum(dim=2), torch.ones(2, 3))


def test_speech_from_text_draws_even_in_evaluation():
    module, inputs = small("tacotron2")
    torch.manual_seed(1)
    with torch.no_grad():
        first, second = module(*inputs), module(*inputs)
    assert not torch.allclose(first[0], second[0])


def test_speech_from_text_predicts_a_frame_from_earlier_ones():
    module, (text, mels) = small("tacotron2")
    frames = run(module, (text, mels))[0]
    other = mels.clone()
    other[:, :, 1:] += 1
    changed = run(module, (text, other))[0]
    torch.testing.assert_close(changed[:, :, :2], frames[:, :, :2])
    assert not torch.allclose(changed[:, :, 2], frames[:, :, 2])


def test_each_row_of_a_recommendation_has_its_own_bags():
    module, (dense, offsets, ids) = small("dlrm")
    assert (dense.shape, offsets.shape, len(ids), ids[0].shape) == ((2, 512), (8, 2), 8, (200,))
    before = run(module, (dense, offsets, ids))
    ids[0][dlrm.BAG :] = 7
    after = run(module, (dense, offsets, ids))
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[1], before[1])
    assert (before > 0).all()
    assert (before < 1).all()


def test_only_categories_that_were_read_have_gradients():
    module, inputs = small("dlrm")
    for model in (module.train(), torch.compile(module, backend="aot_eager", fullgraph=True)):
        module.zero_grad()
        model(*inputs).mean().backward()
        gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
        for name, gradient in gradients.items():
            assert gradient.is_sparse == ("tables" in name)
        assert gradients["tables.0.weight"].coalesce().indices().numel() <= inputs[2][0].unique().numel()


def test_a_reconstruction_has_the_shape_of_the_ratings():
    module, (ratings,) = small("deeprecommender")
    assert run(module, (ratings,)).shape == ratings.shape == (2, 60)
    with torch.device("meta"):
        assert deeprecommender.build(3)[1][0].shape == (3, 197_951)


def test_speaker_vectors_are_on_the_unit_sphere():
    vectors = run(*small("tts_angular"))
    assert vectors.shape == (2, 256)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))
    assert tts_angular.build(1)[1][0].shape == (1, 50, 40)


def test_the_actor_keeps_its_bounds():
    module, (observation,) = small("soft_actor_critic")
    torch.testing.assert_close(observation[:, :2].norm(dim=1), torch.ones(2))
    mean, log_std = run(module, (observation * 1e6,))
    assert mean.shape == log_std.shape == (2, 1)
    assert (mean.abs() <= 1).all()
    low, high = soft_actor_critic.LOG_STD
    assert ((low <= log_std) & (log_std <= high)).all()


def test_attentions_of_the_speech_model_have_biases_and_padding_is_zero():
    module, (features, _, targets) = small("speech_transformer")
    biases = [name for name, _ in module.named_parameters() if "attention" in name and name.endswith("bias")]
    assert len(biases) == 3 * 4
    targets[1, 4:] = transformer.PAD
    logits = run(module, (features, torch.tensor([8, 5]), targets))
    assert (logits[1, 4:] == 0).all()
    assert (logits[0] != 0).all()
    assert module.decoder.project.weight is module.decoder.embedding.tokens.weight


def test_translation_projects_by_weights_of_its_own_and_normalises_embeddings():
    module, (source, _) = small("transformer")
    assert module.decoder.project.weight is not module.decoder.embedding.tokens.weight
    embedded = run(module.embedding, (source,))
    torch.testing.assert_close(embedded.mean(dim=2), torch.zeros(source.shape), rtol=0, atol=1e-5)
    torch.testing.assert_close(embedded.std(dim=2, correction=0), torch.ones(source.shape), rtol=0, atol=1e-4)


def test_speech_from_text_drops_a_tenth_of_both_states_in_training(monkeypatch):
    module, inputs = small("tacotron2")
    dropped = []

    def dropout(x, p=0.5, training=True, inplace=False):
        dropped.append((p, training))
        return x

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    for mode in (module.eval(), module.train()):
        dropped.clear()
        run(mode, inputs)
        states = [training for p, training in dropped if p == 0.1]
        assert states == [mode.training] * (2 * 3), "both cells in each of three frames"


def test_separation_hands_back_the_true_sources():
    module, (streams,) = small("demucs")
    estimates, sources = run(module, (streams,))
    assert estimates.shape == sources.shape == (2, 4, 2, 6828)
    torch.testing.assert_close(sources, streams[:, 1:, :, 6586:-6586])
    silent = streams.clone()
    silent[:, 0] = 0  # the mix is made from the sources
    assert torch.equal(run(module, (silent,))[0], estimates)


def test_separation_leaves_out_the_last_second():
    module, (streams,) = small("demucs")
    module.cut = 1024
    before = run(module, (streams,))
    streams = streams.clone()
    streams[..., -1024:] = 0
    for expected, output in zip(before, run(module, (streams,)), strict=True):
        assert torch.equal(output, expected)
        assert output.shape[-1] < 20_000 - 1024
    with torch.device("meta"):
        module, inputs = demucs.build(1, channels=1)
        assert [output.shape for output in run(module.eval(), inputs)] == [(1, 4, 2, 371_372)] * 2


def test_full_shapes():
    with torch.device("meta"):
        assert demucs.build(1, channels=4)[1][0].shape == (1, 5, 2, 426_888)
        assert transformer.build(2)[1][0].shape == (2, 30)
        assert speech_transformer.build(2)[1][0].shape == (2, 190, 320)
