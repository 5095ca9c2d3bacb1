"""One forward pass without gradients."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

from perfdash.records import Job
from perfdash.worker.eager_and_compiled import ModelSide


def set_mode(module: Any) -> None:
    """Evaluation mode: no dropout, batch normalisation by its running statistics."""
    module.eval()


def make_step(model: Any, side: ModelSide, device: Any) -> Callable[[], Any]:
    """A forward pass over the inputs, positional or by keyword; autocast is entered at every call."""
    arguments, keywords = side.arguments()
    if side.autocast_dtype() is None:
        return lambda: model(*arguments, **keywords)

    def step() -> Any:
        with side.autocast():
            return model(*arguments, **keywords)

    return step


@contextlib.contextmanager
def context(job: Job) -> Iterator[None]:
    """No gradients."""
    import torch

    with torch.no_grad():
        yield
