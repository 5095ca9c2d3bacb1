"""Wall time of a run on two slots over that on one, with cases of known cost.

    python benchmarks/scaling.py [SECONDS]      (default 15: the mean cost of a case; needs two cores)

24 cases that each compute for a known time while they load (half to one and a half times SECONDS) and
are then measured as any other. The whole command counts, with its start and the nulls. Exits with 1
where two slots take over 0.55 of one slot's time. Measure when nothing else runs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CASES = 24
LIMIT = 0.55


def spins(batch_size: int) -> Any:
    """A small model that takes `batch_size` seconds of CPU time to load."""
    import torch

    end = time.process_time() + batch_size
    while time.process_time() < end:
        pass
    return torch.nn.Linear(64, 64), (torch.randn(8, 64),)


def write_suite(path: Path, seconds: float) -> float:
    """The suite file; the sum of the known costs, seconds."""
    costs = [max(1, round(seconds * (0.5 + index / (CASES - 1)))) for index in range(CASES)]
    models = [
        f'[[models]]\nname = "spins{index}"\ntarget = "{Path(__file__).resolve()}:spins"\n'
        f"batch_size = {cost}\ncost_s = {cost + 3}"
        for index, cost in enumerate(costs)
    ]
    path.write_text('name = "scaling"\nloader = "python"\n' + "\n".join(models) + "\n")
    return float(sum(costs))


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15.0
    with tempfile.TemporaryDirectory() as folder:
        known = write_suite(Path(folder) / "scaling.toml", seconds)
        print(f"{CASES} cases, {known:.0f} s of known cost")
        walls = {}
        for jobs in (1, 2):
            command = [sys.executable, "-m", "perfdash", "run", "--suite", "scaling.toml"]
            command += ["--backend", "aot_eager", "--processes", "1", "--jobs", str(jobs)]
            start = time.monotonic()
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            walls[jobs] = time.monotonic() - start
            if done.returncode or "reduced to 1" in done.stdout:
                print(done.stdout, done.stderr, sep="\n")
                return 1
            print(f"{jobs} slot{'s' if jobs > 1 else ''}: {walls[jobs]:.1f} s")
    print(f"two slots take {walls[2] / walls[1]:.3f} of one slot's time")
    return int(walls[2] / walls[1] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
