"""Dynamic INT8 on the CPU: int8 weights, activations quantised at every call, by torch.ao.

torch.ao's quantize_dynamic is deprecated, but it is what people call dynamic quantisation: it stays
eager, and it takes LSTM and GRU. torchao's successor takes Linear layers only and needs torch.compile
to be fast, so that it would measure inductor with it.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Iterator

from perfdash.records import Job, Status

DTYPES = ("float32",)
OPTIONS = ()
DEVICES = ("cpu",)
LOSSY = True
CAPTURES = False


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """A copy of the module whose Linear, LSTM and GRU layers are quantised.

    Raises Unmeasurable where it has none, or this torch has no quantize_dynamic any more.
    """
    import torch

    from perfdash.worker.failures import Unmeasurable

    quantize = getattr(torch.ao.quantization, "quantize_dynamic", None)
    if quantize is None:
        raise Unmeasurable(
            Status.SKIPPED,
            f"torch {torch.__version__} has no torch.ao.quantization.quantize_dynamic any more",
        )
    kinds = (torch.nn.Linear, torch.nn.LSTM, torch.nn.GRU)
    chosen = [layer for layer in module.modules() if type(layer) in kinds]
    if not chosen:
        raise Unmeasurable(Status.SKIPPED, "no Linear, LSTM or GRU layer in it to quantise")
    with _quiet():
        quantized = quantize(module, set(kinds), dtype=torch.qint8)
    inside = {id(parameter): parameter.numel() for layer in chosen for parameter in layer.parameters()}
    whole = sum(parameter.numel() for parameter in module.parameters())
    return _Quantized(
        quantized,
        f"{len(chosen)} Linear, LSTM and GRU layers quantised, with {sum(inside.values()) / whole:.0%} of "
        "the parameters",
    )


class _Quantized:
    def __init__(self, module: Any, note: str) -> None:
        self.module = module
        self.note = note

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.module(*arguments, **keywords)


def held_tensors(model: Any) -> list[Any]:
    """The remaining parameters and buffers, and copies of the packed weights, which are no tensors."""
    from torch.ao.nn.quantized.modules.linear import LinearPackedParams

    tensors = [*model.module.parameters(), *model.module.buffers()]
    with _quiet():
        for layer in model.module.modules():
            if hasattr(layer, "_all_weight_values"):  # LSTM, GRU
                tensors += _unpacked([packed.param.__getstate__() for packed in layer._all_weight_values])
            elif isinstance(layer, LinearPackedParams):  # inside every quantised Linear
                tensors += _unpacked(layer._weight_bias())
    return tensors


def notes(model: Any) -> list[str]:
    """How much of the model is quantised."""
    return [model.note]


def _unpacked(state: Any) -> list[Any]:
    """The tensors in the state of a layer: biases, and the packed weights of its products."""
    import torch

    if isinstance(state, (list, tuple)):
        return [tensor for item in state for tensor in _unpacked(item)]
    if isinstance(state, torch.ScriptObject):
        return _unpacked(state.unpack())
    return [state] if isinstance(state, torch.Tensor) else []


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide torch's deprecation warnings about quantised tensors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*deprecated", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="(?s).*deprecated", category=UserWarning)
        yield
