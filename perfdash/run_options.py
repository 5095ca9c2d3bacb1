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

    suite: Annotated[
        tuple[str, ...], Option("A suite by name (perfdash list), or its TOML file by path. Repeatable.")
    ] = ()
    model: Annotated[
        tuple[str, ...],
        Option(
            "A model of your own: file.py:function. The function takes a "
            "batch size and returns (module, inputs)."
        ),
    ] = ()
    models: Annotated[
        tuple[str, ...],
        Option("Only the models of the suites that match, e.g. 'mobile*'. Repeatable, or commas."),
    ] = ()
    batch_size: Annotated[
        tuple[int, ...], Option("Batch sizes instead of the suite's. Repeatable, or commas.")
    ] = ()
    device: Annotated[Literal["cpu", "cuda"], Option("cpu or cuda.  [default: cpu]")] = "cpu"
    dtype: Annotated[
        tuple[Dtype, ...],
        Option(
            "float32, bfloat16, float16, amp.  [default: float32, or those of the suite]", configuration=True
        ),
    ] = ()
    amp_dtype: Annotated[
        Literal["bfloat16", "float16"] | None,
        Option(
            "The dtype that autocast (amp) casts to.  [default: bfloat16 on cpu, float16 on cuda]",
            configuration=True,
        ),
    ] = None
    backend: Annotated[
        tuple[str, ...],
        Option(
            "How models are compiled and run (docs/techniques.md).  "
            "[default: inductor, or those of the suite]",
            configuration=True,
        ),
    ] = ()
    scenario: Annotated[
        str | None,
        Option(
            "inference, training, generation, sizes.  [default: that of the suite, or inference]",
            configuration=True,
        ),
    ] = None
    threads: Annotated[
        int,
        Option(
            "Threads of torch and OpenMP, each on a core of its own; "
            "`socket` takes all cores of one socket and "
            "binds memory to it.  [default: 1]",
            at_least=1,
            words=("socket",),
            configuration=True,
        ),
    ] = 1
    bind_memory: Annotated[
        bool,
        Option(
            "Bind memory to the NUMA nodes of the cores, and pin each thread to one core.", configuration=True
        ),
    ] = False
    instances: Annotated[
        str | None,
        Option(
            "Also measure throughput: 4x14 runs 4 processes of 14 threads at the same time.  [default: none]"
        ),
    ] = None
    cores: Annotated[str | None, Option("Measure on these cores, e.g. 0-3,8.  [default: the last ones]")] = (
        None
    )
    torchbench: Annotated[
        Path | None, Option("A checkout of torchbench: its models are the suite torchbench-checkout.")
    ] = None
    quick: Annotated[
        bool, Option("Only the few models that the suite marks as quick. No effect with --models.")
    ] = False
    python: Annotated[
        str, Option("Measure the torch of this interpreter.  [default: the one that runs perfdash]")
    ] = sys.executable
    out: Annotated[Path, Option("Folder of the runs; each run gets a folder in it.  [default: runs]")] = Path(
        "runs"
    )
    fail_on: Annotated[
        tuple[Literal["accuracy", "failure", "slower", "regression"], ...],
        Option(
            "Exit with code 1 if any result has one of these problems: accuracy, "
            "failure, slower (than eager), regression "
            "(against earlier nights). Repeatable, or commas."
        ),
    ] = ()
    junit: Annotated[Path | None, Option("Also write the results as JUnit XML, for a CI.")] = None
    allocator: Annotated[
        Literal["steady", "default", "jemalloc", "tcmalloc"],
        Option(
            "The malloc that is used while timing: steady, default, jemalloc, tcmalloc.  [default: steady]"
        ),
    ] = "steady"
    processes: Annotated[
        int | None,
        Option(
            "Sample each case in this many processes.  [default: 2, and 2 more if they disagree]",
            at_least=1,
        ),
    ] = None
    env: Annotated[
        dict[str, str],
        Option(
            "KEY=VALUE: an environment variable of the measured processes. Repeatable.", configuration=True
        ),
    ] = {}
    inductor_config: Annotated[
        dict[str, Any],
        Option("KEY=VALUE: a setting of torch._inductor.config. Repeatable.", configuration=True),
    ] = {}
    compile_mode: Annotated[
        str | None, Option("The mode of torch.compile, e.g. max-autotune.", configuration=True)
    ] = None
    dynamic: Annotated[bool, Option("Compile with dynamic shapes.", configuration=True)] = False
    configuration: Annotated[
        tuple[str, ...],
        Option("Named settings, or a TOML file of settings (docs/configurations.md). Repeatable, or commas."),
    ] = ()
    weights: Annotated[
        str, Option("random, pretrained (downloaded from the hub), or a file of weights.  [default: random]")
    ] = "random"


