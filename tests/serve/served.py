"""A real server on a loopback port with a real store, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from dataclasses import dataclass, replace

import uvicorn

from perfdash.detect.nightly_judging import judge_new
from perfdash.history.ingest import take_in
from perfdash.history.store import open_store
from perfdash.serve.app import application
from perfdash.serve.read_only_store import open_to_read
from perfdash.serve.server import bound, configuration
from tests.history.made import case, row, run

NIGHTS = 24
EVIL = "<script>alert(1)</script>|`x`\n模型"
ASSETS = {"site.css": b"body{}", "site.js": b"//"}


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self):
        return self.body.decode()

    @property
    def json(self):
        def never(word):
            raise AssertionError(f"{word} is no JSON")

        return json.loads(self.body, parse_constant=never)


@dataclass
class Server:
    port: int

    def get(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=180)
        with contextlib.closing(connection):
            connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())


@contextlib.contextmanager
def serving(address, *, local=True, files=ASSETS):
    """A server of the history at an address, in a thread."""
    listening = bound("127.0.0.1", 0)
    port = listening.getsockname()[1]
    with open_to_read(address) as store:
        app = application(store, files, local=local)
        config = configuration(app)
        config.log_level = "critical"
        config.configure_logging()
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            deadline = time.monotonic() + 180
            while not server.started:
                assert thread.is_alive()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield Server(port)
        finally:
            server.should_exit = True
            thread.join(300)
            listening.close()


def commit_of(day):
    return f"{day:02x}" * 20


def fill(address):
    """Nights with a step, a failure, an odd name, two back ends; and a run of another class of hosts.

    A model of that run reached the recompile limit, and its latencies are CPU time.
    Another one has a number without a column.
    """
    nights = []
    for day in range(1, NIGHTS + 1):
        rows = []
        for place in range(12):
            eager = 10.0 + place
            slow = 1.3 if place == 3 and day >= 15 else 1.0
            compiled = eager / 1.5 * slow * (1 + 0.002 * ((day * 7 + place * 3) % 5 - 2))
            name = EVIL if place == 0 else f"model{place}"
            if place == 5 and day > 20:
                rows.append(row(name, "crash", wall_s=2.0))
                continue
            numbers = {
                "eager_ms": eager, "eager_ms_low": eager * 0.99, "eager_ms_high": eager * 1.01,
                "backend_ms": compiled, "backend_ms_low": compiled * 0.99, "backend_ms_high": compiled * 1.01,
                "speedup": eager / compiled, "speedup_low": eager / compiled * 0.98,
                "speedup_high": eager / compiled * 1.02, "compilation_s": 20.0, "compilation_cpu_s": 25.0,
                "eager_peak_bytes": 3e8, "backend_peak_bytes": 2e8, "compression_ratio": 1.5,
                "graph_breaks": 0, "calls_captured": 10,
            }  # fmt: skip
            rows.append(row(name, **numbers))
        rows.append(row(of=case("model1", backend="onnxruntime"), speedup=1.2, backend_ms=9.0))
        nights.append(run(f"2026-10-{day:02}", rows, git=commit_of(day)))
    details = {"recompile_limit": "reached", "conditions": {"clock": "cpu"}}
    others = [
        replace(row("alone", speedup=1.1), others={"throughput": 7.5}),
        replace(row("limited"), details=details),
    ]
    nights.append(run("2026-10-30", others, host_class="other", host="desk"))
    with open_store(address) as store:
        take_in(store, nights)
        list(judge_new(store))
