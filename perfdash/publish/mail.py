"""Send mails over SMTP: encrypted unless the server is this machine, with retries.

No message of this module holds the password or what the server was sent.
"""

from __future__ import annotations

import contextlib
import re
import smtplib
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

from perfdash.errors import MachineError, UsageError
from perfdash.publish.http_failures import on_this_machine
from perfdash.redaction import redact, remember
from perfdash.report.markdown import plain

_TIMEOUT_S = 30.0
_PAUSES_S = (2.0, 8.0)  # between tries
_TLS_PORT = 465  # encrypted from the first byte (RFC 8314)
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")


class PartlyRefused(MachineError):
    """The server accepted the mail, but not for these addresses."""

    def __init__(self, message: str, addresses: Sequence[str]) -> None:
        super().__init__(message)
        self.addresses = addresses


@dataclass(frozen=True)
class MailServer:
    """A mail server. `plain`: without encryption, for a relay that has none; never with a password."""

    host: str
    port: int
    user: str | None = None
    password: str | None = None
    plain: bool = False

    def __repr__(self) -> str:
        return f"MailServer({self.host}:{self.port})"


def checked_server(address: str, user: str | None, password: str | None, bare: bool) -> MailServer:
    """Parse HOST or HOST:PORT (default 587). Raises UsageError, which does not show the password."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?", address)
    port = int(match[2] or 587) if match else 0
    if not match or not 0 < port < 65536:
        raise UsageError(
            "--smtp (PERFDASH_SMTP) is no server; give HOST or HOST:PORT, e.g. smtp.example.org:587"
        )
    if user and not password:
        raise UsageError("--smtp-user without a password: set PERFDASH_SMTP_PASSWORD")
    if password and not user:
        raise UsageError("PERFDASH_SMTP_PASSWORD without --smtp-user (PERFDASH_SMTP_USER)")
    remember(password)
    host = match[1].strip("[]")
    if bare and password and not on_this_machine(host):
        raise UsageError("--smtp-plain: the password could be read on the way; leave either out")
    return MailServer(host, port, user, password, bare)


def checked_addresses(texts: Sequence[str], option: str) -> list[str]:
    """Parse mail addresses, also several in one text by commas. Raises UsageError."""
    addresses = [part.strip() for text in texts for part in text.split(",")]
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            raise UsageError(f"{option} {address!r} is no mail address, e.g. perf-team@example.org")
    return list(dict.fromkeys(addresses))


def message(sender: str, to: Sequence[str], subject: str, body: str) -> EmailMessage:
    """Build the mail. Retries keep its Message-ID, by which servers recognise duplicates."""
    mail = EmailMessage()
    mail["From"] = sender
    mail["To"] = ", ".join(to)
    mail["Subject"] = plain(redact(subject))
    mail["Date"] = formatdate()
    mail["Message-ID"] = make_msgid("perfdash", sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no out-of-office replies
    # Not every relay takes eight bits.
    mail.set_content(redact(body).encode("utf-8", "replace").decode(), cte="quoted-printable")
    return mail


def send(
    server: MailServer,
    mail: EmailMessage,
    *,
    timeout_s: float = _TIMEOUT_S,
    sleep: Callable[[float], None] = time.sleep,
    log: Callable[[str], None] = lambda _: None,
) -> None:
    """Hand the mail to the server. Raises MachineError if that fails, PartlyRefused for some addresses."""
    for pause in (*_PAUSES_S, None):
        try:
            refused = _once(server, mail, timeout_s)
            break
        except Exception as error:
            # Whatever it is, its text may hold what was sent: only our own words go on.
            reason, may_help = _words(server, error, timeout_s)
            if pause is None or not may_help:
                raise MachineError(f"the mail was not sent: {reason}") from None
            log(f"{reason}: trying again in {pause:.0f} s")
            sleep(pause)
    if refused:
        raise PartlyRefused(
            f"the mail went out, but {server.host} refuses {', '.join(refused)}: check --mail-to", refused
        )


def _once(server: MailServer, mail: EmailMessage, timeout_s: float) -> list[str]:
    """Try once; the addresses that the server refused while it accepted others."""
    context = ssl.create_default_context()
    here = on_this_machine(server.host)
    if here:  # nothing leaves the machine: a mail server's own certificate (Debian's snakeoil) will do
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if server.port == _TLS_PORT and not server.plain:
        smtp: smtplib.SMTP = smtplib.SMTP_SSL(server.host, server.port, timeout=timeout_s, context=context)
    else:
        smtp = smtplib.SMTP(server.host, server.port, timeout=timeout_s)
    try:
        if server.port != _TLS_PORT and not server.plain:
            smtp.ehlo()
            if smtp.has_extn("starttls"):
                smtp.starttls(context=context)
            elif not here:
                raise _NoTls
        if server.user and server.password:
            smtp.login(server.user, server.password)
        return list(smtp.send_message(mail))
    finally:
        # It has the mail, or not: what becomes of the farewell says nothing of that.
        with contextlib.suppress(smtplib.SMTPException, OSError):
            smtp.quit()
        smtp.close()


class _NoTls(Exception):
    pass


def _words(server: MailServer, error: Exception, timeout_s: float) -> tuple[str, bool]:
    """Why sending failed, and whether a retry may help. It holds nothing of what was sent."""
    host = f"{server.host}:{server.port}"
    if isinstance(error, _NoTls):
        return f"{host} offers no encryption (STARTTLS); a relay of your own without it: --smtp-plain", False
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"{host} shows no trusted certificate; one of your own organisation: name its CA file in "
            "SSL_CERT_FILE",
            False,
        )
    if isinstance(error, ssl.SSLError):
        return f"{host}: no TLS connection; port 465 is TLS from the start, others STARTTLS", False
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return f"{host} refuses user and password ({error.smtp_code})", error.smtp_code < 500
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = [code for code, _ in error.recipients.values()]
        return f"{host} refuses every address of --mail-to ({codes[0]})", min(codes) < 500
    if isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError):
        return f"{host} did not answer within {timeout_s:g} s", True
    if isinstance(error, smtplib.SMTPServerDisconnected):
        return f"{host}: the connection was lost", True
    if isinstance(error, smtplib.SMTPResponseException):
        return f"{host} answers {error.smtp_code}", error.smtp_code < 500
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return f"{host} takes no user and password", False
    if isinstance(error, socket.gaierror):
        return f"{host}: no such host, or no DNS here", True
    if isinstance(error, ConnectionRefusedError):
        return f"{host} refuses connections", True
    if isinstance(error, OSError):
        return f"{host}: the connection failed ({type(error).__name__})", True
    return f"{host}: no usable answer ({type(error).__name__})", False
