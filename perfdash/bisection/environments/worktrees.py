"""Worktrees for builds. They read the user's repository and never write to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfdash.bisection.environments import Unbuildable
from perfdash.bisection.environments.build_command import Commands
from perfdash.bisection.environments.cached_builder import remove
from perfdash.bisection.sources.git_repository import (
    GitFailed,
    common_folder,
    environment,
    git,
    is_shallow,
    line,
    origin,
    without_credentials,
)

_DEPTH = 6  # of submodules in submodules
_BUSY = "perfdash-busy"  # a file in .git while the worktree is in use; with _BUILDING in it during a build
_BUILDING = "building"


class Worktree:
    """A worktree with its own repository, which reads the objects of the user's (alternates)."""

    def __init__(self, repo: Path, folder: Path, commands: Commands) -> None:
        """Create it in `folder`, or repair the one there after a killed build."""
        self.repo = repo
        self.folder = folder
        self._commands = commands
        self._env = _environment(repo)
        busy = folder / ".git" / _BUSY
        self._half_built = busy.exists() and busy.read_text() == _BUILDING
        if busy.exists():
            for lock in (folder / ".git").rglob("*.lock"):
                lock.unlink(missing_ok=True)
        if not (folder / ".git" / "HEAD").exists():
            remove(folder)
            self._make()
        busy.touch()

    def building(self) -> None:
        """Mark it as half built until at_rest(): the next user cleans it."""
        (self.folder / ".git" / _BUSY).write_text(_BUILDING)

    def at_rest(self) -> None:
        """Mark it as no longer in use."""
        (self.folder / ".git" / _BUSY).unlink(missing_ok=True)

    def check_out(self, commit: str, submodules: bool, clean: bool = False) -> None:
        """Check out a commit; ignored files stay unless `clean`. Raises Unbuildable, MachineError."""
        clean = clean or self._half_built
        self._git(
            ("checkout", "--quiet", "--force", "--detach", commit),
            ("clean", "--quiet", "-ffdx" if clean else "-ffd"),
        )
        if submodules:
            self._fill(self.folder, common_folder(self.repo), clean, _DEPTH)

    def place_pin(self, place: str, is_file: bool, commit: str, repo: Path) -> None:
        """Set a pinned dependency to another commit, in the pin's file or its submodule."""
        there = self.folder / place
        if is_file:
            if not there.is_file():
                raise Unbuildable(f"there is no file {place} to pin another commit in")
            there.write_text(f"{commit}\n")
            return
        if not (there / ".git").exists():
            raise Unbuildable(f"there is no submodule {place} to check out another commit in")
        self._git(
            ("fetch", "--quiet", "--no-tags", str(repo), commit),
            ("checkout", "--quiet", "--force", "--detach", commit),
            folder=there,
        )
        self._fill(there, None, False, _DEPTH)

    def _make(self) -> None:
        """Create the repository without a clone; only tags are copied, since builds read versions there."""
        self.folder.mkdir(parents=True)
        form = line("rev-parse", "--show-object-format", cwd=self.repo)
        common = common_folder(self.repo)
        git("init", "--quiet", "--template=", f"--object-format={form}", ".", cwd=self.folder)
        own = self.folder / ".git"
        (own / "objects" / "info").mkdir(parents=True, exist_ok=True)
        (own / "objects" / "info" / "alternates").write_text(f"{common / 'objects'}\n")
        tags = git("for-each-ref", "--format=%(objectname) %(refname)", "refs/tags", cwd=self.repo)
        (own / "packed-refs").write_bytes(b"# pack-refs with: sorted \n" + tags)
        if is_shallow(self.repo):
            (own / "shallow").write_bytes((common / "shallow").read_bytes())

    def _fill(self, tree: Path, common: Path | None, clean: bool, depth: int) -> None:
        """Check out the submodules, from the user's clones of them if these have the commit."""
        listed = tree / ".gitmodules"
        if not listed.is_file() or not depth:
            return
        for name, path in _listed(tree):
            commit = _pinned(tree, path)
            if commit is None:
                continue
            if not (tree / path / ".git").exists() and not (tree / path).is_symlink():
                remove(tree / path)  # left from another commit because of an ignored file in it
            local = common / "modules" / name if common else None
            update = ("submodule", "--quiet", "update", "--init", "--force", "--checkout", "--", path)
            if local is None or not _has(local, commit):
                local = None
                from_remote = [("submodule", "--quiet", word, "--", path) for word in ("init", "sync")]
                self._git(*from_remote, update, folder=tree)
            else:
                git("config", f"submodule.{name}.url", local, cwd=tree, env=self._env)
                if (tree / path / ".git").exists():
                    git("config", "remote.origin.url", local, cwd=tree / path, env=self._env)
                self._git(update, folder=tree)
            self._git(("clean", "--quiet", "-ffdx" if clean else "-ffd"), folder=tree / path)
            self._fill(tree / path, local, clean, depth - 1)

    def _git(self, *commands: Sequence[str], folder: Path | None = None) -> None:
        """Run git once for each of its arguments. Raises Unbuildable with what the failed one said."""
        words = [("git", *command) for command in commands]
        if self._commands.run_all(words, cwd=folder or self.folder, env=self._env):
            command, *output = self._commands.text().rpartition("\n$ git ")[2].splitlines() or [""]
            errors = [text for text in output if text.startswith(("fatal: ", "error: "))] or output or [""]
            raise Unbuildable(
                f"git {command.removeprefix('$ git ').partition(' ')[0]}: "
                + errors[0].removeprefix("fatal: ").removeprefix("error: ")
            )


def _environment(repo: Path) -> dict[str, str]:
    """The variables of git in a worktree. Relative addresses of submodules start at the user's origin.

    A password in that address is written to no file: git adds it when it uses the address.
    """
    address = origin(repo) or str(repo)
    bare = without_credentials(address).replace("****@", "")
    more = {"remote.origin.url": bare}
    if bare != address:
        scheme, _, rest = address.partition("://")
        host = f"{scheme}://{rest.partition('/')[0]}/"
        more[f"url.{host}.insteadOf"] = f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}/"
    return environment(more)


def _listed(tree: Path) -> list[tuple[str, str]]:
    """(name, path) of each submodule that .gitmodules lists."""
    try:
        output = git(
            "config", "-z", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$", cwd=tree
        )
    except GitFailed:
        return []
    submodules = []
    for entry in output.decode(errors="surrogateescape").split("\0"):
        key, _, path = entry.partition("\n")
        name = key.removeprefix("submodule.").removesuffix(".path")
        if name and path and ".." not in Path(name).parts and not os.path.isabs(name):
            submodules.append((name, path))
    return submodules


def _pinned(tree: Path, path: str) -> str | None:
    """The commit of a submodule; None if the path is not a submodule."""
    entry = git("ls-files", "--stage", "-z", "--", path, cwd=tree).decode(errors="replace")
    return entry.split(" ")[1] if entry.startswith("160000 ") else None


def _has(repo: Path, commit: str) -> bool:
    if not (repo / "objects").is_dir():
        return False
    try:
        env: Mapping[str, str] = {**environment(), "GIT_DIR": str(repo)}
        git("cat-file", "-e", f"{commit}^{{commit}}", cwd=repo, env=env)
    except GitFailed:
        return False
    return True
