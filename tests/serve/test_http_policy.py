"""What the server refuses, and what it never does: writing, files, other hosts' pages."""

import hashlib
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from perfdash.errors import MachineError, UsageError
from perfdash.history.ingest import take_in
from perfdash.history.store import open_store
from perfdash.serve import live_pages
from perfdash.serve.http_policy import Connection, host_of, is_loopback
from perfdash.serve.read_only_store import open_to_read, state_of
from tests.history.made import row, run
from tests.serve.served import ASSETS, serving


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize("path", ["/", "/api/runs", "/nothing"])
def test_only_reading_is_allowed(server, method, path):
    reply = server.get(path, method)
    assert reply.status == 405
    assert reply.headers["allow"] == "GET, HEAD"


def test_head_is_the_head_of_get(server):
    whole, head = server.get("/api/runs"), server.get("/api/runs", "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.body))


@pytest.mark.parametrize(
    "path", ["/", "/api/runs", "/nothing", "/api/runs?limit=x", "/assets/site.js", "/healthz"]
)
def test_every_answer_keeps_browsers_in_check(server, path):
    headers = server.get(path).headers
    assert "script-src 'self';" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in headers
    assert server.get(path, "POST").headers["content-security-policy"] == headers["content-security-policy"]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:80@evil.example",
        "localhost@evil.example",
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "",
        "10.0.0.1",
        "[::2]",
    ],
)
def test_a_name_that_was_made_to_point_here_is_refused(server, host):
    reply = server.get("/api/runs", Host=host)
    assert reply.status == 421
    assert "farm" not in reply.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8337", "127.0.0.1:1", "127.8.8.8", "[::1]:8337"])
def test_names_of_this_machine_are_answered(server, host):
    assert server.get("/healthz", Host=host).status == 200


def test_any_host_is_answered_where_others_are_let_in(history):
    with serving(history, local=False) as server:
        assert server.get("/healthz", Host="perf.example").status == 200


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("a:1", "a"),
        ("a", "a"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("", ""),
        ("a:1@b", ""),
        ("a@b", ""),
    ],
)
def test_the_host_of_a_header(header, host):
    assert host_of(header) == host


@pytest.mark.parametrize("headers", [{f"x{n}": "y" for n in range(120)}, {"x": "y" * 20_000}])
def test_headers_have_a_limit(server, headers):
    assert server.get("/healthz", **headers).status == 431


def test_headers_without_end_are_refused(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=180) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 40_000)
        assert b" 400 " in client.recv(1000)


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: loc", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"]
)
def test_an_idle_connection_and_half_a_request_are_closed(server, monkeypatch, sent):
    monkeypatch.setattr(Connection, "patience_s", 0.02)
    with socket.create_connection(("127.0.0.1", server.port), timeout=180) as client:
        client.sendall(sent)
        assert client.recv(1000) == b"", "closed by the server"


def test_equal_requests_are_answered_by_one_computation(history, monkeypatch):
    made, waiting = [], threading.Barrier(2, timeout=180)
    real = live_pages.overview

    def overview(connection):
        made.append(1)
        waiting.wait()  # until the others have asked too
        return real(connection)

    monkeypatch.setattr(live_pages, "overview", overview)
    with serving(history) as server, ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(server.get, "/") for _ in range(6)]
        waiting.wait()
        replies = [future.result(300) for future in futures]
    assert {reply.status for reply in replies} == {200}
    assert len({reply.body for reply in replies}) == 1
    assert len(made) == 1


def test_what_is_loopback():
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "::1", "127.1.2.3"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "127.0.0.1.example"]))


@pytest.mark.parametrize(
    "path",
    ["/assets/../app.py", "/assets/%2e%2e/app.py", "/assets/..%2fapp.py", "/assets/", "/assets//etc/passwd",
     "/etc/passwd", "/history.db", "/../history.db", "/assets/site.css%00", "/beds/x/models/../../history.db",
     "//evil.example/", "/api", "/api/", "/beds/x/suites/%3Fa", "/index.html%3Fa"],
)  # fmt: skip
def test_nothing_of_the_file_system_is_served(server, path):
    reply = server.get(path)
    assert reply.status == 404
    assert "location" not in reply.headers


def test_assets(server):
    reply = server.get("/assets/site.css")
    assert reply.body == ASSETS["site.css"]
    assert reply.headers["content-type"].startswith("text/css")
    assert server.get("/assets/site.css", If_None_Match=reply.headers["etag"]).status == 304


