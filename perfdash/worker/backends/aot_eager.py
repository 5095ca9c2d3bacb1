"""Dynamo and AOTAutograd without code generation, for tests that need no generated code."""

from __future__ import annotations

from typing import Any

from perfdash.records import Job

SCENARIOS = ("inference", "training", "generation", "sizes")
OPTIONS = ("dynamic",)


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """torch.compile(module, backend="aot_eager")."""
    import torch

    return torch.compile(module, backend="aot_eager", dynamic=job.case.dynamic or None)
