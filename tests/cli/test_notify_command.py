"""`perfdash notify` as a user calls it, against servers on loopback."""

from __future__ import annotations

import json

import pytest

from tests.cli.run_folders import RUN, write_run
from tests.publish.chat import SECRET, Chat
from tests.publish.smtp import Post
from tests.report.results import a_night


@pytest.fixture
def post():
    with Post() as server:
        yield server


@pytest.fixture
def chat():
    with Chat() as server:
        yield server


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "runs" / RUN, a_night())


def test_both_ways(called, post, chat, folder):
    ran = called(
        "notify", "last", "--mail-to", "a@example.org,b@example.org", "--webhook",
        "--site-url", "https://perf.example/dash", "--link", "https://ci.example/12",
        env={"PERFDASH_SMTP": f"127.0.0.1:{post.port}", "PERFDASH_WEBHOOK": chat.url},
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.out == "Mailed to a@example.org, b@example.org\nPosted to the webhook\n"
    (got,) = post.got
    assert got.sender == "a@example.org"
    assert got.to == ["a@example.org", "b@example.org"]
    assert got.message["Subject"] == "perfdash: Not compared with other runs"
    assert RUN in got.message.get_content()
    ((_, _, body),) = chat.got
    assert RUN in body["text"]
    assert "Dashboard: https://perf.example/dash/index.html" in body["text"]
    assert SECRET not in ran.out + ran.err


def test_that_a_nightly_broke_needs_no_run_and_no_history(called, chat, tmp_path):
    ran = called("notify", "--webhook", "--broken", "stage torch failed", env={"PERFDASH_WEBHOOK": chat.url})
    assert ran.code == 0, ran.err
    ((_, _, body),) = chat.got
    assert body["text"] == "*perfdash: the nightly broke*\n```\nstage torch failed\n```"
    assert not list(tmp_path.iterdir())


def test_a_dry_run_sends_nothing(called, chat, folder):
    ran = called("notify", "--dry-run", "--webhook", env={"PERFDASH_WEBHOOK": chat.url})
    assert ran.code == 0
    assert ran.out.startswith("*perfdash: Not compared with other runs*\n```\n")
    assert called("notify", "--dry-run").out.startswith("perfdash: Not compared with other runs\n\n")
    assert chat.got == []


def test_one_way_that_fails_does_not_stop_the_other(called, post, chat, folder):
    post.refused.add("a@example.org")
    ran = called(
        "notify", "--mail-to", "a@example.org", "--smtp", f"127.0.0.1:{post.port}", "--webhook",
        env={"PERFDASH_WEBHOOK": chat.url},
    )  # fmt: skip
    assert ran.code == 3
    assert "refuses every address" in ran.err
    assert len(chat.got) == 1
    chat.answers = [404]
    ran = called("notify", "--webhook", env={"PERFDASH_WEBHOOK": chat.url})
    assert ran.code == 3
    assert "answers 404" in ran.err
    assert SECRET not in ran.out + ran.err


@pytest.mark.parametrize("as_json", [True, False])
def test_a_mail_that_some_addresses_refuse_is_sent_to_the_others(called, post, folder, as_json):
    post.refused.add("b@example.org")
    ran = called(
        "notify", "--mail-to", "a@example.org,b@example.org", *(["--json"] if as_json else []),
        env={"PERFDASH_SMTP": f"127.0.0.1:{post.port}"},
    )  # fmt: skip
    assert ran.code == 3
    assert "refuses b@example.org" in ran.err
    if as_json:
        assert json.loads(ran.out)["sent"] == [{"way": "mail", "to": ["a@example.org"]}]
    else:
        assert ran.out == "Mailed to a@example.org\n"


@pytest.mark.parametrize(("words", "env", "why"), [
    ([], {}, "where to?"),
    ([], {"PERFDASH_SMTP": "h", "PERFDASH_WEBHOOK": "https://h/x"}, "where to?"),  # off unless asked for
    (["--webhook"], {}, "PERFDASH_WEBHOOK"),
    (["--webhook"], {"PERFDASH_WEBHOOK": SECRET}, "no address"),
    (["--mail-to", "a@b"], {}, "--smtp HOST"),
    (["--mail-to", "team"], {"PERFDASH_SMTP": "h"}, "--mail-to 'team'"),
    (["--mail-to", "a@b", "--smtp-user", "bot"], {"PERFDASH_SMTP": "h"}, "PERFDASH_SMTP_PASSWORD"),
    (["--mail-to", "a@b", "--mail-from", "x@y,z@y"], {"PERFDASH_SMTP": "h"}, "one address"),
    (["--dry-run", "--site-url", "perf.example"], {}, "with https://"),
    (["--dry-run", "--link", "ftp://x"], {}, "--link"),
    (["no-such-run", "--dry-run"], {}, "no run 'no-such-run'"),
])  # fmt: skip
def test_wrong_use(called, folder, words, env, why):
    ran = called("notify", *words, env=env)
    assert ran.code == 2
    assert why in ran.err
    assert SECRET not in ran.err
