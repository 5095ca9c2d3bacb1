"""Mails over a real SMTP server on loopback."""

from __future__ import annotations

import pytest

from perfdash.errors import MachineError, UsageError
from perfdash.publish import mail
from perfdash.publish.mail import MailServer, checked_addresses, checked_server, message, send
from tests.publish.smtp import Post, certificate

SECRET = "pa55-word"
TO = ["team@example.org", "me@example.org"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def trusted(files, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
    return files


def a_mail(body="It is ün-\nusual.\n", to=TO):
    return message("perf@example.org", to, "perfdash: 2 regressions", body)


def sent(post, clock, messages=None, timeout_s=60, to=TO, **more):
    server = MailServer("127.0.0.1", post.port, **more)
    send(server, a_mail(to=to), timeout_s=timeout_s, sleep=clock.sleep, log=(messages or []).append)


def test_a_mail_arrives_whole(clock):
    with Post() as post:
        sent(post, clock)
    (got,) = post.got
    assert (got.sender, got.to) == ("perf@example.org", TO)
    assert got.message["Subject"] == "perfdash: 2 regressions"
    assert got.message.get_content() == "It is ün-\nusual.\n"
    assert got.message["Auto-Submitted"] == "auto-generated"
    assert clock.slept == []


def test_it_is_encrypted_before_the_password_is_sent(trusted, clock):
    with Post(trusted, users={"bot": SECRET}) as post:
        sent(post, clock, user="bot", password=SECRET)
    (got,) = post.got
    assert got.secure
    assert got.user == "bot"
    assert post.commands.index("STARTTLS") < post.commands.index("AUTH")


def test_tls_from_the_start(trusted, clock, monkeypatch):
    with Post(trusted, from_the_start=True) as post:
        monkeypatch.setattr(mail, "_TLS_PORT", post.port)
        sent(post, clock)
    assert post.got[0].secure


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_server_on_this_machine_needs_no_certificate(files, clock, monkeypatch, from_the_start):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with Post(files, from_the_start=from_the_start) as post:
        if from_the_start:
            monkeypatch.setattr(mail, "_TLS_PORT", post.port)
        sent(post, clock)
    assert post.got[0].secure


def test_a_certificate_that_nobody_knows_is_refused(files, clock, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setattr(mail, "on_this_machine", lambda host: False)
    with Post(files) as post, pytest.raises(MachineError, match="no trusted certificate"):
        sent(post, clock)
    assert post.got == []
    assert clock.slept == []  # nothing would be otherwise


def test_a_server_elsewhere_must_encrypt(clock, monkeypatch):
    monkeypatch.setattr(mail, "on_this_machine", lambda host: False)
    with Post() as post:
        with pytest.raises(MachineError, match="no encryption"):
            sent(post, clock)
        assert post.got == []
        sent(post, clock, plain=True)
        assert not post.got[0].secure


@pytest.mark.parametrize(("faults", "tries"), [
    ({"CONNECT": ["drop"]}, 2),
    ({"CONNECT": ["421 later", "421 later"]}, 3),
    ({"MAIL": ["451 busy"]}, 2),
    ({"RCPT": ["450 greylisted", "450 greylisted"]}, 2),
    ({"END": ["drop"]}, 2),
])  # fmt: skip
def test_what_may_pass_is_tried_again(clock, messages, faults, tries):
    with Post(faults=faults) as post:
        sent(post, clock, messages)
    assert len(post.got) == 1
    assert len(clock.slept) == tries - 1


def test_a_server_that_loses_the_farewell_has_the_mail(clock):
    for fault in ("drop", "421 tired"):
        with Post(faults={"QUIT": [fault]}) as post:
            sent(post, clock)
        assert len(post.got) == 1
    assert clock.slept == []


@pytest.mark.parametrize(("faults", "timeout_s", "why", "pauses"), [
    ({"CONNECT": ["drop"] * 9}, 60, "connection was lost", 2),
    ({"MAIL": ["550 spam: pa55-word"]}, 60, "answers 550", 0),
    ({"END": ["554 no: pa55-word"]}, 60, "answers 554", 0),
    ({"CONNECT": ["silent"] * 9}, 0.3, "did not answer within 0.3 s", 2),
])  # fmt: skip
def test_what_stays_impossible_is_reported(clock, faults, timeout_s, why, pauses):
    with Post(faults=faults) as post, pytest.raises(MachineError, match=why) as caught:
        sent(post, clock, timeout_s=timeout_s)
    assert SECRET not in str(caught.value)
    assert len(clock.slept) == pauses
    assert post.got == []


def test_no_server(clock):
    with Post() as post:
        port = post.port
    with pytest.raises(MachineError, match="refuses connections"):
        send(MailServer("127.0.0.1", port), a_mail(), sleep=clock.sleep)
    assert len(clock.slept) == 2


def test_a_wrong_password_is_in_no_message(trusted, clock, messages):
    with (
        Post(trusted, users={"bot": "other"}) as post,
        pytest.raises(MachineError, match="refuses user and password") as caught,
    ):
        sent(post, clock, messages, user="bot", password=SECRET)
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert messages == []
    assert SECRET not in repr(MailServer("h", 1, "bot", SECRET))


def test_an_address_that_is_refused_is_reported_and_the_others_have_it(clock):
    with Post(refused={"me@example.org"}) as post:
        with pytest.raises(MachineError, match=r"went out, but .* refuses me@example\.org"):
            sent(post, clock)
        assert post.got[0].to == ["team@example.org"]
        with pytest.raises(MachineError, match=r"refuses every address .*550"):
            sent(post, clock, to=["me@example.org"])
    assert clock.slept == []


def test_a_subject_cannot_bring_headers():
    made = message("a@b", ["c@d"], "one\nBcc: all@example.org", "x")
    assert made["Bcc"] is None
    assert "\\u000aBcc" in str(made["Subject"])


@pytest.mark.parametrize("text", ["", "me", "a b@c", "a@b\nBcc: x@y", "Name <a@b>", "a@", "a@b@c"])
def test_addresses_that_are_none(text):
    with pytest.raises(UsageError, match="--mail-to"):
        checked_addresses([text], "--mail-to")


def test_addresses_by_commas():
    assert checked_addresses(["a@b, c@d", "a@b"], "--mail-to") == ["a@b", "c@d"]


@pytest.mark.parametrize(("address", "why"), [
    (("", None, None, False), "no server"),
    (("host:99999", None, None, False), "no server"),
    (("smtp://host", None, None, False), "no server"),
    (("host", "bot", None, False), "PERFDASH_SMTP_PASSWORD"),
    (("host", None, SECRET, False), "--smtp-user"),
    (("host", "bot", SECRET, True), "could be read"),
])  # fmt: skip
def test_servers_that_are_none(address, why):
    with pytest.raises(UsageError, match=why) as caught:
        checked_server(*address)
    assert SECRET not in str(caught.value)


def test_servers():
    assert checked_server("smtp.example.org", None, None, False).port == 587
    assert checked_server("[::1]:25", None, None, True) == MailServer("::1", 25, plain=True)
