"""One forward pass without gradients."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

from perfdash.records import Job
from perfdash.worker.eager_and_compiled import Side


def set_mode(module: Any) -> None:
    """Evaluation mode: no dropout, batch normalisation by its running statistics."""
    module.eval()


def make_step(model: Any, side: Side, device: Any) -> Callable[[], Any]:
    """A forward pass over the inputs, positional or by keyword.

    Autocast is entered at every call: within one long context torch would keep the cast weights, and
    eager would never cast them again.
    """
    arguments, keywords = side.arguments()
    case = side.job.case
    if case.dtype != "amp":
        return lambda: model(*arguments, **keywords)

    import torch

    dtype = getattr(torch, case.amp_dtype or "bfloat16")

    def step() -> Any:
        with torch.autocast(case.device, dtype=dtype):
            return model(*arguments, **keywords)

    return step


@contextlib.contextmanager
def context(job: Job) -> Iterator[None]:
    """No gradients."""
    import torch

    with torch.no_grad():
        yield
