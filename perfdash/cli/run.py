"""`perfdash run`: measure models, or resume an earlier run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfdash.runner.run import Run


def run(
    suite: Annotated[
        list[str] | None, typer.Option(help="Suite by name, or its TOML file by path. Repeatable.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model of your own: file.py:function, function(batch_size) -> (module, inputs)."),
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option(help="Only models that match, e.g. 'mobile*'. Repeatable, or commas.")
    ] = None,
    batch_size: Annotated[
        list[str] | None, typer.Option(help="Instead of the suite's batch size. Repeatable, or commas.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.  [default: cpu]")] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="float32, bfloat16, float16, amp.  [default: float32, or the suite's ways]"),
    ] = None,
    amp_dtype: Annotated[
        str | None, typer.Option(help="What amp casts to.  [default: bfloat16 on cpu, float16 on cuda]")
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            help="How models are run (docs/techniques.md).  [default: inductor, or the suite's ways]"
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="inference, training, generation.  [default: the suite's, or inference]"),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of torch and OpenMP, each on a core of its own.  [default: 1]")
    ] = None,
    cores: Annotated[
        str | None, typer.Option(help="Which cores, e.g. 0-3,8.  [default: the last ones]")
    ] = None,
    torchbench: Annotated[
        Path | None,
        typer.Option(help="A checkout of torchbench: its models are the suite torchbench-checkout."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the suite's few quick models, unless --models names some.")
    ] = False,
    python: Annotated[str | None, typer.Option(help="Measure the torch of another interpreter.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder that run folders are made in.  [default: runs]")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(help="Exit 1 on: accuracy, failure, slower, regression (by the history)."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML for a CI.")] = None,
    allocator: Annotated[
        str | None,
        typer.Option(help="Malloc while timing: steady, default, jemalloc, tcmalloc.  [default: steady]"),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(help="Sample every case in this many processes.  [default: 1, and several for a few]"),
    ] = None,
    env: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for the worker. Repeatable.")] = None,
    inductor_config: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE of torch._inductor.config. Repeatable.")
    ] = None,
    compile_mode: Annotated[str | None, typer.Option(help="mode= of torch.compile.")] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Compile with dynamic shapes.")] = False,
    weights: Annotated[
        str | None,
        typer.Option(help="random, pretrained (from the hub), or a file of them.  [default: random]"),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="Of a training step: sgd, adam, none.  [default: the suite's, or sgd]"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Labelled data to score models on: an image folder, or a CSV of text,label."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds a case may take, instead of the suite's.")
    ] = None,
    phase_timeout: Annotated[
        list[str] | None, typer.Option(help="PHASE=SECONDS that a phase may take, e.g. compile=600.")
    ] = None,
    memory_limit: Annotated[
        float | None, typer.Option(help="GiB a case may use, instead of the suite's.  [default: 90 % of all]")
    ] = None,
    output_limit: Annotated[float | None, typer.Option(help="MiB a case may print.  [default: 64]")] = None,
    retries: Annotated[
        int | None,
        typer.Option(help="Times a case is tried again after the machine failed.  [default: 2]"),
    ] = None,
    retry_pause: Annotated[
        float | None, typer.Option(help="Seconds before it is tried again.  [default: 30]")
    ] = None,
    jobs: Annotated[
        str | None, typer.Option(help="Cases side by side, each on cores of its own; or auto.  [default: 1]")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="i/n: only the i-th of n parts; `perfdash merge` puts them together.")
    ] = None,
    costs: Annotated[
        str | None, typer.Option(help="A run whose durations plan the shards; the same for all of them.")
    ] = None,
    executor: Annotated[str | None, typer.Option(help="local or dask.  [default: local]")] = None,
    scheduler: Annotated[str | None, typer.Option(help="Address of the Dask scheduler, tcp://...")] = None,
    db: Annotated[
        str | None,
        typer.Option("--db", help="The history it goes into.  [default: history.db in --out]"),
    ] = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Keep the run out of the history: an experiment.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option(help="Go on with a run (folder, name or `last`): what is left of it.")
    ] = None,
    retry: Annotated[
        list[str] | None,
        typer.Option(help="With --resume: measure again what ended with this status. Repeatable, or commas."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be measured, and for how long about.")
    ] = False,
    find_batch_size: Annotated[
        bool,
        typer.Option(
            "--find-batch-size", help="Only find the largest batch sizes that fit into --memory-limit."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run or --find-batch-size: for programs.")
    ] = False,
) -> None:
    """Measure models: speedup, compilation latency, peak memory, accuracy."""
    flags = dict(locals())
    from perfdash.errors import UsageError
    from perfdash.report.gates import check_settings
    from perfdash.runner import run as runs
    from perfdash.settings import resolve

    for key in ("resume", "retry", "dry_run", "find_batch_size", "as_json"):
        del flags[key]
    if find_batch_size:
        from perfdash.cli import find_batch_size as command

        if resume is not None or dry_run:
            raise UsageError("--find-batch-size goes with neither --resume nor --dry-run: it keeps nothing")
        raise typer.Exit(command.shown(flags, as_json))
    if dry_run:
        from perfdash.cli.dry_run import shown

        if resume is not None:
            raise UsageError("--dry-run is of a new run; `perfdash show RUN` says how far one has come")
        raise typer.Exit(shown(flags, as_json))
    if as_json:
        raise UsageError(
            "--json needs --dry-run or --find-batch-size; the results of a run are in its results.jsonl"
        )
    if resume is not None:
        statuses = runs.parse_statuses(retry or ())
        folder, info, settings = runs.run_to_resume(resume, flags)
        check_settings(settings)
        resumed = runs.resumed_run(folder, info, settings, statuses, _note)
        typer.echo(f"{folder.name}: {len(resumed.left)} of {len(resumed.plan.mine)} cases to measure")
        raise typer.Exit(_measure(resumed))
    if retry:
        raise UsageError("--retry needs --resume RUN: it measures rows of an earlier run again")
    settings, _ = resolve(flags)
    check_settings(settings)
    raise typer.Exit(_measure(runs.new_run(settings)))


def _measure(run: Run) -> int:
    """Measure, show the summary, put the run into the history; the exit code."""
    from perfdash.cli.progress import open_progress
    from perfdash.report.gates import run_gates
    from perfdash.report.run_recording import record
    from perfdash.report.terminal_tables import summary
    from perfdash.runner.run import measure

    with open_progress() as progress:
        measure(run, progress, _note)
    settings, info, results, folder = run.settings, run.info, run.results, run.journal.folder
    if results:
        typer.echo(summary(results, info))
    typer.echo(f"Saved in {folder}")
    unkept = record(settings, info, results, folder, _note) if results else 0
    if run.interrupted:
        _note(
            f"Interrupted after {len(results)} of {info.cases} cases. "
            f"To go on: perfdash run --resume {folder}"
        )
        return 130
    return run_gates(settings, info, results, str(folder), _note) or unkept


def _note(text: str) -> None:
    typer.echo(text, err=True)
