"""ci/nightly.sh as a user runs it, in a folder of the test's own and with this very environment."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.command_server import CommandServer

CHECKOUT = Path(__file__).parents[2]
NIGHTLY = CHECKOUT / "ci" / "nightly.sh"
# What ci/nightly.sh takes from the environment must come from the test alone.
_LOCKS = "PERFDASH_LOCKS"  # those of the tests
_OWN = tuple(
    (CHECKOUT / "ci/nightly/common.sh").read_text().split("nightly_parameters=(")[1].split("\n)")[0].split()
)


@dataclass
class Night:
    """What a call of ci/nightly.sh printed and left."""

    code: int
    out: str
    folder: Path

    def stages(self) -> dict[str, str]:
        """Each stage that was tried, with its exit code."""
        return {
            path.stem: path.read_text().split()[0]
            for path in sorted(self.folder.iterdir())
            if path.suffix in (".done", ".failed")
        }

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()


def variables(home: Path, **more: str) -> dict[str, str]:
    """The environment of a nightly that keeps everything below `home`."""
    env = {
        key: value for key, value in os.environ.items()
        if key not in _OWN and (key == _LOCKS or not key.startswith(("PERFDASH_", "HOST_", "GITHUB_")))
    }  # fmt: skip
    return {
        **env,
        "PERFDASH_VENV": sys.prefix,
        "PERFDASH_ENVIRONMENTS": str(home / "environments"),
        "PERFDASH_BUILD_CACHE": str(home / "builds"),
        "HOST_ROOT": str(home / "root"),
        "OUT": str(home / "runs"),
        **more,
    }


def measuring_environment(folder: Path, server: CommandServer) -> Path:
    """An environment for PERFDASH_VENV, set up already, whose perfdash takes few samples."""
    stamp_environment(server.environment(folder))
    return folder


def stamp_environment(venv: Path) -> None:
    """Marks an environment as one that ci/setup.sh has made of the present inputs."""
    inputs = b"".join(
        (CHECKOUT / name).read_bytes() for name in ("pyproject.toml", "ci/constraints.txt", "ci/setup.sh")
    )
    version = subprocess.run(["python3", "--version"], capture_output=True, check=True).stdout
    (venv / ".perfdash-setup").write_text(hashlib.sha256(inputs + version).hexdigest() + "\n")


def checkout_with(folder: Path, perfdash_toml: str) -> Path:
    """A checkout whose commands have these settings: a nightly runs them in the folder of its own script."""
    for name in ("ci", "suites", "configurations", "bisect"):
        shutil.copytree(CHECKOUT / name, folder / name)
    shutil.copy(CHECKOUT / "pyproject.toml", folder)
    (folder / "perfdash.toml").write_text(perfdash_toml)
    return folder


def with_quick_tail(home: Path) -> str:
    """A PATH for ci/nightly.sh, whose `tail` looks three times a second whether a stage has ended."""
    tail = home / "tools" / "tail"
    if not tail.exists():
        tail.parent.mkdir()
        tail.write_text(f'#!/bin/bash\nexec {shutil.which("tail")} "${{@/--sleep-interval=*/-s.01}}"\n')
        tail.chmod(0o755)
    return f"{tail.parent}:{os.environ['PATH']}"


def nightly(home: Path, checkout: Path, *words: str, timeout: float = 1500, **more: str) -> Night:
    """Runs that of a checkout to its end."""
    done = subprocess.run(
        [checkout / "ci" / "nightly.sh", *words],
        cwd=home, env=variables(home, PATH=with_quick_tail(home), **more), text=True, timeout=timeout,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    nights = sorted((home / "runs" / "nightly").glob("2*")) if (home / "runs" / "nightly").exists() else []
    return Night(done.returncode, done.stdout, nights[-1] if nights else home / "none")
