"""The GitHub client: wait when GitHub asks, repeat only requests that are safe to repeat.

A POST whose reply was lost is not repeated: `apply_until_done` lists again what exists before it goes on.
The token is sent to the host of --base-url only, and no error, log line or repr contains it.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin, urlsplit

from perfdash import __version__
from perfdash.errors import MachineError, UsageError
from perfdash.publish.http_failures import (
    NoAnswer,
    Response,
    on_this_machine,
    read,
    refusal,
    retry_after,
    unreachable,
    wait_asked_for,
)
from perfdash.redaction import redact_all, remember

if TYPE_CHECKING:
    from requests import PreparedRequest

API = "https://api.github.com"
_API_VERSION = "2022-11-28"  # GitHub's default, which Enterprise servers support, too
_TIMEOUT_S = 30
_PATIENCE_S = 900.0  # waited in one command, all in all
_PAUSES_S = (2.0, 8.0, 20.0)  # between tries of a request that may be repeated
_BETWEEN_WRITES_S = 1.0  # what GitHub asks of those who write much
_PAGE = 100
_PAGES = 1000
_REDIRECTS = 5
_LARGEST = 50_000_000  # bytes of an answer; 100 comments of 65,536 characters are 39 MB where all are escaped
_CHUNK = 1 << 16
_ROUNDS_WITHOUT_PROGRESS = 4
_SETTLES_S = 3.0  # a request whose reply was lost may still be at work

T = TypeVar("T")


def checked_token(token: str | None) -> str:
    """The token as it can stand in a header. Raises MachineError, which does not show it."""
    token = (token or "").strip()
    if not token:
        raise MachineError(
            "there is no token: set the environment variable GITHUB_TOKEN (docs/posting.md says which rights "
            "it needs), or look at the text with --dry-run"
        )
    if not re.fullmatch(r"[!-~]+", token):
        raise MachineError("GITHUB_TOKEN holds blanks or characters that no token has: set it anew")
    return token


def checked_address(url: str) -> str:
    """The address of the API. Raises UsageError if it is invalid, or would send the token in clear text."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if "@" in url:
        raise UsageError("--base-url: no user and password there; the token goes into GITHUB_TOKEN")
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise UsageError(
            f"--base-url {url!r} is no address of an API; GitHub's is {API}, that of GitHub Enterprise "
            "Server https://HOST/api/v3"
        )
    if host in ("github.com", "www.github.com"):
        raise UsageError(f"--base-url {url}: that is the site; the API is {API}, and the default")
    if parts.scheme == "http":
        from requests.utils import get_environ_proxies

        if not on_this_machine(host):
            raise UsageError(f"--base-url {url}: over http the token could be read on the way; use https")
        if "http" in get_environ_proxies(url) or "all" in get_environ_proxies(url):
            raise UsageError(f"--base-url {url}: a proxy would read the token; set NO_PROXY={host}")
    return url.rstrip("/")


class OutOfDate(Exception):
    """The plan no longer fits what exists on GitHub: list it again."""


def apply_until_done(
    client: GitHubClient, planned: Callable[[], Sequence[T]], apply: Callable[[T], None], conflict: str
) -> None:
    """List, plan and act until nothing is left to do, even if replies get lost.

    `planned` lists what exists and returns the actions that are left; `apply` carries out one of them. After
    a lost reply the list shows whether the request was carried out, so nothing is created twice. Raises
    MachineError with the last lost reply, or with `conflict`, after rounds without progress.
    """
    without_progress, fewest, lost = 0, 1 << 30, None
    while without_progress < _ROUNDS_WITHOUT_PROGRESS:
        actions = planned()
        if not actions:
            return
        without_progress = 0 if len(actions) < fewest else without_progress + 1
        fewest = min(fewest, len(actions))
        try:
            for action in actions:
                apply(action)
        except NoAnswer as error:
            lost = error
            client.wait(_SETTLES_S, f"{error}; looking whether it was done")
        except OutOfDate:
            continue
    raise lost or MachineError(conflict)


