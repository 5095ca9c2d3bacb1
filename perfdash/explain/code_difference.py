"""Kernels of generated code, and the differences of two sides' code as text. Pure."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from perfdash.errors import UsageError
from perfdash.explain.structure_comparison import Explanation
from perfdash.worker.structure import Kernel, parse

_SUFFIXES = {"cpp": ".cpp", "triton": ".py"}
_CONTEXT = 3


def kernels_of(files: Mapping[str, str], pattern: str) -> dict[str, str]:
    """The sources of the kernels that match, by file name. Raises UsageError where none does."""
    every = _kernels(files)
    chosen = [kernel for kernel in every if fnmatch.fnmatchcase(kernel.name, pattern)]
    if not chosen:
        names = ", ".join(dict.fromkeys(kernel.name for kernel in every)) or "none"
        raise UsageError(f"--kernel {pattern!r} matches no kernel; there are: {names}")
    several = len({kernel.graph for kernel in chosen}) > 1
    return {_file_name(kernel, several): kernel_source(kernel) for kernel in chosen}


def _kernels(files: Mapping[str, str]) -> list[Kernel]:
    return parse(files[name] for name in sorted(files, key=_place)).kernels


def _place(name: str) -> tuple[int, str]:
    digits = "".join(char for char in name if char.isdigit())
    return (int(digits) if digits else 0), name


def _file_name(kernel: Kernel, with_graph: bool) -> str:
    graph = f"graph{kernel.graph}." if with_graph else ""
    return f"{graph}{kernel.name}{_SUFFIXES.get(kernel.kind, '.txt')}"


def kernel_source(kernel: Kernel) -> str:
    """The text between the quotes of the wrapper."""
    start, end = kernel.source.find("'''"), kernel.source.rfind("'''")
    if start < 0:
        return kernel.source
    return kernel.source[start + 3 : end if end > start else None].strip("\n") + "\n"


def code_difference(
    explanation: Explanation, before: Mapping[str, str], after: Mapping[str, str], most_lines: int = 400
) -> str:
    """The unified diff of the kernels that differ, at most so many lines.

    A change is left out where the code of one of its kernels is missing: the other side's is not new code.
    """
    old = {(kernel.graph, kernel.name): kernel for kernel in _kernels(before)}
    new = {(kernel.graph, kernel.name): kernel for kernel in _kernels(after)}
    lines: list[str] = []
    for change in explanation.kernels:
        texts = _source(change.before, old), _source(change.after, new)
        if change.how == "same" or texts[0] is None or texts[1] is None:
            continue
        names = [
            " + ".join(str(kernel["name"]) for kernel in kernels) or "none"
            for kernels in (change.before, change.after)
        ]
        diff = difflib.unified_diff(
            texts[0].splitlines(), texts[1].splitlines(), names[0], names[1], n=_CONTEXT, lineterm=""
        )
        lines += islice(diff, most_lines + 1 - len(lines))
        if len(lines) > most_lines:
            return "\n".join([*lines[:most_lines], "... the rest is left out: perfdash code shows it"])
    return "\n".join(lines)


def _source(kernels: Sequence[Mapping[str, Any]], code: Mapping[tuple[int, str], Kernel]) -> str | None:
    """The source of kernels that a record names, in order; None where the code of one is missing."""
    found = [code.get((int(kernel.get("graph", 0)), str(kernel["name"]))) for kernel in kernels]
    return None if None in found else "".join(kernel_source(kernel) for kernel in found if kernel)
