"""The techniques report in Markdown: what to ship, then the metric tables of each model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from perfdash.history.results import MAX_SAMPLES, Row
from perfdash.records import Status
from perfdash.report.dashboard_tables import cpu_time_notes, status
from perfdash.report.markdown import code, escaped, table
from perfdash.report.night import Night, case_count, gpus_of, noise_floor, package_versions
from perfdash.report.number_format import digits, mark_cpu_time
from perfdash.report.step_sizes import samples_of_step
from perfdash.report.step_tables import (
    StepTable,
    generation,
    new_tokens,
    parts_of,
    per_token,
    tokens_per_second,
    training,
)
from perfdash.report.techniques.recommendation import advice
from perfdash.report.techniques.technique_results import (
    MARKS,
    Group,
    Technique,
    baseline_of,
    distance_of,
    groups,
    has_numbers,
    is_sound,
    mark,
    number,
    ordered,
    quality_of,
    real,
    reason_of,
    speed_of,
)

ABSENT, UNMEASURED = "-", "not measured"
_ENOUGH = {90: 20, 99: 100}  # the number of samples from which a percentile is shown
_SHORT_MS = 1.0  # below it a sample is of several calls (worker.latency_sampling)

Cell = Callable[[Row], str | None]


@dataclass(frozen=True)
class MetricTable:
    """One table: its title in Markdown, and a function from result to cell."""

    title: str
    cell: Cell
    note: str = ""


def tables(group: Group, techniques: Sequence[Technique]) -> tuple[list[str], list[str]]:
    """The tables of a group as Markdown, and the titles of unmeasured metrics."""
    slots = group.slots()
    measured = {technique for technique, _ in slots}
    mine = [technique for technique in techniques if technique in measured]
    head = ["", *(group.sizes_in_words([size]) for size in group.sizes)]
    tables_, missing = [], []
    for place, metric in enumerate(_metrics(group)):
        # The first table is always shown, since its cells have the statuses.
        if place and not any(has_numbers(row) and metric.cell(row) for row in group.rows):
            missing.append(metric.title)
            continue
        rows = [
            [code(technique.label), *(_cell(slots.get((technique, size)), metric) for size in group.sizes)]
            for technique in mine
        ]
        note = f" {metric.note}" if metric.note else ""
        tables_.append(f"**{metric.title}**{note}\n\n{table(head, rows, 'l' + 'r' * len(group.sizes))}")
    return tables_, missing


def legend(rows: Sequence[Row], absent: bool) -> list[str]:
    """The meaning of the signs that appear in the tables."""
    used = {mark(row) for row in rows if has_numbers(row)}
    lines = [f"`{ABSENT}` no such case in this run"] if absent else []
    lines += [f"{sign} {meaning}" for sign, meaning in MARKS.items() if sign in used]
    return [*lines, *cpu_time_notes(rows)]


def _cell(row: Row | None, metric: MetricTable) -> str:
    if row is None:
        return ABSENT
    if not has_numbers(row):
        return code(status(row), 40)
    text = metric.cell(row)
    if text is None:
        return UNMEASURED if row.status == Status.PASS else code(status(row), 40)
    return f"{text} {mark(row)}".strip()


def _metrics(group: Group) -> list[MetricTable]:
    eager = code(group.baseline.label)
    names = {str(name) for row in group.rows if (name := quality_of(row).get("metric"))} - {"f1"}
    score = "F1" if not names else "Score" if len(names) > 1 else code(names.pop())
    odd = [row for row in group.rows if has_numbers(row) and baseline_of(row) != group.baseline]
    apart = "; " + _odd_baselines(odd) if odd else ""
    work, samples = ("step", "samples of a step") if group.step else ("batch", "batch size")
    return [
        MetricTable(f"Latency [ms/{work}]", _latency, "median, ± its 95 % interval within the process"),
        *_of_parts(group),
        MetricTable("Throughput [samples/s]", _throughput, f"{samples} over median latency, ± as above"),
        MetricTable(f"p50 / p90 / p99 latency [ms/{work}]", _percentiles, _of_samples(group.rows)),
        MetricTable(
            f"Improvement over {eager} [%]",
            _improvement,
            "eager latency over latency, less 1, in pairs in the same process, with its 95 % interval"
            + apart,
        ),
        MetricTable(
            f"{eager} in the same process [ms/{work}]",
            _eager_beside,
            "what the improvement is over: eager, too, differs from process to process, so latencies of two "
            "rows may differ otherwise than their improvements",
        ),
        MetricTable("Compilation latency [s]", _seconds, "conversion and first call, less a steady call"),
        MetricTable(
            "Peak memory [MB]",
            _memory,
            "of weights, inputs and what running takes; in parentheses the weights of the model as it was "
            "loaded",
        ),
        MetricTable(score, _score("value", "eager_value"), f"in parentheses the difference to {eager}"),
        MetricTable("Top-1", _score("top1", "eager_top1"), f"in parentheses the difference to {eager}"),
        MetricTable(
            "Distance to eager [relative RMSE]",
            _distance,
            f"RMS of the difference of the outputs over the RMS of those of {eager}" + apart,
        ),
    ]


def _of_parts(group: Group) -> list[MetricTable]:
    """The metrics of the parts of a step, and of a generation."""
    note = "median, ± 95 % interval (mean+-standard deviation)"
    metrics = [
        MetricTable(f"{escaped(name.capitalize(), 40)} [ms]", part_time(name), note)
        for name in part_names(group.rows)
    ]
    if any(new_tokens(row) for row in group.rows):
        metrics += [
            MetricTable(
                "Throughput [tokens/s | ms/token]",
                token_throughput,
                "of the whole batch, prefill and decode",
            ),
            MetricTable(
                "Time per output token [ms]",
                per_output_token,
                "from one token of a prompt to its next",
            ),
        ]
    return metrics


def _odd_baselines(rows: Sequence[Row]) -> str:
    techniques = dict.fromkeys((Technique.of(row).label, baseline_of(row).label) for row in rows)
    return ", ".join(f"{code(technique)} is compared with {code(eager)}" for technique, eager in techniques)


def _spread(row: Row) -> str:
    """The longer half of the latency's interval, in per cent."""
    middle, low, high = (number(row, f"backend_ms{end}") for end in ("", "_low", "_high"))
    if middle is None or low is None or high is None:
        return "± ?"
    return f"± {100 * max(high - middle, middle - low, 0.0) / middle:.1f} %"


