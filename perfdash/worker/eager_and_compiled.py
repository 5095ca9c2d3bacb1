"""The eager and the compiled side of a comparison: the model in the side's dtype, its inputs, its state.

Both sides are the same model. Where the back end's dtype is eager's they share it, and the back end is
the only difference; else each side has its own copy.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass, field, replace
from typing import Any, Callable, ContextManager, Dict, Optional, Tuple

import torch

from perfdash.records import Job, Status
from perfdash.worker import held_memory, output_comparison, pytree, structure
from perfdash.worker.device import Cpu, Cuda, use_tf32
from perfdash.worker.failures import Unmeasurable

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Layouts whose values can be compared as a whole: nested tensors (jagged ones among them) have none.
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
class SavedTensor:
    """A tensor of the module, its saved values, and the modules from the root to its owner."""

    tensor: torch.Tensor
    values: torch.Tensor  # on the host
    path: Tuple[Any, ...]


@dataclass
class ModelSide:
    """One side: `job` has this side's dtype, `inputs` are a tuple or a dict."""

    job: Job
    module: Any
    inputs: Any
    pristine: Any  # a copy of the inputs on the host: a model may change them
    # Buffers, and parameters where steps change them, by name, as save_state found them.
    state: Optional[dict[str, SavedTensor]] = None
    saves_parameters: bool = False
    # The shapes of tensors that calls have added to the inputs, by path.
    added: Dict[str, Optional[Tuple[int, ...]]] = field(default_factory=dict)

    def held(self) -> dict[int, int]:
        """Bytes of parameters, buffers, plain attributes and inputs, by storage."""
        return held_memory.storage_bytes(
            [
                *held_memory.weights(self.module),
                *held_memory.unregistered_tensors(self.module),
                *pytree.tensors_in(self.inputs),
            ]
        )

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs as positional arguments and keywords."""
        return ((), self.inputs) if isinstance(self.inputs, dict) else (tuple(self.inputs), {})

    def autocast_dtype(self) -> Optional[torch.dtype]:
        """The dtype that autocast computes in; None unless the case's dtype is amp."""
        case = self.job.case
        return getattr(torch, case.amp_dtype or "bfloat16") if case.dtype == "amp" else None

    def autocast(self) -> ContextManager[Any]:
        """Autocast for one call. Within one long context torch keeps the cast weights and casts no more."""
        dtype = self.autocast_dtype()
        return torch.autocast(self.job.case.device, dtype=dtype) if dtype else contextlib.nullcontext()

    def save_state(self, parameters: bool = True) -> None:
        """Save buffers, and with `parameters` these too, for `restore`."""
        tensors = dict(self.module.named_buffers())
        if parameters:
            tensors.update(self.module.named_parameters())
        self.saves_parameters = parameters
        self.state = {
            name: SavedTensor(tensor, tensor.detach().to("cpu", copy=True), _path(self.module, name))
            for name, tensor in tensors.items()
        }

    def restore(self) -> None:
        """Set the inputs and the saved tensors of the module back to their saved values.

        Raises Unmeasurable where a call has changed which tensors the inputs hold, or their shapes.
        """
        self._refuse_other_shapes()
        with torch.no_grad():
            pristine = dict(pytree.leaves(self.pristine, "inputs"))
            for path, tensor in pytree.leaves(self.inputs, "inputs"):
                if isinstance(tensor, torch.Tensor) and path in pristine and path not in self.added:
                    overwrite(tensor, pristine[path])
            for name, saved in (self.state or {}).items():
                overwrite(saved.tensor, saved.values)
                if _tensor_at(self.module, name) is not saved.tensor:  # a step replaced it
                    _put_back(name, saved)

    def _refuse_other_shapes(self) -> None:
        now, saved = _shapes(self.inputs), _shapes(self.pristine)
        for path in dict.fromkeys([*now, *saved]):
            shape = now.get(path)
            # An object may keep what its first call computed; what grows, grows with the next call, too.
            before = saved[path] if path in saved else self.added.setdefault(path, shape)
            if shape != before:
                raise Unmeasurable(
                    Status.SKIPPED,
                    f"a call of the model changes its inputs ({path}: {before} -> {shape}), so that no two "
                    "calls are alike; measure a decoder by --scenario generation, or give it a static cache",
                )

    def changed(self) -> Dict[str, Optional[torch.Tensor]]:
        """Copies of the inputs and saved buffers that differ from their saved values, by path.

        None for a buffer that is no tensor any more. Nested tensors, which cannot be compared, are left
        out; so is the whole module where parameters are saved: there the step reports its changes.
        """
        tensors = (
            (path, leaf) for path, leaf in pytree.leaves(self.inputs, "inputs") if torch.is_tensor(leaf)
        )
        pairs = [
            (path, tensor, pristine)
            for (path, tensor), pristine in zip(tensors, pytree.tensors_in(self.pristine))
        ]
        if not self.saves_parameters:
            for name, saved in (self.state or {}).items():
                pairs.append((f"buffer {name}", _tensor_at(self.module, name), saved.values))
        return {
            path: None if tensor is None else tensor.detach().clone()
            for path, tensor, pristine in pairs
            if _differs(tensor, pristine)
        }

    def with_inputs(self, inputs: Any) -> ModelSide:
        """The same side with other inputs."""
        return replace(self, inputs=inputs, pristine=inputs)

    def convert_inputs(self, inputs: Any) -> Any:
        """Other inputs, moved to this side's device and cast to its dtype."""
        cast = _cast(self.job.case.dtype)
        where = _device_of(self.inputs)
        converted = pytree.map_tensors(inputs, lambda tensor: cast(tensor.to(where)))
        return (
            pytree.map_tensors(converted, _channels_last)
            if self.job.variant.get("channels_last")
            else converted
        )


