"""Loader of a model from a notebook: a function that the process which began the run has pickled.

Nothing else is ever unpickled. The data come in a sealed memory file, whose descriptor the runner sends with
the job over the fork parent's own socket (runner/notebook_model.py); a job without one is refused. The user's
own process wrote it, and it holds what that process could run anyway.
"""

from __future__ import annotations

import json
import mmap
import pickle
import sys
import types
from typing import Any, Optional

from perfdash.records import Job
from perfdash.worker.loaders import python

PRELOAD: tuple[str, ...] = ()

_descriptor: Optional[int] = None


def receive(descriptor: int) -> None:
    """Keep the descriptor of this process's model, which came with its job."""
    global _descriptor
    _descriptor = descriptor


def load(job: Job) -> tuple[Any, Any]:
    """Call the function of the notebook and check its result.

    Raises LookupError where no model came with the job, ImportError without cloudpickle, RuntimeError for
    another version of Python, TypeError for another result.
    """
    if _descriptor is None:
        raise LookupError(
            f"{job.target} is a model of a notebook, and only perfdash.measure() in that notebook can send it"
        )
    with mmap.mmap(_descriptor, 0, prot=mmap.PROT_READ) as data:
        facts = json.loads(data.readline())
        _refuse_other_python(job.target, facts["python"])
        try:
            import cloudpickle  # noqa: F401  the pickle calls its functions
        except ImportError as error:
            raise ImportError(
                f"{error}: {job.target} is defined in a notebook, which needs it here as well; or write it "
                f"into a file and measure 'net.py:{job.target}'"
            ) from error
        python.add_folder(facts["folder"])
        function = pickle.loads(data.read())
    _name_its_globals(function)
    return python.call(function, job.case.batch_size, job.target)


def _refuse_other_python(name: str, version: list[int]) -> None:
    if list(sys.version_info[:2]) != version:
        there, here = (".".join(map(str, numbers[:2])) for numbers in (version, sys.version_info))
        raise RuntimeError(
            f"{name} comes from a notebook under Python {there}, and {sys.executable} is Python {here}: "
            f"write it into a file, e.g. net.py with %%writefile, and measure 'net.py:{name}'"
        )


def _name_its_globals(function: Any) -> None:
    """Make the notebook's names those of `__main__`: guards of torch.compile look for them there."""
    names = getattr(function, "__globals__", {})
    if names.get("__name__") == "__main__":
        main = types.ModuleType("__main__")
        main.__dict__.update(names)
        sys.modules["__main__"] = main
