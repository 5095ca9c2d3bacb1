"""Loader of a user's own model: `target = "file.py:function"`.

The call is function(batch_size) -> (module, inputs).
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict

from perfdash.records import Job
from perfdash.worker import own_files

PRELOAD: tuple[str, ...] = ()

_modules: Dict[Path, Any] = {}  # those of the files that this process has executed


def load(job: Job) -> tuple[Any, Any]:
    """Call the user's function and check its result.

    Raises LookupError where the path is not a Python file or has no such function, TypeError for any other
    result; the message says how to correct it.
    """
    file, _, function = job.target.rpartition(":")
    path = Path(file)
    module = _executed(path)
    files(job)  # an edit of the modules beside it from here on is not what runs
    if not callable(getattr(module, function, None)):
        near = difflib.get_close_matches(
            function, [n for n in vars(module) if callable(vars(module)[n])], n=3
        )
        hint = f" (did you mean {', '.join(near)}?)" if near else ""
        raise LookupError(f"{path} has no function {function!r}{hint}")
    return call(getattr(module, function), job.case.batch_size, f"{path}:{function}")


def _executed(path: Path) -> Any:
    """The module of a file, executed once a process: it may register operators, which works only once."""
    kept = _modules.get(path.absolute())
    if kept is not None:
        return kept
    add_folder(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise LookupError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    own_files.execute(module, path)
    _modules[path.absolute()] = module
    return module


def files(job: Job) -> dict[str, str]:
    """The sources that the model is made of: its file and the modules beside it that it imported, by path."""
    return own_files.imported_from(_folder(job), job.scratch)


def is_own(job: Job, file: str) -> bool:
    """Whether a file lies beside that of the model, belongs to no installed package and is not generated."""
    return own_files.is_own(Path(file), _folder(job), job.scratch)


def _folder(job: Job) -> Path:
    return Path(job.target.rpartition(":")[0]).absolute().parent


def call(function: Callable[[int], Any], batch_size: int, name: str) -> tuple[Any, Any]:
    """Call a user's function and check its result. Raises TypeError that names the function."""
    result = function(batch_size)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise TypeError(
            f"{name} must return (module, inputs), with the inputs as a "
            "tuple or a dict of keyword arguments: "
            f"write `return net, (x,)`. It returned {_described(result)}"
        )
    module, inputs = result
    if isinstance(inputs, list):
        inputs = tuple(inputs)
    elif _is_tensor(inputs):
        inputs = (inputs,)
    if isinstance(module, (tuple, list, dict)) or _is_tensor(module):
        raise TypeError(
            f"{name} must return (module, inputs), the module first: write `return net, (x,)`. "
            f"Its first value is {_described(module)}"
        )
    if not isinstance(inputs, (tuple, dict)):
        raise TypeError(
            f"{name} must return (module, inputs), with the inputs as a "
            "tuple or a dict of keyword arguments: "
            f"write `return net, (x,)`. Its inputs are {_described(inputs)}"
        )
    return module, inputs


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _described(value: Any) -> str:
    """A value in words: its type, and how many items it has."""
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None: is its `return` missing?" if value is None else f"an object of type {type(value).__name__}"


def add_folder(folder: str) -> None:
    """Make the modules of a folder importable, behind PYTHONPATH.

    During a bisection PYTHONPATH holds the build under test. The folder may belong to a checkout of the
    same package, which must not replace the build.
    """
    builds = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    place = max((sys.path.index(entry) + 1 for entry in builds if entry in sys.path), default=0)
    sys.path.insert(place, folder)
