"""Loaders, back ends and scenarios by name: one file each, and the file is the registration.

The name `int8-dynamic` is the file `int8_dynamic.py`. Listing the names imports nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

KINDS = ("loaders", "backends", "scenarios")


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
