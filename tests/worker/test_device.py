"""What a CUDA device is told and asked, with torch's functions replaced where no GPU is."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from perfdash.records import Case, Job, Status
from tests.lazy import lazy

torch = lazy("torch")
capabilities = lazy("perfdash.worker.capabilities")
device = lazy("perfdash.worker.device")
eager_and_compiled = lazy("perfdash.worker.eager_and_compiled")
failures = lazy("perfdash.worker.failures")
latency_sampling = lazy("perfdash.worker.latency_sampling")
onnxruntime = lazy("perfdash.worker.backends.onnxruntime")

JOB = Job(Case("s", "m", device="cuda"), "python", "")


@pytest.fixture
def precision(monkeypatch, tf32_switches):
    """Torch's settings of TF32, and the variables, as they are by themselves."""
    for name in device.TF32_OVERRIDES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("allowed", [False, True])
def test_one_tf32_setting_holds_for_products_convolutions_and_other_libraries(precision, allowed):
    device.use_tf32(allowed)
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert os.environ.get("NVIDIA_TF32_OVERRIDE") == (None if allowed else "0")
    job = replace(JOB, tf32=allowed)
    assert onnxruntime.cuda_provider(job) == ("CUDAExecutionProvider", {"use_tf32": str(int(allowed))})


OF_A_USER = [
    'torch.backends.fp32_precision = "tf32"', 'torch.backends.cudnn.fp32_precision = "tf32"',
    'torch.set_float32_matmul_precision("high")',
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("switch", OF_A_USER)
def test_the_tf32_setting_holds_against_the_switches_of_a_model_s_file(switch):
    """A torch from 2.9 on has two kinds of switches, and its own calls raise where they disagree."""
    script = f"""
import torch
from perfdash.worker import device
{switch}
for allowed in (False, True):
    device.use_tf32(allowed)
    read = {{switch.fp32_precision for switch in device.precision_switches()}}
    assert read in (set(), {{"tf32" if allowed else "ieee"}}), read
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is allowed
    assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
    with torch.backends.cudnn.flags(enabled=True):
        pass
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_tf32_setting_holds_where_the_model_of_a_variant_sets_the_switches_again(precision):
    """The function of a model is called once more for the variant, after the device was opened."""
    job, where, inputs = replace(JOB, variant={"width": 2}), torch.device("cpu"), (torch.zeros(1, 2),)
    device.use_tf32(False)
    eager = eager_and_compiled.eager_side(torch.nn.Linear(2, 2), inputs, job, where)
    torch.set_float32_matmul_precision("high")
    eager_and_compiled.variant_side(eager, torch.nn.Linear(2, 2), job, where)
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cuda.matmul.allow_tf32 is False


def test_a_variable_that_overrides_tf32_in_some_libraries_is_refused(precision, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert "give --tf32 instead" in device.environment_complaint("cuda")
    assert device.environment_complaint("cpu") is None


def test_a_run_on_the_cpu_does_not_ask_for_the_gpus_of_the_machine(monkeypatch):
    """On a host with a broken GPU, NVML counts it, and CUDA does not start."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", Mock(side_effect=RuntimeError("CUDA unknown error")))
    emit = Mock()
    capabilities.probe(replace(JOB, case=Case("s", "m", backend="eager")), emit)
    emit.assert_called_once_with("probed", complaints=[], cuda=[])
    with pytest.raises(RuntimeError, match="CUDA unknown error"):
        capabilities.probe(replace(JOB, case=Case("s", "m", backend="eager", device="cuda")), emit)


