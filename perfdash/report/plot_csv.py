"""CSV files for Jenkins' plot plugin: a file a plot, a line of labels and a line of values below it.

The plugin adds the values to its own files build by build, and knows a line of the plot by its label: so
labels say the setting and nothing of the night. An empty cell is no point.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from perfdash.history.rows import Row
from perfdash.history.summing import Summary, grouped, summarize

# A file each. What counts in these numbers: docs/method.md.
PLOTS: dict[str, Callable[[Summary], float | None]] = {
    "speedup_geometric_mean.csv": lambda found: found.speedup,
    "speedup_geometric_mean_clipped_at_1.csv": lambda found: found.speedup_clipped,
    "pass_rate_percent.csv": lambda found: 100 * found.passed / found.attempted if found.attempted else None,
    "compilation_seconds_mean.csv": lambda found: found.compilation_s,
    "compression_ratio_geometric_mean.csv": lambda found: found.compression_ratio,
}


def plot_csv(rows: Iterable[Row]) -> dict[str, str]:
    """Content by file name, all of PLOTS; a column a suite, device, dtype, threads, scenario, back end."""
    columns = {_label(setting): summarize(some) for setting, some in grouped(rows).items()}
    labels = sorted(columns)
    return {
        name: _text(labels, [_cell(of(columns[label])) for label in labels]) for name, of in PLOTS.items()
    }


def _label(setting: tuple[object, ...]) -> str:
    """Words that survive the plugin: it splits lists of labels at commas and reads \\ as an escape."""
    suite, device, dtype, threads, scenario, backend, dynamic = setting
    words = [suite, backend, device, dtype, f"{threads}t", scenario, *(["dynamic"] if dynamic else [])]
    return " ".join(re.sub(r"[^A-Za-z0-9._+-]", _escaped, str(word)) for word in words)


def _escaped(found: re.Match[str]) -> str:
    return f"_{ord(found[0]):x}_"


def _cell(value: float | None) -> str:
    return f"{value:.6g}" if value is not None and math.isfinite(value) else ""


def _text(*lines: list[str]) -> str:
    """Neither labels nor numbers hold anything that would have to be quoted."""
    return "".join(",".join(line) + "\n" for line in lines)
