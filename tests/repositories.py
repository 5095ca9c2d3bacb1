"""Git repositories that tests make: commits by what changes, and a picture of a folder byte for byte."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
from pathlib import Path


class Repository:
    """A repository with one author; each commit a minute after the one before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clock = itertools.count(1_700_000_000, 60)
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        with open(folder / ".git" / "config", "a") as file:
            file.write("[user]\n\tname = Ann Author\n\temail = ann@example.org\n")

    def git(self, *words: str | Path, stamp: int | None = None) -> str:
        env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        when = f"{stamp or 1_700_000_000} +0000"
        env.update(GIT_AUTHOR_DATE=when, GIT_COMMITTER_DATE=when, GIT_CONFIG_NOSYSTEM="1")
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *map(str, words)],
            cwd=self.folder, env=env, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"git {words}: {done.stderr}"
        return done.stdout.strip()

    def write(self, files: dict[str, str | None]) -> None:
        for name, text in files.items():
            path = self.folder / name
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def commit(self, message: str, files: dict[str, str | None] | None = None) -> str:
        """Its full name."""
        self.write(files or {})
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--no-verify", "-m", message, stamp=next(self._clock))
        return self.head

    def merge(self, branch: str) -> str:
        self.git("merge", "--quiet", "--no-ff", "--no-edit", branch, stamp=next(self._clock))
        return self.head

    @property
    def head(self) -> str:
        """The full name of the commit, read without git: it would start once more for each commit."""
        name = (self.folder / ".git" / "HEAD").read_text().strip()
        branch = self.folder / ".git" / name.removeprefix("ref: ")
        return branch.read_text().strip() if branch.is_file() else self.git("rev-parse", "HEAD")


def picture(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Content, mode and time of change of every file below a folder, .git included."""
    files = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        data = b"" if path.is_dir() or path.is_symlink() else path.read_bytes()
        files[str(path.relative_to(folder))] = (
            hashlib.sha256(data).hexdigest(), info.st_mode, 0 if path.is_dir() else info.st_mtime_ns,
        )  # fmt: skip
    return files
