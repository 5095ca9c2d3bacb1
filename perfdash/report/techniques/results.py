"""Ways to run a model (back end x dtype), and the results of one model side by side. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from perfdash.history.pass_rates_and_means import gave_up, is_counted, nothing_captured
from perfdash.history.results import Row
from perfdash.records import Status
from perfdash.report.dashboard_tables import failure

# Endings that leave numbers of the back end, be they of wrong outputs.
_WITH_NUMBERS = frozenset(
    {
        Status.PASS,
        Status.PASS_DUE_TO_SKIP,
        Status.FAIL_ACCURACY,
        Status.EAGER_TWO_RUNS_DIFFER,
        Status.NO_FINITE_OUTPUT,
    }
)

# What a number is of that is not plainly right: the sign behind it, and its meaning.
MARKS = {
    "✗": "the outputs are wrong (`fail_accuracy`)",
    "≠": "eager differs from itself, so the outputs were not judged (`eager_two_runs_differ`)",
    "?": "the outputs were not checked (`pass_due_to_skip`)",
    "∞": "neither side returns a finite number, so nothing was compared (`no_finite_output`)",
    "∅": "nothing was captured: what ran is eager",
    "↺": "dynamo reached its limit of recompiles: part of what ran is eager",
    "∄": "eager ran out of memory: measured without it, and not checked if it had none before (`eager_oom`)",
}


@dataclass(frozen=True)
class Technique:
    """How a model is run."""

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
    """One model in one setting, all ways and batch sizes."""

    suite: str
    model: str
    device: str
    threads: int
    scenario: str
    dynamic: bool
    rows: tuple[Row, ...] = ()

    @property
    def sizes(self) -> list[int]:
        return sorted({row.case.batch_size for row in self.rows})

    @property
    def baseline(self) -> Technique:
        """Eager in the dtype that the ways are compared with: float32 where any of them is."""
        known = [baseline_of(row) for row in self.rows]
        return next((technique for technique in known if technique.dtype == "float32"), known[0])

    def slots(self) -> dict[tuple[Technique, int], Row]:
        """The result of each way and batch size."""
        return {(Technique.of(row), row.case.batch_size): row for row in self.rows}


def groups(rows: Iterable[Row]) -> list[Group]:
    """A group a model and setting, in the order of their first results."""
    found: dict[Group, list[Row]] = {}
    for row in rows:
        case = row.case
        group = Group(case.suite, case.model, case.device, case.threads, case.scenario, case.dynamic)
        found.setdefault(group, []).append(row)
    return [replace(group, rows=tuple(some)) for group, some in found.items()]


def ordered(rows: Iterable[Row]) -> list[Technique]:
    """Eager float32, eager's other dtypes, then the others as the run came to them."""
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
    """The eager side of a result: of the dtype that the suite compares with, else of its own."""
    conditions = row.details.get("conditions") or {}
    dtype = conditions.get("baseline_dtype") if isinstance(conditions, Mapping) else None
    if dtype and dtype != row.case.dtype:
        return Technique("eager", str(dtype))
    return Technique("eager", row.case.dtype, row.case.amp_dtype)


@dataclass(frozen=True)
class Speed:
    """Eager latency / latency of a way, with its 95 % interval where one is known.

    one_process: what differs from process to process is not in the interval.
    """

    value: float
    low: float | None = None
    high: float | None = None
    one_process: bool = False


def speed_of(row: Row) -> Speed | None:
    """The speedup of a result over its own baseline; None where there is none.

    Of a single process the interval is made of those of both latencies (the history keeps no other): it is
    wider than that of the pairs.
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
    """A metric above zero; None where it was not measured, or is no number."""
    value = row.values.get(name)
    return value if value is not None and 0 < value < math.inf else None


def has_numbers(row: Row) -> bool:
    """Whether its numbers are of a way that ran to its end, be its outputs wrong or unchecked."""
    # Where batches grow until memory ends, the back end is measured alone once eager has no room.
    return row.status in _WITH_NUMBERS or (row.status == Status.EAGER_OOM and "backend_ms" in row.values)


def mark(row: Row) -> str:
    """The sign behind the numbers of a result that is no plain pass."""
    if row.status == Status.PASS:
        return "∅" if nothing_captured(row) else "↺" if gave_up(row) else ""
    signs = {
        Status.FAIL_ACCURACY: "✗", Status.EAGER_TWO_RUNS_DIFFER: "≠", Status.PASS_DUE_TO_SKIP: "?",
        Status.EAGER_OOM: "∄", Status.NO_FINITE_OUTPUT: "∞",
    }  # fmt: skip
    return next((sign for status, sign in signs.items() if row.status == status), "")


def is_sound(row: Row) -> bool:
    """Whether it ran, its outputs were found right, and what ran is what its name says."""
    return is_counted(row)


def quality_of(row: Row) -> Mapping[str, Any]:
    found = row.details.get("quality")
    return found if isinstance(found, Mapping) else {}


def distance_of(row: Row) -> float | None:
    """RMS of the difference to eager's outputs over the RMS of these."""
    accuracy = row.details.get("accuracy")
    distance = accuracy.get("distance") if isinstance(accuracy, Mapping) else None
    return real(distance.get("relative_rmse")) if isinstance(distance, Mapping) else None


def real(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def status_of(row: Row) -> str:
    """The status, of a crash with the signal."""
    kind = failure(row).get("type")
    return f"{row.status} ({kind})" if row.status == Status.CRASH and kind else str(row.status)


def reason_of(row: Row) -> str:
    """Why a result is no plain pass, in one line; nothing where no reason is known."""
    accuracy = row.details.get("accuracy")
    judged = accuracy.get("detail") if isinstance(accuracy, Mapping) else None
    if row.status not in _WITH_NUMBERS:
        judged = None  # it failed later, or elsewhere
    told = str(failure(row).get("message") or row.details.get("skip_reason") or judged or "").strip()
    first = told.splitlines()[0] if told else ""
    phase = row.details.get("failed_phase")
    return f"{first} (in {phase})" if first and phase else first
