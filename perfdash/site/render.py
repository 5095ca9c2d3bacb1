"""Render page views as HTML, with their charts as inline SVG."""

from __future__ import annotations

import functools
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
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
from perfdash.report.cause_text import FAILING, ReportedCause
from perfdash.report.changes import APPEARED, BAD, NEW_FAILURE, SUSPECTED, SUSPECTED_BETTER, RunChange
from perfdash.report.commit_links import commit_ranges
from perfdash.report.comparison_text import of_machines
from perfdash.report.dashboard_tables import cpu_time_notes
from perfdash.report.number_format import four_digits, mark_cpu_time, percent_change, with_unit
from perfdash.report.step_sizes import batch_in_words
from perfdash.site.cause_page import CauseView
from perfdash.site.compare_page import SHOWN, CompareView, night_options
from perfdash.site.configurations_page import ConfigurationsView
from perfdash.site.machines_page import MachineView
from perfdash.site.model_page import ModelView, NewestResult
from perfdash.site.overview_page import OverviewView, SettingNight, TestbedView
from perfdash.site.regressions_page import WORDS, TestbedAlerts
from perfdash.site.suite_page import SuiteSetting, SuiteView, TrendLine, case_title, case_words
from perfdash.site.timeline import ChartEvent, build_words

# The policy that each page brings, on any server and as a file. `file:` is for browsers to which the files
# beside a file are not 'self'.
POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file:; "
    "base-uri 'none'; form-action 'self'"
)


@dataclass(frozen=True)
class Figure:
    """A chart with its caption; `name` where the page's data block has its numbers."""

    name: str
    title: str
    hint: str
    svg: Markup


def _trend(
    line: TrendLine,
    times: Sequence[float],
    weekly: int,
    marks: Sequence[charts.Mark] = (),
    failed: Sequence[int] = (),
) -> charts.TrendChart:
    """The chart of a line, with a mark where a new method begins."""
    by_method = [
        charts.Mark(times[place], "method", f"another method from here on ({name})")
        for place, name in line.breaks.items()
    ]
    bounded = any(value is not None and math.isfinite(value) for value in line.lows)
    return charts.TrendChart(
        line.title,
        times,
        line.values,
        line.lows if bounded else (),
        line.highs if bounded else (),
        unit=line.unit,
        ratio=line.ratio,
        weekly=weekly,
        marks=[*marks, *by_method],
        failed=failed,
        breaks=tuple(line.breaks),
    )


def model_figures(view: ModelView) -> tuple[list[Figure], Markup]:
    """The charts of a case, and the block with their numbers; none of a single night."""
    data = {}
    lines = [line for line in view.lines if _is_trend(line)]
    for line in lines:
        marks = [
            charts.Mark(event.at, event.kind, event.text, event.href)
            for event in view.events
            if event.kind != "method" and (event.metric in (None, line.name) or _moves(event, line.name))
        ]
        data[line.name] = _trend(line, view.times, view.weekly, marks=marks, failed=view.failed)
    figures = [
        Figure(line.name, line.title, line.hint, charts.trend(data[line.name], f"c-{line.name}"))
        for line in lines
    ]
    nights = [charts.NightLabel(name, build) for name, build in zip(view.names, view.builds, strict=True)]
    return figures, charts.data_block(data, nights) if data else Markup("")


def _moves(event: ChartEvent, name: str) -> bool:
    """Whether to mark a latency's alert on the speedup, which follows from it."""
    return (
        name == "speedup"
        and event.kind not in ("change", "weak")
        and event.metric in ("eager_ms", "backend_ms")
    )


def steady_value(line: TrendLine) -> str:
    """The newest value of a line that is not drawn, with its unit."""
    for value in reversed(line.values):
        if value is not None and math.isfinite(value):
            return f"{four_digits(value)}{'' if line.unit in ('x', '%') else ' '}{line.unit}".strip()
    return ""


def samples_chart(last: NewestResult) -> Markup:
    """The samples of a case's newest result; empty without any."""
    row = last.row
    sides = [
        charts.SampleSide(
            name,
            row.samples[key],
            row.values.get(key),
            row.values.get(f"{key}_low"),
            row.values.get(f"{key}_high"),
        )
        for key, name in (("eager_ms", "eager"), ("backend_ms", row.case.backend))
        if row.samples.get(key)
    ]
    return (
        charts.strip(charts.SampleStrip("Samples of the newest result", sides), "samples")
        if sides
        else Markup("")
    )


