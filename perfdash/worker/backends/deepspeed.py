"""DeepSpeed inference: fused CUDA kernels in place of the transformer layers that it knows."""

from __future__ import annotations

import copy
from typing import Any

from perfdash.records import Job, Status

PACKAGES = ("deepspeed",)
EXTRA = "deepspeed"
DEVICES = ("cuda",)
DTYPES = ("float32", "float16", "bfloat16")
OPTIONS = ()
SCENARIOS = ("inference", "generation")
CAPTURES = False


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """deepspeed.init_inference over a copy, on one GPU; Unmeasurable where it injects no kernel."""
    import deepspeed
    import torch

    from perfdash.worker.failures import Unmeasurable

    before = {type(part) for part in module.modules()}
    engine = deepspeed.init_inference(
        copy.deepcopy(module),
        dtype=getattr(torch, job.case.dtype),
        tensor_parallel={"tp_size": 1},
        replace_with_kernel_inject=True,
    )
    if not {type(part) for part in engine.module.modules()} - before:
        raise Unmeasurable(
            Status.SKIPPED, f"DeepSpeed has no kernels for {type(module).__name__}: what ran would be eager"
        )
    return engine.module


def held_tensors(model: Any) -> list[Any]:
    """Parameters and buffers of the copy."""
    return [*model.parameters(), *model.buffers()]
