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

    The engines are built at the first call. Double constants are truncated: TensorRT has none.
    """
    import torch
    import torch_tensorrt  # noqa: F401 (registers the back end)

    options = {"enabled_precisions": {getattr(torch, job.case.dtype)}, "truncate_double": True}
    options["disable_tf32"] = not job.tf32  # as eager's
    return torch.compile(module, backend="torch_tensorrt", options=options, dynamic=job.case.dynamic or None)