TRACE = [
    {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0, "dur": 4},
    {"cat": "cuda_driver", "name": "cuLaunchKernelEx", "ts": 6, "dur": 4},
    {"cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": 9, "dur": 1},
    {"cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 11, "dur": 9},
    {"cat": "kernel", "name": "gemm", "ts": 10, "dur": 20},
    {"cat": "kernel", "name": "relu", "ts": 25, "dur": 10},  # beside the first, on another stream
    {"cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 100, "dur": 5},
    {"cat": "gpu_user_annotation", "name": "forward", "ts": 0, "dur": 900},
    {"name": "process_name", "ph": "M"},
]


def test_the_gpu_is_busy_while_any_kernel_runs():
    assert device.kernel_account(TRACE) == {
        "kernels": 2, "copies": 1, "launches": 3, "graph_launches": 1, "gpu_busy_ms": 0.03,
    }  # fmt: skip


def test_a_profiler_that_sees_no_kernel_is_no_call_without_kernels():
    assert "no kernel" in device.kernel_account([TRACE[0]])["error"]


@pytest.mark.parametrize("pool", [(0, 1), [3, 0]])
def test_what_private_pools_keep_is_counted_once(pool):
    """An output that lives in the pool is allocated: the allocator's peak has it."""
    segments = [
        {"total_size": 100, "allocated_size": 60, "segment_pool_id": (0, 0)},
        {"total_size": 20 << 20, "allocated_size": 1 << 20, "segment_pool_id": pool},
        {"total_size": 7, "allocated_size": 0},  # a torch that does not name the pool
    ]
    assert device.private_pool_bytes(segments) == 19 << 20


def test_deterministic_algorithms_are_for_the_block_alone():
    import torch._inductor.config as inductor_config

    gpu = device.Cuda.__new__(device.Cuda)
    for before in (False, True):
        torch.use_deterministic_algorithms(before, warn_only=before)
        inductor_config.deterministic = True  # the user's
        with gpu.deterministic():
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled(), "an operator without one still runs"
            assert torch.backends.cudnn.deterministic
        assert torch.are_deterministic_algorithms_enabled() is before
        assert torch.backends.cudnn.deterministic is False
        assert inductor_config.deterministic is True
    torch.use_deterministic_algorithms(False)


def test_a_process_that_forks_others_counts_gpus_without_the_driver(monkeypatch):
    """Where NVML is missing torch asks the driver, which no fork survives."""
    asked = []
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: asked.append(1) or 7)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: -1)
    monkeypatch.setattr(os, "listdir", lambda path: ["null", "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"])
    device.keep_off_driver()
    device.keep_off_driver()
    assert torch.cuda.device_count() == 2
    assert not asked
    device.meet_driver()
    assert torch.cuda.device_count() == 7


@pytest.mark.parametrize(
    "error",
    [
        "CUDA unknown error - this may be due to an incorrectly set up environment",
        "No CUDA GPUs are available",
        "Found no NVIDIA driver on your system",
        "CUDA error: initialization error",
    ],
)
def test_cuda_that_does_not_start_is_the_machines_fault(precision, monkeypatch, error):
    """Asked whether it is available, torch asks NVML alone: what then fails is no model's fault."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", Mock(side_effect=RuntimeError(error)))
    with pytest.raises(failures.Unmeasurable, match="CUDA does not start on this GPU: ") as raised:
        device.open_device("cuda", 1)
    assert failures.describe("load", raised.value)["status"] == Status.INFRA_ERROR


def test_a_gpu_that_is_full_before_the_model_is_loaded_is_the_machines_fault(precision, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(total_memory=1))
    full = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 100.00 MiB")
    monkeypatch.setattr(torch, "empty", Mock(side_effect=full))
    with pytest.raises(failures.Unmeasurable, match="out of memory") as raised:
        device.open_device("cuda", 1)
    assert failures.describe("load", raised.value)["status"] == Status.INFRA_ERROR


class Event:
    """A CUDA event of a GPU that takes 3 ms for everything."""

    def __init__(self, enable_timing):
        pass

    def record(self):
        pass

    def elapsed_time(self, end):
        return 3.0


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    opened = device.Cuda.__new__(device.Cuda)
    opened._l2_buffer = torch.zeros(3)
    return opened


def in_a_thread(work):
    """A call whose work another thread does while the caller waits, as autograd's thread does on a GPU."""

    def call():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    return call


def test_what_another_thread_of_the_process_launches_is_not_lost(gpu):
    def spin():
        until = time.thread_time_ns() + 5_000_000
        while time.thread_time_ns() < until:
            pass

    sample = gpu.time(in_a_thread(spin), 1)
    assert sample.launch_ns - sample.lost_ns >= 5e6


def test_a_program_that_takes_the_core_from_that_thread_disturbs_the_sample(gpu):
    core = {min(os.sched_getaffinity(0))}

    def spin():
        """Until the other program has had the core for 5 ms."""
        os.sched_setaffinity(0, core)
        begin, cpu = time.perf_counter_ns(), time.thread_time_ns()
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        while (
            time.perf_counter_ns() - begin - (time.thread_time_ns() - cpu) < 5_000_000
            or resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw == before
        ):
            pass

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            os.sched_setaffinity(other.pid, core)
            sample = gpu.time(in_a_thread(spin), 1)
        finally:
            other.kill()
    assert not latency_sampling.is_clean(sample)


def test_launching_is_timed_beside_the_gpu(gpu):
    calls = []
    sample = gpu.time(lambda: calls.append(1), 4)
    assert (sample.wall_ns, sample.cpu_ns, len(calls)) == (12e6, None, 4)
    assert sample.launch_ns > 0
    assert 0 <= sample.lost_ns <= sample.launch_ns
