"""The webhook, against a real HTTP server on loopback."""

from __future__ import annotations

import pytest

from perfdash.errors import MachineError, UsageError
from perfdash.publish.webhook import checked_address, send
from tests.publish.chat import SECRET, Chat


def test_slacks_form(clock):
    with Chat() as chat:
        send(chat.url, "*Night*\nümlaut <&>", sleep=clock.sleep)
    ((path, kind, body),) = chat.got
    assert path == f"/services/{SECRET}?key={SECRET}"
    assert kind == "application/json"
    assert body == {"text": "*Night*\nümlaut <&>"}


def test_no_proxy_reads_the_address(clock, monkeypatch):
    with Chat() as chat, Chat() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url.partition("/services")[0])
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        send(chat.url, "x", sleep=clock.sleep)
    assert len(chat.got) == 1
    assert proxy.got == []


@pytest.mark.parametrize("answers", [(500, 200), (503, 502, 204), (None, 200), (429, 200)])
def test_what_may_pass_is_tried_again(clock, messages, answers):
    with Chat(*answers) as chat:
        send(chat.url, "x", sleep=clock.sleep, log=messages.append)
    assert len(chat.got) == len(answers)
    assert len(messages) == len(clock.slept) == len(answers) - 1
    assert SECRET not in "".join(messages)


def test_it_waits_as_long_as_it_is_asked_to_but_not_for_ever(clock):
    with Chat(429, 200) as chat:
        chat.headers["Retry-After"] = "31"
        send(chat.url, "x", sleep=clock.sleep)
        assert clock.slept == [31]
        chat.answers = [429]
        chat.headers["Retry-After"] = "3600"
        with pytest.raises(MachineError, match="answers 429"):
            send(chat.url, "x", sleep=clock.sleep)
    assert clock.slept == [31]


@pytest.mark.parametrize(("answer", "tries", "why"), [
    (404, 1, "wrong or was revoked"), (403, 1, "answers 403"), (302, 1, "has moved"), (500, 3, "answers 500"),
    (None, 3, "lost"),
])  # fmt: skip
def test_what_stays_impossible_is_reported_without_the_address(clock, answer, tries, why):
    with Chat(answer) as chat:
        chat.headers["Location"] = chat.url
        with pytest.raises(MachineError, match=why) as caught:
            send(chat.url, "x", sleep=clock.sleep)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert len(chat.got) == tries


@pytest.mark.parametrize("url", [
    None, "", SECRET, f"ftp://h/{SECRET}", f"http://chat.example.org/{SECRET}", f"https:///{SECRET}",
    f"https://h/{SECRET} x", f"https://h:port/{SECRET}", f"https://[::1/{SECRET}",
])  # fmt: skip
def test_addresses_that_are_none_are_not_shown(url):
    with pytest.raises(UsageError, match="PERFDASH_WEBHOOK") as caught:
        checked_address(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_addresses():
    assert checked_address(" https://hooks.example/x\n") == "https://hooks.example/x"
