"""A side of the comparison: the model in one dtype, its inputs, and the step that is measured.

Both sides are the same model. Where the back end's dtype is the baseline's they share it, and the
back end is the only difference; else each has its own copy.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

import torch

from perfdash.records import Job
from perfdash.worker import memory, nest

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Side:
    """`job` is the order with the dtype of this side; inputs are a tuple or a dict."""

    job: Job
    module: Any
    inputs: Any
    pristine: Any  # the inputs as they were at the start, on the host: a model may change them
    # Parameters and buffers as they were, where steps change them; on the host as well.
    state: Optional[list[torch.Tensor]] = None

    def held(self) -> dict[int, int]:
        """Bytes of parameters, buffers and inputs by storage (memory.storage_bytes)."""
        return memory.storage_bytes([*memory.weights(self.module), *nest.tensors_in(self.inputs)])

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs as positional arguments and keywords."""
        return ((), self.inputs) if isinstance(self.inputs, dict) else (tuple(self.inputs), {})

    def keep_state(self) -> None:
        """From now on `restore` sets parameters and buffers back to what they are now."""
        self.state = [tensor.detach().to("cpu", copy=True) for tensor in self._state()]

    def restore(self) -> None:
        """The inputs, and what was kept of the module, as they were at the start."""
        with torch.no_grad():
            for tensor, pristine in zip(nest.tensors_in(self.inputs), nest.tensors_in(self.pristine)):
                tensor.copy_(pristine)
            if self.state is not None:
                for tensor, pristine in zip(self._state(), self.state):
                    tensor.copy_(pristine)

    def with_inputs(self, inputs: Any) -> Side:
        """The same side over other inputs."""
        return replace(self, inputs=inputs, pristine=inputs)

    def _state(self) -> list[torch.Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]

    def prepared(self, inputs: Any) -> Any:
        """Other inputs as this side takes them: on its device, in its dtype."""
        devices = [tensor.device for tensor in nest.tensors_in(self.inputs)]
        change = _cast(self.job.case.dtype)
        where = devices[0] if devices else "cpu"
        found = nest.map_tensors(inputs, lambda tensor: change(tensor.to(where)))
        return nest.map_tensors(found, _channels_last) if self.job.variant.get("channels_last") else found


def baseline_side(module: Any, inputs: Any, job: Job, where: torch.device) -> Side:
    """What is compared with: in the baseline's dtype where the suite names one, else in the case's."""
    dtype = job.baseline_dtype or job.case.dtype
    return _side(module, inputs, replace(_in_dtype(job, dtype), variant={}), where)


def backend_side(baseline: Side, job: Job) -> Side:
    """What the back end is given: the baseline's own model, or a copy in the case's dtype."""
    if _DTYPES.get(job.case.dtype, torch.float32) == _DTYPES.get(baseline.job.case.dtype, torch.float32):
        return replace(baseline, job=job)
    where = next((tensor.device for tensor in nest.tensors_in(baseline.inputs)), torch.device("cpu"))
    own = _side(copy.deepcopy(baseline.module), nest.detach(baseline.pristine), job, where)
    if baseline.state is not None:
        own.keep_state()
    return own


def variant_side(baseline: Side, module: Any, job: Job, where: torch.device) -> Side:
    """The same weights and inputs in a model of another configuration (job.variant).

    Raises RuntimeError where the weights do not fit it: then it is another model and no variant.
    """
    module.load_state_dict(baseline.module.state_dict())
    own = _side(module, nest.detach(baseline.pristine), job, where)
    if job.variant.get("channels_last"):
        own.module.to(memory_format=torch.channels_last)
        own.inputs = nest.map_tensors(own.inputs, _channels_last)
    if baseline.state is not None:
        own.keep_state()
    return own


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """(batch, channels, h, w) with the channels beside each other in memory; others as they are."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _side(module: Any, inputs: Any, job: Job, where: torch.device) -> Side:
    change = _cast(job.case.dtype)
    nest.cast_module(module, change)
    module = module.to(where)
    inputs = nest.map_tensors(inputs, lambda tensor: change(tensor.to(where)))
    pristine = nest.map_tensors(inputs, lambda tensor: tensor.detach().to("cpu", copy=True))
    return Side(job, module, inputs, pristine)


def _cast(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Floating tensors to the dtype; autocast (amp) leaves the model as it was loaded."""
    dtype = _DTYPES.get(name)
    return lambda tensor: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor


def _in_dtype(job: Job, dtype: str) -> Job:
    if dtype == job.case.dtype:
        return job
    return replace(job, case=replace(job.case, dtype=dtype, amp_dtype=None))
