"""Nights of a host that was never there, with changes that are known."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import sqlalchemy as sa

from perfdash.detect.nightly_judging import judge_new
from perfdash.files import now
from perfdash.history import alert_store, schema
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from perfdash.history.results import Imported
from perfdash.history.store import Store
from perfdash.series_rules import SeriesRule
from tests.history.made import row, run

FIRST = date(2026, 1, 1)


def farm(
    nights: int,
    models: int = 24,
    *,
    noise: float = 0.01,
    seed: int = 0,
    change: Callable[[int, str, dict[str, float]], dict[str, float] | None] | None = None,
    statuses: Callable[[int, str], str] | None = None,
    torch: Callable[[int], str] = lambda night: "2.15.0",
    facts: Callable[[int], dict[str, object]] = lambda night: {},
) -> list[Imported]:
    """One run a night. `change(night, model, values)` gives the values of a case, None: not measured."""
    draw = np.random.default_rng(seed)
    level = draw.uniform(10, 100, models)
    runs = []
    for night in range(nights):
        rows = []
        for model in range(models):
            eager, compiled, compile_s = np.exp(noise * draw.standard_normal(3))
            values = {
                "eager_ms": level[model] * eager,
                "backend_ms": level[model] / 2 * compiled,
                "compilation_cpu_s": 30 * compile_s,
                "eager_peak_bytes": 5e7,
                "backend_peak_bytes": 4e7,
                "graph_breaks": 0.0,
                "fallbacks": 1.0,
                "calls_captured": 100.0,
            }
            name = f"model{model:02}"
            changed = change(night, name, dict(values)) if change else values
            if changed is not None:
                rows.append(row(name, statuses(night, name) if statuses else "pass", **changed))
        day = str(FIRST + timedelta(days=night))
        made = run(day, rows, torch=torch(night), git=hashlib.sha1(b"%d" % night).hexdigest())
        environment = {**made.run.environment, **facts(night)}
        runs.append(run(day, rows, environment=environment))
    return runs


def slower(model: str, from_night: int, factor: float, metric: str = "backend_ms", until: int = 10**6):
    """A change: one metric of one model times a factor from a night on."""

    def change(night: int, name: str, values: dict[str, float]) -> dict[str, float]:
        if name == model and from_night <= night < until:
            values[metric] *= factor
        return values

    return change


def with_reason(night: Imported, message: str, phase: str = "compile") -> Imported:
    """The night with this message of each case that crashed, in this phase."""
    details = {"error": {"type": "Error", "message": message}, "failed_phase": phase}
    rows = [replace(row, details=details) if row.status == "crash" else row for row in night.rows]
    return replace(night, rows=tuple(rows))


def of_setting(night: Imported, threads: int) -> Imported:
    """A night's run as one of several that the night consists of, each with a setting of its own."""
    rows = tuple(replace(row, case=replace(row.case, threads=threads)) for row in night.rows)
    name = f"{night.run.name}_{threads}"
    started = night.run.started.replace("T01:00", f"T01:{threads:02}")
    return Imported(replace(night.run, name=name, started=started, uid=name), rows)


def on_second_machine(night: Imported) -> Imported:
    """The same night of another machine of the class, which begins a little later and ends earlier."""
    started, ended = (night.run.started.replace("T01:00", "T01:05"), night.run.ended.replace("T05", "T04"))
    beside = {"name": f"{night.run.name}_b", "uid": f"{night.run.name}_b", "host": "farm-b"}
    return replace(night, run=replace(night.run, started=started, ended=ended, **beside))


def by_hand(night: Imported, hour: int, models: Sequence[str]) -> Imported:
    """A run of some models of a night, in an hour of the day."""
    name, day = f"by-hand-{hour}", night.run.started[:10]
    rows = tuple(row for row in night.rows if row.case.model in models)
    started = {"started": f"{day}T{hour:02}:00:00Z", "ended": f"{day}T{hour:02}:30:00Z"}
    return replace(
        night, run=replace(night.run, name=name, uid=name, expected=len(rows), **started), rows=rows
    )


def add_runs_beside(store: Store, number: int) -> None:
    """Adds so many runs of other cases to each night; their results are left out, to save time."""
    with store.write() as connection:
        for row in connection.execute(sa.select(schema.runs)).all():
            columns = {name: value for name, value in row._mapping.items() if name != "id"}
            others = [
                {
                    **columns,
                    "key": f"{row.key[:50]}-{place}",
                    "name": f"{row.name}_{place}",
                    "started": row.started.replace("T01:00", f"T02:{place:02}"),
                }
                for place in range(number)
            ]
            connection.execute(sa.insert(schema.runs), others)


def begin(store: Store, runs: Sequence[Imported], rules: Sequence[SeriesRule] = ()) -> None:
    """Takes runs in and judges the last one; the others are never judged, as they would change no alert."""
    take_in(store, runs)
    judge_last(store, 1, rules)


def judge_last(store: Store, nights: int, rules: Sequence[SeriesRule] = ()) -> None:
    """Judges the runs of the last days that have any; those before them are never judged, to save time."""
    with store.write() as connection:
        lines = list_runs(connection)
        days = sorted({line.started[:10] for line in lines})[-nights:]
        older = [line.id for line in lines if line.started[:10] not in days and line.judged is None]
        alert_store.set_judged(connection, older, now())
    judge_new(store, rules=rules)


def judge_nights(
    store: Store, runs: Sequence[Imported], first: int = 25, rules: Sequence[SeriesRule] = ()
) -> None:
    """Takes the `first` runs in at once, the others one by one, and judges each of these, as nights do."""
    begin(store, runs[:first], rules)
    for night in runs[first:]:
        take_in(store, [night])
        judge_new(store, rules=rules)


def names(runs: Sequence[Imported]) -> list[str]:
    return [judged_run.run.name for judged_run in runs]


def forty_nights() -> list[Imported]:
    """90 models: 36 are 14 % slower from night 28 on, 8 are 10 % slower from night 34 on, and on the last
    night 5 are 25 % slower and 2 fail."""

    def change(night: int, name: str, values: dict[str, float]) -> dict[str, float]:
        number = int(name.removeprefix("model"))
        for low, high, first, factor in ((0, 35, 28, 1.14), (40, 47, 34, 1.10), (50, 54, 39, 1.25)):
            if low <= number <= high and night >= first:
                values["backend_ms"] *= factor
        return values

    def statuses(night: int, name: str) -> str:
        return "crash" if night == 39 and name in ("model60", "model61") else "pass"

    return farm(40, 90, change=change, statuses=statuses)
