"""Small models for the fault tests: one that works, two that need more memory than they may."""

import mmap
import os
import signal

import torch
from torch._inductor import config as inductor


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 64)
        self.second = torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Eats(torch.nn.Module):
    """Holds on to private memory."""

    def forward(self, x):
        held = [torch.ones(64 << 20, dtype=torch.uint8) for _ in range(64)]
        return x + len(held)


class EatsShared(torch.nn.Module):
    """Holds on to shared memory, which no limit of the process itself counts."""

    def forward(self, x):
        held = mmap.mmap(-1, 4 << 30)
        page = b"x" * (1 << 20)
        for _ in range(4 << 10):
            held.write(page)
        return x


def small(batch_size):
    return Small(), (torch.randn(batch_size, 64),)


def compiles(batch_size):
    """Inductor compiles while it loads: a C++ compiler runs below the case, for this model only."""
    module, inputs = small(batch_size)
    inductor.cpp.vec_isa_ok, inductor.cpp_cache_precompile_headers = True, False
    torch.compile(module)(*inputs)
    torch._dynamo.reset()
    return module, inputs


def eats(batch_size):
    return Eats(), (torch.randn(batch_size, 64),)


def eats_shared(batch_size):
    return EatsShared(), (torch.randn(batch_size, 64),)


class Poison(torch.nn.Module):
    """Ends everything above it that carries a worker: fork parent, watchdog, Dask worker."""

    def forward(self, x):
        victims = []
        pid = os.getppid()
        while pid > 1:
            with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
                command = cmdline.read()
            if b"perfdash.worker" in command or b"spawn_main" in command:
                victims.append(pid)
            with open(f"/proc/{pid}/stat", "rb") as stat:
                pid = int(stat.read().rpartition(b")")[2].split()[1])
        for victim in reversed(victims):
            os.kill(victim, signal.SIGKILL)
        return x


def poison(batch_size):
    return Poison(), (torch.randn(batch_size, 64),)
