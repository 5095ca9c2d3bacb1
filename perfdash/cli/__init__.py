"""The commands: parse, call, render. A command imports what it needs when it runs."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

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
    merge,
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
from perfdash.errors import PerfdashError
from perfdash.redaction import redacted_output

app = typer.Typer(
    name="perfdash",
    help="Track what torch.compile does to real models: speed, compile time, memory, accuracy.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # it takes "[default: 1]" in a help text for markup, and shows nothing of it
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("check")(check.check)
app.command("merge")(merge.merge)
app.command("compare")(compare.compare)
app.command("compare-builds")(compare_builds.compare_builds)
app.command("confirm")(confirm.confirm)
app.command("regressions")(regressions.regressions)
app.command("explain")(explain.explain)
app.command("code")(code.code)
app.command("report")(report.report)
app.command("post")(post.post)
app.command("notify")(notify.notify)
app.add_typer(nightly.app, name="nightly")
app.command("plot")(plot.plot)
app.add_typer(bisect.app, name="bisect")
app.command("site")(site.site)
app.command("serve")(serve.serve)
app.add_typer(history.app, name="history")
app.command("list")(listing.list_suites)
app.command("show")(show.show)
app.command("detect")(detect.detect)
app.command("doctor")(doctor.doctor)
app.command("config")(config.config)


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


def main() -> None:
    """The `perfdash` command. Exit codes: 0 done, 1 a gate failed, 2 usage, 3 machine, 130 interrupted."""
    with redacted_output():
        code = _called()
    sys.exit(code)


def _called() -> int:
    """Run the command of `sys.argv`, print what went wrong, and return the exit code."""
    debug = "--debug" in sys.argv
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        code = app(args=arguments, standalone_mode=False)
    except PerfdashError as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"perfdash: {error}", err=True)
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("perfdash: interrupted", err=True)
        code = 130
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # click's own: wrong usage
            error.show()
            code = error.exit_code
        else:
            if debug:
                traceback.print_exc()
            typer.echo(
                f"perfdash: internal error: {type(error).__name__}: {error} (--debug shows where)", err=True
            )
            code = 3
    return int(code or 0)
