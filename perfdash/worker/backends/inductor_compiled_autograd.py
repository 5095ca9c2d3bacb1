"""Inductor for training, its backward pass captured as it runs (compiled autograd) and compiled as well.

AOTAutograd makes the backward pass of each graph beforehand; compiled autograd captures the whole of it
when it first runs, with hooks and the adding up of gradients.
"""

from __future__ import annotations

from typing import Any, Optional

from perfdash.records import Job
from perfdash.worker.backends import inductor

SCENARIOS = ("training",)


class CompiledWithBackward:
    """The compiled module; `backward_context` is what its backward pass is to run in."""

    def __init__(self, model: Any, compile_graph: Any) -> None:
        self._model = model
        self._compile_graph = compile_graph

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """As the module."""
        return self._model(*arguments, **keywords)

    def backward_context(self) -> Any:
        """A context in which autograd hands each backward pass to the compiler."""
        from torch._dynamo import compiled_autograd

        # torch 2.6 made it private, in favour of an option for steps that are compiled as a whole.
        enable = getattr(compiled_autograd, "_enable", None) or compiled_autograd.enable
        return enable(self._compile_graph)


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """inductor.prepare, and a compiler for the backward pass."""
    import torch

    return CompiledWithBackward(
        inductor.prepare(module, inputs, job),
        lambda graph: torch.compile(
            graph, backend="inductor", mode=job.compile_mode, dynamic=job.case.dynamic or None
        ),
    )


def prepare_repeatable(module: Any, inputs: Any, job: Job) -> Any:
    """The same, drawing the random numbers that eager draws: only the forward pass draws any."""
    import torch

    return CompiledWithBackward(
        inductor.prepare_repeatable(module, inputs, job),
        lambda graph: torch.compile(graph, backend="inductor", dynamic=job.case.dynamic or None),
    )


def complaints(job: Job) -> list[str]:
    """What of the job's options this torch does not know."""
    return inductor.complaints(job)


def vector_isa(job: Job, find_out: bool) -> Optional[str]:
    """The vector instructions that inductor compiles for (inductor.vector_isa)."""
    return inductor.vector_isa(job, find_out)
