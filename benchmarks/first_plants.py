"""The first list of planted changes, frozen before `explain` answered (results/explained.md).

planted_changes.py runs it; it is an example of what such a file holds.
"""

from planted_changes import OLD_TORCH, Change

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


PROFILE = ("--profile",)
REPRODUCER = ("--reproducer", "reproducer")

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
