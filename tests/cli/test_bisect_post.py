"""`perfdash post --bisection`, against a GitHub on loopback."""

import sys

import pytest

from perfdash.cli import main
from tests.bisection.scripted import Script, begin, bisected, go_on
from tests.publish.server import TOKEN, GitHub


@pytest.fixture
def post(tmp_path, monkeypatch, capsys):
    hub = GitHub()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)

    def run(*words):
        arguments = ["perfdash", "post", "--repo", "team/perf", "--issue", "3", "--base-url", hub.url, *words]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        assert TOKEN not in printed.out + printed.err
        return left.value.code, printed.out, printed.err

    run.hub = hub
    yield run
    hub.close()


def test_it_is_posted_once_and_edited(post, tmp_path):
    folder = tmp_path / "runs" / "bisections" / "one"
    script = Script.step(30, at=10)
    begin(script, folder)
    assert post("--bisection", "one")[0] == 0
    (comment,) = post.hub.comments
    assert "not finished" in comment["body"]
    go_on(script, folder)
    assert post("--bisection", "last")[0] == 0
    (comment,) = post.hub.comments
    assert "found 10" in comment["body"]


def test_a_dry_run_sends_nothing(post, tmp_path):
    bisected(Script.step(30, at=10), tmp_path / "runs" / "bisections" / "one")
    code, out, _ = post("--bisection", "last", "--dry-run")
    assert code == 0
    assert "found 10" in out
    assert not post.hub.comments


def test_what_cannot_be_posted_says_where_the_text_is(post, tmp_path, monkeypatch):
    bisected(Script.step(30, at=10), tmp_path / "runs" / "bisections" / "one")
    monkeypatch.delenv("GITHUB_TOKEN")
    code, _, err = post("--bisection", "last")
    assert code in (2, 3)
    assert "GITHUB_TOKEN" in err


def test_one_that_is_not_there(post):
    code, _, err = post("--bisection", "other")
    assert code == 2
    assert "no bisection 'other'" in err
