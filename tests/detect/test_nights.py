"""Which runs are the newest of their series. Pure."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta

from perfdash.detect.nights import newest_of_each_series
from perfdash.history.queries import RunLine


def run(number, day, hour):
    started = f"{date(2026, 11, 1) + timedelta(days=day)}T{hour:02}:00:00Z"
    return RunLine(
        id=number, name=str(number), started=started, state="done", origin="perfdash", source="runs",
        host="farm", testbed_id=1, host_class="Xeon x 100", setting={}, environment_id=1, expected=10,
        results=10, judged=None, environment={},
    )  # fmt: skip


def test_all_series_of_the_last_night_are_among_the_newest():
    nights, settings = 3, 15
    runs = [run(day * settings + place, day, place) for day in range(nights) for place in range(settings)]
    counts = {line.id: Counter({(line.id % settings,): 10}) for line in runs}
    assert newest_of_each_series(runs, counts) == runs[: -settings - 1 : -1]


def test_of_older_days_few_series_are_among_the_newest():
    """Runs by hand have cases of their own each time."""
    runs = [run(day, day, 1) for day in range(39)]
    counts = {line.id: Counter({(line.id,): 10}) for line in runs}
    assert len(newest_of_each_series(runs, counts)) == 6
