"""Techniques (back end and dtype), and one model's results grouped by them. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfdash.history.failures import failure
from perfdash.history.pass_rates_and_means import gave_up, is_counted, is_disturbed, nothing_captured
from perfdash.history.results import Row
from perfdash.records import Status
from perfdash.report.step_sizes import has_own_batch_sizes, step_in_words

# Statuses with numbers of the back end, even if its outputs are wrong.
_WITH_NUMBERS = frozenset(
    {
        Status.PASS,
        Status.PASS_DUE_TO_SKIP,
        Status.FAIL_ACCURACY,
        Status.EAGER_TWO_RUNS_DIFFER,
        Status.NO_FINITE_OUTPUT,
    }
)

# The sign behind a number of a result that is not a plain pass, and its meaning.
MARKS = {
    "✗": "the outputs are wrong (`fail_accuracy`)",
    "≠": "eager differs from itself, so the outputs were not judged (`eager_two_runs_differ`)",
    "?": "the outputs were not checked (`pass_due_to_skip`)",
    "∞": "neither side returns a finite number, so nothing was compared (`no_finite_output`)",
    "∅": "nothing was captured: what ran is eager",
    "↺": "dynamo reached its limit of recompiles: part of what ran is eager",
    "≈": "other programs disturbed it: its latencies and its speedup do not count",
    "∄": "eager ran out of memory: measured without it, and not checked if it had none before (`eager_oom`)",
}


@dataclass(frozen=True)
class Technique:
    """One technique: back end, dtype, and the variant of the model's configuration."""

    backend: str
    dtype: str
    amp_dtype: str | None = None
    variant: str | None = None  # of the model's configuration, where it is not eager's

    @classmethod
    def of(cls, row: Row) -> Technique:
        conditions = row.details.get("conditions")
        variant = conditions.get("variant") if isinstance(conditions, Mapping) else None
        case = row.case
        return cls(case.backend, case.dtype, case.amp_dtype, str(variant) if variant else None)

    @property
    def label(self) -> str:
        """`eager amp (bfloat16)`, `int8-static int8`: a back end that quantises starts from float32."""
        if "int8" in re.split(r"[^a-z0-9]+", self.backend):
            text = f"{self.backend} int8" + ("" if self.dtype == "float32" else f" (from {self.dtype})")
        else:
            text = f"{self.backend} {self.dtype}" + (f" ({self.amp_dtype})" if self.amp_dtype else "")
        return f"{text}, {self.variant}" if self.variant else text


@dataclass(frozen=True)
class Group:
    """The results of one model in one setting, all techniques and batch sizes."""

    suite: str
    model: str
    device: str
    threads: int
    scenario: str
    dynamic: bool
    configuration: str
    rows: tuple[Row, ...] = ()

    @property
    def sizes(self) -> list[int]:
        return sorted({row.case.batch_size for row in self.rows})

    @property
    def baseline(self) -> Technique:
        """Eager in the compared dtype: float32 where any technique has it as baseline."""
        baselines = [baseline_of(row) for row in self.rows]
        return next((baseline for baseline in baselines if baseline.dtype == "float32"), baselines[0])

    @property
    def step(self) -> str:
        """The sizes of a step of scenario sizes: `batch 1, 4, 16`; empty for any other."""
        return next((words for row in self.rows if (words := step_in_words(row))), "")

    @property
    def is_over_batches(self) -> bool:
        """Whether a step runs several batch sizes, so that the case's batch size is none of its numbers'."""
        return any(map(has_own_batch_sizes, self.rows))

    def size_in_words(self, size: int) -> str:
        """A batch size as a number, `16`; of a step of several `batch 1, 4, 16`."""
        return self.step if self.is_over_batches else str(size)

    def sizes_in_words(self, sizes: Sequence[int]) -> str:
        """`batch size 1`, `batch sizes 1, 16 and 32`, `steps of batch 1, 4, 16`."""
        if self.is_over_batches:
            return f"steps of {self.step}"
        words = [str(size) for size in sizes]
        if len(words) == 1:
            return f"batch size {words[0]}"
        return f"batch sizes {', '.join(words[:-1])} and {words[-1]}"

    def slots(self) -> dict[tuple[Technique, int], Row]:
        """The result of each technique and batch size."""
        return {(Technique.of(row), row.case.batch_size): row for row in self.rows}


def groups(rows: Iterable[Row]) -> list[Group]:
    """One group for each model and setting, in the order of their first results."""
    rows_of: dict[Group, list[Row]] = {}
    for row in rows:
        case = row.case
        group = Group(
            case.suite, case.model, case.device, case.threads, case.scenario, case.dynamic, case.configuration
        )
        rows_of.setdefault(group, []).append(row)
    return [replace(group, rows=tuple(members)) for group, members in rows_of.items()]


