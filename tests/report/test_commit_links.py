"""The commits between two builds, and where they can be read."""

from __future__ import annotations

import pytest

from perfdash.report.changes import ChangeEnd
from perfdash.report.commit_links import CommitRange, commit_ranges, compare_address, web_address

OLD, NEW = "a" * 40, "b" * 40
TORCH = f"https://github.com/pytorch/pytorch/compare/{OLD[:12]}...{NEW[:12]}"


def build(torch_commit: str | None = OLD, repository: str | None = None, **commits: str) -> ChangeEnd:
    repositories = dict.fromkeys(commits, repository) if repository else {}
    return ChangeEnd("2026-11-20T01:00:00Z", "2.15.0", torch_commit, commits, repositories)


def test_torch_moved() -> None:
    assert commit_ranges(build(OLD), build(NEW, mylib=NEW)) == [
        CommitRange("torch", "a" * 10, "b" * 10, TORCH)
    ]


def test_only_packages_moved_each_is_linked_where_pip_took_it_from() -> None:
    origin = "ssh://git@git.example.org:22/team/mylib.git"
    (mylib, timm) = commit_ranges(build(mylib=OLD, timm=OLD), build(repository=origin, mylib=NEW, timm=NEW))
    assert (mylib.old, mylib.new) == (f"mylib {'a' * 10}", f"mylib {'b' * 10}")
    assert mylib.address == f"https://git.example.org/team/mylib/compare/{OLD[:12]}...{NEW[:12]}"
    assert timm.address == mylib.address, "where pip took it from comes first"
    assert commit_ranges(build(timm=OLD), build(timm=NEW))[0].address == (
        f"https://github.com/huggingface/pytorch-image-models/compare/{OLD[:12]}...{NEW[:12]}"
    )
    assert commit_ranges(build(mylib=OLD), build(mylib=NEW))[0].address is None


def test_a_wheel_whose_commit_an_older_perfdash_did_not_record_is_no_range() -> None:
    (same,) = commit_ranges(build(), build(torchvision=NEW))
    assert same.is_empty
    (timm,) = commit_ranges(build(), build(timm=NEW, torchvision=NEW))
    assert timm.old == "timm ?"


def test_nothing_moved_or_nothing_is_known() -> None:
    (same,) = commit_ranges(build(), build())
    assert same.is_empty
    assert same.address is None
    assert commit_ranges(None, build(NEW)) == [CommitRange("torch", "?", "b" * 10)]
    assert commit_ranges(build(None), build(NEW))[0].old == "2.15.0"


@pytest.mark.parametrize(("repository", "address"), [
    ("https://github.com/o/r.git", "https://github.com/o/r"),
    ("git+https://me:secret@github.com/o/r", "https://github.com/o/r"),
    ("git@github.com:o/r.git", "https://github.com/o/r"),
    ("ssh://git@host.example:2222/a/b/c.git", "https://host.example/a/b/c"),
    ("https://host.example:8443/o/r/", "https://host.example:8443/o/r"),
    ("file:///home/me/r", None), ("/home/me/r", None), ("", None), ("https://localhost/o/r", None),
    ("https://github.com/o/r?x=<script>", "https://github.com/o/r"), ("https://github.com/o/<r>", None),
    ("javascript:alert(1)", None), ("https://[bad", None), ("https://github.com", None),
])  # fmt: skip
def test_the_web_address_of_a_repository(repository: str, address: str | None) -> None:
    assert web_address(repository) == address


def test_a_forge_with_another_path() -> None:
    assert compare_address("https://gitlab.example.org/o/r", OLD, NEW) == (
        f"https://gitlab.example.org/o/r/-/compare/{OLD[:12]}...{NEW[:12]}"
    )
    assert compare_address("https://github.com/o/r", OLD, OLD) is None
    assert compare_address("https://github.com/o/r", "v1", NEW) is None
