"""What the shell completes: names of suites, back ends, configurations and runs, and fixed choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

Complete = Callable[[str], list[str]]


def completion(option: str, kind: Any = None) -> Complete | None:
    """What completes the value of an option of a run, by its name and type; None for paths and numbers."""
    if names := _NAMES.get(option):
        return _matching(names)
    choices = tuple(dict.fromkeys(_choices(kind)))
    return _matching(lambda: choices) if choices else None


def runs(incomplete: str) -> list[str]:
    """The runs below the default folder of runs that begin as typed, and `last`."""
    try:
        from perfdash.settings import resolve

        names = sorted((path.parent.name for path in resolve({})[0].out.glob("*/run.json")), reverse=True)
    except Exception:  # a completion says nothing rather than a traceback
        names = []
    return [name for name in ("last", *names) if name.startswith(incomplete)]


def _suites() -> Sequence[str]:
    from perfdash.suites.suite_file import suite_names

    return [*suite_names(), *_toml_files()]


def _configurations() -> Sequence[str]:
    from perfdash.suites.configuration import configuration_names

    return [*configuration_names(), *_toml_files()]


def _toml_files() -> list[str]:
    return sorted(str(path) for path in Path().glob("*.toml"))


def _registered(kind: str) -> Callable[[], Sequence[str]]:
    def names() -> Sequence[str]:
        from perfdash.worker import registry

        return registry.names(kind)

    return names


_NAMES: dict[str, Callable[[], Sequence[str]]] = {
    "suite": _suites,
    "backend": _registered("backends"),
    "scenario": _registered("scenarios"),
    "configuration": _configurations,
    "threads": lambda: ("1", "socket"),
    "weights": lambda: ("random", "pretrained"),
    "costs": lambda: runs(""),
}


def _matching(names: Callable[[], Sequence[str]]) -> Complete:
    """Complete the part behind the last comma: several values may be given by commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


def _choices(kind: Any) -> list[str]:
    """The words of the Literals in a type."""
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [word for part in get_args(kind) for word in _choices(part)]
