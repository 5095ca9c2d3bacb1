"""The result of a bisection: culprits, tested and skipped revisions, and the time it took.

It is computed from the journal alone. `git_log` writes it as lines that `git bisect replay` reads.
"""

from __future__ import annotations

import dataclasses
import html
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfdash.bisection.culprit_confirmation import compared_places, confirmation
from perfdash.bisection.events import MeasuredBuild, RangeOutcome
from perfdash.bisection.finer_stages import how_opened, remarks, unexplained_rest
from perfdash.bisection.metrics import comparable, plain
from perfdash.bisection.replay import PIN, REVERT, Bisection, kind_of
from perfdash.bisection.sources import Revision
from perfdash.bisection.stage import Confirmation, Progress, Stage
from perfdash.explain.case_sides import side_of_record
from perfdash.explain.explanation_sentence import sentence
from perfdash.explain.structure_comparison import compare
from perfdash.files import finite
from perfdash.metrics import Metric
from perfdash.stats.step_likelihood import robust_level, weigh

FOUND, NOT_CONFIRMED, NOT_FINISHED = "found", "found, not confirmed", "not finished"
_KNOWN_NOT_TO_BUILD = "known not to build, by an earlier bisection: its log is in failed/ of the build cache"
_SIDE = 0.95  # probability from which the table calls a build bad, or good


@dataclass(frozen=True)
class MetricChange:
    """A change from one level to another; None for answers.

    ratio: 1.08 is 8 % more (of a count: the difference). low, high: its 95 % interval.
    """

    before: float | None = None
    after: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Culprit:
    """The revision that brought the change, or several that could not be separated.

    probability: that it is one of `revisions`. confirmed: confirmed, not confirmed, cannot tell, more, or
    empty if not asked for. confirmed_wanted: pairs in all that would tell, if it cannot tell. eager: how
    eager changed, if compiled was bisected. reverted: the verdict on the bad end against it with the culprit
    reverted. more: further remarks. why: what differs in the generated code, in a sentence. said: the
    statuses of its build or, if that was not measured, of the one that represents it.
    """

    recipe: str
    stage: int
    revisions: tuple[Revision, ...]
    parent: Revision
    probability: float
    change: MetricChange
    confirmed: str
    confirmed_change: MetricChange
    confirmed_pairs: int
    confirmed_why: str = ""
    confirmed_wanted: int | None = None
    eager: MetricChange | None = None
    reverted: str = ""
    reverted_change: MetricChange = MetricChange()
    more: tuple[str, ...] = ()
    why: str = ""
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class RefutedRevision:
    """A culprit that pairs of fresh builds refuted; the search went on.

    change: as the search saw it; confirmed_change: of the pairs.
    """

    label: str
    id: str
    title: str
    parent: str
    change: MetricChange
    confirmed_change: MetricChange
    pairs: int


@dataclass(frozen=True)
class TestedRevision:
    """A measured revision.

    level, values: in the metric's unit. said: its statuses. bad: probability that it is bad. between: it has
    one of several changes, but not all.
    """

    place: int
    label: str
    id: str
    title: str
    count: int
    level: float | None
    values: tuple[float, ...]
    said: dict[str, int]
    bad: float | None
    mark: str = ""
    between: bool = False

    @property
    def shown_side(self) -> str:
        return self.mark or ("between" if self.between else self.side)

    @property
    def side(self) -> str:
        if self.bad is None:
            return ""
        return "bad" if self.bad >= _SIDE else "good" if self.bad <= 1 - _SIDE else "cannot tell"


@dataclass(frozen=True)
class SkippedRevision:
    """A revision that was not measured, and why."""

    label: str
    id: str
    why: str
    log: str = ""


@dataclass(frozen=True)
class StageResult:
    """A searched range. how: the way it was opened. standing: the progress while it is searched."""

    number: int
    recipe: str
    how: str
    good: Revision
    bad: Revision
    revisions: int
    verdict: str
    change: MetricChange
    none: float
    sd: float | None
    tested: tuple[TestedRevision, ...]
    skipped: tuple[SkippedRevision, ...]
    standing: Progress
    last: int


