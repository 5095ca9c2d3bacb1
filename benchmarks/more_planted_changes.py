"""Plant ten more changes, of a second author, and let `perfdash explain` say what changed.

python benchmarks/more_planted_changes.py FOLDER STEP [NAME ...] --old-torch /venv/with/torch-2.13/bin/python

STEP is `measure` (both runs and the explanation), `profile` or `reproducer`. Each change has its
model in FOLDER/NAME.py and answers in FOLDER/NAME.txt; results/explained.md has the answers and the verdicts.
"""

import argparse
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

"""

BY_HAND = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(128, 384)
        self.out = nn.Linear(128, 128)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (u.view(b, t, 4, 32).transpose(1, 2) for u in self.qkv(x).chunk(3, -1))
        weights = torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / 32**0.5, dim=-1)
        return x + self.out(torch.matmul(weights, v).transpose(1, 2).reshape(b, t, c))


def make(batch_size):
    return Net().eval(), (torch.randn(batch_size, 256, 128),)
"""
)

POOLS = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 16, 3, padding=1)
        self.b = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.n = nn.GroupNorm(4, 16)
        self.last = nn.Linear(16, 10)

    def forward(self, x):
        y = F.max_pool2d(F.silu(self.n(self.a(x))), 2)
        y = F.interpolate(F.hardswish(self.b(y)), scale_factor=2.0, mode="bilinear")
        return F.log_softmax(self.last(y.mean((2, 3))), -1)


def make(batch_size):
    return Net().eval(), (torch.randn(batch_size, 3, 48, 48),)
"""
)

TWO_LINEAR = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(192, 192)
        self.b = nn.Linear(192, 48)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def make(batch_size):
    return Net(), (torch.randn(batch_size, 192),)
"""
)

MUL_AND_SUM = TWO_LINEAR.replace(
    "self.b(torch.tanh(self.a(x)))",
    "(torch.tanh(self.a(x)).unsqueeze(1) * self.b.weight).sum(-1) + self.b.bias",
)

GATED = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(128, 512)
        self.b = nn.Linear(128, 512)

    def forward(self, x):
        return F.silu(self.a(x)) * self.b(x)


def make(batch_size):
    return Net(), (torch.randn(batch_size, 128),)
"""
)

SLOW_IN_EAGER = GATED.replace(
    "        return F.silu(self.a(x)) * self.b(x)\n",
    "        gate = self.a(x)\n"
    "        if torch.compiler.is_compiling():\n"
    "            return F.silu(gate) * self.b(x)\n"
    "        return (gate.double() * torch.sigmoid(gate.double())).float() * self.b(x)\n",
)

SCORES = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(64, 64)
        self.k = nn.Linear(64, 64)
        self.kept = None

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-2, -1)
        return torch.softmax(scores, -1).amax(-1)


def make(batch_size):
    return Net().eval(), (torch.randn(batch_size, 512, 64),)
"""
)

KEPT_SCORES = SCORES.replace(
    "        return torch.softmax(scores, -1).amax(-1)\n",
    "        self.kept = scores.sigmoid()\n        return torch.softmax(scores, -1).amax(-1)\n",
)

ROUNDED_SILU = """

def rounded_silu(x):
    return torch.round(x * torch.sigmoid(x) * 16) / 16


from torch._inductor.decomposition import decompositions

decompositions[torch.ops.aten.silu.default] = rounded_silu
"""

SCALED = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(128, 128)
        self.b = nn.Linear(128, 128)

    def scale(self, x):
        return x * 0.5 + 1

    def forward(self, x):
        return self.b(self.scale(torch.relu(self.a(x)))).sigmoid()


def make(batch_size):
    return Net(), (torch.randn(batch_size, 128),)
"""
)

NOT_COMPILED = SCALED.replace("    def scale(", "    @torch.compiler.disable\n    def scale(")

ALTERNATING = SCALED.replace(
    "    def forward(self, x):\n",
    "    def forward(self, x):\n"
    "        global PARITY\n"
    '        PARITY = "odd" if PARITY == "even" else "even"\n'
    '        if PARITY == "odd":\n'
    "            return self.b(self.scale(self.a(x).clamp_min(0.0))).sigmoid()\n",
).replace("\nclass Net", '\nPARITY = "even"\n\n\nclass Net')

MATMULS = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(384, 384)
        self.b = nn.Linear(384, 384)

    def forward(self, x):
        return self.b(F.elu(self.a(x)))


def make(batch_size):
    return Net(), (torch.randn(batch_size, 384),)
"""
)

CHAIN = (
    HEAD
    + """

class Net(nn.Module):
    def forward(self, x, y):
        z = torch.tanh(x * 1.5) + y.abs()
        z = torch.sin(z) - y
        z = z * z + 0.25
        return torch.atan(z) * x


def make(batch_size):
    return Net(), (torch.randn(batch_size, 2048), torch.randn(batch_size, 2048))
"""
)

