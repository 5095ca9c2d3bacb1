"""The change points of a real history, drawn to be judged by eye (results/changepoints.md).

    python benchmarks/tigerbeetle.py [OUT.png]

365 measurements of TigerBeetle's benchmark, six metrics (tests/fixtures/history_tigerbeetle.json).
The file is not in order of time: it must be sorted.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from perfdash.stats.changepoints import change_points, noise

HERE = Path(__file__).parent
HISTORY = HERE.parent / "tests" / "fixtures" / "history_tigerbeetle.json"
MIN_CHANGE = 0.02


def series() -> tuple[list[datetime], dict[str, list[float]], dict[str, str]]:
    """Times, values by metric, units by metric, in order of time."""
    points = sorted(json.loads(HISTORY.read_text()), key=lambda point: point["timestamp"])
    times = [datetime.fromtimestamp(point["timestamp"], UTC) for point in points]
    values: dict[str, list[float]] = {}
    units: dict[str, str] = {}
    for point in points:
        for metric in point["metrics"]:
            values.setdefault(metric["name"], []).append(metric["value"])
            units[metric["name"]] = metric["unit"]
    return times, values, units


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "docs" / "detection-tigerbeetle.png"
    times, values, units = series()
    figure, panels = plt.subplots(len(values), 1, figsize=(11, 2.1 * len(values)), sharex=True)
    for panel, (name, some) in zip(panels, values.items(), strict=True):
        changes = change_points(some, min_change=MIN_CHANGE)
        level = noise(some)
        print(f"{name}: noise {level.deviation:.2%}, lag-1 autocorrelation {level.rho:.2f}")
        print(" index  range     date        before     after  change  confidence")
        panel.plot(some, ".", markersize=2.5, color="0.45")
        for change in changes:
            print(
                f"{change.index:>6}  {change.low:>3}-{change.high:<3}   {times[change.index]:%Y-%m-%d}"
                f"  {change.before:>8.0f}  {change.after:>8.0f}  {change.change:>+6.1%}"
                f"  {change.confidence:.5f}"
            )
            panel.axvspan(change.low - 0.5, change.high + 0.5, color="tab:red", alpha=0.25, linewidth=0)
            panel.axvline(change.index - 0.5, color="tab:red", linewidth=0.8)
        bounds = [0, *(change.index for change in changes), len(some)]
        for k, (first, last) in enumerate(pairwise(bounds)):
            left = changes[k - 1].after if k else changes[0].before if changes else some[0]
            right = changes[k].before if k < len(changes) else left
            panel.plot([first, last - 1], [left, right], color="tab:blue", linewidth=1.2)
        if max(some) > 3 * min(some):
            panel.set_yscale("log")
        panel.set_ylabel(f"{name}\n({units[name]})", fontsize=8)
        panel.tick_params(labelsize=7)
    panels[-1].set_xlabel("measurement, in order of time", fontsize=8)
    figure.tight_layout()
    figure.savefig(out, dpi=75)
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
