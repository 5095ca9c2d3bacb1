"""`perfdash bisect`: find the change that made a number worse. Print logs, mark revisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from perfdash.cli.shared_options import AsJson, Db, Out, print_result

_COMMAND = "perfdash.bisect.command"


class _WithCommand(TyperGroup):
    """Take the words after `--` as the user's own command, not as a sub-command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = args[at + 1 :]
            args = args[:at]
            ctx.meta[f"{_COMMAND}.given"] = True
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_WithCommand,
    invoke_without_command=True,
    help="Find the commit or version that changed a number.",
)
Name = Annotated[str, typer.Argument(help="A bisection: its folder, its name, or `last` (the newest).")]


@app.callback(
    epilog="Put your own command after `--`. It runs in each build and exits with "
    "0 for good, 125 for skip, 1 to 127 for bad."
)
def bisect(
    context: typer.Context,
    good: Annotated[
        str | None, typer.Option(help="The last good revision: a commit, tag, version or date.")
    ] = None,
    bad: Annotated[str | None, typer.Option(help="The first known bad revision, in the same form.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="How revisions are listed and built: git, command, pypi:NAME, wheels:NAME, "
            "nightly,git, ... or a file.  [default: chosen by --good and --bad]"
        ),
    ] = None,
    repo: Annotated[
        Path | None,
        typer.Option(
            help="The repository of the commits. It is only read.  [default: the one of this folder]"
        ),
    ] = None,
    wheels: Annotated[
        str | None, typer.Option(help="The wheels: a folder, a web page or a package index.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="speedup, eager, backend, compile, compile-cpu, memory, compression, graph-breaks, "
            "recompiles, forward, backward, optimizer, prefill, decode, accuracy, status; "
            "of a command: exit-code, stdout.  "
            "[default: speedup, exit-code]"
        ),
    ] = None,
    suite: Annotated[str | None, typer.Option(help="The suite of the model that is measured.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model that is measured: its name in the suite, or file.py:function."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            help="The interpreter that builds are laid over. It is not changed.  "
            "[default: that of the alert's night, or this one]"
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the model.  [default: 1]")] = None,
    cores: Annotated[
        str | None, typer.Option(help="Measure on these cores.  [default: the last ones]")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Sample each measurement in this many processes.  [default: 1]")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="The batch size. This and the options up to --torchbench are those of `perfdash run`."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16, amp.")] = None,
    amp_dtype: Annotated[str | None, typer.Option(help="The dtype that autocast (amp) casts to.")] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="How the model is compiled and run.  [default: inductor, or eager for --metric eager]"
        ),
    ] = None,
    scenario: Annotated[str | None, typer.Option(help="inference, training or generation.")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="The optimizer of a training step: sgd, adam, none.")
    ] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Compile with dynamic shapes.")] = False,
    allocator: Annotated[str | None, typer.Option(help="steady, default, jemalloc, tcmalloc.")] = None,
    weights: Annotated[str | None, typer.Option(help="random, pretrained, or a file.")] = None,
    compile_mode: Annotated[
        str | None, typer.Option(help="The mode of torch.compile, e.g. max-autotune.")
    ] = None,
    inductor_config: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE: a setting of torch._inductor.config. Repeatable.")
    ] = None,
    configuration: Annotated[str | None, typer.Option(help="The name of one configuration.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE: an environment variable of the measured processes. Repeatable."),
    ] = None,
    torchbench: Annotated[Path | None, typer.Option(help="A checkout of torchbench.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that one measurement may take.")] = None,
    wait: Annotated[
        str | None,
        typer.Option(help="If another run uses the cores, wait up to this long, e.g. 90s, 30m, 2h."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Builds that are made at the same time.  [default: 1]")
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            min=0.6, max=0.9999, help="Stop when the culprit is known with this probability.  [default: 0.9]"
        ),
    ] = None,
    minimum_change: Annotated[
        float | None, typer.Option(min=0, max=1000, help="Ignore changes smaller than this (0.02 = 2 %).")
    ] = None,
    max_builds: Annotated[
        int | None, typer.Option(min=2, help="Stop the search after this many builds. --resume continues.")
    ] = None,
    prior: Annotated[
        list[str] | None,
        typer.Option(help="PATTERN=WEIGHT: give commits that change matching files this weight. Repeatable."),
    ] = None,
    all_commits: Annotated[
        bool,
        typer.Option(
            "--all-commits",
            help="Follow all commits from good to bad, not only first parents, if they are on one line.",
        ),
    ] = False,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm/--no-confirm",
            help="At the end, build the culprit and its parent again and compare them.",
        ),
    ] = True,
    until_sure: Annotated[
        bool,
        typer.Option("--until-sure", help="Confirm with up to 120 pairs of builds instead of 40."),
    ] = False,
    revert: Annotated[
        bool, typer.Option("--revert", help="Also measure the bad revision with the culprit reverted.")
    ] = False,
    pin_repo: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH: a clone of a pinned dependency, to search inside it too. Repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE: a setting of the recipe. Repeatable.")
    ] = None,
    alert: Annotated[
        int | None, typer.Option(help="Take model, metric and range from this alert of the history.")
    ] = None,
    all_alerts: Annotated[
        bool,
        typer.Option("--all-alerts", help="Bisect one alert of each cause. Repeat the command to continue."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done; build nothing.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Continue a bisection: its folder, its name, or `last` (the newest)."
        ),
    ] = None,
    status: Annotated[str | None, typer.Option(metavar="NAME", help="Print how far a bisection is.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    db: Db = None,
    out: Out = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Keep the result out of the history.")
    ] = False,
) -> None:
    """Find the commit or version that made a model slower, bigger or wrong.

    Put your own command after `--` to bisect by its exit code or by the number that it prints."""
    flags = dict(locals())
    del flags["context"]
    if context.invoked_subcommand is not None:
        return
    from perfdash.errors import UsageError

    command = context.meta.get(_COMMAND)
    if context.meta.get(f"{_COMMAND}.given") and not command:
        raise UsageError("there is no command after `--`: put the command there that runs in each build")
    if not command and not any(value for name, value in flags.items() if name != "confirm"):
        typer.echo(context.get_help())
        raise typer.Exit(2)
    if all_alerts:
        from perfdash.cli.bisect_all import bisect_all_alerts

        raise typer.Exit(bisect_all_alerts(flags, command))
    if status is not None:
        from perfdash.cli.bisect_output import show_status

        show_status(status, flags)
        return
    if resume is not None:
        from perfdash.bisection.setup import resumed
        from perfdash.cli.bisect_output import notify, run

        with resumed(resume, command, flags, notify) as engine:
            raise typer.Exit(run(engine, as_json))
    from perfdash.bisection.completion import completed
    from perfdash.bisection.setup import BisectionPlan, started
    from perfdash.cli.bisect_output import notify, run, typist

    flags, command = completed(flags, command, typist())
    with started(command, flags, notify) as engine:
        if isinstance(engine, BisectionPlan):  # of --dry-run
            print_result(engine.to_plain(), engine.text(), as_json)
        else:
            raise typer.Exit(run(engine, as_json))


