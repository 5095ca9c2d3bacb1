"""The transformers loader on tiny configurations, and the sizes that the suites state."""

import pytest

from perfdash.records import Case, Job, Status
from perfdash.suites.suite_file import inputs_on, load_suite, suite_names
from perfdash.worker import failures
from tests.lazy import lazy

torch = lazy("torch", or_skip=True)
transformers = lazy("transformers", or_skip=True)
loader = lazy("perfdash.worker.loaders.transformers")


BERT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
GPT2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2}
BART = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
T5 = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
GEMMA3 = {
    "text_config": {
        "vocab_size": 50,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
    },
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 56,
    },
}
IDS, LABELS = {"input_ids": (2, 24)}, {"labels": (2, 24)}
DECODER = {"decoder_input_ids": (2, 24)}
ANSWER = {"start_positions": (2,), "end_positions": (2,)}
TINY = [
    ("BertForMaskedLM", BERT, {**IDS, **LABELS}, (2, 24, 50)),
    ("RobertaForCausalLM", {**BERT, "max_position_embeddings": 26}, {**IDS, **LABELS}, (2, 24, 50)),
    ("GPT2LMHeadModel", GPT2, {**IDS, **LABELS}, (2, 24, 50)),
    ("GPT2ForSequenceClassification", {**GPT2, "pad_token_id": 0}, {**IDS, "labels": (2,)}, (2, 2)),
    ("BertForQuestionAnswering", BERT, {**IDS, **ANSWER}, None),
    ("T5ForConditionalGeneration", T5, {**IDS, **DECODER, **LABELS}, (2, 24, 50)),
    ("BartForConditionalGeneration", BART, {**IDS, **DECODER, **LABELS}, (2, 24, 50)),
    ("Gemma3ForConditionalGeneration", GEMMA3, {**IDS, **LABELS}, (2, 24, 50)),
]


def job(target, config=None, inputs=None, batch_size=2, weights="random"):
    case = Case("test", target, batch_size=batch_size)
    return Job(
        case, "transformers", target, scratch="", config=config or {}, inputs=inputs or {}, weights=weights
    )


def load(*arguments, **keywords):
    torch.manual_seed(0)
    module, inputs = loader.load(job(*arguments, **keywords))
    return module.eval(), inputs


def shapes(inputs):
    return {name: tuple(tensor.shape) for name, tensor in inputs.items()}


@pytest.mark.parametrize(("target", "config", "expected", "logits"), TINY, ids=[row[0] for row in TINY])
def test_inputs_fit_the_head_and_a_seed_settles_all(target, config, expected, logits):
    module, inputs = load(target, config, {"sequence": 24})
    assert shapes(inputs) == expected
    for name, tensor in inputs.items():
        if name.endswith("positions"):
            assert 0 <= int(tensor.min()) <= int(tensor.max()) < 24
        elif tensor.dim() == 2:
            assert 1 <= int(tensor.min()) <= int(tensor.max()) < 50
    with torch.no_grad():
        first = module(**inputs)
    assert torch.isfinite(first.loss)
    if logits:
        assert first.logits.shape == logits
    assert "past_key_values" not in first, "nothing is kept to go on with"

    again, same_inputs = load(target, config, {"sequence": 24})
    with torch.no_grad():
        second = again(**same_inputs)
    assert torch.equal(first.loss, second.loss)


def test_the_padding_token_is_not_drawn_and_all_others_are():
    config = {**BERT, "pad_token_id": 7, "max_position_embeddings": 4096}
    _, inputs = load("BertForMaskedLM", config, {"sequence": 4096}, batch_size=1)
    assert set(inputs["input_ids"].flatten().tolist()) == {*range(1, 50)} - {7}


def test_without_labels_and_with_a_decoder_of_its_own_length():
    _, inputs = load(
        "BartForConditionalGeneration", BART, {"sequence": 24, "decoder_sequence": 8, "labels": False}
    )
    assert shapes(inputs) == {"input_ids": (2, 24), "decoder_input_ids": (2, 8)}


