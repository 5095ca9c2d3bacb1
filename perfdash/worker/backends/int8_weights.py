"""INT8 weights in the linear layers of a decoder (torchao): read as integers, multiplied as floats."""

from __future__ import annotations

from typing import Any

from perfdash.records import Job, Status

PACKAGES = ("torchao",)
EXTRA = "torchao"
DTYPES = ("float32", "bfloat16", "float16")
SCENARIOS = ("inference", "generation")
LOSSY = True
CAPTURES = False


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """A copy of the module with such layers, run as it is. Raises Unmeasurable where it has none."""
    from perfdash.worker.decoders import to_int8
    from perfdash.worker.failures import Unmeasurable

    try:
        copied, note = to_int8(module)
    except ValueError as error:
        raise Unmeasurable(Status.SKIPPED, str(error)) from error
    object.__setattr__(copied, "int8_note", note)
    return copied


def held_tensors(model: Any) -> list[Any]:
    """Parameters and buffers, those of torchao by the plain tensors inside."""
    return [plain for tensor in (*model.parameters(), *model.buffers()) for plain in _plain(tensor)]


def notes(model: Any) -> list[str]:
    """How many layers there are."""
    return [model.int8_note]


def _plain(tensor: Any) -> list[Any]:
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [plain for name in names for plain in _plain(getattr(tensor, name))]
