"""`perfdash explain`: what changed in a case between two runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdash.cli.shared_options import AsJson, Db, Out, lookup, opened, warn
from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.explain.structure_comparison import Explanation
    from perfdash.report.run_lookup import RunLookup


def explain(
    what: Annotated[
        str,
        typer.Argument(metavar="ALERT | RUN", help="The number of an alert, or a run (folder, name, last)."),
    ],
    model: Annotated[
        str | None, typer.Argument(help="With a run: the model, or a pattern that one case of it matches.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="The run to compare with.  [default: the previous run of the case]"),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Measure both sides again, kernel by kernel, in pairs.")
    ] = False,
    reproducer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Profile, and write a script there that shows the slowest part."),
    ] = None,
    tlparse: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Profile, and keep the TORCH_TRACE logs of both sides.")
    ] = None,
    old_python: Annotated[
        str | None, typer.Option(help="With --profile: the interpreter of the older run.  [default: its own]")
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="With --profile: the interpreter of the newer run.  [default: its own]")
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(min=3, max=60, help="With --profile: pairs of processes.  [default: 5]")
    ] = None,
    cores: Annotated[str | None, typer.Option(help="With --profile: which cores.")] = None,
    db: Db = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Explain a change: kernels, library calls, graph breaks, guards and files that differ."""
    from perfdash.errors import UsageError
    from perfdash.explain.explanation_text import text, to_plain

    wanted = profile or reproducer is not None or tlparse is not None
    if not wanted and (old_python, python, pairs, cores) != (None, None, None, None):
        raise UsageError("--old-python, --python, --pairs and --cores belong to --profile")

    if model is None:
        if not what.isdecimal():
            raise UsageError(
                f"{what!r} is no number of an alert; for a run also give the MODEL: {what} MODEL"
            )
        if against is not None:
            raise UsageError("--against belongs to RUN MODEL; an alert has the two runs around its change")
        explanation, metric = _of_alert(int(what), db, out)
    else:
        explanation, metric = _of_runs(lookup(db, out), what, model, against), None
    if not wanted:
        typer.echo(dumps(to_plain(explanation, metric), indent=1) if as_json else text(explanation, metric))
        return
    if not as_json:
        typer.echo(text(explanation, metric))
    if reproducer is not None and _is_about_accuracy(explanation, metric):
        script = _reproduce_accuracy(explanation, python, cores, out, reproducer)
        if as_json:
            typer.echo(dumps({**to_plain(explanation, metric), "reproducer": str(script)}, indent=1))
        else:
            typer.echo(f"Reproducer: python {script}")
        return
    say = (lambda line: None) if as_json else typer.echo
    plain = _profile(explanation, metric, (old_python, python), pairs, cores, out, reproducer, tlparse, say)
    if as_json:
        typer.echo(dumps({**to_plain(explanation, metric), "profile": plain}, indent=1))


def _is_about_accuracy(explanation: Explanation, metric: str | None) -> bool:
    """Whether the outputs are wrong: then the part that is compiled wrongly is shown, not a slow one."""
    if metric is not None:
        return metric in ("accuracy", "status") and explanation.after.status == "fail_accuracy"
    return explanation.after.status == "fail_accuracy"


def _reproduce_accuracy(
    explanation: Explanation, python: str | None, cores: str | None, out: Path | None, reproducer: Path
) -> Path:
    from perfdash.explain import profiling
    from perfdash.explain.reproducer import write_accuracy
    from perfdash.runner.run_journal import find_run
    from perfdash.settings import resolve

    run = find_run(explanation.after.run.name, resolve({"out": out})[0].out)
    build = profiling.build_of(run, explanation.after.case, python, cores)
    folder = profiling.new_folder(run, explanation.after.case)
    found = profiling.failing_subgraph(build, folder, warn)
    return write_accuracy(reproducer, found, folder / "subgraph" / profiling.INPUTS)


def _profile(
    explanation: Explanation,
    metric: str | None,
    pythons: tuple[str | None, str | None],
    pairs: int | None,
    cores: str | None,
    out: Path | None,
    reproducer: Path | None,
    tlparse: Path | None,
    say: Callable[[str], None],
) -> dict[str, object]:
    """Profile both sides of an explanation and say what explains the change; returns plain values."""
    from perfdash.explain import profile_text, profiling
    from perfdash.explain.profile_comparison import compare
    from perfdash.explain.reproducer import write
    from perfdash.metrics import METRICS
    from perfdash.runner.run_journal import find_run
    from perfdash.settings import resolve

    runs = resolve({"out": out})[0].out
    sides = (explanation.before, explanation.after)
    folders = [find_run(side.run.name, runs) for side in sides]
    old, new = (
        profiling.build_of(folder, side.case, python, cores)
        for folder, side, python in zip(folders, sides, pythons, strict=True)
    )
    profiling.refuse_same_build(old, new)
    folder = profiling.new_folder(folders[1], explanation.after.case)
    profiles = profiling.profile(old, new, folder, pairs or profiling.PAIRS, None, warn, tlparse)
    comparison = compare(profiles)
    of_eager = metric in METRICS and METRICS[metric].of_eager
    report = profile_text.text(comparison, str(folder), of_eager=of_eager)
    profiling.keep_report(folder, report)
    say(f"\n{report}")
    plain = {**profile_text.to_plain(comparison), "folder": str(folder)}
    if tlparse is not None:
        say(f"TORCH_TRACE logs of both sides: {tlparse}")
    if reproducer is not None:
        side = comparison.eager if of_eager else comparison.compiled
        script = write(reproducer, side, profiles[-1], folder / f"{len(profiles)}-new")
        plain["reproducer"] = str(script)
        say(f"Reproducer: python {script}")
    return plain


def _of_alert(number: int, db: str | None, out: Path | None) -> tuple[Explanation, str | None]:
    """The explanation of an alert's case, from the runs around its change, and the alert's metric."""
    from perfdash.explain.case_sides import of_alert

    with opened(db, out) as store, store.read() as connection:
        return of_alert(connection, number)


def _of_runs(lookup: RunLookup, run: str, model: str, against: str | None) -> Explanation:
    from perfdash.explain.case_sides import row_of, row_of_case
    from perfdash.explain.structure_comparison import compare, side_of

    after = lookup.run(run)
    row = row_of(after, model)
    before = lookup.run(against) if against is not None else lookup.previous(after, row.case)
    return compare(side_of(before.run, row_of_case(before, row.case)), side_of(after.run, row))
