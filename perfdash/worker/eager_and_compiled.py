"""A side of the comparison: the model in one dtype, its inputs, and the step that is measured.

Both sides are the same model. Where the back end's dtype is the baseline's they share it, and the
back end is the only difference; else each has its own copy.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Optional, Tuple

import torch

from perfdash.records import Job
from perfdash.worker import output_comparison, peak_memory, pytree

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


# Nested tensors (jagged ones among them) have no values that could be compared as a whole.
_COMPARABLE = (
    torch.strided,
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
    torch._mkldnn,
)


@dataclass(frozen=True)
class Kept:
    """A tensor of the module, what it held, and the modules on the way to it."""

    tensor: torch.Tensor
    values: torch.Tensor  # on the host
    path: Tuple[Any, ...]


@dataclass
class Side:
    """`job` is the order with the dtype of this side; inputs are a tuple or a dict."""

    job: Job
    module: Any
    inputs: Any
    pristine: Any  # the inputs as they were at the start, on the host: a model may change them
    # Buffers as they were, and parameters where steps change them, by name.
    state: Optional[dict[str, Kept]] = None
    keeps_parameters: bool = False

    def held(self) -> dict[int, int]:
        """Bytes of parameters, buffers, plain attributes and inputs by storage (storage_bytes)."""
        return peak_memory.storage_bytes(
            [
                *peak_memory.weights(self.module),
                *peak_memory.attributes(self.module),
                *pytree.tensors_in(self.inputs),
            ]
        )

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs as positional arguments and keywords."""
        return ((), self.inputs) if isinstance(self.inputs, dict) else (tuple(self.inputs), {})

    def keep_state(self, parameters: bool = True) -> None:
        """From now on `restore` sets buffers, and with `parameters` these too, back to what they are now."""
        kept = dict(self.module.named_buffers())
        if parameters:
            kept.update(self.module.named_parameters())
        self.keeps_parameters = parameters
        self.state = {
            name: Kept(tensor, tensor.detach().to("cpu", copy=True), _path(self.module, name))
            for name, tensor in kept.items()
        }

    def restore(self) -> None:
        """The inputs, and what was kept of the module, as they were at the start."""
        with torch.no_grad():
            for tensor, pristine in zip(pytree.tensors_in(self.inputs), pytree.tensors_in(self.pristine)):
                overwrite(tensor, pristine)
            for name, kept in (self.state or {}).items():
                overwrite(kept.tensor, kept.values)
                if _at(self.module, name) is not kept.tensor:  # a step has put something else in its place
                    _put_back(name, kept)

    def changed(self) -> Dict[str, Optional[torch.Tensor]]:
        """Copies of the inputs, and of the buffers that were kept, that are not as they were, by path.

        None for a buffer that is no tensor any more. Without nested tensors, which cannot be compared, and
        nothing of the module where parameters are kept too: there the step says what it changes.
        """
        pairs = [
            (path, tensor, pristine)
            for (path, tensor), pristine in zip(
                (
                    (path, leaf)
                    for path, leaf in pytree.leaves(self.inputs, "inputs")
                    if torch.is_tensor(leaf)
                ),
                pytree.tensors_in(self.pristine),
            )
        ]
        if not self.keeps_parameters:
            for name, kept in (self.state or {}).items():
                pairs.append((f"buffer {name}", _at(self.module, name), kept.values))
        return {
            path: None if tensor is None else tensor.detach().clone()
            for path, tensor, pristine in pairs
            if _differs(tensor, pristine)
        }

    def with_inputs(self, inputs: Any) -> Side:
        """The same side over other inputs."""
        return replace(self, inputs=inputs, pristine=inputs)

    def prepared(self, inputs: Any) -> Any:
        """Other inputs as this side takes them: on its device, in its dtype."""
        devices = [tensor.device for tensor in pytree.tensors_in(self.inputs)]
        change = _cast(self.job.case.dtype)
        where = devices[0] if devices else "cpu"
        found = pytree.map_tensors(inputs, lambda tensor: change(tensor.to(where)))
        return pytree.map_tensors(found, _channels_last) if self.job.variant.get("channels_last") else found


def _at(module: Any, name: str) -> Optional[torch.Tensor]:
    """The tensor that a module has under a dotted name; None where there is none any more."""
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, torch.Tensor) else None


