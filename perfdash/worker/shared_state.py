"""What a back end of the user's own changes of what it shares with the eager side: the module and settings.

A change of the module would be compared and timed with itself: right outputs, and a speedup of 1. A setting
of the process (worker.process_settings) makes another eager side than that of other back ends. Nothing is
read while something is timed or its memory is measured.
"""

from __future__ import annotations

import contextlib
import inspect
import zlib
from typing import Any, Collection, Dict, Hashable, Iterator, List, Optional

import torch

from perfdash.records import Job, Status
from perfdash.worker import process_settings
from perfdash.worker.eager_and_compiled import ModelSide, shares_module
from perfdash.worker.failures import Unmeasurable

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_SHOWN = 3  # changes in the message


class SharedState:
    """The state of a side's module, and torch's settings, when this was made, to be compared with later ones.

    Without a module the settings alone count. `values`: whether the values of parameters count, which steps
    of training change and `seed` sets back; there it counts whether they take a gradient. The values of
    buffers never count: they are set back, too. `threads`: of torch, where they are set later.
    """

    def __init__(self, module: Optional[Any], values: bool, threads: Optional[int] = None) -> None:
        self._module, self._values = module, values
        self._before = self._state()
        if threads:
            self._before["torch.get_num_threads"] = str(threads)

    def changes(self, without: Collection[str] = ()) -> List[str]:
        """What differs from then, as words, in the order of the module; `without` these."""
        now = self._state()
        changed = [name for name in {**self._before, **now} if self._before.get(name) != now.get(name)]
        return [name for name in changed if name not in without]

    def refuse_changes(self, of_eager: Collection[str], backend: str) -> List[str]:
        """Raise Unmeasurable where there are other changes than those that eager's own calls make.

        Returns notes: a library that flushes denormal numbers where it is loaded is nobody's fault.
        """
        changed = self.changes(of_eager)
        notes = []
        if process_settings.FLUSHES in changed:
            changed.remove(process_settings.FLUSHES)
            become = "are 0" if process_settings.flushes_denormal() else "are kept"
            notes.append(
                f"since back end {backend} compiled, eager's denormal numbers {become} as well "
                "(torch.set_flush_denormal, or a library that was linked with -ffast-math)"
            )
        settings = [name for name in changed if name in process_settings.NAMES]
        if settings:
            now = process_settings.current()
            words = [f"{name} ({self._before.get(name)} became {now[name]})" for name in settings]
            raise Unmeasurable(
                Status.FAIL_TO_RUN,
                f"back end {backend} changes settings of the process, which hold for the eager side as well: "
                f"{_shown(words)}. Let the function that `prepare` returns set them, and set them back",
            )
        if changed:
            of_class = any(change.startswith("class of ") for change in changed)
            raise Unmeasurable(
                Status.FAIL_TO_RUN,
                f"back end {backend} changes the model, which is the eager side as well: "
                f"{_shown(changed)}. Let `prepare` change a copy: copy.deepcopy(module)"
                + (", and no class, which the copy has, too" if of_class else ""),
            )
        return notes

    def _state(self) -> Dict[str, Hashable]:
        state: Dict[str, Hashable] = dict(process_settings.current())
        if self._module is None:
            return state
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


def shared_state(job: Job, side: ModelSide, scenario: Any) -> Optional[SharedState]:
    """What eager and a back end of the user's own share; perfdash's own back ends change nothing of it."""
    if not _is_watched(job):
        return None
    module = side.module if not job.variant and shares_module(side, job) else None
    with scenario.context(job):
        return SharedState(module, not getattr(scenario, "CHANGES_MODULE", False), job.case.threads)


@contextlib.contextmanager
def settings_kept(job: Job) -> Iterator[None]:
    """Raise Unmeasurable if the block, which imports a back end of the user's own, changes settings.

    What the case itself sets afterwards may change.
    """
    before = SharedState(None, values=False) if _is_watched(job) else None
    yield
    if before:
        before.refuse_changes(process_settings.set_later(job.case.device), job.case.backend)


def _is_watched(job: Job) -> bool:
    return bool(job.backend_file) and job.role in ("full", "untimed")


def _shown(changed: List[str]) -> str:
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return ", ".join(changed[:_SHOWN]) + more


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
