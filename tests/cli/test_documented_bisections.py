"""Every `perfdash bisect` in the documents, run as it stands, on small stand-ins for timm and torch."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from perfdash.bisection.metrics import Reading
from perfdash.history import schema
from perfdash.history.store import open_store
from tests.cli.alert_histories import environment_said, history
from tests.repositories import Repository
from tests.wheels import make_index, make_wheel

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("docs/bisect.md", "docs/bisect-recipes.md", "README.md")
_FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(perfdash bisect [^`\n]+)`")


def examples(text: str) -> list[str]:
    """The commands of a document: lines of fenced blocks, and whole commands between backticks."""
    blocks = "\n".join(_FENCE.findall(text)).replace("\\\n", " ")
    lines = [line.partition("  #")[0].strip() for line in blocks.splitlines()]
    spans = _SPAN.findall(_FENCE.sub("", text))
    return [line for line in [*lines, *spans] if "perfdash bisect" in line and not line.startswith("#")]


EXAMPLES = [(name, line) for name in DOCUMENTS for line in examples((ROOT / name).read_text())]
HEADERS = [
    (f"bisect/{path.name}", line.removeprefix("# "))
    for path in sorted((ROOT / "bisect").glob("*.toml"))
    for line in path.read_text().splitlines()
    if line.startswith("# perfdash bisect")
]
DOCUMENT_OF = {line: document for document, line in EXAMPLES + HEADERS}
# What stands for something of the user's, and what this world has there.
STANDS_FOR = {
    "1a2b3c4": "{inner}",
    "3c4d5e6": "{first}",
    "7a8b9c0": "{last}",
}
# A build of PyTorch takes an hour: here its sources are copied.
SOURCE = """
name = "pytorch-source"
kind = "commits"
[build]
command = 'cp -r torch "$PREFIX"'
"""
MODEL = "def make(batch_size):\n    raise RuntimeError('measured by a stand-in')\n"
TORCH = 'git_version = "{commit}"\n'


def test_the_documents_have_examples():
    assert len(EXAMPLES) > 12
    assert examples(
        "```\nperfdash bisect --a \\\n  b   # why\n# perfdash bisect c\n```\n`perfdash bisect d e` x"
    ) == [
        "perfdash bisect --a    b",
        "perfdash bisect d e",
    ]


class StandInMeasurer:
    """Reads the number in a build's LEVEL file, with noise, where perfdash would measure a model."""

    def __init__(self, *_: object) -> None:
        self._dice = random.Random(1)

    def __enter__(self) -> StandInMeasurer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stop(self) -> None:
        pass

    def measure(self, built: Any, log: Path) -> tuple[Reading, dict[str, Any]]:
        level = next(path for folder in built.pythonpath for path in sorted(Path(folder).rglob("LEVEL")))
        return Reading("pass", float(level.read_text()) * self._dice.gauss(1, 0.004)), {}


def _timm(folder: Path) -> list[str]:
    """A library with tags, a script and a benchmark of its own; slower from its 9th commit on."""
    repository = Repository(folder)
    commits = []
    for n in range(14):
        level = "10" if n < 8 else "12"
        files = {
            "timm/__init__.py": f"# {n}\n",
            "timm/LEVEL": level,
            "pyproject.toml": '[project]\nname = "timm"\n',
            "test.sh": f"#!/bin/sh\ntest {level} = 10\n",
            "script.sh": f"#!/bin/sh\ntest {level} = 10\n",
            "bench.py": f"import random\nprint({level} * random.gauss(1, 0.004))\n",
            "model.py": MODEL,
        }
        repository.write(files)
        for name in ("test.sh", "script.sh"):
            (folder / name).chmod(0o755)
        commits.append(repository.commit(f"change {n}"))
        for tag in {1: ("v1.0", "v1.0.9")}.get(n, ()):
            repository.git("tag", tag)
    return commits


def _pytorch(folder: Path) -> list[str]:
    repository = Repository(folder)
    return [
        repository.commit(
            f"torch {n}", {"torch/__init__.py": f"# {n}\n", "torch/LEVEL": "10" if n < 7 else "13"}
        )
        for n in range(13)
    ]


