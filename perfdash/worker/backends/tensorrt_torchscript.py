"""TensorRT through TorchScript: torch_tensorrt builds engines for what it can of a traced module.

Written by its documentation; no GPU has run it yet.
"""

from __future__ import annotations

import warnings
from typing import Any

from perfdash.records import Job

PACKAGES = ("torch_tensorrt",)
EXTRA = "tensorrt"
DEVICES = ("cuda",)
OPAQUE_ON_GPU = True
DTYPES = ("float32", "float16")
OPTIONS = ()
CAPTURES = False


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The traced module with engines in the case's dtype, for the shapes of the inputs only.

    Raises RuntimeError that says which step refused it, Unmeasurable if no engine was built. Integers of 64
    bits and doubles are truncated: TensorRT has neither.
    """
    import torch
    import torch_tensorrt

    from perfdash.worker.model_export import ConvertedModel, flattened, root_cause, shapes_of
    from perfdash.worker.tensorrt_engines import engine_note

    signature, flat, tensors = flattened(module, inputs)
    step = "torch.jit.trace"
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tracing: it is deprecated, and fixes values
            script = torch.jit.trace(flat, tensors, check_trace=False)
        step = "torch_tensorrt"
        compiled = torch_tensorrt.compile(
            script,
            ir="ts",
            inputs=[torch_tensorrt.Input(tuple(tensor.shape), dtype=tensor.dtype) for tensor in tensors],
            enabled_precisions={getattr(torch, job.case.dtype)},
            truncate_long_and_double=True,
            disable_tf32=not job.tf32,  # as eager's
        )
    except Exception as error:  # tracing runs the model's own code, which raises anything
        raise RuntimeError(f"{step} refused this model: {root_cause(error)}") from error
    engines = engine_note(str(compiled.inlined_graph).count("tensorrt::execute_engine("))
    remarks = [engines, f"engines for batch size {job.case.batch_size} only"]
    return ConvertedModel(signature, compiled, remarks, shapes_of(tensors))


def notes(model: Any) -> list[str]:
    """The number of engines, and that the shapes are fixed."""
    return list(model.notes)
