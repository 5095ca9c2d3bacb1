"""Whether the same build makes the same code on another day: fingerprints of runs beside those that are kept.

    python benchmarks/fingerprints.py RUN ...             compare runs with results/fingerprints.csv
    python benchmarks/fingerprints.py RUN ... --keep      add their fingerprints to it

A line is a model under a torch, on a processor, with vector instructions, on a date; only lines that agree in
all but the date are compared. Cases under other settings than inductor's default are left out.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import perfdash

KEPT = Path(__file__).parents[1] / "results" / "fingerprints.csv"
COLUMNS = ("suite", "model", "torch", "processor", "isa", "date", "fingerprint")


def lines_of(name: str) -> Iterator[dict[str, str]]:
    """The fingerprints of a run's cases."""
    run = perfdash.load(name)
    environment = run.info.environment
    for result in run:
        case, code = result.case, result.structure
        if case.backend == "inductor" and case.configuration in ("", "default") and code.get("fingerprint"):
            values = (
                case.suite, case.model, environment["worker"]["torch"], environment["cpu"],
                code.get("isa") or "", result.started[:10], code["fingerprint"],
            )  # fmt: skip
            yield dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    runs = [word for word in sys.argv[1:] if word != "--keep"]
    kept = list(csv.DictReader(KEPT.open())) if KEPT.exists() else []
    equal = compared = 0
    new = [line for name in runs for line in lines_of(name)]
    for line in new:
        earlier = [old for old in kept if all(old[key] == line[key] for key in COLUMNS[:5])]
        others = [old for old in earlier if old["date"] != line["date"]]
        compared += bool(others)
        equal += bool(others) and all(old["fingerprint"] == line["fingerprint"] for old in others)
        for old in others:
            if old["fingerprint"] != line["fingerprint"]:
                print(f"{line['suite']} {line['model']}: {old['date']} and {line['date']} differ")
    print(f"{equal} of {compared} models have the fingerprint of another day")
    if "--keep" in sys.argv:
        with KEPT.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            unlike = {tuple(line.values()): line for line in [*kept, *new]}
            writer.writerows(sorted(unlike.values(), key=lambda line: tuple(line.values())))


if __name__ == "__main__":
    main()
