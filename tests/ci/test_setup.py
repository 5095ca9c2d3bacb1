"""ci/setup.sh: Debian packages are installed with --system; pip and apt-get get no secrets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.ci.nights import CHECKOUT

SCRIPT = CHECKOUT / "ci" / "setup.sh"


@pytest.fixture
def debian(tmp_path):
    """Commands that pretend: packages in `installed` are there; apt-get writes down what it is asked."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "installed").write_text("")
    for name, text in {
        "dpkg-query": f'for each; do :; done\ngrep -qx "$each" {tmp_path}/installed && echo -n installed',
        "apt-get": f'echo "$@" >>{tmp_path}/asked',
        "sudo": 'exec "$@"',
    }.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "PERFDASH_VENV": str(folder / "venv"),
    }
    return subprocess.run([SCRIPT, *words], env=env, capture_output=True, text=True)


def test_what_is_missing_is_installed_and_no_environment_made(debian):
    (debian / "installed").write_text("git\ng++\n")
    done = run(debian, "--system")
    assert done.returncode == 0, done.stderr
    update, install = (debian / "asked").read_text().splitlines()
    assert update == "update -qq"
    words = install.split()
    assert words[:2] == ["install", "-y"]
    assert {"python3-venv", "libjemalloc2", "ccache"} <= set(words)
    assert not {"git", "g++"} & set(words)
    assert not (debian / "venv").exists()


def test_nothing_is_missing(debian):
    run(debian, "--system")
    everything = (debian / "asked").read_text().split("recommends")[1].split()
    (debian / "installed").write_text("\n".join(everything) + "\n")
    (debian / "asked").unlink()
    assert run(debian, "--system").returncode == 0
    assert not (debian / "asked").exists()


SECRETS = ("GITHUB_TOKEN", "PERFDASH_DB", "PERFDASH_SMTP_PASSWORD", "PERFDASH_WEBHOOK", "MY_API_KEY")


@pytest.fixture
def pretended(tmp_path):
    """A Python that pretends: an environment of it is itself; pip leaves its variables in `environment`."""
    path = tmp_path / "python"
    path.write_text(
        f"""#!/bin/bash
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip install"*) env >{tmp_path}/environment ;;
esac
"""
    )
    path.chmod(0o755)
    return path


def test_pip_gets_no_secrets(tmp_path, pretended):
    """Run by hand, with the whole environment of a user."""
    variables = {**dict.fromkeys(SECRETS, "s3cret-value"), "PIP_INDEX_URL": "https://u:s3cret@index/simple"}
    env = {**os.environ, **variables, "PYTHON": str(pretended), "PERFDASH_VENV": str(tmp_path / "venv")}
    done = subprocess.run([SCRIPT], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    received = (tmp_path / "environment").read_text()
    assert "s3cret-value" not in received
    assert "PIP_INDEX_URL=https://u:s3cret@index/simple\n" in received, "pip needs it to reach its index"
    assert f"PATH={os.environ['PATH']}\n" in received


def test_wrong_usage(debian):
    done = run(debian, "--sytsem")
    assert done.returncode == 2
    assert "'--sytsem' is none of its options; there is --system" in done.stderr


def test_no_debian(tmp_path):
    """Without apt-get it says what to install by hand."""
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname", "env", "cat"):
        (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    done = subprocess.run(
        [SCRIPT, "--system"], env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True
    )
    assert done.returncode == 3
    assert "no apt-get here; install what it would by hand: ca-certificates g++" in done.stderr


def test_the_environment_of_a_nightly_has_nvml():
    """Without it no run on a GPU notices throttling, other programs and faults."""
    assert "gpu" in SCRIPT.read_text().split("--editable '.[")[1].split("]")[0].split(",")


def test_an_environment_without_pip_is_made_again(tmp_path, pretended):
    """It was half made when it was killed, or the machine's Python was upgraded."""
    old = tmp_path / "venv" / "bin" / "python"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/bash\necho 'No module named pip' >&2\nexit 1\n")
    old.chmod(0o755)
    env = {**os.environ, "PYTHON": str(pretended), "PERFDASH_VENV": str(tmp_path / "venv")}
    done = subprocess.run([SCRIPT], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "environment").exists()


def test_an_environment_that_is_activated_is_made_again(tmp_path, pretended):
    """Its python3 is the first in PATH, and goes."""
    (tmp_path / "python3").symlink_to(pretended)
    old = tmp_path / "venv" / "bin" / "python3"
    old.parent.mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    old.write_text("#!/bin/bash\ncase $2 in pip) exit 1 ;; esac\n")
    old.chmod(0o755)
    (old.parent / "python").symlink_to(old)
    path = f"{old.parent}:{tmp_path}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PERFDASH_VENV": str(tmp_path / "venv")}
    env.pop("PYTHON", None)
    done = subprocess.run([SCRIPT], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