@dataclass(frozen=True)
class BisectionResult:
    """The result so far; its fields are the keys of report.json.

    word: found, "found, not confirmed", not reproduced, undecided, cannot tell, end not measured or not
    finished. went_back: the nights of the alert went from the bad end back to the good one.
    """

    name: str
    word: str
    metric: str
    title: str
    kind: str
    column: str | None
    more_is_worse: bool | None
    case: dict[str, Any] | None
    command: tuple[str, ...] | None
    host: str
    host_class: str
    began: str
    ended: str
    state: str
    line: tuple[str, ...]
    culprits: tuple[Culprit, ...]
    ranges: tuple[StageResult, ...]
    counts: dict[str, Any]
    notes: tuple[str, ...] = ()
    alert: int | None = None
    unexplained: tuple[str, ...] = field(default=())
    refuted: tuple[RefutedRevision, ...] = ()
    went_back: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values; NaN is null."""
        return {"schema": 1, **finite(dataclasses.asdict(self))}

    def __repr__(self) -> str:
        """The culprits, or why there is none, in a few lines of plain text."""
        case = self.case
        subject = f"{case['suite']}/{case['model']}" if case else shlex.join(self.command or ())
        title = f"perfdash bisection {self.name}: {self.word}"
        lines = [title, f"  {self.title} of {subject}, on {self.host}"]
        lines += [f"  {_shown(culprit, self.kind)}" for culprit in self.culprits]
        lines += [
            f"  searched by {stage.recipe}: {stage.revisions} revisions from {stage.good.label} to "
            f"{stage.bad.label}, {len(stage.tested)} measured, {len(stage.skipped)} skipped"
            for stage in self.ranges
        ]
        return "\n".join(_one_line(line) if line[:1] != " " else f"  {_one_line(line)}" for line in lines)

    def _repr_html_(self) -> str:
        """The same for a notebook, escaped."""
        return f"<pre>{html.escape(repr(self))}</pre>"


def result_of(bisection: Bisection) -> BisectionResult:
    """The result of a bisection so far."""
    begun, metric = bisection.begun, bisection.metric
    culprits = tuple(_culprit(bisection, stage, outcome) for stage, outcome in bisection.culprits())
    last = [stage.measurements[-1].at for stage in bisection.stages if stage.measurements]
    return BisectionResult(
        name=str(begun.get("name", "")),
        word=_word(bisection, culprits),
        metric=metric.name,
        title=metric.bisect_title,
        kind=metric.comparison,
        column=metric.column,
        more_is_worse=metric.more_is_worse,
        case=begun.get("case"),
        command=tuple(begun["command"]) if begun.get("command") else None,
        host=str(begun.get("host", "")),
        host_class=str(begun.get("host_class", "")),
        began=str(begun.get("at", "")),
        ended=str(bisection.ended["at"]) if bisection.ended else max(last, default=""),
        state=str(bisection.ended["state"]) if bisection.ended else "running",
        line=bisection.line,
        culprits=culprits,
        ranges=tuple(_stage_result(bisection, stage) for stage in bisection.stages),
        counts=bisection.counts(),
        notes=tuple(begun.get("notes", ())),
        alert=begun.get("alert"),
        unexplained=tuple(_unexplained(bisection)),
        refuted=tuple(_refuted(bisection)),
        went_back=bool(begun.get("asked", {}).get("went_back")),
    )


def _shown(culprit: Culprit, kind: str) -> str:
    """A culprit in one line: the revision, its change, and how sure that is."""
    revision, change = culprit.revisions[-1], culprit.change
    count = len(culprit.revisions)
    which = f"{revision.label} {revision.title}" if count == 1 else f"one of {count} up to {revision.label}"
    parts = [which.strip()]
    if kind == "ratio" and change.ratio is not None and change.low is not None and change.high is not None:
        parts.append(f"{change.ratio - 1:+.2%} ({change.low - 1:+.2%} to {change.high - 1:+.2%})")
    elif change.before is not None and change.after is not None:
        parts.append(f"{change.before:.4g} before, {change.after:.4g} since")
    parts.append(f"probability {culprit.probability:.1%}")
    parts += ["not yet confirmed" if culprit.confirmed == "more" else culprit.confirmed]
    return ", ".join(filter(None, parts))


def _word(bisection: Bisection, culprits: Sequence[Culprit]) -> str:
    if not bisection.stages or bisection.stages[0].done is None:
        return NOT_FINISHED
    is_done = bisection.ended is not None and bisection.ended["state"] == "done"  # also by an older search
    if not is_done and bisection.next_step() is not None:
        return NOT_FINISHED
    if culprits:
        return NOT_CONFIRMED if any(culprit.confirmed == "not confirmed" for culprit in culprits) else FOUND
    return bisection.stages[0].done.outcomes[0].verdict


def _unexplained(bisection: Bisection) -> list[str]:
    """What may hold a further change: a range that was not decided, or the rest of a culprit's change."""
    texts = []
    for stage in bisection.stages:
        if bisection.is_dismissed(stage):
            continue
        for outcome in stage.done.outcomes[1:] if stage.done else ():
            if outcome.verdict in ("cannot tell", "undecided"):
                low, high = stage.revisions[outcome.low], stage.revisions[outcome.high]
                texts.append(f"between {low.label} and {high.label}: {outcome.verdict}")
        texts += filter(None, (unexplained_rest(bisection, stage, outcome) for outcome in stage.culprits))
    return texts