def suite_figures(view: SuiteView) -> tuple[list[Figure], Markup]:
    """The trends of a suite, and the block with their numbers; none of a single night."""
    drawn = view.drawn
    data = {line.name: _trend(line, drawn.times, drawn.weekly) for line in drawn.lines if _is_trend(line)}
    figures = [
        Figure(line.name, line.title, line.hint, charts.trend(data[line.name], f"c-{line.name}"))
        for line in drawn.lines
        if line.name in data
    ]
    # Names of runs may be alike: a point's build is that of its own run. Weeks have none.
    last = len(drawn.names) - drawn.weekly
    runs = [run for run, _ in view.trend.nights[len(view.trend.nights) - last :]]
    builds = [""] * drawn.weekly + [build_words(run) for run in runs]
    nights = [charts.NightLabel(name, build) for name, build in zip(drawn.names, builds, strict=True)]
    return figures, charts.data_block(data, nights) if data else Markup("")


def heat_map(view: SuiteView) -> Markup:
    """Models by nights; empty for fewer than two."""
    if not view.heat or len(view.heat_times) < 2:
        return Markup("")
    rows = [
        charts.HeatRow(line.label, line.href, line.ratios, line.failed, line.spread, line.open)
        for line in view.heat
    ]
    title = f"{view.trend.setting.suite}, the last {len(view.heat_times)} nights"
    return charts.heat_map(charts.HeatMap(title, view.heat_times, rows, measure=view.heat_of), "heat")


def speedup_bars(view: SuiteView) -> Markup:
    """The speedup of each model on the last night; empty where none was measured."""
    rows = []
    for row in view.rows:
        label = f"{row.case.model} ({row.case.batch_size})" if view.several_sizes else row.case.model
        value = row.number("speedup") if row.passed else None
        note = "" if row.passed and value is not None else row.word
        low, high = row.number("speedup_low"), row.number("speedup_high")
        verdict = (row.row.verdict or "") if row.passed else ""
        failed = not row.passed and row.badge == "fail"
        rows.append(charts.SpeedupBar(label, row.href, value, low, high, verdict, note, failed))
    return charts.bars(rows, "bars") if any(row.value is not None for row in rows) else Markup("")


def pass_rate_chart(setting_night: SettingNight, prefix: str) -> Markup:
    """A setting's pass rate over nights, in a cell; empty for a single night."""
    nights = setting_night.trend.nights[-len(setting_night.nights) :]
    line = setting_night.trend.lines(nights)[0]
    return charts.spark(_trend(line, setting_night.nights, 0), prefix) if _is_trend(line) else Markup("")


def _is_trend(line: TrendLine) -> bool:
    """Whether there is more than a single dot to draw."""
    known = (value for value in line.values if value is not None and math.isfinite(value))
    return len(list(islice(known, 2))) == 2


def noise_chart(view: TestbedView, prefix: str) -> Markup:
    """A testbed's noise over nights; empty where it was measured on fewer than two."""
    if len(view.noise) < 2:
        return Markup("")
    times, values = zip(*view.noise, strict=True)
    percents = [100 * value for value in values]
    title = "Noise: a model against itself"
    line = TrendLine("noise", title, "", percents, [], [], unit="%", breaks=view.noise_breaks)
    return charts.spark(_trend(line, times, 0), prefix)


def day_of(at: float) -> str:
    """A time of a chart as a day."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


# What no page may hold: control characters, and halves of characters that UTF-8 has no word for.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Bytes that are in no character of these: those begin with other bytes, or are one byte each.
_PLAIN_BYTES = bytes(set(b"\t\n") | set(range(0x20, 0x100)) - {0x7F, 0xC2, 0xED, 0xEF})
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]\d+)?")  # as report.number_format writes it
_CAUSES = 30  # rows of the first page
_SPARK_NIGHTS = 60
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
    return _page("overview.html", site_links.OVERVIEW, view=view, most_sparks=_SPARKS, most_causes=_CAUSES)


def render_cause(view: CauseView) -> str:
    """The page of a cause."""
    several = len({member.machine for member in view.members}) > 1
    return _page("cause.html", view.page, view=view, chart=cause_chart(view), several=several)


def render_ended_cause(number: int, listed: bool) -> str:
    """What stands where a cause had its page; `listed`: whether the page of regressions has its alert."""
    return _page("cause_ended.html", site_links.cause_page(number), number=number, listed=listed)


def cause_chart(view: CauseView) -> Markup:
    """All models of a cause over days, the median bold and the onset marked; empty without numbers."""
    chart = _cause_trend(view)
    return charts.trend(chart, "c-cause") if chart else Markup("")


def cause_spark(view: CauseView, prefix: str) -> Markup:
    """The median of a cause's models in a cell; empty without numbers."""
    chart = _cause_trend(view)
    if chart is None:
        return Markup("")
    last = slice(-_SPARK_NIGHTS, None)
    short = replace(chart, times=chart.times[last], values=chart.values[last], members=())
    return charts.spark(short, prefix)


