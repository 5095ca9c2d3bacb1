"""The techniques report in Markdown: what to ship, then the metric tables of each model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from perfdash.history.results import Row
from perfdash.report.markdown import code, escaped, table
from perfdash.report.night import Night
from perfdash.report.techniques.recommendation import advice, sizes_in_words
from perfdash.report.techniques.step_tables import StepTable, generation, training
from perfdash.report.techniques.technique_results import (
    Group,
    Technique,
    groups,
    has_numbers,
    is_sound,
    ordered,
    quality_of,
    reason_of,
    status_of,
)
from perfdash.report.techniques.technique_tables import legend, tables

# The packages that techniques are made of.
_PACKAGES = (
    "torchvision", "transformers", "timm", "triton", "torchao", "onnxruntime", "onnxruntime-gpu", "onnx",
    "onnxscript", "openvino", "nncf", "tensorrt", "torch-tensorrt", "numpy",
)  # fmt: skip


def technique_report(night: Night) -> str:
    """The report of any run; its models need not have several techniques."""
    models = groups(night.rows)
    techniques = ordered(night.rows)
    parts = ["# Ways to run each model", _machine(night)]
    if not models:
        return "\n\n".join([*parts, "Nothing was measured.\n"])
    titles = _titles(models)
    parts += ["## What to ship", *advice(titles, models)]
    for steps in (training(night.rows), generation(night.rows)):
        if steps:
            parts += [f"## {steps.title}\n\n{_markdown(steps)}", *_signs(steps)]
    for title, group in zip(titles, models, strict=True):
        parts += [f"## {title}", *_section(night, group, techniques)]
    return "\n\n".join(parts) + "\n"


def _signs(steps: StepTable) -> list[str]:
    return [f"{'; '.join(steps.notes)}."] if steps.notes else []


def _markdown(steps: StepTable) -> str:
    """A step table as Markdown."""
    words, count = steps.words, len(steps.head)
    lines = [[*(code(cell) for cell in line[:words]), *map(escaped, line[words:])] for line in steps.lines]
    return table([escaped(name) for name in steps.head], lines, "l" * words + "r" * (count - words))


def _machine(night: Night) -> str:
    run = night.run
    environment = run.environment
    worker = environment.get("worker") or {}
    every, commits = worker.get("packages") or {}, worker.get("commits") or {}
    devices = {row.case.device for row in night.rows}
    gpus = environment.get("gpu") or ", ".join(dict.fromkeys(map(str, environment.get("gpus") or ())))
    build = " ".join(
        code(word) for word in (worker.get("torch"), str(worker.get("torch_git_version") or "")[:10]) if word
    )
    packages = [
        (name, f"{every[name]} {commits.get(name, '')[:10]}".strip())
        for name in dict.fromkeys([*_PACKAGES, *commits])
        if name in every
    ]
    count, expected = len(night.rows), run.expected
    rest = f" of {expected}" if expected and expected != count else ""
    facts = [
        (
            "Run",
            f"{code(run.name)} ({escaped(run.state)}), {count}{rest} cases, begun {escaped(run.started)}",
        ),
        ("CPU", escaped(environment.get("cpu") or "not told")),
        ("GPU", escaped(gpus or "not told") if devices - {"cpu"} else ""),
        ("Threads", ", ".join(str(n) for n in sorted({row.case.threads for row in night.rows}))),
        ("Vector instructions", escaped(environment.get("vector_isa") or "")),
        ("torch", build or "not told"),
        ("Packages", ", ".join(f"{escaped(name)} {code(version)}" for name, version in packages)),
        ("Allocator while timing", ", ".join(map(escaped, _allocators(night.rows))) or "not told"),
        ("Setting", ", ".join(f"{escaped(k)} {code(v)}" for k, v in run.setting.items())),
        ("Noise", _noise(run.noise)),
    ]
    return "\n".join(f"- {name}: {text}" for name, text in facts if text)


def _noise(noise: Mapping[str, Any]) -> str:
    worst = (noise.get("null") or {}).get("worst")
    between = (noise.get("between_processes") or {}).get("relative_sd")
    parts = [f"a model against itself is off by at most {worst:.2%}"] if worst is not None else []
    if between is not None:
        parts.append(f"one process differs from the next by {between:.2%} (standard deviation)")
    return "; ".join(parts) or "not measured"


def _allocators(rows: Iterable[Row]) -> list[str]:
    names = [(row.details.get("conditions") or {}).get("allocator") for row in rows]
    return sorted({str(name) for name in names if name})


def _titles(models: Sequence[Group]) -> list[str]:
    """The name of each model in Markdown, with the settings that differ between the groups."""
    titles = []
    words: dict[str, Callable[[Group], str]] = {
        "suite": lambda g: f"suite {escaped(g.suite)}",
        "device": lambda g: escaped(g.device),
        "threads": lambda g: f"{g.threads} thread{'s' * (g.threads != 1)}",
        "scenario": lambda g: escaped(g.scenario),
        "dynamic": lambda g: "dynamic shapes" if g.dynamic else "fixed shapes",
    }
    varying = [name for name in words if len({getattr(group, name) for group in models}) > 1]
    for group in models:
        titles.append(", ".join([code(group.model) or "a model without a name",
                                 *(words[name](group) for name in varying)]))  # fmt: skip
    return titles


def _section(night: Night, group: Group, techniques: Sequence[Technique]) -> list[str]:
    metric_tables, missing = tables(group, techniques)
    mine = {Technique.of(row) for row in group.rows}
    absent = len(mine) * len(group.sizes) > len(group.rows)
    signs = legend(group.rows, absent)
    if absent and night.run.state != "done":
        signs[0] += f" (it is {escaped(night.run.state)}: more may have been planned)"
    parts = [f"{'; '.join(signs)}."] if signs else []
    parts += metric_tables
    if missing:
        parts.append(f"Not measured here: {', '.join(missing)}.")
    failed = [
        (row, f"{code(status_of(row), 40)}: {code(reason_of(row), 500) or 'no reason is known'}")
        for row in group.rows
        if not is_sound(row) and (not has_numbers(row) or reason_of(row))
    ]
    unscored = [(row, code(reason, 500)) for row in group.rows if (reason := quality_of(row).get("reason"))]
    notes = [(row, escaped(note)) for row in group.rows for note in row.details.get("notes") or ()]
    for title, reasons in (
        ("What did not pass", failed),
        ("Why there is no score", unscored),
        ("Notes", notes),
    ):
        if reasons:
            parts.append(f"{title}\n\n{_reasons(reasons, techniques)}")
    return parts


def _reasons(reasons: Sequence[tuple[Row, str]], techniques: Sequence[Technique]) -> str:
    """One line for each reason, with the techniques and batch sizes that have it."""
    sizes: dict[str, dict[Technique, list[int]]] = {}
    for row, text in reasons:
        sizes.setdefault(text, {}).setdefault(Technique.of(row), []).append(row.case.batch_size)
    lines = []
    for text, of in sizes.items():
        places = (f"{code(t.label)} at {sizes_in_words(sorted(of[t]))}" for t in techniques if t in of)
        lines.append(f"- {text}: {'; '.join(places)}")
    return "\n".join(lines)
