"""Everything that differs between CPU and CUDA: waiting, timing a sample, peak memory, random state.

The CPU is timed by the clock; the thread's CPU time beside it shows a disturbed sample. CUDA is timed by
events, with the L2 cache flushed before each call.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from perfdash.records import Status
from perfdash.worker.failures import Unmeasurable

# Variables that override the TF32 setting, of torch's libraries but not of Triton's kernels.
TF32_OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")


@dataclass(frozen=True)
class Sample:
    """One timed sample: nanoseconds over all its calls, and what the kernel did meanwhile."""

    wall_ns: float
    cpu_ns: Optional[float]  # thread CPU time; None where it has no meaning (CUDA, several threads)
    voluntary: int = 0  # context switches because the model waited
    involuntary: int = 0  # context switches forced by the scheduler
    faults: int = 0  # minor page faults


class Cpu:
    """The host processor."""

    kind = "cpu"
    l2_flush = False

    def __init__(self, threads: int) -> None:
        self.torch_device = torch.device("cpu")
        self._single = threads == 1

    def synchronize(self) -> None:
        """Nothing to wait for: a call returns when it is done."""

    def mark(self) -> Any:
        """A point in time within a step, for `between`."""
        return time.perf_counter_ns()

    def between(self, start: Any, end: Any) -> float:
        """Nanoseconds from one mark to another."""
        return float(end - start)

    def allocator_retries(self) -> int:
        """Zero: only a GPU's allocator retries."""
        return 0

    def random_state(self) -> torch.Tensor:
        """The state of the generator that models draw from."""
        return torch.get_rng_state()

    def time(self, call: Callable[[], Any], repeats: int) -> Sample:
        """`repeats` calls, timed together."""
        before = resource.getrusage(resource.RUSAGE_THREAD)
        cpu = time.thread_time_ns()
        wall = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        wall = time.perf_counter_ns() - wall
        cpu = time.thread_time_ns() - cpu
        after = resource.getrusage(resource.RUSAGE_THREAD)
        return Sample(
            wall,
            cpu if self._single else None,
            after.ru_nvcsw - before.ru_nvcsw,
            after.ru_nivcsw - before.ru_nivcsw,
            after.ru_minflt - before.ru_minflt,
        )


class Cuda:
    """The first visible GPU of CUDA."""

    kind = "cuda"
    l2_flush = True

    def __init__(self, tf32: bool = False) -> None:
        if not torch.cuda.is_available():
            raise Unmeasurable(Status.INFRA_ERROR, "CUDA is not available to this torch build")
        use_tf32(tf32)
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        l2_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or (64 << 20)
        self._l2_buffer = torch.empty(2 * l2_bytes, dtype=torch.int8, device=self.torch_device)

    def synchronize(self) -> None:
        """Waits for all kernels launched so far."""
        torch.cuda.synchronize()

    def mark(self) -> Any:
        """A point in the GPU's own order of work, for `between`."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Nanoseconds from one mark to another, both of them past (synchronize)."""
        return float(start.elapsed_time(end) * 1e6)

    def allocator_retries(self) -> int:
        """How often the allocator freed its whole cache to serve a request."""
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def random_state(self) -> torch.Tensor:
        """The state of the GPU's generator."""
        return torch.cuda.get_rng_state()

    def time(self, call: Callable[[], Any], repeats: int) -> Sample:
        """`repeats` calls, each between two events of its own and after a flush of the L2 cache."""
        elapsed_ms = 0.0
        for _ in range(repeats):
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            self._l2_buffer.zero_()
            # Without this wait the first launches would hide behind the flush.
            torch.cuda.synchronize()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            elapsed_ms += start.elapsed_time(end)
        return Sample(elapsed_ms * 1e6, None)

    def drop_caches(self) -> None:
        """Free garbage, the workspaces of cuBLAS and the allocator's cache.

        The first matrix product allocates a workspace, which then counts as allocated for both sides; after
        this the next product allocates it again.
        """
        torch.cuda.synchronize()
        gc.collect()
        clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear_workspaces:
            clear_workspaces()
        torch.cuda.empty_cache()

    def allocated(self) -> int:
        """Bytes that are allocated now."""
        return torch.cuda.memory_allocated() - self._l2_buffer.numel()

    def reset_peak(self) -> None:
        """The allocator's peak starts again from what is allocated now."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> tuple[int, int]:
        """Peak bytes allocated and reserved since reset_peak (torch.cuda.max_memory_allocated)."""
        torch.cuda.synchronize()
        own = self._l2_buffer.numel()
        return torch.cuda.max_memory_allocated() - own, torch.cuda.max_memory_reserved() - own


def use_tf32(allowed: bool) -> None:
    """Allow or forbid TF32 in matrix products and convolutions alike; torch allows it in the latter alone."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
    if not allowed:  # TensorRT under ONNX Runtime has no other switch
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"


def open_device(kind: str, threads: int, tf32: bool = False) -> Cpu | Cuda:
    """The device by name. Raises Unmeasurable where it is not there."""
    if kind == "cpu":
        return Cpu(threads)
    if kind == "cuda":
        return Cuda(tf32)
    raise Unmeasurable(Status.INFRA_ERROR, f"unknown device {kind!r}; there are: cpu, cuda")


def complaint(kind: str, dtype: str) -> Optional[str]:
    """Why a dtype or the environment does not do on a device, else None; tries a small product."""
    overrides = [name for name in TF32_OVERRIDES if kind == "cuda" and name in os.environ]
    if overrides:
        return f"{overrides[0]} overrides the TF32 setting of some libraries alone: give --tf32 instead"
    if dtype not in ("bfloat16", "float16") or (kind == "cuda" and not torch.cuda.is_available()):
        return None
    try:
        square = torch.ones(8, 8, dtype=getattr(torch, dtype), device=kind)
        torch.mm(square, square)
    except RuntimeError as error:
        return f"dtype {dtype} is not available on {kind} with torch {torch.__version__}: {error}"
    return None


def probe(device_kind: str) -> Optional[float]:
    """Milliseconds of a small fixed matrix product, median of 15: the speed of the core right now.

    A neighbour on the host or a lower clock slows CPU time too; only a fixed amount of work shows that.
    """
    if device_kind != "cpu":
        return None
    left = torch.full((256, 256), 0.5)
    times = []
    for _ in range(15):
        start = time.perf_counter_ns()
        torch.mm(left, left)
        times.append(time.perf_counter_ns() - start)
    return sorted(times)[7] / 1e6
