"""A night of several configurations, its cost beside that of a run each, and its matrix in Markdown.

    python benchmarks/configurations_night.py FOLDER [--suites timm,huggingface,torchbench]
        [--models NAME ...] [--configurations default,dynamic,...] [--cores 0] [--only-night]
        [--page results/configurations.md]

Measures the quick models of the suites (or those of --models) under all configurations in one run, then
under each in a run of its own, all in FOLDER. Repeat the command to go on after an interruption: a run that
is done is not repeated, one that was ended is resumed, and costs add up. CPU seconds are of all processes of
a run, user and system; those of a session that was killed are lost.

The page has one row a suite and configuration, one row a model, and the costs. Wanted: the night costs at
most 0.75 of the separate runs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from perfdash.files import write
from perfdash.records import PASSING, Result
from perfdash.runner.run_journal import read_info, read_results
from perfdash.stats.means import geometric_mean, geometric_mean_interval

PAGE = Path(__file__).parents[1] / "results" / "configurations.md"
SUITES = "timm,huggingface,torchbench"
CONFIGURATIONS = "default,dynamic,freezing,cpp-wrapper,aot-inductor"
NIGHT = "night"


def command_of(arguments: argparse.Namespace, configurations: str, out: Path) -> list[str]:
    """The run of some configurations, or its resumption where its folder exists."""
    perfdash = [sys.executable, "-m", "perfdash", "run"]
    begun = sorted(out.glob("*/run.json"))
    if begun:
        return [*perfdash, "--resume", str(begun[-1].parent), "--cores", arguments.cores]
    words = [word for suite in arguments.suites.split(",") for word in ("--suite", suite)]
    words += ["--models", ",".join(arguments.models)] if arguments.models else ["--quick"]
    words += ["--configuration", configurations, "--cores", arguments.cores]
    return [*perfdash, *words, "--no-history", "--out", str(out)]


def measure(arguments: argparse.Namespace, name: str, configurations: str) -> Path:
    """Measure a run until it is done; its folder. Adds its cost to FOLDER/costs.json."""
    out = arguments.folder / name
    begun = sorted(out.glob("*/run.json"))
    if begun and read_info(begun[-1].parent).state == "done":
        return begun[-1].parent
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    code = subprocess.run(command_of(arguments, configurations, out)).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = arguments.folder / "costs.json"
    costs = json.loads(path.read_text()) if path.exists() else {}
    cost = costs.setdefault(name, {"wall_s": 0.0, "cpu_s": 0.0})
    cost["wall_s"] += time.monotonic() - started
    cost["cpu_s"] += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    write(path, json.dumps(costs, indent=1))
    if code:
        sys.exit(f"{name} ended with code {code}: repeat the command to go on")
    return sorted(out.glob("*/run.json"))[-1].parent


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of Markdown: text in the first column, numbers in the others."""
    lines = [head, [":---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def summary(results: Sequence[Result]) -> list[str]:
    """Pass rate, geometric means of speedup, compilation latency and compression ratio, of some results."""
    tried = [result for result in results if result.status.value != "skipped"]
    passed = [result for result in tried if result.status in PASSING]
    rate = f"{len(passed)}/{len(tried)}" if tried else "skipped"
    speedups = [
        (result.speedup.value, result.speedup.ci_low, result.speedup.ci_high)
        for result in passed
        if result.speedup and result.speedup.ci_low and result.speedup.ci_high
    ]
    shown = "-"
    if speedups:
        low, high = geometric_mean_interval(speedups)
        shown = f"{geometric_mean([value for value, _, _ in speedups]):.3f}x [{low:.3f}, {high:.3f}]"
    seconds = [result.compilation_s for result in passed if result.compilation_s]
    ratios = [result.compression_ratio for result in passed if result.compression_ratio]
    compiling = f"{geometric_mean(seconds):.1f}" if seconds else "-"
    return [rate, shown, compiling, f"{geometric_mean(ratios):.3f}x" if ratios else "-"]


def speedup_of(result: Result) -> str:
    """The speedup with its interval, else the status."""
    if result.status not in PASSING or result.speedup is None:
        return result.marked_status
    speedup = result.speedup
    ends = "" if speedup.ci_low is None else f" [{speedup.ci_low:.3f}, {speedup.ci_high:.3f}]"
    return f"{speedup.value:.3f}x{ends}"


def matrix(results: Sequence[Result], configurations: Sequence[str]) -> list[str]:
    """The tables of a night: suites x configurations, then models x configurations."""
    by_suite: dict[str, dict[str, list[Result]]] = {}
    by_model: dict[str, dict[str, Result]] = {}
    for result in results:
        case = result.case
        by_suite.setdefault(case.suite, {}).setdefault(case.configuration, []).append(result)
        by_model.setdefault(f"{case.suite}/{case.model} bs {case.batch_size}", {})[case.configuration] = (
            result
        )
    rows = [
        [f"{suite}, {name}", *summary(under[name])]
        for suite, under in by_suite.items()
        for name in configurations
        if name in under
    ]
    head = [
        "suite, configuration",
        "passed",
        "speedup, geometric mean",
        "compile s, geometric mean",
        "memory ratio",
    ]
    models = [
        [model, *(speedup_of(under[name]) if name in under else "-" for name in configurations)]
        for model, under in by_model.items()
    ]
    reasons = [
        f"- `{result.case.model}`, {result.case.configuration}: {result.status}: "
        + (result.skip_reason or (result.error.message.splitlines()[0] if result.error else ""))[:200]
        for result in results
        if result.status not in PASSING
    ]
    lines = [*table(head, rows), "", "Speedup over eager, with its 95 % interval:", ""]
    return lines + table(["model", *configurations], models) + (["", *reasons] if reasons else [])


def shared(results: Sequence[Result]) -> str:
    """How many cases took eager's memory and outputs from another case."""
    memory = sum("shared_from" in (result.memory.get("eager") or {}) for result in results)
    outputs = sum("shared_from" in result.accuracy for result in results)
    return f"Of {len(results)} cases {memory} took eager's memory from another case, {outputs} its outputs."


def cost_rows(costs: dict[str, dict[str, float]], configurations: Sequence[str]) -> list[list[str]]:
    """CPU and wall seconds of the night and of the separate runs, and their ratio where all are done."""

    def row(name: str, cost: dict[str, float]) -> list[str]:
        return [name, f"{cost['cpu_s']:.0f}", f"{cost['wall_s']:.0f}"]

    rows = [row("one night", costs[NIGHT])]
    alone = [costs[name] for name in configurations if name in costs]
    rows += [row(f"{name} alone", costs[name]) for name in configurations if name in costs]
    if len(alone) == len(configurations):
        total = {key: sum(cost[key] for cost in alone) for key in ("cpu_s", "wall_s")}
        rows.append(row("all alone", total))
        ratios = [f"{costs[NIGHT][key] / total[key]:.3f}" for key in ("cpu_s", "wall_s")]
        rows.append(["one night / all alone", *ratios])
    return rows


def page(folder: Path, run: Path, configurations: Sequence[str]) -> str:
    """The page, from a finished night and the costs in the folder."""
    info, results = read_info(run), read_results(run)
    costs: dict[str, Any] = json.loads((folder / "costs.json").read_text())
    worker = info.environment.get("worker") or {}
    models = {(result.case.suite, result.case.model) for result in results}
    lines = [
        "# Configurations in one night",
        "",
        f"{len(models)} models x {len(configurations)} configurations, {info.started[:10]}, "
        f"{info.environment.get('host_class', '')}, torch `{worker.get('torch', '')}`, one thread. Made by "
        "`python benchmarks/configurations_night.py`.",
        "",
        *matrix(results, configurations),
        "",
        "## What the night cost",
        "",
        *table(["run", "CPU s", "wall s"], cost_rows(costs, configurations)),
        "",
        shared(results),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="A night of several configurations, and what it costs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--suites", default=SUITES)
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--configurations", default=CONFIGURATIONS)
    parser.add_argument("--cores", default="0")
    parser.add_argument("--only-night", action="store_true", help="leave the separate runs out")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    configurations = arguments.configurations.split(",")
    run = measure(arguments, NIGHT, arguments.configurations)
    for name in () if arguments.only_night else configurations:
        measure(arguments, name, name)
    write(arguments.page, page(arguments.folder, run, configurations))
    print(arguments.page)


if __name__ == "__main__":
    main()
