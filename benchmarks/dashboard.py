"""Runs of the three suites beside the reference dashboard, as a page in Markdown.

    python benchmarks/dashboard.py RUN [RUN ...] > docs/dashboard.md

The reference (tests/fixtures/dashboard, from the public Inductor CPU dashboard: float32, one thread of a
Xeon Platinum 8375C, 2023) is read from its tables. Its means are made anew by its own rules: clipped
speedups, and the arithmetic mean of memory ratios. Only its models count, and of each the latest result.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdash.records import PASSING, Case, Result, RunInfo, Status
from perfdash.report.tables import verdict_text
from perfdash.runner.journal import find_run, read_info, read_results
from perfdash.stats.summary import arithmetic_mean, clipped_geometric_mean, geometric_mean

REFERENCE = Path(__file__).parents[1] / "tests" / "fixtures" / "dashboard"
SUITES = ("torchbench", "huggingface", "timm")


@dataclass(frozen=True)
class Row:
    """One model of the reference: its numbers there (None where it failed) and what was measured here."""

    name: str
    speedup: float | None
    compile_s: float
    memory: float
    here: Result | None

    @property
    def passed_there(self) -> bool:
        return self.speedup is not None

    @property
    def passed_here(self) -> bool:
        return self.here is not None and self.here.status in PASSING


def rows(suite: str, results: Sequence[Result]) -> list[Row]:
    """The reference's models of a suite, in its order, each with its latest result in its setting."""
    alike = [result for result in results if result.case.suite == suite and _is_as_there(result.case)]
    here = {result.case.model: result for result in sorted(alike, key=lambda result: result.started)}
    found = []
    with (REFERENCE / f"{suite}.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            passed = line["accuracy"] in ("pass", "pass_due_to_skip")
            found.append(
                Row(
                    line["name"],
                    float(line["speedup"]) if passed else None,
                    float(line["compile_s"]),
                    float(line["mem_ratio"]),
                    here.get(line["name"]),
                )
            )
    return found


def _is_as_there(case: Case) -> bool:
    """The reference's setting; pytorch_stargan comes in batches of 16 only."""
    setting = Case(case.suite, case.model, batch_size=16 if case.model == "pytorch_stargan" else 1)
    return case == setting


def page(infos: Sequence[RunInfo], results: Sequence[Result]) -> str:
    """The whole page."""
    by_suite = {suite: rows(suite, results) for suite in SUITES}
    lines = [
        "# The reference dashboard, and the same models here",
        "",
        "Made by `python benchmarks/dashboard.py RUN ...`: float32, batch size 1 (pytorch_stargan: 16), one "
        "thread, `inductor` against `eager`, random weights. *There* is the public Inductor CPU dashboard "
        "(Xeon Platinum 8375C, 2023); another processor and another torch, so the numbers are not expected "
        "to be alike: what passes there should pass here.",
        "",
        *(line for info in infos for line in about(info)),
        "",
        "## Summary",
        "",
        "| | " + " | ".join(f"{suite} there | here" for suite in SUITES) + " |",
        "| --- |" + " ---: | ---: |" * len(SUITES),
        summary_line("pass rate", by_suite, pass_rate),
        summary_line("geometric mean speedup, slower counted as 1.00", by_suite, clipped),
        summary_line("geometric mean speedup", by_suite, speedup),
        summary_line("mean compilation latency, s", by_suite, compile_s),
        summary_line("mean memory compression ratio", by_suite, memory),
        "",
        *fails(by_suite),
    ]
    for suite in SUITES:
        lines += ["", f"## {suite}", "", *models(by_suite[suite])]
    return "\n".join(lines)


def about(info: RunInfo) -> list[str]:
    """What a run was measured on, and its noise."""
    environment = info.environment
    if "worker" not in environment or "null" not in info.noise:
        return [f"- `{info.id}`: {info.state} before its first case."]
    worker = environment["worker"]
    packages = worker["packages"]
    versions = ", ".join(
        f"{name} {packages[name]}" for name in ("torchvision", "timm", "transformers") if name in packages
    )
    spread = info.noise.get("between_processes", {}).get("relative_sd")
    between = f", from process to process {spread:.2%} (standard deviation)" if spread else ""
    null = info.noise["null"]["worst"]
    return [
        f"- `{info.id}`: {info.cases} cases "
        f"({info.state}) on {environment['cpu']}, {environment['cores']} cores, torch {worker['torch']}, "
        f"{versions}; a model against itself is off by at most {null:.2%}{between}."
    ]


def summary_line(title: str, by_suite: dict[str, list[Row]], figure) -> str:  # type: ignore[no-untyped-def]
    cells = [cell for suite in SUITES for cell in figure(by_suite[suite])]
    return f"| {title} | " + " | ".join(cells) + " |"


def pass_rate(found: Sequence[Row]) -> tuple[str, str]:
    there, here = sum(row.passed_there for row in found), sum(row.passed_here for row in found)
    measured = sum(row.here is not None for row in found)
    missing = f" ({len(found) - measured} not measured yet)" if measured < len(found) else ""
    return f"{there}/{len(found)}", f"{here}/{len(found)}{missing}"


def _speedups(found: Sequence[Row]) -> tuple[list[float], list[float]]:
    there = [row.speedup for row in found if row.speedup is not None]
    here = [row.here.speedup.value for row in found if row.passed_here and row.here and row.here.speedup]
    return there, here


def clipped(found: Sequence[Row]) -> tuple[str, str]:
    there, here = _speedups(found)
    return f"{clipped_geometric_mean(there):.2f}x", f"{clipped_geometric_mean(here):.2f}x" if here else ""


def speedup(found: Sequence[Row]) -> tuple[str, str]:
    there, here = _speedups(found)
    return f"{geometric_mean(there):.3f}x", f"{geometric_mean(here):.3f}x" if here else ""


def compile_s(found: Sequence[Row]) -> tuple[str, str]:
    there = [row.compile_s for row in found if row.passed_there]
    here = [row.here.compilation_s for row in found if row.passed_here and row.here]
    known = [seconds for seconds in here if seconds is not None]
    return f"{arithmetic_mean(there):.1f}", f"{arithmetic_mean(known):.1f}" if known else ""


def memory(found: Sequence[Row]) -> tuple[str, str]:
    there = [row.memory for row in found if row.passed_there and not math.isnan(row.memory)]
    here = [row.here.compression_ratio for row in found if row.passed_here and row.here]
    known = [ratio for ratio in here if ratio]
    return f"{arithmetic_mean(there):.2f}x", f"{arithmetic_mean(known):.2f}x" if known else ""


def fails(by_suite: dict[str, list[Row]]) -> list[str]:
    """Every status other than pass, with its reason."""
    lines = ["Every status other than `pass`, here:", ""]
    for suite, found in by_suite.items():
        for row in found:
            if row.here is not None and row.here.status is not Status.PASS:
                there = "passes there" if row.passed_there else "fails there too"
                lines.append(f"- {suite} {row.name}: `{row.here.status}`, {there}. {_reason(row.here)}")
    return lines if len(lines) > 2 else [*lines, "none."]


def _reason(result: Result) -> str:
    text = result.error.message if result.error else (result.accuracy or {}).get("detail", "")
    text = (result.skip_reason or text).splitlines()[0] if (result.skip_reason or text) else ""
    return text[:300].replace("|", "\\|")


def models(found: Sequence[Row]) -> list[str]:
    lines = [
        "| model | speedup there | here | 95 % interval | verdict | eager ms | compile s there | here "
        "| memory there | here | graphs | breaks |",
        "| --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in found:
        there = f"{row.speedup:.3f}" if row.speedup is not None else "fail"
        cells = [row.name, there, *_here(row)]
        cells.insert(6, f"{row.compile_s:.1f}" if row.passed_there else "")
        cells.insert(8, f"{row.memory:.2f}" if row.passed_there else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _here(row: Row) -> list[str]:
    """speedup, interval, verdict, eager ms, compile s, memory, graphs, breaks."""
    here = row.here
    if here is None:
        return ["not measured", *[""] * 7]
    if not here.speedup:
        return [f"`{here.status}`", *[""] * 7]
    status = "" if here.status is Status.PASS else f" `{here.status}`"
    return [
        f"{here.speedup.value:.3f}{status}",
        f"{here.speedup.ci_low:.3f} .. {here.speedup.ci_high:.3f}",
        verdict_text(here),
        f"{here.eager_ms.median:.2f}" if here.eager_ms else "",
        f"{here.compilation_s:.1f}" if here.compilation_s is not None else "",
        f"{here.compression_ratio:.2f}" if here.compression_ratio else "",
        str(here.capture.get("graphs", "")),
        str(here.capture.get("graph_breaks", "")),
    ]


def main() -> None:
    """Prints the page of the runs that are named."""
    folders = [find_run(name, Path("runs")) for name in sys.argv[1:]]
    if not folders:
        sys.exit(__doc__)
    results = [result for folder in folders for result in read_results(folder)]
    print(page([read_info(folder) for folder in folders], results))


if __name__ == "__main__":
    main()