def _refuted(bisection: Bisection) -> Iterator[RefutedRevision]:
    for stage in bisection.stages:
        for earlier in stage.refuted:
            good, bad = compared_places(earlier.outcome)
            revision = stage.revisions[bad]
            step = MetricChange()
            if math.isfinite(earlier.outcome.step):
                steps = (earlier.outcome.step, earlier.outcome.step_low, earlier.outcome.step_high)
                step = MetricChange(None, None, *(_scaled(stage.metric, value) for value in steps))
            yield RefutedRevision(
                revision.label,
                revision.id,
                revision.title,
                stage.revisions[good].label,
                step,
                _confirmed(stage.metric, earlier.confirmation),
                earlier.confirmation.pairs,
            )


def _culprit(bisection: Bisection, stage: Stage, outcome: RangeOutcome) -> Culprit:
    judged = confirmation(stage, outcome) if bisection.confirms else None
    reverted = bisection.child(stage, outcome.first, REVERT)
    revert_outcome = reverted.done.outcomes[0] if reverted and reverted.done else None
    return Culprit(
        recipe=stage.recipe,
        stage=stage.number,
        revisions=tuple(stage.revisions[outcome.first : outcome.last + 1]),
        parent=stage.revisions[outcome.first - 1],
        probability=outcome.probability,
        change=_change(stage, outcome),
        confirmed=judged.word if judged else "",
        confirmed_change=_confirmed(stage.metric, judged),
        confirmed_pairs=judged.pairs if judged else 0,
        confirmed_why=judged.why if judged else "",
        confirmed_wanted=judged.wanted if judged else None,
        eager=_eager(stage, outcome),
        reverted=revert_outcome.verdict if revert_outcome else "",
        reverted_change=_change(reverted, revert_outcome) if reverted and revert_outcome else MetricChange(),
        more=tuple(remarks(bisection, stage, outcome)),
        why=_why(stage, outcome),
        said=_said(stage, outcome),
    )


def _said(stage: Stage, outcome: RangeOutcome) -> tuple[str, ...]:
    """The statuses of a culprit's build, of its twin, or of the next measured build of its range."""
    twin = stage.twin_of(outcome.last)
    for place in (outcome.last if twin is None else twin, *range(outcome.last, outcome.high + 1)):
        readings = stage.readings(place)
        if readings and stage.search.state.measurable(place):
            return tuple(sorted({reading.status for reading in readings}))
    return ()


def _why(stage: Stage, outcome: RangeOutcome) -> str:
    """What differs between the measured builds around a culprit; empty where their structure is unknown."""
    before = max((place for place in stage.records if place < outcome.first), default=None)
    after = min((place for place in stage.records if place >= outcome.last), default=None)
    if before is None or after is None:
        return ""
    try:
        sides = [
            side_of_record(stage.records[place], stage.revisions[place].label) for place in (before, after)
        ]
    except ValueError:  # of a newer perfdash
        return ""
    # Builds are measured in turn on one host.
    rest = "what no record shows, such as a file that the package reads"
    return sentence(compare(*sides), stage.metric.column, rest)


