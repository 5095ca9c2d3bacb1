"""torch.export of a module, with a batch that may vary where the model allows it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Optional

import torch

from perfdash.worker.model_export import Flat, Tensors, is_batched, root_cause, with_batch


@dataclass
class Exported:
    """The program; why_static says why its batch cannot vary, None where it can."""

    program: Any
    why_static: Optional[str]


def export(flat: Flat, tensors: Tensors, batch: int, strict: bool = False) -> Exported:
    """The exported program of `flat`, its batch dynamic if that can be had, else as the example has it.

    The batch is dimension 0 of the inputs that have `batch` there. `strict`: captured by dynamo, whose
    nodes know the layer they come from. Raises RuntimeError with the cause.
    """
    batched = is_batched(tensors, batch)
    if any(batched):
        # A copy, for torch.export marks tensors as dynamic, and leaves the mark there for torch.compile
        # to find. A size of 1 would be taken for a constant: such an example is doubled.
        example = with_batch(tensors, batch, max(batch, 2))
        try:
            dynamic = {0: torch.export.Dim.DYNAMIC}  # of torch 2.6
            shapes = (tuple(dynamic if is_so else None for is_so in batched),)
            return Exported(_export(flat, example, shapes, strict), None)
        except Exception as error:  # whatever the model's code raises: it may still work at one size
            why = root_cause(error)
    else:
        why = f"no input has the batch size {batch} as its first dimension"
    return export_static(flat, tensors, why, strict)


def export_static(flat: Flat, tensors: Tensors, why: str, strict: bool = False) -> Exported:
    """The exported program for the example's shapes alone. Raises RuntimeError with the cause."""
    try:
        return Exported(_export(flat, tensors, None, strict), why)
    except Exception as error:
        raise RuntimeError(f"torch.export cannot capture this model: {root_cause(error)}") from error


def _export(flat: Flat, tensors: Tensors, shapes: Any, strict: bool) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        # About torch's own code, and about buffers that a model assigns while it is captured.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", message="The tensor attributes?.* assigned during export")
        return torch.export.export(flat, tensors, dynamic_shapes=shapes, strict=strict)
