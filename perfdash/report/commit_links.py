"""The commits between two builds: which packages changed, and where that can be read. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from perfdash.records import COMMIT_IN_WHEEL

# Where pip takes a package from its index, nothing says where it is developed.
REPOSITORIES = {
    "torch": "https://github.com/pytorch/pytorch",
    "torchao": "https://github.com/pytorch/ao",
    "torchaudio": "https://github.com/pytorch/audio",
    "torchvision": "https://github.com/pytorch/vision",
    "triton": "https://github.com/triton-lang/triton",
    "timm": "https://github.com/huggingface/pytorch-image-models",
    "transformers": "https://github.com/huggingface/transformers",
}
_PACKAGES = 3  # packages with a changed commit that are named; the rest are left out
_SHOWN = 10  # characters of a commit
_LINKED = 12
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BY_SSH = re.compile(r"(?:[\w.-]+@)?([\w.-]+\.[a-z]+):(?!//)(.+)")


class BuildCommits(Protocol):
    """What was measured: torch and its commit, the commits of packages, and where pip took these from."""

    @property
    def torch(self) -> str | None: ...
    @property
    def torch_git_version(self) -> str | None: ...
    @property
    def commits(self) -> Mapping[str, str]: ...
    @property
    def repositories(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class CommitRange:
    """A package between two builds. `old`, `new`: commit or version, with the name unless it is torch.

    `address`: where the commits between them can be read; None where that is not known.
    """

    package: str
    old: str
    new: str
    address: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether both builds have the same commit."""
        return self.old == self.new


def commit_ranges(good: BuildCommits | None, bad: BuildCommits | None) -> list[CommitRange]:
    """torch's commits between two builds; where these are equal, the packages whose commit changed."""
    if good and bad and good.torch_git_version == bad.torch_git_version:
        # Runs of an older perfdash have no commits of these wheels.
        unknown = COMMIT_IN_WHEEL.keys() - good.commits.keys()
        names = [name for name, commit in bad.commits.items() if good.commits.get(name) != commit]
        names = [name for name in names if name not in unknown]
        if names:
            return [_package_range(name, good, bad) for name in names[:_PACKAGES]]
    old, new = (build.torch_git_version if build else None for build in (good, bad))
    address = compare_address(REPOSITORIES["torch"], old, new)
    return [CommitRange("torch", _torch_words(good), _torch_words(bad), address)]


def _package_range(name: str, good: BuildCommits, bad: BuildCommits) -> CommitRange:
    old, new = good.commits.get(name), bad.commits.get(name)
    words = [f"{name} {(commit or '?')[:_SHOWN]}" for commit in (old, new)]
    repository = bad.repositories.get(name) or REPOSITORIES.get(name.lower())
    return CommitRange(name, words[0], words[1], compare_address(repository, old, new))


def _torch_words(build: BuildCommits | None) -> str:
    return ((build.torch_git_version or build.torch or "?") if build else "?")[:_SHOWN]


def compare_address(repository: str | None, old: str | None, new: str | None) -> str | None:
    """The page of a repository that shows the commits from `old` to `new`.

    None where they are equal, or one of them or the repository's web address is not known.
    """
    web = web_address(repository or "")
    if web is None or old == new or not all(_COMMIT.fullmatch(commit or "") for commit in (old, new)):
        return None
    compare = "/-/compare/" if "gitlab" in (urlsplit(web).hostname or "") else "/compare/"
    return f"{web}{compare}{(old or '')[:_LINKED]}...{(new or '')[:_LINKED]}"


def web_address(repository: str) -> str | None:
    """Where a repository is seen in a browser, by the address that git takes; None for a folder.

    Without account and password, and without anything that is no part of a repository's address.
    """
    by_ssh = _BY_SSH.fullmatch(repository)
    if by_ssh:
        repository = f"ssh://{by_ssh[1]}/{by_ssh[2]}"
    try:
        parts = urlsplit(repository.removeprefix("git+"))
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    path = parts.path.strip("/").removesuffix(".git")
    if parts.scheme not in ("http", "https", "ssh", "git") or not host or "." not in host:
        return None
    if not re.fullmatch(r"[\w.~-]+(/[\w.~-]+)+", path):
        return None
    is_web = parts.scheme in ("http", "https")
    scheme, place = (parts.scheme, f":{port}") if is_web and port else ("https", "")
    return f"{scheme}://{host}{place}/{path}"
