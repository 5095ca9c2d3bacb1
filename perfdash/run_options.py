"""The options of `perfdash run`, each declared once: type, default, bounds and help.

The flag, the PERFDASH_ variable and the key of perfdash.toml are made from the declaration. An option that
only sets a field of a case's specification is declared there (records.Specification). settings.py reads and
validates the values. Nothing heavy is imported here: `perfdash --help` needs the declarations at once.
"""

# ruff: noqa: RUF012 - nothing changes the default tables: pydantic copies them

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from perfdash.metrics import EQUIVALENCE_MARGIN
from perfdash.records import Dtype, Option, Phase, Specification, declared_options


class CaseSelection:
    """What is measured, and how: which cases, built and compiled how, on which cores."""

    suite: Annotated[tuple[str, ...], Option("Suite by name, or its TOML file by path. Repeatable.")] = ()
    model: Annotated[
        tuple[str, ...],
        Option("A model of your own: file.py:function, function(batch_size) -> (module, inputs)."),
    ] = ()
    models: Annotated[
        tuple[str, ...], Option("Only models that match, e.g. 'mobile*'. Repeatable, or commas.")
    ] = ()
    batch_size: Annotated[
        tuple[int, ...], Option("Instead of the suite's batch size. Repeatable, or commas.")
    ] = ()
    device: Annotated[Literal["cpu", "cuda"], Option("cpu or cuda.  [default: cpu]")] = "cpu"
    dtype: Annotated[
        tuple[Dtype, ...],
        Option(
            "float32, bfloat16, float16, amp.  [default: float32, or the suite's ways]", configuration=True
        ),
    ] = ()
    amp_dtype: Annotated[
        Literal["bfloat16", "float16"] | None,
        Option("What amp casts to.  [default: bfloat16 on cpu, float16 on cuda]", configuration=True),
    ] = None
    backend: Annotated[
        tuple[str, ...],
        Option(
            "How models are run (docs/techniques.md).  [default: inductor, or the suite's ways]",
            configuration=True,
        ),
    ] = ()
    scenario: Annotated[
        str | None,
        Option(
            "inference, training, generation, sizes.  [default: the suite's, or inference]",
            configuration=True,
        ),
    ] = None
    threads: Annotated[
        int,
        Option(
            "Threads of torch and OpenMP, each on a core of its own; or socket: all cores of one, with "
            "--bind-memory.  [default: 1]",
            at_least=1,
            words=("socket",),
            configuration=True,
        ),
    ] = 1
    bind_memory: Annotated[
        bool,
        Option(
            "Bind memory to the NUMA nodes of the cores, and each thread to one core.", configuration=True
        ),
    ] = False
    instances: Annotated[
        str | None,
        Option("4x14: also run 4 instances of 14 threads at once, for throughput.  [default: none]"),
    ] = None
    cores: Annotated[str | None, Option("Which cores, e.g. 0-3,8.  [default: the last ones]")] = None
    torchbench: Annotated[
        Path | None, Option("A checkout of torchbench: its models are the suite torchbench-checkout.")
    ] = None
    quick: Annotated[bool, Option("Only the suite's few quick models, unless --models names some.")] = False
    python: Annotated[str, Option("Measure the torch of another interpreter.")] = sys.executable
    out: Annotated[Path, Option("Folder that run folders are made in.  [default: runs]")] = Path("runs")
    fail_on: Annotated[
        tuple[Literal["accuracy", "failure", "slower", "regression"], ...],
        Option("Exit 1 on: accuracy, failure, slower, regression (by the history)."),
    ] = ()
    junit: Annotated[Path | None, Option("Also write JUnit XML for a CI.")] = None
    allocator: Annotated[
        Literal["steady", "default", "jemalloc", "tcmalloc"],
        Option("Malloc while timing: steady, default, jemalloc, tcmalloc.  [default: steady]"),
    ] = "steady"
    processes: Annotated[
        int | None,
        Option(
            "Sample every case in this many processes.  [default: 2, and 2 more where these disagree]",
            at_least=1,
        ),
    ] = None
    env: Annotated[dict[str, str], Option("KEY=VALUE for the worker. Repeatable.", configuration=True)] = {}
    inductor_config: Annotated[
        dict[str, Any], Option("KEY=VALUE of torch._inductor.config. Repeatable.", configuration=True)
    ] = {}
    compile_mode: Annotated[str | None, Option("mode= of torch.compile.", configuration=True)] = None
    dynamic: Annotated[bool, Option("Compile with dynamic shapes.", configuration=True)] = False
    configuration: Annotated[
        tuple[str, ...],
        Option("Named settings, or a TOML file of them (docs/configurations.md). Repeatable, or commas."),
    ] = ()
    weights: Annotated[
        str, Option("random, pretrained (from the hub), or a file of them.  [default: random]")
    ] = "random"


