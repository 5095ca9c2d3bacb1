"""An explanation as text of at most 80 columns, and as plain values. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from perfdash.explain.explanation_sentence import change_words, code_clauses, sentence
from perfdash.explain.structure_comparison import (
    ABOUT,
    BREAK,
    EAGER_OPERATOR,
    ENVIRONMENT,
    FAILED_GUARD,
    FALLBACK,
    GIVEN_UP,
    GRAPHS,
    GUARDS,
    LATENCY,
    LIBRARY_CALL,
    LOADED,
    MEMORY,
    MODEL_FILE,
    MODEL_KEY,
    OPERATORS,
    PACKAGE,
    PHASE,
    RECOMPILE,
    REGISTERED,
    RUN_OPTION,
    SETTING,
    SKIPPED_GRAPHS,
    STATUS,
    VARIABLE,
    Difference,
    ExplainedSide,
    Explanation,
    KernelChange,
)

_WIDTH = 80
_MOST_LINES = 12  # of one part in the text


def text(explanation: Explanation, metric: str | None = None) -> str:
    """The findings part by part, then the sentence; lines of at most 80 columns."""
    before, after = explanation.before, explanation.after
    lines = [
        f"{after.case.name}",
        f"before  {before.run.name}  {before.run.torch_build}",
        f"after   {after.run.name}  {after.run.torch_build}",
        *_wrapped(explanation.note)[: bool(explanation.note) * _MOST_LINES],
        "",
        *_table(explanation),
    ]
    for how in ("split", "merged", "regrouped", "changed", "gone", "new"):
        if how != "changed" or code_clauses(explanation):
            lines += _kernel_lines(how, explanation.kernels_of(how))
    for about in ABOUT:
        lines += _finding_lines(about, explanation.of(about))
    if explanation.unknown:
        lines += ["", *_wrapped(f"Not known: {'; '.join(explanation.unknown)}.")]
    return "\n".join([*lines, "", *_wrapped(sentence(explanation, metric))])


def figures(explanation: Explanation) -> list[tuple[str, Any, Any]]:
    """Name, before and after of the counts that both sides are described by; None: not known."""
    sides = (explanation.before, explanation.after)

    def kernels(side: ExplainedSide) -> Any:
        return side.structure.get("kernels") if side.kernels is None else len(side.kernels)

    def calls(side: ExplainedSide) -> Any:
        known = side.structure.get("library_calls")
        return sum(known.values()) if isinstance(known, Mapping) else known

    has_text = all(side.structure.get("text") for side in sides)

    def number(name: str) -> Callable[[ExplainedSide], Any]:
        return lambda side: side.structure.get(name, side.values.get(name))

    rows: list[tuple[str, Callable[[ExplainedSide], Any]]] = [
        ("kernels", kernels),
        ("calls of kernels", number("kernel_calls")),
        ("library calls", calls),
        ("graphs", number("graphs")),
        ("graph breaks", number("graph_breaks")),
        ("captured operators", number("calls_captured")),
        ("guards", number("guards")),
        ("recompiles", number("recompiles")),
        ("bytes of code", number("code_bytes")),
        ("fingerprint", number("text" if has_text else "fingerprint")),
    ]
    shown = [(name, of_side(sides[0]), of_side(sides[1])) for name, of_side in rows]
    return [row for row in shown if row[1:] != (None, None)]


def _table(explanation: Explanation) -> list[str]:
    rows = [
        (name, shown_figure(old), shown_figure(new), "" if old == new else "*")
        for name, old, new in figures(explanation)
    ]
    return [f"  {name:<20}{old:>18}{new:>18} {mark}".rstrip() for name, old, new, mark in rows]


def shown_figure(value: Any) -> str:
    """A count with thousands separated, a fingerprint as it is."""
    if value is None:
        return "not known"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


_HOW = {
    "split": "Kernels split",
    "merged": "Kernels merged",
    "regrouped": "Kernels with other operators",
    "changed": "Kernels with other code for the same operators",
    "gone": "Kernels gone",
    "new": "New kernels",
}
_TITLES = {
    PACKAGE: "Packages",
    VARIABLE: "Variables",
    MODEL_KEY: "Keys of the model in its suite",
    MODEL_FILE: "Files of the model with other contents",
    REGISTERED: "Operators that Python code implements",
    STATUS: "Status",
    FAILED_GUARD: "Guards that fail, with the number of recompiles",
    MEMORY: "Peak memory, in bytes",
    LATENCY: "Latency of a call, in ms",
    EAGER_OPERATOR: "Calls of eager's operators",
    FALLBACK: "Operators that fall back to ATen",
    BREAK: "Graph breaks",
    GRAPHS: "",
    RECOMPILE: "",
    GIVEN_UP: "Frames that dynamo gave up",
    SKIPPED_GRAPHS: "Skipped CUDA graphs",
    LIBRARY_CALL: "Library calls",
    GUARDS: "",
    OPERATORS: "",
    SETTING: "Settings",
    RUN_OPTION: "Options of the run",
    LOADED: "Loaded files with other contents",
    ENVIRONMENT: "Environment",
    PHASE: "Phases of compiling, in seconds",
}


def _kernel_lines(how: str, changes: Sequence[KernelChange]) -> list[str]:
    if not changes:
        return []
    lines = ["", f"{_HOW[how]} ({len(changes)}):"]
    for change in changes[:_MOST_LINES]:
        sides = [[str(kernel["name"]) for kernel in side] for side in (change.before, change.after) if side]
        if len(sides) == 2 and sides[0] == sides[1]:
            sides = sides[:1]
        lines += _wrapped(" -> ".join(" | ".join(names) for names in sides), "  ")
    return lines + _more(len(changes))


def _finding_lines(about: str, findings: Sequence[Difference]) -> list[str]:
    if not findings or not _TITLES[about]:  # a number stands in the table
        return []
    lines = ["", f"{_TITLES[about]}:"]
    for item in findings[:_MOST_LINES]:
        lines += _wrapped(change_words(item), "  ")
    return lines + _more(len(findings))


def _more(count: int) -> list[str]:
    return [f"  and {count - _MOST_LINES} more"] if count > _MOST_LINES else []


def _wrapped(line: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        line, _WIDTH, initial_indent=indent, subsequent_indent=indent + ("  " if indent else ""),
        break_on_hyphens=False,
    ) or [indent]  # fmt: skip


def to_plain(explanation: Explanation, metric: str | None = None) -> dict[str, Any]:
    """The explanation as plain values for JSON."""
    before, after = explanation.before, explanation.after

    def names(kernels: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        keys = ("name", "kind", "operators", "calls", "fingerprint")
        return [{key: kernel.get(key) for key in keys} for kernel in kernels]

    return {
        "case": vars(after.case),
        "before": before.run.name,
        "after": after.run.name,
        "figures": {name: {"before": old, "after": new} for name, old, new in figures(explanation)},
        "kernels": [
            {"how": change.how, "before": names(change.before), "after": names(change.after)}
            for change in explanation.kernels
            if change.how != "same"
        ],
        "findings": [vars(finding) for finding in explanation.findings],
        "same_code": explanation.same_code,
        "same_files": explanation.same_files,
        "unknown": list(explanation.unknown),
        "note": explanation.note,
        "sentence": sentence(explanation, metric),
    }
