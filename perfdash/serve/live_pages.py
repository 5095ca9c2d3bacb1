"""Serve each page of the site from the current store, under the site's own paths."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jinja2
import sqlalchemy as sa

from perfdash.detect.comparison import ComparedRuns, Comparison
from perfdash.detect.nightly_problems import nightly_problems
from perfdash.errors import UsageError
from perfdash.history import schema
from perfdash.history.queries import case_numbers, list_runs, rows_of
from perfdash.report import site_links
from perfdash.report.changes import RunChange, of_comparison, ordered
from perfdash.report.comparison_text import of_eager
from perfdash.serve.parameters import NotFound, compared
from perfdash.site import render
from perfdash.site.cause_page import open_causes
from perfdash.site.compare_page import SHOWN, CompareView, pairs
from perfdash.site.configurations_page import configurations_view
from perfdash.site.machines_page import machine_view
from perfdash.site.model_page import read_model_view
from perfdash.site.overview_page import OverviewView, overview_of
from perfdash.site.regressions_page import alerts_of_testbed
from perfdash.site.suite_page import SuiteSetting, read_suite_view, read_trends
from perfdash.site.testbed_history import Testbed, beds, testbeds_with_runs

Words = Mapping[str, str | None]
OFFERED = 200  # runs that the form of the comparison suggests


def overview(connection: sa.Connection) -> str:
    testbeds = testbeds_with_runs(connection)
    causes, standing = open_causes(connection, testbeds)
    views = [overview_of(connection, bed, runs, standing[bed.id].heads) for bed, runs in testbeds]
    return render.render_overview(
        OverviewView(views, causes, nightly_problems(connection, datetime.now(UTC)))
    )


def cause(connection: sa.Connection, path: str) -> str:
    """`path` as report.site_links.cause_page has it. Raises NotFound."""
    causes, _ = open_causes(connection, testbeds_with_runs(connection))
    for view in causes:
        if view.page == path and view.members:
            return render.render_cause(view)
    raise NotFound("there is no such open cause; the page of regressions has the ended alerts")


def regressions(connection: sa.Connection) -> str:
    testbeds = testbeds_with_runs(connection)
    _, standing = open_causes(connection, testbeds)
    return render.render_regressions(
        [alerts_of_testbed(connection, bed, runs, standing[bed.id]) for bed, runs in testbeds]
    )


def machines(connection: sa.Connection) -> str:
    views = []
    for bed, runs in testbeds_with_runs(connection):
        stored = list_runs(connection, testbed_id=bed.id)
        views.append(machine_view(bed, runs, [run for run in stored if run.excluded is not None]))
    return render.render_machines(views)


def method(_: sa.Connection) -> str:
    return render.render_method()


def suite(connection: sa.Connection, path: str) -> str:
    """`path` as report.site_links.suite_page has it. Raises NotFound."""
    bed = _bed(connection, path)
    columns = schema.summaries.c[SuiteSetting._fields]
    query = (
        sa.select(*columns)
        .distinct()
        .join_from(schema.summaries, schema.runs, schema.summaries.c.run_id == schema.runs.c.id)
        .where(schema.runs.c.testbed_id == bed.id, schema.runs.c.excluded.is_(None))
    )
    for row in connection.execute(query):
        setting = SuiteSetting(*row)
        if setting.page(bed.digest) == path and (view := read_suite_view(connection, bed, setting)):
            return render.render_suite(view)
    raise NotFound("there is no such suite on this testbed")


def configurations(connection: sa.Connection, path: str) -> str:
    """`path` as report.site_links.configurations_page has it. Raises NotFound."""
    bed = _bed(connection, path)
    runs = list_runs(connection, testbed_id=bed.id, with_excluded=False)
    overview = overview_of(connection, bed, runs, [], read_trends(connection, bed, runs))
    last_runs = {night.trend.last[0].id for night in overview.settings}
    rows = {run_id: rows_of(connection, run_id, details=True) for run_id in last_runs}
    view = configurations_view(bed, overview, rows)
    if view is None:
        raise NotFound("this testbed has one configuration and back end: nothing is beside it")
    return render.render_configurations(view)


def model(connection: sa.Connection, path: str) -> str:
    """`path` as report.site_links.model_page has it. Raises NotFound."""
    bed = _bed(connection, path)
    for case, number in case_numbers(connection, bed.id).items():
        is_asked = site_links.model_page(bed.digest, case) == path
        if is_asked and (view := read_model_view(connection, bed, number)):
            return render.render_model(view)
    raise NotFound("there is no such model on this testbed")


def nights(connection: sa.Connection, path: str) -> str:
    """Compare the last night of a testbed with earlier ones.

    The page COMPARE compares any other two.
    """
    bed = _bed(connection, path)
    runs = list_runs(connection, testbed_id=bed.id, with_excluded=False)
    return render.render_compare(CompareView(bed, path, pairs(connection, runs), []))


@dataclass(frozen=True)
class ShownComparison:
    """A comparison as the page shows it.

    `testbed` is the digest of both sides' testbed; `eager`: a caution where its latency moved.
    """

    comparison: Comparison
    changes: list[RunChange]
    testbed: str
    sides: list[tuple[str, str]]
    eager: str


def compare_any(connection: sa.Connection, words: Words) -> tuple[str, int]:
    """The page with the form and the requested comparison; with its HTTP status.

    The page itself says what is wrong with the request.
    """
    old, new = words.get("old"), words.get("new")
    problem, status, result = "", 200, None
    try:
        if old and new:
            result = _compared_sides(compared(connection, old, new, words.get("host_class")))
        elif old or new:
            problem, status = "Both sides are needed.", 400
    except NotFound as error:
        problem, status = str(error), 404
    except UsageError as error:
        problem, status = str(error), 400
    runs = list_runs(connection, latest=OFFERED)[::-1]
    text = _render(
        "compare_any.html",
        site_links.COMPARE,
        words=words,
        problem=problem,
        result=result,
        runs=runs,
        host_classes=sorted({run.host_class for run in runs}),
        beds=[(bed, site_links.compare_page(bed.digest)) for bed in beds(connection)],
        most=SHOWN,
    )
    return text, status


def _compared_sides(comparison: Comparison) -> ShownComparison:
    digest = comparison.new.runs[0].run.testbed_digest
    sides = [("Old", _side_title(comparison.old)), ("New", _side_title(comparison.new))]
    eager = " ".join(of_eager(comparison))
    return ShownComparison(comparison, ordered(of_comparison(comparison)), digest, sides, eager)


def _side_title(side: ComparedRuns) -> str:
    runs = [imported.run for imported in side.runs]
    torches = dict.fromkeys(run.torch_build for run in runs)
    names = runs[0].name if len(runs) == 1 else f"{len(runs)} runs, {runs[0].name} to {runs[-1].name}"
    several = f"{len(torches)} builds of torch, {next(iter(torches))} to {list(torches)[-1]}"
    return f"{names}; " + (f"torch {next(iter(torches))}" if len(torches) == 1 else several)


def _bed(connection: sa.Connection, path: str) -> Testbed:
    """The testbed in whose folder a page lies. Raises NotFound."""
    for bed in beds(connection):
        if path.startswith(site_links.bed_folder(bed.digest) + "/"):
            return bed
    raise NotFound("there is no such testbed")


def _render(template: str, path: str, **values: object) -> str:
    html = _environment().get_template(template).render(root="../" * path.count("/"), path=path, **values)
    return render.printable(html)


@functools.cache
def _environment() -> jinja2.Environment:
    """The site's jinja environment plus the templates that only the server has."""
    site = render.environment()
    own = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    loaders = [own, *([site.loader] if site.loader else [])]
    return site.overlay(loader=jinja2.ChoiceLoader(loaders))


PAGES: dict[str, Callable[[sa.Connection], str]] = {
    site_links.OVERVIEW: overview,
    site_links.REGRESSIONS: regressions,
    site_links.MACHINES: machines,
    site_links.METHOD: method,
}
