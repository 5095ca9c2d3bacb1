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
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Optional, Sequence, Tuple

from perfdash.worker import own_files

KINDS = ("loaders", "backends", "scenarios", "datasets")


class UnusableBackend(LookupError):
    """A file of the user's own that does not import, or is no back end; the message names it."""


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
    """The module of a back end, by its name or as a file, which may import modules beside it.

    Raises LookupError where there is none, UnusableBackend for such a file.
    """
    if not name_or_file.endswith(".py"):
        return find("backends", name_or_file)
    path = Path(name_or_file).absolute()
    module_name = f"perfdash_backend_{path.stem}"
    loaded = sys.modules.get(module_name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UnusableBackend(f"there is no back end in {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    # Last: a package beside the file, as in a checkout, must not replace the one that is measured.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        own_files.execute(module, path)
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = f" (line {lines[-1]})" if lines else ""
        hint = ""
        if isinstance(error, ImportError):
            hint = "; what an interpreter may lack, import inside prepare and name in PACKAGES"
        why = f"{type(error).__name__}: {error}{hint}"
        raise UnusableBackend(f"back end {path}{line} does not import: {why}") from error
    if not callable(getattr(module, "prepare", None)):
        raise UnusableBackend(f"{path} has no function prepare(module, inputs, job): it is no back end")
    return module


def facts(path: Path) -> SimpleNamespace:
    """The constants and names of a file, read without running it: it may import torch.

    Names within `if`, `try` and `with` count; `*` is a name where the file imports another module's.
    Raises LookupError where the file is no Python, or where one of the constants in _READ is no literal or
    has several values.
    """
    try:
        body = ast.parse(path.read_text(encoding="utf-8"), str(path)).body
    except (OSError, ValueError, SyntaxError) as error:
        raise LookupError(f"{path}: {type(error).__name__}: {error}") from error
    names_read: Dict[str, Any] = {}
    _read_names(body, path, names_read, nested=False)
    return SimpleNamespace(**names_read)


def _read_names(body: Sequence[ast.stmt], path: Path, names_read: Dict[str, Any], nested: bool) -> None:
    """Add the names that statements define; `nested`: they may not run when the file runs."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names_read[node.name] = None
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names_read.update((alias.asname or alias.name, None) for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (target.id for target in targets if isinstance(target, ast.Name)):
                value = _literal(node.value, name, path)
                if nested and name in _READ and names_read.get(name, value) != value:
                    raise LookupError(
                        f"{path}: {name} must have one value, since it is read without running the file"
                    )
                names_read[name] = value
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            within = [node.body, getattr(node, "orelse", []), getattr(node, "finalbody", [])]
            within += [handler.body for handler in getattr(node, "handlers", [])]
            for inner in within:
                _read_names(inner, path, names_read, nested=True)


# Read by programs that do not run the file.
_READ = ("PRELOAD", "DTYPES", "DEVICES", "SCENARIOS", "OPTIONS", "LOSSY")


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
    """The packages to import before cases fork, read without importing the loader, which needs torch."""
    if canonical(loader) not in names("loaders"):
        raise LookupError(f"no loader named {loader!r}; there are: {', '.join(names('loaders'))}")
    path = Path(__file__).with_name("loaders") / f"{canonical(loader).replace('-', '_')}.py"
    return tuple(facts(path).PRELOAD)


def backend_facts(name_or_file: str) -> Any:
    """A back end's constants, for the parent process, which must not import torch.

    perfdash's own back ends import nothing heavy; a user's file is not run. Raises LookupError.
    """
    if not name_or_file.endswith(".py"):
        return find("backends", name_or_file)
    path = Path(name_or_file).absolute()
    if not path.is_file():
        raise LookupError(f"there is no back end in {path}")
    constants = facts(path)
    if not hasattr(constants, "prepare") and not hasattr(constants, "*"):  # the worker checks what it imports
        raise LookupError(f"{path} has no function prepare(module, inputs, job): it is no back end")
    return constants


def backend_name(name_or_file: str) -> str:
    """The name of a back end in a case: a file's name without folder and `.py`."""
    is_file = name_or_file.endswith(".py")
    return canonical(Path(name_or_file).stem if is_file else name_or_file)
