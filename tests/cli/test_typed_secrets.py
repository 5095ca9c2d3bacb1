"""What a user typed is written down to be repeated, without secrets, which are asked for again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.bisection.request import BisectionRequest
from perfdash.bisection.setup import line_to_repeat, resumed_command, resumed_line, resumed_request
from perfdash.errors import UsageError
from perfdash.records import Case
from perfdash.redaction import mask_secrets
from perfdash.runner.remeasurement import with_secrets
from perfdash.suites.case_selection import Planned
from tests.bisection.scripted import revisions

ASKED = BisectionRequest("v1", "v2", "own.toml", settings={"build.env.HF_TOKEN": "s3cret", "build.cost_s": 3})
NOTHING = {"wheels": None, "repo": None, "pin_repo": None, "settings": None}


def test_a_secret_in_a_setting_of_the_recipe_is_asked_for_again():
    written = ASKED.without_secrets()
    assert written.settings == {"build.env.HF_TOKEN": "***", "build.cost_s": 3}
    begun = {"asked": written.to_json()}
    with pytest.raises(UsageError, match=r"give --set build\.env\.HF_TOKEN=\.\.\. again"):
        resumed_request(begun, NOTHING)
    with pytest.raises(UsageError, match=r"--set build\.cost_s cannot be changed with --resume"):
        resumed_request(begun, {**NOTHING, "settings": ["build.env.HF_TOKEN=s3cret", "build.cost_s=4"]})
    assert resumed_request(begun, {**NOTHING, "settings": ["build.env.HF_TOKEN=s3cret"]}) == ASKED


@pytest.mark.parametrize("words", [
    ["curl", "-H", "Authorization: Bearer s3cret"], ["pip", "git+https://u:s3cret@h/x"],
    ["x", "--key=s3cret"], ["sh", "-c", "A_TOKEN=s3cret ./go"],
])  # fmt: skip
def test_no_command_with_a_mask_in_it_is_run(words):
    begun = {"command": mask_secrets(words)}
    assert "s3cret" not in str(begun)
    with pytest.raises(UsageError, match="a value in the command was not kept"):
        resumed_command(begun, None)
    assert resumed_command(begun, words) == words
    with pytest.raises(UsageError, match="the command after -- differs"):
        resumed_command(begun, [*words, "more"])


def test_a_command_without_secrets_is_run_as_it_was_begun():
    words = ["pip", "install", "git+ssh://git@github.com/a/b"]
    assert resumed_command({"command": mask_secrets(words)}, None) == words


@pytest.mark.parametrize(
    ("typed", "repeated"),
    [
        ("--good v1 --bad v2 --metric eager", "--good 0 --bad 8 --metric eager"),
        ("--good=v1 --bad=v2", "--good=0 --bad=8"),
        ("--bad v2 --good=v1 -- ./show --good v1 --bad=v2", "--bad 8 --good=0 -- ./show --good v1 --bad=v2"),
        ("--all-alerts --jobs 2", "--alert 7 --recipe own.toml --good 0 --bad 8 --jobs 2"),
        ("--all-alerts --recipe=git", "--alert 7 --good 0 --bad 8 --recipe=git"),
        ("--good v1 --bad v2 -- ./a --all-alerts", "--good 0 --bad 8 -- ./a --all-alerts"),
        ("--env A_TOKEN=s3cret -- ./a --key=s3cret", "--env A_TOKEN=*** -- ./a --key=***"),
    ],
)
def test_the_line_to_repeat_has_fixed_ends_and_the_users_own_command(typed, repeated):
    line = line_to_repeat(ASKED, revisions(9), 7, ["bisect", *typed.split()])
    assert line == ["bisect", *repeated.split()]


@pytest.mark.parametrize(
    ("line", "resumed", "until_sure", "repeated"),
    [
        ("--repo x -- ./a --repo x", {}, False, "--repo x -- ./a --repo x"),
        ("--pin-repo a=a -- ./a", {"pin_repos": {"a": "/a", "b": "/b"}}, False,
         "--pin-repo a=a --pin-repo b=/b -- ./a"),
        ("--pin-repo b=/b --until-sure", {"pin_repos": {"a": "/a", "b": "/b"}}, True,
         "--pin-repo b=/b --until-sure"),
        ("--repo x --jobs 2 -- ./a --repo x", {"repo": "/y"}, True,
         "--repo /y --jobs 2 --until-sure -- ./a --repo x"),
        ("--repo=x", {"repo": "/y"}, False, "--repo=/y"),
        ("-- ./a", {"repo": "/y", "wheels": "https://u:s3cret@h/new"}, False,
         "--repo /y --wheels https://****@h/new -- ./a"),
        ("--wheels https://****@h/x", {"wheels": "https://u:s3cret@h/x"}, False, "--wheels https://****@h/x"),
    ],
)  # fmt: skip
def test_the_line_to_repeat_has_what_resume_was_given(line, resumed, until_sure, repeated):
    begun = replace(ASKED, repo="/x", wheels="https://****@h/x", pin_repos={"a": "/a"})
    request = replace(begun, **resumed)
    assert resumed_line(line.split(), begun, request, until_sure) == repeated.split()


def test_confirm_takes_a_secret_from_its_environment_and_never_the_mask(monkeypatch):
    env = {"DB_PASS": "***", "A": "1"}
    planned = Planned(Case("s", "m"), "python", "m.py:m", env=env)
    assert with_secrets([replace(planned, env={"A": "1"})])[0].env == {"A": "1"}
    monkeypatch.setenv("DB_PASS", "s3cret")
    assert with_secrets([planned])[0].env == {"DB_PASS": "s3cret", "A": "1"}
    monkeypatch.delenv("DB_PASS")
    with pytest.raises(UsageError, match=r"the value of DB_PASS was not kept.*export DB_PASS"):
        with_secrets([planned])
