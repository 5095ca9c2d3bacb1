"""Send a text to a chat by an incoming webhook (Slack's form).

The address is the secret: no message shows it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from perfdash.errors import MachineError, UsageError
from perfdash.publish.http_failures import Response, on_this_machine, retry_after
from perfdash.redaction import redact, remember

VARIABLE = "PERFDASH_WEBHOOK"
_TIMEOUT_S = 30.0
_PAUSES_S = (2.0, 8.0)  # between tries
_PATIENCE_S = 60.0  # the longest Retry-After that is waited for
_LONGEST = 30_000  # characters; Slack truncates a message above 40,000


def checked_address(url: str | None) -> str:
    """Check the webhook's address. Raises UsageError if it is invalid or unencrypted."""
    url = (url or "").strip()
    if not url:
        raise UsageError(f"--webhook: set the address of the webhook in {VARIABLE}")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("https", "http") or not re.fullmatch(r"[!-~]+", url):
        raise UsageError(f"{VARIABLE} is no address; it begins with https://")
    if parts.scheme == "http" and not on_this_machine(host):
        raise UsageError(f"{VARIABLE}: over http the address, a secret, could be read on the way; use https")
    return url


def send(
    url: str,
    text: str,
    *,
    timeout_s: float = _TIMEOUT_S,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.time,
    log: Callable[[str], None] = lambda _: None,
) -> None:
    """Post {"text": ...}. Raises MachineError if that keeps failing."""
    remember(url, urlsplit(url).path)
    text = redact(text)
    for pause in (*_PAUSES_S, None):
        reason, retry_s = _once(url, text, timeout_s, now)
        if not reason:
            return
        if pause is None or retry_s is None or retry_s > _PATIENCE_S:
            raise MachineError(f"the webhook ({VARIABLE}) did not accept the message: {reason}")
        wait = max(pause, retry_s)
        log(f"webhook: {reason}: trying again in {wait:.0f} s")
        sleep(wait)


def _once(url: str, text: str, timeout_s: float, now: Callable[[], float]) -> tuple[str, float | None]:
    """Post once: the error (empty if none), and the seconds until a retry may help."""
    import requests

    try:
        # A redirect would send the text elsewhere; the body of an answer may say the address again.
        answer = requests.post(
            url,
            json={"text": text[:_LONGEST]},
            timeout=timeout_s,
            allow_redirects=False,
            stream=True,
            proxies={"http": ""},  # http is for this machine alone: no proxy may read the address
        )
        answer.close()
    except requests.exceptions.SSLError:
        return "no trusted TLS connection; a certificate of your own: REQUESTS_CA_BUNDLE", None
    except requests.exceptions.ProxyError:
        return "the proxy of HTTPS_PROXY does not let it through", 0.0
    except requests.exceptions.Timeout:
        return f"no answer within {timeout_s:g} s", 0.0
    except requests.exceptions.ConnectionError:
        return "no connection: no such host, refused, or lost", 0.0
    except Exception as error:  # its text may hold the address
        return f"no usable answer ({type(error).__name__})", None
    status = answer.status_code
    if status < 300:
        return "", None
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if status == 429 or status >= 500:
        return f"it answers {status}", retry_after(Response(status, headers), now()) or 0.0
    if status < 400:
        return f"it has moved ({status}): set its present address", None
    return f"it answers {status}: the address is wrong or was revoked, or the text is not taken", None