def _confirmed(metric: Metric, judged: Confirmation | None) -> MetricChange:
    if judged is None or not math.isfinite(judged.step):
        return MetricChange()
    return MetricChange(
        None, None, *(_scaled(metric, step) for step in (judged.step, judged.low, judged.high))
    )


def _change(stage: Stage, outcome: RangeOutcome) -> MetricChange:
    metric = stage.metric
    if metric.is_answer or not math.isfinite(outcome.step):
        return MetricChange()
    first, last = (outcome.first, outcome.last) if outcome.first else (outcome.high, outcome.high)
    sides = (range(outcome.low, first), range(last, outcome.high + 1))
    before, after = (_level(metric, [v for p in side for v in _values(stage, p)]) for side in sides)
    steps = (outcome.step, outcome.step_low, outcome.step_high)
    return MetricChange(before, after, *(_scaled(metric, step) for step in steps))


def _scaled(metric: Metric, step: float) -> float | None:
    if not math.isfinite(step):
        return None
    return math.exp(max(-700.0, min(step, 700.0))) if metric.comparison == "ratio" else float(step)


def _values(stage: Stage, place: int) -> list[float]:
    """The values of a place, in the metric's unit."""
    return [reading.value for reading in stage.readings(place) if reading.value is not None]


def _level(metric: Metric, values: Sequence[float]) -> float | None:
    compared = [comparable(metric, v) for v in values if v > 0 or metric.comparison != "ratio"]
    return plain(metric, robust_level(np.array(compared))) if compared else None


def _eager(stage: Stage, outcome: RangeOutcome) -> MetricChange | None:
    """The change of eager at the culprit, if compiled or the speedup was bisected."""
    if stage.metric.name not in ("backend", "speedup"):
        return None
    sides = [
        [
            math.log(value)
            for place in places
            for reading in stage.readings(place)
            if (value := reading.beside.get("eager_ms", 0.0)) > 0
        ]
        for places in (range(outcome.low, outcome.first), range(outcome.last, outcome.high + 1))
    ]
    if any(len(side) < 2 for side in sides):
        return None
    evidence = weigh(sides)
    before, after = (math.exp(robust_level(np.array(side))) for side in sides)
    return MetricChange(
        before, after, math.exp(evidence.step), math.exp(evidence.low), math.exp(evidence.high)
    )


def _stage_result(bisection: Bisection, stage: Stage) -> StageResult:
    outcome = stage.done.outcomes[0] if stage.done else None
    # Only with a change does a build have a side. With a culprit taken back, the first is the bad end.
    is_reverted = stage.origin is not None and stage.origin["way"] == REVERT
    judged = stage.done and outcome and outcome.verdict in ("found", "cannot tell") and not is_reverted
    builds = {build.place: build for build in stage.done.builds} if stage.done and judged else {}
    marks = stage.search.state.marks
    measured = sorted({measurement.place for measurement in stage.measurements})
    skipped = [
        SkippedRevision(
            stage.revisions[place].label, stage.revisions[place].id, why, stage.logs.get(place, "")
        )
        for place, why in sorted(stage.broken.items())
    ]
    skipped += [
        SkippedRevision(stage.revisions[place].label, stage.revisions[place].id, _KNOWN_NOT_TO_BUILD)
        for outcome in stage.culprits
        for place in range(outcome.first, outcome.last + 1)
        if stage.is_known_not_to_build(place)
    ]
    skipped += [
        SkippedRevision(stage.revisions[place].label, stage.revisions[place].id, "marked skip")
        for place, side in sorted(marks.items())
        if side == "skip"
    ]
    skipped += [
        SkippedRevision(
            stage.revisions[place].label,
            stage.revisions[place].id,
            f"not timed: same generated code and loaded files as {stage.revisions[twin].label}",
        )
        for place, twin in sorted(stage.search.state.same.items())
        if place not in measured
    ]
    culprits = sorted(stage.culprits, key=lambda outcome: outcome.first)
    between = range(culprits[0].last, culprits[-1].first) if culprits else range(0)
    return StageResult(
        number=stage.number,
        recipe=stage.recipe,
        how=how_opened(bisection, stage),
        good=stage.revisions[0],
        bad=stage.revisions[-1],
        revisions=len(stage.revisions),
        verdict=outcome.verdict if outcome else NOT_FINISHED,
        change=_change(stage, outcome) if outcome else MetricChange(),
        none=outcome.none if outcome else 1.0,
        sd=outcome.sd if outcome and math.isfinite(outcome.sd) else None,
        tested=tuple(
            _tested(stage, place, builds.get(place), place in between)
            for place in measured
            if place not in stage.broken
        ),
        skipped=tuple(skipped),
        standing=stage.progress(),
        last=stage.question.last,
    )


