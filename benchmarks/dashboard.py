"""The models of the reference dashboard, measured here beside what it shows, as a page in Markdown.

    python benchmarks/dashboard.py [RUN ...]          writes results/dashboard.md and results/dashboard.csv

A whole run takes hours, so it may be spread over several: the results that the runs have of the reference's
models, in its setting, go into results/dashboard.csv (the latest of each model counts), and the page is made
of that. The reference (tests/fixtures/dashboard: the public Inductor CPU dashboard, float32 on one thread
of a Xeon Platinum 8375C, 2023) is read from its tables; its means are made anew by its own rules: clipped
speedups, and the arithmetic mean of memory ratios.
"""

from __future__ import annotations

import csv
import math
import statistics
import string
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdash.methods import CURRENT
from perfdash.records import PASSING, Case, Result, RunInfo
from perfdash.report.terminal_tables import verdict_text
from perfdash.runner.run_journal import find_run, read_info, read_results
from perfdash.stats.means import arithmetic_mean, clipped_geometric_mean, geometric_mean

RESULTS = Path(__file__).parents[1] / "results"
TABLE, PAGE = RESULTS / "dashboard.csv", RESULTS / "dashboard.md"
REFERENCE = Path(__file__).parents[1] / "tests" / "fixtures" / "dashboard"
SUITES = ("torchbench", "huggingface", "timm")
LIBRARIES = ("torch", "torchvision", "timm", "transformers")
CLOCKS_DISAGREE = 0.02  # wall and CPU time are both shown where their speedups differ by more
# `run` is the host's identity in a row: where, with which packages and noise it was measured.
RUN = ("processor", "isa", "packages", "null", "spread", "method")
COLUMNS = (
    "suite", "model", "status", "speedup", "ci_low", "ci_high", "verdict", "wall", "cpu", "processes",
    "eager_ms", "compile_s", "memory", "graphs", "breaks", "reason", "started", *RUN,
)  # fmt: skip

Line = dict[str, str]


@dataclass(frozen=True)
class Row:
    """One model of the reference: its numbers there (no speedup where it failed), its line from here."""

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
        """A number of a model that passed here."""
        text = self.here[column] if self.here and self.passed_here else ""
        return float(text) if text else None

    @property
    def half_width(self) -> float | None:
        """Half the width of the speedup's interval, relative: 0.02 is 2 %."""
        low, high = self.number("ci_low"), self.number("ci_high")
        return math.sqrt(high / low) - 1 if low and high else None


def merge(lines: Sequence[Line], info: RunInfo, results: Sequence[Result]) -> list[Line]:
    """The lines with those of a run; of two results of a model the later one stays."""
    latest = {(line["suite"], line["model"]): line for line in lines}
    for result in results:
        key = (result.case.suite, result.case.model)
        if _is_as_there(result.case) and (key not in latest or result.started >= latest[key]["started"]):
            latest[key] = _line(info, result)
    return sorted(latest.values(), key=lambda line: (line["suite"], line["model"]))


def _is_as_there(case: Case) -> bool:
    """Whether a case has the reference's setting; pytorch_stargan comes in batches of 16 only."""
    setting = Case(case.suite, case.model, batch_size=16 if case.model == "pytorch_stargan" else 1)
    return case == setting


def _line(info: RunInfo, result: Result) -> Line:
    speed, worker = result.speedup, info.environment.get("worker", {})
    reason = result.error.message if result.error else result.skip_reason
    if not reason and str(result.status) != "pass":
        reason = (result.accuracy or {}).get("detail", "")
    packages = {"torch": worker.get("torch", "?"), **worker.get("packages", {})}
    clocks = {
        name: clock["speedup"]
        for name in ("wall", "cpu")
        if (clock := result.conditions.get("clocks", {}).get(name)) and clock.get("speedup")
    }
    disagree = len(clocks) == 2 and abs(math.log(clocks["wall"] / clocks["cpu"])) > CLOCKS_DISAGREE
    values = {
        "suite": result.case.suite,
        "model": result.case.model,
        "status": str(result.status),
        "speedup": f"{speed.value:.4f}" if speed else "",
        "ci_low": f"{speed.ci_low:.4f}" if speed and speed.ci_low else "",
        "ci_high": f"{speed.ci_high:.4f}" if speed and speed.ci_high else "",
        "verdict": verdict_text(result),
        "wall": f"{clocks['wall']:.3f}" if disagree else "",
        "cpu": f"{clocks['cpu']:.3f}" if disagree else "",
        "processes": result.conditions.get("processes", ""),
        "eager_ms": f"{result.eager_ms.median:.3f}" if result.eager_ms else "",
        "compile_s": f"{result.compilation_s:.2f}" if result.compilation_s is not None else "",
        "memory": f"{result.compression_ratio:.3f}" if result.compression_ratio else "",
        "graphs": result.capture.get("graphs", ""),
        "breaks": result.capture.get("graph_breaks", ""),
        "reason": " ".join((reason or "").split())[:300],
        "started": result.started,
        "processor": info.environment.get("host_class", "?"),
        "isa": info.environment.get("vector_isa") or "",
        "packages": ", ".join(f"{name} {packages[name]}" for name in LIBRARIES if name in packages),
        "null": info.noise.get("null", {}).get("worst", ""),
        "spread": info.noise.get("between_processes", {}).get("relative_sd", ""),
        "method": result.method.get("speedup", ""),
    }
    return {column: str(values[column]) for column in COLUMNS}


