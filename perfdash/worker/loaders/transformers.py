"""Models of the transformers package by their class, with random weights by default, and random inputs.

`config` holds settings of the class's configuration, over that class's defaults; a table where the
configuration holds another one (`text_config = { hidden_size = 64 }`). Its key `pretrained` is the
checkpoint, "owner/name" or a folder, that is loaded where pretrained weights are asked for; then the
checkpoint's own configuration counts and not the other keys. `inputs` are the settings of draw_inputs.
Attention is what transformers chooses, as users get it.
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
    """The model and one batch of random inputs by keyword, `use_cache` off.

    Raises LookupError for a class, or a checkpoint, that there is none of, with near names, and
    TypeError for a key that the configuration does not know.
    """
    settings = dict(job.config)
    checkpoint = settings.pop("pretrained", None)
    model_class = _model_class(job.target)
    if job.weights != "pretrained":
        module = model_class(configuration(model_class.config_class, settings))
    elif checkpoint:
        # Read before the weights: not every class takes use_cache as a keyword of from_pretrained.
        config = _without_cache(model_class.config_class.from_pretrained(checkpoint))
        module = model_class.from_pretrained(checkpoint, config=config).float()
    else:
        raise LookupError(
            f"no pretrained weights are named for {job.case.model}: config.pretrained is not set"
        )
    return module, draw_inputs(module, job.case.batch_size, job.inputs)


def configuration(config_class: Any, settings: dict[str, Any]) -> Any:
    """A configuration with these settings. Raises TypeError for one that it does not know.

    transformers takes any keyword and keeps it unread, so a misspelt one would measure another model.
    """
    _refuse_unknown(config_class(), settings, "")
    return _without_cache(config_class(**settings))


def _model_class(name: str) -> Any:
    import transformers

    found = getattr(transformers, name, None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    known = [each for each in dir(transformers) if "For" in each or each.endswith("Model")]
    raise unknown_model("transformers", name, known)


def _refuse_unknown(default: Any, settings: dict[str, Any], where: str) -> None:
    """Compares with what a configuration holds by default, under whatever names it may be given."""
    known = {
        *(key for key in vars(default) if not key.startswith("_")),
        *inspect.signature(type(default).__init__).parameters,
        *type(default).attribute_map,
        "num_labels",  # a property, kept as the labels' names
    } - {"self", "args", "kwargs"}
    for key, value in settings.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=4, cutoff=0.6)
            hint = f" (near: {', '.join(near)})" if near else ""
            raise TypeError(f"{type(default).__name__} has no setting '{where}{key}'{hint}")
        inner = getattr(default, key, None)
        if isinstance(value, dict) and _is_configuration(inner):
            _refuse_unknown(inner, value, f"{where}{key}.")


def _without_cache(config: Any) -> Any:
    """One forward pass has no use for keys and values to go on with, and making them costs time."""
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
    """Keyword arguments of the module's forward, on the CPU, from torch's generator.

    As in the public dynamo harness: token ids, the ids of the decoder where there is one, and labels, so
    that the loss is part of what is measured. sequence (512): tokens of input_ids; decoder_sequence (the
    same): those of decoder_input_ids; labels (true): of the tokens (batch, sequence) or of the whole
    (batch,), or the start and end of an answer (batch,), whichever the head takes; attention_mask (false): a
    mask of ones, for data of different lengths. Whisper gets spectrograms of its full length as
    input_features (batch, mel bins, frames). Raises TypeError for unknown settings and models without text.
    """
    unknown = [key for key in settings if key not in _INPUT_SETTINGS]
    if unknown:
        raise TypeError(f"inputs: unknown setting '{unknown[0]}'; there are: {', '.join(_INPUT_SETTINGS)}")
    taken = inspect.signature(module.forward).parameters
    sequence = settings.get("sequence", 512)
    inputs = _main_input(module, batch_size, sequence)
    if settings.get("attention_mask", False):
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "decoder_input_ids" in taken:
        sequence = settings.get("decoder_sequence", sequence)
        inputs["decoder_input_ids"] = tokens(module.config, (batch_size, sequence))
    if settings.get("labels", True):
        inputs.update(_labels(module, taken, batch_size, sequence))
    return inputs


def tokens(config: Any, shape: tuple[int, ...]) -> Tensor:
    """Token ids in [1, vocabulary) without the padding token: models count positions without it."""
    config = getattr(config, "text_config", config)
    pad = config.pad_token_id
    if pad is None or not 1 <= pad < config.vocab_size:
        return torch.randint(1, config.vocab_size, shape)
    ids = torch.randint(1, config.vocab_size - 1, shape)
    return ids + (ids >= pad)


def _main_input(module: Any, batch_size: int, sequence: int) -> dict[str, Tensor]:
    config = module.config
    if config.model_type == "whisper":
        # The encoder halves the frames, and takes no other length than the one it has positions for.
        frames = 2 * config.max_source_positions
        return {"input_features": torch.randn(batch_size, config.num_mel_bins, frames)}
    if "input_ids" not in inspect.signature(module.forward).parameters:
        raise TypeError(
            f"{type(module).__name__} takes {module.main_input_name}, which this loader does not make: "
            "it makes text, and sound for Whisper"
        )
    return {"input_ids": tokens(config, (batch_size, sequence))}


def _labels(module: Any, taken: Any, batch_size: int, sequence: int) -> dict[str, Tensor]:
    if "start_positions" in taken:
        names = ("start_positions", "end_positions")
        return {name: torch.randint(sequence, (batch_size,)) for name in names}
    if "labels" not in taken:
        return {}
    if type(module).__name__.endswith("ForSequenceClassification"):
        return {"labels": torch.randint(module.config.num_labels, (batch_size,))}
    return {"labels": tokens(module.config, (batch_size, sequence))}
