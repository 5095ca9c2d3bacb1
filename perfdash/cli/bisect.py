"""`perfdash bisect`: find the change that made a number worse. Print logs, mark revisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from perfdash.cli.shared_options import Db, Out

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
    help="Find the change that made a number worse (or better), under noise, resumable.",
)
Name = Annotated[str, typer.Argument(help="A bisection: its folder, its name, or `last`.")]


@app.callback(
    epilog="After -- stands a command of your own, run in each build: 0 good, 125 skip, 1 to 127 bad."
)
def bisect(
    context: typer.Context,
    good: Annotated[str | None, typer.Option(help="The older end: a commit, tag, version or date.")] = None,
    bad: Annotated[str | None, typer.Option(help="The newer end.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="git, command, pypi:NAME, wheels:NAME, nightly,git, ... or a file.  [default: by the ends]"
        ),
    ] = None,
    repo: Annotated[
        Path | None, typer.Option(help="The repository; it is only read.  [default: this folder's]")
    ] = None,
    wheels: Annotated[str | None, typer.Option(help="Folder, page or index of wheels.")] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="speedup, eager, backend, compile, compile-cpu, memory, compression, graph-breaks, forward, "
            "backward, optimizer, prefill, decode, accuracy, status; of a command: exit-code, stdout.  "
            "[default: speedup, exit-code]"
        ),
    ] = None,
    suite: Annotated[str | None, typer.Option(help="The suite of the model.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model: its name in the suite, or file.py:function.")
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="The interpreter that builds are laid over.  [default: this one]")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the model.  [default: 1]")] = None,
    cores: Annotated[str | None, typer.Option(help="Measured on these.  [default: the last ones]")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes that a measurement samples in.  [default: 1]")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="As in perfdash run, like all below.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16, amp.")] = None,
    amp_dtype: Annotated[str | None, typer.Option(help="What amp casts to.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="[default: inductor, and eager for --metric eager]")
    ] = None,
    scenario: Annotated[str | None, typer.Option(help="inference, training or generation.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Of a training step: sgd, adam, none.")] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Compile with dynamic shapes.")] = False,
    allocator: Annotated[str | None, typer.Option(help="steady, default, jemalloc, tcmalloc.")] = None,
    weights: Annotated[str | None, typer.Option(help="random, pretrained, or a file.")] = None,
    compile_mode: Annotated[str | None, typer.Option(help="mode= of torch.compile.")] = None,
    inductor_config: Annotated[list[str] | None, typer.Option(help="KEY=VALUE. Repeatable.")] = None,
    configuration: Annotated[str | None, typer.Option(help="Named settings, one name.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for what is measured. Repeatable.")] = None,
    torchbench: Annotated[Path | None, typer.Option(help="A checkout of torchbench.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that one measurement may take.")] = None,
    wait: Annotated[
        str | None, typer.Option(help="Wait so long for cores that another run measures on, e.g. 2h.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Builds at once.  [default: 1]")] = None,
    confidence: Annotated[
        float | None, typer.Option(min=0.6, max=0.9999, help="How sure it is to be.  [default: 0.9]")
    ] = None,
    minimum_change: Annotated[
        float | None, typer.Option(min=0, max=1000, help="A smaller change is none: 0.02 is 2 %.")
    ] = None,
    max_builds: Annotated[
        int | None, typer.Option(min=2, help="Stop after so many builds; --resume goes on.")
    ] = None,
    prior: Annotated[
        list[str] | None,
        typer.Option(help="PATTERN=WEIGHT: commits that touch such files are likelier. Repeatable."),
    ] = None,
    all_commits: Annotated[
        bool, typer.Option("--all-commits", help="Not first parents only, merges descended into.")
    ] = False,
    confirm: Annotated[
        bool, typer.Option("--confirm/--no-confirm", help="Culprit against parent, built anew.")
    ] = True,
    until_sure: Annotated[
        bool,
        typer.Option("--until-sure", help="Confirm with up to 120 pairs of builds instead of 40."),
    ] = False,
    revert: Annotated[
        bool, typer.Option("--revert", help="Also measure the bad end with the culprit taken back.")
    ] = False,
    pin_repo: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH: a clone of what is pinned, to go on inside. Repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of the recipe. Repeatable.")
    ] = None,
    alert: Annotated[
        int | None, typer.Option(help="Model, metric and range of this alert of the history.")
    ] = None,
    all_alerts: Annotated[
        bool, typer.Option("--all-alerts", help="All open alerts, one of each cause; repeat it to go on.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; build nothing.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="NAME", help="Go on with a bisection: folder, name or `last`.")
    ] = None,
    status: Annotated[str | None, typer.Option(metavar="NAME", help="Say where one stands.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report for programs.")] = False,
    db: Db = None,
    out: Out = None,
    no_history: Annotated[bool, typer.Option("--no-history", help="Not into the history.")] = False,
) -> None:
    """Name the change between two revisions that made a model slower, bigger or wrong."""
    flags = dict(locals())
    del flags["context"]
    if context.invoked_subcommand is not None:
        return
    from perfdash.errors import UsageError

    command = context.meta.get(_COMMAND)
    if context.meta.get(f"{_COMMAND}.given") and not command:
        raise UsageError("after -- stands the command to run in each build, and there is none")
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
    from perfdash.bisection.setup import started
    from perfdash.cli.bisect_output import notify, run, typist

    flags, command = completed(flags, command, typist())
    with started(command, flags, notify) as engine:
        if isinstance(engine, str):  # the plan of --dry-run
            typer.echo(engine)
        else:
            raise typer.Exit(run(engine, as_json))


@app.command("log")
def log(name: Name = "last", out: Out = None) -> None:
    """Print it as `git bisect log` would; `git bisect replay` takes it."""
    from perfdash.bisection.result import git_log, result_of

    _, bisection = _bisection(name, out)
    typer.echo(git_log(bisection, result_of(bisection).ranges), nl=False)


@app.command("mark")
def mark(
    revision: Annotated[str, typer.Argument(help="A commit or version that is in the bisection.")],
    side: Annotated[str, typer.Argument(help="good, bad or skip.")],
    of: Annotated[str, typer.Option(help="A bisection: its folder, its name, or `last`.")] = "last",
    out: Out = None,
) -> None:
    """Overrule what was measured of a revision; --resume goes on with it."""
    from perfdash.bisection.setup import marked
    from perfdash.report.markdown import plain

    folder, _ = _bisection(of, out)
    typer.echo(plain(marked(folder, revision, side), 2000))


def _bisection(name: str, out: Path | None) -> tuple[Path, Any]:
    from perfdash.bisection.journal import find, read
    from perfdash.bisection.replay import Bisection
    from perfdash.settings import resolve

    folder = find(name, resolve({"out": out})[0].out)
    return folder, Bisection(read(folder))
