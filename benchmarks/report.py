"""How long `perfdash report` takes for a night of 1,920 cases, in each format.

    python benchmarks/report.py [--nights 40] [--changed 60]

The last of the nights has some models that are slower. The first report judges that night; the others
find it judged, as they do after `run` with a gate, `regressions` or `post`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from history import FIRST, night

from perfdash.history.alert_store import set_judged
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from perfdash.history.store import open_store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=40)
    parser.add_argument("--changed", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder, "history.db"))
        fill(address, arguments.nights, arguments.changed)
        for form in ("comment", "comment", "markdown", "html", "csv", "json", "junit", "plot-csv"):
            command = [sys.executable, "-m", "perfdash", "report", "--db", address, "--out", folder]
            command += ["--format", form, "--to", str(Path(folder, form))]
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            print(f"{form:<10} {time.perf_counter() - start:6.2f} s", flush=True)


def fill(address: str, nights: int, changed: int) -> None:
    """Nights of which all but the last count as judged."""
    with open_store(address) as store:
        for number in range(nights):
            made = night(FIRST + timedelta(days=number), number)
            if number == nights - 1:
                rows = [
                    replace(row, values={**row.values, "backend_ms": row.values["backend_ms"] * 1.3})
                    if place < changed
                    else row
                    for place, row in enumerate(made.rows)
                ]
                made = replace(made, rows=tuple(rows))
            take_in(store, [made])
        with store.write() as connection:
            runs = list_runs(connection)
            set_judged(connection, [run.id for run in runs[:-1]], "before")


if __name__ == "__main__":
    main()
