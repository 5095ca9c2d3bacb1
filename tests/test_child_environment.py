"""What programs started by perfdash see of the user's environment."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from perfdash.bisection.environments import interpreter, pip
from perfdash.bisection.sources import git_repository
from perfdash.child_environment import HUB, INDEXES, is_secret, without_secrets
from perfdash.runner import launcher
from tests.effort import trials

SECRETS = {
    "GITHUB_TOKEN": "s3cret",
    "PERFDASH_DB": "history.db",
    "PERFDASH_SMTP_PASSWORD": "s3cret",
    "PERFDASH_WEBHOOK": "s3cret",
    "HF_TOKEN": "s3cret",
    "PGPASSWORD": "s3cret",
    "PGPASS": "s3cret",
    "DB_PASS": "s3cret",
    "AWS_SECRET_ACCESS_KEY": "s3cret",
    "WANDB_API_KEY": "s3cret",
    "TORCH_API_KEY": "s3cret",
    "npm_config_token": "s3cret",
    "GOOGLE_APPLICATION_CREDENTIALS": "s3cret",
    "DOCKER_AUTH_CONFIG": '{"auths": {"h": {"auth": "s3cret"}}}',
    "REGISTRY_AUTH": "s3cret",
    "BASIC_AUTH": "u:s3cret",
    "npm_config__auth": "s3cret",
    "GITHUB_TOKENS": "s3cret,s3cret",
    "AZURE_STORAGE_CONNECTION_STRING": "AccountKey=s3cret",
    "SIGNING_KEYS": "s3cret",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_VALUE_0": "s3cret",
}
BY_VALUE = {
    "DATABASE_URL": "postgresql://u:s3cret@h/x",
    "CONNECTION": "host=h password=s3cret",
    "PIP_INDEX_URL": "https://s3cret@h/simple",
    "https_proxy": "http://u:s3cret@proxy:3128",
    "HEADER": "Authorization: s3cret",
}
HARMLESS = {
    "HOME": "/home/u",
    "PATH": "/bin",
    "PWD": "/",
    "OLDPWD": "/",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_COMPILE_STICKY_PGO_KEY": "job",
    "TORCHINDUCTOR_CPP_WRAPPER": "1",
    "OMP_NUM_THREADS": "1",
    "SSH_AUTH_SOCK": "/run/agent",
    "AUTH_MODE": "steady",
    "OAUTH_PROVIDER": "github",
    "GIT_AUTHOR_NAME": "nightly bot",
    "AUTHOR": "me",
    "XAUTHORITY": "/run/x",
    "MAX_NEW_TOKENS": "512",
    "torch_key": "job",
    "STRIP_CONNECTIONS": "yes",
    "SSH_ASKPASS": "/bin/ask",
    "GIT_SSH_COMMAND": "ssh -p 22",
    "COMPASS": "north",
    "HTTP_PROXY": "http://proxy:3128",
    "PIP_INDEX_URL_OF_MINE": "ssh://git@h:22/x",
    "PERFDASH_CACHE": "/cache",
}


def test_secrets_are_left_out_and_nothing_else():
    assert without_secrets({**SECRETS, **BY_VALUE, **HARMLESS}) == HARMLESS
    assert all(is_secret(name, value) for name, value in {**SECRETS, **BY_VALUE}.items())


def test_what_reaches_an_index_or_the_hub_may_stay():
    variables = {**SECRETS, **BY_VALUE}
    assert set(without_secrets(variables, INDEXES)) == {"PIP_INDEX_URL", "https_proxy"}
    assert set(without_secrets(variables, HUB)) == {"HF_TOKEN", "https_proxy"}


def worker(**env: str) -> dict[str, str]:
    """The environment of a measured process."""
    launch = launcher.Launch(sys.executable, cores=(0,), threads=1, env=tuple(env.items()))
    return launcher.environment(launch, os.environ)


@pytest.fixture
def secrets(monkeypatch):
    for name, value in {**SECRETS, **BY_VALUE}.items():
        monkeypatch.setenv(name, value)


def test_no_program_of_others_gets_a_secret(secrets):
    base = interpreter.Interpreter(Path(sys.executable), "", "", "", {}, {}, {})
    for env, names in (
        (worker(), set()),
        (interpreter.plain_environment(), set()),
        (interpreter.plain_environment(INDEXES), {"PIP_INDEX_URL", "https_proxy"}),
        (pip.environment(base, None), {"PIP_INDEX_URL", "https_proxy"}),
        (git_repository.environment(), {"https_proxy"}),
    ):
        assert {name for name, value in env.items() if "s3cret" in value} == names
        assert not {"PERFDASH_DB", "GITHUB_TOKEN"} & set(env)
        assert env["PATH"] == os.environ["PATH"]


def test_a_measured_process_gets_what_the_user_gives_it(secrets):
    assert worker(MY_TOKEN="given")["MY_TOKEN"] == "given"
    assert worker(HF_HUB_OFFLINE="0")["HF_TOKEN"] == "s3cret", "models behind a login are downloaded"
    assert "GITHUB_TOKEN" not in worker(HF_HUB_OFFLINE="0")


def test_the_scripts_leave_out_the_same():
    script = f". {Path(__file__).parents[1]}/ci/secrets.sh; drop_secrets; env -0"
    variables = {**SECRETS, **BY_VALUE, **HARMLESS, "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    left = {pair.split("=", 1)[0] for pair in done.stdout.split("\0") if pair}
    assert left - {"_", "SHLVL"} == set(without_secrets(variables, INDEXES))


WORDS = [
    "AUTH", "OAUTH", "AUTHOR", "TOKEN", "TOKENS", "TOKENIZERS", "KEY", "KEYS", "KEYBOARD", "API", "PASS",
    "PWD", "PAT", "PATH", "CONNECTION", "STRING", "CONFIG", "SOCK", "MODE", "MAX", "DB", "TORCH", "my",
]  # fmt: skip


@pytest.mark.parametrize("value", ["12.5", "word"])
def test_the_scripts_have_the_same_rule_for_names(value):
    of_three = sorted(itertools.permutations(WORDS, 3))
    some = random.Random(value).sample(of_three, min(trials(2000), len(of_three)))
    names = {"_".join(words) for count in (1, 2) for words in itertools.permutations(WORDS, count)}
    names |= {"".join(words) for words in itertools.permutations(WORDS, 2)} | {
        "_".join(words) for words in some
    }
    names.discard("PATH")
    script = f". {Path(__file__).parents[1]}/ci/secrets.sh; drop_secrets; compgen -e"
    variables = dict.fromkeys(sorted(names), value)
    done = subprocess.run(
        ["bash", "-c", f"while read -r name; do export $name={value}; done; {script}"],
        input="\n".join([*variables, ""]), env={"PATH": os.environ["PATH"]}, capture_output=True, text=True,
        cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    left = set(done.stdout.split()) & names
    assert left == set(without_secrets(variables, INDEXES))
    assert 1000 < len(left) < len(names)