def _latency(row: Row) -> str | None:
    middle = number(row, "backend_ms")
    return f"{mark_cpu_time(digits(middle), row)} {_spread(row)}" if middle else None


def _throughput(row: Row) -> str | None:
    middle, samples = number(row, "backend_ms"), samples_of_step(row)
    if not middle or samples < 1:
        return None
    return f"{mark_cpu_time(digits(samples * 1e3 / middle), row)} {_spread(row)}"


def _samples(row: Row) -> list[float]:
    return [value for value in row.samples.get("backend_ms", ()) if 0 < value < math.inf]


def _percentiles(row: Row) -> str | None:
    samples = _samples(row)
    if not samples:
        return None
    parts = [digits(float(np.percentile(samples, 50)))]
    for percent, enough in _ENOUGH.items():
        if len(samples) < enough:
            parts.append(f"max {digits(max(samples))}")  # so few samples say nothing more about the tail
            break
        parts.append(digits(float(np.percentile(samples, percent))))
    return f"{mark_cpu_time(' / '.join(parts), row)} (of {len(samples)})"


def _of_samples(rows: Sequence[Row]) -> str:
    text = (
        f"of the samples kept (at most {MAX_SAMPLES} a case, evenly over its time; their number in "
        f"parentheses): p90 from {_ENOUGH[90]} and p99 from {_ENOUGH[99]} samples on, the longest instead "
        "where there are fewer"
    )
    if any(_samples(row) and (number(row, "backend_ms") or _SHORT_MS) < _SHORT_MS for row in rows):
        text += (
            f". Calls shorter than {_SHORT_MS:g} ms are timed several at once: a sample is their mean, and "
            "their tail is longer than shown"
        )
    return text


def _improvement(row: Row) -> str | None:
    speed = speed_of(row)
    if speed is None:
        return None
    value = f"{_percent(speed.value)} %"
    if speed.low is None or speed.high is None:
        return f"{value} (interval not known)"
    reach = f"{_percent(speed.low)} to {_percent(speed.high)}"
    if speed.one_process:
        return f"{value} ({reach}; one process)"
    verdict = code(row.verdict, 40) if row.verdict and row.status == Status.PASS else ""
    return f"{value} ({reach}) {verdict}".strip()


def _eager_beside(row: Row) -> str | None:
    middle = number(row, "eager_ms")
    return mark_cpu_time(digits(middle), row) if middle else None


def _percent(speedup: float) -> str:
    text = f"{100 * (speedup - 1):+,.1f}"
    return "0.0" if text in ("-0.0", "+0.0") else text


def _seconds(row: Row) -> str | None:
    value = real(row.values.get("compilation_s"))
    return None if value is None else f"{value:.2f}"


