"""What to ship, in words: a line a model with its evidence, and a table of all batch sizes, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from perfdash.history.rows import Row
from perfdash.report.grid_tables import digits
from perfdash.report.markdown import code, escaped, table
from perfdash.report.recommend import (
    QUALITY_DROP,
    SAME_MEMORY,
    Candidate,
    Choice,
    Recommendation,
    recommend,
)
from perfdash.report.ways import Group, Way, distance_of, quality_of, real
from perfdash.stats.speedup import MARGIN

_BOUND = (
    "Within the accuracy bound is a way whose status is `pass` (its outputs agree with eager's as the suite "
    "demands) and, where it was scored on labelled data, whose score is at most "
    f"{QUALITY_DROP:g} below eager's. Faster is what is faster beyond its 95 % interval, and not merely "
    f"within {MARGIN:.0%}. As fast are ways whose intervals overlap that of the fastest; as small those "
    f"whose peak is within {SAME_MEMORY:.0%} of the smallest. Where an interval is of one process only, it "
    "does not hold what differs between processes: another start may differ by more. Left out are ways that "
    "are faster, or that have no speedup over this eager, but do not keep the bound."
)


def advice(titles: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """The bound, the line of each model, the table; titles are Markdown."""
    found = [(title, recommend(group)) for title, group in zip(titles, groups, strict=True)]
    head = [
        "model", "batch size", "fastest", "speedup over eager", "as fast, cannot tell apart",
        "distance to eager", "score (eager's)", "peak memory MB (eager's)", "smallest peak memory MB",
    ]  # fmt: skip
    rows = [row for title, one in found for row in _choices(title, one)]
    lines = [_line(title, one) for title, one in found]
    return [_BOUND, "\n".join(lines), table(head, rows, "lrlrlrrrl")]


def _line(title: str, found: Recommendation) -> str:
    """Which way to ship at which batch sizes, with its evidence."""
    told = []
    for way, sizes in found.ship.items():
        if way is None:
            told.append(_stay(found, sizes))
            continue
        each = "; ".join(_evidence(found.candidate(way, size), found, size) for size in sizes)
        told.append(f"ship {code(way.label)} at {sizes_in_words(sizes)} ({each})")
    unknown = [choice.batch_size for choice in found.choices if not choice.measured]
    if unknown:
        told.append(f"nothing within the bound was measured at {sizes_in_words(unknown)}")
    parts = [f"{'; '.join(told)}.", _smallest(found), _left_out(found)]
    return f"- **{title}**: {' '.join(part for part in parts if part)}"


def _stay(found: Recommendation, sizes: Sequence[int]) -> str:
    near = [
        f"at {choice.batch_size} {code(choice.next_best.way.label)}: {_speedup(choice.next_best)}"
        for choice in found.choices
        if choice.batch_size in sizes and choice.next_best
    ]
    rest = f"; nearest {'; '.join(near)}" if near else ""
    name = code(found.baseline.label)
    return f"nothing within the bound beats {name} at {sizes_in_words(sizes)}: stay with it{rest}"


def _evidence(one: Candidate, found: Recommendation, size: int) -> str:
    (choice,) = (choice for choice in found.choices if choice.batch_size == size)
    words = [f"at {size}: {_speedup(one)}"]
    distance = distance_of(one.row)
    words += [f"distance to eager {distance:.2g}"] if distance is not None else []
    score = _score(one.row, "eager ")
    words += [f"{_metric(one.row)} {score}" if score != "-" else "not scored"]
    words += [f"peak memory in MB {_peak(one, choice, 'eager ')}"] if one.peak_bytes else []
    return ", ".join(words)


def _smallest(found: Recommendation) -> str:
    """The ways with the smallest peak memory, of those as small the first."""
    alike: dict[Way, list[int]] = {}
    for choice in found.choices:
        if choice.smallest:
            alike.setdefault(choice.smallest[0].way, []).append(choice.batch_size)
    told = [f"{code(way.label)} at {sizes_in_words(sizes)}" for way, sizes in alike.items()]
    return f"Smallest peak memory: {'; '.join(told)}." if told else ""


def _left_out(found: Recommendation) -> str:
    alike: dict[tuple[Way, str], list[tuple[int, Candidate]]] = {}
    for choice in found.choices:
        for one, why in choice.left_out:
            alike.setdefault((one.way, why), []).append((choice.batch_size, one))
    if not alike:
        return ""
    told = []
    for (way, why), some in alike.items():
        where = ", ".join(f"{size} ({_times(one)})" for size, one in some)
        told.append(f"{code(way.label)} at {where}: {escaped(why, 200) if ' ' in why else code(why)}")
    return f"Left out: {'; '.join(told)}."


def _choices(title: str, found: Recommendation) -> list[list[str]]:
    return [
        [
            title,
            str(choice.batch_size),
            *_of_choice(choice, found.baseline),
            ", ".join(f"{code(one.way.label)} {digits(one.peak_bytes / 1e6)}"
                      for one in choice.smallest if one.peak_bytes) or "-",
        ]
        for choice in found.choices
    ]  # fmt: skip


def _of_choice(choice: Choice, baseline: Way) -> list[str]:
    if not choice.measured:
        return ["none within the bound", *["-"] * 5]
    one = choice.fastest
    if one is None:
        near = "-"
        if choice.next_best:
            near = f"nearest: {code(choice.next_best.way.label)} {_speedup(choice.next_best)}"
        eager = f"{digits(choice.eager_peak_bytes / 1e6)}" if choice.eager_peak_bytes else "-"
        return [f"{code(baseline.label)}: nothing beats it", near, "-", "-", "-", eager]
    distance = distance_of(one.row)
    return [
        code(one.way.label),
        _speedup(one),
        ", ".join(f"{code(each.way.label)} ({_times(each)})" for each in choice.as_fast) or "none",
        "-" if distance is None else f"{distance:.2g}",
        _score(one.row),
        _peak(one, choice),
    ]


def _times(one: Candidate) -> str:
    return f"{one.speed.value:.2f}x" if one.speed else "speedup not known"


def _speedup(one: Candidate) -> str:
    speed = one.speed
    if speed is None or speed.low is None or speed.high is None:
        return f"{_times(one)} (interval not known)"
    rest = "; of one process only" if speed.one_process else ""
    return f"{_times(one)} ({speed.low:.2f} to {speed.high:.2f}{rest})"


def _score(row: Row, word: str = "") -> str:
    quality = quality_of(row)
    value, eager = real(quality.get("value")), real(quality.get("eager_value"))
    if value is None:
        return "-"
    return f"{value:.4f}" + ("" if eager is None else f" ({word}{eager:.4f})")


def _metric(row: Row) -> str:
    name = str(quality_of(row).get("metric", "score"))
    return "F1" if name == "f1" else escaped(name, 40)


def _peak(one: Candidate, choice: Choice, word: str = "") -> str:
    if not one.peak_bytes:
        return "-"
    eager = f" ({word}{digits(choice.eager_peak_bytes / 1e6)})" if choice.eager_peak_bytes else ""
    return digits(one.peak_bytes / 1e6) + eager


def sizes_in_words(sizes: Sequence[int]) -> str:
    """`batch size 1`, `batch sizes 1, 16 and 32`."""
    words = [str(size) for size in sizes]
    if len(words) == 1:
        return f"batch size {words[0]}"
    return f"batch sizes {', '.join(words[:-1])} and {words[-1]}"