def test_speech_is_a_spectrogram_of_the_encoders_length():
    config = {**BART, "num_mel_bins": 4, "max_source_positions": 20, "pad_token_id": 0}
    config.update(begin_suppress_tokens=[], bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    module, inputs = load("WhisperForConditionalGeneration", config, {"decoder_sequence": 8})
    assert shapes(inputs) == {"input_features": (2, 4, 40), "decoder_input_ids": (2, 8), "labels": (2, 8)}
    with torch.no_grad():
        assert module(**inputs).logits.shape == (2, 8, 50)


def test_an_unknown_class_is_reported_with_near_names():
    with pytest.raises(LookupError, match="BertForMaskedLM") as caught:
        loader.load(job("BertForMaskLM"))
    assert failures.classify("load", caught.value) is Status.MODEL_FAIL_TO_LOAD
    with pytest.raises(LookupError, match="no model 'AutoTokenizer'"):
        loader.load(job("AutoTokenizer"))


def test_what_is_not_known_is_refused_and_not_kept_unread():
    with pytest.raises(
        TypeError, match=r"BertConfig has no setting 'num_hiden_layers' \(did you mean num_hidden_l"
    ):
        loader.load(job("BertForMaskedLM", {**BERT, "num_hiden_layers": 2}))
    with pytest.raises(TypeError, match=r"no setting 'text_config\.hiden_size'"):
        loader.load(job("Gemma3ForConditionalGeneration", {"text_config": {"hiden_size": 2}}))
    with pytest.raises(TypeError, match="unknown setting 'length'; there are: sequence"):
        loader.load(job("BertForMaskedLM", BERT, {"length": 2}))
    vit = {key: value for key, value in BERT.items() if key != "vocab_size"}
    with pytest.raises(TypeError, match="ViTModel takes pixel_values"):
        loader.load(job("ViTModel", vit))


def test_a_setting_may_go_by_any_of_its_names():
    config = loader.configuration(transformers.GPT2Config, {"hidden_size": 32, "n_head": 2, "num_labels": 3})
    assert (config.n_embd, config.num_labels) == (32, 3)


def test_pretrained_weights_come_from_the_checkpoint_with_its_configuration(tmp_path):
    saved = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)).to(torch.bfloat16)
    saved.save_pretrained(tmp_path)
    module, inputs = load(
        "GPT2LMHeadModel", {"pretrained": str(tmp_path), "n_layer": 4}, {"sequence": 24}, weights="pretrained"
    )
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert module.config.n_layer == 1
    assert not module.config.use_cache
    for name, tensor in saved.state_dict().items():
        assert torch.equal(module.state_dict()[name], tensor.float()), name
    with torch.no_grad():
        assert torch.isfinite(module(**inputs).loss)


def test_without_a_checkpoint_there_are_no_pretrained_weights():
    with pytest.raises(LookupError, match=r"config\.pretrained is not set"):
        loader.load(job("GPT2LMHeadModel", GPT2, weights="pretrained"))


def stated():
    """Every model that a suite has from transformers; of each class all but the smallest are slow."""
    suites = [load_suite(name) for name in suite_names()]
    models = [(suite, model) for suite in suites for model in suite.models]
    seen = set()
    for suite, model in sorted(models, key=lambda pair: pair[1].parameters or 0):
        if suite.loader_of(model) == "transformers":
            target = model.target or model.name
            marks = [pytest.mark.slow] if target in seen else []
            seen.add(target)
            yield pytest.param(suite, model, id=f"{suite.name}-{model.name}", marks=marks)


@pytest.mark.parametrize(("suite", "model"), list(stated()))
def test_models_of_the_suites_have_the_size_stated(suite, model):
    target = model.target or model.name
    if not hasattr(transformers, target):
        pytest.skip(f"this transformers has no {target}")
    config, inputs = suite.setting(model, "config"), inputs_on("cpu", suite.setting(model, "inputs"))
    with torch.device("meta"):
        module, drawn = loader.load(job(target, config, inputs))
    assert sum(parameter.numel() for parameter in module.parameters()) == model.parameters
    assert all(tensor.shape[0] == 2 for tensor in drawn.values())
