"""`perfdash notify`: send a run's digest or a nightly's failure by mail or chat."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfdash.cli.shared_options import (
    AsJson,
    Baseline,
    Db,
    DryRun,
    Out,
    RunName,
    SiteUrl,
    check_address,
    lookup,
)
from perfdash.files import dumps

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfdash.report.digest import Digest

    Way = Callable[[Digest, list[dict[str, Any]]], None]  # sends, and appends by which way and to whom


def notify(
    run: RunName = "last",
    mail_to: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Send a mail to this address. Repeatable, or commas."),
    ] = None,
    mail_from: Annotated[
        str | None,
        typer.Option(
            envvar="PERFDASH_MAIL_FROM", help="The sender of the mail.  [default: the first of --mail-to]"
        ),
    ] = None,
    smtp: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]", envvar="PERFDASH_SMTP", help="The mail server.  [default port: 587]"
        ),
    ] = None,
    smtp_user: Annotated[
        str | None,
        typer.Option(
            envvar="PERFDASH_SMTP_USER",
            help="The user of the mail server. The password is read from PERFDASH_SMTP_PASSWORD.",
        ),
    ] = None,
    smtp_plain: Annotated[
        bool, typer.Option("--smtp-plain", help="Use no encryption and no password, for a relay of your own.")
    ] = False,
    webhook: Annotated[
        bool, typer.Option("--webhook", help="Send to the chat whose webhook is in PERFDASH_WEBHOOK.")
    ] = False,
    broken: Annotated[
        str | None,
        typer.Option(
            metavar="WHY", help="Report that the nightly failed, with this reason, instead of a run."
        ),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(min=1, help="Report the last days of the history instead of a run: 7 for a week."),
    ] = None,
    baseline: Baseline = None,
    site_url: SiteUrl = None,
    link: Annotated[str | None, typer.Option(help="A link for readers: to the comment or the build.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    db: Db = None,
    out: Out = None,
) -> None:
    """Send what changed in a few lines, by mail or to a chat."""
    from perfdash.errors import MachineError, UsageError

    check_address("--site-url", site_url)
    check_address("--link", link)
    if not (mail_to or webhook or dry_run):
        raise UsageError("where to? give --mail-to ADDRESS, --webhook, or --dry-run to look at the text")
    ways: list[Way] = []
    # All is checked before anything is read or sent.
    if mail_to and not dry_run:
        ways.append(_mailer(mail_to, mail_from, smtp, smtp_user, smtp_plain))
    if webhook and not dry_run:
        ways.append(_poster())
    from perfdash.report import digest

    if days is not None:
        if broken is not None or baseline is not None or run != "last":
            raise UsageError("--days is of the history: leave out the run, --baseline and --broken")
        message = lookup(db, out).weekly_digest(days, site_url)
    elif broken is not None:
        message = digest.broken_nightly(broken, site_url=site_url, link=link)
    else:
        night = lookup(db, out).night(run, baseline)
        message = digest.run_digest(night, site_url=site_url, link=link)
    if dry_run and not as_json:
        typer.echo(message.chat() if webhook and not mail_to else message.mail(), nl=webhook and not mail_to)
    failed = []
    sent: list[dict[str, Any]] = []
    for way in ways:
        try:
            way(message, sent)
        except MachineError as error:  # the other way may still be open
            failed.append(str(error))
    for one in [] if as_json else sent:
        typer.echo(f"Mailed to {', '.join(one['to'])}" if "to" in one else "Posted to the webhook")
    if as_json:
        texts = {"title": message.title, "mail": message.mail(), "chat": message.chat()}
        typer.echo(dumps({"message": texts, "sent": sent}, indent=1))
    if failed:
        raise MachineError("\n".join(failed))


def _mailer(to: list[str], sender: str | None, smtp: str | None, user: str | None, bare: bool) -> Way:
    """A function that mails a message."""
    from perfdash.errors import UsageError
    from perfdash.publish import mail

    if not smtp:
        raise UsageError("--mail-to: by which server? give --smtp HOST[:PORT], or set PERFDASH_SMTP")
    addresses = mail.checked_addresses(to, "--mail-to")
    (from_, *more) = mail.checked_addresses([sender] if sender else addresses[:1], "--mail-from")
    if more:
        raise UsageError("--mail-from: one address")
    server = mail.checked_server(smtp, user, os.environ.get("PERFDASH_SMTP_PASSWORD"), bare)

    def send(message: Digest, sent: list[dict[str, Any]]) -> None:
        try:
            mail.send(server, mail.message(from_, addresses, message.title, message.mail()), log=_log)
        except mail.PartlyRefused as error:
            sent.append({"way": "mail", "to": [one for one in addresses if one not in error.addresses]})
            raise
        sent.append({"way": "mail", "to": list(addresses)})

    return send


def _poster() -> Way:
    """A function that posts a message to the chat."""
    from perfdash.publish import webhook

    url = webhook.checked_address(os.environ.get(webhook.VARIABLE))

    def send(message: Digest, sent: list[dict[str, Any]]) -> None:
        webhook.send(url, message.chat(), log=_log)
        sent.append({"way": "webhook"})

    return send


def _log(line: str) -> None:
    print(line, file=sys.stderr)
