"""Make the flags of commands from the declarations of a run's options (run_options.py)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from perfdash.cli.completion import completion
from perfdash.records import Option
from perfdash.run_options import heading, run_options, without_none

Command = Callable[..., None]


def takes_settings(texts: Mapping[str, str | None] | None = None) -> Callable[[Command], Command]:
    """Give a command the flags of a run's options, before its own.

    The command gets their values as its first argument, by name; None and False are those not given. `texts`
    names the options that it takes, with a help text where it differs from that of `perfdash run`.
    """

    def decorate(function: Command) -> Command:
        declared = run_options()
        names = texts or dict.fromkeys(declared)
        flags = [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=False if declared[name][0] is bool else None,
                annotation=_flag(name, declared[name], text, texts is None),
            )
            for name, text in names.items()
        ]
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def command(**values: Any) -> None:
            function({name: values.pop(name) for name in names}, **values)

        command.__doc__ = function.__doc__
        command.__signature__ = inspect.Signature([*flags, *own])  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in [*flags, *own]}
        return command

    return decorate


def _flag(name: str, declared: tuple[Any, Option, Any], text: str | None, is_run: bool) -> Any:
    """The annotation of a flag. Its value is read as text where settings.py has the better message."""
    kind, option = without_none(declared[0]), declared[1]
    text = text or option.help
    more: dict[str, Any] = {"help": text, "rich_help_panel": heading(name) if is_run else None}
    if kind is bool:
        return Annotated[bool, typer.Option(f"--{name.replace('_', '-')}", **more)]
    more["autocompletion"] = completion(name, kind)
    more["metavar"] = "KEY=VALUE" if get_origin(kind) is dict else name.rpartition("_")[2].upper()
    if get_origin(kind) in (tuple, dict):
        return Annotated[list[str] | None, typer.Option(**more)]
    read = kind if kind in (int, float, Path) and not option.duration and not option.words else str
    return Annotated[read | None, typer.Option(**more)]
