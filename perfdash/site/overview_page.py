"""The overview page: open alerts, and the newest means of each suite and testbed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from perfdash.detect.comparison import ComparedRuns, compare
from perfdash.detect.nights import how_long
from perfdash.history.pass_rates_and_means import setting_of
from perfdash.history.queries import RunLine, read_run
from perfdash.history.results import Imported
from perfdash.report.published_totals import of_suite
from perfdash.site import regressions_page
from perfdash.site.regressions_page import AlertsOnPage, StandingAlerts
from perfdash.site.suite_page import SuiteSetting, SuiteTrend, method_breaks, read_trends
from perfdash.site.testbed_history import Testbed, epoch

NIGHTS = 60  # in the small charts
SHOWN = 30  # alerts of a testbed; the rest is on the page of regressions


@dataclass(frozen=True)
class SettingNight:
    """A setting on its last night. `ratio`: geometric mean over the cases that pass on this night and the
    one before, new / old, with its interval; `both` how many they are."""

    trend: SuiteTrend
    ratio: tuple[float, float, float] | None
    both: int

    @property
    def before(self) -> str:
        """The time between the last night and the one it is compared with, in words.

        Empty where there is no earlier night.
        """
        return how_long(self.trend.nights[-2][0], self.trend.last[0]) if self.ratio else ""

    @property
    def published(self) -> dict[str, str]:
        """The totals that the source of an imported night published, by Published.name."""
        run, setting = self.trend.last[0], self.trend.setting
        sums = of_suite(run.facts, setting.section, setting.suite, setting.backend)
        return {total.name: total.published for total in sums if total.name}

    @property
    def nights(self) -> list[float]:
        return [epoch(run.started) for run, _ in self.trend.nights[-NIGHTS:]]


@dataclass(frozen=True)
class TestbedView:
    """A testbed on the first page. `noise`: (time, worst of a model against itself) night by night;
    `noise_breaks`: of these the places from which on another method measures the ratio, with its name.

    `last` is the last run of all; `heads` the last night of each kind, the newest first.
    """

    bed: Testbed
    last: RunLine
    heads: list[RunLine]
    runs: int
    alerts: AlertsOnPage
    settings: list[SettingNight]
    noise: list[tuple[float, float]]
    unjudged: int
    noise_breaks: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OverviewView:
    beds: list[TestbedView]


def noise_of(run: RunLine) -> float | None:
    """The worst relative error of a model measured against itself that night."""
    worst = (run.noise.get("null") or {}).get("worst")
    return float(worst) if isinstance(worst, int | float) else None


def overview_of(
    connection: sa.Connection,
    bed: Testbed,
    runs: Sequence[RunLine],
    trends: list[SuiteTrend] | None = None,
    alerts: StandingAlerts | None = None,
) -> TestbedView:
    """Read a testbed's part of the overview.

    `runs` all of them, oldest first; `trends` and `alerts` where they are read already.
    """
    recent = list(runs[-2 * NIGHTS :])
    if trends is None:
        trends = read_trends(connection, bed, recent)
    alerts = alerts or regressions_page.standing_alerts(connection, bed, runs)
    read_before: dict[int, Imported] = {}
    measured = [(run, value) for run in recent if (value := noise_of(run)) is not None][-NIGHTS:]
    return TestbedView(
        bed,
        runs[-1],
        alerts.heads,
        len(runs),
        regressions_page.alerts_on_page(alerts, SHOWN),
        [_setting_night(connection, trend, read_before) for trend in trends],
        [(epoch(run.started), value) for run, value in measured],
        regressions_page.unjudged(runs),
        method_breaks([run.method for run, _ in measured], "speedup"),
    )


def _setting_night(
    connection: sa.Connection, trend: SuiteTrend, read_before: dict[int, Imported]
) -> SettingNight:
    if len(trend.nights) < 2:
        return SettingNight(trend, None, 0)
    sides = []
    for run, _ in trend.nights[-2:]:
        if run.id not in read_before:
            read_before[run.id] = read_run(connection, run)
        sides.append(_side(run, read_before[run.id], trend.setting))
    means = next((means for means in compare(sides[0], sides[1]).means if means.metric == "speedup"), None)
    return SettingNight(trend, means.ratio if means else None, means.cases if means else 0)


def _side(run: RunLine, imported: Imported, setting: SuiteSetting) -> ComparedRuns:
    rows = tuple(row for row in imported.rows if setting_of(row) == setting)
    return ComparedRuns(run.name, (Imported(imported.run, rows),))