def test_an_unchanged_page_is_not_sent_again_and_a_changed_one_is(tmp_path):
    address = str(tmp_path / "history.db")
    with open_store(address) as store:
        take_in(store, [run("2026-10-01", [row("a")])])
        with serving(address) as server:
            for path in ("/", "/api/runs"):
                first = server.get(path)
                again = server.get(path, If_None_Match=first.headers["etag"])
                assert (again.status, again.body) == (304, b"")
            take_in(store, [run("2026-10-02", [row("a")])])
            changed = server.get("/api/runs", If_None_Match=first.headers["etag"])
            assert changed.status == 200
            assert changed.json["total"] == 2
            assert "2026-10-02" in server.get("/").text


def test_a_history_that_goes_away_is_503_and_nothing_is_made_in_its_place(tmp_path, history):
    copy = tmp_path / "history.db"
    shutil.copy(history, copy)
    with serving(str(copy)) as server:
        assert server.get("/healthz").status == 200
        away = copy.rename(tmp_path / "elsewhere.db")
        for path in ("/", "/api/runs", "/healthz"):
            reply = server.get(path)
            assert reply.status == 503
            assert str(tmp_path) not in reply.text
            assert reply.headers["retry-after"]
        assert not copy.exists()
        copy.write_bytes(b"this is no database at all" * 100)
        assert server.get("/api/runs").status == 503
        away.replace(copy)
        assert server.get("/api/runs").status == 200


def test_serving_leaves_the_history_as_it_is(tmp_path, history):
    copy = tmp_path / "history.db"
    shutil.copy(history, copy)
    before = hashlib.sha256(copy.read_bytes()).digest()
    with serving(str(copy)) as server:
        for path in (
            "/",
            "/api/alerts?state=all",
            "/regressions.html",
            "/api/compare?old=2026-10-01&new=2026-10-02",
        ):
            assert server.get(path).status == 200
    assert hashlib.sha256(copy.read_bytes()).digest() == before


def test_the_store_refuses_to_be_written(store, address):
    take_in(store, [run("2026-10-01", [row("a")])])
    with open_to_read(address) as reading:
        with reading.read() as connection:
            first = state_of(connection, datetime.now(UTC))
        with pytest.raises(MachineError, match="cannot be written"), reading.write() as connection:
            connection.execute(sa.text("delete from results"))
        take_in(store, [run("2026-10-02", [row("a")])])
        with reading.read() as connection:
            assert state_of(connection, datetime.now(UTC)) != first
            assert connection.execute(sa.text("select count(*) from results")).scalar() == 2


def test_a_reader_who_may_not_write_sees_what_was_stored_while_a_page_was_read(tmp_path, monkeypatch):
    """The nightly cannot tidy up while a page is being read, so what it stored stays in the -wal."""
    address, log = str(tmp_path / "history.db"), tmp_path / "history.db-wal"

    def runs_of(reader):
        with reader.read() as connection:
            return connection.execute(sa.text("select count(*) from runs")).scalar()

    with open_store(address) as store:
        take_in(store, [run("2026-10-01", [row("a")])])
    assert not log.exists()
    with monkeypatch.context() as patch:
        patch.setattr("perfdash.history.store.os.access", lambda *_: False)
        colleague = open_to_read(address)
        assert runs_of(colleague) == 1
        assert list(tmp_path.iterdir()) == [tmp_path / "history.db"], "nothing is made beside it"
    with open_to_read(address) as page, page.read() as connection:
        assert connection.execute(sa.text("select count(*) from runs")).scalar() == 1
        with open_store(address) as store:
            take_in(store, [run("2026-10-02", [row("a")])])
    assert log.stat().st_size > 0
    monkeypatch.setattr("perfdash.history.store.os.access", lambda *_: False)
    assert runs_of(colleague) == 2
    with open_to_read(address) as other, open_store(address, create=False) as command:
        assert runs_of(other) == runs_of(command) == 2
    colleague.close()


def test_a_history_whose_name_is_odd(tmp_path):
    address = str(tmp_path / "a?b#c%41 d.db")
    with open_store(address) as store:
        take_in(store, [run("2026-10-01", [row("a")])])
    with open_to_read(address) as store, store.read() as connection:
        assert connection.execute(sa.text("select count(*) from runs")).scalar() == 1
    # Those that SQLite has beside it may stay: nobody could write, so nobody tidied up.
    names = {path.name for path in tmp_path.iterdir()}
    assert names - {Path(address).name + end for end in ("-shm", "-wal")} == {Path(address).name}


def test_no_history(tmp_path):
    with pytest.raises(UsageError, match="there is no history"):
        open_to_read(str(tmp_path / "none.db"))
    assert not list(tmp_path.iterdir())
