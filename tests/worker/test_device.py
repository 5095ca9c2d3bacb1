"""What a CUDA device is told and asked, with torch's functions replaced where no GPU is."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

torch = lazy("torch")
device = lazy("perfdash.worker.device")
onnxruntime = lazy("perfdash.worker.backends.onnxruntime")

JOB = Job(Case("s", "m", device="cuda"), "python", "")


@pytest.fixture
def precision(monkeypatch):
    """Torch's settings of TF32 as it has them by itself, set back after the test."""
    for name in device.TF32_OVERRIDES:
        monkeypatch.delenv(name, raising=False)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (False, True)
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    os.environ.pop("NVIDIA_TF32_OVERRIDE", None)


@pytest.mark.parametrize("allowed", [False, True])
def test_one_tf32_setting_holds_for_products_convolutions_and_other_libraries(precision, allowed):
    device.use_tf32(allowed)
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert os.environ.get("NVIDIA_TF32_OVERRIDE") == (None if allowed else "0")
    job = replace(JOB, tf32=allowed)
    assert onnxruntime.cuda_provider(job) == ("CUDAExecutionProvider", {"use_tf32": str(int(allowed))})


def test_a_variable_that_overrides_tf32_in_some_libraries_is_refused(precision, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert "give --tf32 instead" in device.complaint("cuda", "float32")
    assert device.complaint("cpu", "float32") is None
