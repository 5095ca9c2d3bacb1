"""What the client sends and to whom, and what it reads, against a GitHub on loopback."""

from __future__ import annotations

import traceback

import pytest

from perfdash import __version__
from perfdash.errors import MachineError
from perfdash.publish.http_failures import NoAnswer, Refused
from tests.publish.server import TOKEN, GitHub

REPO = "/repos/team/perf"
LARGEST = 50_000_000


@pytest.fixture
def other():
    """Another server, to which no request may go."""
    made = GitHub()
    yield made
    made.close()


def authorizations(hub):
    return {headers.get("Authorization") for headers in hub.headers}


def check_no_token(error):
    assert TOKEN not in f"{error!s} {error!r} {''.join(traceback.format_exception(error))}"
    assert error.__cause__ is None
    assert error.__context__ is None  # the errors of requests hold the request and its headers


def test_the_headers_that_github_asks_for(hub, talk):
    assert hub.requests == []
    talk.get(REPO, "this")
    assert hub.requests == [f"GET {REPO}"]
    (headers,) = hub.headers
    assert headers["Authorization"] == f"token {TOKEN}"
    assert headers["User-Agent"] == f"perfdash/{__version__}"
    assert headers["X-GitHub-Api-Version"] == "2022-11-28"
    assert headers["Accept"] == "application/vnd.github+json"
    assert TOKEN not in repr(talk) + repr(vars(talk))


def test_an_enterprise_server_has_its_api_below_a_path(hub, another):
    hub.moved = {"/api/v3/user": "/user"}
    assert another(base_url=f"{hub.url}/api/v3/").get("/user", "this")["login"] == "perfbot"
    assert hub.requests == ["GET /api/v3/user", "GET /user"]


@pytest.mark.parametrize("machine", ["machine 127.0.0.1", "default"])
def test_netrc_does_not_replace_the_token(hub, talk, tmp_path, monkeypatch, machine):
    netrc = tmp_path / "netrc"
    netrc.write_text(f"{machine} login me password not-the-token\n")
    monkeypatch.setenv("NETRC", str(netrc))
    hub.moved = {"/repos/old/name": REPO}
    assert talk.get("/repos/old/name", "this")["full_name"] == "team/perf"
    talk.post(f"{REPO}/issues/3/comments", "this", {"body": "x"})
    assert authorizations(hub) == {f"token {TOKEN}"}


def test_a_proxy_of_the_environment_gets_no_token(other, another, monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, other.url.replace("//", "//user:password@"))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(MachineError, match="the proxy of HTTPS_PROXY does not let it through") as caught:
        another(base_url="https://ghe.example/api/v3").get("/user", "this")
    assert set(other.requests) == {"CONNECT ghe.example:443"}
    assert authorizations(other) == {None}
    assert "password" not in str(caught.value)
    assert TOKEN not in repr(caught.value)


ELSEWHERE = r"this: .* sends requests elsewhere; correct --base-url"


@pytest.mark.parametrize(
    ("location", "requests"),
    [
        ("http://localhost:{port}{path}", 1),
        ("//localhost:{port}{path}", 1),
        ("https://127.0.0.1:{port}{path}", 1),
        ("ftp://127.0.0.1{path}", 1),
        ("http://[::1", 1),
        ("http://127.0.0.1.example.com{path}", 1),
        # Another port of this host: the path is requested from the port of --base-url, until that gives up.
        ("http://127.0.0.1:{port}{path}", 5),
        ("http://me:password@127.0.0.1:{port}{path}", 5),
    ],
)
def test_no_redirect_leads_to_another_server(hub, other, talk, location, requests):
    location = location.format(port=other.server.server_address[1], path=REPO)
    hub.fault("GET", 301, times=20, headers={"Location": location})
    with pytest.raises(MachineError, match=ELSEWHERE) as caught:
        talk.get(REPO, "this")
    assert other.requests == []
    assert len(hub.requests) == requests
    assert authorizations(hub) == {f"token {TOKEN}"}
    check_no_token(caught.value)


