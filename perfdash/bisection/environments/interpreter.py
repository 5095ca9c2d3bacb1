"""The base interpreter (--python) below every environment: its version and packages."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from perfdash.child_environment import without_secrets
from perfdash.errors import MachineError, UsageError

_PIP = Version("22.3")  # knows --python, for another interpreter

# Runs under any Python from 3.8 on, without packages. There are hundreds of packages, most with a long
# description: it parses only the headers of their metadata, and these once.
_PROBE = """
import json, os, platform, sys, sysconfig
from email.parser import HeaderParser
from importlib import metadata
packages, requires = {}, {}
for found in metadata.distributions():
    try:
        text = found.read_text("METADATA") or found.read_text("PKG-INFO") or found.read_text("") or ""
        headers = HeaderParser().parsestr(text.partition("\\n\\n")[0])
        name, version = headers["Name"], headers["Version"]
        needs = headers.get_all("Requires-Dist")
        if needs is None and found.read_text("requires.txt"):  # as setup.py once wrote it
            needs = found.requires
    except Exception:  # half removed: it has no metadata
        continue
    if name and version and name not in packages:
        packages[name] = version
        requires[name] = needs or []
print(json.dumps({
    "version": sys.version, "abi": sysconfig.get_config_var("SOABI") or "",
    "platform": sysconfig.get_platform(),
    "packages": packages, "requires": requires,
    "markers": {
        "implementation_name": sys.implementation.name,
        "implementation_version": platform.python_version(),
        "os_name": os.name, "platform_machine": platform.machine(), "platform_release": platform.release(),
        "platform_system": platform.system(), "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "platform_python_implementation": platform.python_implementation(),
        "python_version": ".".join(platform.python_version_tuple()[:2]), "sys_platform": sys.platform,
    },
}))
"""
# Finds where packages would be imported from, without importing them.
_ORIGINS = """
import importlib.util, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        spec = importlib.util.find_spec(name)
    except Exception as error:
        found[name] = "%s: %s" % (type(error).__name__, error)
    else:
        found[name] = "" if spec is None else spec.origin or list(spec.submodule_search_locations or [""])[0]
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Interpreter:
    """The base interpreter. Names of packages are normalised (PEP 503)."""

    python: Path
    version: str
    abi: str
    platform: str
    packages: dict[str, str]
    requires: dict[str, tuple[str, ...]]
    markers: dict[str, str]

    @property
    def fingerprint(self) -> str:
        """A digest of all that environments depend on: the interpreter and its packages."""
        parts = [self.version, self.abi, self.platform, sorted(self.packages.items())]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def pip(self) -> list[str]:
        """The command of its own pip, or of the pip beside perfdash. Raises MachineError."""
        if Version(self.packages.get("pip", "0")) >= _PIP:
            return [str(self.python), "-m", "pip"]
        from importlib import metadata

        try:
            ours = metadata.version("pip")
        except metadata.PackageNotFoundError:
            ours = "0"
        if Version(ours) >= _PIP:
            return [sys.executable, "-m", "pip", "--python", str(self.python)]
        raise MachineError(
            f"{self.python} has no pip of {_PIP} or later: {self.python} -m ensurepip --upgrade"
        )


def probe(python: Path) -> Interpreter:
    """Ask an interpreter for its facts. Raises UsageError if it does not work."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE],
            capture_output=True,
            text=True,
            cwd="/",
            env=plain_environment(),
            timeout=300,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--python {python} cannot be run: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UsageError(f"--python {python} is no working interpreter: {last}")
    from packaging.utils import canonicalize_name

    try:
        facts = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise UsageError(f"--python {python} is no working interpreter: it prints no facts") from error
    return Interpreter(
        python=python,
        version=facts["version"],
        abi=facts["abi"],
        platform=facts["platform"],
        packages={canonicalize_name(name): version for name, version in facts["packages"].items()},
        requires={canonicalize_name(name): tuple(needs) for name, needs in facts["requires"].items()},
        markers=facts["markers"],
    )


def plain_environment(keep: re.Pattern[str] | None = None) -> dict[str, str]:
    """The variables of this process without secrets and without those that redirect an interpreter.

    keep: the names of secrets that stay; INDEXES for pip and builds, nothing for the user's code.
    """
    env = without_secrets(os.environ, keep)
    return {key: value for key, value in env.items() if key not in ("PYTHONHOME", "VIRTUAL_ENV")}


def origins(python: Path, names: list[str], variables: dict[str, str]) -> dict[str, str]:
    """The file that each module would be imported from; empty if it is not found."""
    if not names:
        return {}
    done = subprocess.run(
        [python, "-c", _ORIGINS, *names],
        capture_output=True,
        text=True,
        cwd="/",
        env={**plain_environment(), **variables},
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise MachineError(f"{python} fails on top of the build: {last}")
    files: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return files
