"""A model that is defined in a notebook or at a prompt: sent to the workers of one run, and nowhere else.

It is the one exception to "nothing is unpickled". The calling process writes its own object into a sealed
memory file, and its workers inherit the descriptor over their control socket. No path, option, suite file or
record of a run names that file, so no other data can be loaded by this way.
"""

from __future__ import annotations

import ast
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfdash.errors import UsageError

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class NotebookModel:
    """A pickled function in a sealed memory file. `name` is the function's, `descriptor` the file's."""

    name: str
    descriptor: int


@contextmanager
def notebook_model(make: Callable[..., Any], name: str) -> Iterator[NotebookModel]:
    """Pickle a function that returns (module, inputs); the memory file ends with the context.

    Raises UsageError where cloudpickle is missing, and for a function that cannot be pickled.
    """
    payload = _header() + _pickled(make, name)
    descriptor = os.memfd_create("perfdash-model", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(payload)
        del payload
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        yield NotebookModel(name, descriptor)
    finally:
        os.close(descriptor)


def is_in_file(function: Callable[..., Any], name: str, file: str) -> bool:
    """Whether the workers, which execute its file, find a function there as this process has it.

    Not if the script binds its name below `if __name__ == "__main__":`, or decorated it after its definition.
    """
    try:
        bindings = list(_bindings(ast.parse(Path(file).read_bytes()), name))
    except (OSError, SyntaxError, ValueError):  # the worker says so
        return True
    if function.__module__ == "__main__" and any(guarded for _, guarded in bindings):
        return False
    last = bindings[-1][0] if bindings else None
    is_plain = isinstance(last, ast.FunctionDef) and not last.decorator_list
    return not (is_plain and hasattr(function, "__wrapped__"))


def _bindings(node: ast.AST, name: str, guarded: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """What binds a name of a module, in order, and whether only in a script that is executed as such."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if child.name == name:
                yield child, guarded
            continue
        if isinstance(child, ast.Name) and child.id == name and isinstance(child.ctx, ast.Store):
            yield child, guarded
        asks = isinstance(child, ast.If) and "__name__" in {
            part.id for part in ast.walk(child.test) if isinstance(part, ast.Name)
        }
        yield from _bindings(child, name, guarded or asks)


def _header() -> bytes:
    """One line of JSON that a worker reads first: a pickled function suits one Python version only."""
    facts = {"python": list(sys.version_info[:2]), "folder": os.getcwd()}
    return json.dumps(facts).encode() + b"\n"


def _pickled(make: Callable[..., Any], name: str) -> bytes:
    try:
        import cloudpickle
    except ImportError as error:
        raise UsageError(
            f"{name} is defined in a notebook or at a prompt, and sending it to another process needs "
            "cloudpickle: pip install cloudpickle. Or write it into a file, e.g. "
            f"net.py with %%writefile, and measure 'net.py:{name}'"
        ) from error
    try:
        data: bytes = cloudpickle.dumps(make)
    except Exception as error:
        raise UsageError(
            f"{name} cannot be sent to another process ({type(error).__name__}: {error}): it uses something "
            "that exists in this process only, such as an open file or a lock. Create that inside the "
            "function"
        ) from error
    return data
