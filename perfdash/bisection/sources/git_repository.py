"""Read a user's git repository, never write: no refreshed index, no hook, no gc.

By the git command and not by GitPython. GitPython runs the same command, with all variables of this process:
it would have to be told for each call which of them are secrets and which name another repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from perfdash.bisection.recipe_choice import DATE, End
from perfdash.bisection.sources import Revision
from perfdash.child_environment import PROXIES, without_secrets
from perfdash.errors import MachineError, UsageError
from perfdash.suggestions import did_you_mean

# For every git that runs here or in a build: it starts no program of the repository. Submodules may come from
# a folder, since a build runs the repository's code anyway.
_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.file.allow": "always",
    "advice.detachedHead": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
}
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")


class GitFailed(Exception):
    """A git command failed with exit code `code`; `str()` is its message without credentials."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of git: the user's, without secrets and without those that name another repository.

    more: further settings by key. They are in no argument, so no list of processes shows them.
    """
    env = without_secrets(os.environ, keep=PROXIES)
    env = {key: value for key, value in env.items() if not key.startswith("GIT_") or _harmless(key)}
    settings = {**_SETTINGS, **(more or {})}
    env.update(GIT_OPTIONAL_LOCKS="0", GIT_TERMINAL_PROMPT="0", GIT_CONFIG_COUNT=str(len(settings)))
    for number, (key, value) in enumerate(settings.items()):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env


def _harmless(key: str) -> bool:
    return key.startswith(("GIT_SSH", "GIT_SSL", "GIT_HTTP", "GIT_PROXY", "GIT_ASKPASS", "GIT_TRACE"))


def git(
    *arguments: str | Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> bytes:
    """Run a short git command: its output. Raises GitFailed."""
    try:
        done = subprocess.run(
            ["git", *map(str, arguments)],
            cwd=cwd,
            env=dict(env or environment()),
            input=given,
            capture_output=True,
        )
    except OSError as error:
        raise MachineError(f"git cannot be run: {error.strerror}; install it") from error
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise GitFailed(without_credentials(message), done.returncode)
    return done.stdout


def line(*arguments: str | Path, cwd: Path) -> str:
    """Run a git command that prints one line. Raises GitFailed."""
    return git(*arguments, cwd=cwd).decode(errors="replace").strip()


def without_credentials(text: str) -> str:
    """The text with the user and password of each address masked."""
    return _CREDENTIALS.sub("****@", text)


def find(path: Path | None) -> Path:
    """The top folder of the repository that holds a path (a bare one: itself). Raises UsageError."""
    if path is None:
        raise UsageError("commits come from a repository: give its folder, --repo PATH")
    folder = path.expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"--repo {path}: there is no such folder")
    try:
        if line("rev-parse", "--is-bare-repository", cwd=folder) == "true":
            return Path(line("rev-parse", "--absolute-git-dir", cwd=folder))
        return Path(line("rev-parse", "--show-toplevel", cwd=folder))
    except GitFailed as error:
        raise UsageError(f"--repo {path} is no git repository: {_last(str(error))}") from error


def enclosing(folder: Path) -> Path | None:
    """The top folder of the repository that a folder is in, as of a user's shell; None if it is in none."""
    try:
        return find(folder)
    except (UsageError, MachineError):
        return None


def commit_of(repo: Path, name: str, what: str = "revision") -> str:
    """The full name of a commit. Raises UsageError if there is none."""
    commit = known_commit(repo, name)
    if commit is None:
        shallow = " (it is a shallow clone: git fetch --unshallow)" if is_shallow(repo) else ""
        raise UsageError(
            f"{what} {name!r} is no commit of {repo}{shallow}{did_you_mean(name, tags_and_branches(repo))}; "
            "give a commit, tag or branch that it knows"
        )
    return commit


