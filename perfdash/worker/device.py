"""Everything that differs between CPU and CUDA: waiting, timing a sample, peak memory, random state.

The CPU is timed by the clock; the thread's CPU time beside it shows a disturbed sample. CUDA is timed by
events, with the L2 cache flushed before each call; the host's times say how long launching took.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import operator
import os
import re
import resource
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

import torch

from perfdash.records import Status
from perfdash.worker.failures import Unmeasurable

# Variables that override the TF32 setting, of torch's libraries but not of Triton's kernels.
TF32_OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
# That of matrix products by mkldnn is one: torch reads all for get_float32_matmul_precision.
PRECISION_SWITCHES = (
    "backends", "backends.cuda.matmul", "backends.cudnn", "backends.cudnn.conv", "backends.cudnn.rnn",
    "backends.mkldnn.matmul",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One timed sample: nanoseconds over all its calls, and what the kernel did meanwhile."""

    wall_ns: float
    cpu_ns: Optional[float]  # thread CPU time; None where it has no meaning (CUDA, several threads)
    voluntary: int = 0  # context switches because the model waited
    involuntary: int = 0  # context switches forced by the scheduler
    faults: int = 0  # minor page faults
    launch_ns: Optional[float] = None  # until the calls had returned, where the device then still works
    lost_ns: float = 0.0  # of launch_ns no thread of the process ran


