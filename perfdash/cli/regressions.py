"""`perfdash regressions`: list alerts: what became worse or better, since when, how sure."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdash.cli.shared_options import AsJson, Db, Out, opened, print_result, warn
from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.detect.curation import LevelSelection
    from perfdash.history.store import Store


def regressions(
    alert: Annotated[
        int | None,
        typer.Argument(
            help="The number of an alert: show all its events. With --baseline-from: only its series."
        ),
    ] = None,
    db: Db = None,
    out: Out = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Also show alerts that were fixed or turned out to be noise.")
    ] = False,
    worse: Annotated[bool, typer.Option("--worse", help="Only regressions, no improvements.")] = False,
    run: Annotated[
        str | None,
        typer.Option(help="Only alerts that are open in this run (name, or `last`) or began with it."),
    ] = None,
    acknowledge: Annotated[
        int | None,
        typer.Option(metavar="ID", help="Acknowledge this alert: it no longer fails a check (--fail-on)."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="With --acknowledge: until this day, e.g. 2026-12-24 (UTC)."),
    ] = None,
    invalid: Annotated[
        int | None, typer.Option(metavar="ID", help="End this alert: it is no real change. Needs --because.")
    ] = None,
    baseline_from: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Accept the level since this run: earlier nights are no "
            "longer the baseline. Needs --because.",
        ),
    ] = None,
    suite: Annotated[str | None, typer.Option(help="With --baseline-from: only suites that match.")] = None,
    model: Annotated[str | None, typer.Option(help="With --baseline-from: only models that match.")] = None,
    metric: Annotated[str | None, typer.Option(help="With --baseline-from: only metrics that match.")] = None,
    because: Annotated[
        str | None,
        typer.Option(
            "--because", "--note", help="The reason for --acknowledge, --invalid or --baseline-from."
        ),
    ] = None,
    over: Annotated[
        int | None,
        typer.Option(min=6, metavar="NIGHTS", help="Show the change points over this many nights instead."),
    ] = None,
    noisiest: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Show the N noisiest series, and the smallest change that each can show."
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write the alerts as JUnit XML, for a CI.")] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help="`regression`: exit with code 1 if there is a regression that nobody acknowledged."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the alerts: what became worse or better.

    Nights that were not judged yet are judged first."""
    from perfdash.errors import UsageError

    decisions = {"--acknowledge": acknowledge, "--invalid": invalid, "--baseline-from": baseline_from}
    chosen = [name for name, value in decisions.items() if value is not None]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} cannot be given together: give one after the other")
    if because and not chosen:
        raise UsageError(f"--because belongs to one of {', '.join(decisions)}")
    if until and acknowledge is None:
        raise UsageError("--until belongs to --acknowledge ID")
    if (suite or model or metric) and baseline_from is None:
        raise UsageError("--suite, --model and --metric belong to --baseline-from RUN")
    if alert is not None and baseline_from is None and (fail_on or junit):
        raise UsageError(f"--fail-on and --junit are for the list of alerts: leave out {alert}")
    if fail_on and set(fail_on) != {"regression"}:
        from perfdash.suggestions import not_one_of

        raise UsageError(not_one_of("--fail-on", ", ".join(fail_on), ["regression"]))
    with opened(db, out) as store:
        if acknowledge is not None:
            _acknowledge(store, acknowledge, because, until, as_json)
            return
        if invalid is not None:
            _invalidate(store, invalid, because, as_json)
            return
        if baseline_from is not None:
            from perfdash.detect.curation import LevelSelection

            selection = LevelSelection(suite, model, metric, alert)
            _accept_level(store, baseline_from, because, selection, as_json)
            return
        if noisiest is not None:
            _noisiest(store, noisiest, run, as_json)
            return
        if over is not None:
            _over_time(store, over, run, as_json)
            return
        from perfdash.detect.nightly_judging import judge_if_allowed, judge_new
        from perfdash.settings import judging_rules

        judge = judge_new if fail_on else judge_if_allowed  # a check does not pass on what was not judged
        for judged in judge(store, rules=judging_rules(), warn=lambda text: typer.echo(text, err=True)):
            if judged.unlike:
                typer.echo(
                    f"{judged.run.name} is not judged: it has too few of the cases of the runs before it, or "
                    "is the first run of its kind",
                    err=True,
                )
            if judged.later:
                alerts_of = "alert of a number" if judged.was_beside else "alert"
                name = judged.run.name
                hint = ""
                if judged.days_late > 1:
                    hint = (
                        f", as was a run of {judged.days_late} days later; if the clock of {name} was wrong, "
                        f'exclude it: `perfdash history exclude {shlex.quote(name)} --because "wrong clock"`'
                    )
                typer.echo(
                    f"{name} changes no {alerts_of}: {judged.later} was judged before it{hint}", err=True
                )
        if alert is not None:
            _show(store, alert, as_json)
            return
        from perfdash.report.alert_text import alert_list, open_alerts, to_plain

        of_run = None
        if run is not None:
            from perfdash.report.gates import alerts_in_run

            of_run = alerts_in_run(store, run, warn if fail_on else lambda text: None)
        alerts = open_alerts(store, everything=all_, worse=worse, of_run=of_run)
    typer.echo(dumps([to_plain(item) for item in alerts], indent=1) if as_json else alert_list(alerts))
    if junit:
        from perfdash.report.junit import write_alerts

        write_alerts(junit, alerts)
    if fail_on:
        from perfdash.report.gates import alert_gate

        raise typer.Exit(alert_gate(alerts, warn))


