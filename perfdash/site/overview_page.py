"""The overview page: open alerts, and the newest means of each suite and testbed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from perfdash.detect.comparison import ComparedRuns, compare
from perfdash.detect.heartbeat import Beat
from perfdash.detect.nights import how_long, other_machine, previous_run
from perfdash.history.queries import RunLine, read_run
from perfdash.history.results import Imported
from perfdash.report.cause_text import counts
from perfdash.report.changes import BAD, SUSPECTED
from perfdash.report.published_totals import of_suite
from perfdash.site import regressions_page
from perfdash.site.cause_page import CauseView
from perfdash.site.suite_page import SuiteSetting, SuiteTrend, method_breaks, read_trends
from perfdash.site.testbed_history import Testbed, epoch

NIGHTS = 60  # in the small charts


@dataclass(frozen=True)
class SettingNight:
    """A setting on its last night.

    `old`: the one before, of the same machine if it has one. `ratio`: geometric mean over the cases that
    pass on both nights, new / old, with its interval; `both` how many they are.
    """

    trend: SuiteTrend
    old: RunLine | None
    ratio: tuple[float, float, float] | None
    both: int

    @property
    def before(self) -> str:
        """The time between the last night and the one it is compared with, in words.

        Empty where there is no earlier night.
        """
        return how_long(self.old, self.trend.last[0]) if self.ratio and self.old else ""

    @property
    def machines(self) -> str:
        """Both machines where the one before was measured on another machine; empty otherwise."""
        return other_machine(self.old, self.trend.last[0]) if self.ratio and self.old else ""

    @property
    def word(self) -> str:
        """Whether the mean speedup rose or fell for certain: better, worse or same.

        Of two machines nothing is certain: they may differ without any change.
        """
        if self.ratio is None or self.both < 2 or self.machines:
            return "same"
        _, low, high = self.ratio
        return "better" if low > 1 else "worse" if high < 1 else "same"

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
    settings: list[SettingNight]
    noise: list[tuple[float, float]]
    unjudged: int
    noise_breaks: Mapping[int, str] = field(default_factory=dict)

    @property
    def has_configurations(self) -> bool:
        """Whether there are several configurations or back ends, which a page has beside each other."""
        settings = [setting_night.trend.setting for setting_night in self.settings]
        return len({(one.backend, one.dynamic, one.settings, one.configuration) for one in settings}) > 1

    @property
    def common(self) -> list[str]:
        """The words that all settings share: they are told once."""
        each = [setting_night.trend.setting.words for setting_night in self.settings]
        return [word for word in each[0] if all(word in words for words in each)] if each else []


@dataclass(frozen=True)
class OverviewView:
    """The first page: open causes of all testbeds, the worst first, then each testbed.

    beats: nightlies that are late, missing or failed.
    """

    beds: list[TestbedView]
    causes: list[CauseView]
    beats: list[Beat] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """All causes, counted by kind."""
        words = ", ".join(counts([view.cause for view in self.causes]))
        return words[:1].upper() + words[1:]

    @property
    def is_worse(self) -> bool:
        """Whether an open cause is or may be a regression or a failure."""
        groups = [view.cause.group for view in self.causes if not view.cause.acknowledged]
        return any(group in (*BAD, SUSPECTED) for group in groups)

    @property
    def unjudged(self) -> int:
        return sum(bed.unjudged for bed in self.beds)


def noise_of(run: RunLine) -> float | None:
    """The worst relative error of a model measured against itself that night."""
    worst = (run.noise.get("null") or {}).get("worst")
    return float(worst) if isinstance(worst, int | float) else None


def overview_of(
    connection: sa.Connection,
    bed: Testbed,
    runs: Sequence[RunLine],
    heads: list[RunLine],
    trends: list[SuiteTrend] | None = None,
) -> TestbedView:
    """Read a testbed's part of the overview.

    `runs` all of them, oldest first; `heads` the last night of each kind; `trends` where they are read
    already.
    """
    recent = list(runs[-2 * NIGHTS :])
    if trends is None:
        trends = read_trends(connection, bed, recent)
    read_before: dict[int, Imported] = {}
    measured = [(run, value) for run in recent if (value := noise_of(run)) is not None][-NIGHTS:]
    return TestbedView(
        bed,
        runs[-1],
        heads,
        len(runs),
        [_setting_night(connection, trend, read_before) for trend in trends],
        [(epoch(run.started), value) for run, value in measured],
        regressions_page.unjudged(runs),
        method_breaks([run.method for run, _ in measured], "speedup"),
    )


def _setting_night(
    connection: sa.Connection, trend: SuiteTrend, read_before: dict[int, Imported]
) -> SettingNight:
    if len(trend.nights) < 2:
        return SettingNight(trend, None, None, 0)
    last = trend.last[0]
    before = previous_run(last, [run for run, _ in trend.nights[:-1]])
    sides = []
    for run in (before, last):
        if run.id not in read_before:
            read_before[run.id] = read_run(connection, run)
        sides.append(_side(run, read_before[run.id], trend.setting))
    means = next((means for means in compare(sides[0], sides[1]).means if means.metric == "speedup"), None)
    return SettingNight(trend, before, means.ratio if means else None, means.cases if means else 0)


def _side(run: RunLine, imported: Imported, setting: SuiteSetting) -> ComparedRuns:
    rows = tuple(row for row in imported.rows if setting.includes(row.case))
    return ComparedRuns(run.name, (Imported(imported.run, rows),))
