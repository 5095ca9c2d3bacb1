"""`perfdash history`: imports, lists, shows, exports, prunes, merges and curates runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfdash.cli.shared_options import AsJson, Db, Out, opened, print_result, warn
from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.history.results import Imported
    from perfdash.history.store import Store

app = typer.Typer(help="Import, list, show, export and correct stored runs.", no_args_is_help=True)

Since = Annotated[
    str | None, typer.Option(help="Only runs from this time on: 2026, 2026-11, 2026-11-21, ...")
]
Until = Annotated[str | None, typer.Option(help="Only runs up to this time, inclusive.")]


@app.command("import")
def import_(
    files: Annotated[
        list[Path], typer.Argument(help="Run folders, folders of runs, or files of other tools.")
    ],
    db: Db = None,
    out: Out = None,
    host: Annotated[
        str | None, typer.Option(help="For a file of another tool: the name of the host.")
    ] = None,
    host_class: Annotated[
        str | None,
        typer.Option(help="For a file of another tool: the class of hosts whose results may be compared."),
    ] = None,
    started: Annotated[
        str | None,
        typer.Option(
            help="For a file of another tool: when it was measured, "
            "2023-06-01; or mtime: when the file was written."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="The number of threads, if the file does not say it.")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="The suite, if the file does not say it.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda, if the file does not say it.")] = None,
    dtype: Annotated[str | None, typer.Option(help="The dtype, if the file does not say it.")] = None,
    amp_dtype: Annotated[
        str | None, typer.Option(help="The dtype that amp casts to, if the file does not say it.")
    ] = None,
    scenario: Annotated[str | None, typer.Option(help="The scenario, if the file does not say it.")] = None,
    backend: Annotated[str | None, typer.Option(help="The back end, if the file does not say it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Import runs, and the result files of other tools.

    Other tools are PyTorch's dynamo runners (CSV), benchmark databases and dashboards. The format is
    recognised by the content of the file. Results that the history already has are not imported again.
    """
    options = dict(locals())
    from perfdash.errors import PerfdashError, UsageError
    from perfdash.history.importers import ImportOptions, read
    from perfdash.history.ingest import ForeignShards, take_in
    from perfdash.report.run_lookup import read_folder
    from perfdash.runner.run_journal import read_info
    from perfdash.runner.run_recording import exclusion, refusal

    folders = [(path, folder) for path in files for folder in _run_folders(path)]
    run_paths = {path for path, _ in folders}
    foreign = [path for path in files if path not in run_paths]
    # Foreign files all or none, but run folders one by one, because there may be years of them.
    imported = read(
        foreign, ImportOptions(**{name: options[name] for name in ImportOptions.__dataclass_fields__})
    )
    stored: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    unreadable: list[str] = []

    def show(run: Imported, outcome: str) -> None:
        plain = {"name": run.run.name, "outcome": _outcome_word(outcome), "origin": run.run.origin}
        stored.append({**plain, "source": run.run.source, "results": len(run.rows)})
        if not as_json:
            typer.echo(f"{run.run.name}: {outcome} ({run.run.origin}, {len(run.rows)} results)")

    def show_json() -> None:
        if as_json:
            plain = {"runs": stored, "left_out": left_out, "cannot_be_imported": unreadable}
            typer.echo(dumps(plain, indent=1))

    with opened(db, out, create=True) as store:
        for run, outcome in zip(imported, take_in(store, imported, warn), strict=True):
            show(run, outcome)
        for path, folder in folders:
            try:
                info = read_info(folder)
                if path != folder and (why := exclusion(info)):
                    left_out.append({"folder": str(folder), "reason": why})
                    warn(f"{folder.name}: left out: {why}")
                    continue
                if why := refusal(info):  # a folder that was named itself is imported all the same
                    warn(f"{folder.name}: imported, although {why}")
                run = read_folder(folder, warn, code=True)
            except PerfdashError as error:
                unreadable.append(str(error))
                continue
            try:
                show(run, take_in(store, [run], warn)[0])
            except ForeignShards as error:
                if path == folder:
                    unreadable.append(str(error))
                else:
                    left_out.append({"folder": str(folder), "reason": str(error)})
                    warn(f"{folder.name}: left out: {error}")
            except UsageError as error:
                unreadable.append(str(error))
            except PerfdashError:  # the history fails, so it would fail for the others
                if stored:
                    show_json()
                raise
    show_json()
    if unreadable:
        raise UsageError(
            "\n".join([f"{len(unreadable)} of {len(folders)} runs cannot be imported:", *unreadable])
        )


def _outcome_word(outcome: str) -> str:
    """The outcome of storing a run, or a count of alerts, as JSON has it."""
    from perfdash.history.ingest import OLDER
    from perfdash.history.maintenance import COPIED, NOT_COPIED

    words = {OLDER: "left_out", COPIED: "alerts", NOT_COPIED: "alerts_not_copied"}
    return words.get(outcome, outcome)


def _checked(since: str | None, until: str | None) -> tuple[str | None, str | None]:
    from perfdash.history.run_selection import check_time

    if since is not None:
        check_time(since, "--since")
    if until is not None:
        check_time(until, "--until")
    return since, until