def _memory(row: Row) -> str | None:
    peak, weights = number(row, "backend_peak_bytes"), number(row, "weights_bytes")
    if peak is None:
        return None
    return f"{digits(peak / 1e6)} ({digits(weights / 1e6) if weights else 'not known'})"


def _score(name: str, eager_name: str) -> Cell:
    def cell(row: Row) -> str | None:
        quality = quality_of(row)
        value, eager = real(quality.get(name)), real(quality.get(eager_name))
        if value is None:
            return None
        return f"{value:.4f}" + ("" if eager is None else f" ({value - eager:+.4f})")

    return cell


def _distance(row: Row) -> str | None:
    distance = distance_of(row)
    return None if distance is None else f"{distance:.2g}"


def part_names(rows: Sequence[Row]) -> list[str]:
    """The parts that any of the results has, in their order within a step."""
    return list(dict.fromkeys(name for row in rows for name in parts_of(row)))


def part_time(name: str) -> Cell:
    """The time of a part: median ± interval (mean+-deviation), `59.65 ± 0.1 % (59.70+-0.07)`."""

    def cell(row: Row) -> str | None:
        part = parts_of(row).get(name, {})
        statistics = (real(part.get(key)) for key in ("median", "ci_low", "ci_high", "mean", "stdev"))
        middle, low, high, mean, deviation = statistics
        if not middle or low is None or high is None:
            return None
        text = f"{digits(middle)} ± {100 * max(high - middle, middle - low, 0.0) / middle:.1f} %"
        if mean is None or deviation is None:  # one sample has no deviation
            return text
        return f"{text} ({digits(mean)}+-{digits(deviation)})"

    return cell


def token_throughput(row: Row) -> str | None:
    """Tokens per second of the whole batch and milliseconds per token: `77.94 | 12.83`."""
    speed = tokens_per_second(row)
    return f"{digits(speed)} \\| {digits(1e3 / speed)}" if speed else None


def per_output_token(row: Row) -> str | None:
    """Milliseconds from one token of a prompt to the next."""
    middle = per_token(parts_of(row), new_tokens(row))
    return digits(middle) if middle else None


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
    devices = {row.case.device for row in night.rows}
    gpus = gpus_of(run)
    build = " ".join(code(word) for word in (run.torch, str(run.torch_git_version or "")[:10]) if word)
    packages = package_versions(run, _PACKAGES)
    facts = [
        (
            "Run",
            f"{code(run.name)} ({escaped(run.state)}), {case_count(night)} cases, "
            f"begun {escaped(run.started)}",
        ),
        ("CPU", escaped(environment.get("cpu") or "unknown")),
        ("GPU", escaped(gpus or "unknown") if devices - {"cpu"} else ""),
        ("Threads", ", ".join(str(n) for n in sorted({row.case.threads for row in night.rows}))),
        ("Vector instructions", escaped(environment.get("vector_isa") or "")),
        ("torch", build or "unknown"),
        ("Packages", ", ".join(f"{escaped(name)} {code(version)}" for name, version in packages)),
        ("Allocator while timing", ", ".join(map(escaped, _allocators(night.rows))) or "unknown"),
        ("Setting", ", ".join(f"{escaped(k)} {code(v)}" for k, v in run.setting.items())),
        ("Noise", noise_floor(run)),
    ]
    return "\n".join(f"- {name}: {text}" for name, text in facts if text)


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
        "configuration": lambda g: f"configuration {escaped(g.configuration)}",
    }
    varying = [name for name in words if len({getattr(group, name) for group in models}) > 1]
    for group in models:
        step = [f"steps of {escaped(group.step)}"] if group.step else []
        titles.append(", ".join([code(group.model) or "a model without a name",
                                 *(words[name](group) for name in varying), *step]))  # fmt: skip
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
        (row, f"{code(status(row), 40)}: {code(reason_of(row), 500) or 'no reason is known'}")
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
            parts.append(f"{title}\n\n{_reasons(reasons, techniques, group)}")
    return parts


def _reasons(reasons: Sequence[tuple[Row, str]], techniques: Sequence[Technique], group: Group) -> str:
    """One line for each reason, with the techniques and batch sizes that have it."""
    sizes: dict[str, dict[Technique, list[int]]] = {}
    for row, text in reasons:
        sizes.setdefault(text, {}).setdefault(Technique.of(row), []).append(row.case.batch_size)
    lines = []
    for text, of in sizes.items():
        places = (f"{code(t.label)} at {group.sizes_in_words(sorted(of[t]))}" for t in techniques if t in of)
        lines.append(f"- {text}: {'; '.join(places)}")
    return "\n".join(lines)
