"""Suggest the names that a user may have meant by one that does not exist. Standard library only."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# What other programs call a value; it is no misspelling, so no measure of likeness finds it.
_OTHER_NAMES = {
    "fp32": "float32", "float": "float32", "f32": "float32", "single": "float32",
    "fp16": "float16", "half": "float16", "f16": "float16",
    "bf16": "bfloat16", "autocast": "amp", "mixed": "amp",
    "gpu": "cuda", "nvidia": "cuda", "host": "cpu",
    "ort": "onnxruntime", "onnx": "onnxruntime", "ov": "openvino", "trt": "tensorrt", "aoti": "aot-inductor",
    "jit": "torchscript", "train": "training", "infer": "inference", "generate": "generation",
    "transformers": "huggingface", "hf": "huggingface",
}  # fmt: skip


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """The names most like a word or pattern, the nearest first."""
    names = list(names)
    other = _OTHER_NAMES.get(word.lower())
    plain = re.sub(r"[*?\[\]]", "", word)
    close = difflib.get_close_matches(plain, names, n=4, cutoff=0.5)
    lower = {name.lower(): name for name in names}
    if plain.lower() in lower:
        close.insert(0, lower[plain.lower()])
    if other in names:
        close.insert(0, other)
    return list(dict.fromkeys(close))


def did_you_mean(word: str, names: Iterable[str], most: int = 4) -> str:
    """` (did you mean a, b?)` for the names most like a word or pattern, or empty."""
    close = nearest(word, names)[:most]
    return f" (did you mean {', '.join(close)}?)" if close else ""


def not_one_of(option: str, word: str, names: Iterable[str]) -> str:
    """The message that a value of an option is none of its names."""
    names = list(names)
    return f"{option}: {word!r} is not one of {', '.join(names)}{did_you_mean(word, names)}"