def _cause_trend(view: CauseView) -> charts.TrendChart | None:
    lines, cause = view.lines, view.cause
    if lines is None or view.onset is None:
        return None
    kind = cause_badge(cause)
    words = f"first night: {cause.headline}"
    marks = [charts.Mark(view.onset, kind if kind in ("worse", "better") else "change", words)]
    members = lines.values if len(lines.values) > 1 else ()
    return charts.TrendChart(
        lines.title, lines.times, lines.median, unit="x", ratio=True, marks=marks, members=members
    )


def render_suite(view: SuiteView) -> str:
    trends, block = suite_figures(view)
    return _page(
        "suite.html",
        view.page,
        view=view,
        trends=trends,
        block=block,
        heat=heat_map(view),
        bars=speedup_bars(view),
    )


def render_model(view: ModelView) -> str:
    trends, block = model_figures(view)
    return _page(
        "model.html",
        view.page,
        view=view,
        trends=trends,
        block=block,
        samples=samples_chart(view.last) if view.last else Markup(""),
    )


def render_compare(view: CompareView) -> str:
    """One testbed's `compare.html`."""
    options = _block(night_options(view.nights, view.words))
    return _page("compare.html", view.page, view=view, options=options, most=SHOWN)


def render_configurations(view: ConfigurationsView) -> str:
    return _page("configurations.html", view.page, view=view)


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
    # Many pages are large, and nearly all are clean: their bytes are quicker to look through.
    if not html.encode("utf-8", "surrogatepass").translate(None, _PLAIN_BYTES):
        return html
    return _UNPRINTABLE.sub("\ufffd", html)


def _block(data: Any) -> Markup:
    """JSON for a script element, escaped so that no text in it ends the element."""
    return Markup(dumps(data, separators=(",", ":")).translate(_SCRIPT))


@functools.cache
def environment() -> jinja2.Environment:
    """The templates with all that they call."""
    jinja = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    jinja.globals.update(
        version=__version__,
        policy=POLICY,
        navigation=NAVIGATION,
        links=site_links,
        summaries=dashboard_tables,
        day_of=day_of,
        noise_chart=noise_chart,
        pass_rate_chart=pass_rate_chart,
        steady_value=steady_value,
        marks_key=charts.marks_key(),
        SuiteSetting=SuiteSetting,
        case_title=case_title,
        case_words=case_words,
        word_of=word_of,
        model_of=alert_text.model_of,
        build=build_words,
        badge_of=badge_of,
        cause_badge=cause_badge,
        cause_word=cause_word,
        cause_spark=cause_spark,
        titles={name: metric.title for name, metric in METRICS.items()},
        command=command,
        link_of=link_of,
        clock_notes=cpu_time_notes,
        commit_ranges=commit_ranges,
        of_machines=of_machines,
    )
    jinja.tests["cpu_time"] = is_cpu_time
    jinja.filters.update(
        shown=lambda value, metric: with_unit(metric, value),
        percent=percent_change,
        number=number,
        leading=leading,
        interval=interval,
        ratio=ratio,
        clock=mark_cpu_time,
        batch=batch_in_words,
        day=lambda text: text[:10],
        minute=lambda text: text[:16].replace("T", " "),
        quoted=shlex.quote,
    )
    return jinja


def command(old: str, new: str) -> str:
    """What compares two runs in full, quoted for a shell."""
    return shlex.join(["perfdash", "compare", old, new])


def badge_of(change: RunChange) -> str:
    """The kind of badge that a change has."""
    if change.group in BAD:
        return "worse"
    return "info" if change.group in (APPEARED, SUSPECTED, SUSPECTED_BETTER) else "better"


def cause_badge(cause: ReportedCause) -> str:
    """The kind of badge that a cause has."""
    return badge_of(cause.members[0])


def cause_word(cause: ReportedCause) -> str:
    """What kind of change a cause is, in the singular."""
    return FAILING if cause.group == NEW_FAILURE and not cause.fresh else WORDS[cause.group]


def word_of(change: RunChange) -> str:
    """What kind of change it is, in the singular."""
    return WORDS[change.group]


def link_of(change: RunChange, testbed_digest: str, root: str) -> str:
    """The page of a change's case; "" for the whole host."""
    return root + site_links.model_page(testbed_digest, change.case) if change.case else ""


def number(value: float | None, form: str = ".4g") -> str:
    return format(value, form) if value is not None and math.isfinite(value) else ""


def leading(text: str) -> str:
    """The sort key of a written value: its number without unit, or the word."""
    number = _NUMBER.match(text)
    return number[0] if number else text


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