class Cpu:
    """The host processor."""

    kind = "cpu"
    l2_flush = False
    has_atomics = False
    garbage_bytes = math.inf

    def __init__(self, threads: int) -> None:
        self.torch_device = torch.device("cpu")
        self._single = threads == 1

    def allocated(self) -> int:
        """Zero: only a GPU's allocator counts."""
        return 0

    def reset_peak(self) -> None:
        """Nothing to reset: peak is zero."""

    def peak(self) -> tuple[int, int]:
        """Zero: of the CPU the kernel tells (peak_memory.transient_bytes)."""
        return 0, 0

    def drop_caches(self) -> None:
        """Nothing that the allocator of a GPU would hold."""

    def account(self, call: Callable[[], Any]) -> dict[str, Any]:
        """Nothing: there are no kernels that a host launches."""
        return {}

    def deterministic(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to set: the order of additions is fixed by the number of threads."""
        return contextlib.nullcontext()

    def probe(self) -> Optional[float]:
        """Milliseconds of a small fixed matrix product, median of 15: the speed of the core right now.

        A neighbour on the host or a lower clock slows CPU time too; only a fixed amount of work shows that.
        """
        left = torch.full((256, 256), 0.5)
        times = []
        for _ in range(15):
            start = time.perf_counter_ns()
            torch.mm(left, left)
            times.append(time.perf_counter_ns() - start)
        return sorted(times)[7] / 1e6

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
    has_atomics = True

    def __init__(self, tf32: bool = False) -> None:
        if not torch.cuda.is_available():
            raise Unmeasurable(Status.INFRA_ERROR, "CUDA is not available to this torch build")
        use_tf32(tf32)
        try:  # is_available() has asked NVML alone: CUDA starts here
            self.torch_device = torch.device("cuda", torch.cuda.current_device())
            properties = torch.cuda.get_device_properties(0)
            l2_bytes = getattr(properties, "L2_cache_size", 0) or (64 << 20)
            self._l2_buffer = torch.empty(2 * l2_bytes, dtype=torch.int8, device=self.torch_device)
        except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:
            raise Unmeasurable(Status.INFRA_ERROR, f"CUDA does not start on this GPU: {error}") from error
        # While gc is off, garbage in reference cycles may take so much before it is collected all the same.
        self.garbage_bytes = properties.total_memory // 16

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
        """The state of the GPU's generator; what a model draws on the host does not change it."""
        return torch.cuda.get_rng_state()

    def time(self, call: Callable[[], Any], repeats: int) -> Sample:
        """`repeats` calls, each between two events of its own and after a flush of the L2 cache.

        The backward pass is launched by a thread of autograd's while the caller waits. So all threads of the
        process count: one that takes the core from another disturbs nothing.
        """
        elapsed_ms, launch_ns, cpu_ns = 0.0, 0, 0
        before = resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(repeats):
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            self._l2_buffer.zero_()
            # Without this wait the first launches would hide behind the flush.
            torch.cuda.synchronize()
            cpu, wall = time.process_time_ns(), time.perf_counter_ns()
            start.record()
            call()
            end.record()
            launch_ns += time.perf_counter_ns() - wall
            cpu_ns += time.process_time_ns() - cpu
            torch.cuda.synchronize()
            elapsed_ms += start.elapsed_time(end)
        after = resource.getrusage(resource.RUSAGE_SELF)
        return Sample(
            elapsed_ms * 1e6,
            None,
            after.ru_nvcsw - before.ru_nvcsw,
            after.ru_nivcsw - before.ru_nivcsw,
            after.ru_minflt - before.ru_minflt,
            launch_ns=float(launch_ns),
            lost_ns=float(max(0, launch_ns - cpu_ns)),
        )

    def account(self, call: Callable[[], Any]) -> dict[str, Any]:
        """Kernels and launches of one call, and how long the GPU was busy with it (kernel_account).

        A profiler that does not work here leaves {"error": its message}.
        """
        from torch.profiler import ProfilerActivity, profile

        path = ""
        try:
            call()
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                call()
                torch.cuda.synchronize()
            descriptor, path = tempfile.mkstemp(suffix=".json")
            os.close(descriptor)
            profiled.export_chrome_trace(path)
            with open(path, encoding="utf-8", errors="replace") as file:
                return kernel_account(json.load(file)["traceEvents"])
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            return {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        finally:
            if path:
                os.unlink(path)

    @contextlib.contextmanager
    def deterministic(self) -> Iterator[None]:
        """Sum in a fixed order wherever torch has a deterministic algorithm; elsewhere as usual."""
        enabled = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        cudnn = torch.backends.cudnn.deterministic
        # A newer torch sets inductor's option of this name, too, which may be the user's (--inductor-config).
        inductor = sys.modules.get("torch._inductor.config")
        of_inductor = getattr(inductor, "deterministic", None)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.deterministic = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one an operator, at each call
                yield
        finally:
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
            torch.backends.cudnn.deterministic = cudnn
            if of_inductor is not None:
                setattr(inductor, "deterministic", of_inductor)  # noqa: B010 (mypy knows no such module)

    def probe(self) -> Optional[float]:
        """Milliseconds of a fixed matrix product on the GPU, median of 15: its clock right now."""
        try:
            left = torch.full((2048, 2048), 0.5, device=self.torch_device)
            product = torch.empty_like(left)
        except torch.cuda.OutOfMemoryError:
            return None
        times = []
        for _ in range(15):
            start = self.mark()
            torch.mm(left, left, out=product)
            end = self.mark()
            torch.cuda.synchronize()
            times.append(self.between(start, end))
        return sorted(times)[7] / 1e6

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

    def graph_pool_bytes(self) -> int:
        """Bytes that CUDA graphs keep for their replays, which allocate nothing, beside living tensors."""
        return private_pool_bytes(torch.cuda.memory_snapshot())

    def reset_peak(self) -> None:
        """The allocator's peak starts again from what is allocated now."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> tuple[int, int]:
        """Peak bytes allocated and reserved since reset_peak (torch.cuda.max_memory_allocated)."""
        torch.cuda.synchronize()
        own = self._l2_buffer.numel()
        return torch.cuda.max_memory_allocated() - own, torch.cuda.max_memory_reserved() - own


def precision_switches() -> list[Any]:
    """The modules of torch with an `fp32_precision`, the general one first; none before torch 2.9."""
    if not hasattr(torch.backends, "fp32_precision"):
        return []
    return [operator.attrgetter(name)(torch) for name in PRECISION_SWITCHES]


def use_tf32(allowed: bool) -> None:
    """Allow or forbid TF32 in matrix products and convolutions alike; torch allows it in the latter alone."""
    # Those that a model's file has set must not stay: TF32 would be on in a part of the operators, and torch
    # raises where it reads switches of both kinds that disagree.
    for switch in precision_switches():
        switch.fp32_precision = "tf32" if allowed else "ieee"
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


_KEPT: dict[str, Any] = {}


def keep_off_driver() -> None:
    """Let torch count GPUs without the driver from now on, as a process that forks others must.

    Where NVML is missing torch asks the driver, which starts CUDA; in every fork of that process CUDA is then
    unusable. The device files say how many GPUs there may be.
    """
    if "count" not in _KEPT and hasattr(torch._C, "_cuda_getDeviceCount"):
        _KEPT["count"] = torch._C._cuda_getDeviceCount
        torch._C._cuda_getDeviceCount = _device_files


def meet_driver() -> None:
    """Undo keep_off_driver, in a forked process."""
    if "count" in _KEPT:
        torch._C._cuda_getDeviceCount = _KEPT.pop("count")


def _device_files() -> int:
    return len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)])


def environment_complaint(kind: str) -> Optional[str]:
    """Return why the environment does not do for a device, before use_tf32 changes it; else None."""
    overrides = [name for name in TF32_OVERRIDES if kind == "cuda" and name in os.environ]
    if overrides:
        return f"{overrides[0]} overrides the TF32 setting of some libraries alone: give --tf32 instead"
    return None


def dtype_complaint(kind: str, dtype: str) -> Optional[str]:
    """Return why a dtype does not do on a device, else None. Tries a small product, which starts CUDA."""
    if dtype not in ("bfloat16", "float16") or (kind == "cuda" and not torch.cuda.is_available()):
        return None
    try:
        square = torch.ones(8, 8, dtype=getattr(torch, dtype), device=kind)
        torch.mm(square, square)
    except RuntimeError as error:
        return f"dtype {dtype} is not available on {kind} with torch {torch.__version__}: {error}"
    return None


_GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_HOST_CALLS = ("cuda_runtime", "cuda_driver")


def kernel_account(trace: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the events of a profiler's trace (Chrome's format) say of the calls in it; pure.

    kernels, copies: how many the GPU ran, those within a CUDA graph included; launches, graph_launches: how
    often the host asked for some; gpu_busy_ms: how long at least one was running. Without any of them the
    profiler does not see this GPU: {"error": why}.
    """
    work = [event for event in trace if event.get("cat") in _GPU_WORK]
    calls = [str(event.get("name")) for event in trace if event.get("cat") in _HOST_CALLS]
    graphs = sum("GraphLaunch" in name for name in calls)
    launches = sum("Launch" in name for name in calls)
    if not work:
        return {"error": "the profiler reports no kernel of this GPU"}
    busy_us, until = 0.0, -math.inf
    for start, end in sorted((event["ts"], event["ts"] + event.get("dur", 0)) for event in work):
        busy_us += max(0.0, end - max(start, until))
        until = max(until, end)
    kernels = sum(event["cat"] == "kernel" for event in work)
    return {
        "kernels": kernels,
        "copies": len(work) - kernels,
        "launches": launches,
        "graph_launches": graphs,
        "gpu_busy_ms": round(busy_us / 1e3, 6),
    }


def private_pool_bytes(segments: Iterable[Mapping[str, Any]]) -> int:
    """Bytes that private pools of the allocator have reserved and no tensor holds (memory_snapshot)."""
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in segments
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    )
