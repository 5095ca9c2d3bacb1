"""A model of the user's own: `target = "file.py:function"`, function(batch_size) -> (module, inputs)."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from perfdash.records import Job

PRELOAD: tuple[str, ...] = ()


def load(job: Job) -> tuple[Any, Any]:
    """What the user's function returns, checked. Raises TypeError, LookupError with what to mend."""
    file, _, function = job.target.rpartition(":")
    path = Path(file)
    sys.path.insert(_behind_the_build(), str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise LookupError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, function, None)):
        raise LookupError(f"{path} has no function {function!r}")
    made = getattr(module, function)(job.case.batch_size)
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], (tuple, dict))):
        raise TypeError(
            f"{path}:{function} must return (module, inputs), inputs a tuple or a dict; "
            f"it returned {type(made).__name__}"
        )
    return made


def _behind_the_build() -> int:
    """Where in sys.path what lies beside the file is found: behind PYTHONPATH.

    A build that is bisected is imported from there. The file may lie in the checkout of the very package.
    """
    builds = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return max((sys.path.index(entry) + 1 for entry in builds if entry in sys.path), default=0)