class RunOptions(CaseSelection):
    """Every option of a run but those of Specification: also limits, slots, shards and history."""

    data: Annotated[
        Path | None, Option("Labelled data to score models on: an image folder, or a CSV of text,label.")
    ] = None
    margin: Annotated[
        float, Option("What counts as equivalent: so far from 1.00x.  [default: 0.03]", above=0)
    ] = EQUIVALENCE_MARGIN
    strict: Annotated[
        bool, Option("Refuse to measure on a machine on which a model differs from itself.")
    ] = False
    timeout: Annotated[float | None, Option("Seconds a case may take, instead of the suite's.", above=0)] = (
        None
    )
    phase_timeout: Annotated[
        dict[Phase, float], Option("PHASE=SECONDS that a phase may take, e.g. compile=600.", above=0)
    ] = {}
    memory_limit: Annotated[
        float | None,
        Option("GiB a case may use, instead of the suite's.  [default: 90 % of all]", above=0),
    ] = None
    output_limit: Annotated[float | None, Option("MiB a case may print.  [default: 64]", above=0)] = None
    retries: Annotated[
        int, Option("Times a case is tried again after the machine failed.  [default: 2]", at_least=0)
    ] = 2
    retry_pause: Annotated[float, Option("Seconds before it is tried again.  [default: 30]", at_least=0)] = (
        30.0
    )
    wait: Annotated[
        float | None,
        Option("Wait so long for cores that another run measures on, e.g. 2h.", duration=True),
    ] = None
    jobs: Annotated[
        int | Literal["auto"],
        Option("Cases side by side, each on cores of its own; or auto.  [default: 1]"),
    ] = 1
    hours: Annotated[
        float | None,
        Option("Measure what fits into this many hours, the cases that waited longest first.", above=0),
    ] = None
    shard: Annotated[
        str | None, Option("i/n: only the i-th of n parts; `perfdash merge` puts them together.")
    ] = None
    costs: Annotated[
        str | None, Option("A run whose durations plan the shards; the same for all of them.")
    ] = None
    executor: Annotated[Literal["local", "dask"], Option("local or dask.  [default: local]")] = "local"
    scheduler: Annotated[str | None, Option("Address of the Dask scheduler, tcp://...")] = None
    db: Annotated[str | None, Option("The history it goes into.  [default: history.db in --out]")] = None
    no_code: Annotated[bool, Option("Do not keep the generated code, of private models for example.")] = False
    no_share: Annotated[
        bool, Option("Measure eager's memory and outputs anew in every configuration of a model.")
    ] = False
    no_history: Annotated[bool, Option("Keep the run out of the history: an experiment.")] = False


def run_options() -> dict[str, tuple[Any, Option, Any]]:
    """(type, Option, default) of every option of a run, in the order of --help.

    The default of an option of Specification is None: then the suite's value counts.
    """
    selection, of_run = declared_options(CaseSelection), declared_options(RunOptions)
    of_case = {
        name: (kind | None, option)
        for name, (kind, option) in declared_options(Specification).items()
        if option.help
    }
    return {
        name: (kind, option, getattr(RunOptions, name, None))
        for name, (kind, option) in {**selection, **of_case, **of_run}.items()
    }


@functools.cache
def configuration_keys() -> dict[str, tuple[Any, Option]]:
    """(type, Option) of each option that a configuration file may set."""
    return {
        name: (kind, option)
        for name, (kind, option, _) in run_options().items()
        if option.configuration or name in declared_options(Specification)
    }


def without_none(kind: Any) -> Any:
    """`X` for `X | None`, any other type as it is."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    kinds = [part for part in get_args(kind) if part is not NoneType]
    return kinds[0] if len(kinds) == 1 else kind
