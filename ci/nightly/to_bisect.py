"""Which alerts a nightly bisects: confirmed, of one model, not bisected yet; the worst of tonight first, then
older ones. `to_bisect.py regressions.json history.json RUNS MOST SUITES FOLDERS...`

RUNS are the folders of the night's runs, history.json lists the runs of the history: alerts of other testbeds
than tonight's are left to the nightlies that measure these.

Prints a line an alert, its fields separated by tabs: its number, its suite's file, where it comes from one of
the user's own, and the folder of its bisection below FOLDERS that was not finished. A file `failed-NUMBER` in
one of FOLDERS says that the bisection of an alert failed.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from perfdash.metrics import METRICS

_LATENCIES = ("eager_ms", "backend_ms")
# Those that perfdash can bisect: of the others no culprit can be looked for.
_METRICS = {metric.column for metric in METRICS.values() if metric.name}
_ALIKE = 0.7
# Confirmed tonight; since an earlier night; back after it was fixed.
_STATES = ("confirmed", "open", "reopened")


def chosen(
    alerts: list[dict[str, Any]], most: int, testbeds: Collection[int], folders: Sequence[Path] = ()
) -> list[dict[str, Any]]:
    """At most so many of some testbeds: tonight's or begun, the worst first, one a model; then older ones.

    Of the older ones the newest comes first, and none between two nights of which an alert is bisected or its
    bisection failed: most alerts between the same nights have one cause. What failed is left to people.
    """
    first, waiting, taken = [], [], set()
    for alert in alerts:
        if _is_bisected(alert) or _has_failed(alert, folders):
            taken.add(_nights(alert))
        elif alert["testbed_id"] in testbeds and _can_be_bisected(alert):
            is_first = alert["state"] != "open" or unfinished(alert, folders)
            (first if is_first else waiting).append(alert)
    bisected = sorted(_one_a_model(first), key=lambda alert: -_size(alert))[:most]
    taken.update(map(_nights, bisected))
    for newest in sorted(waiting, key=lambda alert: -alert["id"]):
        case, nights = newest["case"], _nights(newest)
        if len(bisected) < most and nights not in taken and all(alert["case"] != case for alert in bisected):
            alike = [alert for alert in waiting if alert["case"] == case and _nights(alert) == nights]
            bisected.append(_one_of(alike))
            taken.add(nights)
    return bisected


def _can_be_bisected(alert: dict[str, Any]) -> bool:
    is_known = alert["kind"] == "status" or alert["metric"] in _METRICS
    return bool(alert["direction"] == "worse" and alert["state"] in _STATES and alert["case"] and is_known)


def _is_bisected(alert: dict[str, Any]) -> bool:
    bisected = alert["details"].get("bisected") or {}
    return bool(bisected) and bool(bisected.get("finished", True))


def _has_failed(alert: dict[str, Any], folders: Sequence[Path]) -> bool:
    """Whether an earlier night's bisection of this alert failed, since the change of now."""
    files = [path for folder in folders if (path := folder / f"failed-{alert['id']}").exists()]
    ends = [datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in files]
    is_of_now = any(f"{end:%Y-%m-%dT%H:%M:%SZ}" >= _since(alert) for end in ends)
    return alert["state"] == "open" and is_of_now


def _since(alert: dict[str, Any]) -> str:
    """When the first run with the change of now began: what is older is of a time before it returned."""
    return str((alert.get("bad") or {}).get("started", ""))


def _nights(alert: dict[str, Any]) -> tuple[object, ...]:
    """The days around a change, and whether it is a failure: those have causes of their own."""
    days = ((alert.get(name) or {}).get("started", str(alert["id"]))[:10] for name in ("good", "bad"))
    return alert["kind"] == "status", *days


def _one_a_model(alerts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_case: dict[str, list[dict[str, Any]]] = {}
    for alert in alerts:
        by_case.setdefault(json.dumps(alert["case"], sort_keys=True), []).append(alert)
    return [_one_of(of_case) for of_case in by_case.values()]


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


def unfinished(alert: dict[str, Any], folders: Sequence[Path]) -> str:
    """The newest bisection that was begun for this alert and model; of a finished one the alert knows.

    None that began before the change of now: it is of an earlier time of a change that returned. None without
    a confirmation: `--all-alerts` measures so around the culprit of another alert.
    """
    begun = []
    for path in [path for folder in folders for path in folder.glob("*/journal.jsonl")]:
        try:
            with path.open() as journal:
                event = json.loads(journal.readline())
        except (OSError, ValueError):
            continue
        model = (event.get("case") or {}).get("model")
        is_of_now = event.get("at", "") >= _since(alert) and event.get("confirm", True)
        if event.get("alert") == alert["id"] and model == alert["case"].get("model") and is_of_now:
            begun.append(path.parent)
    return str(max(begun, key=lambda folder: folder.name, default=""))


def main() -> None:
    file, history, runs, most, suites, *names = sys.argv[1:]
    tonight = {Path(run).name for run in runs.split(",")}
    listed = json.loads(Path(history).read_text())
    testbeds = {run["testbed_id"] for run in listed if run["name"] in tonight}
    folders = [Path(name) for name in names]
    files = [path for path in suites.split(",") if path.endswith(".toml")]
    own = {tomllib.loads(Path(path).read_text())["name"]: path for path in files}
    for alert in chosen(json.loads(Path(file).read_text()), int(most), testbeds, folders):
        # A dash, since the shell that reads the line joins tabs.
        suite = own.get(alert["case"]["suite"]) or "-"
        print(alert["id"], suite, unfinished(alert, folders) or "-", sep="\t")


if __name__ == "__main__":
    main()
