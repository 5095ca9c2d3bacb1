"""Plant ten changes in small models and let `perfdash explain` say what changed.

python benchmarks/planted_changes.py FOLDER --old-torch /venv/with/torch-2.13/bin/python [NAME ...]

Each change is measured before and after, and explained, in FOLDER/NAME. What the answers said,
and whether they were right, is in results/explained.md.
"""

import argparse
import dataclasses
import subprocess
import sys
from pathlib import Path

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

"""

NORMS = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(512, 512)
        self.b = nn.Linear(512, 512)
        self.n = nn.LayerNorm(512)

    def forward(self, x):
        y = F.gelu(self.n(self.a(x)))
        y = torch.softmax(torch.tanh(y) * 3 + torch.sin(x), -1)
        return self.b(y).sigmoid() + torch.exp(-x.abs())


def make(batch_size):
    return Net(), (torch.randn(batch_size, 512),)
"""
)

ROWS = (
    HEAD
    + """
class Net(nn.Module):
    def forward(self, x):
        a = torch.softmax(x, -1)
        b = torch.softmax(x * 2 + 1, -1)
        c = F.layer_norm(x, (1024,))
        return a - a.mean(-1, keepdim=True), b * c, c.amax(-1)


def make(batch_size):
    return Net(), (torch.randn(batch_size, 1024),)
"""
)

BLOCK = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(256, 768)
        self.out = nn.Linear(256, 256)
        self.up = nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)
        self.n = nn.LayerNorm(256)
        self.m = nn.LayerNorm(256)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (u.view(b, t, 4, 64).transpose(1, 2) for u in self.qkv(self.n(x)).chunk(3, -1))
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.m(x))))


def make(batch_size):
    return Net().eval(), (torch.randn(batch_size, 128, 256),)
"""
)

GELU = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(256, 1024)
        self.b = nn.Linear(1024, 256)

    def forward(self, x):
        return self.b(F.gelu(self.a(x)))


def make(batch_size):
    return Net(), (torch.randn(batch_size, 256),)
"""
)

SLOW_GELU = """

def slow_gelu(x, *, approximate="none"):
    for _ in range(2):
        y = torch.ops.aten.gelu.out(x, approximate=approximate, out=torch.empty_like(x))
    return y


library = torch.library.Library("aten", "IMPL")
library.impl("gelu", slow_gelu, "CPU")
"""

STAGES = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(6))
        self.last = nn.Linear(512, 8)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x)


def make(batch_size):
    return Net(), (torch.randn(batch_size, 512),)
"""
)

KEPT = STAGES.replace(
    """\
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x)
""",
    """\
        kept = []
        for layer in self.layers:
            x = torch.relu(layer(x))
            kept.append(x)
        return self.last(torch.stack(kept).mean(0))
""",
)

RELUS = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(256, 256)
        self.b = nn.Linear(256, 256)
        self.n = nn.LayerNorm(256)

    def forward(self, x):
        y = F.silu(self.a(x)) + torch.tanh(x)
        y = torch.relu(self.b(self.n(y)) + y)
        return torch.softmax(y * 0.5, -1) * 100


def make(batch_size):
    return Net(), (torch.randn(batch_size, 256),)
"""
)

TWO_HALVES = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(256, 256)
        self.b = nn.Linear(256, 256)

    def forward(self, x):
        y = torch.relu(self.a(x))
        return torch.tanh(self.b(y))


def make(batch_size):
    return Net(), (torch.randn(batch_size, 256),)
