"""Which operators one eager call executes below autograd, and which of them Python code replaces.

Both are evidence for `perfdash explain`, taken from one further call that nothing times.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, Callable, FrozenSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_MOST = 200  # operators and implementations that are recorded


class _Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def of_case(step: Callable[[], Any], before: FrozenSet[str]) -> dict[str, Any]:
    """What eager calls: {calls, registered since `before`}; calls is None where they cannot be watched."""
    registered = registered_since(before)
    try:
        return {"calls": of_step(step), "registered": registered}
    except Exception as error:  # evidence only: it never costs the case its numbers
        print(f"perfdash: eager's operators cannot be counted: {error}", file=sys.stderr, flush=True)
        return {"calls": None, "registered": registered}


def of_step(step: Callable[[], Any]) -> dict[str, int]:
    """Calls of each operator in one step, by name with overload."""
    with _Count() as count:
        step()
    return dict(sorted(count.calls.most_common(_MOST)))


def registered() -> FrozenSet[str]:
    """The implementations of operators that Python code has registered: aten/gelu/CPU."""
    return frozenset(getattr(torch.library, "_impls", ()))


def registered_since(before: FrozenSet[str]) -> list[str]:
    """Implementations that were registered since `before`, as `aten::gelu for CPU`."""
    names = (name.rsplit("/", 1) for name in registered() - before)
    return sorted(f"{operator.replace('/', '::', 1)} for {key}" for operator, key in names)[:_MOST]
