"""Executes the user's own Python files, and keeps their sources as this process executed or first read them.

A file may be saved while its case runs. What runs is what was executed, not what the file holds by then.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Dict, Optional

_MOST_CHARS = 4 << 20  # of sources that are handed over

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


def imported_from(folder: Path, scratch: str) -> dict[str, str]:
    """The sources of the modules below a folder that this process has imported, by path from there.

    Each is as it was executed, or as it was when this function first found it. `scratch`: the folder of the
    case, whose files are generated.
    """
    texts: dict[str, str] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        # Most modules end here: a Path of each of thousands, and its parents, would take 0.1 s a call.
        if not isinstance(file, str) or folder.name not in file:
            continue
        path = Path(file)
        if path.suffix != ".py" or not is_own(path, folder, scratch):
            continue
        try:
            text = source(path)
        except (OSError, SyntaxError, ValueError):
            continue
        if sum(map(len, texts.values())) + len(text) <= _MOST_CHARS:
            texts[str(path.relative_to(folder))] = text
    return dict(sorted(texts.items()))


def is_own(path: Path, folder: Path, scratch: str) -> bool:
    """Whether a file lies below a folder, belongs to no installed package and is not generated."""
    return folder in path.parents and Path(scratch) not in path.parents and not _is_installed(path)


def _is_installed(path: Path) -> bool:
    own = Path(__file__).absolute().parents[1]  # unresolved, as modules have it: a worker has a link
    return own in path.parents or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
