"""The folder of the user's cache in which perfdash keeps what would take seconds to make again."""

from __future__ import annotations

import os
from pathlib import Path


def folder(name: str) -> Path:
    """$PERFDASH_CACHE/NAME, else NAME in perfdash's folder of $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("PERFDASH_CACHE"):
        return Path(own) / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perfdash" / name
