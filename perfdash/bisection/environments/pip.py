"""Run pip: list versions, set its variables, and explain why an installation failed."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from perfdash.bisection.environments.interpreter import Interpreter, plain_environment
from perfdash.bisection.sources.git_repository import without_credentials
from perfdash.child_environment import INDEXES
from perfdash.errors import MachineError, UsageError

# Keys of pip's configuration that say how to reach an index, not which one.
_CONNECTION = (
    "cert",
    "client-cert",
    "proxy",
    "trusted-host",
    "timeout",
    "retries",
    "keyring-provider",
    "cache-dir",
)
# Variables that would make pip install elsewhere, nothing, or something else.
_ELSEWHERE = (
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_DRY_RUN",
    "PIP_CONSTRAINT",
    "PIP_REQUIREMENT",
    "PIP_EDITABLE",
    "PIP_REQUIRE_HASHES",
    "PIP_PYTHON",
)
_PLACES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE")
_UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeout|ReadTimeout|Temporary failure in name resolution|"
    r"Name or service not known|connection broken by|Max retries exceeded|"
    r"Connection reset by peer|Could not fetch URL|"
    r"unable to access '|Failed to connect to|Could not resolve host|Connection (?:refused|timed out)|"
    r"40[13] Error, Credentials not correct|HTTP error [45]\d\d while getting|IncompleteRead|"
    r"IncompleteDownload|DO NOT MATCH THE HASHES|"
    r"fatal: could not read (?:Username|Password) for|Authentication failed for '|"
    r"Permission denied \(publickey|Host key verification failed|RPC failed|early EOF"
)
_NO_MEMORY = re.compile(
    r"Killed signal terminated program|(?:cc1(?:plus)?|ld|as|collect2|clang|nvcc|ptxas)\S*: .*out of memory|"
    r"virtual memory exhausted|Cannot allocate memory|std::bad_alloc|^MemoryError",
    re.MULTILINE,
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded|OSError: \[Errno (28|122)\]")


@dataclass(frozen=True)
class WheelSource:
    """The user's wheels: a folder, a page with links, or an index (PEP 503)."""

    address: str = field(repr=False)  # may hold a password
    index: bool

    @classmethod
    def read(cls, text: str, package: str) -> WheelSource:
        """Read --wheels. Raises UsageError if it is neither a folder nor an address."""
        if "://" in text:
            return cls(text, index=not text.endswith((".html", ".htm")))
        folder = Path(text).expanduser().resolve()
        if not folder.is_dir():
            raise UsageError(
                f"--wheels {text}: there is no such folder (an index is given by its address, https://...)"
            )
        own = [folder / package, folder / canonicalize_name(package)]
        if any(place.is_dir() for place in own) and not any(folder.glob("*.whl")):
            return cls(folder.as_uri(), index=True)
        return cls(str(folder), index=False)

    @property
    def one_word(self) -> str:
        """Its address without spaces, for a variable that lists addresses."""
        return self.address if "://" in self.address else Path(self.address).as_uri()

    def __str__(self) -> str:
        return without_credentials(self.address)


def environment(
    base: Interpreter, links: WheelSource | None, also_configured: bool = False
) -> dict[str, str]:
    """The variables of pip. With `links`, packages come only from there, whatever is configured.

    The address is in a variable because it may hold a password: others on the machine can read arguments.
    also_configured: packages also come from the user's own index.
    """
    env = plain_environment(INDEXES)
    env.update(PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PIP_REQUIRE_VIRTUALENV="0")
    for key in _ELSEWHERE:
        env.pop(key, None)
    if links is None:
        return env
    if also_configured:
        key = "PIP_EXTRA_INDEX_URL" if links.index else "PIP_FIND_LINKS"
        configured = _configured(tuple(base.pip())).get(f"global.{key[4:].lower().replace('_', '-')}", "")
        before = env.get(key) or configured
        return {**env, key: f"{before} {links.one_word}".strip()}
    for name, value in _configured(tuple(base.pip())).items():
        if name.partition(".")[2] in _CONNECTION:
            env[f"PIP_{name.partition('.')[2].upper().replace('-', '_')}"] = value
    for key in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_PRE"):
        env.pop(key, None)
    env["PIP_CONFIG_FILE"] = os.devnull
    if links.index:
        return {**env, "PIP_INDEX_URL": links.address}
    return {**env, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": links.one_word}


def configured_places() -> str:
    """The indexes that the user's variables name, without credentials; empty if none."""
    places = [f"{key}={os.environ[key]}" for key in _PLACES if os.environ.get(key)]
    return without_credentials(" ".join(places))


def versions(
    base: Interpreter, package: str, *, pre: bool, only_binary: bool, links: WheelSource | None
) -> list[str]:
    """The versions for this interpreter, without yanked ones. Raises UsageError, MachineError."""
    command = [*base.pip(), "index", "versions", package, *(["--pre"] if pre else [])]
    command += ["--only-binary", ":all:"] if only_binary else []
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", cwd="/", env=environment(base, links)
    )
    listed = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if done.returncode == 0 and listed:
        return listed[1].split(", ")
    errors = without_credentials(done.stderr)
    if _UNREACHABLE.search(errors):
        raise MachineError(f"the index of {package} cannot be reached: {complaint(errors)}")
    place, hint = str(links), "the wheels"
    if links is None:
        place, hint = "the index that pip is configured for", "`pip config list`"
    raise UsageError(
        f"no version of {package} that suits {base.python} in {place}: {complaint(errors)}; "
        f"check the name and {hint}"
    )


def wheel_version(file: Path | str, package: str) -> Version | None:
    """The version in a wheel's file name. None if it is another package's or not a wheel's."""
    try:
        name, version, _, _ = parse_wheel_filename(Path(file).name)
    except (InvalidWheelFilename, InvalidVersion):
        return None
    return version if name == canonicalize_name(package) else None


def complaint(output: str) -> str:
    """The line of pip's output that names the error, without credentials."""
    lines = [line.strip() for line in without_credentials(output).splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    causes = [line for line in errors if "No matching distribution" not in line] or errors
    return (causes or lines or ["it said nothing"])[0 if causes else -1]


def machine_fault(output: str) -> str | None:
    """The reason of a failure of the machine (disk, memory, network). None for others."""
    if _FULL.search(output):
        return "there is no space left"
    if _NO_MEMORY.search(output):
        return "the memory did not suffice"
    if _UNREACHABLE.search(output):
        return f"the network failed: {complaint(output)}"
    return None


@functools.cache
def _configured(pip: tuple[str, ...]) -> Mapping[str, str]:
    """The user's pip configuration: {"global.cert": "/etc/..."}."""
    done = subprocess.run(
        [*pip, "config", "list"], capture_output=True, text=True, cwd="/", env=plain_environment(INDEXES)
    )
    lines = re.findall(r"^([\w:.-]+)='(.*)'$", done.stdout, re.MULTILINE)
    return {key: value.replace("\\n", " ") for key, value in lines}
