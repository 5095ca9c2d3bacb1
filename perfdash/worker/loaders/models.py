"""Loader of the architectures in worker/models, which are written from their papers."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

import perfdash.worker.models
from perfdash.records import Job
from perfdash.worker import own_files
from perfdash.worker.failures import unknown_model

PRELOAD: tuple[str, ...] = ()


def names() -> list[str]:
    """Return the names of all models, sorted."""
    folder = Path(perfdash.worker.models.__file__).parent
    return sorted(module.name for module in pkgutil.iter_modules([str(folder)]))


def is_trained(name: str) -> bool:
    """Whether a model is trained when it is built, on the digits data; all others have random weights."""
    return name.startswith("digits_")


def load(job: Job) -> tuple[Any, Any]:
    """Build a model with the `build` function of its file.

    The call is build(batch_size, **config, **inputs). Raises LookupError for an unknown model, and where
    pretrained weights are requested: nobody has published any for these.
    """
    if job.target not in names():
        raise unknown_model("perfdash", job.target, names())
    if job.weights == "pretrained" and not is_trained(job.target):
        raise LookupError(
            f"no pretrained weights are known for {job.case.model}: leave --weights out, or give a file of "
            "weights"
        )
    module = importlib.import_module(f"perfdash.worker.models.{job.target}")
    built: tuple[Any, Any] = module.build(job.case.batch_size, **job.config, **job.inputs)
    return built


def digests() -> dict[str, str]:
    """Digests of the files of perfdash that the model is made of, by path in perfdash's folder.

    A file that cannot be read is left out.
    """
    package = perfdash.worker.models.__name__
    found = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith(f"{package}.") and module.__file__:
            digest = own_files.digest_now(Path(module.__file__))
            if digest is not None:
                found[f"{name.replace('.', '/')}.py"] = digest
    return found