@app.command("log")
def log(name: Name = "last", out: Out = None) -> None:
    """Print a log that `git bisect replay` can read."""
    from perfdash.bisection.result import git_log, result_of

    _, bisection = _bisection(name, out)
    typer.echo(git_log(bisection, result_of(bisection).ranges), nl=False)


@app.command("mark")
def mark(
    revision: Annotated[str, typer.Argument(help="A commit or version of the bisection.")],
    side: Annotated[str, typer.Argument(help="good, bad or skip.")],
    of: Annotated[
        str, typer.Option(help="A bisection: its folder, its name, or `last` (the newest).")
    ] = "last",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Overrule the measurement of a revision. Then continue with --resume."""
    from perfdash.bisection.setup import marked
    from perfdash.report.bisection_files import how_to_resume
    from perfdash.report.markdown import plain

    folder, _ = _bisection(of, out)
    found = marked(folder, revision, side)
    text = f"{found.label} {found.title} is marked {side}. {how_to_resume(folder)}"
    print_result(
        {"bisection": str(folder), "revision": found.id, "title": found.title, "side": side},
        plain(text, 2000),
        as_json,
    )


def _bisection(name: str, out: Path | None) -> tuple[Path, Any]:
    from perfdash.bisection.journal import find, read
    from perfdash.bisection.replay import Bisection
    from perfdash.settings import resolve

    folder = find(name, resolve({"out": out})[0].out)
    return folder, Bisection(read(folder))
