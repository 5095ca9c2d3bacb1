"""`perfdash nightly`: record when nightlies start and end, so that a missing one is noticed."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from perfdash.cli.shared_options import AsJson, Db, Out, opened, print_result
from perfdash.files import dumps

app = typer.Typer(help="Record when nightlies start and end; notice missing ones.", no_args_is_help=True)

Job = Annotated[
    str, typer.Option(metavar="NAME", help="The name of the nightly, if several share a history.")
]
Night = Annotated[
    str | None,
    typer.Option(
        help="The name of this night, e.g. of its folder.  [default: now (begin), the latest night (end)]"
    ),
]
_UNITS = {"m": 60, "h": 3600, "d": 86400}


@app.command("begin")
def begin(
    every: Annotated[str, typer.Option(help="The time between two nightlies: 24h, 7d, 90m.")] = "24h",
    grace: Annotated[
        str | None,
        typer.Option(
            help="How late the next one may start before it counts as late.  [default: an eighth of --every]"
        ),
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'SUITE DEVICE DTYPE'",
            help="Results to expect, e.g. 'timm cpu float32'; a number of threads may follow. Repeatable.",
        ),
    ] = None,
    job: Job = "nightly",
    night: Night = None,
    as_json: AsJson = False,
    db: Db = None,
    out: Out = None,
) -> None:
    """Record that a nightly starts, and when the next is due.

    Repeat the command with the same --night to continue a night."""
    from perfdash.files import now
    from perfdash.history import nightlies

    every_s = _seconds(every, "--every")
    if every_s < 60:
        raise _usage(f"--every {every}: a minute is the least")
    grace_s = _seconds(grace, "--grace") if grace else every_s // 8
    at = now()
    begun = nightlies.Nightly(
        _named(job, "--job"), _named(night or at, "--night"), at, every_s, grace_s,
        expected=tuple(map(_expected, expect or ())),
    )  # fmt: skip
    with opened(db, out, create=True) as store, store.write() as connection:
        begun = nightlies.begin(connection, begun)
        shared = nightlies.jobs_in_one_series(connection, begun)
    if shared:
        names = ", ".join([begun.job, *shared])
        typer.echo(
            f"perfdash: the last runs of the nightlies {names} are nights of one series: same models, same "
            "options, same machine. If these nightlies measure different builds, changes are missed or "
            "invented: give all but one of them a name for its builds (LINE=NAME, perfdash run --line NAME)",
            err=True,
        )
    due = _in(begun.begun, every_s)
    text = f"{begun.job} {begun.night}: begun {begun.begun}, the next is due {due}"
    print_result(asdict(begun), text, as_json)


@app.command("end")
def end(
    state: Annotated[str, typer.Option(help="ok, partial, failed.")],
    why: Annotated[str | None, typer.Option(help="What went wrong, in a few words.")] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            help="A run of this night: its folder or name. Repeatable.  [default: all runs since it started]"
        ),
    ] = None,
    job: Job = "nightly",
    night: Night = None,
    as_json: AsJson = False,
    db: Db = None,
    out: Out = None,
) -> None:
    """Record how a nightly ended.

    A nightly whose expected results are missing in the history is recorded as partial."""
    from perfdash.files import now
    from perfdash.history import nightlies
    from perfdash.redaction import redact

    if state not in nightlies.ENDINGS:
        from perfdash.suggestions import not_one_of

        raise _usage(not_one_of("--state", state, nightlies.ENDINGS))
    words = redact((why or "").encode(errors="replace").decode())  # of a log: the bytes need not be text
    # A nightly that broke before it measured anything is recorded, too.
    with opened(db, out, create=state == nightlies.FAILED) as store, store.write() as connection:
        done = nightlies.end(
            connection, job, night, at=now(), state=state, why=" ".join(words.split())[:500] or None,
            runs=[Path(name).name for name in run or ()],
        )  # fmt: skip
    text = f"{done.job} {done.night}: {done.state}" + (f": {done.why}" if done.why else "")
    print_result(asdict(done), text, as_json)


@app.command("list")
def list_(
    job: Annotated[str | None, typer.Option(metavar="NAME", help="Only the nightly of this name.")] = None,
    latest: Annotated[int | None, typer.Option(min=1, help="Only this many of the latest.")] = 20,
    as_json: AsJson = False,
    db: Db = None,
    out: Out = None,
) -> None:
    """List nightlies, oldest first."""
    from perfdash.history import nightlies

    with opened(db, out) as store, store.read() as connection:
        listed = nightlies.load(connection, job=job, latest=latest)
    if as_json:
        typer.echo(dumps([asdict(nightly) for nightly in listed], indent=1))
        return
    for nightly in listed:
        words = (
            nightly.job,
            nightly.night,
            nightly.begun,
            nightly.ended or "-",
            nightly.state,
            nightly.why or "",
        )
        typer.echo("  ".join(words).rstrip())
    if not listed:
        typer.echo("No nightlies")


@app.command("forget")
def forget(
    job: Annotated[str, typer.Argument(help="The name of the nightly.")],
    as_json: AsJson = False,
    db: Db = None,
    out: Out = None,
) -> None:
    """Stop expecting a nightly. Its runs are kept."""
    from perfdash.history import nightlies

    with opened(db, out) as store, store.write() as connection:
        jobs = nightlies.jobs(connection)
        if job not in jobs:
            raise _usage(f"there is no nightly {job!r}; there are: {', '.join(jobs) or 'none'}")
        count = nightlies.forget(connection, job)
    print_result({"job": job, "forgotten": count}, f"Forgot {count} of {job}", as_json)


def examined(
    job: str | None,
    db: str | None,
    out: Path | None,
    now: datetime | None = None,
    *,
    as_json: bool = False,
) -> int:
    """`perfdash doctor --nightly`: print the state of the nightlies; 1 if any is missing."""
    from perfdash.detect.heartbeat import LATEST, health
    from perfdash.history import nightlies

    with opened(db, out) as store, store.read() as connection:
        if job:
            latest = {job: nightlies.load(connection, job=job, latest=LATEST)}
        else:
            latest = nightlies.latest_of_jobs(connection, LATEST)
    beats = health(latest, now or datetime.now(UTC))
    lines = "\n".join(f"{beat.level:<11} {beat.job}  {beat.what}" for beat in beats)
    print_result([asdict(beat) for beat in beats], lines, as_json)
    return 0 if all(beat.good for beat in beats) else 1


def _seconds(text: str, option: str) -> int:
    match = re.fullmatch(r"(\d{1,5})([mhd])", text)
    if not match:
        raise _usage(f"{option} {text!r}: give it as 24h, 7d or 90m")
    return int(match[1]) * _UNITS[match[2]]


def _expected(text: str) -> str:
    words = text.split()
    if len(words) not in (3, 4) or (len(words) == 4 and not words[3].isdigit()):
        raise _usage(f"--expect {text!r}: give suite, device and dtype, e.g. 'timm cpu float32'")
    return " ".join(words)


def _named(text: str, option: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > 200:
        raise _usage(f"{option} {text!r}: give a name of at most 200 characters on one line")
    return text


def _in(moment: str, seconds: int) -> str:
    from datetime import timedelta

    return f"{datetime.fromisoformat(moment) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def _usage(text: str) -> Exception:
    from perfdash.errors import UsageError

    return UsageError(text)
