"""Inductor for training, its backward pass captured as it runs (compiled autograd) and compiled too.

AOTAutograd makes the backward pass of each graph in advance; compiled autograd captures the whole of it
when it first runs, with hooks and the accumulation of gradients.
"""

from __future__ import annotations

from typing import Any

from perfdash.records import Job
from perfdash.worker.backends import inductor

SCENARIOS = ("training",)
OPTIONS = inductor.OPTIONS
complaints = inductor.complaints
vector_isa = inductor.vector_isa


class CompiledWithBackward:
    """The compiled module; its backward pass must run in `backward_context`."""

    def __init__(self, model: Any, compile_graph: Any) -> None:
        self._model = model
        self._compile_graph = compile_graph

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the compiled module."""
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
    """The same with eager's random numbers, which only the forward pass draws."""
    import torch

    return CompiledWithBackward(
        inductor.prepare_repeatable(module, inputs, job),
        lambda graph: torch.compile(
            graph, backend="inductor", mode=job.compile_mode, dynamic=job.case.dynamic or None
        ),
    )