def rows(suite: str, lines: Sequence[Line]) -> list[Row]:
    """The reference's models of a suite, in its order."""
    here = {line["model"]: line for line in lines if line["suite"] == suite}
    suite_rows = []
    with (REFERENCE / f"{suite}.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            passed = line["accuracy"] in ("pass", "pass_due_to_skip")
            speedup = float(line["speedup"]) if passed else None
            numbers = float(line["compile_s"]), float(line["mem_ratio"])
            suite_rows.append(Row(line["name"], speedup, *numbers, here.get(line["name"])))
    return suite_rows


def page(lines: Sequence[Line]) -> str:
    """The whole page."""
    by_suite = {suite: rows(suite, lines) for suite in SUITES}
    measured = [row for suite_rows in by_suite.values() for row in suite_rows if row.here]
    letters = host_letters(measured)
    parts = [
        "# The reference dashboard, and the same models here",
        "",
        "Made by `python benchmarks/dashboard.py RUN ...`: float32, batch size 1 (pytorch_stargan: 16), one "
        "thread, `inductor` against `eager`, random weights. *There* is the public Inductor CPU dashboard "
        "(Xeon Platinum 8375C, 2023). Another processor and another torch, so the numbers are not expected "
        "to be alike: models that pass there should pass here. `+-` is half the width of the 95 % interval. "
        f"Where wall time and CPU time give speedups more than {CLOCKS_DISAGREE:.0%} apart, both are shown. "
        "Compilation latency is wall time: programs beside it lengthen it.",
        "",
        *about(measured, letters),
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
        _means("median half width of the intervals", by_suite, _half_width),
        _means("inconclusive", by_suite, _inconclusive),
        "",
        *failures(by_suite),
    ]
    for suite in SUITES:
        parts += ["", f"## {suite}", "", *models(by_suite[suite], letters)]
    return "\n".join(parts) + "\n"


def _host(line: Line) -> tuple[str, ...]:
    return tuple(line[column] for column in RUN)


def host_letters(measured: Sequence[Row]) -> dict[tuple[str, ...], str]:
    """A letter for each host and run, the one with the most models first."""
    counts = Counter(_host(row.here) for row in measured if row.here)
    return dict(zip((host for host, _ in counts.most_common()), string.ascii_uppercase, strict=False))


def about(measured: Sequence[Row], letters: dict[tuple[str, ...], str]) -> list[str]:
    """Where the rows were measured, with what noise, and how narrow the intervals are there."""
    sentences = []
    for host, letter in letters.items():
        processor, isa, packages, null, spread, method = host
        of_host = [row for row in measured if row.here and _host(row.here) == host]
        days = sorted({row.here["started"][:10] for row in of_host if row.here})
        noise = f"a model against itself is off by at most {float(null):.2%}" if null else "noise unknown"
        between = f", processes by {float(spread):.2%} (standard deviation)" if spread else ""
        old = (
            "" if method == str(CURRENT["speedup"]) else "; intervals by an earlier method, which were wider"
        )
        widths = [width for row in of_host if (width := row.half_width) is not None]
        narrow = (
            f"; half widths: median {statistics.median(widths):.1%}, largest {max(widths):.1%}"
            if widths
            else ""
        )
        period = " to ".join(dict.fromkeys([days[0], days[-1]]))
        instructions = f", {isa}" if isa else ""
        sentences.append(
            f"- **{letter}**: {len(of_host)} models on {processor} cores{instructions}, {period}; "
            f"{packages}; {noise}{between}{narrow}{old}."
        )
    return sentences


def _means(
    title: str, by_suite: dict[str, list[Row]], figure: Callable[[Sequence[Row]], tuple[str, str]]
) -> str:
    cells = [cell for suite in SUITES for cell in figure(by_suite[suite])]
    return f"| {title} | " + " | ".join(cells) + " |"


def _pass_rate(suite_rows: Sequence[Row]) -> tuple[str, str]:
    missing = sum(row.here is None for row in suite_rows)
    note = f" ({missing} not measured yet)" if missing else ""
    there, here = sum(row.passed_there for row in suite_rows), sum(row.passed_here for row in suite_rows)
    return f"{there}/{len(suite_rows)}", f"{here}/{len(suite_rows)}{note}"


def _figure(
    there: Sequence[float], here: Sequence[float], mean: Callable[[Sequence[float]], float], form: str
) -> tuple[str, str]:
    return form.format(mean(there)), form.format(mean(here)) if here else ""


def _here(suite_rows: Sequence[Row], column: str) -> list[float]:
    return [value for row in suite_rows if (value := row.number(column)) is not None]


def _clipped(suite_rows: Sequence[Row]) -> tuple[str, str]:
    there = [row.speedup for row in suite_rows if row.speedup is not None]
    return _figure(there, _here(suite_rows, "speedup"), clipped_geometric_mean, "{:.2f}x")


def _speedup(suite_rows: Sequence[Row]) -> tuple[str, str]:
    there = [row.speedup for row in suite_rows if row.speedup is not None]
    return _figure(there, _here(suite_rows, "speedup"), geometric_mean, "{:.3f}x")


def _compile(suite_rows: Sequence[Row]) -> tuple[str, str]:
    there = [row.compile_s for row in suite_rows if row.passed_there]
    return _figure(there, _here(suite_rows, "compile_s"), arithmetic_mean, "{:.1f}")


def _memory(suite_rows: Sequence[Row]) -> tuple[str, str]:
    there = [row.memory for row in suite_rows if row.passed_there and not math.isnan(row.memory)]
    return _figure(there, _here(suite_rows, "memory"), arithmetic_mean, "{:.2f}x")


def _half_width(suite_rows: Sequence[Row]) -> tuple[str, str]:
    widths = [width for row in suite_rows if (width := row.half_width) is not None]
    return "", f"{statistics.median(widths):.1%}" if widths else ""


def _inconclusive(suite_rows: Sequence[Row]) -> tuple[str, str]:
    verdicts = [row.here["verdict"].split(" ")[0] for row in suite_rows if row.here and row.passed_here]
    return "", f"{verdicts.count('inconclusive')} of {len(verdicts)}" if verdicts else ""


def failures(by_suite: dict[str, list[Row]]) -> list[str]:
    """Every status other than pass, with the reason in the record."""
    sentences = []
    for suite, suite_rows in by_suite.items():
        for row in suite_rows:
            if row.here is not None and row.here["status"] != "pass":
                there = "passes there" if row.passed_there else "fails there too"
                reason = row.here["reason"].replace("|", "\\|").replace("<", "&lt;")
                sentences.append(f"- {suite} {row.name}: `{row.here['status']}`, {there}. {reason}")
    return ["Every status other than `pass`:", "", *sentences] if sentences else []


def models(suite_rows: Sequence[Row], letters: dict[tuple[str, ...], str]) -> list[str]:
    """A table with a row for each model."""
    table = [
        "| model | speedup there | here | 95 % interval | +- | verdict | both clocks | eager ms "
        "| compile s there | here | memory there | here | graphs | breaks | host |",
        "| --- | ---: | ---: | --- | ---: | --- | --- |" + " ---: |" * 7 + " --- |",
    ]
    for row in suite_rows:
        line = row.here or dict.fromkeys(COLUMNS, "")
        speedup = f"{float(line['speedup']):.3f}" if line["speedup"] else ""
        status = f"`{line['status']}`" if line["status"] not in ("pass", "") else ""
        width = row.half_width
        cells = [
            row.name,
            f"{row.speedup:.3f}" if row.speedup is not None else "fail",
            " ".join(filter(None, [speedup, status])) or "not measured yet",
            f"{float(line['ci_low']):.3f} .. {float(line['ci_high']):.3f}" if line["ci_low"] else "",
            f"{width:.1%}" if width is not None else "",
            line["verdict"],
            f"wall {line['wall']}, CPU {line['cpu']}" if line["wall"] else "",
            line["eager_ms"],
            f"{row.compile_s:.1f}" if row.passed_there else "",
            line["compile_s"],
            f"{row.memory:.2f}" if row.passed_there else "",
            line["memory"],
            line["graphs"],
            line["breaks"],
            letters.get(_host(row.here), "") if row.here else "",
        ]
        table.append("| " + " | ".join(cells) + " |")
    return table


def main() -> None:
    """Merge the named runs into the table, and write the page."""
    lines: list[Line] = []
    if TABLE.exists():
        with TABLE.open(newline="") as file:
            lines = [{**dict.fromkeys(COLUMNS, ""), **line} for line in csv.DictReader(file)]
    for name in sys.argv[1:]:
        folder = find_run(name, Path("runs"))
        lines = merge(lines, read_info(folder), read_results(folder))
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    PAGE.write_text(page(lines))


if __name__ == "__main__":
    main()
