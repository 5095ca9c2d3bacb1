"""How long `perfdash --help` and `perfdash list` take: at most 0.3 s is wanted.

python benchmarks/startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def main() -> None:
    for arguments in (["--help"], ["list"]):
        times = []
        for _ in range(12):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-m", "perfdash", *arguments], check=True, capture_output=True)
            times.append(time.perf_counter() - start)
        print(f"perfdash {arguments[0]}: median {statistics.median(times):.3f} s, worst {max(times):.3f} s")


if __name__ == "__main__":
    main()
