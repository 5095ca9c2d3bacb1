"""The unchanged model: compared with itself it is the A/A null."""

from __future__ import annotations

from typing import Any

from perfdash.records import Job

SCENARIOS = ("inference", "training", "generation")
OPTIONS = ("compile_mode", "dynamic", "inductor_config")  # none changes it: it is the eager side of any case


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The module itself."""
    return module
