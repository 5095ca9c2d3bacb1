"""Environments that tests make of commits: recipes of their own, what is listed, what Python says there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from perfdash.bisection.environments.interpreter import plain_environment
from perfdash.bisection.recipes import load_recipe
from perfdash.bisection.sources import open_source


def ask(built, statement):
    env = {**plain_environment(), **built.variables()}
    done = subprocess.run([built.python, "-c", statement], env=env, capture_output=True, text=True, cwd="/")
    return done.stdout.strip() or done.stderr.strip()


def listed(recipe, where, good=None, bad="main"):
    source = open_source(recipe, where)
    good = good or subprocess.run(
        ["git", "rev-list", "--max-parents=0", "main"], cwd=where.repo, capture_output=True, text=True
    ).stdout.split()[0]  # fmt: skip
    return source, source.revisions(good, bad)


def own(tmp_path, text, name="own"):
    path = tmp_path / f"{name}.toml"
    path.write_text(f'name = "{name}"\nkind = "commits"\n{text}')
    return load_recipe(str(path))


def sleeping(seconds: str) -> bool:
    """Whether a process sleeps so long."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if Path("/proc", entry, "cmdline").read_bytes().split(b"\0")[:2] == [
                    b"sleep",
                    seconds.encode(),
                ]:
                    return True
            except OSError:
                pass
    return False
