"""perfdash: a performance tracker for torch.compile and its rivals.

    import perfdash
    result = perfdash.measure("net.py:make")
    run = perfdash.run(suite="timm", quick=True)

docs/api.md describes the names that are imported from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from perfdash.api import History, Run, bisect, compare, load, measure, run
    from perfdash.bisection.result import BisectionResult
    from perfdash.errors import MachineError, PerfdashError, UsageError
    from perfdash.records import Case, Result, Status

__all__ = [
    "BisectionResult", "Case", "History", "MachineError", "PerfdashError", "Result", "Run", "Status",
    "UsageError", "bisect", "compare", "load", "measure", "run",
]  # fmt: skip
_HOMES = {
    **dict.fromkeys(("History", "Run", "bisect", "compare", "load", "measure", "run"), "perfdash.api"),
    "BisectionResult": "perfdash.bisection.result",
    **dict.fromkeys(("MachineError", "PerfdashError", "UsageError"), "perfdash.errors"),
    **dict.fromkeys(("Case", "Result", "Status"), "perfdash.records"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: the command line and the worker need none of them."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'perfdash' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
