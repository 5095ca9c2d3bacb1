"""One forward pass without gradients."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

from perfdash.records import Job


def set_mode(module: Any) -> None:
    """Evaluation mode: no dropout, batch normalisation by its running statistics."""
    module.eval()


def make_step(model: Any, inputs: Any, job: Job) -> Callable[[], Any]:
    """A forward pass over the inputs, positional or by keyword."""
    if isinstance(inputs, dict):
        return lambda: model(**inputs)
    return lambda: model(*inputs)


@contextlib.contextmanager
def context(job: Job) -> Iterator[None]:
    """No gradients, and autocast for the dtype `amp`."""
    import torch

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if job.case.dtype == "amp":
            dtype = getattr(torch, job.case.amp_dtype or "bfloat16")
            stack.enter_context(torch.autocast(job.case.device, dtype=dtype))
        yield