class GitHubClient:
    """One GitHub, used as one account. Paths are those of the REST API (`/repos/...`), answers its JSON.

    Raises Refused (the same request would be refused again), NoAnswer (nobody knows whether a POST was
    carried out) and MachineError.
    """

    def __init__(
        self,
        token: str | None,
        base_url: str = API,
        *,
        patience_s: float = _PATIENCE_S,
        timeout_s: int = _TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
        log: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
    ) -> None:
        import requests

        self._address = checked_address(base_url)
        remember(token)
        authorization = f"token {checked_token(token)}"

        def authorise(request: PreparedRequest) -> PreparedRequest:
            request.headers["Authorization"] = authorization
            return request

        self.host = str(urlsplit(self._address).netloc)
        self._session = requests.Session()
        self._session.auth = authorise  # without it, requests would send the password of ~/.netrc
        self._session.headers.update(
            {
                "Accept": "application/vnd.github+json",
                "User-Agent": f"perfdash/{__version__}",
                "X-GitHub-Api-Version": _API_VERSION,
            }
        )
        self._timeout_s = timeout_s
        self._patience_s = self._left = patience_s
        self._sleep, self._now, self.log = sleep, now, log
        self._wrote: float | None = None

    def get(self, path: str, task: str, parameters: Mapping[str, Any] | None = None) -> Any:
        return self._repeated("GET", path, task, parameters=parameters).data

    def patch(self, path: str, task: str, body: Mapping[str, Any]) -> Any:
        return self._repeated("PATCH", path, task, body=body).data

    def delete(self, path: str, task: str) -> None:
        self._repeated("DELETE", path, task)

    def post(self, path: str, task: str, body: Mapping[str, Any], *, harmless: bool = False) -> Any:
        """Send a POST once, again only if GitHub did nothing, or if `harmless`; raises NoAnswer."""
        send = self._repeated if harmless else self._sent
        return send("POST", path, task, body=body).data

    def pages(self, path: str, task: str, parameters: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """The items of all pages of a list."""
        for page in range(1, _PAGES + 1):
            query = {**(parameters or {}), "per_page": _PAGE, "page": page}
            answer = self._repeated("GET", path, task, parameters=query)
            if not isinstance(answer.data, list) or not all(isinstance(item, dict) for item in answer.data):
                raise MachineError(f"{task}: {self.host} does not answer like GitHub; check --base-url")
            yield from answer.data
            link = answer.headers.get("link")
            if 'rel="next"' not in link if link is not None else len(answer.data) < _PAGE:
                return

    def wait(self, seconds: float, why: str) -> None:
        """Wait and log why. Raises MachineError where that takes more patience than is left."""
        if seconds > self._left:
            until = time.strftime("%H:%M UTC", time.gmtime(self._now() + seconds))
            raise MachineError(
                f"{why}; that would be until {until}, and perfdash waits {self._patience_s / 60:.0f} "
                "minutes at most: post later"
            )
        self._left -= seconds
        self.log(f"{why}: waiting {seconds:.0f} s")
        self._sleep(seconds)

    def _repeated(self, verb: str, path: str, task: str, **more: Any) -> Response:
        """Send a request that may be repeated; retry where no answer came back."""
        for pause in _PAUSES_S:
            try:
                return self._sent(verb, path, task, **more)
            except NoAnswer as error:
                self.wait(pause, str(error))
        return self._sent(verb, path, task, **more)

    def _sent(self, verb: str, path: str, task: str, **more: Any) -> Response:
        least = 1.0
        while True:
            answer = self._once(verb, path, task, **more)
            if answer.status < 300:
                return answer
            if answer.status == 404 and verb == "DELETE":
                return answer  # it is gone: perhaps by the try whose reply was lost
            pause = wait_asked_for(answer, self._now())
            if pause is not None:
                self.wait(max(pause, least), f"{self.host} limits how often one may ask")
                least *= 2  # whatever it says, a server that goes on refusing is asked less and less often
                continue
            if answer.status >= 500:
                later = retry_after(answer, self._now())
                if later:
                    self.wait(later, f"{self.host} is busy")
                raise NoAnswer(f"{task}: {self.host} answers {answer.status}, a failure of the server")
            raise refusal(answer, task, self.host)

    def _once(
        self,
        verb: str,
        path: str,
        task: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Response:
        if verb != "GET":
            if self._wrote is not None and (rest := self._wrote + _BETWEEN_WRITES_S - self._now()) > 0:
                self._sleep(rest)
            self._wrote = self._now()
        url, query = self._address + path, dict(parameters or {})
        for _ in range(_REDIRECTS):
            answer = self._exchange(verb, url, task, query, body)
            location = answer.headers.get("location")
            if verb != "GET" or answer.status != 301 or not location:
                return answer
            target = self._moved(url, location)
            if target is None:
                break
            url, query = target, {} if urlsplit(target).query else query
        raise MachineError(f"{task}: {self.host} sends requests elsewhere; correct --base-url")

    def _moved(self, url: str, location: str) -> str | None:
        """The new address on this GitHub; None if the redirect leads to another host or scheme."""
        here = urlsplit(self._address)
        try:
            there = urlsplit(urljoin(url, location))
            same = (there.scheme, there.hostname) == (here.scheme, here.hostname)
        except ValueError:
            return None
        return there._replace(scheme=here.scheme, netloc=here.netloc, fragment="").geturl() if same else None

    def _exchange(
        self, verb: str, url: str, task: str, parameters: Mapping[str, Any], body: Mapping[str, Any] | None
    ) -> Response:
        """Send one request and read its answer; follow no redirect."""
        from requests import Request

        session = self._session
        content = bytearray()
        failure = None
        try:
            request = session.prepare_request(
                Request(verb, url, params=parameters, json=None if body is None else redact_all(body))
            )
            address = str(request.url)
            settings = session.merge_environment_settings(address, {}, True, None, None)
            # Not Session.send: it reads the whole body of a redirect and prepares the request that follows.
            with session.get_adapter(address).send(request, timeout=self._timeout_s, **settings) as reply:
                for chunk in reply.iter_content(_CHUNK):
                    content += chunk
                    if len(content) > _LARGEST:
                        break
            status, headers = reply.status_code, {name.lower(): text for name, text in reply.headers.items()}
        except Exception as error:
            # The error and its text may hold the request with the token: only the reason is kept.
            failure = unreachable(error, self.host, self._timeout_s)
        if failure:
            reason, may_help = failure
            raise (NoAnswer if may_help else MachineError)(f"{task}: {reason}")
        if len(content) > _LARGEST:
            raise MachineError(
                f"{task}: {self.host} answers with more than {_LARGEST / 1e6:.0f} MB; check --base-url, and "
                "a proxy on the way"
            )
        # A server or proxy may repeat the token: redact first, since a token that is cut is not recognised.
        answer = read(status, headers, content.decode("utf-8", "replace"))
        return Response(answer.status, redact_all(answer.headers), redact_all(answer.data))


def required(answer: Any, name: str, client: GitHubClient) -> Any:
    """A field of an answer. Raises MachineError where it is missing."""
    if not isinstance(answer, dict) or not answer.get(name):
        raise MachineError(f"{client.host} does not answer like GitHub ({name} is missing); check --base-url")
    return answer[name]


def sendable(text: str) -> str:
    """Text that JSON and GitHub accept, without lone surrogates and control characters.

    Tabs and line ends stay.
    """
    whole = text.encode("utf-8", "replace").decode()
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "\ufffd", whole)
