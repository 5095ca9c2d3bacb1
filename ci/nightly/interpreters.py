"""The interpreter of each run of a night, for re-measuring it on this machine.

`interpreters.py TOP RUNS...` prints a line a run: its folder, a tab, the interpreter. TOP is the folder of
the night, with the cells below `cells`. Cells of one night may have measured different builds. Standard
library only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MISSING = "missing"
"""Printed where no interpreter on this machine has the build of the run."""


def interpreter(run: Path, top: Path) -> str:
    """That of the cell that measured the run, else that of a cell whose run has an equal build."""
    plain = _read(run)
    shards = plain.get("merged_from", ())  # all of one build
    others = []
    for python, measured in _cells(top):
        if any(folder == run or folder.name in shards for folder in measured):
            return python
        others.append((python, measured))
    build = _build(plain)
    for python, folders in others:
        if build and build in [_build(_read(folder)) for folder in folders]:
            return python
    return MISSING


def _cells(top: Path) -> Iterator[tuple[str, list[Path]]]:
    """The interpreter and the run folders of each cell whose interpreter is on this machine."""
    for file in sorted(top.glob("cells/*/python")):
        python = file.read_text(encoding="utf-8").rstrip("\n")
        if os.access(python, os.X_OK):
            yield python, [info.parent for info in sorted(file.parent.glob("out/*/run.json"))]


def _read(run: Path) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads((run / "run.json").read_text(encoding="utf-8"))
    return plain


def _build(plain: dict[str, Any]) -> list[Any]:
    """What the interpreter of a run had installed; empty where the run does not know."""
    worker = (plain.get("environment") or {}).get("worker") or {}
    return [worker.get(name) for name in ("torch_git_version", "packages", "commits")] if worker else []


def main(words: Sequence[str]) -> None:
    top, *runs = words
    lines = [f"{run}\t{interpreter(Path(run), Path(top))}\n" for run in runs]
    sys.stdout.buffer.write(b"".join(os.fsencode(line) for line in lines))


if __name__ == "__main__":
    main(sys.argv[1:])