SPLIT_CHAIN = CHAIN.replace(
    "        z = z * z + 0.25\n", "        z = torch.ops.planted.barrier(z)\n        z = z * z + 0.25\n"
).replace(
    "\nclass Net",
    """\
@torch.library.custom_op("planted::barrier", mutates_args=())
def barrier(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@barrier.register_fake
def _(x):
    return torch.empty_like(x)


class Net""",
)


@dataclasses.dataclass(frozen=True)
class Change:
    """A planted change: the model's files, options and variables, before and after."""

    before: str
    after: str
    batch: int
    options_before: tuple[str, ...] = ()
    options_after: tuple[str, ...] = ()
    variables_after: tuple[tuple[str, str], ...] = ()


OLD_TORCH = "OLD_TORCH"

CHANGES = {
    "patterns": Change(BY_HAND, BY_HAND, 8, (), ("--inductor-config", "pattern_matcher=False")),
    "release": Change(POOLS, POOLS, 4, ("--python", OLD_TORCH), ()),
    "linear": Change(TWO_LINEAR, MUL_AND_SUM, 512),
    "eager-silu": Change(GATED, SLOW_IN_EAGER, 1024),
    "kept": Change(SCORES, KEPT_SCORES, 8),
    "rounded": Change(GATED, GATED + ROUNDED_SILU, 64),
    "disabled": Change(SCALED, NOT_COMPILED, 64),
    "parity": Change(SCALED, ALTERNATING, 64),
    "mkl": Change(MATMULS, MATMULS, 512, variables_after=(("MKL_CBWR", "COMPATIBLE"),)),
    "chain": Change(CHAIN, SPLIT_CHAIN, 256),
}


def write(folder: Path, names: list[str], after: bool) -> None:
    """Write the models of one side, each in the file that both sides share."""
    for name in names:
        change = CHANGES[name]
        source = change.after if after else change.before
        (folder / f"{name}.py").write_text(source.replace("randn(batch_size", f"randn({change.batch}"))


def measure(folder: Path, names: list[str], side: str, cores: list[str], old_torch: str) -> None:
    """Measure one side: a run for all changes that share options and variables."""
    write(folder, names, side == "after")
    groups: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...]], list[str]] = {}
    for name in names:
        change = CHANGES[name]
        options = change.options_after if side == "after" else change.options_before
        groups.setdefault((options, change.variables_after if side == "after" else ()), []).append(name)
    for (options, variables), group in groups.items():
        models = [word for name in group for word in ("--model", f"{name}.py:make")]
        words = [old_torch if word == OLD_TORCH else word for word in options]
        out = folder / side / group[0]
        perfdash(
            folder,
            "runs",
            variables,
            "run",
            *models,
            "--processes",
            "1",
            "--no-history",
            "--out",
            str(out),
            *words,
            *cores,
        )
        (run,) = out.glob("20*")
        for name in group:
            (folder / f"{name}.{side}").write_text(str(run))


def explain(folder: Path, name: str, *words: str) -> None:
    """Explain a change, in the shell that the newer run was measured in."""
    old, new = ((folder / f"{name}.{side}").read_text() for side in ("before", "after"))
    perfdash(
        folder,
        name,
        CHANGES[name].variables_after,
        "explain",
        new,
        "*" + name + "*",
        "--against",
        old,
        *words,
    )


def perfdash(folder: Path, transcript: str, variables: tuple[tuple[str, str], ...], *words: str) -> None:
    """Run perfdash in the folder and add its output and exit code to a transcript."""
    command = [sys.executable, "-m", "perfdash", *words]
    environment = {**os.environ, **dict(variables)}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with open(folder / f"{transcript}.txt", "a") as file:
        shown = " ".join([*("=".join(pair) for pair in variables), "perfdash", *words])
        file.write(f"$ {shown}\n{done.stdout}[exit code {done.returncode}]\n\n")


def main() -> None:
    """Take one step of the changes that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("step", choices=["measure", "profile", "reproducer"])
    parser.add_argument("names", nargs="*", help="of all by default: " + ", ".join(CHANGES))
    parser.add_argument("--old-torch", required=True, help="an interpreter with torch 2.13")
    parser.add_argument("--cores", help="which cores to measure on")
    parser.add_argument("--pairs", default="5", help="pairs of processes of a profile")
    options = parser.parse_args()
    cores = ["--cores", options.cores] if options.cores else []
    names = options.names or list(CHANGES)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.step == "measure":
        for side in ("before", "after"):
            measure(folder, names, side, cores, options.old_torch)
    for name in names:
        if options.step == "measure":
            explain(folder, name)
        else:
            words = ["--profile"] if options.step == "profile" else ["--reproducer", f"reproducer-{name}"]
            explain(folder, name, *words, "--pairs", options.pairs, *cores)


if __name__ == "__main__":
    main()
