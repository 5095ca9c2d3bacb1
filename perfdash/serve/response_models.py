"""The shapes of the API's answers; OpenAPI describes these, and tests check the answers against them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from perfdash.metrics import NUMBERS

Open = dict[str, Any]  # what a host or a package says of itself


class Shape(BaseModel):
    """An object with all of these fields and no other. None: not known or not measured."""

    model_config = ConfigDict(extra="forbid")


class Error(Shape):
    error: str


class Case(Shape):
    suite: str
    model: str
    device: str
    dtype: str
    batch_size: int
    threads: int
    scenario: str
    backend: str
    dynamic: bool
    settings: str
    configuration: str
    amp_dtype: str | None


class NumberedCase(Case):
    id: int


class Run(Shape):
    id: int
    name: str
    started: str
    state: str
    origin: str
    host: str
    testbed_id: int
    host_class: str
    setting: Open
    environment_id: int
    torch: str | None
    torch_git_version: str | None
    python: str | None
    packages: Open
    facts: Open
    noise: Open
    expected: int | None
    results: int
    judged: str | None
    excluded: str | None
    commits: Open
    method: Open


# A result has only the numbers that were measured: none is null.
Values = create_model("Values", __base__=Shape, **dict.fromkeys(NUMBERS, (float, 0.0)))  # type: ignore[call-overload]


class Result(Shape):
    case: Case
    status: str
    verdict: str | None
    basis: str | None
    started: str | None
    values: Values  # type: ignore[valid-type]


class Point(Shape):
    run: str
    started: str
    status: str
    value: float | None
    torch: str | None
    torch_git_version: str | None
    method: Open
    excluded: str | None


class AlertEnd(Shape):
    run: str
    started: str
    torch: str | None
    torch_git_version: str | None


class AlertEvent(Shape):
    at: str
    state: str
    run: str | None
    note: str | None


class Alert(Shape):
    id: int
    state: str
    kind: str
    direction: str
    case: Case | None
    metric: str | None
    side: str | None
    before: float | None
    after: float | None
    change: float | None
    p: float | None
    speedup: list[float] | None
    good: AlertEnd | None
    bad: AlertEnd | None
    last_seen: AlertEnd | None
    opened: str
    changed: str
    details: Open
    events: list[AlertEvent]


class Night(Shape):
    run: str
    started: str
    torch: str | None
    torch_git_version: str | None
    method: Open
    excluded: str | None
    suite: str
    device: str
    dtype: str
    threads: int
    scenario: str
    backend: str
    dynamic: bool
    settings: str
    configuration: str
    cases: int
    attempted: int
    passed: int
    measured: int
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    speedup_clipped: float | None
    compilation_s: float | None
    compression_ratio: float | None
    compression_ratio_arithmetic: float | None
    statuses: Open


class Interval(Shape):
    value: float | None
    ci_low: float | None
    ci_high: float | None


class Means(Shape):
    metric: str
    cases: int
    old: Interval
    new: Interval
    ratio: Interval


class Delta(Shape):
    old: float
    new: float
    ratio: float
    p: float | None
    significant: bool


class ComparedCase(Shape):
    case: Case
    old_status: str
    new_status: str
    regressed: bool
    metrics: dict[str, Delta]


class Side(Shape):
    title: str
    runs: list[str]


class Page(Shape):
    """A part of a list: `total` says how long the whole is."""

    total: int
    offset: int
    limit: int


class Runs(Page):
    runs: list[Run]


class RunResults(Page):
    run: Run
    results: list[Result]


class Cases(Page):
    testbed: int
    cases: list[NumberedCase]


class Series(Page):
    case: Case
    metric: str
    testbed: int
    points: list[Point]


class Alerts(Page):
    alerts: list[Alert]


class Trend(Page):
    suite: str
    testbed: int
    nights: list[Night]


class Comparison(Page):
    old: Side
    new: Side
    means: list[Means]
    cases: list[ComparedCase]
    only_old: list[Case]
    only_new: list[Case]
    nothing_to_compare: str | None
    methods: list[str]
