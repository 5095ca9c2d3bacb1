"""Models whose answers are known by construction. The compiled side is told by is_compiling()."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import torch
from torch import nn

UNITS = 8 * 1024 * 1024  # floats: 32 MiB a buffer


class Network(nn.Module):
    """Calls a function of the input; a name for each case below."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def small(function):
    torch.manual_seed(0)
    return Network(function), (torch.randn(64, 64),)


@torch.library.custom_op("truth::nap", mutates_args=())
def nap(x: torch.Tensor, seconds: float) -> torch.Tensor:
    """Takes `seconds`, asleep; an operator, so that dynamo captures it without a graph break."""
    time.sleep(seconds)
    return x.clone()


@torch.library.custom_op("truth::spin", mutates_args=())
def spin(x: torch.Tensor, seconds: float) -> torch.Tensor:
    """Takes `seconds` of CPU time: more by the wall where others are at work on the core."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return x.clone()


nap.register_fake(lambda x, seconds: torch.empty_like(x))
spin.register_fake(lambda x, seconds: torch.empty_like(x))


@torch.compiler.disable
def call(function):
    function()


# --- memory: peaks in units of one buffer


def three_to_two(batch_size):
    """Eager holds x, sin(x) and the result at once: 3 buffers; fused: x and the result. Ratio 1.5."""
    return Network(lambda x: x.sin().cos()), (torch.randn(UNITS),)


def four_to_two(batch_size):
    """Eager holds x, sin(x), cos(x) and the result: 4 buffers; fused: 2. Ratio 2."""

    def function(x):
        y, z = x.sin(), x.cos()
        return y * z

    return Network(function), (torch.randn(UNITS),)


class Tied(nn.Module):
    """Two layers share 16 MiB of weights, which count once."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2048, 2048, bias=False)
        self.second = nn.Linear(2048, 2048, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


def tied(batch_size):
    return Tied(), (torch.randn(batch_size, 2048),)


# --- latency


def sleeps(batch_size):
    """120 ms eager, 60 ms compiled, asleep."""

    def function(x):
        return nap(x, 0.06 if torch.compiler.is_compiling() else 0.12)

    return small(function)


def spins(batch_size):
    """120 ms eager, 60 ms compiled, on the CPU."""

    def function(x):
        return spin(x, 0.06 if torch.compiler.is_compiling() else 0.12)

    return small(function)


def itself(batch_size):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)), (torch.randn(64, 512),)


# --- accuracy


def scaled_when_compiled(factor, scale=1.0):
    def function(x):
        y = (x @ x) * scale
        return y * factor if torch.compiler.is_compiling() else y

    return small(function)


def wrong(batch_size):
    return scaled_when_compiled(1.01)


def wrong_but_tiny(batch_size):
    """Outputs of 1e-7, a third too large: an absolute tolerance would let them pass."""
    return scaled_when_compiled(1.3, scale=1e-8)


def nearly_right(batch_size):
    return scaled_when_compiled(1 + 1e-6)


def not_a_number(batch_size):
    return scaled_when_compiled(float("nan"))


def other_shape(batch_size):
    return small(lambda x: x[:32] if torch.compiler.is_compiling() else x)


class Unusual(nn.Module):
    """An expanded input, a sparse output, a buffer that counts the calls, 64 MiB in a list: all are right."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.kept = [torch.ones(UNITS // 2) for _ in range(4)]

    def forward(self, x):
        self.calls += 1
        return x * self.calls + self.kept[3][0], sparse(x)


@torch.compiler.disable
def sparse(x):
    return x.relu().to_sparse()


def unusual(batch_size):
    return Unusual(), (torch.ones(1, 64).expand(64, 64),)


def nothing_finite(batch_size):
    return small(lambda x: x * float("nan"))


def changes_its_input(batch_size):
    """The compiled side alone."""

    def function(x):
        return x.add_(1) - 1 if torch.compiler.is_compiling() else x + 0

    return small(function)


class Recompiles(nn.Module):
    """A number that dynamo compiles for is another one at every call; the output does not depend on it."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + 0 * self.calls


def recompiles(batch_size):
    return Recompiles(), (torch.randn(8, 8),)


def never_the_same(batch_size):
    return small(lambda x: x + noise(x))


@torch.compiler.disable
def noise(x):
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(os.urandom(4), "little"))
    return torch.randn(x.shape, generator=generator)


def dropout(batch_size):
    """Random, but the same for the same seed: no fault of anybody's."""
    return small(lambda x: torch.nn.functional.dropout(x @ x, training=True))


# --- what is captured


def never_captured(batch_size):
    module, inputs = itself(batch_size)
    module.forward = torch.compiler.disable(module.forward)
    return module, inputs


def graph_break(batch_size):
    def function(x):
        y = x + 1
        call(dict)
        return y * 2

    return small(function)


# --- failures


def when(compiled, function):
    def step(x):
        if torch.compiler.is_compiling() == compiled:
            call(function)
        return x + 1

    return small(step)


def segfault():
    ctypes.string_at(0)


def eat():
    held = []
    while True:
        held.append(torch.ones(32 * 1024 * 1024))


def fail():
    raise RuntimeError("this model does not run")


def kill_oneself():
    os.kill(os.getpid(), signal.SIGKILL)


def eager_segfault(batch_size):
    return when(False, segfault)


def compiled_segfault(batch_size):
    return when(True, segfault)


def killed(batch_size):
    return when(True, kill_oneself)


def eager_eats_memory(batch_size):
    return when(False, eat)


def compiled_eats_memory(batch_size):
    return when(True, eat)


def eager_fails(batch_size):
    return when(False, fail)


def compiled_fails(batch_size):
    return when(True, fail)


def hangs(batch_size):
    return when(True, hang)


def hang():
    """Tells who waits for it that it hangs now."""
    if "TRUTH_HANGS" in os.environ:
        open(os.environ["TRUTH_HANGS"], "w").close()
    time.sleep(3600)


def no_load(batch_size):
    raise RuntimeError("no such weights")


def no_package(batch_size):
    import a_package_that_is_not_there  # noqa: F401


def no_network(batch_size):
    import urllib.request

    urllib.request.urlopen("http://127.0.0.1:9/weights")  # nothing listens on the discard port


def disk_full(batch_size):
    raise OSError(28, "No space left on device")


def wrong_return(batch_size):
    return nn.Identity()


def leaves_a_process(batch_size):
    """Starts a process in a session of its own and forgets it."""
    code = "import time; time.sleep(3600)  # perfdash-truth-survivor"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    return itself(batch_size)


def exits(batch_size):
    return when(True, lambda: os._exit(0))


def chatty(batch_size):
    """Prints without end in eager."""

    class Chatty(torch.nn.Module):
        def forward(self, x):
            while True:
                print("x" * 1000)

    return Chatty(), (torch.randn(batch_size, 4),)


def shares_memory(batch_size):
    """Holds 2 GiB of shared memory in eager, which counts in no limit of the process itself."""
    import mmap

    class Shares(torch.nn.Module):
        def forward(self, x):
            held = mmap.mmap(-1, 2 << 30)
            for _ in range(2 << 10):
                held.write(b"x" * (1 << 20))
            return x

    return Shares(), (torch.randn(batch_size, 4),)
