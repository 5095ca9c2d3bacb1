"""A comparison of two sides as text, plain values for JSON, and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from prettytable import PrettyTable

from perfdash.detect.compared_means import Means
from perfdash.detect.comparison import COMPARED, ComparedCase, ComparedRuns, Comparison, Delta
from perfdash.detect.environment_changes import build_changes
from perfdash.history.results import RunRow
from perfdash.metrics import METRICS, title_of
from perfdash.report.alert_text import model_of
from perfdash.report.number_format import four_digits, with_unit
from perfdash.report.spreadsheet_cell import inert
from perfdash.suites.suite_file import OWN

_PACKAGES = 5  # that differ between two builds, in a line


def comparison(sides: Comparison) -> str:
    """Write a comparison as text: means, significant changes, all cases."""
    changed = [compared for compared in sides.both if compared.changed]
    nothing = sides.nothing_to_compare
    parts = [
        f"Old: {_title(sides.old)}",
        f"New: {_title(sides.new)}",
        f"{len(sides.both)} cases in both",
        *filter(None, [of_machines(sides)]),
        *_by_different_methods(sides),
        *of_eager(sides),
        *of_builds(sides),
        "",
    ]
    if sides.means or not (nothing or sides.methods):
        parts += [_means(sides.means), ""]
    if nothing:
        parts.append(f"Nothing to compare: {nothing}")
    else:
        none = "No status changed, and no latency, compilation time or peak memory by more than noise"
        if sides.untested or _undecided(sides.both):
            none = "No change was found in what could be compared"
        parts.append(f"Changed: {len(changed)}" if changed else none)
    if changed:
        parts.append(_changes(changed))
    if sides.vanished:
        parts.append(f"Vanished: {', '.join(map(model_of, sides.vanished))}")
    if sides.untested and not nothing:
        parts.append(f"Not checked: {sides.untested}")
    parts += _undecided(sides.both)
    if sides.both:
        parts += ["", "All cases in both", _table(sides.both)]
    for title, cases in (
        ("Only in the old", sides.only_old),
        ("Only in the new", sides.only_new),
    ):
        if cases:
            parts.append(f"{title}: {', '.join(case.name for case in cases)}")
    return "\n".join(parts)


def of_machines(sides: Comparison) -> str:
    """A line that names the machines of two sides that have none in common; empty otherwise."""
    return machines_note(sides.machines) if sides.machines else ""


def machines_note(machines: str) -> str:
    """What `machines` (`on another machine: a | b`) means for a comparison."""
    why = "Machines of a class differ, so a change may be theirs: only statuses are judged."
    return f"Measured {machines}. {why}"


def _by_different_methods(sides: Comparison) -> list[str]:
    line = f"Measured by different methods, so not compared: {', '.join(sides.methods)}"
    return [line] if sides.methods else []


def of_eager(sides: Comparison) -> list[str]:
    """The lines that warn of speedups that moved with eager; none where eager hardly moved."""
    if sides.eager_moved is None:
        return []
    share = abs(math.expm1(sides.eager_moved))
    word = "longer" if sides.eager_moved > 0 else "less time"
    edited = _edited_files(sides)
    verb = "was" if len(edited) == 1 else "were"
    edit = f"{', '.join(edited)} {verb} edited, or " if edited else ""
    if any(compared.case.suite == OWN for compared in sides.both) and not _knows_files(sides):
        edit = "your model was edited, or "
    return [
        f"Eager itself took {share:.0%} {word} on the new side (median of the cases): {edit}the machine, or",
        "torch's own operators, were in another state, and speedups move with that. Only a change of",
        "speedup that is clearly larger counts. `perfdash compare-builds` measures both in turn.",
    ]


def of_builds(sides: Comparison) -> list[str]:
    """A line with the packages that differ between two builds that were measured in turn.

    Or that none does; without any line where the packages are unknown, or the runs were measured apart.
    """
    old, new = (side.runs[-1].run for side in (sides.old, sides.new))
    if not sides.in_pairs or not (old.packages and new.packages):
        return []
    differing = build_changes(old, new)
    if not differing:
        return [
            "Both sides have the same torch and packages, by versions and commits: a build is compared with "
            "itself, unless a package is installed from a folder, whose commit is not known, or was edited."
        ]
    more = f"; and {len(differing) - _PACKAGES} more" if len(differing) > _PACKAGES else ""
    return [f"Builds (old | new): {'; '.join(differing[:_PACKAGES])}{more}."]


def _knows_files(sides: Comparison) -> bool:
    """Whether the files of models are known: they are in a run's folder, and not read from a history."""
    return all(
        any(row.structure.get("model_files") for imported in side.runs for row in imported.rows)
        for side in (sides.old, sides.new)
    )


