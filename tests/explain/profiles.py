"""Profiles as a worker writes them, from times per kernel."""

from __future__ import annotations

from typing import Any


def profile(
    compiled: dict[str, float],
    eager: dict[str, float] | None = None,
    rest: float = 0.0,
    clocks: float = 0.0,
    kernels: dict[str, Any] | None = None,
    memory: dict[str, int] | None = None,
    replays_graphs: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """`compiled` and `eager`: milliseconds by label; `rest`: what no kernel takes; `clocks`: their cost."""
    sides = {}
    for name, times in (("compiled", compiled), ("eager", eager or {"aten.add.Tensor (2)": 1.0})):
        whole = 1e6 * (sum(times.values()) + (rest if name == "compiled" else 0.0))
        buffers = (memory or {}) if name == "compiled" else {}
        sides[name] = {
            "clock": "cpu",
            "plain_ns": [whole * 0.999, whole, whole * 1.002],
            "instrumented_ns": [whole + 1e6 * clocks] * 3,
            "repeats": 1,
            "steady": True,
            "calls": [
                {"label": label, "count": 1, "ns": [1e6 * ms] * 3,
                 "invocation": {"name": label, "arguments": [{"tensor": 0}], "keywords": {}}}
                for label, ms in times.items()
            ],
            "tensors": [
                {"shape": [4], "stride": [1], "dtype": "torch.float32", "device": "cpu", "elements": 4,
                 "exact": False}
            ],
            "kernels": (kernels or {}) if name == "compiled" else {},
            "replays_graphs": replays_graphs and name == "compiled",
            "memory": {
                "peak_bytes": sum(buffers.values()),
                "buffers": [{"name": n, "bytes": size, "count": 1} for n, size in buffers.items()],
            },
        }  # fmt: skip
    return {
        "torch": "2.15.0",
        "git": "abc",
        "settings": {"mode": None, "config": {}, "tf32": None},
        "threads": 1,
        "sides": sides,
        "notes": [],
        **more,
    }