@dataclass
class BothSides:
    """Both sides, ready to run."""

    job: Job
    scenario: Any
    backend: Any
    device: Cpu | Cuda
    eager_side: ModelSide
    compiled_side: ModelSide
    compiled_model: Any  # what the back end made of compiled_side.module
    eager_step: Callable[[], Any]
    compiled_step: Callable[[], Any]
    seed: Callable[[], None]  # sets generators, inputs and state back
    frames: structure.Frames | None = None  # what dynamo compiles of the compiled side
    atomics: str | None = None  # how eager's runs differ unless its algorithms are deterministic

    def observe_eager(self, observed: Callable[..., Any]) -> Any:
        """What eager returns, by deterministic algorithms where its runs differ otherwise.

        The compiled side never runs under them: dynamo would compile it again.
        """
        with self.device.deterministic() if self.atomics else contextlib.nullcontext(), self.uncounted():
            return observed(self.eager_step)

    def uncounted(self) -> ContextManager[None]:
        """What dynamo compiles within is none of the compiled side's: a model may compile parts of itself."""
        return self.frames.uncounted() if self.frames else contextlib.nullcontext()


def eager_side(module: Any, inputs: Any, job: Job, where: torch.device) -> ModelSide:
    """The eager side, in the dtype that the suite names as its baseline, else in the case's."""
    dtype = job.baseline_dtype or job.case.dtype
    if dtype != job.case.dtype:
        job = replace(job, case=replace(job.case, dtype=dtype, amp_dtype=None))
    return _side(module, inputs, replace(job, variant={}), where)


def shares_module(eager: ModelSide, job: Job) -> bool:
    """Whether the back end gets eager's own module, and no copy in another dtype; of no variant."""
    dtypes = [_DTYPES.get(each.case.dtype, torch.float32) for each in (job, eager.job)]
    return dtypes[0] == dtypes[1]


def compiled_side(eager: ModelSide, job: Job) -> ModelSide:
    """The side that the back end gets: eager's own model, or a copy in the case's dtype."""
    if shares_module(eager, job):
        return replace(eager, job=job)
    where = _device_of(eager.inputs)
    return _with_state_of(eager, _side(copy.deepcopy(eager.module), _fresh_inputs(eager), job, where))


def variant_side(eager: ModelSide, module: Any, job: Job, where: torch.device) -> ModelSide:
    """The side of a model in another configuration (job.variant), with eager's weights and inputs.

    Raises RuntimeError where the weights do not fit: then it is another model and no variant.
    """
    if job.case.device == "cuda":  # making the module has called the model's function, which may set TF32
        use_tf32(job.tf32)
    module.load_state_dict(eager.module.state_dict())
    side = _side(module, _fresh_inputs(eager), job, where)
    if job.variant.get("channels_last"):
        side.module.to(memory_format=torch.channels_last)
        side.inputs = as_leaves(pytree.map_tensors(side.inputs, _channels_last), eager.inputs)
    return _with_state_of(eager, side)


