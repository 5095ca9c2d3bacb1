"""Loader of a user's own model: `target = "file.py:function"`.

The call is function(batch_size) -> (module, inputs).
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Sequence

from perfdash.records import Job
from perfdash.worker import own_files

PRELOAD: tuple[str, ...] = ()

_modules: Dict[Path, Any] = {}  # those of the files that this process has executed


def load(job: Job) -> tuple[Any, Any]:
    """Call the user's function and check its result.

    Raises LookupError where the path is not a Python file or has no such function, or hides a package of
    the build that is measured, TypeError for any other result; the message says how to correct it.
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
    result = call(getattr(module, function), job.case.batch_size, f"{path}:{function}")
    if job.of_build and (hidden := notes(job)):  # two builds would both be measured as the checkout
        raise LookupError(
            f"{'; '.join(hidden)}: move {path.name} out of that folder, or install that folder in the "
            "environment (pip install -e); rename what lies beside it if it is another package"
        )
    return result


def _executed(path: Path) -> Any:
    """The module of a file, executed once a process: it may register operators, which works only once."""
    kept = _modules.get(path.absolute())
    if kept is not None:
        return kept
    name = module_name(path)
    if name == path.stem:
        add_folder(str(path.parent))
    else:  # last, or processes that compile would import the file in place of the module of its name
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LookupError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _folder_named():
        own_files.execute(module, path)
    _modules[path.absolute()] = module
    return module


def module_name(path: Path) -> str:
    """The name under which the module of a model's file is loaded: the file's own, unless it is taken.

    A file `random.py` must not replace Python's random, which torch imports, nor any module that is loaded.
    """
    loaded = sys.modules.get(path.stem)
    file = getattr(loaded, "__file__", None)
    is_taken = loaded is not None and not (file and os.path.abspath(file) == os.path.abspath(path))
    is_standard = path.stem in getattr(sys, "stdlib_module_names", ())  # of Python 3.10 and later
    return f"perfdash_model_{path.stem}" if is_taken or is_standard else path.stem


def files(job: Job) -> dict[str, str]:
    """The sources that the model is made of: its file and the modules beside it that it imported, by path."""
    return own_files.imported_from(_folder(job), job.scratch)


def is_own(job: Job, file: str) -> bool:
    """Whether a file lies beside that of the model, belongs to no installed package and is not generated."""
    return own_files.is_own(Path(file), _folder(job), job.scratch)


def _folder(job: Job) -> Path:
    return Path(job.target.rpartition(":")[0]).absolute().parent


def notes(job: Job) -> list[str]:
    """A note for each installed package in place of which a loaded model imported one beside its file."""
    file = Path(job.target.rpartition(":")[0])
    return [
        f"{name} is imported from {origin}, beside {file.name}, and not as it is installed in the measured "
        f"environment ({installed})"
        for name, (origin, installed) in _hidden_packages(file).items()
    ]


def _hidden_packages(file: Path) -> dict[str, tuple[str, Path]]:
    """What was imported from beside a file and is also installed: name -> (its file, the installed one)."""
    folder = file.absolute().parent
    path = list(sys.path)
    if str(file.parent) in path:  # of add_folder; a second one is the user's own, who means the checkout
        path.remove(str(file.parent))
    hidden = {}
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if "." in name or not isinstance(origin, str) or folder.name not in origin:
            continue
        is_package = hasattr(module, "__path__")
        is_beside = Path(origin).parents[is_package] == folder and Path(origin) != file.absolute()
        if not is_beside or name in getattr(sys, "stdlib_module_names", ()):  # of Python 3.10 and later
            continue
        installed = _installed(name, path, folder, is_package)
        if installed and not installed.samefile(origin):
            hidden[name] = origin, installed
    return hidden


def _installed(name: str, path: Sequence[str], folder: Path, is_package: bool) -> Path | None:
    """The file of a package, or of a module, that is found on a path; None where there is none."""
    for finder in sys.meta_path:  # an editable install may have a finder of its own
        on_path = finder is PathFinder
        find = getattr(finder, "find_spec", None)  # which finders of before Python 3.4 lack
        spec = find(name, path if on_path else None) if find else None
        if spec is None or not spec.has_location or not os.path.isfile(str(spec.origin)):
            continue
        found = Path(str(spec.origin))
        # Another finder may look into sys.path itself, where the folder still is.
        if on_path or found.parents[is_package] != folder:
            return found if (spec.submodule_search_locations is not None) == is_package else None
    return None


@contextlib.contextmanager
def _folder_named() -> Iterator[None]:
    """Say why a file of a relative path is missing: a case runs in a folder of its own."""
    try:
        yield
    except FileNotFoundError as error:
        name = error.filename
        if isinstance(name, (str, bytes, os.PathLike)) and not os.path.isabs(name):
            error.strerror = (
                f"{error.strerror} (perfdash runs the code in another folder: give an absolute path, such as "
                "one made from __file__)"
            )
        raise


def call(function: Callable[[int], Any], batch_size: int, name: str) -> tuple[Any, Any]:
    """Call a user's function and check its result. Raises TypeError that names the function."""
    with _folder_named():
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
