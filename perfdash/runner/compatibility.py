"""Decides whether two runs, or a run and this machine, may be combined. Pure.

Numbers from unlike hosts or packages are never mixed; whoever would mix them asks here first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perfdash import methods
from perfdash.errors import MachineError, UsageError
from perfdash.records import Result

# What a number depends on, of the host (host.facts) and of the measured interpreter (hello).
_HOST = (
    "host_class", "cores", "sockets", "smt", "governor", "turbo", "huge_pages", "cpu_limit", "libc",
    "compiler",
)  # fmt: skip
_WORKER = ("python", "torch", "torch_git_version", "torch_cuda")
# Those that change how code runs; the others name folders, which differ from host to host.
_VARIABLES = ("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "MALLOC_", "LD_PRELOAD")
_MAY_BE_UNKNOWN = ("vector_isa",)
_SHOWN = 12


def fingerprint(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The part of run.json's `environment` that must agree, flat: {name: value}."""
    worker = environment.get("worker", {})
    return {
        **{name: environment.get(name) for name in _HOST},
        **{name: worker.get(name) for name in _WORKER},
        "gpus": environment.get("gpus"),
        "vector_isa": environment.get("vector_isa"),
        **{f"package {name}": version for name, version in worker.get("packages", {}).items()},
        **{f"commit of {name}": commit for name, commit in (worker.get("commits") or {}).items()},
        **{
            f"variable {name}": value
            for name, value in environment.get("variables", {}).items()
            if name.startswith(_VARIABLES)
        },
    }


def refuse_other_environment(then: Mapping[str, Any], now: Mapping[str, Any], run: str) -> None:
    """Raise MachineError where a run was started in another environment than this one."""
    changes = differences(fingerprint(then), fingerprint(now))
    if changes:
        raise MachineError(
            f"{run} was begun in another environment, so it cannot go on here (then | now):\n"
            f"{as_lines(changes)}"
        )


def refuse_other_method(results: Iterable[Result], run: str) -> None:
    """Raise UsageError where a run was measured by another method than this perfdash uses."""
    for result in results:
        if changes := methods.changes(result.method, methods.CURRENT):
            raise UsageError(
                f"{run} cannot go on: perfdash now measures by another method ({', '.join(changes)}), and a "
                "run never mixes two. Start a new run, or resume it with the perfdash that began it."
            )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`name: this | that` for every name whose values differ, missing ones as `none`."""
    names = list(dict.fromkeys([*old, *new]))
    return [
        f"{name}: {_spell(old.get(name))} | {_spell(new.get(name))}"
        for name in names
        if old.get(name) != new.get(name) and not (name in _MAY_BE_UNKNOWN and _unknown(name, old, new))
    ]


def as_lines(differences: list[str]) -> str:
    """The differences as indented lines, the first few of many."""
    lines = [f"  {line}" for line in differences[:_SHOWN]]
    if len(differences) > _SHOWN:
        lines.append(f"  ... and {len(differences) - _SHOWN} more")
    return "\n".join(lines)


def _unknown(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return old.get(name) is None or new.get(name) is None


def _spell(value: Any) -> str:
    return "none" if value is None else str(value)
