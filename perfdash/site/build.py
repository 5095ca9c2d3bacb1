"""Build the site: read everything, then make each page and write those that changed."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from perfdash.detect.nightly_problems import nightly_problems
from perfdash.errors import MachineError
from perfdash.files import encoded
from perfdash.history.queries import rows_of
from perfdash.history.results import Row
from perfdash.history.store import Store
from perfdash.report import site_links
from perfdash.site import render
from perfdash.site.build_record import SiteRecord, files, is_as_left, read_record, sources, write_record
from perfdash.site.cause_page import open_causes
from perfdash.site.compare_page import CompareView, cases_file, compare_view, night_file
from perfdash.site.configurations_page import ConfigurationsView, configurations_view
from perfdash.site.machines_page import machine_view
from perfdash.site.model_page import ModelContext, NewestResult, model_context, model_view, newest_results
from perfdash.site.overview_page import OverviewView, TestbedView, overview_of
from perfdash.site.regressions_page import StandingAlerts, TestbedAlerts, alerts_of_testbed
from perfdash.site.site_folder import ArrayCache, Folder, opened, put, state_of
from perfdash.site.suite_page import OpenChange, SuiteTrend, open_changes, read_trends, suite_view
from perfdash.site.testbed_history import NIGHTS, Testbed, TestbedHistory, read_history, testbeds_with_runs
from perfdash.site.timeline import all_changes

Say = Callable[[str], None]
_ASSETS = Path(__file__).with_name("assets")
NIGHT_END = b");\n"  # of a night's file, a call


@dataclass(frozen=True)
class SiteBuild:
    """The counts of a build: testbeds, all pages, files written and removed."""

    testbeds: int
    pages: int
    written: int
    removed: int


@dataclass(frozen=True)
class _Bed:
    """The data of all pages of one testbed."""

    history: TestbedHistory
    context: ModelContext
    newest_results: dict[int, NewestResult]
    trends: list[SuiteTrend]
    rows: dict[int, list[Row]]
    overview: TestbedView
    compare: CompareView
    configurations: ConfigurationsView | None
    alerts_page: TestbedAlerts
    changes: dict[int, OpenChange]

    @property
    def bed(self) -> Testbed:
        return self.history.bed


def build(
    store: Store,
    out: Path,
    *,
    nights: int = NIGHTS,
    jobs: int | None = None,
    state: Path | None = None,
    say: Say = lambda _: None,
) -> SiteBuild:
    """Bring the site in `out` up to date with the store, or create it.

    `nights` are kept one by one, the last of each testbed; `jobs` processes make pages (all cores);
    `state` is where arrays are kept until the next build (default: in `out`). Each site has its own folder
    there, as a build removes arrays that it does not use. Where nothing is new since the last build, and its
    files are as it left them, nothing is made. Raises UsageError if `out` holds other files, MachineError if
    it cannot be written.
    """
    with opened(out, store.shown) as folder, _no_collection():
        kept = state_of(out, state)
        cache = ArrayCache(kept)
        gathered = []
        with store.read() as connection:
            beats = nightly_problems(connection, datetime.now(UTC))
            made_of = sources(connection, beats, nights)
            last = read_record(kept)
            if last and is_as_left(last, made_of, out):
                return SiteBuild(last.testbeds, last.pages, 0, 0)
            write_record(kept, None)  # what follows may be killed
            testbeds = testbeds_with_runs(connection)
            causes, standing = open_causes(connection, testbeds)
            for bed, _ in testbeds:
                say(f"{bed.title}: reading")
                gathered.append(_gathered(connection, bed, standing[bed.id], cache, nights))
        pages_made = 0
        for testbed in gathered:
            say(
                f"{testbed.bed.title}: {len(testbed.history.row)} cases, "
                f"{len(testbed.trends)} suites and settings"
            )
            pages_made += _write_bed(folder, testbed, cache, jobs)
        overview = OverviewView([testbed.overview for testbed in gathered], causes, beats)
        pages_made += _write_top(folder, gathered, overview)
        _write_assets(folder)
        removed = folder.sweep()
        cache.tidy()
        write_record(kept, SiteRecord(made_of, files(out), len(gathered), pages_made))
        return SiteBuild(len(gathered), pages_made, folder.written, removed)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from looking for cycles of garbage: a build makes few, and the search walks all it read."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _gathered(
    connection: sa.Connection, bed: Testbed, alerts: StandingAlerts, cache: ArrayCache, nights: int
) -> _Bed:
    history = read_history(connection, bed, cache, nights=nights)
    trends = read_trends(connection, bed, history.runs)
    alerts_page = alerts_of_testbed(connection, bed, history.runs, alerts)
    last_runs = {trend.last[0].id for trend in trends}
    rows = {run_id: rows_of(connection, run_id, details=True) for run_id in sorted(last_runs)}
    overview = overview_of(connection, bed, history.runs, alerts.heads, trends)
    configurations = configurations_view(bed, overview, rows)
    return _Bed(
        history,
        model_context(connection, history, alerts_page),
        newest_results(connection, history, list(history.row), trends),
        trends,
        rows,
        overview,
        compare_view(connection, history),
        configurations,
        alerts_page,
        open_changes(evidence.alert for evidence in alerts.evidence),
    )


def _write_bed(folder: Folder, testbed: _Bed, cache: ArrayCache, jobs: int | None) -> int:
    """Write the pages of a testbed; returns their number."""
    changes = all_changes(testbed.history, cache, lambda function, numbers: mapped(function, numbers, jobs))

    def page(of: int | SuiteTrend) -> tuple[str, bool]:
        """Write the page of a case, by its number, or of a suite; whether it is another one than before."""
        if isinstance(of, SuiteTrend):
            rows = testbed.rows[of.last[0].id]
            suite = suite_view(testbed.history, of, rows, testbed.changes)
            name, text = suite.page, render.render_suite(suite)
        else:
            model = model_view(testbed.context, of, testbed.newest_results.get(of), changes[of])
            name, text = model.page, render.render_model(model)
        return name, put(folder.path / name, encoded(text))

    pages: list[int | SuiteTrend] = [*testbed.trends, *testbed.history.row]
    for name, changed in mapped(page, pages, jobs):
        folder.keep(name)
        folder.written += changed
    folder.write(testbed.compare.page, render.render_compare(testbed.compare))
    if testbed.configurations:
        folder.write(testbed.configurations.page, render.render_configurations(testbed.configurations))
    data = f"{site_links.bed_folder(testbed.bed.digest)}/data"
    folder.write(f"{data}/cases.js", cases_file(testbed.history))
    for night, (_, file) in enumerate(testbed.compare.nights):
        # The file's name has a digest of its content: a complete file of that name is up to date.
        if not folder.keep(f"{data}/{file}", NIGHT_END):
            folder.write(f"{data}/{file}", night_file(testbed.history, night))
    return len(testbed.history.row) + len(testbed.trends) + 1 + bool(testbed.configurations)


def _write_top(folder: Folder, testbeds: Sequence[_Bed], overview: OverviewView) -> int:
    top = {
        site_links.OVERVIEW: render.render_overview(overview),
        site_links.COMPARE: render.render_compare_index([testbed.compare for testbed in testbeds]),
        site_links.REGRESSIONS: render.render_regressions([testbed.alerts_page for testbed in testbeds]),
        site_links.MACHINES: render.render_machines(
            [
                machine_view(testbed.bed, testbed.history.runs, testbed.history.excluded)
                for testbed in testbeds
            ]
        ),
        site_links.METHOD: render.render_method(),
        **{view.page: render.render_cause(view) for view in overview.causes if view.members},
    }
    listed = {life.alert.id for testbed in testbeds for life in testbed.alerts_page.histories}
    for path in (folder.path / "causes").glob("*.html"):  # comments and issues link to them
        name = f"causes/{path.name}"
        if name not in top and path.stem.isdecimal():
            top[name] = render.render_ended_cause(int(path.stem), int(path.stem) in listed)
    for name, text in top.items():
        folder.write(name, text)
    return len(top)


def _write_assets(folder: Folder) -> None:
    for path in sorted(_ASSETS.iterdir()):
        if path.suffix in (".css", ".js", ".svg"):
            folder.write(f"assets/{path.name}", path.read_bytes())


T = TypeVar("T")
R = TypeVar("R")

_FEWEST = 100  # items that are worth a process


def mapped(function: Callable[[T], R], items: Sequence[T], jobs: int | None = None) -> list[R]:
    """Map a function over items in forked processes, in order.

    `function` must not read the database: a forked process may not use its parent's connection.

    Each process has its share from the start and ends with it, so that none outlives this one for long
    if it is killed. Raises what `function` raises; MachineError where a process was killed.
    """
    jobs = min(jobs or cores(), len(items) // _FEWEST)
    if jobs < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return [function(item) for item in items]
    context = multiprocessing.get_context("fork")
    readers: list[Connection] = []
    processes = []
    results: list[Any] = [None] * len(items)
    try:
        for place in range(jobs):
            reader, writer = context.Pipe(duplex=False)
            readers.append(reader)
            share = function, items[place::jobs], writer, readers
            processes.append(context.Process(target=_make_share, args=share, daemon=True))
            processes[-1].start()
            writer.close()
        for place, reader in enumerate(readers):
            try:
                answer = reader.recv()
            except EOFError:
                raise MachineError(
                    "a process that makes pages was killed (short of memory?); --jobs 1 needs the least"
                ) from None
            if isinstance(answer, BaseException):
                raise answer
            results[place::jobs] = answer
    finally:
        for process in processes:
            process.terminate()
            process.join()
        for reader in readers:
            reader.close()
    return results


def _make_share(
    function: Callable[[Any], Any], items: Sequence[Any], writer: Connection, readers: Sequence[Connection]
) -> None:
    for reader in readers:  # else this process would hold its own pipe open when nobody reads any more
        reader.close()
    try:
        answer: Any = [function(item) for item in items]
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        answer = error
    try:
        writer.send(answer)
    except BrokenPipeError:
        os._exit(1)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
