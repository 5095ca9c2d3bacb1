#!/usr/bin/env python3
"""Figures on the structure of perfdash/, so that the next person sees the trend.

    ci/structure.py

It prints files, lines, small modules with one importer, and what a case and a step of a bisection cross: the
modules that the path's first ones import, directly or through others, also inside functions, plugins apart.
A shape is a class that is mostly data: a dataclass, a NamedTuple, a TypedDict or a pydantic model.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "perfdash"
SMALL = 80
LONGEST = 600
# A file in these folders registers itself under its name; nothing imports it.
PLUGINS = (
    "worker/backends", "worker/loaders", "worker/scenarios", "worker/datasets", "worker/models",
    "history/importers", "report/plots", "cli", "history/migrations",
)  # fmt: skip
PATHS = {
    "a case, from the flag to the record": ("perfdash.cli.run", "perfdash.worker.__main__"),
    "a step of a bisection": ("perfdash.cli.bisect",),
}
DATA_CLASSES = {"NamedTuple", "TypedDict", "BaseModel"}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    return {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def name_of(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports anywhere in its text."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    modules = {name for name in names if name in known}
    # `from perfdash.stats import means` imports the module means, not what its package holds.
    return {name for name in modules if not any(other.startswith(f"{name}.") for other in modules)}


def is_shape(node: ast.ClassDef) -> bool:
    decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    words = {getattr(part, "attr", getattr(part, "id", "")) for part in [*decorators, *node.bases]}
    return "dataclass" in words or bool(words & DATA_CLASSES)


def is_plugin(path: Path) -> bool:
    folder = path.parent.relative_to(PACKAGE).as_posix()
    return any(folder == plugin or folder.startswith(f"{plugin}/") for plugin in PLUGINS)


def reachable(starts: tuple[str, ...], imported: dict[str, set[str]]) -> set[str]:
    """All modules that these import, and those that they import in turn; plugins apart."""
    seen: set[str] = set()
    waiting = [start for start in starts if start in imported]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imported[name] - seen
    return seen


def report() -> str:
    """The figures as text, a line each."""
    known = modules()
    trees = {name: ast.parse(path.read_text()) for name, path in known.items()}
    imported = {name: imports(tree, known) for name, tree in trees.items()}
    length = {name: len(path.read_text().splitlines()) for name, path in known.items()}
    importers = Counter(name for names in imported.values() for name in names)
    shapes = {
        name: [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and is_shape(node)]
        for name, tree in trees.items()
    }
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    texts = [path for path in files if path.suffix in {".py", ".html", ".js", ".css", ".svg"}]
    lonely = [
        name for name, path in known.items()
        if length[name] < SMALL and importers[name] == 1 and not is_plugin(path) and path.stem != "__init__"
    ]  # fmt: skip
    repeated = Counter(path.name for path in known.values() if path.name != "__init__.py")
    classes = Counter(
        node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    long = [name for name in known if length[name] > LONGEST]
    lines = [
        f"files: {len(texts)}, of them Python: {len(known)}, plugins: {sum(map(is_plugin, known.values()))}",
        f"lines: {sum(len(path.read_text().splitlines()) for path in texts)}, Python: {sum(length.values())}",
        f"files over {LONGEST} lines: {', '.join(long) or 'none'}",
        f"modules under {SMALL} lines with one importer: {len(lonely)}",
        *(f"  {name} ({length[name]})" for name in lonely),
        f"file names used more than once: {sum(count > 1 for count in repeated.values())}",
        f"class names used more than once: {sum(count > 1 for count in classes.values())}",
    ]
    for path, starts in PATHS.items():
        crossed = {name for name in reachable(starts, imported) if name.count(".")}
        own = sum(len(shapes[name]) for name in crossed)
        lines.append(f"{path}: {len(crossed)} modules, {own} shapes of data")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
