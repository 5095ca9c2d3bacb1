"""A library under test with its models, as a user has them: a package in a repository, their own suite."""

from __future__ import annotations

from pathlib import Path

from tests.repositories import Repository

# Builds without the network: the back end lies in the repository itself.
_BACKEND = """
import pathlib
import zipfile

INFO = "NAME-1.0.dist-info"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "NAME-1.0-py3-none-any.whl"
    contents = {
        **{str(path): path.read_text() for path in pathlib.Path("NAME").glob("*.py")},
        f"{INFO}/METADATA": "Metadata-Version: 2.1\\nName: NAME\\nVersion: 1.0\\n",
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\\nGenerator: own\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = "".join(f"{file},,\\n" for file in (*contents, f"{INFO}/RECORD"))
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as archive:
        for file, text in {**contents, f"{INFO}/RECORD": record}.items():
            archive.writestr(file, text)
    return name
"""
_PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["build_backend"]

[project]
name = "NAME"
version = "1.0"
"""


def project(name: str) -> dict[str, str]:
    """The files that make a pure Python package of a repository."""
    texts = {"pyproject.toml": _PROJECT, "build_backend/backend.py": _BACKEND}
    return {path: text.replace("NAME", name) for path, text in texts.items()}


# A step waits for the most part: how busy the machine is that runs the tests must not decide what is found.
_PACKAGE = """
import time

import torch

STEPS = {steps}


class Mixer(torch.nn.Module):
    def __init__(self, steps=STEPS):
        super().__init__()
        self.steps = steps
        self.weight = torch.nn.Parameter(torch.randn(128, 128) / 12)

    def forward(self, x):
        kept = []
        for _ in range(self.steps):
            x = torch.tanh(x @ self.weight)
            kept.append(x)
        wait(self.steps)
        return torch.cat(kept)


@torch.compiler.disable
def wait(steps):
    time.sleep(steps * 0.001)
"""
_MODELS = """
import torch
import tinylib


def mixer(batch_size):
    return tinylib.Mixer(), (torch.randn(32 * batch_size, 128),)


def steady(batch_size):
    return tinylib.Mixer(6), (torch.randn(16 * batch_size, 128),)
"""
_SUITE = """
name = "tiny"
loader = "python"

[[models]]
name = "mixer"
target = "models.py:mixer"
quick = true

[[models]]
name = "steady"
target = "models.py:steady"
"""


class Library:
    """`commit(title, steps=N)`: from now on the mixer makes so many steps, and keeps what each made: more of
    them take longer and need more memory."""

    def __init__(self, folder: Path) -> None:
        self.repository = Repository(folder / "tinylib")
        self.steps = 10
        self.count = 0
        self.suite = folder / "suite" / "tiny.toml"
        self.suite.parent.mkdir()
        self.suite.write_text(_SUITE)
        (self.suite.parent / "models.py").write_text(_MODELS)
        self.repository.write(project("tinylib"))

    @property
    def folder(self) -> Path:
        return self.repository.folder

    def commit(self, title: str, steps: int | None = None) -> str:
        self.steps = steps or self.steps
        self.count += 1
        return self.repository.commit(
            title,
            {
                "tinylib/__init__.py": _PACKAGE.format(steps=self.steps),
                "CHANGES.txt": f"{self.count}\n",
            },
        )
