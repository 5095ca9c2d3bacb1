"""Tables of training steps and generations, a line for each side of a result. Pure.

The techniques report writes them as Markdown, the comment as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfdash.history.results import Row
from perfdash.records import DEFAULT_CONFIGURATION, Case, Status, variation
from perfdash.report.dashboard_tables import cpu_time_notes, status
from perfdash.report.markdown import plain
from perfdash.report.number_format import digits, mark_cpu_time
from perfdash.report.techniques.technique_results import (
    MARKS,
    Technique,
    baseline_of,
    has_numbers,
    mark,
    number,
    real,
)

_SIDES = ("eager", "backend")
_BESIDE = "oom beside"
_TRAINED = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class StepTable:
    """A table of plain cells.

    words: how many columns from the left hold words; the others hold numbers. notes: what its signs mean.
    """

    title: str
    head: list[str]
    lines: list[list[str]]
    words: int
    notes: list[str]


@dataclass(frozen=True)
class _Side:
    """One side of a result, eager's or the back end's.

    way: its technique, with its configuration and threads where those differ. `word` is shown instead of
    numbers for a side without any.
    """

    row: Row
    name: str
    way: str
    word: str

    @property
    def latency(self) -> float | None:
        return None if self.word else number(self.row, f"{self.name}_ms")

    @property
    def parts(self) -> Mapping[str, Mapping[str, Any]]:
        return {} if self.word else parts_of(self.row, self.name)

    @property
    def spread(self) -> Mapping[str, Any]:
        spreads = self.row.details.get("spread_ms")
        spread = spreads.get(self.name) if isinstance(spreads, Mapping) else None
        return spread if isinstance(spread, Mapping) and not self.word else {}

    def timed(self, text: str) -> str:
        """A latency or rate, marked if it is CPU time; else the side's word."""
        return mark_cpu_time(text, self.row) or self.word

    def peak(self) -> str:
        bytes_ = number(self.row, f"{self.name}_peak_bytes")
        return digits(bytes_ / 1e6) if bytes_ and not self.word else self.word or "-"


def training(rows: Sequence[Row]) -> StepTable | None:
    """The parts of training steps; None where no step has parts.

    Milliseconds are mean+-standard deviation of the samples, each one call or the mean of several short
    calls; samples per second follow from the median.
    """
    rows = [row for row in rows if row.case.scenario == "training"]
    names = [name for name in _TRAINED if any(name in parts_of(row, side) for row in rows for side in _SIDES)]
    if not names:
        return None
    sides, lines = _sides(rows), []
    for side in sides:
        whole, size = side.latency, side.row.case.batch_size
        parameters = real(side.row.details.get("parameters"))
        lines.append(
            [
                *_who(side),
                f"{parameters / 1e6:.2f}" if parameters else "-",
                *(_deviation(side.parts.get(name, {})) or side.word or "-" for name in names),
                side.timed(_deviation(side.spread) or (digits(whole) if whole else "")),
                side.timed(digits(size * 1e3 / whole) if whole and size else ""),
                side.peak(),
            ]
        )
    head = ["model", "bs", "way", "params M", *(f"{name} ms" for name in names)]
    return _table("Parts of a training step", [*head, "step ms", "samples/s", "peak MB"], lines, sides)


def generation(rows: Sequence[Row]) -> StepTable | None:
    """The table of generations: first token, time per token, tokens per second."""
    rows = [row for row in rows if row.case.scenario == "generation"]
    if not any(new_tokens(row) for row in rows):
        return None
    sides, lines = _sides(rows), []
    for side in sides:
        tokens, whole = new_tokens(side.row), side.latency
        speed = tokens_per_second(side.row, side.name) if whole else None
        first = real(side.parts.get("prefill", {}).get("median"))
        per_output_token = per_token(side.parts, tokens)
        init = real(side.row.details.get("load_s"))
        lines.append(
            [
                *_who(side),
                f"{init:.2f}" if init is not None else "-",
                digits(first) if first else side.word,
                digits(per_output_token) if per_output_token else side.word,
                side.timed(digits(whole) if whole else ""),
                side.timed(digits(speed) if speed else ""),
                side.peak(),
            ]
        )
    head = ["model", "bs", "way", "init s", "first token ms", "ms per output token", "latency ms"]
    return _table("Generation", [*head, "tokens/s", "peak MB"], lines, sides)


def _table(title: str, head: list[str], lines: list[list[str]], sides: Sequence[_Side]) -> StepTable:
    used = {mark(side.row) for side in sides if side.name == "backend" and not side.word}
    notes = [f"{sign} {meaning}" for sign, meaning in MARKS.items() if sign in used]
    if any(side.word == _BESIDE for side in sides):
        notes.append(f"{_BESIDE}: eager fits into memory alone, but not both sides in one process")
    rows = [side.row for side in sides]
    return StepTable(title, head, lines, 3, [*notes, *cpu_time_notes(rows), *_prompts(rows)])