def known_commit(repo: Path, name: str) -> str | None:
    """The full name of a commit by its name, a tag or a branch; None if the repository has none.

    2.13.0 is also the tag v2.13.0, and v2.13.0 also the tag 2.13.0.
    """
    other = name[1:] if name.startswith("v") else f"v{name}"
    for word in (name, f"refs/tags/{other}") if re.match(r"v?\d+\.", name) else (name,):
        try:
            return line(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{word}^{{commit}}", cwd=repo
            )
        except GitFailed:
            pass
    return None


def merge_base(repo: Path, one: str, other: str) -> str | None:
    """The last commit that two commits have in common; None without one, or if a commit is missing."""
    try:
        return line("merge-base", one, other, cwd=repo) or None
    except GitFailed:  # its exit code where there is none
        return None


def commit_at(repo: Path, day: str, tip: str, what: str) -> str:
    """The last commit up to the end of a day (UTC), on the line of first parents of `tip`.

    Raises UsageError if all are later, or there is no such tip.
    """
    tip = commit_of(repo, tip, f"{what} {day}:")
    until = f"--before={day}T23:59:59Z"
    commit = line("rev-list", "--max-count=1", "--first-parent", until, "--end-of-options", tip, cwd=repo)
    if not commit:
        first = line("log", "--reverse", "--first-parent", "--format=%cs", tip, cwd=repo).splitlines()[0]
        raise UsageError(
            f"{what} {day}: {repo} has no commit yet on that day; its first is of {first}{if_shallow(repo)}"
        )
    return commit


def end_commit(repo: Path, name: str, tip: str, what: str) -> str:
    """The commit of an end of a range: by its name, a tag or a branch, else by a day before `tip`.

    Raises UsageError.
    """
    if End(name).kind == DATE and known_commit(repo, name) is None:
        return commit_at(repo, name, tip, what)
    return commit_of(repo, name, what)


def tags_and_branches(repo: Path) -> list[str]:
    """The short names of a repository's tags and branches."""
    return line("for-each-ref", "--format=%(refname:short)", "refs/tags", "refs/heads", cwd=repo).split()


def is_shallow(repo: Path) -> bool:
    """Whether it is a shallow clone."""
    return line("rev-parse", "--is-shallow-repository", cwd=repo) == "true"


def if_shallow(repo: Path) -> str:
    """The end of a message that a commit is missing, where it is a shallow clone."""
    return "; it is a shallow clone: git fetch --unshallow" if is_shallow(repo) else ""


def common_folder(repo: Path) -> Path:
    """The repository's .git folder; for a linked worktree, that of the main one."""
    return (repo / line("rev-parse", "--git-common-dir", cwd=repo)).resolve()


def origin(repo: Path) -> str:
    """The address of its remote, which may hold a password; empty if it has none."""
    try:
        return line("config", "--get", "remote.origin.url", cwd=repo)
    except GitFailed:
        return ""


def web_page(repo: Path) -> str | None:
    """The address of its pages, if its site shows commits under /commit/."""
    match = re.fullmatch(
        r"(?:https?://(?:[^/@]+@)?|ssh://git@|git@)((?:github|gitlab|codeberg)\.[a-z]+)[:/]([\w.-]+(?:/[\w.-]+)+)",
        origin(repo).removesuffix("/").removesuffix(".git"),
    )
    return f"https://{match[1]}/{match[2]}" if match else None


