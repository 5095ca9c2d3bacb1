"""A training step: forward with the loss, backward, the optimiser's step, each timed separately."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

import torch

from perfdash.records import Job, Status
from perfdash.worker import losses, pytree
from perfdash.worker.eager_and_compiled import ModelSide
from perfdash.worker.failures import Unmeasurable

CHANGES_MODULE = True
OUTPUT = "loss"  # of what `observe` returns
# Some gradients are zero but for rounding (of a bias that batch normalisation takes out again), as are some
# running means: they are judged as parts of all gradients, of all buffers.
OF_GROUP = 0.01
GATED = ("gradients", "input_gradients", "updates")  # a ReLU's gate may be open or shut by rounding

# Small, and without momentum for sgd: the same batch comes hundreds of times, and what is timed must not
# end in infinities.
_LEARNING_RATE = 1e-4
# Of the one step that is judged. With so large an eps adam's first step is nearly the gradient, too, and not
# the sign of one that is zero but for rounding.
_JUDGED = {"sgd": {"lr": 1.0}, "adam": {"lr": 1.0, "eps": 1.0}}


def set_mode(module: Any) -> None:
    """Training mode: dropout, batch normalisation by its batch."""
    module.train()


def make_step(model: Any, side: ModelSide, device: Any) -> TrainingStep:
    """The step of `model`, whose parameters are those of the side's module."""
    return TrainingStep(model, side, device)


@contextlib.contextmanager
def context(job: Job) -> Iterator[None]:
    """With gradients."""
    with torch.enable_grad():
        yield


class TrainingStep:
    """Called, it does the step and returns the loss.

    Gradients of parameters and inputs are dropped at its end: they are part of what a step needs, and not of
    what is held between steps.
    """

    def __init__(self, model: Any, side: ModelSide, device: Any) -> None:
        self._model, self._side, self._device = model, side, device
        self._parameters = {
            name: tensor for name, tensor in side.module.named_parameters() if tensor.requires_grad
        }
        if not self._parameters:
            raise Unmeasurable(Status.SKIPPED, "the model has no parameter that takes a gradient")
        self._inputs = {
            path: leaf
            for path, leaf in pytree.leaves(side.inputs, "inputs")
            if torch.is_tensor(leaf) and leaf.requires_grad
        }
        self._loss = losses.make(side.job)
        self._optimizer = _optimizer(side.job.optimizer, list(self._parameters.values()))
        self.parts = ("forward", "backward", "optimizer") if self._optimizer else ("forward", "backward")
        # Of a back end that compiles the backward pass as it runs.
        self._backward_context = getattr(model, "backward_context", contextlib.nullcontext)
        self.marks: list[list[Any]] = []

    def __call__(self) -> Any:
        """The step; the loss, detached."""
        try:
            return self._until_stepped()
        finally:  # also of one that memory did not suffice for
            self._drop_gradients()

    def observe(self) -> dict[str, Any]:
        """Do a step with a new optimiser; return its loss, gradients, parameter updates and buffers.

        The parameters are set to zero before the optimiser steps, so that afterwards they are its updates:
        beside the parameters' own values a missing update would hardly show, and in 16 bits not at all.
        """
        kind = self._side.job.optimizer
        self._optimizer = _optimizer(kind, list(self._parameters.values()), **_JUDGED.get(kind, {}))
        try:
            loss = self._until_stepped(before_step=self._set_to_zero)
            return {
                "loss": loss,
                "gradients": {name: tensor.grad for name, tensor in self._parameters.items()},
                "input_gradients": {path: tensor.grad for path, tensor in self._inputs.items()},
                "updates": dict(self._parameters) if self._optimizer else {},
                "buffers": dict(self._side.module.named_buffers()),
            }
        finally:
            self.release()
            self.marks.clear()
            self._drop_gradients()

    def _set_to_zero(self) -> None:
        with torch.no_grad():
            for tensor in self._parameters.values():
                tensor.zero_()

    def release(self) -> None:
        """Free the optimiser's state."""
        self._optimizer = _optimizer(self._side.job.optimizer, list(self._parameters.values()))

    def _until_stepped(self, before_step: Callable[[], None] = lambda: None) -> Any:
        mark = self._device.mark
        arguments, keywords = self._side.arguments()
        marks = [mark()]
        with self._side.autocast():  # forward and loss, as torch advises: backward follows by itself
            loss = self._loss(self._model(*arguments, **keywords))
        marks.append(mark())
        with self._backward_context():
            loss.backward()
        marks.append(mark())
        if self._optimizer is not None:
            before_step()
            self._optimizer.step()
            marks.append(mark())
        self.marks.append(marks)
        return loss.detach()

    def _drop_gradients(self) -> None:
        for tensor in [*self._parameters.values(), *self._inputs.values()]:
            tensor.grad = None


def _optimizer(name: str, parameters: list[Any], **settings: float) -> Any:
    if name == "none":
        return None
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    return kinds[name](parameters, foreach=True, **{"lr": _LEARNING_RATE, **settings})
