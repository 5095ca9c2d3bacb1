"""The models of the reference dashboard, measured here beside what it says, as a page in Markdown.

    python benchmarks/dashboard.py [RUN ...] > docs/dashboard.md

A whole run takes hours, so it may be spread over several: what the runs have of the reference's models, in
its setting, goes into benchmarks/dashboard.csv (the latest result of each counts), and the page is made
of that. The reference (tests/fixtures/dashboard: the public Inductor CPU dashboard, float32 on one thread
of a Xeon Platinum 8375C, 2023) is read from its tables; its means are made anew by its own rules: clipped
speedups, and the arithmetic mean of memory ratios.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdash.records import PASSING, Case, Result, RunInfo
from perfdash.report.terminal_tables import verdict_text
from perfdash.runner.run_journal import find_run, read_info, read_results
from perfdash.stats.means import arithmetic_mean, clipped_geometric_mean, geometric_mean

HERE = Path(__file__).with_name("dashboard.csv")
REFERENCE = Path(__file__).parents[1] / "tests" / "fixtures" / "dashboard"
SUITES = ("torchbench", "huggingface", "timm")
LIBRARIES = ("torch", "torchvision", "timm", "transformers")
COLUMNS = (
    "suite", "model", "status", "speedup", "ci_low", "ci_high", "verdict", "eager_ms", "compile_s", "memory",
    "graphs", "breaks", "reason", "started", "processor", "packages", "null", "spread",
)  # fmt: skip

Line = dict[str, str]


@dataclass(frozen=True)
class Row:
    """One model of the reference: its numbers there (None where it failed), and its line of what is here."""

    name: str
    speedup: float | None
    compile_s: float
    memory: float
    here: Line | None

    @property
    def passed_there(self) -> bool:
        return self.speedup is not None

    @property
    def passed_here(self) -> bool:
        return self.here is not None and self.here["status"] in {str(status) for status in PASSING}

    def number(self, column: str) -> float | None:
        """Of a model that passed here."""
        text = self.here[column] if self.here and self.passed_here else ""
        return float(text) if text else None


def take_in(lines: Sequence[Line], info: RunInfo, results: Sequence[Result]) -> list[Line]:
    """The lines with those of a run; of two results of a model the later one stays."""
    known = {(line["suite"], line["model"]): line for line in lines}
    for result in results:
        key = (result.case.suite, result.case.model)
        if _is_as_there(result.case) and (key not in known or result.started >= known[key]["started"]):
            known[key] = _line(info, result)
    return sorted(known.values(), key=lambda line: (line["suite"], line["model"]))


def _is_as_there(case: Case) -> bool:
    """The reference's setting; pytorch_stargan comes in batches of 16 only."""
    setting = Case(case.suite, case.model, batch_size=16 if case.model == "pytorch_stargan" else 1)
    return case == setting


def _line(info: RunInfo, result: Result) -> Line:
    speed, worker = result.speedup, info.environment.get("worker", {})
    reason = result.error.message if result.error else result.skip_reason
    if not reason and str(result.status) != "pass":
        reason = (result.accuracy or {}).get("detail", "")
    packages = {"torch": worker.get("torch", "?"), **worker.get("packages", {})}
    values = {
        "suite": result.case.suite,
        "model": result.case.model,
        "status": str(result.status),
        "speedup": f"{speed.value:.4f}" if speed else "",
        "ci_low": f"{speed.ci_low:.4f}" if speed else "",
        "ci_high": f"{speed.ci_high:.4f}" if speed else "",
        "verdict": verdict_text(result),
        "eager_ms": f"{result.eager_ms.median:.3f}" if result.eager_ms else "",
        "compile_s": f"{result.compilation_s:.2f}" if result.compilation_s is not None else "",
        "memory": f"{result.compression_ratio:.3f}" if result.compression_ratio else "",
        "graphs": result.capture.get("graphs", ""),
        "breaks": result.capture.get("graph_breaks", ""),
        "reason": " ".join((reason or "").split())[:300],
        "started": result.started,
        "processor": info.environment.get("host_class", "?"),
        "packages": ", ".join(f"{name} {packages[name]}" for name in LIBRARIES if name in packages),
        "null": info.noise.get("null", {}).get("worst", ""),
        "spread": info.noise.get("between_processes", {}).get("relative_sd", ""),
    }
    return {column: str(values[column]) for column in COLUMNS}


