"""Classify failed responses of GitHub and webhooks: wait, retry or give up, and the message. Pure."""

from __future__ import annotations

import email.utils
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from perfdash.errors import MachineError
from perfdash.redaction import redact
from perfdash.report.markdown import plain

_LONGEST_S = 7 * 86400.0  # nobody waits that long; a date so far off can be written down
_SECONDARY_S = 60.0  # what GitHub asks for where it does not say how long


class Refused(MachineError):
    """GitHub refused the request, and would refuse it again."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NoAnswer(MachineError):
    """The connection or the server failed: the request may have been carried out or not."""


@dataclass(frozen=True)
class Response:
    """Status, headers (lower-case names) and body: JSON, else text."""

    status: int
    headers: Mapping[str, str]
    data: Any = None

    @property
    def message(self) -> str:
        """GitHub's own message, on one line."""
        if not isinstance(self.data, dict):
            return ""
        messages = [str(self.data.get("message") or "")]
        errors = self.data.get("errors")
        for item in errors if isinstance(errors, list) else []:
            if isinstance(item, dict):
                words = item.get("message") or " ".join(
                    str(item[name]) for name in ("resource", "field", "code") if item.get(name)
                )
                messages.append(str(words))
            else:
                messages.append(str(item))
        return plain("; ".join(text for text in messages if text), 300)


def read(status: int, headers: Mapping[str, str], text: Any) -> Response:
    """Parse an answer as it came over the wire."""
    try:
        return Response(status, headers, json.loads(text) if text else None)
    except (ValueError, TypeError, RecursionError):
        return Response(status, headers, redact(str(text))[:200])


def wait_asked_for(answer: Response, now: float) -> float | None:
    """Seconds until the request may be sent again; None if no rate limit applies.

    Nothing was carried out then, so even a POST may be repeated.
    """
    message = answer.message.lower()
    limited = "rate limit" in message or "abuse" in message or "retry-after" in answer.headers
    if answer.status != 429 and not (answer.status == 403 and limited):
        return None
    seconds = retry_after(answer, now)
    if seconds is not None:
        return seconds
    if answer.headers.get("x-ratelimit-remaining") == "0":
        try:
            return _bounded(float(answer.headers["x-ratelimit-reset"]) - now) + 1.0
        except (KeyError, ValueError):
            pass
    return _SECONDARY_S


def retry_after(answer: Response, now: float) -> float | None:
    """Seconds of the Retry-After header (seconds or a date); None without a valid one."""
    header = answer.headers.get("retry-after", "")
    try:
        seconds = float(header)
    except ValueError:
        try:
            when = email.utils.parsedate_to_datetime(header)
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
            seconds = when.timestamp() - now
        except (ValueError, TypeError, OverflowError):
            return None
    return None if math.isnan(seconds) else _bounded(seconds)


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), _LONGEST_S)


def refusal(answer: Response, what: str, host: str) -> Refused:
    """The error for a status that no retry changes; `what` was tried, e.g. "issue 3 of team/perf"."""
    quotation = f' ("{answer.message}")' if answer.message else ""
    words = _words(answer)
    return Refused(f"{what}: {host} answers {answer.status}{quotation}. {words}", answer.status)


def _words(answer: Response) -> str:
    status, message = answer.status, answer.message.lower()
    if status == 401:
        return "The token in GITHUB_TOKEN is wrong, expired or revoked: make a new one (docs/posting.md)"
    if status == 403 and "locked" in message:
        return "The issue is locked: unlock it, or give the token's account write access"
    if status == 403 and ("saml" in message or "sso" in message or "x-github-sso" in answer.headers):
        return "Authorise the token for the organisation's single sign-on (token settings, Configure SSO)"
    if status == 403:
        return (
            "The token may not do that: it needs Issues: read and write on this repository "
            "(a classic token: scope repo, or public_repo)"
        )
    if status == 404:
        return (
            "It does not exist, or the token does not see it: check OWNER/NAME, the number and the token's "
            "repositories; GitHub Enterprise Server needs --base-url https://HOST/api/v3"
        )
    if status == 410:
        return "It was deleted, or issues are switched off in this repository: name another issue"
    if status == 422:
        return "GitHub takes the request for invalid or for spam; its words say what is wrong"
    if 300 <= status < 400:
        return "It has moved: give its present OWNER/NAME, and the present --base-url"
    return "This is no answer that GitHub documents: check --base-url, and a proxy on the way"


def on_this_machine(host: str) -> bool:
    """Whether a host is this machine (loopback), so that nothing leaves it."""
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def unreachable(error: BaseException, host: str, timeout_s: int) -> tuple[str, bool]:
    """Why there was no answer, and whether a retry may help. It holds nothing of the request."""
    from requests import exceptions

    text = f"{type(error).__name__} {error}"
    if isinstance(error, exceptions.SSLError):
        return (
            f"{host}: no trusted TLS connection. A server with a certificate of your own organisation: "
            "name its CA file in REQUESTS_CA_BUNDLE; else check --base-url and the clock",
            False,
        )
    if isinstance(error, exceptions.ProxyError):
        return f"{host}: the proxy of HTTPS_PROXY does not let it through; check it, or set NO_PROXY", True
    if isinstance(error, exceptions.Timeout):
        return f"{host} did not answer within {timeout_s} s", True
    if "NameResolution" in text or "getaddrinfo" in text or "Name or service" in text:
        return f"{host}: no such host, or no DNS here; check --base-url and the network", True
    if "refused" in text:
        return f"{host} refuses connections; check --base-url and the network", True
    if isinstance(error, (exceptions.ConnectionError, exceptions.ChunkedEncodingError)):
        return f"{host}: the connection was lost before the answer came", True
    return f"{host}: no usable answer ({type(error).__name__})", False