def _edited_files(sides: Comparison) -> list[str]:
    """The files of the user's own models that differ between the last runs of the sides, where known."""
    old, new = (
        {row.case: row.structure.get("model_files") for imported in side.runs for row in imported.rows}
        for side in (sides.old, sides.new)
    )
    both = [(was, new.get(case) or {}) for case, was in old.items() if was]
    edited = [name for was, now in both for name in was if name in now and was[name] != now[name]]
    return list(dict.fromkeys(edited))


def _title(side: ComparedRuns) -> str:
    runs = [imported.run for imported in side.runs]
    if len(runs) == 1:
        return _run_title(runs[0])
    torches = dict.fromkeys(f"torch {run.torch_build}" for run in runs)
    return f"{side.title}: {len(runs)} runs, {runs[0].name} to {runs[-1].name}, {', '.join(torches)}"


def _run_title(run: RunRow) -> str:
    return f"{run.name} ({run.state}), torch {run.torch_build}"


def _means(all_means: Sequence[Means]) -> str:
    """A table of geometric means over the cases that pass on both sides, and were checked."""
    if not all_means:
        return "No means: no case has checked numbers on both sides"
    table = PrettyTable(["geometric mean", "cases", "old", "new", "new / old", "95 %"])
    table.align = "r"
    table.align["geometric mean"] = "l"
    for means in all_means:
        ratio, low, high = means.ratio
        interval = f"{low:.3f} to {high:.3f}" if means.cases > 1 else ""
        table.add_row(
            [
                title_of(means.metric),
                means.cases,
                with_unit(means.metric, means.old[0]),
                with_unit(means.metric, means.new[0]),
                f"{ratio:.3f}",
                interval,
            ]
        )
    return str(table.get_string())


def _changes(changed: Sequence[ComparedCase]) -> str:
    table = PrettyTable(["model", "", "what", "old", "new", "change", "p"])
    table.align = "l"
    for compared in changed:
        model = model_of(compared.case)
        if compared.other_status:
            word = {1: "worse", -1: "better", 0: ""}[compared.status_direction]
            table.add_row([model, word, "status", compared.old_status, compared.new_status, "", ""])
        for name, delta in compared.deltas.items():
            if delta.significant:
                worse = (delta.change < 0) == (name == "speedup")
                row = [
                    with_unit(name, delta.old),
                    with_unit(name, delta.new),
                    f"{math.expm1(delta.change):+.1%}",
                    _certainty(delta),
                ]
                table.add_row([model, "worse" if worse else "better", title_of(name), *row])
    return str(table.get_string())


def _undecided(both: Sequence[ComparedCase]) -> list[str]:
    """The metrics that the pairs of two builds cannot decide, with what they still allow."""
    table = PrettyTable(["model", "what", "change", "95 %", "pairs"])
    table.align = "l"
    for compared in both:
        for name, delta in compared.deltas.items():
            if delta.undecided:
                reach = math.inf if delta.reach is None else delta.reach
                low, high = (math.expm1(delta.change + sign * reach) for sign in (-1, 1))
                interval = f"{low:+.1%} to {high:+.1%}" if math.isfinite(reach) else ""
                table.add_row(
                    [
                        model_of(compared.case),
                        title_of(name),
                        f"{math.expm1(delta.change):+.1%}",
                        interval,
                        delta.pairs,
                    ]
                )
    if not table.rows:
        return []
    return ["", f"Cannot tell: {len(table.rows)}; more pairs would", str(table.get_string())]


def _certainty(delta: Delta) -> str:
    if delta.pairs is not None:
        return f"{delta.pairs} pairs"
    return "" if delta.p is None else f"{delta.p:.1g}"


