"""What the fork parent says of installed packages; real distributions in a folder (PEP 610, PEP 376)."""

import json
from importlib import metadata

import pytest

from perfdash.worker.__main__ import _distributions

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def install(folder, name, version, direct_url=None):
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(direct_url)


def greeting(*folders):
    return _distributions(metadata.distributions(path=[str(folder) for folder in folders]))


def from_git(commit=COMMIT):
    vcs = {"vcs": "git", "requested_revision": "main", "commit_id": commit}
    return json.dumps({"url": "https://user:secret@git.example/lib.git", "vcs_info": vcs})


def test_the_commit_of_what_comes_from_a_repository(tmp_path):
    install(tmp_path, "lib", "1.0", from_git())
    install(tmp_path, "plain", "2.0")
    assert greeting(tmp_path) == (
        {"lib": "1.0", "plain": "2.0"},
        {"lib": COMMIT},
        {"lib": "https://git.example/lib.git"},
    )


@pytest.mark.parametrize("text", [
    json.dumps({"url": "file:///src/lib", "dir_info": {"editable": True}}),
    json.dumps({"url": "https://h/lib.whl", "archive_info": {}}),
    "", "not json", "[]", '"text"', '{"vcs_info": null}', '{"vcs_info": {"commit_id": 7}}',
])  # fmt: skip
def test_what_says_no_commit(tmp_path, text):
    install(tmp_path, "lib", "1.0", text)
    assert greeting(tmp_path) == ({"lib": "1.0"}, {}, {})


def test_the_first_on_the_path_is_the_one_that_is_imported(tmp_path):
    install(tmp_path / "over", "lib", "2.0", from_git())
    install(tmp_path / "under", "lib", "1.0", from_git("f" * 40))
    assert greeting(tmp_path / "over", tmp_path / "under") == (
        {"lib": "2.0"},
        {"lib": COMMIT},
        {"lib": "https://git.example/lib.git"},
    )