def test_a_redirect_keeps_what_was_asked_for(hub, talk):
    requests_seen = []
    hub.moved = {"/repos/old/name/issues/3/comments": f"{REPO}/issues/3/comments"}
    for number in range(150):
        hub.add_comment(f"talk {number}")
    hub.before = requests_seen.append
    items = list(talk.pages("/repos/old/name/issues/3/comments", "this", {"since": "2020-01-01T00:00:00Z"}))
    assert [item["body"] for item in items] == [f"talk {number}" for number in range(150)]
    assert len(requests_seen) == 4


def test_a_redirect_with_a_query_of_its_own(hub, talk):
    for number in range(150):
        hub.add_comment(f"talk {number}")
    path = f"{REPO}/issues/3/comments"
    hub.fault("GET", 301, headers={"Location": f"{path}?per_page=10&page=2"})
    assert [item["body"] for item in talk.get(path, "this")] == [f"talk {number}" for number in range(10, 20)]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("verb", ["POST", "PATCH", "DELETE"])
def test_a_redirected_write_is_sent_once_and_refused(hub, talk, verb, status):
    hub.fault(verb, status, headers={"Location": f"{hub.url}/elsewhere"})
    body = () if verb == "DELETE" else ({"body": "x"},)
    with pytest.raises(Refused, match=f"answers {status}. It has moved") as caught:
        getattr(talk, verb.lower())(f"{REPO}/issues/3/comments", "this", *body)
    assert hub.requests == [f"{verb} {REPO}/issues/3/comments"]
    check_no_token(caught.value)


def test_a_redirect_that_repeats_the_token(hub, talk):
    hub.fault("GET", 301, headers={"Location": f"/{TOKEN}"})
    with pytest.raises(Refused) as caught:
        talk.get(REPO, "this")
    assert TOKEN not in " ".join(hub.requests)
    check_no_token(caught.value)


@pytest.mark.parametrize("kind", ["drop", "cut", "lose"])
def test_a_lost_reply_of_a_post_is_not_sent_again(hub, talk, kind):
    hub.fault("POST", kind)
    with pytest.raises(NoAnswer, match="the connection was lost before the answer came") as caught:
        talk.post(f"{REPO}/issues/3/comments", "this", {"body": "x"})
    assert len(hub.requests) == 1
    check_no_token(caught.value)


def test_an_answer_that_breaks_off_is_asked_for_again(hub, talk):
    hub.fault("GET", "cut")
    assert talk.get(REPO, "this")["full_name"] == "team/perf"
    assert len(hub.requests) == 2


def test_an_answer_without_an_end_is_not_read(hub, talk):
    hub.fault("GET", "endless")
    with pytest.raises(MachineError, match="answers with more than 50 MB; check --base-url") as caught:
        talk.get(REPO, "this")
    assert hub.sent_bytes < LARGEST + 30_000_000  # what the sockets hold
    assert len(hub.requests) == 1
    check_no_token(caught.value)


def test_a_compressed_answer_is_not_unpacked_beyond_the_limit(hub, talk):
    hub.fault("GET", "bomb")
    with pytest.raises(MachineError, match="answers with more than 50 MB"):
        talk.get(REPO, "this")


@pytest.mark.parametrize("text", [f"<html>{TOKEN}</html>", "[" * 100_000, "", "\ufeff{}", "null", "7", "[7]"])
def test_an_answer_that_is_no_list(hub, talk, text):
    hub.raw[REPO] = text
    with pytest.raises(MachineError, match="does not answer like GitHub; check --base-url") as caught:
        list(talk.pages(REPO, "this"))
    check_no_token(caught.value)
    assert TOKEN not in str(talk.get(REPO, "this"))


def test_bytes_that_are_no_text(hub, talk):
    hub.raw[REPO] = b"\xff\xfe{"
    assert talk.get(REPO, "this") == "\ufffd\ufffd{"
