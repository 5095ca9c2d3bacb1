"""From the settings of `perfdash run` to what is measured and by whom."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdash.records import Status
    from perfdash.runner.messages import Options
    from perfdash.runner.plan import Plan
    from perfdash.settings import RunSettings
    from perfdash.suites.cases import Planned


def plan(settings: RunSettings, uncut: bool = False) -> tuple[Plan, dict[str, str]]:
    """The cases with their costs and the shard, and the suites' names in the dynamo runners' files.

    `uncut` leaves costs and shard out, for a run that has its own. Raises UsageError.
    """
    from perfdash.errors import UsageError
    from perfdash.runner import planner
    from perfdash.runner.journal import find_run, read_results
    from perfdash.runner.plan import cut, parse_shard
    from perfdash.suites.cases import Selection, select
    from perfdash.suites.definition import load_suite, own_models
    from perfdash.suites.torchbench_checkout import (
        CHECKOUT_SUITE,
        checkout_suite,
        find_checkout,
        needs_checkout,
    )
    from perfdash.worker import registry

    if settings.scenario and registry.canonical(settings.scenario) not in registry.names("scenarios"):
        raise UsageError(
            f"--scenario {settings.scenario!r}: there are: {', '.join(registry.names('scenarios'))}"
        )
    names = settings.suite or ((CHECKOUT_SUITE,) if settings.torchbench and not settings.model else ())
    path = settings.torchbench
    suites = [checkout_suite(path) if name == CHECKOUT_SUITE else load_suite(name) for name in names]
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
        backends=backends(settings),
        dynamic=settings.dynamic,
        env=tuple(settings.env.items()),
        timeout_s=settings.timeout,
        phase_timeouts=tuple(settings.phase_timeout.items()),
        memory_limit_gb=settings.memory_limit,
        output_limit_mb=settings.output_limit,
        freezing=bool(settings.inductor_config.get("freezing")),
        checkout=str(find_checkout(path)) if needs_checkout(suites) else None,
        optimizer=settings.optimizer,
        data=str(settings.data.expanduser().absolute()) if settings.data else None,
    )
    planned = select(suites, selection)
    dynamo_names = {suite.name: suite.dynamo_name or suite.name for suite in suites}
    if uncut:
        return cut(planned, [], None), dynamo_names
    known = read_results(find_run(settings.costs, settings.out)) if settings.costs else []
    costs = planner.costs(planned, {result.case.name: result.wall_s for result in known})
    shard = parse_shard(settings.shard) if settings.shard else None
    if shard and shard[1] > len(planned):
        raise UsageError(f"--shard {settings.shard}: there are only {len(planned)} cases")
    return cut(planned, costs, shard), dynamo_names


def statuses(words: Sequence[str]) -> set[Status]:
    """The statuses that --retry names. Raises UsageError for a word that is none."""
    from perfdash.errors import UsageError
    from perfdash.records import Status
    from perfdash.suites.definition import near

    known = [str(status) for status in Status]
    found = set()
    for word in (part.strip() for item in words for part in item.split(",")):
        if word not in known:
            hint = near(word, known)
            raise UsageError(f"--retry {word!r} is no status{hint}; there are: {', '.join(known)}")
        found.add(Status(word))
    return found


def slots(settings: RunSettings) -> list[tuple[int, ...]]:
    """The cores of each slot of this machine; none where others measure. Raises UsageError."""
    from perfdash.errors import UsageError
    from perfdash.runner.cores import choose_slots

    if settings.executor == "dask":
        if not settings.scheduler:
            raise UsageError("--executor dask needs --scheduler ADDRESS (tcp://host:8786)")
        if not re.fullmatch(r"((tcp|tls|ws|wss|ucx)://)?(\[[^\]\s]+\]|[^/:\s]+):\d+", settings.scheduler):
            raise UsageError(f"--scheduler {settings.scheduler!r}: give it as tcp://host:8786")
        if settings.jobs != 1 or settings.cores:
            raise UsageError("--jobs and --cores are for this machine; each Dask worker is one slot")
        return []
    if settings.scheduler:
        raise UsageError("--scheduler needs --executor dask")
    found = choose_slots(settings.jobs, settings.threads, settings.cores)
    visible = gpus(settings)
    if settings.device == "cuda" and len(found) > max(1, len(visible)):
        if settings.jobs != "auto":
            raise UsageError(
                f"--jobs {settings.jobs}: {len(visible)} GPUs are visible; each slot needs its own"
            )
        found = found[: max(1, len(visible))]
    return found


def executor(
    settings: RunSettings, cores: Sequence[tuple[int, ...]], logs: Path
) -> AbstractContextManager[Any]:
    """Who measures: the slots of this machine, or a Dask cluster; logs go to a folder."""
    from perfdash.runner.executors import LocalExecutor

    chosen = options(settings)
    if settings.executor == "dask":
        from perfdash.runner.dask_executor import DaskExecutor

        return DaskExecutor(settings.scheduler or "", chosen, logs)
    return LocalExecutor(cores, chosen, logs, gpus(settings)[: len(cores)])


def options(settings: RunSettings) -> Options:
    """How every case is measured."""
    from perfdash.runner.messages import Options

    return Options(
        python=settings.python,
        threads=settings.threads,
        device=settings.device,
        allocator=settings.allocator,
        weights=weights(settings),
        compile_mode=settings.compile_mode,
        inductor_config=settings.inductor_config,
    )


def backends(settings: RunSettings) -> tuple[str, ...]:
    """Names, and whole paths of the user's own. Raises UsageError for what is no back end."""
    from perfdash.errors import UsageError
    from perfdash.worker import registry

    known = registry.names("backends")
    found = []
    for given in settings.backend:
        name = registry.backend_name(given)
        if not given.endswith(".py"):
            if name not in known:
                raise UsageError(f"--backend {given!r}: there are: {', '.join(known)}, or a file of your own")
            found.append(name)
            continue
        if name in known:
            raise UsageError(f"--backend {given}: {name} is one of perfdash's own: call the file otherwise")
        path = Path(given).expanduser().absolute()
        try:
            registry.backend_facts(str(path))
        except LookupError as error:
            raise UsageError(f"--backend {given}: {error}") from error
        found.append(str(path))
    return tuple(found)


