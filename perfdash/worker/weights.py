"""The weights that a model starts with: from the user's file, or random ones that behave as if trained.

A file is safetensors or a state dict; no code in it is run.
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
    """Set batch normalisation's running statistics from one batch, as training would have set them.

    Untrained statistics let activations die away with depth, until the output does not depend on the
    images, and an accuracy check would pass whatever was compiled. Leaves a module with batch
    normalisation in training mode, any other unchanged.
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
    """Copies the file's weights into the module, all of them or none, in the module's own dtypes.

    `.safetensors` by its suffix, else what torch.save wrote: a state dict, or a dict that has it as
    `state_dict`. The prefix `module.` of DataParallel is taken off. Raises FileNotFoundError,
    ImportError without safetensors, ValueError that names the file for one that cannot be read, would
    run code, or does not fit.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: --weights takes a file of weights")
    given = _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file)
    given = _without_prefix(given, module)
    own: dict[str, Tensor] = module.state_dict(keep_vars=True)
    faults = _faults(given, own, {name for name, _ in module.named_buffers()})
    if faults:
        raise ValueError(f"{file} does not fit {type(module).__name__}: {'; '.join(faults)}. {_ADVICE}")
    module.load_state_dict({name: tensor for name, tensor in given.items() if name in own}, strict=False)


def _faults(given: dict[str, Tensor], own: dict[str, Tensor], buffers: Iterable[str]) -> list[str]:
    """What does not fit, a phrase for each sort."""
    # A tied weight is one tensor under several names; safetensors keeps one of them.
    first_names: dict[int, str] = {}
    for name, tensor in own.items():
        if name in given:
            first_names.setdefault(id(tensor), name)
    missing = [
        name
        for name, tensor in own.items()
        # The count of training batches means nothing to inference, and older files lack it.
        if id(tensor) not in first_names and not name.endswith("num_batches_tracked")
    ]
    # Older files hold buffers, such as position ids, that the module now makes by itself.
    unexpected = [name for name in given if name not in own and name not in set(buffers)]
    misshapen = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in given and given[name].shape != tensor.shape
    ]
    split = [
        name
        for name, tensor in own.items()
        if name in given and not torch.equal(given[name], given[first_names[id(tensor)]])
    ]
    return [
        f"{len(names)} {what} ({', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''})"
        for what, names in (
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
    # Before torch 2.6 weights_only did not keep code out (CVE-2025-32434).
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise ValueError(
            f"{file}: torch {torch.__version__} reads such a file unsafely: save it as .safetensors"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the pickle's protocol and such: it loads, or raises
            content = torch.load(str(file), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{file} is refused: it is broken, or holds more than tensors, which could run code "
            f"({_reason(error)}). Save it with torch.save(model.state_dict(), FILE), or as .safetensors"
        ) from None
    except Exception as error:  # a broken file raises anything: RuntimeError, EOFError, KeyError ...
        raise ValueError(
            f"{file} is no file of weights that can be read ({type(error).__name__}: {_reason(error)})"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds a {type(content).__name__}, not a state dict")
    strange = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if strange or not content:
        what = f"{strange[0]!r} is a {type(content[strange[0]]).__name__}" if strange else "it is empty"
        raise ValueError(
            f"{file} holds no state dict of tensors by name: {what}. Save it with "
            "torch.save(model.state_dict(), FILE), or in a dict as `state_dict`"
        )
    return content


def _reason(error: BaseException) -> str:
    """What torch found in the file, without its advice: to load it in the way that runs its code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = next((line for line in lines if "GLOBAL" in line or line.startswith("Unsupported")), "")
    return (found or "".join(lines[:1])).split(". ")[0].rstrip(".")[:200]


def _without_prefix(given: dict[str, Any], module: nn.Module) -> dict[str, Any]:
    prefix = "module."
    if not all(name.startswith(prefix) for name in given) or hasattr(module, "module"):
        return given
    return {name[len(prefix) :]: tensor for name, tensor in given.items()}
