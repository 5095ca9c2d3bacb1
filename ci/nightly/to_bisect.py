"""Which alerts a nightly bisects, `to_bisect.py regressions.json MOST SUITES FOLDERS...`: confirmed, of one
model, not bisected yet; the worst first.

Prints a line an alert, its fields separated by tabs: its number, its suite's file, where it comes from one of
the user's own, and the folder of its bisection below FOLDERS that was not finished.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

# Those that perfdash can bisect (perfdash/metrics.py): of the others no culprit can be looked for.
_LATENCIES = ("eager_ms", "backend_ms")
_METRICS = (*_LATENCIES, "compilation_cpu_s", "backend_peak_bytes", "graph_breaks")
_ALIKE = 0.7


def chosen(alerts: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most so many, one a model."""
    by_case: dict[str, list[dict[str, Any]]] = {}
    for alert in alerts:
        if (
            alert["direction"] == "worse" and alert["state"] == "confirmed" and alert["case"]
            and not _is_bisected(alert["details"].get("bisected") or {})
            and (alert["kind"] == "status" or alert["metric"] in _METRICS)
        ):  # fmt: skip
            by_case.setdefault(json.dumps(alert["case"], sort_keys=True), []).append(alert)
    worst = sorted(map(_one_of, by_case.values()), key=lambda alert: -_size(alert))
    return worst[:most]


def _is_bisected(bisected: dict[str, Any]) -> bool:
    return bool(bisected) and bisected.get("finished", True)


def _one_of(alerts: list[dict[str, Any]]) -> dict[str, Any]:
    """What is looked for of a model that several metrics tell of: a status, a latency, whatever changed most.

    Where eager is slower by about as much as compiled it is one cause, and eager needs no compiling.
    """
    by_metric = {alert["metric"]: alert for alert in alerts}
    for alert in alerts:
        if alert["kind"] == "status":
            return alert
    eager, compiled = (by_metric.get(name) for name in _LATENCIES)
    if eager and compiled:
        return eager if _size(eager) >= _ALIKE * _size(compiled) else compiled
    return eager or compiled or max(alerts, key=_size)


def _size(alert: dict[str, Any]) -> float:
    return abs(alert["change"]) if alert["change"] is not None else 9.0


def unfinished(alert: dict[str, Any], folders: list[str]) -> str:
    """The newest bisection that was begun for this alert and model; of a finished one the alert knows."""
    begun = []
    for path in [path for folder in folders for path in Path(folder).glob("*/journal.jsonl")]:
        try:
            event = json.loads(path.open().readline())
        except (OSError, ValueError):
            continue
        model = (event.get("case") or {}).get("model")
        if event.get("alert") == alert["id"] and model == alert["case"].get("model"):
            begun.append(path.parent)
    return str(max(begun, key=lambda folder: folder.name, default=""))


def main() -> None:
    file, most, suites, *folders = sys.argv[1:]
    files = [path for path in suites.split(",") if path.endswith(".toml")]
    own = {tomllib.loads(Path(path).read_text())["name"]: path for path in files}
    for alert in chosen(json.loads(Path(file).read_text()), int(most)):
        # A dash, since the shell that reads the line joins tabs.
        suite = own.get(alert["case"]["suite"]) or "-"
        print(alert["id"], suite, unfinished(alert, folders) or "-", sep="\t")


if __name__ == "__main__":
    main()
