"""What a user typed is written down without secrets, and asked for again where it is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.bisection.request import BisectionRequest
from perfdash.bisection.setup import resumed_command, resumed_request
from perfdash.errors import UsageError
from perfdash.records import Case
from perfdash.redaction import mask_secrets
from perfdash.runner.remeasurement import with_secrets
from perfdash.suites.case_selection import Planned

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


def test_confirm_takes_a_secret_from_its_environment_and_never_the_mask(monkeypatch):
    env = {"DB_PASS": "***", "A": "1"}
    planned = Planned(Case("s", "m"), "python", "m.py:m", env=env)
    assert with_secrets([replace(planned, env={"A": "1"})])[0].env == {"A": "1"}
    monkeypatch.setenv("DB_PASS", "s3cret")
    assert with_secrets([planned])[0].env == {"DB_PASS": "s3cret", "A": "1"}
    monkeypatch.delenv("DB_PASS")
    with pytest.raises(UsageError, match=r"the value of DB_PASS was not kept.*export DB_PASS"):
        with_secrets([planned])
