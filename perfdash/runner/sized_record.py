"""What a case of scenario `sizes` has measured: each size, all of them, and beside other artefacts. Pure.

A step runs every size once, so the parts of a step are the sizes. The speedup of the case itself is that of
the whole step, in which large sizes count for most; `overall` is the geometric mean over the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfdash.stats.disturbance import too_few_for_parts
from perfdash.stats.intervals import CONFIDENCE
from perfdash.stats.speedup import Pairs, ratios_of

_FAILED = {
    "static": "the cost beside an artefact of one size",
    "automatic": "the cost of any size without marks",
}


def of_sizes(
    event: Mapping[str, Any],
    latencies: Sequence[Mapping[str, Any]],
    ended: str | None = None,
    build_s: float = 0.0,
) -> dict[str, Any]:
    """The figures by size, from the event `sizes` and the events `latency` of all processes.

    `ended`: why the process ended before it had measured all of them. `build_s`: how long the back end took
    before the first call; the first calls of artefacts of one size contain it.

    speedup: eager / the dynamic artefact. cost: the dynamic artefact / the artefact of that size alone, both
    sampled beside each other; over 1 the dynamic one is slower. Latencies are medians in milliseconds; they
    and their ratios are left out where a process has too few clean pairs.
    """
    names = list(event["first"])
    static = event.get("static") or {}
    failed = dict(event.get("failed") or {})
    if ended:
        failed |= dict.fromkeys(event["left"], ended)
    if static and (too_few := too_few_for_parts([static["clean"]])):
        failed["static"] = too_few
    timed = [latency for latency in latencies if latency.get("eager_parts_ns") and not latency.get("alone")]
    if too_few_for_parts([latency["clean"] for latency in timed]):
        timed = []
    by_size: dict[str, dict[str, Any]] = {}
    for place, name in enumerate(names):
        first = event["first"][name]
        first_call_s = first["seconds"] if place else round(first["seconds"] + build_s, 4)
        figures: dict[str, Any] = {"first_call_s": first_call_s, "graphs": first["graphs"]}
        eager_and_dynamic = [
            _column(latency["eager_parts_ns"], latency["backend_parts_ns"], latency["clean"], place)
            for latency in timed
        ]
        if eager_and_dynamic:
            figures["eager_ms"] = _median([pairs.eager for pairs in eager_and_dynamic])
            figures["backend_ms"] = _median([pairs.backend for pairs in eager_and_dynamic])
            figures["speedup"] = _ratio(eager_and_dynamic)
        if static.get("static_ns"):
            figures["static_first_call_s"] = static["first_s"][name]
            if "static" not in failed:
                # As a ratio of the dynamic one's time to the static one's: the first is what costs more.
                pairs = _column(static["dynamic_ns"], static["static_ns"], static["clean"], place)
                figures["static_ms"] = _median([pairs.backend])
                figures["cost"] = _ratio([pairs])
        by_size[name] = figures
    return {
        "of": event["of"],
        "sizes": list(event["sizes"]),
        "by_size": by_size,
        "overall": {
            key: mean for key in ("speedup", "cost") if (mean := _mean(by_size.values(), key)) is not None
        },
        "fixed": event.get("fixed"),
        "automatic": event.get("automatic"),
        **({"failed": failed} if failed else {}),
    }


def notes_of(sizes: Mapping[str, Any]) -> list[str]:
    """What a reader must know: failures, fixed sizes, sizes compiled again, what the second size costs."""
    notes = [f"{_FAILED[name]} is not known: {why}" for name, why in (sizes.get("failed") or {}).items()]
    if fixed := sizes["fixed"]:
        notes.append(
            f"the model specialises: {fixed}, though its {sizes['of']} size is marked dynamic; it is "
            "compiled again for each size"
        )
    names = list(sizes["by_size"])
    again = [name for name in names[1:] if sizes["by_size"][name]["graphs"]]
    if again and not fixed:
        ones = [name for name in names if name.endswith(" 1")]
        notes.append(
            f"dynamo compiled again at {', '.join(again)}: {len(again) + 1} artefacts for {len(names)} sizes"
            + ("; it always compiles for a size of 1 by itself" if ones else "")
        )
    automatic = sizes.get("automatic") or {}
    if len(automatic) > 1:
        first, second, *others = automatic.items()
        text = f"without marks the second size ({second[0]}) costs {second[1]['seconds']:.2f} s"
        more = f"{first[1]['seconds']:.2f} s for {first[0]}"
        third = [f"{facts['seconds']:.2f} s for {name}" for name, facts in others if facts["graphs"]]
        notes.append(f"{text} of compiling, after {', '.join([more, *third])}")
    return notes


def _column(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], clean: Sequence[bool], place: int
) -> Pairs:
    """The clean pairs of one size in milliseconds."""
    keep = np.array(clean, dtype=bool)
    return Pairs(
        *(np.array([row[place] for row in rows], dtype=float)[keep] / 1e6 for rows in (first, second))
    )


def _median(samples: Sequence[Any]) -> float:
    return round(float(np.median(np.concatenate(samples))), 6)


def _ratio(processes: Sequence[Pairs]) -> dict[str, float | None]:
    """The ratio with its 95 % interval by sampling, blind to the spread between processes."""
    ratios = ratios_of(processes)
    reach = ratios.reach_within(CONFIDENCE)
    has_interval = math.isfinite(reach)
    return {
        "value": round(math.exp(ratios.mean), 6),
        "ci_low": round(math.exp(ratios.mean - reach), 6) if has_interval else None,
        "ci_high": round(math.exp(ratios.mean + reach), 6) if has_interval else None,
    }


def _mean(every: Any, key: str) -> float | None:
    """The geometric mean of a ratio over the sizes; None where one lacks it."""
    values = [figures[key]["value"] for figures in every if key in figures]
    if not values or len(values) < len(list(every)):
        return None
    return round(math.exp(float(np.mean(np.log(values)))), 6)
