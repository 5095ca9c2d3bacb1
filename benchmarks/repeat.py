"""How far the speedup of one model spreads over repeated runs, and whether the intervals admit it.

    python benchmarks/repeat.py [MODEL] [RUNS] [perfdash run options ...]

Runs the whole command RUNS times (6) for MODEL (mobilenetv3_large_100), with nothing else running.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from perfdash.runner.run_journal import read_info, read_results


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "mobilenetv3_large_100"
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 6
    speedups = []
    for number in range(1, runs + 1):
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "perfdash", "run", "--suite", "timm", "--models", model]
            subprocess.run([*command, "--out", out, *sys.argv[3:]], check=True, stdout=subprocess.DEVNULL)
            (folder,) = [path for path in Path(out).iterdir() if path.is_dir()]
            (result,) = read_results(folder)
            noise = read_info(folder).noise
        speed = result.speedup
        assert speed is not None
        speedups.append(speed)
        print(
            f"{number}: {speed.value:.4f} [{speed.ci_low:.4f}, {speed.ci_high:.4f}] {speed.verdict}, "
            f"processes {result.conditions['process_ratios']}, compile {result.compilation_s} s, "
            f"memory {result.compression_ratio}, null {noise['null']['worst']:.4f}",
            flush=True,
        )
    values = [speed.value for speed in speedups]
    covered = sum(a.ci_low <= b.value <= a.ci_high for a in speedups for b in speedups if a is not b)
    print(f"largest over smallest: {max(values) / min(values):.4f}")
    print(f"an interval covers another run's speedup in {covered} of {runs * (runs - 1)} pairs")


if __name__ == "__main__":
    main()
