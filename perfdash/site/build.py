"""Builds the site: everything is read first, then each page is made and written where it changed."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from perfdash.history.queries import rows_of
from perfdash.history.rows import Row, digest
from perfdash.history.store import Store
from perfdash.redaction import redact
from perfdash.report import links
from perfdash.site import pages
from perfdash.site.cache import Cache
from perfdash.site.changes import all_changes
from perfdash.site.folder import STATE, Folder, opened, put
from perfdash.site.happened import known
from perfdash.site.history import NIGHTS, Bed, History, beds, read_history
from perfdash.site.machines import machine_view
from perfdash.site.model import Around, Last, around, lasts, model_view
from perfdash.site.nights import CompareView, cases_file, compare_view, night_file
from perfdash.site.overview import BedView, OverviewView, bed_view
from perfdash.site.parallel import mapped
from perfdash.site.regressions import BedLives, bed_lives
from perfdash.site.suite import suite_view
from perfdash.site.trends import Trend, read_trends

Say = Callable[[str], None]
_ASSETS = Path(__file__).with_name("assets")
NIGHT_END = b");\n"  # of a night's file, a call


@dataclass(frozen=True)
class Built:
    """What a build did: testbeds, pages in all, files written and removed."""

    testbeds: int
    pages: int
    written: int
    removed: int


@dataclass(frozen=True)
class _Bed:
    """A testbed with all that its pages are made of."""

    history: History
    around: Around
    lasts: dict[int, Last]
    trends: list[Trend]
    rows: dict[int, list[Row]]
    overview: BedView
    compare: CompareView
    lives: BedLives

    @property
    def bed(self) -> Bed:
        return self.history.bed


def build(
    store: Store,
    out: Path,
    *,
    nights: int = NIGHTS,
    jobs: int | None = None,
    state: Path | None = None,
    say: Say = lambda _: None,
) -> Built:
    """Brings the site in `out` up to date with the store; from nothing, or from whatever is there.

    `nights` are kept one by one, the last of each testbed; `jobs` processes make pages (all cores);
    `state` is where arrays are kept till the next build (in `out`): each site has a folder of its own
    there, as it throws away what it has no use for. Raises UsageError for a folder of
    something else, MachineError where it cannot be written.
    """
    with opened(out, store.shown) as folder:
        cache = Cache(state / digest(str(out.resolve()))[:16] if state else out / STATE)
        found = []
        with store.read() as connection:
            for bed in beds(connection):
                say(f"{bed.title}: reading")
                found.append(_gathered(connection, bed, cache, nights))
        pages_made = 0
        for one in found:
            say(f"{one.bed.title}: {len(one.history.row)} cases, {len(one.trends)} suites and settings")
            pages_made += _write_bed(folder, one, cache, jobs)
        pages_made += _write_top(folder, found)
        _write_assets(folder)
        removed = folder.sweep()
        cache.tidy()
        return Built(len(found), pages_made, folder.written, removed)


def _gathered(connection: sa.Connection, bed: Bed, cache: Cache, nights: int) -> _Bed:
    history = read_history(connection, bed, cache, nights=nights)
    trends = read_trends(connection, bed, history.runs)
    alerts = known(connection, bed, history.runs)
    told = bed_lives(connection, bed, history.runs, alerts)
    last_runs = {trend.last[0].id for trend in trends}
    return _Bed(
        history,
        around(connection, history, told),
        lasts(connection, history, list(history.row), trends),
        trends,
        {run_id: rows_of(connection, run_id, details=True) for run_id in sorted(last_runs)},
        bed_view(connection, bed, history.runs, trends, alerts),
        compare_view(connection, history),
        told,
    )


def _write_bed(folder: Folder, one: _Bed, cache: Cache, jobs: int | None) -> int:
    """The pages of a testbed; how many there are."""
    changes = all_changes(one.history, cache, lambda function, numbers: mapped(function, numbers, jobs))

    def model(number: int) -> tuple[str, bool]:
        view = model_view(one.around, number, one.lasts.get(number), changes[number])
        text = redact(pages.render_model(view))
        return view.page, put(folder.path / view.page, text.encode("utf-8", "replace"))

    def suite(trend: Trend) -> str:
        return pages.render_suite(suite_view(one.history, trend, one.rows[trend.last[0].id]))

    for name, changed in mapped(model, list(one.history.row), jobs):
        folder.keep(name)
        folder.written += changed
    for trend in one.trends:
        folder.write(trend.setting.page(one.bed.digest), suite(trend))
    folder.write(one.compare.page, pages.render_compare(one.compare))
    data = f"{links.bed_folder(one.bed.digest)}/data"
    folder.write(f"{data}/cases.js", cases_file(one.history))
    for night, (_, file) in enumerate(one.compare.nights):
        # Its name is of its content: what is there, whole, is right.
        if not folder.keep(f"{data}/{file}", NIGHT_END):
            folder.write(f"{data}/{file}", night_file(one.history, night))
    return len(one.history.row) + len(one.trends) + 1


def _write_top(folder: Folder, found: Sequence[_Bed]) -> int:
    top = {
        links.OVERVIEW: pages.render_overview(OverviewView([one.overview for one in found])),
        links.COMPARE: pages.render_compare_index([one.compare for one in found]),
        links.REGRESSIONS: pages.render_regressions([one.lives for one in found]),
        links.MACHINES: pages.render_machines([machine_view(one.bed, one.history.runs) for one in found]),
        links.METHOD: pages.render_method(),
    }
    for name, text in top.items():
        folder.write(name, text)
    return len(top)


def _write_assets(folder: Folder) -> None:
    for path in sorted(_ASSETS.iterdir()):
        if path.suffix in (".css", ".js", ".svg"):
            folder.write(f"assets/{path.name}", path.read_bytes())
    folder.write("assets/plotly.min.js", plotly_script())


def plotly_script() -> bytes:
    """plotly's own script, as its package brings it."""
    return importlib.resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
