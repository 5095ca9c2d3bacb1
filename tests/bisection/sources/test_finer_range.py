"""From two nightlies to commits of the main branch."""

from pathlib import Path

import pytest

from perfdash.bisection.recipes import load_recipe
from perfdash.bisection.sources.finer_range import between, commit_in_wheel, main_commit
from perfdash.errors import UsageError
from tests.repositories import Repository
from tests.wheels import make_wheel

NIGHTLY = load_recipe("nightly")


@pytest.fixture
def repo(tmp_path) -> Repository:
    made = Repository(tmp_path / "torch")
    for number in range(4):
        made.commit(f"c{number}", {"a": str(number)})
    made.git("checkout", "--quiet", "--orphan", "nightly")
    for day, of in (("01", "main~2"), ("02", "main")):
        made.commit(f"2026-11-{day} nightly release ({made.git('rev-parse', of)})")
    made.git("checkout", "--quiet", "main")
    return made


def installed(tmp_path, name, commit) -> Path:
    folder = tmp_path / name
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "version.py").write_text(
        f"__version__ = '2'\ndebug = False\ncuda: Optional[str] = None\ngit_version = '{commit}'\n"
    )
    return folder


def test_nightlies_name_commits_of_main(tmp_path, repo):
    before = installed(tmp_path, "before", repo.git("rev-parse", "nightly~1"))
    after = installed(tmp_path, "after", repo.git("rev-parse", "nightly"))
    good, bad = between(NIGHTLY, repo.folder, before, after)
    assert good == repo.git("rev-parse", "main~2")
    assert bad == repo.head


def test_a_build_of_main_itself(repo):
    assert main_commit(repo.folder, repo.head) == repo.head


def test_what_is_in_the_way(tmp_path, repo):
    first = installed(tmp_path, "one", repo.git("rev-parse", "nightly"))
    lost = installed(tmp_path, "lost", "1" * 40)
    none = installed(tmp_path, "none", "Unknown")
    for before, after, message in (
        (first, first, "both builds are of"),
        (first, lost, "fetch the nightly branch"),
        (none, first, "does not say which commit"),
    ):
        with pytest.raises(UsageError, match=message):
            between(NIGHTLY, repo.folder, before, after)
    repo.git("checkout", "--quiet", "nightly")
    repo.commit(f"2026-11-03 nightly release ({'2' * 40})")
    with pytest.raises(UsageError, match=r"nightly release .* is no commit of"):
        main_commit(repo.folder, repo.head)


def test_commit_in_a_wheel(tmp_path):
    text = f"git_version = '{'c' * 40}'"
    wheel = make_wheel(tmp_path, "torch", "2.0", files={"torch/version.py": text})
    assert commit_in_wheel(NIGHTLY, wheel) == "c" * 40
    assert commit_in_wheel(NIGHTLY, make_wheel(tmp_path, "torch", "3.0")) is None
    broken = tmp_path / "torch-4.0-py3-none-any.whl"
    broken.write_bytes(b"PK")
    assert commit_in_wheel(NIGHTLY, broken) is None
    assert commit_in_wheel(load_recipe("wheels:torch"), wheel) is None