def _run_folders(path: Path) -> list[Path]:
    if (path / "run.json").is_file():
        return [path]
    return sorted(info.parent for info in path.glob("*/run.json")) if path.is_dir() else []


@app.command("runs")
def runs(
    db: Db = None,
    out: Out = None,
    since: Since = None,
    until: Until = None,
    latest: Annotated[int | None, typer.Option(min=1, help="Only this many of the latest.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of the history, oldest first."""
    from perfdash.history.queries import list_runs
    from perfdash.report.terminal_tables import run_table

    since, until = _checked(since, until)
    with opened(db, out) as store, store.read() as connection:
        listed = list_runs(connection, since=since, until=until, latest=latest)
    if as_json:
        typer.echo(dumps([run.to_plain() for run in listed], indent=1))
        return
    typer.echo(run_table(listed))


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(help="The name of a run, `last` (the newest), or id:N.")] = "last",
    model: Annotated[str | None, typer.Option(help="Show the numbers of this model over all nights.")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="With --model: the metrics to show. Repeatable.  [default: eager_ms, backend_ms, speedup]"
        ),
    ] = None,
    db: Db = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Show a stored run, or one model over time."""
    from dataclasses import asdict

    from perfdash.history.pass_rates_and_means import remark
    from perfdash.history.queries import model_series, rows_of
    from perfdash.history.results import clock_of
    from perfdash.history.run_selection import find_run
    from perfdash.report.terminal_tables import run_rows, series_table

    with opened(db, out) as store, store.read() as connection:
        line = find_run(connection, run)
        if model is not None:
            metrics = metric or ["eager_ms", "backend_ms", "speedup"]
            if as_json:
                plain = [
                    {
                        "case": vars(case),
                        "nights": {
                            name: list(map(asdict, series))
                            for name, series in zip(metrics, points, strict=True)
                        },
                    }
                    for case, points in model_series(connection, line, model, metrics)
                ]
                typer.echo(dumps(plain, indent=1))
                return
            tables = [
                series_table(case, metrics, points)
                for case, points in model_series(connection, line, model, metrics)
            ]
            typer.echo("\n\n".join(tables))
            return
        rows = rows_of(connection, line.id, details=True)
        if as_json:
            results = [
                {
                    "case": vars(row.case),
                    "status": row.status,
                    "verdict": row.verdict,
                    "remark": remark(row),
                    "clock": clock_of(row),
                    "values": row.values,
                    "others": row.others,
                }
                for row in rows
            ]
            typer.echo(dumps({"run": line.to_plain(), "results": results}, indent=1))
            return
        typer.echo(run_rows(line, rows))


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="The file to write: .parquet, .csv or .json (lines).")],
    db: Db = None,
    out: Out = None,
    since: Since = None,
    until: Until = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="parquet, csv or json.  [default: by the suffix of the file]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the results of the history as one flat table."""
    from perfdash.errors import UsageError
    from perfdash.files import is_special
    from perfdash.history import export as exporting
    from perfdash.history.queries import list_runs

    chosen = form or file.suffix.removeprefix(".").lower()
    if chosen not in exporting.FORMATS:
        from perfdash.suggestions import not_one_of

        raise UsageError(f"{file}: {not_one_of('--format', chosen, exporting.FORMATS)}")
    since, until = _checked(since, until)
    with opened(db, out) as store, store.read() as connection:
        chosen_runs = list_runs(connection, since=since, until=until)
        count = exporting.export(connection, chosen_runs, file, chosen)
    plain = {"file": str(file), "format": chosen, "runs": len(chosen_runs), "results": count}
    text = f"{count} results of {len(chosen_runs)} runs in {file}"
    if is_special(file) and not as_json:
        typer.echo(text, err=True)  # the file may be standard output
    else:
        print_result(plain, text, as_json)


@app.command("prune")
def prune(
    before: Annotated[str, typer.Option(help="Remove runs that started before this time: 2026-01-01.")],
    db: Db = None,
    out: Out = None,
    samples: Annotated[
        bool, typer.Option("--samples", help="Remove only their latency samples. The results are kept.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it. Without this flag the command only prints what it would do.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old runs, or only their samples. Run folders are kept.

    The runs that date open alerts stay.
    """
    from perfdash.detect.causes import runs_that_date_open_alerts
    from perfdash.history import maintenance
    from perfdash.history.queries import list_runs
    from perfdash.history.run_selection import check_time
    from perfdash.report.number_format import counted

    moment = check_time(before, "--before")
    prefix = "the samples of " if samples else ""
    with opened(db, out) as store:
        with store.read() as connection:
            older = [run for run in list_runs(connection) if run.started < moment]
            dating = set() if samples else runs_that_date_open_alerts(connection)
        old = [run for run in older if run.id not in dating]
        kept = [run.name for run in older if run.id in dating]
        names = [run.name for run in old]
        plain = {"done": yes, "before": moment, "only_samples": samples, "runs": names, "kept": kept}
        runs_kept = f"{counted(len(kept), 'older run')} {'is' if len(kept) == 1 else 'are'} kept"
        note = f"\n{runs_kept}: open alerts are dated by them" if kept else ""
        if not yes:
            text = f"Would remove {prefix}{len(old)} runs; --yes does it{note}"
            print_result({**plain, "results": None}, text, as_json)
            return
        count = maintenance.prune(store, old, samples_only=samples)
        if not samples:
            maintenance.prune_nightlies(store, moment)
        text = f"Removed {prefix}{count} results of {len(old)} runs{note}"
        print_result({**plain, "results": count}, text, as_json)
        maintenance.shrink(store, pruned=count > 0)


@app.command("merge")
def merge(
    other: Annotated[str, typer.Argument(help="Another history, a file or an address.")],
    db: Db = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Copy all runs of another history into this one.

    A run that both have is replaced only if the other history has more results of it. Alerts and decisions
    about them are copied into a history in which nothing was judged yet."""
    from perfdash.history import maintenance
    from perfdash.history.store import open_store
    from perfdash.settings import refuse_password

    refuse_password(other, "history merge")
    with open_store(other, create=False) as source, opened(db, out, create=True) as target:
        counts = maintenance.merge(target, source, warn)
    plain = {_outcome_word(outcome): count for outcome, count in counts.items()}
    text = ", ".join(
        f"{count} {outcome}" for outcome, count in counts.items() if outcome != maintenance.NOT_COPIED
    )
    if count := counts[maintenance.NOT_COPIED]:
        text += (
            f"\nNot copied: {count} alert{'s' * (count != 1)} of the other history, because runs were judged "
            "here before. A change that began before the latest 30 days may raise no alert here"
        )
    print_result(plain, text, as_json)


OneRun = Annotated[
    str,
    typer.Argument(help="The name of a run, `last` (the newest), or id:N if several runs have that name."),
]
Because = Annotated[str | None, typer.Option(help="The reason, for people who read the history later.")]


@app.command("exclude")
def exclude(
    run: OneRun,
    because: Because = None,
    undo: Annotated[bool, typer.Option("--undo", help="Undo: use the run for judging again.")] = False,
    db: Db = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Keep a run but leave it out of judging; judge later nights again.

    An excluded run is used for no baseline, change or noise estimate. Tables show the reason.
    """
    from perfdash.detect import curation
    from perfdash.history.acts import check_reason

    why = because if undo else check_reason(because, f"history exclude {run}")
    with opened(db, out) as store:
        if undo:
            line, nights = curation.restore(store, run, why)
            text = f"{line.name} is no longer excluded"
        else:
            line, nights = curation.exclude(store, run, str(why))
            text = f"{line.name} is excluded: {why}"
        plain = {"run": line.name, "excluded": None if undo else why, "judged_again": nights}
        print_result(plain, text, as_json)
        _judge_again(store, nights, as_json)


@app.command("remove")
def remove(
    run: OneRun,
    because: Because = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it. Without this flag the command only prints what it would do.")
    ] = False,
    db: Db = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Remove a run. Its folder is kept; `history import` stores it again."""
    from perfdash.detect import curation
    from perfdash.history.acts import the_run

    with opened(db, out) as store:
        with store.read() as connection:
            line = the_run(connection, run)
        what = f"{line.name} (started {line.started} on {line.host}) with its {line.results} results"
        facts = {"started": line.started, "host": line.host, "results": line.results}
        plain = {"done": yes, "run": line.name, **facts}
        if not yes:
            print_result({**plain, "judged_again": 0}, f"Would remove {what}; --yes does it", as_json)
            return
        nights = curation.remove(store, line, because)
        print_result({**plain, "judged_again": nights}, f"Removed {what}", as_json)
        _judge_again(store, nights, as_json)


@app.command("rename")
def rename(
    run: OneRun,
    new: Annotated[str, typer.Argument(help="The new name of the run.")],
    because: Because = None,
    db: Db = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Give a run another name. Its folder keeps its name."""
    from perfdash.detect import curation

    with opened(db, out) as store:
        line = curation.rename(store, run, new, because)
    print_result({"run": line.name, "name": new}, f"{line.name} is now called {new}", as_json)


@app.command("acts")
def acts(db: Db = None, out: Out = None, as_json: AsJson = False) -> None:
    """List the changes that people made: who, when and why."""
    from perfdash.history.acts import load
    from perfdash.report.terminal_tables import act_table

    with opened(db, out) as store, store.read() as connection:
        listed = load(connection)
    print_result([act.to_plain() for act in listed], act_table(listed), as_json)


def _judge_again(store: Store, nights: int, as_json: bool) -> None:
    """Judge the nights that an act affects, and print how many there are, unless JSON did."""
    from perfdash.detect.nightly_judging import judge_new
    from perfdash.settings import judging_rules

    if nights:
        judge_new(store, rules=judging_rules())
        if not as_json:
            several = "" if nights == 1 else "s"
            typer.echo(f"Judged again: {nights} night{several}; see `perfdash regressions`")