def weights(settings: RunSettings) -> str:
    """random, pretrained, or the whole path of a file. Raises UsageError where there is none."""
    from perfdash.errors import UsageError

    if settings.weights in ("random", "pretrained"):
        return settings.weights
    path = Path(settings.weights).expanduser().absolute()
    if not path.is_file():
        raise UsageError(
            f"--weights {settings.weights}: no such file; it is random, pretrained, or a file of weights "
            "(safetensors, or a state dict saved by torch.save)"
        )
    return str(path)


def check_machine(settings: RunSettings, cases: Sequence[Planned]) -> None:
    """What would make every case fail, said once and before. Raises MachineError."""
    from perfdash.errors import MachineError
    from perfdash.runner import host

    if settings.executor != "local":
        return
    if settings.allocator in ("jemalloc", "tcmalloc") and not host.allocator_library(settings.allocator):
        package = {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4"}[settings.allocator]
        raise MachineError(
            f"--allocator {settings.allocator}: its library is not installed (Debian: {package}); "
            "install it, or use --allocator steady"
        )
    if any(each.needs_cpp for each in cases) and not host.compiler():
        raise MachineError("inductor needs a C++ compiler on the CPU: install g++, or set CXX")


def gpus(settings: RunSettings) -> list[str]:
    """The GPUs that may be measured on; none for the CPU."""
    from perfdash.runner import host

    named = settings.env.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
    return host.visible_gpus(named) if settings.device == "cuda" else []
