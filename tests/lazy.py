"""Modules that are imported at their first use, so that collecting the tests does not import torch."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

# What takes seconds to import: each process of pytest -n would pay for it while it collects.
HEAVY = {"onnxruntime", "openvino", "timm", "torch", "torchvision", "transformers"}
# Package -> the file at whose collection it was found imported; conftest.py fills this in.
imported_while_collecting: dict[str, str] = {}


def note_imports(collected: str) -> None:
    """Called after each file was collected, with its name."""
    for package in HEAVY & sys.modules.keys():
        imported_while_collecting.setdefault(package, collected)


class _Lazy:
    """Stands for a module: what is read from it or set on it is read from or set on the module."""

    __slots__ = ("_lazy_name", "_lazy_skip")

    def __init__(self, name: str, or_skip: bool) -> None:
        object.__setattr__(self, "_lazy_name", name)
        object.__setattr__(self, "_lazy_skip", or_skip)

    def _lazy_module(self) -> Any:
        return (pytest.importorskip if self._lazy_skip else importlib.import_module)(self._lazy_name)

    def __getattr__(self, name: str) -> Any:
        # pytest reads such names of every object in a test file while it collects.
        if name.startswith(("__", "_pytest", "_mock_")):
            raise AttributeError(name)
        return getattr(self._lazy_module(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._lazy_module(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._lazy_module(), name)

    def __dir__(self) -> list[str]:
        return dir(self._lazy_module())

    @property
    def __dict__(self) -> dict[str, Any]:
        """monkeypatch reads it to know how to undo a change."""
        return vars(self._lazy_module())


def lazy(name: str, *, or_skip: bool = False) -> Any:
    """The module of that name; `or_skip` skips the test that uses it where it is not installed."""
    return _Lazy(name, or_skip)
