"""`perfdash run`: measure."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from perfdash.cases import Planned
    from perfdash.records import Result, RunInfo
    from perfdash.runner.session import Options
    from perfdash.settings import RunSettings


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
        list[str] | None, typer.Option(help="float32, bfloat16, float16, amp.  [default: float32]")
    ] = None,
    amp_dtype: Annotated[
        str | None, typer.Option(help="What amp casts to.  [default: bfloat16 on cpu, float16 on cuda]")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help="eager, inductor, aot-eager.  [default: inductor]")
    ] = None,
    scenario: Annotated[str | None, typer.Option(help="inference.  [default: inference]")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of torch and OpenMP, each on a core of its own.  [default: 1]")
    ] = None,
    cores: Annotated[
        str | None, typer.Option(help="Which cores, e.g. 0-3,8.  [default: the last ones]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the suite's few quick models, unless --models names some.")
    ] = False,
    python: Annotated[str | None, typer.Option(help="Measure the torch of another interpreter.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder that run folders are made in.  [default: runs]")
    ] = None,
    fail_on: Annotated[list[str] | None, typer.Option(help="Exit 1 on: accuracy, failure, slower.")] = None,
    allocator: Annotated[
        str | None,
        typer.Option(help="Malloc while timing: steady, default, jemalloc, tcmalloc.  [default: steady]"),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Sample every case in this many processes.  [default: 1, and several for the first few]"
        ),
    ] = None,
    env: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for the worker. Repeatable.")] = None,
    inductor_config: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE of torch._inductor.config. Repeatable.")
    ] = None,
    compile_mode: Annotated[str | None, typer.Option(help="mode= of torch.compile.")] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Compile with dynamic shapes.")] = False,
    weights: Annotated[
        str | None, typer.Option(help="random or pretrained (from the hub).  [default: random]")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds a case may take, instead of the suite's.")
    ] = None,
) -> None:
    """Measure models: speedup, compilation latency, peak memory, accuracy."""
    from perfdash.settings import resolve

    flags = {key: value for key, value in locals().items() if key != "resolve"}
    settings, _ = resolve(flags)
    raise typer.Exit(_measure(settings))


def _measure(settings: RunSettings) -> int:
    """Plans, measures, prints; the exit code."""
    from perfdash.cli.progress import open_progress
    from perfdash.errors import PerfdashError
    from perfdash.report.tables import summary
    from perfdash.runner.cores import choose_cores
    from perfdash.runner.journal import Journal
    from perfdash.runner.session import Options, Session

    planned, dynamo_names = _plan(settings)
    cores = choose_cores(settings.threads, settings.cores)
    options = Options(
        python=settings.python,
        cores=cores,
        threads=settings.threads,
        allocator=settings.allocator,
        processes=settings.processes,
        weights=settings.weights,
        compile_mode=settings.compile_mode,
        inductor_config=settings.inductor_config,
    )
    _check_machine(settings)
    journal = Journal.create(settings.out)
    info = _info(journal.folder.name, settings, options, len(planned))
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _interrupt)
    with open_progress() as progress:
        session = Session(planned, options, journal, info, progress, dynamo_names)
        interrupted = False
        try:
            session.run()
        except KeyboardInterrupt:
            interrupted = True
        except PerfdashError:
            if not session.results:
                journal.discard()
            raise
    if session.results:
        typer.echo(summary(session.results, info))
    typer.echo(f"Saved in {journal.folder}")
    if interrupted:
        typer.echo(f"Interrupted after {len(session.results)} of {len(planned)} cases.", err=True)
        return 130
    return _gate(session.results, settings.fail_on)


def _plan(settings: RunSettings) -> tuple[list[Planned], dict[str, str]]:
    from perfdash.cases import Selection, select
    from perfdash.errors import UsageError
    from perfdash.suites import load_suite, own_models
    from perfdash.worker import registry

    for kind, names in (("backends", settings.backend), ("scenarios", (settings.scenario,))):
        for name in names:
            if registry.canonical(name) not in registry.names(kind):
                raise UsageError(f"--{kind[:-1]} {name!r}: there are: {', '.join(registry.names(kind))}")
    suites = [load_suite(name) for name in settings.suite]
    if settings.model:
        suites.append(own_models(settings.model))
    if not suites:
        raise UsageError("what to measure? give --suite NAME (`perfdash list`) or --model file.py:function")
    selection = Selection(
        models=settings.models,
        quick=settings.quick,
        batch_sizes=settings.batch_size,
        device=settings.device,
        dtypes=settings.dtype,
        amp_dtype=settings.amp_dtype,
        threads=settings.threads,
        scenario=settings.scenario,
        backends=settings.backend,
        dynamic=settings.dynamic,
        env=tuple(settings.env.items()),
        timeout_s=settings.timeout,
        freezing=bool(settings.inductor_config.get("freezing")),
    )
    return select(suites, selection), {suite.name: suite.dynamo_name or suite.name for suite in suites}


def _check_machine(settings: RunSettings) -> None:
    """What would make every case fail, said once and before."""
    from perfdash.errors import MachineError
    from perfdash.runner import host

    if settings.allocator in ("jemalloc", "tcmalloc") and not host.allocator_library(settings.allocator):
        package = {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4"}[settings.allocator]
        raise MachineError(
            f"--allocator {settings.allocator}: its library is not installed (Debian: {package}); "
            "install it, or use --allocator steady"
        )
    if "inductor" in settings.backend and settings.device == "cpu" and not host.compiler():
        raise MachineError("inductor needs a C++ compiler on the CPU: install g++, or set CXX")


def _info(run_id: str, settings: RunSettings, options: Options, cases: int) -> RunInfo:
    from perfdash import __version__
    from perfdash.records import RunInfo
    from perfdash.runner import host
    from perfdash.runner.journal import now

    facts = host.facts()
    configuration: dict[str, Any] = settings.model_dump(mode="json")
    configuration["env"] = dict(
        pair.split("=", 1) for pair in host.mask_secrets([f"{k}={v}" for k, v in settings.env.items()])
    )
    return RunInfo(
        id=run_id,
        started=now(),
        host=facts["host"],
        command=["perfdash", *host.mask_secrets(sys.argv[1:])],
        configuration={**configuration, "cores": list(options.cores)},
        environment={**facts, "host_class": host.host_class(facts)},
        cases=cases,
        perfdash=__version__,
    )


def _gate(results: list[Result], fail_on: tuple[str, ...]) -> int:
    """1 where a gate that the user asked for failed, with the rows that did it; else 0."""
    from perfdash.records import PASSING, Status

    failing = {
        "accuracy": [r for r in results if r.status is Status.FAIL_ACCURACY],
        "failure": [r for r in results if r.status not in PASSING | {Status.SKIPPED}],
        "slower": [r for r in results if r.status in PASSING and r.speedup and r.speedup.verdict == "slower"],
    }
    code = 0
    for gate in fail_on:
        if failing[gate]:
            names = ", ".join(r.case.model for r in failing[gate])
            typer.echo(f"--fail-on {gate}: {len(failing[gate])} of {len(results)}: {names}", err=True)
            code = 1
    return code


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
