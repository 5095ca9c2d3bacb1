"""A GitHub on loopback: the documented REST API for issues, comments and labels, with faults on demand."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "ghp_secret0123456789"
ME = {"id": 7, "login": "perfbot", "type": "User"}
Said = tuple[int, Any, dict[str, str]]
ALICE = {"id": 8, "login": "alice", "type": "User"}


@dataclass
class Fault:
    """What happens to the next `times` requests whose "METHOD /path" the pattern finds.

    kind: lose (acts, then the connection breaks), drop (breaks before it acts), broken (acts, then 502),
    cut (acts, then the connection breaks within the answer), 502, 403 and other numbers (nothing is done),
    slow (acts after the client gave up), endless (an answer without an end), bomb (1 GB, compressed).
    """

    pattern: str
    kind: str | int
    times: int = 1
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class GitHub:
    """The state, and the server over it. `before`: called with each "METHOD /path" before it acts."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.comments: list[dict[str, Any]] = []
        self.issues: list[dict[str, Any]] = []
        self.labels: set[str] = set()
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.headers: list[Message] = []  # of the requests
        self.sent_bytes = 0  # of an endless answer
        self.locked: set[int] = set()
        self.moved: dict[str, str] = {}
        self.raw: dict[str, str | bytes] = {}  # paths whose answer is this, whatever was asked
        self.may_label = True
        self.is_app = False
        self.tells_login = False  # to an app, by GraphQL
        self.lag = 0  # lists of comments that do not show the newest yet
        self.before: Callable[[str], None] = lambda _: None
        self.next_id = 1000
        self.released = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.add_issue("The nightly issue", number=3)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def fault(self, pattern: str, kind: str | int, **more: Any) -> None:
        self.faults.append(Fault(pattern, kind, **more))

    def number(self) -> int:
        self.next_id += 1
        return self.next_id

    def add_issue(self, title: str, *, number: int | None = None, **more: Any) -> dict[str, Any]:
        number = number or len(self.issues) + 10
        issue = {
            "number": number, "title": title, "body": "", "state": "open", "labels": [], "user": ME,
            "html_url": f"{self.url}/team/perf/issues/{number}",
            "repository_url": f"{self.url}/repos/team/perf", **more,
        }  # fmt: skip
        self.issues.append(issue)
        return issue

    def add_comment(self, body: str, *, issue: int = 3, user: dict[str, Any] | None = None) -> dict[str, Any]:
        number = self.number()
        comment = {
            "id": number, "body": body, "user": user or self.account, "issue": issue,
            "updated_at": "2026-11-21T06:00:00Z",
            "html_url": f"{self.url}/team/perf/issues/{issue}#issuecomment-{number}",
        }  # fmt: skip
        self.comments.append(comment)
        return comment

    @property
    def account(self) -> dict[str, Any]:
        return {"id": 9, "login": "ci[bot]", "type": "Bot"} if self.is_app else ME

    def of(self, issue: int = 3) -> list[str]:
        """The bodies of an issue's comments."""
        return [comment["body"] for comment in self.comments if comment["issue"] == issue]

    def writes(self) -> list[str]:
        return [line for line in self.requests if not line.startswith("GET")]