def _path(module: Any, name: str) -> Tuple[Any, ...]:
    """The modules on the way to a parameter or buffer, its owner the last."""
    found = [module]
    for part in name.split(".")[:-1]:
        found.append(getattr(found[-1], part))
    return tuple(found)


def _put_back(name: str, kept: Kept) -> None:
    """Puts a tensor, and the modules on the way to it, back in their places."""
    *parts, leaf = name.split(".")
    for owner, part, inner in zip(kept.path, parts, kept.path[1:]):
        if getattr(owner, part, None) is not inner:
            setattr(owner, part, inner)
    owner = kept.path[-1]
    registered = owner._parameters if isinstance(kept.tensor, torch.nn.Parameter) else owner._buffers
    if leaf in registered:
        setattr(owner, leaf, kept.tensor)
        return
    for place in (owner.__dict__, owner._parameters, owner._buffers, owner._modules):
        place.pop(leaf, None)
    registered[leaf] = kept.tensor


def _differs(tensor: Optional[torch.Tensor], pristine: torch.Tensor) -> bool:
    if tensor is None:
        return True
    if tensor.is_nested != pristine.is_nested or tensor.layout != pristine.layout:
        return True
    if tensor.is_nested or tensor.layout not in _COMPARABLE:
        return False
    return tensor.shape != pristine.shape or not output_comparison.same(tensor.detach().to("cpu"), pristine)


def overwrite(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Sets a tensor to values of its shape, also where several of its elements are one place in memory.

    `copy_` refuses those: of an expanded tensor, of windows that overlap (unfold).
    """
    if tensor.is_nested or tensor.layout is not torch.strided:
        tensor.copy_(values)
        return
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor, values = tensor.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    if not _may_overlap(tensor):
        tensor.copy_(values)
        return
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    places = torch.arange(extent, device=tensor.device).as_strided(tensor.shape, tensor.stride())
    window = tensor.as_strided((extent,), (1,), tensor.storage_offset())
    window[places.flatten()] = values.to(tensor).flatten()


def _may_overlap(tensor: torch.Tensor) -> bool:
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def baseline_side(module: Any, inputs: Any, job: Job, where: torch.device) -> Side:
    """What is compared with: in the baseline's dtype where the suite names one, else in the case's."""
    dtype = job.baseline_dtype or job.case.dtype
    return _side(module, inputs, replace(_in_dtype(job, dtype), variant={}), where)


def backend_side(baseline: Side, job: Job) -> Side:
    """What the back end is given: the baseline's own model, or a copy in the case's dtype."""
    if _DTYPES.get(job.case.dtype, torch.float32) == _DTYPES.get(baseline.job.case.dtype, torch.float32):
        return replace(baseline, job=job)
    where = next((tensor.device for tensor in pytree.tensors_in(baseline.inputs)), torch.device("cpu"))
    own = _side(copy.deepcopy(baseline.module), pytree.detach(baseline.pristine), job, where)
    if baseline.state is not None:
        own.keep_state(baseline.keeps_parameters)
    return own


def variant_side(baseline: Side, module: Any, job: Job, where: torch.device) -> Side:
    """The same weights and inputs in a model of another configuration (job.variant).

    Raises RuntimeError where the weights do not fit it: then it is another model and no variant.
    """
    module.load_state_dict(baseline.module.state_dict())
    own = _side(module, pytree.detach(baseline.pristine), job, where)
    if job.variant.get("channels_last"):
        own.module.to(memory_format=torch.channels_last)
        own.inputs = pytree.map_tensors(own.inputs, _channels_last)
    if baseline.state is not None:
        own.keep_state(baseline.keeps_parameters)
    return own


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """(batch, channels, h, w) with the channels beside each other in memory; others as they are."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _side(module: Any, inputs: Any, job: Job, where: torch.device) -> Side:
    change = _cast(job.case.dtype)
    pytree.cast_module(module, change)
    module = module.to(where)
    inputs = pytree.map_tensors(inputs, lambda tensor: change(tensor.to(where)))
    pristine = pytree.map_tensors(inputs, lambda tensor: tensor.detach().to("cpu", copy=True))
    return Side(job, module, inputs, pristine)


def _cast(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Floating tensors to the dtype; autocast (amp) leaves the model as it was loaded."""
    dtype = _DTYPES.get(name)
    return lambda tensor: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor


def _in_dtype(job: Job, dtype: str) -> Job:
    if dtype == job.case.dtype:
        return job
    return replace(job, case=replace(job.case, dtype=dtype, amp_dtype=None))
