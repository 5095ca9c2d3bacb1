"""TensorRT by torch.compile: torch_tensorrt builds engines for what it can, torch runs the rest."""

from __future__ import annotations

from typing import Any

from perfdash.records import Job

PACKAGES = ("torch_tensorrt",)
EXTRA = "tensorrt"
DEVICES = ("cuda",)
OPAQUE_ON_GPU = True
DTYPES = ("float32", "float16", "bfloat16")
OPTIONS = ("dynamic",)


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """torch.compile(module, backend="torch_tensorrt"): engines in the case's own dtype.

    The engines are built at the first call, which fails if one cannot be built. Double constants are
    truncated: TensorRT has none.
    """
    import torch
    import torch_tensorrt  # noqa: F401 (registers the back end)

    options = {"enabled_precisions": {getattr(torch, job.case.dtype)}, "truncate_double": True}
    options["disable_tf32"] = not job.tf32  # as eager's
    options["pass_through_build_failures"] = True  # otherwise eager runs in place of the engine
    return torch.compile(module, backend="torch_tensorrt", options=options, dynamic=job.case.dynamic or None)


def notes(model: Any) -> list[str]:
    """Return the number of engines. Raises Unmeasurable if there are none."""
    import gc

    from perfdash.worker.tensorrt_engines import engine_note, engines_among

    # dynamo's compiled code holds the engines where no attribute of the model leads.
    return [engine_note(engines_among(gc.get_objects()))]
