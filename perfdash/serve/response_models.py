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


class CaseFields(Shape):
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


class NumberedCase(CaseFields):
    id: int


class RunFields(Shape):
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


class ResultFields(Shape):
    case: CaseFields
    status: str
    verdict: str | None
    basis: str | None
    remark: str | None
    clock: str | None
    started: str | None
    values: Values  # type: ignore[valid-type]
    others: dict[str, float]


class PointFields(Shape):
    run: str
    started: str
    status: str
    value: float | None
    torch: str | None
    torch_git_version: str | None
    method: Open
    excluded: str | None
    remark: str | None


class AlertEnd(Shape):
    run: str
    started: str
    torch: str | None
    torch_git_version: str | None


class AlertEventFields(Shape):
    at: str
    state: str
    run: str | None
    note: str | None
    started: str | None


class AlertFields(Shape):
    id: int
    testbed_id: int
    state: str
    kind: str
    direction: str
    case: CaseFields | None
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
    events: list[AlertEventFields]


class NightFields(Shape):
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


class MeansFields(Shape):
    metric: str
    cases: int
    old: Interval
    new: Interval
    ratio: Interval


class DeltaFields(Shape):
    old: float
    new: float
    ratio: float
    p: float | None
    significant: bool


class ComparedCaseFields(Shape):
    case: CaseFields
    old_status: str
    new_status: str
    regressed: bool
    metrics: dict[str, DeltaFields]


class SideFields(Shape):
    title: str
    runs: list[str]


class AnswerPage(Shape):
    """A part of a list: `total` says how long the whole is."""

    total: int
    offset: int
    limit: int


class Runs(AnswerPage):
    runs: list[RunFields]


class RunResults(AnswerPage):
    run: RunFields
    results: list[ResultFields]


class Cases(AnswerPage):
    testbed: int
    cases: list[NumberedCase]


class Series(AnswerPage):
    case: CaseFields
    metric: str
    testbed: int
    points: list[PointFields]


class Alerts(AnswerPage):
    alerts: list[AlertFields]


class Trend(AnswerPage):
    suite: str
    testbed: int
    nights: list[NightFields]


class ComparisonAnswer(AnswerPage):
    old: SideFields
    new: SideFields
    means: list[MeansFields]
    cases: list[ComparedCaseFields]
    only_old: list[CaseFields]
    vanished: list[CaseFields]
    only_new: list[CaseFields]
    nothing_to_compare: str | None
    untested: str | None
    eager_moved: float | None
    methods: list[str]
    machines: str | None