def rows(suite: str, lines: Sequence[Line]) -> list[Row]:
    """The reference's models of a suite, in its order."""
    here = {line["model"]: line for line in lines if line["suite"] == suite}
    found = []
    with (REFERENCE / f"{suite}.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            passed = line["accuracy"] in ("pass", "pass_due_to_skip")
            speedup = float(line["speedup"]) if passed else None
            numbers = float(line["compile_s"]), float(line["mem_ratio"])
            found.append(Row(line["name"], speedup, *numbers, here.get(line["name"])))
    return found


def page(lines: Sequence[Line]) -> str:
    """The whole page."""
    by_suite = {suite: rows(suite, lines) for suite in SUITES}
    parts = [
        "# The reference dashboard, and the same models here",
        "",
        "Made by `python benchmarks/dashboard.py RUN ...`: float32, batch size 1 (pytorch_stargan: 16), one "
        "thread, `inductor` against `eager`, random weights. *There* is the public Inductor CPU dashboard "
        "(Xeon Platinum 8375C, 2023). Another processor and another torch, so the numbers are not expected "
        "to be alike: what passes there should pass here. The machine's other core was at work meanwhile: "
        "latencies and intervals are larger than on an idle one, and so is some compilation latency.",
        "",
        *about([row.here for found in by_suite.values() for row in found if row.here]),
        "",
        "## Summary",
        "",
        "| | " + " | ".join(f"{suite} there | here" for suite in SUITES) + " |",
        "| --- |" + " ---: | ---: |" * len(SUITES),
        _means("pass rate", by_suite, _pass_rate),
        _means("geometric mean speedup, slower counted as 1.00", by_suite, _clipped),
        _means("geometric mean speedup", by_suite, _speedup),
        _means("mean compilation latency, s", by_suite, _compile),
        _means("mean memory compression ratio", by_suite, _memory),
        "",
        *fails(by_suite),
    ]
    for suite in SUITES:
        parts += ["", f"## {suite}", "", *models(by_suite[suite])]
    return "\n".join(parts)


def about(lines: Sequence[Line]) -> list[str]:
    """On what was measured, with what noise."""
    groups: dict[tuple[str, ...], int] = {}
    for line in lines:
        key = line["processor"], line["packages"], line["null"], line["spread"]
        groups[key] = groups.get(key, 0) + 1
    told = []
    for (processor, packages, null, spread), number in groups.items():
        noise = f"a model against itself is off by at most {float(null):.2%}" if null else "noise unknown"
        between = f", processes by {float(spread):.2%} (standard deviation)" if spread else ""
        told.append(f"- {number} models on {processor} cores; {packages}; {noise}{between}.")
    return told


def _means(
    title: str, by_suite: dict[str, list[Row]], figure: Callable[[Sequence[Row]], tuple[str, str]]
) -> str:
    cells = [cell for suite in SUITES for cell in figure(by_suite[suite])]
    return f"| {title} | " + " | ".join(cells) + " |"


def _pass_rate(found: Sequence[Row]) -> tuple[str, str]:
    missing = sum(row.here is None for row in found)
    note = f" ({missing} not measured yet)" if missing else ""
    there, here = sum(row.passed_there for row in found), sum(row.passed_here for row in found)
    return f"{there}/{len(found)}", f"{here}/{len(found)}{note}"


def _figure(
    there: Sequence[float], here: Sequence[float], mean: Callable[[Sequence[float]], float], form: str
) -> tuple[str, str]:
    return form.format(mean(there)), form.format(mean(here)) if here else ""


def _here(found: Sequence[Row], column: str) -> list[float]:
    return [value for row in found if (value := row.number(column)) is not None]


def _clipped(found: Sequence[Row]) -> tuple[str, str]:
    there = [row.speedup for row in found if row.speedup is not None]
    return _figure(there, _here(found, "speedup"), clipped_geometric_mean, "{:.2f}x")


def _speedup(found: Sequence[Row]) -> tuple[str, str]:
    there = [row.speedup for row in found if row.speedup is not None]
    return _figure(there, _here(found, "speedup"), geometric_mean, "{:.3f}x")


def _compile(found: Sequence[Row]) -> tuple[str, str]:
    there = [row.compile_s for row in found if row.passed_there]
    return _figure(there, _here(found, "compile_s"), arithmetic_mean, "{:.1f}")


def _memory(found: Sequence[Row]) -> tuple[str, str]:
    there = [row.memory for row in found if row.passed_there and not math.isnan(row.memory)]
    return _figure(there, _here(found, "memory"), arithmetic_mean, "{:.2f}x")


def fails(by_suite: dict[str, list[Row]]) -> list[str]:
    """Every status other than pass, with what the record says of it."""
    told = []
    for suite, found in by_suite.items():
        for row in found:
            if row.here is not None and row.here["status"] != "pass":
                there = "passes there" if row.passed_there else "fails there too"
                reason = row.here["reason"].replace("|", "\\|").replace("<", "&lt;")
                told.append(f"- {suite} {row.name}: `{row.here['status']}`, {there}. {reason}")
    return ["Every status other than `pass`:", "", *told] if told else []


def models(found: Sequence[Row]) -> list[str]:
    """A row a model."""
    told = [
        "| model | speedup there | here | 95 % interval | verdict | eager ms | compile s there | here "
        "| memory there | here | graphs | breaks |",
        "| --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in found:
        line = row.here or dict.fromkeys(COLUMNS, "")
        speedup = f"{float(line['speedup']):.3f}" if line["speedup"] else ""
        status = f"`{line['status']}`" if line["status"] not in ("pass", "") else ""
        told.append(
            "| "
            + " | ".join(
                [
                    row.name,
                    f"{row.speedup:.3f}" if row.speedup is not None else "fail",
                    " ".join(filter(None, [speedup, status])) or "not measured yet",
                    f"{float(line['ci_low']):.3f} .. {float(line['ci_high']):.3f}" if speedup else "",
                    line["verdict"],
                    line["eager_ms"],
                    f"{row.compile_s:.1f}" if row.passed_there else "",
                    line["compile_s"],
                    f"{row.memory:.2f}" if row.passed_there else "",
                    line["memory"],
                    line["graphs"],
                    line["breaks"],
                ]
            )
            + " |"
        )
    return told


def main() -> None:
    """Takes the runs that are named into the CSV and prints the page."""
    lines: list[Line] = []
    if HERE.exists():
        with HERE.open(newline="") as file:
            lines = list(csv.DictReader(file))
    for name in sys.argv[1:]:
        folder = find_run(name, Path("runs"))
        lines = take_in(lines, read_info(folder), read_results(folder))
    with HERE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    print(page(lines))


if __name__ == "__main__":
    main()