class RunOptions(CaseSelection):
    """Every option of a run but those of Specification: also limits, slots, shards and history."""

    data: Annotated[
        Path | None,
        Option(
            "Labelled data to score the models on: a folder of images by class, or a CSV of text and label."
        ),
    ] = None
    margin: Annotated[
        float, Option("Call a speedup `equivalent` within this distance of 1.00x.  [default: 0.03]", above=0)
    ] = EQUIVALENCE_MARGIN
    strict: Annotated[
        bool, Option("Exit with code 3 if a model compared with itself differs too much (docs/method.md).")
    ] = False
    timeout: Annotated[
        float | None,
        Option("Seconds that a case may take, instead of the suite's limit.", above=0, infinite=True),
    ] = None
    phase_timeout: Annotated[
        dict[Phase, float],
        Option("PHASE=SECONDS that a phase may take, e.g. compile=600.", above=0, infinite=True),
    ] = {}
    memory_limit: Annotated[
        float | None,
        Option(
            "GiB that a case may use, instead of the suite's limit.  [default: 90 % of the memory]", above=0
        ),
    ] = None
    output_limit: Annotated[float | None, Option("MiB that a case may print.  [default: 64]", above=0)] = None
    retries: Annotated[
        int, Option("How often to retry a case that failed because of the machine.  [default: 2]", at_least=0)
    ] = 2
    retry_pause: Annotated[float, Option("Seconds before a retry.  [default: 30]", at_least=0)] = 30.0
    wait: Annotated[
        float | None,
        Option("If another run uses the cores, wait up to this long, e.g. 90s, 30m, 2h.", duration=True),
    ] = None
    jobs: Annotated[
        int | Literal["auto"],
        Option("Cases at the same time, each on its own cores; or auto.  [default: 1]"),
    ] = 1
    hours: Annotated[
        float | None,
        Option(
            "Measure the cases that fit into this many hours, the longest unmeasured ones first.",
            above=0,
            infinite=True,
        ),
    ] = None
    shard: Annotated[
        str | None, Option("i/n: measure only part i of n. `perfdash merge-shards` combines the parts.")
    ] = None
    costs: Annotated[
        str | None,
        Option("Balance the shards by the durations of this earlier run, the same for all shards."),
    ] = None
    executor: Annotated[
        Literal["local", "dask"], Option("local (this machine), or dask (a cluster).  [default: local]")
    ] = "local"
    scheduler: Annotated[str | None, Option("Address of the Dask scheduler, e.g. tcp://10.0.0.1:8786.")] = (
        None
    )
    db: Annotated[
        str | None,
        Option(
            "The history that stores the results: a file or postgresql://...  [default: history.db in --out]"
        ),
    ] = None
    line: Annotated[
        str | None,
        Option(
            "The line of builds that is measured, e.g. main. Runs of other lines are not its earlier nights."
        ),
    ] = None
    no_code: Annotated[bool, Option("Do not keep the generated code, e.g. of private models.")] = False
    no_share: Annotated[
        bool, Option("Do not share eager's memory and outputs between the configurations of a model.")
    ] = False
    no_history: Annotated[bool, Option("Keep the run out of the history, for experiments.")] = False


# Options that --resume may change: where and how long a run measures, not what and how.
CHANGED_BY_RESUME = frozenset({
    "cores", "env", "executor", "fail_on", "memory_limit", "out", "output_limit", "phase_timeout",
    "python", "retries", "retry_pause", "scheduler", "timeout", "torchbench", "db", "no_history", "junit",
    "wait", "no_share", "suite", "model", "configuration",  # runner/run.py compares their content
})  # fmt: skip
# The options of `perfdash run` under the headings of its help.
HEADINGS = {
    "Models": ("suite", "model", "models", "batch_size", "quick", "torchbench", "weights", "data"),
    "How they are compiled and run": (
        "backend", "dtype", "amp_dtype", "device", "scenario", "configuration", "compile_mode", "dynamic",
        "inductor_config", "optimizer", "sizes", "sizes_of", "tf32", "env", "python",
    ),
    "Cores and machines": (
        "cores", "threads", "jobs", "wait", "bind_memory", "instances", "allocator", "executor", "scheduler",
    ),
    "Precision and limits": (
        "processes", "margin", "strict", "hours", "no_share", "timeout", "phase_timeout", "memory_limit",
        "output_limit", "retries", "retry_pause",
    ),
    "Results": ("out", "db", "line", "no_history", "no_code", "junit", "fail_on"),
    "Parts of a run": ("shard", "costs"),
}  # fmt: skip


def heading(option: str) -> str | None:
    """The heading of an option in the help; None without one."""
    return next((title for title, names in HEADINGS.items() if option in names), None)


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
