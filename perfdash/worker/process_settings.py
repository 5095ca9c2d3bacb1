"""The settings of torch that change what any model computes, or how fast: they belong to the process."""

from __future__ import annotations

import operator
from typing import Any, Dict, Hashable, Optional, Tuple

import torch

from perfdash.worker.device import PRECISION_SWITCHES

# Attributes of torch, and functions without arguments.
_SETTINGS = (
    "get_num_threads", "get_float32_matmul_precision",
    *(f"{switch}.fp32_precision" for switch in PRECISION_SWITCHES),
    "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cudnn.allow_tf32", "backends.cudnn.enabled", "backends.cudnn.benchmark",
    "backends.cudnn.deterministic", "backends.mkldnn.enabled", "backends.mkldnn.deterministic",
    "backends.cuda.flash_sdp_enabled", "backends.cuda.mem_efficient_sdp_enabled",
    "backends.cuda.math_sdp_enabled", "backends.cuda.cudnn_sdp_enabled",
    "backends.mha.get_fastpath_enabled", "are_deterministic_algorithms_enabled",
    "get_default_dtype", "get_default_device", "is_grad_enabled",
)  # fmt: skip
# Loading a library changes it, too, where gcc before 13 linked that with -ffast-math: inductor of older
# torches links its kernels so, whose eager side then runs with it under any back end.
FLUSHES = "torch.set_flush_denormal"
NAMES = (*(f"torch.{name}" for name in _SETTINGS), FLUSHES)
# Those that perfdash sets itself after it has imported a back end, whatever that has set.
_SET_LATER = ("get_num_threads", "is_grad_enabled")
_SET_LATER_ON_GPU = (  # by device.use_tf32
    "get_float32_matmul_precision", *(f"{switch}.fp32_precision" for switch in PRECISION_SWITCHES),
    "backends.cuda.matmul.allow_tf32", "backends.cudnn.allow_tf32",
)  # fmt: skip


def current() -> Dict[str, Hashable]:
    """The value of each setting by its name (NAMES); None where this torch lacks it, or cannot read it."""
    return {**{f"torch.{name}": read(name) for name in _SETTINGS}, FLUSHES: str(flushes_denormal())}


def set_later(device: str) -> Tuple[str, ...]:
    """The names of the settings that a case on this device sets after it has imported its back end."""
    on_gpu = _SET_LATER_ON_GPU if device == "cuda" else ()
    return tuple(f"torch.{name}" for name in (*_SET_LATER, *on_gpu))


def read(name: str) -> Optional[str]:
    """The value of an attribute of torch, or what a function returns; None where it cannot be read."""
    try:
        value: Any = operator.attrgetter(name)(torch)
        return str(value() if callable(value) else value)
    except Exception:  # torch raises where its two kinds of precision switches disagree
        return None


def flushes_denormal() -> bool:
    """Whether tiny numbers become 0 in this thread; torch has no function that returns it."""
    least = torch.full((1,), torch.finfo(torch.float32).tiny, dtype=torch.float32, device="cpu")
    return not bool(least.mul(0.5).double())
