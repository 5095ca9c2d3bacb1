"""Render page views as HTML, a function a page; jinja2 escapes every value. Pure: no files.

`root` leads from the page to the top of the site."""

from __future__ import annotations

import functools
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from perfdash import __version__, charts
from perfdash.files import dumps
from perfdash.history.results import is_cpu_time
from perfdash.methods import MEANINGS
from perfdash.metrics import METRICS
from perfdash.report import alert_text, dashboard_tables, site_links
from perfdash.report.changes import BAD, RunChange
from perfdash.report.dashboard_tables import cpu_time_notes
from perfdash.report.number_format import mark_cpu_time, percent_change, with_unit
from perfdash.site import page_charts
from perfdash.site.compare_page import SHOWN, CompareView, night_options
from perfdash.site.machines_page import MachineView
from perfdash.site.model_page import ModelView
from perfdash.site.overview_page import OverviewView
from perfdash.site.regressions_page import WORDS, TestbedAlerts
from perfdash.site.suite_page import SuiteView
from perfdash.site.suite_setting import SuiteSetting, case_title, case_words
from perfdash.site.timeline import build_words

# What no page may hold: control characters, and halves of characters that UTF-8 has no word for.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]\d+)?")  # as report.number_format writes it
_SPARKS = 48  # settings of the first page that get small charts: each is some kilobytes
_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}

NAVIGATION = (
    (site_links.OVERVIEW, "Overview"),
    (site_links.REGRESSIONS, "Regressions"),
    (site_links.COMPARE, "Compare"),
    (site_links.MACHINES, "Machines"),
    (site_links.METHOD, "Method"),
)


def render_overview(view: OverviewView) -> str:
    """`index.html`."""
    return _page("overview.html", site_links.OVERVIEW, view=view, most_sparks=_SPARKS)


def render_suite(view: SuiteView) -> str:
    trends, block = page_charts.suite_figures(view)
    return _page(
        "suite.html",
        view.page,
        view=view,
        trends=trends,
        block=block,
        heat=page_charts.heat_map(view),
        bars=page_charts.speedup_bars(view),
    )


def render_model(view: ModelView) -> str:
    trends, block = page_charts.model_figures(view)
    return _page(
        "model.html",
        view.page,
        view=view,
        trends=trends,
        block=block,
        samples=page_charts.samples(view.last) if view.last else Markup(""),
    )


def render_compare(view: CompareView) -> str:
    """One testbed's `compare.html`."""
    options = _block(night_options(view.nights, view.words))
    return _page("compare.html", view.page, view=view, options=options, most=SHOWN)


def render_compare_index(views: Sequence[CompareView]) -> str:
    """`compare.html` at the top: which testbed?"""
    return _page("compare_index.html", site_links.COMPARE, views=views)


def render_regressions(views: Sequence[TestbedAlerts]) -> str:
    return _page("regressions.html", site_links.REGRESSIONS, views=views)


def render_machines(views: Sequence[MachineView]) -> str:
    return _page("machines.html", site_links.MACHINES, views=views)


def render_method() -> str:
    return _page("method.html", site_links.METHOD, methods=MEANINGS)


def _page(template: str, path: str, **values: Any) -> str:
    root = "../" * path.count("/")
    html = environment().get_template(template).render(root=root, path=path, **values)
    return printable(html)


def printable(html: str) -> str:
    """A page without what no page may hold."""
    return _UNPRINTABLE.sub("\ufffd", html)


def _block(data: Any) -> Markup:
    """JSON that stands in a page: no end of a script in it, nothing that a browser would run."""
    return Markup(dumps(data, separators=(",", ":")).translate(_SCRIPT))


@functools.cache
def environment() -> jinja2.Environment:
    """The templates with all that they call."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.globals.update(
        version=__version__,
        navigation=NAVIGATION,
        links=site_links,
        summaries=dashboard_tables,
        page_charts=page_charts,
        marks_key=charts.marks_key(),
        SuiteSetting=SuiteSetting,
        case_title=case_title,
        case_words=case_words,
        word_of=word_of,
        model_of=alert_text.model_of,
        build=build_words,
        is_bad=is_bad,
        titles={name: metric.title for name, metric in METRICS.items()},
        command=command,
        link_of=link_of,
        clock_notes=cpu_time_notes,
    )
    found.tests["cpu_time"] = is_cpu_time
    found.filters.update(
        shown=lambda value, metric: with_unit(metric, value),
        percent=percent_change,
        number=number,
        leading=leading,
        interval=interval,
        ratio=ratio,
        clock=mark_cpu_time,
        day=lambda text: text[:10],
        minute=lambda text: text[:16].replace("T", " "),
    )
    return found


def command(old: str, new: str) -> str:
    """What compares two runs in full, quoted for a shell."""
    return shlex.join(["perfdash", "compare", old, new])


def is_bad(change: RunChange) -> bool:
    return change.group in BAD


def word_of(change: RunChange) -> str:
    """What kind of change it is, in the singular."""
    return WORDS[change.group]


def link_of(change: RunChange, testbed_digest: str, root: str) -> str:
    """The page of a change's case; "" for the whole host."""
    return root + site_links.model_page(testbed_digest, change.case) if change.case else ""


def number(value: float | None, form: str = ".4g") -> str:
    return format(value, form) if value is not None and math.isfinite(value) else ""


def leading(text: str) -> str:
    """What a column sorts a written value by: its number without the unit, or the word that it is."""
    found = _NUMBER.match(text)
    return found[0] if found else text


def interval(values: Sequence[float] | None) -> str:
    """The interval of a log ratio as changes in per cent; of none: nothing."""
    if not values or not all(math.isfinite(value) for value in values):
        return ""
    return " to ".join(percent_change(value) for value in values)


def ratio(value: float | None) -> str:
    """new / old as a change in per cent."""
    if value is None or not math.isfinite(value) or value <= 0:
        return ""
    return f"{value - 1:+.1%}"