def _wheels(folder: Path, commits: list[str]) -> None:
    """torch's releases and nightlies, and timm's releases; each slower from the middle on."""

    def wheel(name: str, version: str, slow: bool, commit: str = "") -> None:
        files = {f"{name}/LEVEL": "12" if slow else "10"}
        if commit:
            files[f"{name}/version.py"] = TORCH.format(commit=commit)
        make_wheel(folder, name, version, files=files)

    for version, slow in (("2.13.0+cpu", False), ("2.14.0+cpu", True), ("2.15.0", True)):
        wheel("torch", version, slow)
    for n, day in enumerate([*range(1020, 1032), 1101]):
        wheel("torch", f"2.15.0.dev2026{day}", n >= 7, commits[n])
    for n in range(9, 32):
        wheel("timm", f"1.0.{n}", n >= 14)


def _history(folder: Path) -> None:
    """One open alert, number 12, between two releases of torch."""
    (folder / "runs").mkdir(parents=True)
    db = history(
        folder / "runs" / "history.db",
        [environment_said("a" * 40, "2.13.0+cpu"), environment_said("b" * 40, "2.15.0")],
        case={"model": "lcnet_050", "batch_size": 2},
    )
    with open_store(db) as store, store.write() as connection:
        connection.execute(sa.delete(schema.alert_events))
        connection.execute(sa.update(schema.alerts).values(id=12))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A home with timm, pytorch and wheels; a caller keeps its builds."""
    home = tmp_path_factory.mktemp("home")
    commits = _timm(home / "timm")
    _wheels(home / "wheels", _pytorch(home / "pytorch"))
    (home / "model.py").write_text(MODEL)
    (home / "own.toml").write_text('name = "own"\nkind = "commits"\n')
    (home / "pytorch-source.toml").write_text(SOURCE)
    _history(home)
    return home, commits


def _words(line: str, home: Path, names: dict[str, str]) -> tuple[Path, list[str]]:
    """The folder and the words of an example, with this world's things in the place of the user's."""
    folder, command = home, line
    if match := re.fullmatch(r"cd (\S+) && (.+)", line):
        folder, command = Path(os.path.expanduser(match[1])), match[2]
    words = []
    for word in shlex.split(command)[1:]:
        word = STANDS_FOR.get(word, word).format(**names) if word in STANDS_FOR else word
        word = word.replace("pytorch-source", str(home / "pytorch-source.toml"))
        words.append(os.path.expanduser(word) if word.startswith("~") else word)
    return folder, words


@pytest.mark.slow
@pytest.mark.parametrize("line", DOCUMENT_OF)
def test_each_example_works(called, world, monkeypatch, tmp_path, line):
    home, commits = world
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("perfdash.bisection.workbench.CaseMeasurer", StandInMeasurer)
    shutil.copy(home / "runs" / "history.db", tmp_path / "history.db")
    env = {
        "PERFDASH_BUILD_CACHE": str(home / "cache"),
        "PERFDASH_OUT": str(tmp_path / "runs"),
        "PERFDASH_WAIT": "5m",
        "PERFDASH_DB": str(tmp_path / "history.db"),
        "PERFDASH_BISECT_WHEELS": str(home / "wheels"),
        "PIP_INDEX_URL": make_index(tmp_path / "index", sorted((home / "wheels").glob("timm-*.whl"))),
    }
    torch = Repository.git(SimpleNamespace(folder=home / "pytorch"), "rev-list", "--reverse", "main").split()
    names = {"inner": commits[5][:7], "first": torch[0][:7], "last": torch[-1][:7]}
    folder, words = _words(line, home, names)
    if any(word in words for word in ("log", "mark", "--resume", "--status")):
        monkeypatch.chdir(home / "timm")
        begun = called(
            "bisect", "--good", "v1.0", "--bad", "main", "--no-confirm", "--", "./test.sh", env=env
        )
        assert begun.code == 0, begun.err
    monkeypatch.chdir(folder)
    ran = called(*words, env=env)
    assert ran.code == 0, f"{DOCUMENT_OF[line]}: {line}\n{ran.err}"
    if "--dry-run" in words or "log" in words or "mark" in words:
        return
    assert "with a culprit" in ran.out or "found" in ran.out, ran.out
    if "--all-alerts" in words:
        (made,) = (tmp_path / "runs" / "bisections").glob("*/report.json")
        assert json.loads(made.read_text())["word"] == "found"
