"""Keep arrays between two builds of the site, under a digest of their sources.

A lost, torn or outdated array is made again; nothing is ever unpickled."""

from __future__ import annotations

import contextlib
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdash.files import replaced

Arrays = dict[str, NDArray[Any]]
# The second form is left by a killed process, the third was by older versions.
_OURS = re.compile(r"[0-9a-f]{64}\.npz|\.[0-9a-f]{64}\.npz\.\d+\.\d+\.part|[0-9a-f]{64}\.\d+\.part")


class ArrayCache:
    """A folder of .npz files, one site's alone; without a folder nothing is kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._used: set[str] = set()

    def get(self, key: str) -> Arrays | None:
        """The arrays kept under a key, a hexadecimal digest; None where there are none, whole."""
        if self.folder is None:
            return None
        name = f"{key}.npz"
        self._used.add(name)
        try:
            # Opened here: numpy leaves a torn file open.
            with open(self.folder / name, "rb") as file, np.load(file, allow_pickle=False) as found:
                return {each: found[each] for each in found.files}
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
            return None

    def put(self, key: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keeps arrays; that a disk is full is no reason to fail: they are made again next time."""
        if self.folder is None:
            return
        file = io.BytesIO()
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's annotation takes them for its option
        target = self.folder / f"{key}.npz"
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with replaced(target, shared=True) as part:
                part.write_bytes(file.getvalue())

    def tidy(self) -> None:
        """Removes what was kept and not asked for since the cache was opened; no file of anyone else."""
        if self.folder is None or not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in self._used:
                with contextlib.suppress(OSError):
                    path.unlink()
