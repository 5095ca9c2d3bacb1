"""Random inputs for a model of the transformers package, told from its forward and configuration.

As the public dynamo harness has it: token ids, the ids of the decoder where there is one, and labels,
so that the loss is part of what is measured.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

_SETTINGS = ("sequence", "decoder_sequence", "labels", "attention_mask")


def draw(module: Any, batch_size: int, settings: dict[str, Any]) -> dict[str, Tensor]:
    """Keyword arguments of the module's forward, on the CPU, from torch's generator.

    sequence (512): tokens of input_ids; decoder_sequence (the same): those of decoder_input_ids;
    labels (true): labels of the tokens (batch, sequence) or of the whole (batch,), or the start and end
    of an answer (batch,), whichever the head takes; attention_mask (false): a mask of ones, for data of
    different lengths. Whisper gets spectrograms of its full length
    as input_features (batch, mel bins, frames). Raises TypeError for settings and models that
    this does not know.
    """
    unknown = [key for key in settings if key not in _SETTINGS]
    if unknown:
        raise TypeError(f"inputs: unknown setting '{unknown[0]}'; there are: {', '.join(_SETTINGS)}")
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