def ordered(rows: Iterable[Row]) -> list[Technique]:
    """Order techniques: eager float32, eager's other dtypes, then the run's order."""
    techniques = list(dict.fromkeys(Technique.of(row) for row in rows))
    backends = list(dict.fromkeys(technique.backend for technique in techniques))
    return sorted(
        techniques,
        key=lambda technique: (
            technique.backend != "eager",
            backends.index(technique.backend),
            technique.dtype != "float32",
            techniques.index(technique),
        ),
    )


def baseline_of(row: Row) -> Technique:
    """A result's baseline: eager in the suite's baseline dtype or its own."""
    conditions = row.details.get("conditions") or {}
    dtype = conditions.get("baseline_dtype") if isinstance(conditions, Mapping) else None
    if dtype and dtype != row.case.dtype:
        return Technique("eager", str(dtype))
    return Technique("eager", row.case.dtype, row.case.amp_dtype)


@dataclass(frozen=True)
class Speed:
    """Eager latency / latency of a technique, with its 95 % interval if known.

    one_process: the interval does not include the variation between processes.
    """

    value: float
    low: float | None = None
    high: float | None = None
    one_process: bool = False


def speed_of(row: Row) -> Speed | None:
    """The speedup of a result over its own baseline; None where it was not measured.

    A result of one process gets the interval of both latencies combined, since the history keeps no other:
    it is wider than the interval of the pairs.
    """
    value = number(row, "speedup")
    if value is None:
        return None
    low, high = number(row, "speedup_low"), number(row, "speedup_high")
    if low is not None and high is not None:
        return Speed(value, low, high)
    ends = [number(row, f"{side}_ms_{end}") for side in ("eager", "backend") for end in ("low", "high")]
    eager_low, eager_high, low, high = ends
    if eager_low is None or eager_high is None or low is None or high is None:
        return Speed(value, one_process=row.basis == "within")
    return Speed(value, min(eager_low / high, value), max(eager_high / low, value), one_process=True)


def number(row: Row, name: str) -> float | None:
    """A metric above zero; None where it was not measured or is not finite."""
    value = row.values.get(name)
    return value if value is not None and 0 < value < math.inf else None


def has_numbers(row: Row) -> bool:
    """Whether the technique ran to its end, even if its outputs are wrong or unchecked."""
    # While batches grow until memory is exhausted, the back end is measured alone once eager does not fit.
    return row.status in _WITH_NUMBERS or (row.status == Status.EAGER_OOM and "backend_ms" in row.values)


def mark(row: Row) -> str:
    """The sign behind the numbers of a result that is not a plain pass."""
    if row.status == Status.PASS:
        return "∅" if nothing_captured(row) else "↺" if gave_up(row) else "≈" if is_disturbed(row) else ""
    signs = {
        Status.FAIL_ACCURACY: "✗", Status.EAGER_TWO_RUNS_DIFFER: "≠", Status.PASS_DUE_TO_SKIP: "?",
        Status.EAGER_OOM: "∄", Status.NO_FINITE_OUTPUT: "∞",
    }  # fmt: skip
    return next((sign for status, sign in signs.items() if row.status == status), "")


def is_sound(row: Row) -> bool:
    """Whether it passed, with correct outputs, and ran the back end that it names."""
    return is_counted(row)


def quality_of(row: Row) -> Mapping[str, Any]:
    quality = row.details.get("quality")
    return quality if isinstance(quality, Mapping) else {}


def distance_of(row: Row) -> float | None:
    """RMS of the difference to eager's outputs, divided by the RMS of eager's outputs."""
    accuracy = row.details.get("accuracy")
    distance = accuracy.get("distance") if isinstance(accuracy, Mapping) else None
    return real(distance.get("relative_rmse")) if isinstance(distance, Mapping) else None


def real(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def reason_of(row: Row) -> str:
    """The reason why a result is no plain pass, in one line; or empty."""
    accuracy = row.details.get("accuracy")
    judged = accuracy.get("detail") if isinstance(accuracy, Mapping) else None
    if row.status == Status.PASS or row.status not in _WITH_NUMBERS:
        judged = None  # what is wrong is not its accuracy
    reason = str(failure(row).get("message") or row.details.get("skip_reason") or judged or "").strip()
    first = reason.splitlines()[0] if reason else ""
    phase = row.details.get("failed_phase")
    return f"{first} (in {phase})" if first and phase else first
