"""Measure with few samples: for tests of commands, where the numbers themselves are not the point.

`python -m tests.few_samples ...` is `perfdash ...` with it; `command(..., few_samples=True)` does the same.
Only how often something is sampled changes, and that the A/A null takes one process instead of three.
"""

from __future__ import annotations

import sys
from pathlib import Path


def take_few_samples() -> None:
    """Changes this process only: workers are told in their orders how much to sample."""
    from perfdash.records import Sampling
    from perfdash.runner import noise

    Sampling.__init__.__defaults__ = (0.05, 24, 200, 0.0, 1.0)
    noise.NULL_PROCESSES = 1
    noise.NULL_SAMPLING = Sampling(precision=0.02, min_pairs=10, min_s=0.0, budget_s=0.2)
    noise.NULL_BOUND = 1.0  # so few say nothing of how many slots may be busy at once
    noise.within_bounds.__defaults__ = (noise.NULL_BOUND,)


def write_environment(folder: Path) -> Path:
    """An environment for PERFDASH_VENV: this one, but `perfdash` takes few samples."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(parents=True)
    root = Path(__file__).parents[1]
    for name, words in {
        "python": "",
        "perfdash": " -m tests.few_samples",
    }.items():
        program = bin_folder / name
        path = f'PYTHONPATH="{root}${{PYTHONPATH:+:$PYTHONPATH}}" ' if words else ""
        program.write_text(f'#!/bin/sh\n{path}exec "{sys.executable}"{words} "$@"\n')
        program.chmod(0o755)
    return folder


if __name__ == "__main__":
    from perfdash.cli import main

    take_few_samples()
    main()
