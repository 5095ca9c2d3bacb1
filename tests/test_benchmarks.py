"""The programs of benchmarks/ and ci/ import what there is: nothing else runs them, and names move."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(
    path.relative_to(ROOT).as_posix() for name in ("benchmarks", "ci") for path in (ROOT / name).rglob("*.py")
)


def imported(text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of each import from perfdash, those within functions as well."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "perfdash":
            yield from ((node.module, name.name) for name in node.names)


def is_there(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_program_imports_from_perfdash_is_there(program):
    names = list(imported((ROOT / program).read_text()))
    assert [f"{module}.{name}" for module, name in names if not is_there(module, name)] == []
