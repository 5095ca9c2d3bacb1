"""Models of a user's own checkout of torchbench, through its public calls only.

`config.checkout` is the checkout's folder, the target one of its models (or canary models).
"""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping

import torch

from perfdash.records import Job, Status
from perfdash.worker.failures import Unmeasurable

PRELOAD: tuple[str, ...] = ()


def load(job: Job) -> tuple[Any, Any]:
    """What the model's get_module() returns, on the case's device, in float32.

    Raises Unmeasurable: `skipped` where its metadata.yaml says so, `model_fail_to_load` where it does
    not come in the case's batch size.
    """
    checkout = job.config["checkout"]
    sys.path.insert(0, checkout)
    import torchbenchmark

    try:
        found = torchbenchmark.load_model_by_name(job.target)
    except torchbenchmark.ModelNotFoundError:
        found = torchbenchmark.load_canary_model_by_name(job.target)
    if found is None:
        raise LookupError(f"torchbench's {job.target} has no class Model in {checkout}")
    folder = os.path.dirname(sys.modules[found.__module__].__file__ or "")
    reason = not_implemented(torchbenchmark.get_metadata_from_yaml(folder), job.case.device)
    if reason:
        raise Unmeasurable(Status.SKIPPED, reason)
    wanted = job.case.batch_size
    fixed = not getattr(found, "ALLOW_CUSTOMIZE_BSIZE", True)
    # Without a batch size it takes its own; with one that it refuses its message would say less.
    extra = ["--precision", "fp32"]
    model = found(test="eval", device=job.case.device, batch_size=None if fixed else wanted, extra_args=extra)
    if model.batch_size != wanted:
        raise Unmeasurable(
            Status.MODEL_FAIL_TO_LOAD,
            f"{job.target} comes in batch size {model.batch_size} only: --batch-size {model.batch_size}",
        )
    module, inputs = model.get_module()
    if isinstance(inputs, Mapping):
        return module, dict(inputs)
    return module, (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)


def not_implemented(metadata: Any, device: str) -> str:
    """Why metadata.yaml says that a model does not run for inference on a device; empty if it does.

    A GPU may be named there by its product's name as well.
    """
    names = {device, None}
    if device == "cuda":
        names.add(torch.cuda.get_device_name())
    for entry in (metadata or {}).get("not_implemented") or []:
        if entry.get("device") in names and entry.get("test") in (None, "eval"):
            return f"torchbench's metadata.yaml: not implemented on {entry.get('device') or 'any device'}"
    return ""
