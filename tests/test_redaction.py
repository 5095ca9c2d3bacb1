"""Secrets are replaced wherever they stand in a text, and nothing else is."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import sys
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash import redaction
from perfdash.redaction import mask_secrets, redact_all, redacted, redacted_output, remember, secrets_of
from perfdash.report.markdown import plain

TOKEN = "ghx_0123456789/abc&DEF"  # of no known shape


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(redaction, "_remembered", set())


@pytest.mark.parametrize(
    "name",
    ["GITHUB_TOKEN", "HF_TOKEN", "PERFDASH_WEBHOOK", "PERFDASH_SMTP_PASSWORD", "PGPASSWORD", "OPENAI_API_KEY",
     "MYSQL_PASS", "AWS_SECRET_ACCESS_KEY", "http_auth"],
)  # fmt: skip
def test_variables_named_like_a_secret(name):
    assert secrets_of({name: TOKEN}) == (TOKEN,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "disabled"),
        ("GIT_AUTHOR_NAME", "nightly bot"),
        ("KEYBOARD", "qwertz layout"),
        ("MONKEY", "business"),
        ("API_KEY", "12345678"),  # would be replaced inside of numbers
        ("API_KEY", "false"),
        ("API_KEY", "short"),
        ("HOME", "/home/someone"),
        ("OAUTH_PROVIDER", "github"),
        ("AUTH_MODE", "steady"),
        ("HTTP_AUTH", "digest"),
        ("SORT_KEY", "resnet18"),
        ("SORT_KEY", "GPT2ForSequenceClassification"),
        ("SORT_KEYS", "convnext_tiny.in12k_ft_in1k"),
        ("SSH_KEY", "/home/Me1/.ssh/id_rsa"),
        ("MAX_TOKENS", "512000"),
        ("GIT_CONFIG_VALUE_0", "/srv/clone"),
        ("NOTE", "https://someone@example.com"),
    ],
)
def test_what_is_no_secret(name, value):
    assert secrets_of({name: value}) == ()


def test_passwords_in_addresses_and_on_the_command_line():
    words = [
        "--db",
        "postgresql://u:0therpw@h/x",
        "A_KEY=v4L0k1Q2",
        "--env=B_TOKEN=one=more",
        "--metric=keyless",
    ]
    secrets = secrets_of({"PERFDASH_DB": "postgresql://u:p%40ssw0rd@host/x"}, words)
    assert set(secrets) == {"p%40ssw0rd", "p@ssw0rd", "0therpw", "v4L0k1Q2", "one=more"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DB_PASS", "correcthorse"),
        ("BASIC_AUTH", "me:correcthorse"),
        ("DOCKER_AUTH_CONFIG", "dXNlcjpDb3JyZWN0SG9yc2U9"),
        ("GITHUB_TOKENS", "k2Xq9vTb,Zm4Rw7Lc"),
        ("DEPLOY_KEY", "9f86d081884c7d65"),
        ("AZURE_STORAGE_CONNECTION_STRING", "AccountName=n;AccountKey=abcdefgh"),
    ],
)
def test_names_that_mean_other_things_too(name, value):
    assert value in secrets_of({name: value})


def test_secrets_within_a_value_of_any_name():
    values = {
        "DSN": "host=h password=correcthorse",
        "HEADER": "Authorization: Bearer batterystaple",
        "REMOTE": "https://k2Xq9vTbZm4R@h/x",
    }
    assert set(secrets_of(values)) == {"correcthorse", "batterystaple", "k2Xq9vTbZm4R"}


def test_the_path_of_a_webhook_is_the_secret():
    secrets = secrets_of({"PERFDASH_WEBHOOK": "https://chat.example/hook/T000/B000/XXXX"})
    assert redacted("POST /hook/T000/B000/XXXX 404", secrets) == "POST *** 404"


@pytest.mark.parametrize(
    "written",
    [
        TOKEN,
        f"x{TOKEN}y",
        TOKEN.replace("_", r"\_"),
        json.dumps({"a": TOKEN}),
        html.escape(TOKEN),
        quote(TOKEN, safe=""),
        base64.b64encode(TOKEN.encode()).decode(),
    ],
)
def test_a_secret_in_any_spelling(written):
    clean = redacted(f"it said {written}.", [TOKEN])
    assert "***" in clean
    assert "0123456789" not in clean
    assert base64.b64encode(TOKEN.encode()).decode() not in clean


def test_a_short_secret_is_replaced_as_a_word_only():
    assert redacted("pw secret1 secret123 (secret1)", ["secret1"]) == "pw *** secret123 (***)"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgresql://me:s3@h/x", "postgresql://me:***@h/x"),
        ("Authorization: token abcdef", "Authorization: token ***"),
        ('{"authorization": "Bearer abcdef"}', '{"authorization": "Bearer ***"}'),
        ("ghp_0123456789abcdefABCDEF0123456789abcd", "***"),
        ("https://hooks.slack.com/services/T0/B0/xyz", "https://hooks.slack.com/services/***"),
    ],
)
def test_shapes_of_secrets_that_nobody_named(text, clean):
    assert redacted(text, ()) == clean


@pytest.mark.parametrize(
    "text",
    [
        '{"a":"http://x","b":"c@d"}',
        '<a href="http://x">b:c</a> me@h',
        "see http://h:8080/a@b and ssh://git@h",
    ],
)
def test_no_address_is_seen_across_quotes(text):
    assert redacted(text, ()) == text


@given(st.text(), st.text(min_size=6), st.text())
def test_a_text_is_not_searched_only_where_no_secret_can_be(before, secret, after):
    """Digits, capitals, other alphabets and halves of characters included."""
    for text in (before + secret + after, before + html.escape(secret) + after):
        masked = redacted(text, [secret])
        form = redaction._forms((secret,))[0][1]
        assert masked == redacted(form.sub("***", text), [])


@given(st.text())
def test_ordinary_text_stays(text):
    assert redacted(text, ("0123456789abcdef",)) == text or "***" in redacted(text, ())


def test_nested_values_and_what_was_remembered():
    remember(TOKEN, None, "")
    assert redact_all({"a": [TOKEN, 1, None, (f"x {TOKEN}",)]}) == {"a": ["***", 1, None, ["x ***"]]}


def test_texts_that_are_keys():
    remember(TOKEN)
    assert redact_all({f"call of {TOKEN}": 2, "graphs": 1, 3: 4}) == {"call of ***": 2, "graphs": 1, 3: 4}


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_stream_that_was_closed_before_the_start(monkeypatch, closed):
    monkeypatch.setattr(sys, closed, None)
    with redacted_output():
        assert getattr(sys, closed) is None
        print("to nowhere", file=getattr(sys, closed))


def test_a_reader_that_has_gone_away_ends_nothing(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with redacted_output():
            print("line", flush=True)
            print("another")


@pytest.mark.parametrize(("encoding", "printed"), [
    ("utf-8", b"caf\\udce9 \xe2\x86\x92\n"),
    ("ascii", b"caf\\udce9 \\u2192\n"),
])  # fmt: skip
def test_what_the_terminal_cannot_show_is_escaped(monkeypatch, encoding, printed):
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding))
    with redacted_output():
        print(os.fsdecode(b"caf\xe9"), "\N{RIGHTWARDS ARROW}", flush=True)
        assert out.getvalue() == printed


def test_output_is_redacted_while_it_is_open(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    with redacted_output():
        print("it is", TOKEN)
        sys.stdout.writelines([TOKEN, "\n"])
        assert not hasattr(sys.stdout, "buffer")
        assert not sys.stdout.isatty()
    assert sys.stdout is out
    assert out.getvalue() == "it is ***\n***\n"


@pytest.mark.parametrize(("words", "masked"), [
    (["DATABASE_URL=postgresql://u:s3cret@h/x"], ["DATABASE_URL=***"]),
    (["--env=PGPASS=s3cret"], ["--env=PGPASS=***"]),
    (["--env=A=https://u:s3cret@h/x=y"], ["--env=A=***"]),
    (["--db", "postgresql://u:s3cret@h/x?a=b"], ["--db", "postgresql://****@h/x?a=b"]),
    (["--db", "host=h password=s3cret"], ["--db", "host=***"]),
    (["sh", "-c", "cd x; A_TOKEN=s3cret B=1 ./go"], ["sh", "-c", "cd x; A_TOKEN=***"]),
    (["--set", "build.env.HF_TOKEN=s3cret"], ["--set", "build.env.HF_TOKEN=***"]),
    (["x.sh", "--api-key", "s3cret", "--token=s3cret"], ["x.sh", "--api-key", "***", "--token=***"]),
    (["--env", "TOKENIZERS_PARALLELISM=false"], ["--env", "TOKENIZERS_PARALLELISM=false"]),
    (["-H", "Authorization: Bearer s3cret"], ["-H", "Authorization: ***"]),
    (["-H", "Private-Token: s3cret"], ["-H", "Private-Token: ***"]),
    (["sh", "-c", "A=1 curl -H 'Authorization: Bearer s3cret' x"], ["sh", "-c", "A=***"]),
    (["curl -H 'Authorization: token s3cret' x"], ["curl -H 'Authorization: token ***' x"]),
    (["sh", "-c", "A=1 B_TOKEN=s3cret ./go"], ["sh", "-c", "A=***"]),
    (["--env", "NOTE=x hf_0123456789abcdefABCDEF0123456789abcd"], ["--env", "NOTE=***"]),
    (["--auth-tokens", "s3cret", "--max-tokens", "512"], ["--auth-tokens", "***", "--max-tokens", "512"]),
    (["pip", "git+ssh://git@github.com/a/b"], ["pip", "git+ssh://git@github.com/a/b"]),
    (["git+ssh://git:s3cret@h/x", "git+https://s3cret@h/x"], ["git+ssh://****@h/x", "git+https://****@h/x"]),
    (["--models", "a,b=c", "--webhook", "--link", "https://h/a@b"],
     ["--models", "a,b=c", "--webhook", "--link", "https://h/a@b"]),
])  # fmt: skip
def test_what_a_user_types_is_written_down_without_secrets(words, masked):
    assert mask_secrets(words) == masked


def test_a_line_is_redacted_before_it_is_cut(monkeypatch):
    """The beginning of a secret would no longer be known as one."""
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    assert plain(f"{'x' * 30} {TOKEN} {'y' * 30}", 40) == f"{'x' * 30} *** {'y' * 4}…"
