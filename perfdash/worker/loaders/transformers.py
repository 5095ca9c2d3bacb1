"""Loader of transformers models by class name, with random inputs.

Weights are random by default. `config` overrides settings of the class's configuration; a nested
configuration takes a table (`text_config = { hidden_size = 64 }`). Its key `pretrained` is the checkpoint,
"owner/name" or a folder, that is loaded when pretrained weights are requested; the checkpoint's own
configuration then applies, and the other keys are ignored. `inputs` are the settings of draw_inputs.
transformers chooses the attention implementation, as it does for users.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import torch
from torch import Tensor

from perfdash.records import Job
from perfdash.worker.failures import unknown_model

PRELOAD = ("transformers",)
_INPUT_SETTINGS = ("sequence", "decoder_sequence", "labels", "attention_mask")


def load(job: Job) -> tuple[Any, dict[str, Any]]:
    """Create the model and a batch of random keyword inputs, with `use_cache` off.

    Raises LookupError for an unknown class (with near names) or where pretrained weights are requested
    without a checkpoint, TypeError for an unknown key of the configuration.
    """
    settings = dict(job.config)
    checkpoint = settings.pop("pretrained", None)
    model_class = _model_class(job.target)
    if job.weights != "pretrained":
        module = model_class(configuration(model_class.config_class, settings))
    elif checkpoint:
        # The configuration is read first: not every class accepts use_cache in from_pretrained.
        config = _without_cache(model_class.config_class.from_pretrained(checkpoint))
        module = model_class.from_pretrained(checkpoint, config=config).float()
    else:
        raise LookupError(
            f"no pretrained weights are named for {job.case.model}: config.pretrained is not set"
        )
    return module, draw_inputs(module, job.case.batch_size, job.inputs)


def configuration(config_class: Any, settings: dict[str, Any]) -> Any:
    """Create a configuration with these settings.

    Raises TypeError for an unknown setting: transformers stores any keyword without reading it, so a
    misspelt setting would measure another model.
    """
    _refuse_unknown(config_class(), settings, "")
    return _without_cache(config_class(**settings))


def _model_class(name: str) -> Any:
    import transformers

    model_class = getattr(transformers, name, None)
    if isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel):
        return model_class
    class_names = [entry for entry in dir(transformers) if "For" in entry or entry.endswith("Model")]
    raise unknown_model("transformers", name, class_names)


def _refuse_unknown(default: Any, settings: dict[str, Any], where: str) -> None:
    """Raise TypeError for settings that the default configuration does not have.

    Aliases and constructor arguments count as settings. `where` is the prefix of a nested configuration.
    """
    setting_names = {
        *(key for key in vars(default) if not key.startswith("_")),
        *inspect.signature(type(default).__init__).parameters,
        *type(default).attribute_map,
        "num_labels",  # a property that is computed from the labels' names
    } - {"self", "args", "kwargs"}
    for key, value in settings.items():
        if key not in setting_names:
            near = difflib.get_close_matches(key, setting_names, n=4, cutoff=0.6)
            hint = f" (did you mean {', '.join(near)}?)" if near else ""
            raise TypeError(f"{type(default).__name__} has no setting '{where}{key}'{hint}")
        inner = getattr(default, key, None)
        if isinstance(value, dict) and _is_configuration(inner):
            _refuse_unknown(inner, value, f"{where}{key}.")


def _without_cache(config: Any) -> Any:
    """Turn off the cache of keys and values, in nested configurations too.

    A single forward pass does not use the cache, and filling it costs time.
    """
    if hasattr(config, "use_cache"):
        config.use_cache = False
    for inner in vars(config).values():
        if _is_configuration(inner):
            _without_cache(inner)
    return config


def _is_configuration(value: Any) -> bool:
    import transformers

    return isinstance(value, transformers.PretrainedConfig)


def draw_inputs(module: Any, batch_size: int, settings: dict[str, Any]) -> dict[str, Tensor]:
    """Draw keyword arguments of the module's forward, on the CPU, from torch's generator.

    As in the public dynamo harness they are token ids, token ids of the decoder where the model has a
    decoder, and labels, so that the loss is measured too. The settings and their defaults:

    - sequence (512): the number of tokens of input_ids;
    - decoder_sequence (as sequence): the number of tokens of decoder_input_ids;
    - labels (true): pass the labels that the head takes: of the tokens (batch, sequence), of the sequences
      (batch,), or the start and end of an answer (batch,);
    - attention_mask (false): pass a mask of ones, for data of different lengths.

    Whisper gets spectrograms of its full length as input_features (batch, mel bins, frames). Raises
    TypeError for unknown settings and for models that take neither text nor Whisper's spectrograms.
    """
    unknown = [key for key in settings if key not in _INPUT_SETTINGS]
    if unknown:
        raise TypeError(f"inputs: unknown setting '{unknown[0]}'; there are: {', '.join(_INPUT_SETTINGS)}")
    parameters = inspect.signature(module.forward).parameters
    sequence = settings.get("sequence", 512)
    inputs = _main_input(module, batch_size, sequence)
    if settings.get("attention_mask", False):
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "decoder_input_ids" in parameters:
        sequence = settings.get("decoder_sequence", sequence)
        inputs["decoder_input_ids"] = tokens(module.config, (batch_size, sequence))
    if settings.get("labels", True):
        inputs.update(_labels(module, parameters, batch_size, sequence))
    return inputs


def tokens(config: Any, shape: tuple[int, ...]) -> Tensor:
    """Draw token ids in [1, vocabulary) without the padding token.

    Models leave padding out when they count positions.
    """
    config = getattr(config, "text_config", config)
    pad = config.pad_token_id
    if pad is None or not 1 <= pad < config.vocab_size:
        return torch.randint(1, config.vocab_size, shape)
    ids = torch.randint(1, config.vocab_size - 1, shape)
    return ids + (ids >= pad)


def _main_input(module: Any, batch_size: int, sequence: int) -> dict[str, Tensor]:
    config = module.config
    if config.model_type == "whisper":
        # The encoder halves the frames and accepts only the length for which it has positions.
        frames = 2 * config.max_source_positions
        return {"input_features": torch.randn(batch_size, config.num_mel_bins, frames)}
    if "input_ids" not in inspect.signature(module.forward).parameters:
        raise TypeError(
            f"{type(module).__name__} takes {module.main_input_name}, which this loader does not make: "
            "it makes text, and sound for Whisper"
        )
    return {"input_ids": tokens(config, (batch_size, sequence))}


def _labels(module: Any, parameters: Any, batch_size: int, sequence: int) -> dict[str, Tensor]:
    if "start_positions" in parameters:
        names = ("start_positions", "end_positions")
        return {name: torch.randint(sequence, (batch_size,)) for name in names}
    if "labels" not in parameters:
        return {}
    if type(module).__name__.endswith("ForSequenceClassification"):
        return {"labels": torch.randint(module.config.num_labels, (batch_size,))}
    return {"labels": tokens(module.config, (batch_size, sequence))}
