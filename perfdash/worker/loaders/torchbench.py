"""Loader of models from a user's checkout of torchbench, through its public calls only.

`config.checkout` is the checkout's folder; the target is the name of a model or a canary model.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Mapping

import torch

from perfdash.records import Job, Status
from perfdash.worker import own_files
from perfdash.worker.failures import Unmeasurable

PRELOAD: tuple[str, ...] = ()


def load(job: Job) -> tuple[Any, Any]:
    """Return the model and inputs of torchbench's get_module(), in float32.

    Those of its test `train` in training, of `eval` otherwise, on the case's device. Raises Unmeasurable:
    `skipped` where metadata.yaml excludes the device, `model_fail_to_load` where the model does not support
    the case's batch size.
    """
    test = "train" if job.case.scenario == "training" else "eval"
    checkout = job.config["checkout"]
    sys.path.insert(0, checkout)
    import torchbenchmark

    try:
        model_class = torchbenchmark.load_model_by_name(job.target)
    except torchbenchmark.ModelNotFoundError:
        model_class = torchbenchmark.load_canary_model_by_name(job.target)
    if model_class is None:
        raise LookupError(f"torchbench's {job.target} has no class Model in {checkout}")
    folder = os.path.dirname(sys.modules[model_class.__module__].__file__ or "")
    reason = not_implemented(torchbenchmark.get_metadata_from_yaml(folder), job.case.device, test)
    if reason:
        raise Unmeasurable(Status.SKIPPED, reason)
    batch_size = job.case.batch_size
    is_fixed = not getattr(model_class, "ALLOW_CUSTOMIZE_BSIZE", True)
    # A model of fixed batch size gets None, because torchbench's own error says less than the error below.
    requested = None if is_fixed else batch_size
    arguments = ["--precision", "fp32"]
    model = model_class(test=test, device=job.case.device, batch_size=requested, extra_args=arguments)
    if model.batch_size != batch_size:
        raise Unmeasurable(
            Status.MODEL_FAIL_TO_LOAD,
            f"{job.target} comes in batch size {model.batch_size} only: --batch-size {model.batch_size}",
        )
    module, inputs = model.get_module()
    files(job)  # an edit of these modules from here on is not what runs
    if isinstance(inputs, Mapping):
        return module, dict(inputs)
    return module, (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)


def files(job: Job) -> dict[str, str]:
    """The sources of the checkout that the model imported, by path in the checkout."""
    return own_files.imported_from(Path(job.config["checkout"]), job.scratch)


def is_own(job: Job, file: str) -> bool:
    """Whether a file belongs to the checkout, and to no package that is installed below it."""
    return own_files.is_own(Path(file), Path(job.config["checkout"]), job.scratch)


def not_implemented(metadata: Any, device: str, test: str) -> str:
    """Return why metadata.yaml excludes a test (`train` or `eval`) on a device, or an empty string.

    metadata.yaml may name a GPU by its product name as well.
    """
    names = {device, None}
    if device == "cuda":
        names.add(torch.cuda.get_device_name())
    for entry in (metadata or {}).get("not_implemented") or []:
        if entry.get("device") in names and entry.get("test") in (None, test):
            what = "training is not implemented" if test == "train" else "not implemented"
            return f"torchbench's metadata.yaml: {what} on {entry.get('device') or 'any device'}"
    return ""
