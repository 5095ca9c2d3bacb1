"""Which runs are the newest of their series. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import date, timedelta

from perfdash.detect.nights import newest_of_each_series, other_machine, previous_run
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


def test_runs_that_have_a_machine_in_common_are_not_of_another_machine():
    last, before, tonight = (
        replace(run(day, day, 1), host=host) for day, host in ((2, "a+b"), (1, "a+c"), (3, "a+c"))
    )
    assert previous_run(tonight, [before, last]) == last
    assert other_machine(last, tonight) == ""
    assert other_machine(replace(last, host="b"), tonight) == "on another machine: b | a+c"
