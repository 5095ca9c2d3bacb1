"""The marks on a case's charts: change points, new methods, changed environments.

The change points of a case are looked for once a week, and cached in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perfdash.detect.environment_changes import environment_changes
from perfdash.files import dumps
from perfdash.history.queries import RunLine
from perfdash.history.results import case_digest, digest
from perfdash.methods import changes
from perfdash.metrics import JUDGED
from perfdash.report.alert_text import commit
from perfdash.report.number_format import with_unit
from perfdash.site.site_folder import ArrayCache
from perfdash.site.testbed_history import FORMAT, TestbedHistory, as_logs, epoch
from perfdash.stats.changepoints import ChangePoint, change_points, weak_changes
from perfdash.stats.intervals import Array

_TORCH = "torch: "
# Where torch is another one on more nights than this fraction, that is how it is measured: no event.
_OFTEN = 0.1
_PERSISTENCE = 3
_DAY = 86400
_SPAN = 365 * _DAY  # in which they are looked for
_TURNS = 7


@dataclass(frozen=True)
class ChartEvent:
    """A mark on the charts. `metric` None: on all of them.

    kind: change, weak, worse, better, environment, excluded; or method, on the metrics that it is of.
    """

    at: float
    kind: str
    text: str
    metric: str | None = None
    href: str = ""
    run: str = ""


Found = dict[int, list[ChartEvent]]


def case_changes(history: TestbedHistory, number: int) -> list[ChartEvent]:
    """Find the change points of a case over the last year.

    One more night rarely moves a change point of a whole year, and the search is slow: each case is searched
    once a week, on a weekday that its digest decides, so that every build finds the same.
    """
    nights = _nights(history, _turn(history, number))
    row = history.row[number]
    passed = history.passed[row, nights]
    runs = [history.recent[night] for night in nights]
    machines = history.machines_of(row, nights)
    events = []
    for name, metric in JUDGED.items():
        values = np.exp(as_logs(history.values[name][row, nights], passed))
        methods = history.codes_of(name, nights)
        for change in _of_each_method(values, methods, machines, metric.threshold):
            first, good, bad = runs[change.index], runs[max(0, change.low - 1)], runs[change.high]
            text = (
                f"{metric.title} {change.change:+.1%} ({with_unit(name, change.before)} to "
                f"{with_unit(name, change.after)}), between {good.started[:10]} ({build_words(good)}) and "
                f"{bad.started[:10]} ({build_words(bad)})"
            )
            kind, text = ("weak", f"weak: {text}") if change.weak else ("change", text)
            events.append(ChartEvent(epoch(first.started), kind, text, name, run=first.name))
    return events


def _of_each_method(
    values: Array, methods: NDArray[np.int32], machines: NDArray[np.intp], minimum: float
) -> Iterator[ChangePoint]:
    """Find change points among the nights of each method and machine, never across two.

    Machines of a class have unlike levels. If the nights of several machines show one change, it is that of
    the machine that shows it best.
    """
    for method in np.unique(methods).tolist():
        found = [
            (machine, change)
            for machine in np.unique(machines[methods == method]).tolist()
            for search in (change_points, weak_changes)
            for change in search(
                np.where((methods == method) & (machines == machine), values, np.nan),
                min_change=minimum,
                persistence=_PERSISTENCE,
            )
        ]
        chosen: list[tuple[int, ChangePoint]] = []
        for machine, change in sorted(found, key=lambda pair: (pair[1].weak, -pair[1].confidence)):
            if not any(other != machine and _is_one(change, seen) for other, seen in chosen):
                chosen.append((machine, change))
        yield from sorted((change for _, change in chosen), key=lambda change: (change.weak, change.index))


def _is_one(change: ChangePoint, other: ChangePoint) -> bool:
    """Whether two changes have one direction and may have happened on one night."""
    one_way = (change.after > change.before) == (other.after > other.before)
    return one_way and change.low <= other.high and other.low <= change.high


def method_changes(runs: Sequence[RunLine]) -> list[ChartEvent]:
    """A mark for each run at which a method changes."""
    events = []
    for before, after in pairwise(runs):
        if other := changes(before.method, after.method):
            text = f"another method from here on: {', '.join(other)}; not compared with the nights before"
            events.append(ChartEvent(epoch(after.started), "method", text, run=after.name))
    return events


def all_changes(
    history: TestbedHistory,
    cache: ArrayCache,
    work: Callable[[Callable[[int], list[ChartEvent]], Sequence[int]], Iterable[list[ChartEvent]]],
) -> Found:
    """The change points of all cases by number, searched only where the cache has none.

    `work(function, numbers)` is a map, over several processes if need be.
    """
    groups: dict[int, list[int]] = {}
    for number in history.row:
        groups.setdefault(_turn(history, number), []).append(number)
    found: Found = {}
    missing: list[tuple[str, list[int]]] = []
    for turn, numbers in sorted(groups.items()):
        names = {case_digest(history.cases[number]): number for number in numbers}
        runs = [history.recent[night] for night in _nights(history, turn)]
        key = digest(
            [FORMAT, "changes", sorted(names)]
            # The cached marks name runs, and a run can be renamed.
            + [[history.marks[run.id], run.name] for run in runs]
        )
        cached = _unpacked(cache, key)
        if cached is None or set(cached) - set(names):
            missing.append((key, numbers))
        else:
            found.update({number: cached.get(name, []) for name, number in names.items()})
    numbers_to_compute = [number for _, numbers in missing for number in numbers]
    found.update(
        zip(
            numbers_to_compute,
            work(lambda number: case_changes(history, number), numbers_to_compute),
            strict=True,
        )
    )
    for key, numbers in missing:
        content = {case_digest(history.cases[n]): [asdict(event) for event in found[n]] for n in numbers}
        text = dumps({name: events for name, events in sorted(content.items()) if events})
        cache.put(key, {"json": np.frombuffer(text.encode(), dtype=np.uint8)})
    return found


def _unpacked(cache: ArrayCache, key: str) -> Mapping[str, list[ChartEvent]] | None:
    arrays = cache.get(key)
    if arrays is None or "json" not in arrays:
        return None
    try:
        content = json.loads(arrays["json"].tobytes())
        return {name: [ChartEvent(**event) for event in events] for name, events in content.items()}
    except (ValueError, TypeError, AttributeError):
        return None


def _turn(history: TestbedHistory, number: int) -> int:
    """Where the last whole turn of a case ends, in days since 1970."""
    day = int(case_digest(history.cases[number])[:8], 16) % _TURNS
    last = int(epoch(history.runs[-1].started) // _DAY)
    return last - (last - day) % _TURNS + 1


def _nights(history: TestbedHistory, turn: int) -> list[int]:
    """The places of the nights of the year before."""
    times = [epoch(run.started) for run in history.recent]
    return [place for place, at in enumerate(times) if turn * _DAY - _SPAN <= at < turn * _DAY]


def machine_changes(runs: Sequence[RunLine]) -> list[tuple[RunLine, list[str]]]:
    """The runs whose machine or packages changed, with the changes.

    Where torch is built anew night after night, that alone is no event: each point names its commit.
    """
    changes_by_run = []
    for old, new in pairwise(runs):
        if old.environment_id != new.environment_id or old.host != new.host:
            lines = [line for line in environment_changes(old, new) if line]
            if lines:
                changes_by_run.append((new, lines))
    nightly = sum(lines[0].startswith(_TORCH) and len(lines) == 1 for _, lines in changes_by_run)
    if nightly <= max(3, _OFTEN * len(runs)):
        return changes_by_run
    return [
        (run, lines) for run, lines in changes_by_run if len(lines) > 1 or not lines[0].startswith(_TORCH)
    ]


def build_words(run: RunLine | None) -> str:
    """torch's version and commit, if known."""
    if run is None:
        return ""
    sha = (run.torch_git_version or "")[:10]
    return " ".join(word for word in (run.torch or "", sha) if word) or commit(run)
