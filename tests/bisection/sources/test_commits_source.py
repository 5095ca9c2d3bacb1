"""Commits in order, what is wrong with two ends, and that the user's repository is left as it was."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.bisection.recipes import load_recipe
from perfdash.bisection.sources import BuildContext, open_source
from perfdash.bisection.sources.commits_source import GitCommits
from perfdash.bisection.sources.git_repository import web_page, without_credentials
from perfdash.errors import UsageError
from tests.repositories import Repository, picture


@pytest.fixture
def repo(tmp_path) -> Repository:
    """first - second - merge(side: s1 - s2) - last"""
    made = Repository(tmp_path / "repo")
    made.commit("first", {"a.py": "1", "spaced name.py": "x"})
    made.git("tag", "v1")
    made.commit("second", {"a.py": "2"})
    made.git("checkout", "--quiet", "-b", "side", "v1")
    made.commit("s1", {"b.py": "1"})
    made.commit("s2", {"b.py": "2", "c/ü.py": "1"})
    made.git("checkout", "--quiet", "main")
    made.merge("side")
    made.commit("last <script>|`x`\n\nbody", {"a.py": None, "spaced name.py": "y"})
    return made


def titles(revisions):
    return [revision.title for revision in revisions]


def where(repo: Repository) -> BuildContext:
    return BuildContext(python=Path("/usr/bin/python3"), repo=repo.folder)


def test_first_parents_oldest_first(repo):
    revisions = GitCommits(repo.folder).revisions("v1", "main")
    assert titles(revisions) == ["first", "second", "Merge branch 'side'", "last <script>|`x`"]
    assert revisions[-1].id == repo.head
    assert revisions[-1].label == repo.head[:10]
    assert revisions[-1].author == "Ann Author"
    assert revisions[-1].date.startswith("2023-11-1")
    assert len(revisions[2].parents) == 2


def test_all_commits_only_if_they_are_on_one_line(repo):
    source = GitCommits(repo.folder, first_parent=False)
    assert titles(source.revisions("side~1", "main"))[:3] == ["s1", "s2", "Merge branch 'side'"]
    assert not any("several lines" in note for note in source.notes)
    assert source.revisions("v1", "main") == GitCommits(repo.folder).revisions("v1", "main")
    assert "several lines" in source.notes[-1]


def test_what_a_merge_brought_by_its_first_parent(repo):
    """Of a line that comes from the branch."""
    source = GitCommits(repo.folder, first_parent=False)
    _, before, merge, _ = source.revisions("side~1", "main")
    known = (before.id, repo.git("rev-parse", "side~1"))
    assert [titles(part) for part in source.inside(merge, 1, known)] == [["first", "second"]]


def test_what_a_merge_brought(repo):
    source = GitCommits(repo.folder)
    first, second, merge, _ = source.revisions("v1", "main")
    known = (second.id, first.id)
    assert [titles(part) for part in source.inside(merge, 2, known)] == [["first", "s1", "s2"]]
    assert source.inside(second, 2, known) == []
    assert source.inside(merge, 3, known) == []
    assert source.inside(merge, 2, [*known, repo.git("rev-parse", "side")]) == []


def test_a_branch_that_merged_main_is_searched_in_parts(repo):
    repo.git("checkout", "--quiet", "side")
    repo.merge("main~2")
    repo.commit("s3", {"d.py": "1"})
    repo.git("checkout", "--quiet", "-b", "other", "side~1")
    repo.commit("o1", {"e.py": "1"})
    repo.git("checkout", "--quiet", "side")
    repo.merge("other")
    repo.merge("main")
    repo.git("checkout", "--quiet", "main")
    repo.commit("m", {"f.py": "1"})
    repo.merge("side")
    source = GitCommits(repo.folder)
    *_, before, merge = source.revisions("v1", "main")
    parts = source.inside(merge, 2, (before.id, repo.git("rev-parse", "v1")))
    # Nothing since its last merge of main, two commits between its merges of main, nothing before.
    assert [titles(part)[1:] for part in parts] == [[], ["s3", "Merge branch 'other' into side"], []]
    assert [part[0].parents[0] for part in parts[:2]] == [
        repo.git("rev-parse", f"side{n}") for n in ("~1", "~4")
    ]


def test_what_each_touches(repo):
    source = GitCommits(repo.folder)
    touched = source.touched(source.revisions("v1", "main"))
    assert touched == [(), ("a.py",), ("b.py", "c/ü.py"), ("a.py", "spaced name.py")]
    assert source.touched([]) == []


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("main", "v1", "are swapped"),
        ("main", "HEAD", "are the same commit"),
        ("nope", "main", "--good 'nope' is no commit"),
        ("v1", "--output=x", "--bad '--output=x' is no commit"),
        ("v1", "", "--bad '' is no commit"),
        ("main:a.py", "main", "is no commit"),
        ("side", "main~2", "is not an ancestor of --bad main~2: they part at"),
        ("orphan", "main", "no commit in common"),
    ],
)
def test_bad_ends(repo, good, bad, message):
    repo.git("checkout", "--quiet", "--orphan", "orphan")
    repo.commit("alone")
    repo.git("checkout", "--quiet", "main")
    with pytest.raises(UsageError, match=message):
        GitCommits(repo.folder).revisions(good, bad)


def test_good_beside_the_line_is_reported(repo):
    source = GitCommits(repo.folder)
    assert titles(source.revisions("side", "main"))[0] == "s2"
    assert "not on the line of first parents" in source.notes[0]


def test_no_repository(tmp_path):
    for folder, message in (
        (None, "--repo PATH"),
        (tmp_path, "no git repository"),
        (tmp_path / "x", "no such"),
    ):
        with pytest.raises(UsageError, match=message):
            open_source(load_recipe("git"), BuildContext(python=Path("python"), repo=folder))


def test_what_is_not_committed_is_noted_and_nothing_touched(repo):
    repo.write({"spaced name.py": "changed", "untracked.py": "1"})
    # A hook, a filter and a watcher of the repository's, none of which may be run.
    marker = repo.folder.parent / "was-run"
    for key in ("core.fsmonitor", "filter.spy.clean", "filter.spy.smudge", "core.sshCommand"):
        repo.git("config", key, f"touch {marker}; cat")
    repo.git("config", "core.untrackedCache", "true")
    (repo.folder / ".git" / "info" / "attributes").write_text("* filter=spy\n")
    for hook in ("post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc"):
        file = repo.folder / ".git" / "hooks" / hook
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\ntouch {marker}\n")
        file.chmod(0o755)
    (repo.folder / "b.py").touch()  # its time no longer fits the index, which `git status` would refresh
    before = picture(repo.folder)
    source = open_source(load_recipe("git"), where(repo))
    source.touched(source.revisions("v1", "main"))
    assert source.notes == [
        "1 file has changes that are not committed: they are not measured (spaced name.py)"
    ]
    assert picture(repo.folder) == before
    assert not marker.exists()


def test_a_clean_one_has_no_notes_from_any_folder_of_it(repo):
    assert open_source(load_recipe("git"), where(repo)).notes == []
    below = replace(where(repo), repo=repo.folder / "c")
    assert len(open_source(load_recipe("git"), below).revisions("v1", "main")) == 4


def test_bare_repositories_and_linked_worktrees(repo, tmp_path):
    repo.git("clone", "--quiet", "--bare", repo.folder, tmp_path / "bare.git")
    repo.git("worktree", "add", "--quiet", tmp_path / "linked", "side")
    for folder, tip in (("bare.git", "main"), ("linked", "main")):
        source = open_source(load_recipe("git"), replace(where(repo), repo=tmp_path / folder))
        assert len(source.revisions("v1", tip)) == 4
        assert source.notes == []


def test_names_by_sha256_are_reported(tmp_path):
    subprocess.run(["git", "init", "--quiet", "--object-format=sha256", tmp_path / "new"], check=True)
    with pytest.raises(UsageError, match="SHA-256"):
        GitCommits(tmp_path / "new")


def test_a_shallow_clone_says_so(repo, tmp_path):
    repo.git("clone", "--quiet", "--depth=1", f"file://{repo.folder}", tmp_path / "shallow")
    with pytest.raises(UsageError, match="shallow"):
        GitCommits(tmp_path / "shallow").revisions(repo.git("rev-parse", "v1"), "main")


def test_a_branch_that_a_shallow_clone_cuts_off_is_reported(repo, tmp_path):
    """Its list of commits would begin somewhere inside the branch."""
    repo.git("clone", "--quiet", "--depth=3", f"file://{repo.folder}", tmp_path / "shallow")
    source = GitCommits(tmp_path / "shallow")
    before, merge, _ = source.revisions("HEAD~2", "HEAD")
    with pytest.raises(UsageError, match=r"shallow clone: git fetch --unshallow"):
        source.inside(merge, 2, [before.id])
    with pytest.raises(UsageError, match=r"first is of 2023-11-14; it is a shallow clone: git fetch --unsh"):
        source.revisions("2023-01-01", "main")
    repo.git("-C", tmp_path / "shallow", "fetch", "--quiet", "--unshallow")
    assert [titles(part) for part in source.inside(merge, 2, [before.id])] == [["first", "s1", "s2"]]


def test_a_date_where_head_names_no_commit(repo, tmp_path):
    """As after a clone of a repository whose HEAD names a branch that is gone."""
    empty = Repository(tmp_path / "unborn")
    empty.git("fetch", "--quiet", repo.folder, "main:fetched")
    with pytest.raises(UsageError, match=r"--bad 2026-11-30: 'HEAD' is no commit of .*unborn"):
        GitCommits(empty.folder).revisions("2023-01-01", "2026-11-30")


@pytest.mark.parametrize(
    ("address", "page"),
    [
        ("https://github.com/o/r.git", "https://github.com/o/r"),
        ("https://user:secret@github.com/o/r", "https://github.com/o/r"),
        ("git@github.com:o/r.git", "https://github.com/o/r"),
        ("ssh://git@gitlab.com/o/g/r.git", "https://gitlab.com/o/g/r"),
        ("/srv/mirror", None),
        ("https://intranet/o/r", None),
    ],
)
def test_links(repo, address, page):
    repo.git("config", "remote.origin.url", address)
    assert web_page(repo.folder) == page
    link = GitCommits(repo.folder).revisions("v1", "main")[-1].link
    assert link == (f"{page}/commit/{repo.head}" if page else None)


def test_a_password_with_an_at_in_it():
    assert without_credentials("at https://ann:s3c@ret@host/a@b, ok") == "at https://****@host/a@b, ok"
    assert without_credentials("https://host/a@b") == "https://host/a@b"


def test_git_gets_no_secret(repo, monkeypatch, tmp_path):
    seen, program = tmp_path / "seen", tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nenv >> {seen}\nexec {shutil.which("git")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GITHUB_TOKEN", "s3cret")
    monkeypatch.setenv("PERFDASH_WEBHOOK", "s3cret")
    assert len(GitCommits(repo.folder).revisions("v1", "main")) == 4
    assert "PATH=" in seen.read_text()
    assert "s3cret" not in seen.read_text()


def test_inside_a_hook(repo, tmp_path, monkeypatch):
    other = Repository(tmp_path / "other")
    other.commit("other")
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.folder / ".git" / "index"))
    assert len(open_source(load_recipe("git"), where(repo)).revisions("v1", "main")) == 4


def test_a_thousand_commits(tmp_path):
    repo = Repository(tmp_path / "long")
    stream = []
    for number in range(1000):
        stream.append(
            f"commit refs/heads/main\ncommitter A <a@b> {1_700_000_000 + number} +0000\ndata 2\nc\n"
            f"M 644 inline f{number % 7}\ndata {len(str(number))}\n{number}\n"
        )
    stream_text = "".join(stream).encode()
    subprocess.run(["git", "fast-import", "--quiet"], cwd=repo.folder, input=stream_text, check=True)
    source = GitCommits(repo.folder)
    revisions = source.revisions("main~999", "main")
    assert len(revisions) == 1000
    assert source.touched(revisions)[1:8] == [(f"f{n % 7}",) for n in range(1, 8)]
