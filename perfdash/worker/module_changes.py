"""What a back end of the user's own changes of the module that it shares with the eager side.

Such a change would be compared and timed with itself: right outputs, and a speedup of 1. Nothing is read
while something is timed or its memory is measured.
"""

from __future__ import annotations

import inspect
import zlib
from typing import Any, Collection, Dict, Hashable, List, Optional

import torch

from perfdash.records import Job, Status
from perfdash.worker.eager_and_compiled import ModelSide, shares_module
from perfdash.worker.failures import Unmeasurable

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_SHOWN = 3  # changes in the message


class SharedModule:
    """The state of a side's module when this was made, to be compared with its state later.

    `values`: whether the values of parameters count, which steps of training change and `seed` sets back;
    there it counts whether they take a gradient. The values of buffers never count: they are set back, too.
    """

    def __init__(self, module: Any, values: bool) -> None:
        self._module, self._values = module, values
        self._before = self._state()

    def changes(self, without: Collection[str] = ()) -> List[str]:
        """What differs from then, as words, in the order of the module; `without` these."""
        now = self._state()
        changed = [name for name in {**self._before, **now} if self._before.get(name) != now.get(name)]
        return [name for name in changed if name not in without]

    def refuse_changes(self, of_eager: Collection[str], backend: str) -> None:
        """Raise Unmeasurable where there are other changes than those that eager's own calls make."""
        changed = self.changes(of_eager)
        if changed:
            of_class = any(change.startswith("class of ") for change in changed)
            more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            raise Unmeasurable(
                Status.FAIL_TO_RUN,
                f"back end {backend} changes the model, which is the eager side as well: "
                f"{', '.join(changed[:_SHOWN])}{more}. Let `prepare` change a copy: copy.deepcopy(module)"
                + (", and no class, which the copy has, too" if of_class else ""),
            )

    def _state(self) -> Dict[str, Hashable]:
        state: Dict[str, Hashable] = {}
        for name, part in self._module.named_modules():
            own = vars(part)
            hooks = [tuple(map(id, (own.get(kind) or {}).values())) for kind in _HOOKS]
            name = name or type(part).__name__
            state[f"module {name}"] = (id(part), own.get("training"))
            state[f"forward of {name}"] = (id(_own_forward(part)), id(own.get("_compiled_call_impl")))
            state[f"hooks of {name}"] = tuple(hooks)
            # A graph module may make its forward anew of the same code.
            code = own.get("_code") if isinstance(part, torch.fx.GraphModule) else None
            state[f"class of {name}"] = (id(type(part)), code or id(_forward_of(type(part))))
        for name, tensor in self._module.named_parameters():
            # Without a gradient a step of training does less; in inference that changes nothing.
            value = _checksum(tensor) if self._values else tensor.requires_grad
            state[f"parameter {name}"] = (id(tensor), *_layout(tensor), value)
        for name, tensor in self._module.named_buffers():
            state[f"buffer {name}"] = _layout(tensor)
        return state


def shared_module(job: Job, side: ModelSide, scenario: Any) -> Optional[SharedModule]:
    """Eager's module, where a back end of the user's own gets it; perfdash's own back ends change nothing."""
    is_measured = job.role in ("full", "untimed")
    if not job.backend_file or not is_measured or job.variant or not shares_module(side, job):
        return None
    return SharedModule(side.module, not getattr(scenario, "CHANGES_MODULE", False))


def _own_forward(part: Any) -> Any:
    """The `forward` that a module has instead of its class's; None where the class's own was put back."""
    forward = vars(part).get("forward")
    is_of_class = getattr(forward, "__func__", None) is _forward_of(type(part))
    return None if is_of_class and getattr(forward, "__self__", None) is part else forward


def _forward_of(kind: type) -> Any:
    return inspect.getattr_static(kind, "forward", None)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    try:
        return tensor.dtype, tuple(tensor.shape), tensor.stride()
    except RuntimeError:  # of sparse and nested tensors
        return (tensor.dtype,)


def _checksum(tensor: torch.Tensor) -> Optional[int]:
    """A checksum of the values; None for tensors without plain bytes."""
    try:
        plain = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        return zlib.crc32(memoryview(plain.numpy()))
    except Exception:  # of tensors of another library any: torchao's Float8Tensor asserts
        return None
