"""Fixtures: a process that has compiled nothing, as that of each case; torch's settings of TF32, set back."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tests.lazy import lazy

torch = lazy("torch")
device = lazy("perfdash.worker.device")


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """The worker takes what its process has compiled before the back end for the model's own doing."""
    if utils := sys.modules.get("torch._dynamo.utils"):
        utils.counters.clear()


@pytest.fixture
def tf32_switches() -> Iterator[None]:
    """Torch's settings of TF32 as it has them by itself, set back after the test."""
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (False, True)
    switches = device.precision_switches()
    before = [switch.fp32_precision for switch in switches]
    yield
    for switch, value in zip(switches, before, strict=True):
        switch.fp32_precision = value
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    os.environ.pop("NVIDIA_TF32_OVERRIDE", None)
