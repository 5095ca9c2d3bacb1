"""A comparison of two sides as text, plain values for JSON, and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from prettytable import PrettyTable

from perfdash.detect.comparison import COMPARED, ComparedCase, ComparedRuns, Comparison, Delta, Means
from perfdash.history.results import RunRow
from perfdash.metrics import title_of


def comparison(found: Comparison) -> str:
    """Write a comparison as text: means, significant changes, all cases."""
    changed = [one for one in found.both if one.changed]
    nothing = found.nothing_to_compare
    parts = [
        f"Old: {_title(found.old)}",
        f"New: {_title(found.new)}",
        f"{len(found.both)} cases in both",
        *_by_different_methods(found),
        "",
    ]
    if nothing:
        parts.append(f"Nothing to compare: {nothing}")
    else:
        counted = f"Changed: {len(changed)}" if changed else "Nothing changed that is more than noise"
        parts += [*([] if found.methods and not found.means else [_means(found.means), ""]), counted]
    if changed:
        parts.append(_changes(changed))
    if found.both:
        parts += ["", "All cases in both", _table(found.both)]
    for title, cases in (
        ("Only in the old", found.only_old),
        ("Only in the new", found.only_new),
    ):
        if cases:
            parts.append(f"{title}: {', '.join(case.name for case in cases)}")
    return "\n".join(parts)


def _by_different_methods(found: Comparison) -> list[str]:
    told = f"Measured by different methods, so not compared: {', '.join(found.methods)}"
    return [told] if found.methods else []


def _title(side: ComparedRuns) -> str:
    runs = [imported.run for imported in side.runs]
    if len(runs) == 1:
        return _run_title(runs[0])
    torches = dict.fromkeys(_torch(run) for run in runs)
    return f"{side.title}: {len(runs)} runs, {runs[0].name} to {runs[-1].name}, {', '.join(torches)}"


def _run_title(run: RunRow) -> str:
    return f"{run.name} ({run.state}), {_torch(run)}"


def _torch(run: RunRow) -> str:
    worker = run.environment.get("worker", {})
    commit = (worker.get("torch_git_version") or "")[:10]
    return f"torch {worker.get('torch') or '?'} {commit}".strip()


def _means(every: Sequence[Means]) -> str:
    """A table of geometric means over the cases that pass on both sides."""
    if not every:
        return "No case passes on both sides"
    table = PrettyTable(["geometric mean", "cases", "old", "new", "new / old", "95 %"])
    table.align = "r"
    table.align["geometric mean"] = "l"
    for means in every:
        form = ".3f" if means.metric in ("speedup", "compression_ratio") else ".4g"
        ratio, low, high = means.ratio
        interval = f"{low:.3f} to {high:.3f}" if means.cases > 1 else ""
        table.add_row(
            [
                title_of(means.metric),
                means.cases,
                format(means.old[0], form),
                format(means.new[0], form),
                f"{ratio:.3f}",
                interval,
            ]
        )
    return str(table.get_string())


def _changes(changed: Sequence[ComparedCase]) -> str:
    table = PrettyTable(["name", "bs", "dtype", "backend", "", "what", "old", "new", "change", "p"])
    table.align = "l"
    for one in changed:
        case = [one.case.model, one.case.batch_size, one.case.amp_dtype or one.case.dtype, one.case.backend]
        if one.other_status:
            word = {1: "worse", -1: "better", 0: ""}[one.status_direction]
            table.add_row([*case, word, "status", one.old_status, one.new_status, "", ""])
        for name, delta in one.deltas.items():
            if delta.significant:
                worse = (delta.change < 0) == (name == "speedup")
                p = "" if delta.p is None else f"{delta.p:.1g}"
                row = [
                    _value(name, delta.old),
                    _value(name, delta.new),
                    f"{math.expm1(delta.change):+.1%}",
                    p,
                ]
                table.add_row([*case, "worse" if worse else "better", title_of(name), *row])
    return str(table.get_string())


def _table(both: Sequence[ComparedCase]) -> str:
    table = PrettyTable(
        ["name", "bs", "dtype", "backend", "old", "new", "new / old", "eager ms", "backend ms",
         "compile CPU s", "backend MB"]
    )  # fmt: skip
    table.align["name"] = "l"
    for one in both:
        speedup = one.deltas.get("speedup")
        table.add_row(
            [
                one.case.model,
                one.case.batch_size,
                one.case.amp_dtype or one.case.dtype,
                one.case.backend,
                f"{speedup.old:.3f}x" if speedup else one.old_status,
                f"{speedup.new:.3f}x" if speedup else one.new_status,
                f"{speedup.new / speedup.old:.3f}" if speedup else "",
                _pair(one.deltas.get("eager_ms"), "eager_ms"),
                _pair(one.deltas.get("backend_ms"), "backend_ms"),
                _pair(one.deltas.get("compilation_cpu_s"), "compilation_cpu_s"),
                _pair(one.deltas.get("backend_peak_bytes"), "backend_peak_bytes"),
            ]
        )
    return str(table.get_string())


def _pair(delta: Delta | None, name: str) -> str:
    return f"{_value(name, delta.old)} -> {_value(name, delta.new)}" if delta else ""


def _value(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / 1e6:.1f}"
    return f"{value:.3f}" + ("x" if name == "speedup" else "")


def to_plain(found: Comparison) -> dict[str, Any]:
    """The comparison as plain values for JSON; metrics in ms, seconds, bytes and ratios."""
    return {
        "old": _side(found.old),
        "new": _side(found.new),
        "means": [
            {
                "metric": means.metric,
                "cases": means.cases,
                **{
                    name: dict(zip(("value", "ci_low", "ci_high"), map(_known, values), strict=True))
                    for name, values in (("old", means.old), ("new", means.new), ("ratio", means.ratio))
                },
            }
            for means in found.means
        ],
        "cases": [
            {
                "case": vars(one.case),
                "old_status": one.old_status,
                "new_status": one.new_status,
                "regressed": one.regressed,
                "metrics": {
                    name: {
                        "old": delta.old,
                        "new": delta.new,
                        "ratio": math.exp(delta.change),
                        "p": delta.p,
                        "significant": delta.significant,
                    }
                    for name, delta in one.deltas.items()
                },
            }
            for one in found.both
        ],
        "only_old": [vars(case) for case in found.only_old],
        "only_new": [vars(case) for case in found.only_new],
        "nothing_to_compare": found.nothing_to_compare,
        "methods": list(found.methods),
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _side(side: ComparedRuns) -> dict[str, Any]:
    return {"title": side.title, "runs": [imported.run.name for imported in side.runs]}


def to_csv(found: Comparison) -> str:
    """One line per case; for each metric old, new, ratio, p and whether it is significant."""
    file = io.StringIO()
    case_columns = ["suite", "model", "device", "dtype", "batch_size", "threads", "scenario", "backend"]
    header = [*case_columns, "old_status", "new_status"]
    header += [f"{name}_{part}" for name in COMPARED for part in ("old", "new", "ratio", "p", "significant")]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for one in found.both:
        row: list[Any] = [getattr(one.case, column) for column in case_columns]
        row += [one.old_status, one.new_status]
        for name in COMPARED:
            delta = one.deltas.get(name)
            if delta is None:
                row += [""] * 5
            else:
                p = "" if delta.p is None else delta.p
                row += [delta.old, delta.new, math.exp(delta.change), p, delta.significant]
        writer.writerow(row)
    return file.getvalue()
