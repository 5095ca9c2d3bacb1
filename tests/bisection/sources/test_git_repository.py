"""A commit taken back on top of another: what it leaves, and that the user's repository stays as it was."""

import os
import shutil

import pytest

from perfdash.bisection.sources.commits_source import GitCommits
from perfdash.bisection.sources.git_repository import git, reverted
from perfdash.errors import UsageError
from tests.repositories import Repository, picture


@pytest.fixture
def repository(tmp_path):
    made = Repository(tmp_path / "repo")
    made.commit("first", {"a": "1\n2\n3\n", "b": "x\n"})
    made.commit("slow", {"a": "1\nslow\n3\n", "c": "new\n"})
    made.commit("later", {"b": "y\n"})
    return made


def listed(repository, good="HEAD~2"):
    return GitCommits(repository.folder).revisions(good, "HEAD")


def files(folder, commit, name):
    return git("show", f"{commit}:{name}", cwd=folder).decode()


def test_only_its_own_change_is_taken_back(repository, tmp_path):
    before = picture(repository.folder)
    _, culprit, bad = listed(repository)
    made = reverted(repository.folder, bad, culprit, tmp_path / "own")
    assert files(tmp_path / "own", made.id, "a") == "1\n2\n3\n"
    assert files(tmp_path / "own", made.id, "b") == "y\n"
    assert made.parents == (bad.id,)
    assert git("ls-tree", "--name-only", made.id, cwd=tmp_path / "own").split() == [b"a", b"b"]
    assert picture(repository.folder) == before
    assert reverted(repository.folder, bad, culprit, tmp_path / "own") == made
    assert reverted(repository.folder, bad, culprit, tmp_path / "other") == made


def test_a_merge_is_taken_back_whole(repository, tmp_path):
    repository.git("checkout", "--quiet", "-b", "side", "HEAD~1")
    repository.commit("on the side", {"d": "1\n"})
    repository.commit("and more", {"e": "1\n"})
    repository.git("checkout", "--quiet", "main")
    repository.merge("side")
    repository.commit("last", {"b": "z\n"})
    *_, merge, bad = listed(repository)
    made = reverted(repository.folder, bad, merge, tmp_path / "own")
    assert git("ls-tree", "--name-only", made.id, cwd=tmp_path / "own").split() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("fails", "words"), [
    ("echo 'usage: git merge-tree <base-tree> ...' >&2; exit 129", r"usage: git merge-tree .*git 2\.38"),
    ("echo 'fatal: unknown rev --write-tree' >&2; exit 128", r"unknown rev .*git 2\.38"),
    ("echo 'fatal: No space left on device' >&2; exit 128", "No space left on device$"),
])  # fmt: skip
def test_a_git_that_is_too_old_is_reported(repository, tmp_path, monkeypatch, fails, words):
    """merge-tree has --write-tree since 2.38."""
    old = tmp_path / "bin" / "git"
    old.parent.mkdir()
    old.write_text(f'#!/bin/sh\n[ "$1" = merge-tree ] || exec {shutil.which("git")} "$@"\n{fails}\n')
    old.chmod(0o755)
    _, culprit, bad = listed(repository)
    monkeypatch.setenv("PATH", str(old.parent), prepend=os.pathsep)
    with pytest.raises(UsageError, match=f"cannot be reverted: .*{words}"):
        reverted(repository.folder, bad, culprit, tmp_path / "own")


def test_later_changes_of_the_same_lines_are_reported(repository, tmp_path):
    repository.commit("again", {"a": "1\nslower\n3\n"})
    _, culprit, _, bad = listed(repository, "HEAD~3")
    with pytest.raises(UsageError, match="the same lines"):
        reverted(repository.folder, bad, culprit, tmp_path / "own")