"""
)

BROKEN = TWO_HALVES.replace(
    "        return torch.tanh",
    "        if y.amax().item() > 1e6:\n            y = y / y.amax()\n        return torch.tanh",
)

PHASES = TWO_HALVES.replace(
    "        y = torch.relu(self.a(x))\n",
    "        self.phase = (self.phase + 1) % 3\n"
    "        y = torch.relu(self.a(x)) if self.phase == 0 else self.a(x).clamp_min(0)\n",
).replace("super().__init__()\n", "super().__init__()\n        self.phase = 0\n")

CONVS = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 32, 3, padding=1)
        self.b = nn.Conv2d(32, 32, 3, padding=1)
        self.n = nn.BatchNorm2d(32)

    def forward(self, x):
        return F.adaptive_avg_pool2d(F.relu(self.n(self.b(F.relu(self.a(x))))), 1)


def make(batch_size):
    return Net().eval(), (torch.randn(batch_size, 3, 56, 56),)
"""
)


@dataclasses.dataclass(frozen=True)
class Change:
    """A planted change: sources of the model and options of `perfdash run`, before and after."""

    before: str
    after: str
    batch: int
    options_before: tuple[str, ...] = ()
    options_after: tuple[str, ...] = ()
    explain: tuple[str, ...] = ()


PROFILE = ("--profile",)
REPRODUCER = ("--reproducer", "reproducer")
OLD_TORCH = "OLD_TORCH"

CHANGES = {
    "simdlen": Change(NORMS, NORMS, 256, (), ("--inductor-config", "cpp.simdlen=1"), REPRODUCER),
    "fusion": Change(ROWS, ROWS, 1024, (), ("--inductor-config", "max_fusion_size=1"), REPRODUCER),
    "torch": Change(BLOCK, BLOCK, 4, ("--python", OLD_TORCH), (), PROFILE),
    "attention": Change(
        BLOCK,
        BLOCK.replace(
            "F.scaled_dot_product_attention(q, k, v)",
            "torch.softmax(q @ k.transpose(-2, -1) / 8, -1) @ v",
        ),
        4,
        explain=PROFILE,
    ),
    "eager": Change(GELU, GELU + SLOW_GELU, 1024, explain=REPRODUCER),
    "memory": Change(STAGES, KEPT, 2048, explain=PROFILE),
    "accuracy": Change(
        RELUS, RELUS, 64, (), ("--inductor-config", "cpp.inject_relu_bug_TESTING_ONLY=accuracy"), REPRODUCER
    ),
    "break": Change(TWO_HALVES, BROKEN, 64),
    "recompile": Change(TWO_HALVES, PHASES, 64),
    "onednn": Change(CONVS, CONVS, 4, (), ("--env", "ONEDNN_MAX_CPU_ISA=SSE41"), REPRODUCER),
    "nothing": Change(GELU, GELU, 1024),
}


def measure(folder: Path, source: str, batch: int, options: list[str]) -> None:
    """Write the model and measure it, with all that is printed in the folder's transcript."""
    (folder / "net.py").write_text(source)
    run = ("run", "--model", "net.py:make", "--batch-size", str(batch), "--processes", "1", "--out", "runs")
    perfdash(folder, *run, *options)


def perfdash(folder: Path, *words: str) -> None:
    """Run perfdash in the folder and add its output and exit code to transcript.txt."""
    command = [str(Path(sys.executable).with_name("perfdash")), *words]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with open(folder / "transcript.txt", "a") as file:
        file.write(f"$ perfdash {' '.join(words)}\n{done.stdout}[exit code {done.returncode}]\n\n")


def main() -> None:
    """Measure and explain the changes that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[*CHANGES, []], default=list(CHANGES))
    parser.add_argument("--old-torch", required=True, help="an interpreter with torch 2.13")
    parser.add_argument("--cores", help="which cores to measure on")
    options = parser.parse_args()
    cores = ["--cores", options.cores] if options.cores else []
    for name in options.names:
        folder = options.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        change = CHANGES[name]
        before = [options.old_torch if word == OLD_TORCH else word for word in change.options_before]
        measure(folder, change.before, change.batch, [*before, *cores])
        measure(folder, change.after, change.batch, [*change.options_after, *cores])
        perfdash(folder, "explain", "last", "*", "--out", "runs")
        if change.explain:
            perfdash(folder, "explain", "last", "*", "--out", "runs", *change.explain, *cores)


if __name__ == "__main__":
    main()
