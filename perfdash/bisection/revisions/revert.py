"""One commit taken back on top of another, without a worktree; the user's repository is only read."""

from __future__ import annotations

from pathlib import Path

from perfdash.bisection.revisions import Revision
from perfdash.bisection.revisions.repository import (
    GitFailed,
    common_folder,
    environment,
    find,
    git,
    is_shallow,
    line,
    origin,
    without_credentials,
)
from perfdash.errors import UsageError

_LABEL = 10


def taken_back(repo: Path, bad: Revision, culprit: Revision, folder: Path) -> Revision:
    """`bad` without what `culprit` changed against its first parent: a commit in a repository in `folder`.

    The same commit each time. Raises UsageError where later changes touch the same lines.
    """
    top = find(repo)
    _borrow(top, folder)
    form = "--format=%cI"
    when = line("show", "--no-patch", form, "--end-of-options", bad.id, cwd=folder)
    env = environment()
    for who in ("AUTHOR", "COMMITTER"):
        env.update({f"GIT_{who}_NAME": "perfdash", f"GIT_{who}_EMAIL": "", f"GIT_{who}_DATE": when})

    def commit(tree: str, parent: str, message: str) -> str:
        said = git("commit-tree", tree, "-p", parent, "-m", message, cwd=folder, env=env)
        return said.decode().strip()

    # A merge whose base is the culprit: from there one side goes on to bad, the other back to its parent.
    if not culprit.parents:
        raise UsageError(f"{culprit.label} cannot be taken back: it is a first commit")
    ours = commit(f"{bad.id}^{{tree}}", culprit.id, "bad")
    theirs = commit(f"{culprit.id}^1^{{tree}}", culprit.id, "before")
    try:
        tree = git("merge-tree", "--write-tree", ours, theirs, cwd=folder, env=env).decode().split()[0]
    except GitFailed as error:
        raise UsageError(
            f"{culprit.label} cannot be taken back on top of {bad.label}: later changes touch the same lines"
        ) from error
    message = f"{bad.label} with {culprit.label} taken back"
    name = commit(tree, bad.id, message)
    return Revision(name, name[:_LABEL], message, parents=(bad.id,), date=when)


def _borrow(repo: Path, folder: Path) -> None:
    """An empty repository that reads the objects of another."""
    folder.mkdir(parents=True, exist_ok=True)
    form = line("rev-parse", "--show-object-format", cwd=repo)
    git("init", "--quiet", "--bare", "--template=", f"--object-format={form}", ".", cwd=folder)
    common = common_folder(repo)
    (folder / "objects" / "info").mkdir(parents=True, exist_ok=True)
    (folder / "objects" / "info" / "alternates").write_text(f"{common / 'objects'}\n")
    modules = folder / "modules"  # the user's clones of submodules
    if (common / "modules").is_dir() and not modules.is_symlink():
        modules.symlink_to(common / "modules", target_is_directory=True)
    if address := origin(repo):  # to which addresses of submodules may be relative
        bare = without_credentials(address).replace("****@", "") if address.startswith("http") else address
        git("config", "remote.origin.url", bare, cwd=folder)
    if is_shallow(repo):
        (folder / "shallow").write_bytes((common / "shallow").read_bytes())
