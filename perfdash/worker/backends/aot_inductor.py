"""AOTInductor: the exported program compiled ahead of time to a package, which is loaded beside eager.

The package holds the machine code and the weights. It needs no Python code of the model, which
`standalone` checks in a fresh process.
"""

from __future__ import annotations

import inspect
import json
import os
import time
from dataclasses import replace
from typing import Any

from perfdash.records import Job
from perfdash.worker.backends import export, inductor

SCENARIOS = ("inference", "sizes")
DTYPES = ("float32", "bfloat16", "float16")
OPTIONS = inductor.OPTIONS
CAPTURES = False
OPAQUE_ON_GPU = True  # the package takes its weights' memory from CUDA itself
vector_isa = inductor.vector_isa


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The package, compiled by the case's first process and loaded by each.

    Raises ExportRefused where torch.export cannot capture the model, RuntimeError where inductor cannot
    compile what was captured.
    """
    return _prepare(module, inputs, job, "model", {})


def prepare_repeatable(module: Any, inputs: Any, job: Job) -> Any:
    """A package of its own that draws the random numbers of eager: for the accuracy check."""
    return _prepare(module, inputs, job, "repeatable", {"fallback_random": True})


def complaints(job: Job) -> list[str]:
    """What this torch lacks: AOTInductor's packages, or an option of the job."""
    import torch

    if not hasattr(torch._inductor, "aoti_compile_and_package"):
        return [f"torch {torch.__version__} cannot make AOTInductor packages: they need torch 2.5 or newer"]
    return [*export.complaints(job), *inductor.complaints(job)]


def reopen(model: Any) -> Any:
    """A second copy of the package, loaded from the same file with weights of its own."""
    return model.reopened()


def notes(model: Any) -> list[str]:
    """Whether the batch is fixed, and why."""
    return list(model.notes)


def artifact(model: Any) -> dict[str, Any]:
    """The package's size, and the seconds that its parts took: export, compile, load."""
    return {"kind": "package", "package_bytes": os.path.getsize(model.run.path), **model.run.seconds}


def standalone(model: Any, inputs: Any, job: Job) -> dict[str, Any]:
    """Load and call the package in a fresh process without the model's code (standalone_package)."""
    from perfdash.worker import standalone_package

    tensors = model.signature.flatten(inputs)
    return standalone_package.trial("package", model.run.path, tensors, model.run(*tensors), job)


def compile_sample(job: Job) -> None:
    """Compile a small model to a package: it needs the same precompiled headers as any other."""
    import torch

    class AddOne(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1

    of_one_size = replace(job, case=replace(job.case, scenario="inference", dynamic=False))
    _prepare(AddOne(), (torch.ones(64),), of_one_size, "sample", {})


def _prepare(module: Any, inputs: Any, job: Job, name: str, options: dict[str, Any]) -> Any:
    from perfdash.worker.model_export import ConvertedModel, flattened, shapes_of

    signature, flat, tensors = flattened(module, inputs)
    folder = os.path.join(job.scratch, "aot-inductor", name)
    path, done = os.path.join(folder, "model.pt2"), os.path.join(folder, "done.json")
    if not os.path.exists(done):
        os.makedirs(folder, exist_ok=True)
        facts = _compile(flat, tensors, job, path, options)
        with open(done, "w") as file:  # written last: a package without it is half a package
            json.dump(facts, file)
    with open(done) as file:
        facts = json.load(file)
    shapes = None if facts["is_dynamic"] else shapes_of(tensors)
    return ConvertedModel(signature, _Package(path, facts["seconds"]), facts["remarks"], shapes)


def _compile(flat: Any, tensors: Any, job: Job, path: str, options: dict[str, Any]) -> dict[str, Any]:
    """Export and compile to a package at `path`; returns {is_dynamic, remarks, seconds}."""
    import torch
    import torch._inductor

    from perfdash.worker.model_export import root_cause

    start = time.perf_counter()
    exported, remarks = export.exported_for(flat, tensors, job)
    exported_s = time.perf_counter() - start
    mode = dict(torch._inductor.list_mode_options(job.compile_mode)) if job.compile_mode else {}
    compile_package = torch._inductor.aoti_compile_and_package
    # torch 2.5 takes the example inputs as well.
    example = (tensors,) if "args" in inspect.signature(compile_package).parameters else ()
    settings = {**mode, **job.inductor_config, **options}
    start = time.perf_counter()
    try:
        with torch.no_grad():
            compile_package(exported.program, *example, package_path=path, inductor_configs=settings)
    except Exception as error:  # inductor raises any type
        raise RuntimeError(f"AOTInductor cannot compile this model: {root_cause(error)}") from error
    compiled_s = time.perf_counter() - start
    return {
        "is_dynamic": exported.why_static is None,
        "remarks": remarks,
        "seconds": {"export_s": round(exported_s, 4), "compile_s": round(compiled_s, 4)},
    }


class _Package:
    """A loaded package, called with the input tensors; it returns the output tensors."""

    def __init__(self, path: str, seconds: dict[str, float]) -> None:
        import torch._inductor

        self.path = path
        start = time.perf_counter()
        self._run = torch._inductor.aoti_load_package(path)
        self.seconds = {**seconds, "load_s": round(time.perf_counter() - start, 4)}

    def __call__(self, *tensors: Any) -> Any:
        """The outputs, always as a sequence."""
        made = self._run(*tensors)
        return made if isinstance(made, (list, tuple)) else (made,)

    def again(self) -> _Package:
        """The same package loaded once more."""
        return _Package(self.path, self.seconds)
