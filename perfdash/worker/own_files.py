"""Executes the user's own Python files, and keeps their sources as this process executed or first read them.

A file may be saved while its case runs. What runs is what was executed, not what the file holds by then.
"""

from __future__ import annotations

import hashlib
import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Dict, Optional

_sources: Dict[Path, str] = {}


def execute(module: Any, path: Path) -> None:
    """Execute the file of a module that importlib has made of its spec."""
    loader = module.__spec__.loader
    if not isinstance(loader, SourceFileLoader):  # a shared library has no source
        loader.exec_module(module)
        return
    data = loader.get_data(str(path))
    exec(loader.source_to_code(data, loader.path), module.__dict__)
    _sources[path.absolute()] = importlib.util.decode_source(data)


def source(path: Path) -> str:
    """The source of a file that this process has executed. Raises OSError, SyntaxError or ValueError."""
    path = path.absolute()
    if path not in _sources:
        _sources[path] = read(path)
    return _sources[path]


def read(path: Path) -> str:
    """The source that a file holds now. Raises OSError, SyntaxError or ValueError."""
    return importlib.util.decode_source(path.read_bytes())


def digest_now(path: Path) -> Optional[str]:
    """The digest of what a file holds now; None where it cannot be read."""
    try:
        return digest_of_text(read(path))
    except (OSError, SyntaxError, ValueError):
        return None


def digest_of_text(text: str) -> str:
    """The digest of a file with this text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