def _table(both: Sequence[ComparedCase]) -> str:
    table = PrettyTable(
        ["model", "old", "new", "new / old", "eager ms", "backend ms",
         "compile CPU s", "backend MB"]
    )  # fmt: skip
    table.align["model"] = "l"
    for compared in both:
        speedup = compared.deltas.get("speedup")
        table.add_row(
            [
                model_of(compared.case),
                f"{speedup.old:.3f}x" if speedup else compared.old_status,
                f"{speedup.new:.3f}x" if speedup else compared.new_status,
                f"{speedup.new / speedup.old:.3f}" if speedup else "",
                _pair(compared.deltas.get("eager_ms"), "eager_ms"),
                _pair(compared.deltas.get("backend_ms"), "backend_ms"),
                _pair(compared.deltas.get("compilation_cpu_s"), "compilation_cpu_s"),
                _pair(compared.deltas.get("backend_peak_bytes"), "backend_peak_bytes"),
            ]
        )
    return str(table.get_string())


def _pair(delta: Delta | None, name: str) -> str:
    """Both values without their unit, which the column's title has."""
    if delta is None:
        return ""
    return " -> ".join(four_digits(value * METRICS[name].scale) for value in (delta.old, delta.new))


def to_plain(sides: Comparison) -> dict[str, Any]:
    """The comparison as plain values for JSON; metrics in ms, seconds, bytes and ratios."""
    return {
        "old": _side(sides.old),
        "new": _side(sides.new),
        "means": [
            {
                "metric": means.metric,
                "cases": means.cases,
                **{
                    name: dict(zip(("value", "ci_low", "ci_high"), map(_known, values), strict=True))
                    for name, values in (("old", means.old), ("new", means.new), ("ratio", means.ratio))
                },
            }
            for means in sides.means
        ],
        "cases": [
            {
                "case": vars(compared.case),
                "old_status": compared.old_status,
                "new_status": compared.new_status,
                "regressed": compared.regressed,
                **({"unsteady": compared.unsteady} if compared.unsteady else {}),
                "metrics": {
                    name: {
                        "old": delta.old,
                        "new": delta.new,
                        "ratio": math.exp(delta.change),
                        "p": delta.p,
                        "significant": delta.significant,
                        **_of_pairs(delta),
                    }
                    for name, delta in compared.deltas.items()
                },
            }
            for compared in sides.both
        ],
        "only_old": [vars(case) for case in sides.only_old],
        "vanished": [vars(case) for case in sides.vanished],
        "only_new": [vars(case) for case in sides.only_new],
        "nothing_to_compare": sides.nothing_to_compare,
        "untested": sides.untested,
        "eager_moved": None if sides.eager_moved is None else math.exp(sides.eager_moved),
        "methods": list(sides.methods),
        "machines": sides.machines or None,
    }


def _of_pairs(delta: Delta) -> dict[str, Any]:
    """The fields of a metric of two builds that were measured in turn; empty for runs measured apart."""
    return {} if delta.pairs is None else {"pairs": delta.pairs, "undecided": delta.undecided}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _side(side: ComparedRuns) -> dict[str, Any]:
    return {"title": side.title, "runs": [imported.run.name for imported in side.runs]}


def to_csv(sides: Comparison) -> str:
    """Write a line per case: for each metric old, new, ratio, p, significant.

    Cells as in `night_export.to_csv`: no spreadsheet runs a name.
    """
    file = io.StringIO()
    case_columns = ["suite", "model", "device", "dtype", "batch_size", "threads", "scenario", "backend"]
    header = [*case_columns, "old_status", "new_status"]
    header += [f"{name}_{part}" for name in COMPARED for part in ("old", "new", "ratio", "p", "significant")]
    more_case_columns = ["amp_dtype", "dynamic", "configuration", "settings"]  # last: older files begin alike
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*header, *more_case_columns, "machines"])
    for compared in sides.both:
        row: list[Any] = [getattr(compared.case, column) for column in case_columns]
        row += [compared.old_status, compared.new_status]
        for name in COMPARED:
            delta = compared.deltas.get(name)
            if delta is None:
                row += [""] * 5
            else:
                p = "" if delta.p is None else delta.p
                row += [delta.old, delta.new, math.exp(delta.change), p, delta.significant]
        row += [getattr(compared.case, column) for column in more_case_columns]
        writer.writerow([inert(cell) for cell in (*row, sides.machines)])
    return file.getvalue()
