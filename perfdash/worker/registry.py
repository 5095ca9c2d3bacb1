"""Loaders, back ends, scenarios and data sets by name: one file each, and the file is the registration.

The name `int8-dynamic` is the file `int8_dynamic.py`. Listing the names imports nothing. A back end may
also be a file of the user's own.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Optional, Sequence, Tuple

KINDS = ("loaders", "backends", "scenarios", "datasets")


def names(kind: str) -> list[str]:
    """The registered names of a kind (one of KINDS), sorted."""
    folder = Path(__file__).with_name(kind)
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules([str(folder)]))


def canonical(name: str) -> str:
    """A name as it is shown and stored: `aot_eager` and `aot-eager` are the same back end."""
    return name.replace("_", "-")


def find(kind: str, name: str) -> Any:
    """The module registered under a name. Raises LookupError that lists the names there are."""
    if canonical(name) not in names(kind):
        raise LookupError(f"no {kind[:-1]} named {name!r}; there are: {', '.join(names(kind))}")
    return importlib.import_module(f"perfdash.worker.{kind}.{canonical(name).replace('-', '_')}")


def backend(name_or_file: str) -> Any:
    """The module of a back end, by its name or as a file. Raises LookupError where there is none."""
    if not name_or_file.endswith(".py"):
        return find("backends", name_or_file)
    path = Path(name_or_file).absolute()
    known = f"perfdash_backend_{path.stem}"
    loaded = sys.modules.get(known)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(known, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise LookupError(f"there is no back end in {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, "prepare", None)):
        raise LookupError(f"{path} has no function prepare(module, inputs, job): it is no back end")
    return module


def facts(path: Path) -> SimpleNamespace:
    """The constants and the names of a file, read without running it: it may import torch.

    Those within `if`, `try` and `with` too; `*` is a name where it imports another module's.

    Raises LookupError where it is no Python, where a constant that is read (_READ) is no literal, or where
    it depends on what is so when the file runs.
    """
    try:
        body = ast.parse(path.read_text(encoding="utf-8"), str(path)).body
    except (OSError, ValueError, SyntaxError) as error:
        raise LookupError(f"{path}: {type(error).__name__}: {error}") from error
    found: Dict[str, Any] = {}
    _read_names(body, path, found, nested=False)
    return SimpleNamespace(**found)


def _read_names(body: Sequence[ast.stmt], path: Path, found: Dict[str, Any], nested: bool) -> None:
    """Adds what the statements define; `nested`: whether they may be left out when the file runs."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = None
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update((alias.asname or alias.name, None) for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (target.id for target in targets if isinstance(target, ast.Name)):
                value = _literal(node.value, name, path)
                if nested and name in _READ and found.get(name, value) != value:
                    raise LookupError(
                        f"{path}: {name} must have one value, since it is read without running the file"
                    )
                found[name] = value
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            within = [node.body, getattr(node, "orelse", []), getattr(node, "finalbody", [])]
            within += [handler.body for handler in getattr(node, "handlers", [])]
            for inner in within:
                _read_names(inner, path, found, nested=True)


_READ = ("PRELOAD", "DTYPES", "DEVICES", "SCENARIOS", "LOSSY")  # by those who do not run the file


def _literal(node: Optional[ast.expr], name: str, path: Path) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError as error:
        if name in _READ:
            raise LookupError(
                f'{path}: {name} must be written as a literal, e.g. {name} = ("...",), since it is read '
                "without running the file"
            ) from error
        return None


def preload(loader: str) -> Tuple[str, ...]:
    """The packages that a loader wants imported before cases fork; torch is not imported for it."""
    if canonical(loader) not in names("loaders"):
        raise LookupError(f"no loader named {loader!r}; there are: {', '.join(names('loaders'))}")
    path = Path(__file__).with_name("loaders") / f"{canonical(loader).replace('-', '_')}.py"
    return tuple(facts(path).PRELOAD)


def backend_facts(name_or_file: str) -> Any:
    """What a back end says of itself, for those who must not import torch.

    perfdash's own import nothing heavy; a file of the user's own is not run. Raises LookupError.
    """
    if not name_or_file.endswith(".py"):
        return find("backends", name_or_file)
    path = Path(name_or_file).absolute()
    if not path.is_file():
        raise LookupError(f"there is no back end in {path}")
    found = facts(path)
    if not hasattr(found, "prepare") and not hasattr(found, "*"):  # of what it imports, the worker tells
        raise LookupError(f"{path} has no function prepare(module, inputs, job): it is no back end")
    return found


def backend_name(name_or_file: str) -> str:
    """What a case calls a back end: a file by its name without folder and `.py`."""
    is_file = name_or_file.endswith(".py")
    return canonical(Path(name_or_file).stem if is_file else name_or_file)