def _acknowledge(store: Store, number: int, because: str | None, until: str | None, as_json: bool) -> None:
    from perfdash.detect.curation import acknowledge
    from perfdash.history.acts import reason
    from perfdash.history.alert_store import ACKNOWLEDGED

    before = acknowledge(store, number, because, _last_day(until) if until else None)
    earlier = (before.details.get("act") or {}) if before.state == ACKNOWLEDGED else {}
    by = f"; {earlier['who']} had acknowledged it on {earlier['at']}" if earlier else ""
    plain = {"alert": number, "state": ACKNOWLEDGED, "until": until, "because": reason(because)}
    print_result(plain, f"Alert {number} is acknowledged{f' until {until}' if until else ''}{by}", as_json)


def _last_day(until: str) -> str:
    """The last day of an acknowledgement. Raises UsageError for no date, and for one that is over."""
    from datetime import date

    from perfdash.errors import UsageError
    from perfdash.files import now

    try:
        day = date.fromisoformat(until).isoformat()
    except ValueError:
        day = ""
    if day != until:
        raise UsageError(f"--until {until!r} is no date; give one such as 2026-12-24")
    if day < now()[:10]:
        raise UsageError(f"--until {until} is over; give today ({now()[:10]}, UTC) or a later day")
    return day


def _invalidate(store: Store, number: int, because: str | None, as_json: bool) -> None:
    from perfdash.detect.curation import invalidate
    from perfdash.history.acts import check_reason
    from perfdash.history.alert_store import INVALID

    why = check_reason(because, f"--invalid {number}")
    invalidate(store, number, why)
    print_result({"alert": number, "state": INVALID, "because": why}, f"Alert {number} is invalid", as_json)


def _accept_level(
    store: Store, run: str, because: str | None, selection: LevelSelection, as_json: bool
) -> None:
    from perfdash.detect.curation import accept_level
    from perfdash.detect.nightly_judging import judge_new
    from perfdash.history.acts import check_reason
    from perfdash.settings import judging_rules

    rules = judging_rules()
    why = check_reason(because, f"--baseline-from {run}")
    line, cases, ended, nights = accept_level(store, run, why, selection)
    judge_new(store, rules=rules)
    alerts = f"alerts accepted: {', '.join(map(str, ended))}" if ended else "no open alert is of them"
    text = (
        f"The level of {cases} case{'' if cases == 1 else 's'} is accepted from {line.name} on; {alerts}; "
        f"judged again: {nights} night{'' if nights == 1 else 's'}"
    )
    plain = {"run": line.name, "cases": cases, "accepted_alerts": ended, "judged_again": nights}
    print_result({**plain, "because": why}, text, as_json)


def _noisiest(store: Store, number: int, run: str | None, as_json: bool) -> None:
    from dataclasses import asdict

    from perfdash.detect.nightly_judging import AFTER, noisiest
    from perfdash.history.run_selection import find_run
    from perfdash.report.alert_text import noise_list
    from perfdash.settings import judging_rules

    with store.read() as connection:
        line = find_run(connection, run or "last")
        listed = noisiest(connection, line, number, judging_rules())
    if as_json:
        plain = [
            {**asdict(series), "least": dict(zip(AFTER, series.least, strict=True))} for series in listed
        ]
        typer.echo(dumps(plain, indent=1))
        return
    typer.echo(f"{line.host_class}, nights up to {line.started[:10]}")
    typer.echo(noise_list(listed))


def _show(store: Store, number: int, as_json: bool) -> None:
    from perfdash.detect.causes import gather_in_causes
    from perfdash.history import alert_store
    from perfdash.report.alert_text import alert_list, life, origin, to_plain

    with store.read() as connection:
        (evidence,) = gather_in_causes(connection, [alert_store.find(connection, number)])
        events = alert_store.events(connection, number)
    if as_json:
        typer.echo(dumps(to_plain(evidence, events), indent=1))
        return
    typer.echo(f"{alert_list([evidence])}\n{number}: {origin(evidence)}\n{life(events)}")


def _over_time(store: Store, nights: int, run: str | None, as_json: bool) -> None:
    from dataclasses import asdict
    from itertools import pairwise

    from perfdash.detect.change_dates import lasting_changes
    from perfdash.detect.nights import latest_days
    from perfdash.history.queries import cases_by_id, list_runs, panel
    from perfdash.history.run_selection import find_run
    from perfdash.methods import changes
    from perfdash.metrics import JUDGED
    from perfdash.report.alert_text import change_list

    with store.read() as connection:
        last = find_run(connection, run or "last")
        earlier = list_runs(connection, testbed_id=last.testbed_id, until=last.started, with_excluded=False)
        runs = latest_days(earlier, nights)
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
    days = len({run.started[:10] for run in runs})
    typer.echo(f"{last.host_class}: {days} nights up to {last.started[:10]}")
    for before, after in pairwise(runs):
        if other := changes(before.method, after.method):
            typer.echo(f"From {after.started[:10]} on by another method ({', '.join(other)}): not compared")
    typer.echo(change_list(lasting, cases))
