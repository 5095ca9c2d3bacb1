"""The commands: parse, call, render. A command imports what it needs when it runs."""

from __future__ import annotations

import functools
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from perfdash import __version__
from perfdash.cli import (
    bisect,
    check,
    code,
    compare,
    compare_builds,
    config,
    confirm,
    detect,
    doctor,
    explain,
    history,
    listing,
    merge_shards,
    nightly,
    notify,
    plot,
    post,
    regressions,
    report,
    run,
    serve,
    show,
    site,
)
from perfdash.cli.help_groups import GroupedCommands, GroupedOptions
from perfdash.errors import PerfdashError
from perfdash.redaction import redacted_output
from perfdash.suggestions import did_you_mean

app = typer.Typer(
    name="perfdash",
    cls=GroupedCommands,
    help="Measure whether torch.compile makes PyTorch models faster, every night, on your machines.",
    epilog=(
        "\b\nBegin with one model of your own (docs/tutorial.md):\n  perfdash doctor\n"
        "  perfdash run --model net.py:make\n\n"
        "perfdash COMMAND -h shows the options of a command."
    ),
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # it takes "[default: 1]" in a help text for markup, and shows nothing of it
    pretty_exceptions_enable=False,
)
_EXAMPLES = {
    "run": "\b\nExamples:\n"
    "  perfdash run --model net.py:make                       one model of your own\n"
    "  perfdash run --suite timm --quick --dtype bfloat16     a few models of a suite\n"
    "  perfdash run --resume last                             the rest of the last run"
}
_MEASURE, _LOOK, _NIGHTLY, _PAGES, _HISTORY = "Measure", "Look", "Every night", "Pages", "History"
for _heading, _name, _command in (
    (_MEASURE, "run", run.run),
    (_MEASURE, "check", check.check),
    (_MEASURE, "list", listing.list_suites),
    (_MEASURE, "doctor", doctor.doctor),
    (_MEASURE, "compare-builds", compare_builds.compare_builds),
    (_MEASURE, "config", config.config),
    (_LOOK, "show", show.show),
    (_LOOK, "compare", compare.compare),
    (_LOOK, "explain", explain.explain),
    (_LOOK, "code", code.code),
    (_LOOK, "report", report.report),
    (_LOOK, "plot", plot.plot),
    (_NIGHTLY, "nightly", nightly.app),
    (_NIGHTLY, "regressions", regressions.regressions),
    (_NIGHTLY, "confirm", confirm.confirm),
    (_NIGHTLY, "bisect", bisect.app),
    (_NIGHTLY, "post", post.post),
    (_NIGHTLY, "notify", notify.notify),
    (_PAGES, "site", site.site),
    (_PAGES, "serve", serve.serve),
    (_HISTORY, "history", history.app),
    (_HISTORY, "merge-shards", merge_shards.merge_shards),
    (_HISTORY, "detect", detect.detect),
):
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name, rich_help_panel=_heading)
    else:
        app.command(_name, cls=GroupedOptions, rich_help_panel=_heading, epilog=_EXAMPLES.get(_name))(
            _command
        )


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perfdash {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    pass


@functools.cache
def command() -> Callable[..., Any]:
    """All commands as click runs them. Built once a process: it takes longer than most commands."""
    return typer.main.get_command(app)


def main() -> None:
    """The `perfdash` command. Exit codes: 0 done, 1 a gate failed, 2 usage, 3 machine, 130 interrupted."""
    with redacted_output():
        code = _called()
    sys.exit(code)


def _tell(text: str) -> None:
    """Print what went wrong; where that cannot be written (a full disk), the exit code still says it."""
    try:
        typer.echo(text, err=True)
    except OSError:  # else it is tried again when Python ends, with an exit code of its own
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stderr.fileno())
        os.close(devnull)


def _usage_message(error: Any) -> str:
    """The message of a usage error of click in the form of perfdash's own, with the help to look at.

    Help itself is such an error where a command is called without any argument.
    """
    context = getattr(error, "ctx", None)
    message = str(error.format_message()).replace("Input should be", "it must be")
    if context is None:
        return f"perfdash: {message}"
    if message == context.get_help():
        return message
    if named := getattr(error, "option_name", None):
        options = [name for parameter in context.command.get_params(context) for name in parameter.opts]
        message = f"no option {named}{did_you_mean(named, options, most=2)}"
    elif match := re.match(r"No such command '([^']*)'", message):
        message = f"no command {match[1]!r}{did_you_mean(match[1], context.command.commands)}"
    help_of = context.command_path.removeprefix("python -m ")
    return f"perfdash: {message.rstrip('.')}. `{help_of} --help` shows what there is"


def _called() -> int:
    """Run the command of `sys.argv`, print what went wrong, and return the exit code."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)  # a command of the user's own follows
    debug = "--debug" in words[:end]
    arguments = [*(word for word in words[:end] if word != "--debug"), *words[end:]]
    try:
        code = command()(args=arguments, prog_name="perfdash", standalone_mode=False)
    except PerfdashError as error:
        if debug:
            _tell(traceback.format_exc().rstrip())
        _tell(f"perfdash: {error}")
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _tell("perfdash: interrupted")
        code = 130
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's own: wrong usage
            _tell(_usage_message(error))
            code = error.exit_code
        else:
            if debug:
                _tell(traceback.format_exc().rstrip())
            _tell(f"perfdash: internal error: {type(error).__name__}: {error} (--debug shows where)")
            code = 3
    return int(code or 0)