def changed_files(repo: Path) -> list[str] | None:
    """The tracked files with uncommitted changes; [] for a bare repository, None if git fails.

    They are compared in a temporary repository with a copy of the index, so that the user's index is not
    refreshed and none of their filters runs.
    """
    if line("rev-parse", "--is-bare-repository", cwd=repo) == "true":
        return []
    try:
        index = Path(line("rev-parse", "--path-format=absolute", "--git-path", "index", cwd=repo))
        head = line("rev-parse", "--verify", "--quiet", "HEAD", cwd=repo)
        with tempfile.TemporaryDirectory(prefix="perfdash-status-") as folder:
            own = Path(folder, "own.git")
            git("init", "--quiet", "--bare", "--template=", own, cwd=repo)
            (own / "objects" / "info").mkdir(parents=True, exist_ok=True)
            (own / "objects" / "info" / "alternates").write_text(f"{common_folder(repo) / 'objects'}\n")
            shutil.copyfile(index, Path(folder, "index"))
            env = environment({"core.bare": "false"})
            env.update(GIT_DIR=str(own), GIT_WORK_TREE=str(repo), GIT_INDEX_FILE=str(Path(folder, "index")))
            try:
                git("update-index", "-q", "--refresh", cwd=repo, env=env)
            except GitFailed:
                pass  # it fails if a file needs an update
            names = git("diff-index", "--name-only", "-z", "--ignore-submodules", head, cwd=repo, env=env)
    except (GitFailed, OSError):
        return None
    return [name.decode(errors="replace") for name in names.split(b"\0") if name]


def _last(text: str) -> str:
    return text.splitlines()[-1] if text else ""


_LABEL = 10  # characters of a commit's label


def reverted(repo: Path, bad: Revision, culprit: Revision, folder: Path) -> Revision:
    """Revert `culprit` on top of `bad`, in a repository in `folder`. The commit is the same each time.

    Raises UsageError if later changes touch the same lines, or this git is too old.
    """
    top = find(repo)
    _borrow(top, folder)
    form = "--format=%cI"
    when = line("show", "--no-patch", form, "--end-of-options", bad.id, cwd=folder)
    env = environment()
    for who in ("AUTHOR", "COMMITTER"):
        env.update({f"GIT_{who}_NAME": "perfdash", f"GIT_{who}_EMAIL": "", f"GIT_{who}_DATE": when})

    def commit(tree: str, parent: str, message: str) -> str:
        return git("commit-tree", tree, "-p", parent, "-m", message, cwd=folder, env=env).decode().strip()

    # Merge with the culprit as base: one side leads to bad, the other back to its parent.
    if not culprit.parents:
        raise UsageError(f"{culprit.label} cannot be taken back: it is a first commit")
    ours = commit(f"{bad.id}^{{tree}}", culprit.id, "bad")
    theirs = commit(f"{culprit.id}^1^{{tree}}", culprit.id, "before")
    try:
        tree = git("merge-tree", "--write-tree", ours, theirs, cwd=folder, env=env).decode().split()[0]
    except GitFailed as error:
        if error.code != 1:  # that of a conflict
            is_old = error.code == 129 or "--write-tree" in str(error)  # 129: of a wrong usage
            hint = " (git 2.38 or later is needed)" if is_old else ""
            raise UsageError(f"{culprit.label} cannot be reverted: {_last(str(error))}{hint}") from error
        raise UsageError(
            f"{culprit.label} cannot be reverted on top of {bad.label}: later changes touch the same lines"
        ) from error
    message = f"{bad.label} with {culprit.label} taken back"
    name = commit(tree, bad.id, message)
    return Revision(name, name[:_LABEL], message, parents=(bad.id,), date=when)


def _borrow(repo: Path, folder: Path) -> None:
    """Create an empty repository that reads the objects of another."""
    folder.mkdir(parents=True, exist_ok=True)
    form = line("rev-parse", "--show-object-format", cwd=repo)
    git("init", "--quiet", "--bare", "--template=", f"--object-format={form}", ".", cwd=folder)
    common = common_folder(repo)
    (folder / "objects" / "info").mkdir(parents=True, exist_ok=True)
    (folder / "objects" / "info" / "alternates").write_text(f"{common / 'objects'}\n")
    modules = folder / "modules"  # the user's clones of submodules
    if (common / "modules").is_dir() and not modules.is_symlink():
        modules.symlink_to(common / "modules", target_is_directory=True)
    if address := origin(repo):  # addresses of submodules may be relative to it
        bare = without_credentials(address).replace("****@", "") if address.startswith("http") else address
        git("config", "remote.origin.url", bare, cwd=folder)
    if is_shallow(repo):
        (folder / "shallow").write_bytes((common / "shallow").read_bytes())