def _tested(stage: Stage, place: int, build: MeasuredBuild | None, between: bool) -> TestedRevision:
    revision, readings = stage.revisions[place], stage.readings(place)
    values = _values(stage, place)
    return TestedRevision(
        place,
        revision.label,
        revision.id,
        revision.title,
        count=len(readings),
        level=_level(stage.metric, values),
        values=tuple(values),
        said=dict(Counter(reading.status for reading in readings)),
        bad=build.bad if build else None,
        mark=stage.search.state.marks.get(place, ""),
        between=between,
    )


def git_log(bisection: Bisection, ranges: tuple[StageResult, ...]) -> str:
    """A log for `git bisect replay`, of the stages over the repository's commits."""
    commits = [
        stage
        for stage in bisection.stages
        if _is_of_commits(stage) and not _is_elsewhere(bisection, stage) and _is_of_log(bisection, stage)
    ]
    chosen = commits or bisection.stages[:1]
    lines = ["git bisect start"]
    for stage in chosen:
        lines += _log_lines(stage, ranges[stage.number])
    for stage, outcome in bisection.culprits():
        if stage in chosen:
            named = [stage.revisions[place] for place in range(outcome.first, outcome.last + 1)]
            word = "first bad commit" if len(named) == 1 else "possible first bad commit"
            lines += [f"# {word}: [{revision.id}] {_one_line(revision.title)}" for revision in named]
    return "\n".join(lines) + "\n"


def _log_lines(stage: Stage, result: StageResult) -> Iterator[str]:
    last = stage.question.last
    sides = {tested.place: _side(tested) for tested in result.tested}
    sides.update(dict.fromkeys(stage.broken, "skip"))
    sides.update(stage.search.state.marks)
    sides.update({0: "good", last: "bad"})
    # git takes the last bad revision in the log for the oldest, so the bad ones are listed newest first.
    rest = sorted(place for place in sides if place not in (0, last))
    bad = [place for place in rest if sides[place] == "bad"]
    for place in (last, 0, *(place for place in rest if sides[place] != "bad"), *reversed(bad)):
        revision, side = stage.revisions[place], sides[place]
        yield f"# {side or 'cannot tell'}: [{revision.id}] {_one_line(revision.title)}"
        if side:
            yield f"git bisect {side} {revision.id}"


def _side(tested: TestedRevision) -> str:
    side = tested.mark or tested.side
    return side if side in ("good", "bad", "skip") else ""


def _is_of_commits(stage: Stage) -> bool:
    name = stage.revisions[-1].id
    return len(name) >= 40 and set(name) <= set("0123456789abcdef")


def _is_elsewhere(bisection: Bisection, stage: Stage) -> bool:
    """Whether a stage's commits belong to another repository."""
    while stage.origin:
        if kind_of(str(stage.origin["way"])) in (PIN, REVERT):
            return True
        stage = bisection.stages[int(stage.origin["stage"])]
    return False


def _is_of_log(bisection: Bisection, stage: Stage) -> bool:
    """Whether git can replay a stage: of several that explain a culprit, that with the largest change.

    The last commits of one part of a branch are older than the good end of the next part.
    """
    while stage.origin:
        above = bisection.stages[int(stage.origin["stage"])]
        for outcome in above.culprits:
            finer = bisection.finer(above, outcome) if outcome.first == stage.origin["place"] else []
            largest = max(finer, default=stage, key=lambda child: abs(sum(c.step for c in child.culprits)))
            if stage.done and stage is not largest:
                return False
        if bisection.is_dismissed(stage):
            return False
        stage = above
    return True


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
