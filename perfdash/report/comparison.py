"""Two runs side by side, over the cases that both have: a table as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from prettytable import PrettyTable

from perfdash.records import PASSING, Case, Measurement, Result, RunInfo
from perfdash.stats.summary import geometric_mean


def comparison(old: Sequence[Result], new: Sequence[Result], old_info: RunInfo, new_info: RunInfo) -> str:
    """What changed from one run to another, the largest changes of speedup first.

    A speedup is marked `beyond` where each run's value lies outside the other's interval: an interval
    holds what another run of the same build would report, 95 times in 100.
    """
    before, after = ({result.case: result for result in results} for results in (old, new))
    both = [case for case in before if case in after]
    parts = [
        f"Old: {_title(old_info)}",
        f"New: {_title(new_info)}",
        f"{len(both)} cases in both",
        "",
        _means(both, before, after),
        _table(both, before, after),
    ]
    for title, cases in (
        ("Only in the old run", [case for case in before if case not in after]),
        ("Only in the new run", [case for case in after if case not in before]),
    ):
        if cases:
            parts.append(f"{title}: {', '.join(case.name for case in cases)}")
    changed = [case for case in both if before[case].status is not after[case].status]
    if changed:
        parts.append("Status changed:")
        parts += [f"  {case.name}: {before[case].status} -> {after[case].status}" for case in changed]
    return "\n".join(parts)


def _title(info: RunInfo) -> str:
    worker = info.environment.get("worker", {})
    return f"{info.id} ({info.state}), torch {worker.get('torch', '?')} {worker.get('torch_git_version', '')}"


def _means(both: Sequence[Case], before: dict[Case, Result], after: dict[Case, Result]) -> str:
    """Geometric means over the cases that pass, and have a speedup, in both runs."""
    pairs = []
    for case in both:
        one, other = before[case], after[case]
        if one.speedup and other.speedup and {one.status, other.status} <= PASSING:
            pairs.append((one.speedup.value, other.speedup.value))
    if not pairs:
        return "Geometric mean speedup: no case passes in both"
    then, now = (geometric_mean([pair[side] for pair in pairs]) for side in (0, 1))
    return f"Geometric mean speedup over the {len(pairs)} that pass in both: {then:.3f}x -> {now:.3f}x"


def _table(both: Sequence[Case], before: dict[Case, Result], after: dict[Case, Result]) -> str:
    table = PrettyTable()
    table.field_names = [
        "name", "bs", "dtype", "backend", "old", "new", "new / old", "", "eager ms", "backend ms",
        "compile s", "memory ratio",
    ]  # fmt: skip
    table.align["name"] = "l"

    def change(case: Case) -> float:
        one, other = before[case].speedup, after[case].speedup
        return max(other.value / one.value, one.value / other.value) if one and other else 0.0

    for case in sorted(both, key=lambda case: (-change(case), case.name)):
        one, other = before[case], after[case]
        table.add_row(
            [
                case.model,
                case.batch_size,
                case.dtype,
                case.backend,
                f"{one.speedup.value:.3f}x" if one.speedup else one.status,
                f"{other.speedup.value:.3f}x" if other.speedup else other.status,
                f"{other.speedup.value / one.speedup.value:.3f}" if one.speedup and other.speedup else "",
                "beyond" if _beyond(one, other) else "",
                _medians(one.eager_ms, other.eager_ms),
                _medians(one.backend_ms, other.backend_ms),
                _pair(one.compilation_s, other.compilation_s, ".1f"),
                _pair(one.compression_ratio, other.compression_ratio, ".3f"),
            ]
        )
    return str(table.get_string())


def _beyond(old: Result, new: Result) -> bool:
    """Whether each value lies outside the other's interval; never where nothing is known of the spread."""
    one, other = old.speedup, new.speedup
    if not one or not other or "within" in (one.basis, other.basis):
        return False
    return not (one.ci_low <= other.value <= one.ci_high or other.ci_low <= one.value <= other.ci_high)


def _medians(old: Measurement | None, new: Measurement | None) -> str:
    return _pair(old.median if old else None, new.median if new else None, ".3f")


def _pair(old: float | None, new: float | None, form: str) -> str:
    if old is None and new is None:
        return ""
    return " -> ".join("-" if value is None else format(value, form) for value in (old, new))
