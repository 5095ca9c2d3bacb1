"""`perfdash run --find-batch-size`: find the largest batch size of eager and of each technique."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.runner.find_batch_size import LargestBatch
    from perfdash.suites.case_selection import Planned


_OF_RUNS = ("shard", "costs", "hours", "junit", "fail_on", "strict")  # options of what a run saves or shows


def print_batch_sizes(flags: Mapping[str, Any], as_json: bool) -> int:
    """Search, print the sizes, keep nothing; the exit code. Raises UsageError as a run would."""
    from perfdash.errors import UsageError
    from perfdash.records import to_json
    from perfdash.runner import host
    from perfdash.runner.find_batch_size import find_batch_sizes
    from perfdash.settings import resolve

    given = [f"--{name.replace('_', '-')}" for name in _OF_RUNS if flags.get(name)]
    if given:
        raise UsageError(f"--find-batch-size cannot be combined with {', '.join(given)}: it saves no run")
    settings, _ = resolve(flags)

    def on_finish(size: LargestBatch) -> None:
        if not as_json:
            typer.echo(f"{size.case.model}, {_way(size)}: {_size(size)}", err=True)

    def on_try(side: LargestBatch, size: int) -> None:
        typer.echo(f"{side.case.model}, {_way(side)}: trying batch size {size}", err=True)

    def on_start(device: str) -> None:
        typer.echo(limit_words(device, settings.memory_limit, host.default_memory_limit()), err=True)

    def on_left_out(planned: Sequence[Planned]) -> None:
        typer.echo(left_out_words(planned), err=True)

    def say(text: str) -> None:
        typer.echo(text, err=True)

    sizes = find_batch_sizes(settings, on_start, on_finish, on_try, on_left_out, say)
    typer.echo(dumps([to_json(size) for size in sizes], indent=1) if as_json else words(sizes))
    return 0


def left_out_words(planned: Sequence[Planned]) -> str:
    """The message about cases whose steps run several batch sizes."""
    from perfdash.records import variation

    names = []
    for case in (planned_case.case for planned_case in planned):
        under = variation(case.configuration, case.dynamic)
        names.append(case.model + (f" ({under})" if under else ""))
    models = ", ".join(dict.fromkeys(names))
    return f"Left out, because a step of scenario sizes runs the batch sizes of --sizes: {models}"


def limit_words(device: str, given_gib: float | None, default_bytes: int | None) -> str:
    """The message about the memory limit; `default_bytes` is the limit of the host."""
    if device == "cuda":
        beside = f"; the process may take {given_gib:g} GiB of the host's memory" if given_gib else ""
        return f"Memory limit: the free memory of the GPU{beside}. Every try builds the model again."
    if given_gib:
        return f"Memory limit: {given_gib:g} GiB. Every try builds the model again."
    limit = (
        f"{default_bytes / 2**30:.1f} GiB, 90 % of the memory of this machine or container"
        if default_bytes
        else "none known"
    )
    return (
        f"Memory limit: {limit}, unless the suite gives one. Filling it takes minutes a model; "
        "--memory-limit GIB sets a smaller one."
    )


def words(sizes: list[LargestBatch]) -> str:
    """A table with a line for each side, and the reasons below it."""
    from prettytable import PrettyTable

    table = PrettyTable(["suite", "model", "way", "largest batch size", "too large", "tries"])
    table.align = "l"
    for name in ("largest batch size", "too large", "tries"):
        table.align[name] = "r"
    for size in sizes:
        table.add_row(
            [size.case.suite, size.case.model, _way(size), _size(size), size.fails or "-", size.tries]
        )
    reasons = [f"{size.case.model}, {_way(size)}: {size.reason}" for size in sizes if size.reason]
    return "\n".join([str(table.get_string()), *reasons])


def _way(size: LargestBatch) -> str:
    from perfdash.records import variation

    case = size.case
    dtype = f"amp ({case.amp_dtype})" if case.amp_dtype else case.dtype
    under = variation(case.configuration, case.dynamic)
    threads = f"{case.threads} threads" if case.threads > 1 else ""
    return ", ".join(filter(None, [f"{case.backend} {dtype}", size.variant, under, threads]))


def _size(size: LargestBatch) -> str:
    from perfdash.runner.find_batch_size import MOST

    if size.status is not None:
        return f"{size.fits} ({size.status})" if size.fits else str(size.status)
    return f"at least {size.fits}" if size.fails is None and size.fits > MOST // 2 else str(size.fits)
