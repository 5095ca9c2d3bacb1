"""How well alerts are grouped into causes: planted causes on simulated nights, judged by the real detector.

    python benchmarks/causes.py [--histories N] [--noise KIND] [--results FILE]

A history has two machines that measure 90 models for 45 nights, each night a build of its own. Each model has
noise of its own, log-normal around 1.2 % a night (spread 0.6), of a KIND of benchmarks/alarm.py. There are 1
to 6 causes from night 24 on, 0 to 10 nights apart, a fifth of them on the night of the one before; each makes
1 to 80 models slower (log-uniform) by 3 to 30 % (log-uniform; a model's own share of it varies by 20 %), on
both machines. No model has two. The alerts of the last night are grouped. Causes of one night count as one:
nothing tells them apart.

whole: causes with an alert whose alerts are in one group; nearly: with 90 % of them in one. mixed: groups
with alerts of two causes; mostly: with less than 90 % of one cause. misplaced: alerts outside the group of
their cause. Histories that are in FILE are not computed again.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import numpy as np
from alarm import KINDS, noise

from perfdash.detect import alert_states
from perfdash.detect.alert_evidence import AlertEvidence, evidence_of
from perfdash.detect.causes import causes
from perfdash.detect.findings import READ, NetLogs, judge
from perfdash.files import write
from perfdash.history.alert_store import SHOWN, Alert
from perfdash.history.queries import Panel, RunLine
from perfdash.records import Case

MODELS, NIGHTS, FIRST = 90, 45, 24


@dataclass(frozen=True)
class Planted:
    """A cause: its night, and the log change of each of its models."""

    night: int
    change: dict[int, float]


@dataclass
class Tally:
    """Counts over histories; see the description above."""

    causes: int = 0
    whole: int = 0
    nearly: int = 0
    groups: int = 0
    mixed: int = 0
    mostly: int = 0
    alerts: int = 0
    misplaced: int = 0
    false: int = 0

    def add(self, other: dict[str, int]) -> None:
        for name, count in other.items():
            setattr(self, name, getattr(self, name) + count)


def plant(rng: np.random.Generator) -> list[Planted]:
    """The causes of a history."""
    free = list(rng.permutation(MODELS))
    planted, night = [], FIRST
    for number in range(int(rng.integers(1, 7))):
        if number:
            night += 0 if rng.random() < 0.2 else int(rng.integers(1, 11))
        models = min(round(float(np.exp(rng.uniform(0, np.log(80))))), len(free))
        if night >= NIGHTS or not models:
            break
        size = float(np.exp(rng.uniform(np.log(0.03), np.log(0.30))))
        own = {int(free.pop()): np.log1p(size) * float(np.exp(0.2 * rng.normal())) for _ in range(models)}
        planted.append(Planted(night, own))
    return planted


def night_run(testbed: int, night: int, number: int) -> RunLine:
    """A run of a testbed; machines measure the builds of a night at their own hours."""
    day = date(2026, 1, 1) + timedelta(days=night)
    return RunLine(
        name=f"{day}T0{testbed}", started=f"{day}T0{testbed}:00:00Z", ended=None, origin="perfdash",
        source="", host=f"host{testbed}", host_class=f"class{testbed}",
        environment={"worker": {"torch": f"2.15.dev{night}", "torch_git_version": f"{night:040x}"}},
        id=number, testbed_id=testbed, environment_id=testbed, results=MODELS, judged=None,
    )  # fmt: skip


def alerts_of(
    rng: np.random.Generator, testbed: int, planted: list[Planted], kind: str
) -> list[AlertEvidence]:
    """Judge the nights of one machine as they come; the alerts that are open on the last."""
    sd = np.exp(np.log(0.012) + 0.6 * rng.normal(size=(MODELS, 1)))
    logs = rng.uniform(1, 5, (MODELS, 1)) + noise(rng, kind, sd, (MODELS, NIGHTS))
    for cause in planted:
        for model, change in cause.change.items():
            logs[model, cause.night :] += change
    values = {name: np.full((MODELS, NIGHTS), np.nan) for name in (*READ, "speedup")}
    values["backend_ms"] = np.exp(logs)
    values["calls_captured"] = np.full((MODELS, NIGHTS), 10.0)
    runs = [night_run(testbed, night, testbed * 1000 + night) for night in range(NIGHTS)]
    cases = {model: Case("timm", f"model{model}") for model in range(1, MODELS + 1)}
    statuses = np.full((MODELS, NIGHTS), "pass", dtype=object)
    whole = Panel(runs, list(cases), values, statuses)
    alerts: dict[int, Alert] = {}
    for night in range(FIRST - 2, NIGHTS):
        shown = Panel(
            runs[: night + 1],
            whole.case_ids,
            {name: array[:, : night + 1] for name, array in values.items()},
            statuses[:, : night + 1],
        )
        stored = [alert for alert in alerts.values() if alert.state in (*SHOWN, "fixed")]
        counted = alert_states.without_fixed(shown, stored)
        findings = judge(counted, alert_states.first_nights(counted, stored))
        net = NetLogs(counted, [alert for alert in stored if alert.state in SHOWN])
        for alert, _ in alert_states.advance(counted, stored, findings, runs[night].started, net):
            number = alert.id or testbed * 1000 + len(alerts)
            dated = alert_states.dated(alert, counted, net)
            alerts[number] = Alert(**{**vars(dated), "id": number})
    by_id = {run.id: run for run in runs}
    steps = list(alerts.values())
    return [evidence_of(alert, cases, by_id, whole, steps, NIGHTS) for alert in steps if alert.state in SHOWN]


def judged(seed: int, kind: str) -> dict[str, int]:
    """The counts of one history."""
    rng = np.random.default_rng(seed)
    planted = plant(rng)
    evidence = [item for testbed in (1, 2) for item in alerts_of(rng, testbed, planted, kind)]
    night_of = {model: cause.night for cause in planted for model in cause.change}
    groups: list[list[int | None]] = []
    for cause in causes(evidence):
        # A shift of most models of a host is an alert without a case, of any of its causes.
        cases = [member.alert.case_id for member in cause.members if member.alert.case_id is not None]
        groups.append([night_of.get(case_id - 1) for case_id in cases])
    counts: Counter[str] = Counter()
    members = Counter(night for group in groups for night in group)
    for night, number in members.items():
        if night is None:
            counts["false"] += number
            continue
        largest = max(group.count(night) for group in groups)
        counts["causes"] += 1
        counts["whole"] += largest == number
        counts["nearly"] += largest >= 0.9 * number
        counts["alerts"] += number
        counts["misplaced"] += number - largest
    for group in groups:
        true = Counter(night for night in group if night is not None)
        if not true:
            continue
        counts["groups"] += 1
        counts["mixed"] += len(true) > 1
        counts["mostly"] += max(true.values()) < 0.9 * sum(true.values())
    return dict(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--noise", choices=KINDS, default="gaussian")
    parser.add_argument("--first", type=int, default=0, help="the number of the first history")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    stored: dict[str, dict[str, int]] = {}
    if options.results and options.results.exists():
        stored = json.loads(options.results.read_text())
    tally = Tally()
    for seed in range(options.first, options.first + options.histories):
        key = f"{options.noise} {seed}"
        if key not in stored:
            stored[key] = judged(seed, options.noise)
            if options.results and seed % 10 == 9:
                write(options.results, json.dumps(stored))
        tally.add(stored[key])
    if options.results:
        write(options.results, json.dumps(stored))
    print(f"{options.noise}, {options.histories} histories")
    whole, nearly = tally.whole / tally.causes, tally.nearly / tally.causes
    print(f"causes {tally.causes}: whole {whole:.1%}, nearly {nearly:.1%}")
    mixed, mostly = tally.mixed / tally.groups, tally.mostly / tally.groups
    print(f"groups {tally.groups}: mixed {mixed:.1%}, mostly {mostly:.1%}")
    print(
        f"alerts {tally.alerts}: misplaced {tally.misplaced / max(tally.alerts, 1):.2%}; "
        f"false alerts and suspicions {tally.false}"
    )


if __name__ == "__main__":
    main()