def as_leaves(inputs: Any, model: Any) -> Any:
    """Inputs whose tensors take a gradient where those of `model`, which has the same structure, do.

    A tensor that was cast or moved would pass its gradient on to the one that it was made of.
    """
    takes_gradient = {
        path: leaf.requires_grad for path, leaf in pytree.leaves(model, "inputs") if torch.is_tensor(leaf)
    }
    if any(takes_gradient.values()):
        inputs = pytree.map_tensors(inputs, lambda tensor: tensor.detach())
        for path, leaf in pytree.leaves(inputs, "inputs"):
            if takes_gradient.get(path):
                leaf.requires_grad_()
    return inputs


def _fresh_inputs(eager: ModelSide) -> Any:
    return as_leaves(pytree.detach(eager.pristine), eager.inputs)


def _with_state_of(eager: ModelSide, side: ModelSide) -> ModelSide:
    if eager.state is not None:
        side.save_state(eager.saves_parameters)
    return side


def _side(module: Any, inputs: Any, job: Job, where: torch.device) -> ModelSide:
    cast = _cast(job.case.dtype)
    pytree.cast_module(module, cast)
    module = module.to(where)
    inputs = as_leaves(pytree.map_tensors(inputs, lambda tensor: cast(tensor.to(where))), inputs)
    pristine = pytree.map_tensors(inputs, lambda tensor: tensor.detach().to("cpu", copy=True))
    return ModelSide(job, module, inputs, pristine)


def _cast(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A cast of floating tensors to a dtype; autocast (amp) leaves the model as it was loaded."""
    dtype = _DTYPES.get(name)
    return lambda tensor: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """(batch, channels, h, w) with the channels beside each other in memory; other shapes unchanged."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _shapes(inputs: Any) -> Dict[str, Optional[Tuple[int, ...]]]:
    """The shape of each tensor in nested inputs, by path; None for nested tensors, which may have none."""
    return {
        path: None if leaf.is_nested else tuple(leaf.shape)
        for path, leaf in pytree.leaves(inputs, "inputs")
        if isinstance(leaf, torch.Tensor)
    }


def _device_of(inputs: Any) -> torch.device:
    return next((tensor.device for tensor in pytree.tensors_in(inputs)), torch.device("cpu"))


def _tensor_at(module: Any, name: str) -> Optional[torch.Tensor]:
    """The tensor that a module has under a dotted name, or None."""
    value = module
    for part in name.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, torch.Tensor) else None


def _path(module: Any, name: str) -> Tuple[Any, ...]:
    """The modules from the root to the owner of a parameter or buffer."""
    modules = [module]
    for part in name.split(".")[:-1]:
        modules.append(getattr(modules[-1], part))
    return tuple(modules)


def _put_back(name: str, saved: SavedTensor) -> None:
    """Put a tensor, and the modules on the way to it, back in their places."""
    *parts, leaf = name.split(".")
    for owner, part, inner in zip(saved.path, parts, saved.path[1:]):
        if getattr(owner, part, None) is not inner:
            setattr(owner, part, inner)
    owner = saved.path[-1]
    registered = owner._parameters if isinstance(saved.tensor, torch.nn.Parameter) else owner._buffers
    if leaf in registered:
        setattr(owner, leaf, saved.tensor)
        return
    for place in (owner.__dict__, owner._parameters, owner._buffers, owner._modules):
        place.pop(leaf, None)
    registered[leaf] = saved.tensor


def _differs(tensor: Optional[torch.Tensor], pristine: torch.Tensor) -> bool:
    if tensor is None:
        return True
    if tensor.is_nested != pristine.is_nested or tensor.layout != pristine.layout:
        return True
    if tensor.is_nested or tensor.layout not in _COMPARABLE:
        return False
    return tensor.shape != pristine.shape or not output_comparison.same(tensor.detach().to("cpu"), pristine)


def overwrite(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values into a tensor of the same shape whose elements may share memory.

    `copy_` refuses such tensors: expanded ones, and windows that overlap (unfold).
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
