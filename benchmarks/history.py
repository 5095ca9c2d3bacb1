"""The history at full size: five years of 160 models in 12 configurations, 3.5 million results.

    python benchmarks/history.py ADDRESS [--nights 1826] [--writers 8]

ADDRESS is a new SQLite file or an empty PostgreSQL database. One night goes in as perfdash puts it; the
others are copies of it made inside the database, with other numbers. Then it is measured: a night's
ingest, a suite's trend over a year, one model's series, two runs compared, a night judged while 640 alerts
are open, and the change points of a year. CPU seconds of this process stand beside those of the wall: others
may use the core. With --writers so many processes store nights of their own at once, and what they stored is
counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import sqlalchemy as sa

from perfdash.detect.change_dates import lasting_changes
from perfdash.detect.comparison import ComparedRuns, compare
from perfdash.detect.nightly_judging import judge_new
from perfdash.history import alert_store, schema
from perfdash.history.alert_store import Alert
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs, panel, read_run, series, trend
from perfdash.history.results import Imported, Row, RunRow
from perfdash.history.run_selection import find_run
from perfdash.history.store import Store, open_store
from perfdash.metrics import JUDGED
from perfdash.records import Case

SUITES = {"torchbench": 54, "huggingface": 45, "timm": 61}
CONFIGURATIONS = [
    {"dtype": dtype, "threads": threads, "dynamic": dynamic}
    for dtype in ("float32", "bfloat16", "float16")
    for threads in (1, 32)
    for dynamic in (False, True)
]
FIRST = date(2021, 11, 1)


def night(day: date, seed: int) -> Imported:
    """A night of 1,920 results as a real run has them: all metrics, 100 samples a side."""
    draw = np.random.default_rng(seed)
    level = np.random.default_rng(0).uniform(5, 200, 1920)
    rows = []
    for suite, count in SUITES.items():
        for model in range(count):
            for configuration in CONFIGURATIONS:
                base = float(level[len(rows)])
                eager, compiled = base * np.exp(0.01 * draw.standard_normal(2))
                values = {
                    "eager_ms": eager, "eager_ms_low": eager * 0.995, "eager_ms_high": eager * 1.005,
                    "backend_ms": compiled, "backend_ms_low": compiled * 0.995,
                    "backend_ms_high": compiled * 1.005, "speedup": eager / compiled,
                    "speedup_low": eager / compiled * 0.97, "speedup_high": eager / compiled * 1.03,
                    "compilation_s": 30.0,
                    "compilation_cpu_s": 30 * float(np.exp(0.02 * draw.standard_normal())),
                    "first_call_s": 31.0, "compression_ratio": 1.1, "wall_s": 60.0, "eager_peak_bytes": 5e7,
                    "backend_peak_bytes": 4.5e7, "weights_bytes": 4e7, "graphs": 1, "graph_breaks": 0,
                    "calls_captured": 100, "fallbacks": 0,
                }  # fmt: skip
                samples = {
                    "eager_ms": tuple(eager * (1 + 0.01 * draw.standard_normal(100))),
                    "backend_ms": tuple(compiled * (1 + 0.01 * draw.standard_normal(100))),
                }
                rows.append(
                    Row(
                        Case(suite, f"{suite}_{model:03}", **configuration), "pass",
                        {name: float(value) for name, value in values.items()},
                        f"{day}T01:00:00Z", "faster", "pooled", samples=samples,
                        details={"conditions": {"clean_fraction": 1.0, "core": 3}},
                    )
                )  # fmt: skip
    run = RunRow(
        f"{day}T01-00-00Z_farm", f"{day}T01:00:00Z", "perfdash", f"runs/{day}", "farm", "Xeon x 100",
        environment={"worker": {"torch": "2.15", "torch_git_version": f"{seed:040x}", "packages": {}}},
        expected=1920,
    )  # fmt: skip
    return Imported(run, tuple(rows))


def fill(store: Store, nights: int) -> None:
    """Copies of the first night, each value times its own noise; made by the database itself."""
    results, details, runs = schema.results, schema.result_details, schema.runs
    with store.write() as connection:
        first = connection.execute(sa.select(runs)).one()._mapping
        summaries = [dict(row._mapping) for row in connection.execute(sa.select(schema.summaries))]
        lowest, count = connection.execute(sa.select(sa.func.min(results.c.id), sa.func.count())).one()
    chance = "(abs(random()) % 20001) / 1e6" if store.is_sqlite else "random() * 0.02"
    names = [column.name for column in results.c if column.name not in ("id", "run_id")]
    shown = ", ".join(f"{name} * (0.99 + {chance})" if name in _NOISY else name for name in names)
    for start in range(1, nights, 50):
        with store.write() as connection:
            for number in range(start, min(start + 50, nights)):
                day = FIRST + timedelta(days=number)
                run = {
                    **first,
                    "id": number + 1,
                    "key": f"{number:064}",
                    "name": f"{day}T01-00-00Z_farm",
                    "started": f"{day}T01:00:00Z",
                    "judged": "yes",
                }
                connection.execute(sa.insert(runs).values(run))
                connection.execute(
                    sa.insert(schema.summaries), [{**row, "run_id": number + 1} for row in summaries]
                )
                shift = number * count
                connection.execute(
                    sa.text(
                        f"insert into results (id, run_id, {', '.join(names)}) "
                        f"select id + {shift}, {number + 1}, {shown} from results where run_id = 1"
                    )
                )
                connection.execute(
                    sa.text(
                        f"insert into {details.name} (result_id, details, samples) "
                        f"select result_id + {shift}, details, samples from {details.name} "
                        f"where result_id >= {lowest} and result_id < {lowest + count}"
                    )
                )
    if not store.is_sqlite:
        with store.write() as connection:
            for table in ("results", "runs"):
                connection.execute(
                    sa.text(
                        f"select setval(pg_get_serial_sequence('{table}', 'id'), "
                        f"(select max(id) from {table}))"
                    )
                )
        with store.exclusive() as connection:
            connection.execute(sa.text("analyze"))


_NOISY = ("eager_ms", "backend_ms", "speedup", "compilation_cpu_s")


def timed(title: str, work: Callable[[], object], times: int = 7) -> None:
    """Prints the median and the worst of some calls, the first apart: it may read from the disk."""
    spent = []
    cpu = time.process_time()
    for _ in range(times):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    cpu = (time.process_time() - cpu) / times
    rest = spent[1:] or spent
    print(
        f"{title:<52} first {spent[0]:8.3f} s, then median {statistics.median(rest):8.3f} s, "
        f"worst {max(rest):8.3f} s, CPU {cpu:8.3f} s",
        flush=True,
    )


def open_alerts(store: Store, number: int) -> None:
    """Open alerts of the last hundred nights, each of a series of its own."""
    with store.read() as connection:
        runs = list_runs(connection, latest=102)
        cases = connection.execute(sa.select(schema.cases.c.id)).scalars().all()
    with store.write() as connection:
        for place in range(number):
            at = len(runs) - 2 - place % min(100, len(runs) - 2)
            alert_store.save(
                connection,
                Alert(
                    "metric", runs[0].testbed_id, cases[place * 3 % len(cases)], list(JUDGED)[place % 2],
                    alert_store.OPEN, 1, runs[at - 1].id, runs[at].id, runs[-1].id, runs[at].started,
                    runs[at].started, 10.0, 11.0, 0.095, 1e-6,
                    {"sd": 0.01, "born_run_id": runs[at].id, "changed": []},
                ),
            )  # fmt: skip


def write_at_once(address: str, writers: int, day: date, nights: int = 3) -> None:
    """Processes that store nights at once: how long each waits, and whether all is there."""
    made = [
        [
            replace(each, run=replace(each.run, host=f"farm{writer}", host_class=f"Xeon x {writer}"))
            for each in (
                night(day + timedelta(days=number), writer * nights + number) for number in range(nights)
            )
        ]
        for writer in range(writers)
    ]
    start = time.perf_counter()
    children = []
    for of_writer in made:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                longest = 0.0
                with open_store(address) as store:
                    for imported in of_writer:
                        begin = time.perf_counter()
                        take_in(store, [imported])
                        longest = max(longest, time.perf_counter() - begin)
                print(f"  {of_writer[0].run.host}: {nights} nights, the longest {longest:.1f} s", flush=True)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
    spent = time.perf_counter() - start
    results, runs, hosts = schema.results, schema.runs, schema.hosts
    with open_store(address) as store, store.read() as connection:
        query = (
            sa.select(sa.func.count())
            .select_from(results)
            .join(runs, results.c.run_id == runs.c.id)
            .join(hosts, runs.c.host_id == hosts.c.id)
            .where(hosts.c.name.in_([f"farm{writer}" for writer in range(writers)]))
        )
        stored = connection.execute(query).scalar_one()
    print(
        f"{writers} writers, {nights} nights each: {spent:.1f} s, {failed} failed, "
        f"{stored} of {writers * nights * 1920} results are there",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--nights", type=int, default=1826)
    parser.add_argument("--writers", type=int, default=0)
    arguments = parser.parse_args()
    with open_store(arguments.address) as store:
        with store.read() as connection:
            known = len(list_runs(connection))
        if not known:
            take_in(store, [night(FIRST, 0)])
            start = time.perf_counter()
            fill(store, arguments.nights)
            print(f"filled {arguments.nights} nights in {time.perf_counter() - start:.0f} s", flush=True)
        with store.read() as connection:
            lines = list_runs(connection)
            count = connection.execute(sa.select(sa.func.count()).select_from(schema.results)).scalar()
        print(f"{store.engine.dialect.name}: {len(lines)} runs, {count} results", flush=True)

        last = date.fromisoformat(lines[-1].started[:10])
        fresh = [night(last + timedelta(days=1 + number), 1000 + number) for number in range(4)]
        nights = iter(fresh)
        timed("a night's ingest (1,920 results)", lambda: take_in(store, [next(nights)]), len(fresh))
        timed("the same night again, changed", lambda: take_in(store, [_changed(fresh[-1])]), 2)
        with store.read() as connection:
            since = str(last - timedelta(days=365))
            timed("a suite's trend over a year", lambda: trend(connection, "timm", since=since))
            timed(
                "one model's series of five years",
                lambda: series(connection, 700, "backend_ms", testbed_id=1),
            )
            pair = [find_run(connection, run.run.name) for run in fresh[-2:]]
            timed("two runs read", lambda: [read_run(connection, line) for line in pair])
            sides = [ComparedRuns("x", (read_run(connection, line),)) for line in pair]
            timed("two runs compared (read before)", lambda: compare(*sides))
            stored = bytes_of(store)
            print(f"the store has {stored / 1e6:.0f} MB, {stored / count:.0f} bytes a result", flush=True)
        open_alerts(store, 640)
        timed("a night judged, 640 alerts open", lambda: judge_new(store, latest=1), 1)
        with store.read() as connection:
            year = list_runs(connection, latest=365)
            timed("a year of all series read", lambda: panel(connection, year, JUDGED), 2)
            whole = panel(connection, year, JUDGED)
            timed("change points of a year of all series", lambda: list(lasting_changes(whole)), 1)
    if arguments.writers:
        write_at_once(arguments.address, arguments.writers, last + timedelta(days=10))


def bytes_of(store: Store) -> int:
    """The size of the database."""
    query = (
        "select page_count * page_size from pragma_page_count(), pragma_page_size()"
        if store.is_sqlite
        else "select pg_database_size(current_database())"
    )
    with store.read() as connection:
        return int(connection.execute(sa.text(query)).scalar_one())


def _changed(imported: Imported) -> Imported:
    return replace(imported, run=replace(imported.run, ended=str(time.time())))


if __name__ == "__main__":
    main()
