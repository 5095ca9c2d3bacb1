"""How often the command `perfdash bisect` names and confirms the right commit of a made repository.

    python benchmarks/made_repository.py [--culprits N] [--commits N] [--step 0.12] [--noise 0.04]

Each repository has 96 commits; one of them (uniformly drawn) makes the number that a script prints 12 %
larger. Every call of the script prints another number, with a noise of 4 % (normal, in logs). The whole
command is run: git, worktrees, processes, journal, report. It needs no torch and measures nothing of the
machine.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPT = """\
import math, random, sys
level = float(open("level").read())
print(level * math.exp(random.SystemRandom().gauss(0, float(sys.argv[1]))))
"""


def make_repository(folder: Path, commits: int, culprit: int, step: float) -> list[str]:
    """A repository of so many commits; from `culprit` on the level is higher. Returns their names."""
    folder.mkdir(parents=True)

    def git(*words: str) -> str:
        identity = ["-c", "user.name=Ann Author", "-c", "user.email=ann@example.org"]
        done = subprocess.run(
            ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    names = []
    for number in range(commits):
        (folder / "level").write_text(str(100 * (1 + step if number >= culprit else 1)))
        (folder / "change").write_text(f"{number}\n")
        git("add", "--all")
        git("commit", "--quiet", "--message", f"Change {number}")
        names.append(git("rev-parse", "HEAD"))
    return names


def bisect(home: Path, names: list[str], noise: float) -> dict[str, Any]:
    """The report of one bisection by the real command."""
    script = home / "measure.py"
    script.write_text(SCRIPT)
    command = [
        *(sys.executable, "-m", "perfdash", "bisect", "--repo", str(home / "repository")),
        *("--good", names[0], "--bad", names[-1], "--metric", "stdout", "--no-history", "--json"),
        *("--out", str(home / "runs"), "--", sys.executable, str(script), str(noise)),
    ]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--culprits", type=int, default=20)
    parser.add_argument("--commits", type=int, default=96)
    parser.add_argument("--step", type=float, default=0.12)
    parser.add_argument("--noise", type=float, default=0.04)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    right = wrong = 0
    builds = []
    for number in range(1, options.culprits + 1):
        culprit = draw.randrange(1, options.commits)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            names = make_repository(home / "repository", options.commits, culprit, options.step)
            report = bisect(home, names, options.noise)
        found = [[revision["id"] for revision in one["revisions"]] for one in report["culprits"]]
        words = [one["confirmed"] for one in report["culprits"]]
        counts: dict[str, int] = report["counts"]
        is_right = found == [[names[culprit]]]
        is_confirmed = bool(words) and all(word == "confirmed" for word in words)
        right += is_right and is_confirmed
        wrong += is_confirmed and not is_right
        builds.append(counts["builds"])
        seconds = time.monotonic() - began
        print(
            f"{number:>3}: culprit {culprit:>3}, {report['word']}, {'right' if is_right else 'WRONG'}, "
            f"{', '.join(words) or 'nothing'}; {counts['builds']} builds, "
            f"{counts['measurements']} measurements, {counts['confirming']} to confirm, {seconds:.0f} s",
            flush=True,
        )
    print(
        f"{right} of {options.culprits} right and confirmed, {wrong} wrong and confirmed; "
        f"{sum(builds) / len(builds):.1f} builds on average (1.3 log2 n + 3 is "
        f"{1.3 * math.log2(options.commits) + 3:.1f})"
    )


if __name__ == "__main__":
    main()
