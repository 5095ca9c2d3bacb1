"""`perfdash regressions`: list alerts: what became worse or better, since when, how sure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdash.cli.shared_options import AsJson, Db, Out, opened, warn
from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.history.store import Store


def regressions(
    alert: Annotated[int | None, typer.Argument(help="The number of an alert: its life in full.")] = None,
    db: Db = None,
    out: Out = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Also those that were fixed or turned out to be noise.")
    ] = False,
    worse: Annotated[bool, typer.Option("--worse", help="Only what got worse.")] = False,
    run: Annotated[
        str | None, typer.Option(help="Only what is seen in this run (name, or `last`) or began with it.")
    ] = None,
    acknowledge: Annotated[
        int | None, typer.Option(metavar="ID", help="Someone knows of this alert: it fails no gate.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="With --acknowledge: why.")] = None,
    over: Annotated[
        int | None,
        typer.Option(min=6, metavar="NIGHTS", help="Change points over so many nights of history instead."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML for a CI.")] = None,
    fail_on: Annotated[
        list[str] | None, typer.Option(help="`regression`: exit 1 on what is worse and not acknowledged.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what changed for real, judging the nights that came since the last time. Noise stays silent."""
    from perfdash.errors import UsageError

    if note and acknowledge is None:
        raise UsageError("--note belongs to --acknowledge ID")
    if fail_on and set(fail_on) != {"regression"}:
        raise UsageError(f"--fail-on {', '.join(fail_on)}: here there is only regression")
    with opened(db, out) as store:
        if acknowledge is not None:
            _acknowledge(store, acknowledge, note)
            return
        if over is not None:
            _over_time(store, over, run, as_json)
            return
        from perfdash.detect.nightly_judging import judge_new

        for judged in judge_new(store):
            if judged.unlike:
                typer.echo(
                    f"{judged.run.name} is not judged: it has too few of the cases of the runs before it",
                    err=True,
                )
        if alert is not None:
            _show(store, alert, as_json)
            return
        from perfdash.report.alert_text import alert_list, open_alerts, to_plain

        alerts = open_alerts(store, everything=all_, worse=worse, run=run)
    typer.echo(dumps([to_plain(item) for item in alerts], indent=1) if as_json else alert_list(alerts))
    if junit:
        from perfdash.report.junit import write_alerts

        write_alerts(junit, alerts)
    if fail_on:
        from perfdash.report.gates import alert_gate

        raise typer.Exit(alert_gate(alerts, warn))


def _acknowledge(store: Store, number: int, note: str | None) -> None:
    from perfdash.detect.alert_states import acknowledged
    from perfdash.errors import UsageError
    from perfdash.files import now
    from perfdash.history import alert_store

    with store.write() as connection:
        alert = alert_store.find(connection, number)
        if alert.state not in alert_store.LIVE:
            raise UsageError(f"alert {number} is {alert.state}: there is nothing to acknowledge")
        alert_store.save(connection, acknowledged(alert, now()), note)
    typer.echo(f"Alert {number} is acknowledged")


def _show(store: Store, number: int, as_json: bool) -> None:
    from perfdash.detect.alert_evidence import gather
    from perfdash.history import alert_store
    from perfdash.report.alert_text import alert_list, life, to_plain

    with store.read() as connection:
        (evidence,) = gather(connection, [alert_store.find(connection, number)])
        events = alert_store.events(connection, number)
    if as_json:
        typer.echo(dumps(to_plain(evidence, events), indent=1))
        return
    typer.echo(f"{alert_list([evidence])}\n{life(events)}")


def _over_time(store: Store, nights: int, run: str | None, as_json: bool) -> None:
    from dataclasses import asdict
    from itertools import pairwise

    from perfdash.detect.change_dates import lasting_changes
    from perfdash.history.queries import cases_by_id, find_run, list_runs, panel
    from perfdash.methods import changes
    from perfdash.metrics import JUDGED
    from perfdash.report.alert_text import change_list

    with store.read() as connection:
        last = find_run(connection, run or "last")
        runs = list_runs(
            connection, testbed_id=last.testbed_id, until=last.started, latest=nights, with_excluded=False
        )
        lasting = list(lasting_changes(panel(connection, runs, JUDGED)))
        cases = cases_by_id(connection, (dated.case_id for dated in lasting if dated.case_id))
    if as_json:
        plain = [
            {
                "case": vars(cases[dated.case_id]) if dated.case_id else None,
                "metric": dated.metric,
                **asdict(dated.change),
                "first": dated.first.name,
                "good": {"run": dated.good.name, "torch_git_version": dated.good.torch_git_version},
                "bad": {"run": dated.bad.name, "torch_git_version": dated.bad.torch_git_version},
            }
            for dated in lasting
        ]
        typer.echo(dumps(plain, indent=1))
        return
    typer.echo(f"{last.host_class}: {len(runs)} nights up to {last.started[:10]}")
    for before, after in pairwise(runs):
        if other := changes(before.method, after.method):
            typer.echo(f"From {after.started[:10]} on by another method ({', '.join(other)}): not compared")
    typer.echo(change_list(lasting, cases))
