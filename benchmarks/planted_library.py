"""Changes that were planted in a small library, found again by `perfdash bisect` with real timings.

    python benchmarks/planted_library.py FOLDER [latency memory accuracy compile]

FOLDER gets a library with a git history of 33 commits and a submodule with 17. Five changes are planted at
places that --seed draws: 8 % more latency, a third more memory, outputs that are wrong when compiled, more
work of compiling, and in the submodule some 10 % more latency. Each is bisected by the whole command (torch,
workers, worktrees, pairs of fresh builds); a line says which commit was planted and which was found.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODEL = """\
import torch
from tinymodel.settings import EXTRA_LAYERS, KEPT, ROUNDS, WRONG
from kernels import mix


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(256, 256)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16 + n) for n in range(4 + EXTRA_LAYERS))

    def forward(self, x):
        kept = [torch.cat([x] * 8, 1).relu_() for _ in range(KEPT)]
        y = x
        for _ in range(ROUNDS):
            y = torch.tanh(self.first(y))
        y = mix(y)
        for number, layer in enumerate(self.layers):
            y = y + torch.sigmoid(layer(y[:, :16] * (number + 1)) ** 2).sum(1, keepdim=True) * 1e-3
        if WRONG and torch.compiler.is_compiling():
            y = y + 0.1
        return y + sum(k.sum() for k in kept) * 1e-9


def make(batch_size):
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(batch_size, 256),)
"""
KERNELS = """\
import torch

TURNS = {turns}


def mix(x):
    for _ in range(TURNS):
        x = torch.tanh(x @ torch.eye(x.shape[1]))
    return x
"""
RECIPE = """\
name = "library"
title = "commits of the library, its submodule checked out"
kind = "commits"

[[pins]]
name = "kernels"
submodule = "kernels"
repository = "{kernels}"
"""
# By name: the metric, the back end, and more options.
CHANGES: dict[str, list[str]] = {
    "latency": ["--metric", "eager"],
    "memory": ["--metric", "memory", "--backend", "aot-eager"],
    "accuracy": ["--metric", "accuracy", "--backend", "aot-eager"],
    "compile": ["--metric", "compile-cpu", "--backend", "inductor"],
}
COMMITS, INNER = 33, 17


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=Ann Author", "-c", "user.email=ann@example.org"]
    allowed = ["-c", "protocol.file.allow=always"]
    done = subprocess.run(
        ["git", *identity, *allowed, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(folder: Path, title: str, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", title)
    return git(folder, "rev-parse", "HEAD")


def make_library(home: Path, planted: dict[str, int]) -> tuple[list[str], list[str]]:
    """The library and its submodule. Returns the names of the commits of both."""
    kernels, library = home / "kernels", home / "library"
    for folder in (kernels, library):
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet", "--initial-branch=main")
    inner = [
        commit(
            kernels,
            f"Kernels {n}",
            {"__init__.py": KERNELS.format(turns=16 if n >= planted["inner"] else 13), "n": f"{n}\n"},
        )
        for n in range(INNER)
    ]
    git(library, "submodule", "--quiet", "add", str(kernels), "kernels")
    git(library / "kernels", "checkout", "--quiet", inner[0])
    outer = []
    for n in range(COMMITS):
        if n == planted["submodule"]:
            git(library / "kernels", "checkout", "--quiet", inner[-1])
        settings = {
            "ROUNDS": 54 if n >= planted["latency"] else 50,
            "KEPT": 8 if n >= planted["memory"] else 6,
            "WRONG": n >= planted["accuracy"],
            "EXTRA_LAYERS": 8 if n >= planted["compile"] else 0,
        }
        text = "".join(f"{name} = {value}\n" for name, value in settings.items())
        files = {"tinymodel/__init__.py": f"N = {n}\n", "tinymodel/settings.py": text}
        outer.append(commit(library, f"Library {n}", {**files, "tinymodel/model.py": MODEL}))
    return outer, inner


def bisect(home: Path, outer: list[str], words: list[str]) -> dict[str, Any]:
    """The report of one bisection; what it says on the way goes to standard error."""
    (home / "library.toml").write_text(RECIPE.format(kernels=home / "kernels"))
    (home / "model.py").write_text("from tinymodel.model import make\n")
    command = [
        *(sys.executable, "-m", "perfdash", "bisect", "--recipe", "library.toml", "--repo", "library"),
        *("--good", outer[0], "--bad", outer[-1], "--model", "model.py:make", "--batch-size", "64"),
        *("--pin-repo", f"kernels={home / 'kernels'}", "--no-history", "--json", "--wait", "1h", *words),
    ]
    done = subprocess.run(command, cwd=home, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("changes", nargs="*", default=list(CHANGES))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    places = draw.sample(range(2, COMMITS - 1), 5)
    planted = dict(zip(["latency", "memory", "accuracy", "compile", "submodule"], places, strict=True))
    planted["inner"] = draw.randrange(1, INNER)
    home = options.folder.absolute()
    outer, inner = make_library(home, planted)
    print(f"planted (commit of the library): {planted}", flush=True)
    for change in options.changes:
        began = time.monotonic()
        report = bisect(home, outer, CHANGES[change])
        print(f"{change}: {report['word']}, {time.monotonic() - began:.0f} s")
        for culprit in report["culprits"]:
            names = [revision["id"] for revision in culprit["revisions"]]
            whose, numbers = ("library", outer) if names[0] in outer else ("kernels", inner)
            at = ", ".join(str(numbers.index(name)) for name in names)
            step = culprit["change"]
            size = f"{step['ratio'] - 1:+.1%}" if step["ratio"] else ""
            print(f"  {whose} {at} {size} {culprit['confirmed']}, {culprit['confirmed_pairs']} pairs")
        counts = report["counts"]
        pairs = f"{counts['confirming']} to confirm"
        print(f"  {counts['builds']} builds, {counts['measurements']} measurements, {pairs}", flush=True)


if __name__ == "__main__":
    main()
