"""Architectures that no package has, written from their papers: a file of worker/models each."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import perfdash.worker.models
from perfdash.records import Job
from perfdash.worker.failures import unknown_model

PRELOAD: tuple[str, ...] = ()


def names() -> list[str]:
    """The models there are: the files' names."""
    folder = Path(perfdash.worker.models.__file__).parent
    return sorted(module.name for module in pkgutil.iter_modules([str(folder)]))


def load(job: Job) -> tuple[Any, Any]:
    """What the model's file builds: build(batch_size, **config, **inputs). Raises LookupError."""
    if job.target not in names():
        raise unknown_model("perfdash", job.target, names())
    module = importlib.import_module(f"perfdash.worker.models.{job.target}")
    built: tuple[Any, Any] = module.build(job.case.batch_size, **job.config, **job.inputs)
    return built
