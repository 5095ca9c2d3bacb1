"""Count the TensorRT engines of a converted model. A model without engines is not measured.

torch_tensorrt and ONNX Runtime run what TensorRT does not support elsewhere, without an error.
"""

from __future__ import annotations

from typing import Any, Iterable

from perfdash.records import Status
from perfdash.worker.failures import Unmeasurable


def engines_among(objects: Iterable[Any]) -> int:
    """Return the number of torch_tensorrt's engine modules among objects."""
    from torch_tensorrt.dynamo import runtime

    names = ("TorchTensorRTModule", "PythonTorchTensorRTModule")  # which of them exist depends on the version
    classes = tuple(getattr(runtime, name) for name in names if hasattr(runtime, name))
    return sum(issubclass(type(item), classes) for item in objects)


def engine_note(engines: int, otherwise: str = "eager") -> str:
    """Return a note with the number of engines.

    Without engines raises Unmeasurable: `otherwise` would be measured under TensorRT's name.
    """
    if not engines:
        raise Unmeasurable(
            Status.SKIPPED, f"TensorRT built no engine for this model: what ran would be {otherwise}"
        )
    return f"{engines} TensorRT engine{'s' * (engines > 1)}"