class _Handler(BaseHTTPRequestHandler):
    hub: GitHub
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PATCH = do_DELETE = do_GET

    def do_CONNECT(self) -> None:
        """Refuse, as a proxy."""
        self.hub.requests.append(f"CONNECT {self.path}")
        self.hub.headers.append(self.headers)
        self._send(403, None, {})

    def _answer(self) -> None:
        hub = self.hub
        length = int(self.headers.get("Content-Length") or 0)
        sent = json.loads(self.rfile.read(length)) if length else {}
        parts = urlsplit(self.path)
        line = f"{self.command} {parts.path}"
        with hub.lock:
            hub.requests.append(line)
            hub.headers.append(self.headers)
            fault = next(
                (planned_fault for planned_fault in hub.faults if re.search(planned_fault.pattern, line)),
                None,
            )
            if fault:
                fault.times -= 1
                if not fault.times:
                    hub.faults.remove(fault)
        hub.before(line)
        kind = fault.kind if fault else None
        if kind == "drop":
            self.close_connection = True
            return
        if isinstance(kind, int):
            assert fault is not None
            self._send(kind, {"message": fault.message}, fault.headers)
            return
        if kind == "endless":
            self._endless()
            return
        if kind == "bomb":
            self._bomb()
            return
        if kind == "slow":
            hub.released.wait(300)
        with hub.lock:
            status, data, headers = self._act(parts.path, parse_qs(parts.query), sent)
        if kind in ("lose", "slow"):
            self.close_connection = True
            return
        if kind == "cut":
            self.send_response(status)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.write(b'{"id": 1')
            self.close_connection = True
            return
        if kind == "broken":
            self._send(502, "<html>Bad gateway</html>", {})
            return
        self._send(status, data, headers)

    def _send(self, status: int, data: Any, headers: dict[str, str]) -> None:
        data = data if isinstance(data, str | bytes) else "" if data is None else json.dumps(data)
        text = data.encode() if isinstance(data, str) else data
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _endless(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):  # until the client closes the connection
            while not self.hub.released.is_set() and self.hub.sent_bytes < 1 << 30:
                self.wfile.write(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
                self.hub.sent_bytes += 1 << 20

    def _bomb(self) -> None:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        once = packer.compress(b" " * (1 << 20)) + packer.flush()
        self.send_response(200)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(once) * 1024))
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.write(once * 1024)  # a gzip file may have many members

    def _act(self, path: str, query: dict[str, list[str]], sent: Any) -> Said:
        hub = self.hub
        if self.headers.get("Authorization") != f"token {TOKEN}":
            return 401, {"message": "Bad credentials"}, {}
        if path in hub.raw:
            return 200, hub.raw[path], {}
        if path in hub.moved:
            return 301, {"message": "Moved Permanently"}, {"Location": hub.url + hub.moved[path]}
        if path == "/user":
            if hub.is_app:
                return 403, {"message": "Resource not accessible by integration"}, {}
            return 200, ME, {}
        if path == "/graphql" and hub.tells_login:
            return 200, {"data": {"viewer": {"login": hub.account["login"]}}}, {}
        if path == "/repos/team/perf":
            return 200, {"full_name": "team/perf", "id": 1}, {}
        if match := re.fullmatch(r"/repos/team/perf/issues/(\d+)/comments", path):
            return self._comments(int(match[1]), query, sent)
        if match := re.fullmatch(r"/repos/team/perf/issues/comments/(\d+)", path):
            return self._comment(int(match[1]), sent)
        if path == "/repos/team/perf/issues":
            return self._issues(query, sent)
        if match := re.fullmatch(r"/repos/team/perf/issues/(\d+)(/labels)?", path):
            return self._issue(int(match[1]), bool(match[2]), sent)
        if match := re.fullmatch(r"/repos/team/perf/labels(/[\w-]+)?", path):
            if self.command == "POST":
                if sent["name"] in hub.labels:
                    return 422, {"message": "Validation Failed", "errors": [{"code": "already_exists"}]}, {}
                hub.labels.add(sent["name"])
                return 201, sent, {}
            there = (match[1] or "")[1:] in hub.labels
            return (200, {"name": match[1]}, {}) if there else (404, {"message": "Not Found"}, {})
        return 404, {"message": "Not Found"}, {}

    def _comments(self, issue: int, query: dict[str, list[str]], sent: Any) -> Said:
        hub = self.hub
        if all(known_issue["number"] != issue for known_issue in hub.issues):
            return 404, {"message": "Not Found"}, {}
        if self.command == "POST":
            if issue in hub.locked:
                return 403, {"message": "Unable to create comment because issue is locked."}, {}
            if len(sent["body"]) > 65536:
                return 422, {"message": "Validation Failed", "errors": [{"message": "body is too long"}]}, {}
            return 201, hub.add_comment(sent["body"], issue=issue), {}
        since = query.get("since", [""])[0]
        comments = [
            comment
            for comment in hub.comments
            if comment["issue"] == issue and comment["updated_at"] >= since
        ]
        if hub.lag and comments:
            hub.lag -= 1
            comments.pop()
        return self._page(comments, query)

    def _comment(self, number: int, sent: Any) -> Said:
        hub = self.hub
        stored = next((comment for comment in hub.comments if comment["id"] == number), None)
        if stored is None:
            return 404, {"message": "Not Found"}, {}
        if stored["user"]["id"] != hub.account["id"]:
            return 403, {"message": "Must have admin rights to Repository."}, {}
        if self.command == "DELETE":
            hub.comments.remove(stored)
            return 204, None, {}
        stored["body"] = sent["body"]
        return 200, stored, {}

    def _issues(self, query: dict[str, list[str]], sent: Any) -> Said:
        hub = self.hub
        if self.command == "POST":
            people = sent.get("assignees", [])
            if ALICE["login"] in people:
                return 422, {"message": "Validation Failed", "errors": [{"field": "assignees"}]}, {}
            labels = [{"name": name} for name in sent["labels"]] if hub.may_label else []
            more = {"assignees": people} if people else {}
            return 201, hub.add_issue(sent["title"], body=sent["body"], labels=labels, **more), {}
        label = query["labels"][0]
        issues = [issue for issue in hub.issues if label in [tag["name"] for tag in issue["labels"]]]
        return self._page(issues, query)

    def _issue(self, number: int, labels: bool, sent: Any) -> Said:
        hub = self.hub
        stored = next((issue for issue in hub.issues if issue["number"] == number), None)
        if stored is None:
            return 404, {"message": "Not Found"}, {}
        if labels:
            if not hub.may_label:
                return 403, {"message": "Must have triage rights."}, {}
            stored["labels"] += [{"name": name} for name in sent["labels"]]
            return 200, stored["labels"], {}
        if self.command == "PATCH":
            stored.update(sent)
        return 200, stored, {}

    def _page(self, entries: list[Any], query: dict[str, list[str]]) -> Said:
        size, page = int(query.get("per_page", ["30"])[0]), int(query.get("page", ["1"])[0])
        rest = len(entries) > size * page
        link = {"Link": f'<{self.hub.url}/next?page={page + 1}>; rel="next"'} if rest else {}
        return 200, entries[size * (page - 1) : size * page], link
