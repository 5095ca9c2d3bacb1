"""Initial weights of a model: from the user's file, or random.

A file is safetensors or a state dict; no code in it is run. Random weights get norm statistics, so that
they behave as if trained.
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any, Iterable

import torch
from torch import Tensor, nn

_SHOWN = 3
_ADVICE = "give weights that were saved from this very model in the same configuration (number of classes)"


def set_norm_statistics(module: nn.Module, images: Tensor) -> None:
    """Set batch normalisation's running statistics from one batch, as training would.

    With untrained statistics activations vanish with depth until the output does not depend on the images,
    and an accuracy check would pass any compiled code. A module with batch normalisation is left in training
    mode, any other module is unchanged.
    """
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        module.train()(images)
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum


def load_into(module: nn.Module, path: str) -> None:
    """Copy all of the file's weights into the module, in the module's dtypes.

    If a weight does not fit, none is copied. A file with the suffix `.safetensors` is safetensors; any
    other file was written by torch.save: a state dict, or a dict that contains it as `state_dict`. The
    prefix `module.` of DataParallel is removed. Raises FileNotFoundError, ImportError without safetensors,
    and ValueError with the file's name for a file that cannot be read, would run code, or does not fit.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: --weights takes a file of weights")
    weights = _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file)
    weights = _without_prefix(weights, module)
    state: dict[str, Tensor] = module.state_dict(keep_vars=True)
    faults = _faults(weights, state, {name for name, _ in module.named_buffers()})
    if faults:
        raise ValueError(f"{file} does not fit {type(module).__name__}: {'; '.join(faults)}. {_ADVICE}")
    module.load_state_dict({name: tensor for name, tensor in weights.items() if name in state}, strict=False)


def _faults(weights: dict[str, Tensor], state: dict[str, Tensor], buffers: Iterable[str]) -> list[str]:
    """Describe how the file's weights differ from the module's, one phrase per kind."""
    # A tied weight is one tensor under several names; safetensors keeps only one name.
    first_names: dict[int, str] = {}
    for name, tensor in state.items():
        if name in weights:
            first_names.setdefault(id(tensor), name)
    missing = [
        name
        for name, tensor in state.items()
        # Inference does not use the count of training batches, and older files do not have it.
        if id(tensor) not in first_names and not name.endswith("num_batches_tracked")
    ]
    # Older files hold buffers, such as position ids, that the module now computes itself.
    unexpected = [name for name in weights if name not in state and name not in set(buffers)]
    misshapen = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in state.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    split = [
        name
        for name, tensor in state.items()
        if name in weights and not torch.equal(weights[name], weights[first_names[id(tensor)]])
    ]
    return [
        f"{len(names)} {kind} ({', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''})"
        for kind, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", misshapen),
            ("tied to another in the model, but not in the file", split),
        )
        if names
    ]


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError(
            f"{file} needs the package safetensors: pip install safetensors, or save a state dict with "
            "torch.save"
        ) from error
    try:
        return load_file(str(file))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is no safetensors file that can be read: {error}") from error


def _read_torch(file: Path) -> dict[str, Tensor]:
    # Before torch 2.6, a file could run code in spite of weights_only (CVE-2025-32434).
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise ValueError(
            f"{file}: torch {torch.__version__} reads such a file unsafely: save it as .safetensors"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle's protocol: the file loads, or raises
            content = torch.load(str(file), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{file} is refused: it is broken, or holds more than tensors, which could run code "
            f"({_reason(error)}). Save it with torch.save(model.state_dict(), FILE), or as .safetensors"
        ) from None
    except Exception as error:  # a broken file raises any type: RuntimeError, EOFError ...
        raise ValueError(
            f"{file} is no file of weights that can be read ({type(error).__name__}: {_reason(error)})"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds a {type(content).__name__}, not a state dict")
    strange = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if strange or not content:
        fault = f"{strange[0]!r} is a {type(content[strange[0]]).__name__}" if strange else "it is empty"
        raise ValueError(
            f"{file} holds no state dict of tensors by name: {fault}. Save it with "
            "torch.save(model.state_dict(), FILE), or in a dict as `state_dict`"
        )
    return content


def _reason(error: BaseException) -> str:
    """Return torch's reason to refuse the file, without its advice.

    The advice is to load the file in a way that runs its code.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    refusal = next((line for line in lines if "GLOBAL" in line or line.startswith("Unsupported")), "")
    return (refusal or "".join(lines[:1])).split(". ")[0].rstrip(".")[:200]


def _without_prefix(weights: dict[str, Any], module: nn.Module) -> dict[str, Any]:
    prefix = "module."
    if not all(name.startswith(prefix) for name in weights) or hasattr(module, "module"):
        return weights
    return {name[len(prefix) :]: tensor for name, tensor in weights.items()}
