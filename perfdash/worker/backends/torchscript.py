"""TorchScript: torch.jit.trace, freeze and optimize_for_inference."""

from __future__ import annotations

import warnings
from typing import Any, Iterator

from perfdash.records import Job

# Convolutions keep their weights packed, under a kind of their own.
_CONSTANTS = ("prim::Constant", "prim::ConstantMKLDNNTensor")
DTYPES = ("float32", "bfloat16", "float16")
OPTIONS = ()
CAPTURES = False


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The traced module, frozen and optimised. Raises RuntimeError that says which step refused it.

    Branches and loops that depend on the values of the inputs stay as they were for these inputs.
    """
    import torch

    from perfdash.worker.model_export import ConvertedModel, flattened, root_cause

    signature, flat, tensors = flattened(module, inputs)
    step = "trace"
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        try:
            script = torch.jit.trace(flat, tensors, check_trace=False)
            step = "freeze"
            script = torch.jit.freeze(script.eval())
            step = "optimize_for_inference"
            script = torch.jit.optimize_for_inference(script)
        except Exception as error:  # tracing runs the model's own code, which raises anything
            raise RuntimeError(f"torch.jit.{step} refused this model: {root_cause(error)}") from error
    fixed = sum(issubclass(warning.category, torch.jit.TracerWarning) for warning in caught)
    values = f"tracing fixed {fixed} values that the model computes in Python as they were for these inputs"
    return ConvertedModel(signature, script, [values] if fixed else [])


def held_tensors(model: Any) -> list[Any]:
    """Parameters and buffers that freezing left, and the constants that the graph uses."""
    script = model.run
    tensors = [*script.parameters(), *script.buffers()]
    for node in _nodes(script.graph):
        # Freezing leaves unused constants behind: the module's own weights.
        if node.kind() in _CONSTANTS and node.hasAttribute("value") and node.output().uses():
            kind = node.kindOf("value")
            if kind in ("t", "ts", "ival"):
                tensors += _tensors(getattr(node, kind)("value"))
    return tensors


def notes(model: Any) -> list[str]:
    """How many values the trace has fixed."""
    return list(model.notes)


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, (list, tuple)):  # of an LSTM: all its weights
        return [tensor for item in value for tensor in _tensors(item)]
    return [value] if isinstance(value, torch.Tensor) else []
