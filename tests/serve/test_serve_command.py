"""`perfdash serve` as a user runs it: its address, its end, what it says where it cannot."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from perfdash.cli import serve as command_module
from perfdash.errors import UsageError
from perfdash.serve.server import bound, is_local


def started(history, tmp_path, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "perfdash", "serve", "--db", history, "--port", "0", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    line = process.stdout.readline()
    if "--json" in arguments:
        address = json.loads(line)["address"]
    else:
        match = re.search(r"on (http://\S+/) \(Ctrl-C ends it\)", line)
        assert match, line + process.stderr.read()
        address = match[1]
    for _ in range(3000):  # from then on it takes signals, also where they were ignored when it began
        try:
            urllib.request.urlopen(f"{address.replace('0.0.0.0', '127.0.0.1')}healthz", timeout=180).close()
            break
        except OSError:
            time.sleep(0.1)
    return process, address


@pytest.mark.parametrize(
    ("how", "words", "streams"),
    [(signal.SIGINT, [], ("Ended\n", "")), (signal.SIGTERM, ["--json"], ("", "Ended\n"))],
)
@pytest.mark.slow
def test_it_answers_until_it_is_told_to_end(history, tmp_path, how, words, streams):
    process, address = started(history, tmp_path, *words)
    try:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        with urllib.request.urlopen(f"{address}healthz", timeout=180) as reply:
            assert reply.read() == b"ok\n"
        with urllib.request.urlopen(f"{address}assets/site.js", timeout=180) as reply:
            assert reply.headers["content-type"].startswith("text/javascript")
        port = int(address.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as idle:  # left open, it does not hold it up
            idle.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            process.send_signal(how)
            out, err = process.communicate(timeout=180)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, *streams)


@pytest.mark.slow
def test_an_answer_that_takes_long_does_not_hold_it_up(tmp_path):
    """An answer is computed in a thread, which nothing can stop."""
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import socket, sys, time\n"
        "from starlette.applications import Starlette\n"
        "from starlette.routing import Route\n"
        "from perfdash.serve import app, server\n"
        "def sleeping(request):\n"
        "    print('asked', flush=True)\n"
        "    time.sleep(500)\n"
        "app.application = lambda *a, **k: Starlette(routes=[Route('/', sleeping)])\n"
        "with server.until_signal(), server.bound('127.0.0.1', 0) as listening:\n"
        "    print(server.address_of(listening), flush=True)\n"
        "    server.serve(None, listening)\n"
    )
    with subprocess.Popen([sys.executable, str(slow)], stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as asking:
                asking.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert process.stdout.readline() == "asked\n"
                process.send_signal(signal.SIGINT)
                process.wait(timeout=180)
        finally:
            process.kill()
    assert process.returncode == 0


def test_a_name_for_this_machine_is_this_machine():
    with bound("127.0.0.1", 0) as listening:
        assert is_local(listening)
    with bound("0.0.0.0", 0) as listening:
        assert not is_local(listening)


@pytest.mark.slow
def test_others_are_warned_of(history, tmp_path):
    process, _ = started(history, tmp_path, "--host", "0.0.0.0")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert err == "Everyone who reaches this address can read all of it\n"


def test_a_port_that_is_taken(command, history):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = command("serve", "--db", history, "--port", port)
    assert done.code == 3
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use; --port gives another" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--db", "none.db"], 2, "there is no history none.db yet"),
        (["--host", "no such host", "--db", "HISTORY"], 3, "cannot listen on no such host"),
        (["--port", "70000", "--db", "HISTORY"], 2, "65535"),
    ],
)
def test_what_cannot_be_served(command, history, arguments, code, message):
    done = command("serve", *(history if word == "HISTORY" else word for word in arguments))
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err


def test_without_the_extra(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else real(name))
    with pytest.raises(UsageError, match=r"serve needs uvicorn: pip install uvicorn"):
        command_module.serve()
