"""A repository of pure Python, and where it is built."""

import sys
from pathlib import Path

import pytest

from perfdash.bisection.sources import BuildContext
from tests.repositories import Repository


@pytest.fixture
def pure(tmp_path) -> Repository:
    repo = Repository(tmp_path / "pure")
    repo.commit("one", {"lib/__init__.py": "n = 1", ".gitignore": "__pycache__\n"})
    repo.commit("two", {"lib/__init__.py": "n = 2"})
    repo.commit("three", {"lib/__init__.py": "n = 1"})
    return repo


@pytest.fixture
def where(tmp_path):
    return BuildContext(python=Path(sys.executable), repo=tmp_path, cache=tmp_path / "cache")