def _prompts(rows: Sequence[Row]) -> list[str]:
    """The prompts of the generations, with their models where they differ."""
    models: dict[str, dict[str, None]] = {}
    for row in rows:
        if prompt := _prompt(row):
            models.setdefault(prompt, {})[plain(row.case.model)] = None
    if len(models) == 1:
        return list(models)
    return [f"{', '.join(names)}: {prompt}" for prompt, names in models.items()]


def _prompt(row: Row) -> str:
    """The lengths of prompt and output of a generation; empty where they are not known."""
    conditions = row.details.get("conditions")
    tokens = new_tokens(row)
    if not tokens or not isinstance(conditions, Mapping):
        return ""
    read, cache = real(conditions.get("prompt_tokens")), conditions.get("cache")
    prompt = f"prompts of {read:.0f} tokens, " if read else ""
    shown_rows = f", {plain(str(cache))} cache" if cache else ""
    return f"{prompt}{tokens} new ones{shown_rows}"


def new_tokens(row: Row) -> int | None:
    """How many tokens were generated for each prompt; None for other scenarios."""
    conditions = row.details.get("conditions")
    tokens = real(conditions.get("new_tokens")) if isinstance(conditions, Mapping) else None
    return int(tokens) if tokens else None


def tokens_per_second(row: Row, side: str = "backend") -> float | None:
    """New tokens per second of the whole batch, prefill and decoding together."""
    tokens, whole = new_tokens(row), number(row, f"{side}_ms")
    every = (tokens or 0) * row.case.batch_size
    return every * 1e3 / whole if whole and every > 0 else None


def per_token(parts: Mapping[str, Mapping[str, Any]], tokens: int | None) -> float | None:
    """Milliseconds from one output token of a prompt to the next."""
    middle = real(parts.get("decode", {}).get("median"))
    return middle / (tokens - 1) if middle and tokens and tokens > 1 else None


def parts_of(row: Row, side: str = "backend") -> Mapping[str, Mapping[str, Any]]:
    """The statistics of each part of a side's step (records.Result.parts_ms)."""
    parts = _parts_ms(row).get(side, {})
    return {name: part for name, part in parts.items() if isinstance(part, Mapping)}


def _parts_ms(row: Row) -> dict[str, Mapping[str, Any]]:
    parts = row.details.get("parts_ms")
    sides = parts.items() if isinstance(parts, Mapping) else ()
    return {side: of_side for side, of_side in sides if isinstance(of_side, Mapping)}


def _sides(rows: Sequence[Row]) -> list[_Side]:
    """The sides in order: for each model, batch size and setting eager, then its techniques."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        case = row.case
        setting = case.threads, case.dynamic, case.configuration, case.settings
        key = case.suite, case.model, case.batch_size, *setting, baseline_of(row)
        groups.setdefault(key, []).append(row)
    words = _setting_words([row.case for row in rows])
    sides: list[_Side] = []
    for members in groups.values():
        baseline, setting_words = baseline_of(members[0]), words(members[0].case)
        eager = min(
            (row for row in members if _has_eager(row, baseline)),
            key=lambda row: bool(_word(row, "eager")),
            default=None,
        )
        if eager is not None:
            way = plain(baseline.label, 80) + setting_words
            sides.append(_Side(eager, "eager", way, _word(eager, "eager")))
        sides += [
            _Side(row, "backend", plain(Technique.of(row).label, 80) + setting_words, _word(row, "backend"))
            for row in members
            if Technique.of(row) != baseline or eager is None
        ]
    return sides


def _setting_words(cases: Sequence[Case]) -> Callable[[Case], str]:
    """Words for a case's configuration and threads, where those of the cases differ: ` (freezing)`."""
    several = len({(case.configuration, case.settings, case.dynamic) for case in cases}) > 1
    several_threads = len({case.threads for case in cases}) > 1

    def words(case: Case) -> str:
        name = plain(variation(case.configuration, case.dynamic) or DEFAULT_CONFIGURATION, 40)
        parts = [*([name] if several else []), *([f"threads {case.threads}"] if several_threads else [])]
        return f" ({', '.join(parts)})" if parts else ""

    return words


def _has_eager(row: Row, baseline: Technique) -> bool:
    """Whether a result has eager's numbers, or shows that eager was out of memory."""
    return bool(parts_of(row, "eager")) or row.status == Status.EAGER_OOM or Technique.of(row) == baseline


def _word(row: Row, side: str) -> str:
    if has_numbers(row) and f"{side}_ms" in row.values:
        return ""
    if row.status == Status.EAGER_OOM and side == "eager" and number(row, "eager_peak_bytes"):
        return _BESIDE  # eager alone, in a process of its own, was measured
    return "oom" if row.status in (Status.OOM, Status.EAGER_OOM) else status(row)


def _who(side: _Side) -> list[str]:
    sign = mark(side.row) if side.name == "backend" and not side.word else ""
    case = side.row.case
    return [plain(case.model), str(case.batch_size), f"{side.way} {sign}".strip()]


def _deviation(part: Mapping[str, Any]) -> str | None:
    mean, deviation = real(part.get("mean")), real(part.get("stdev"))
    if mean is None:
        return None
    return digits(mean) if deviation is None else f"{digits(mean)}+-{digits(deviation)}"
