"""torch.export: the exported program run as a module, not compiled.

It shows what capturing alone does, to the outputs and to the time in Python; `aot-inductor` compiles the same
program. The dynamo runners' `--export` runs it in this way, too.
"""

from __future__ import annotations

import os
import time
from typing import Any

from perfdash.records import Job

SCENARIOS = ("inference", "sizes")
DTYPES = ("float32", "bfloat16", "float16")
OPTIONS = ("dynamic",)
CAPTURES = False


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The exported program as a module, with the model's own weights.

    Raises ExportRefused where torch.export cannot capture the model.
    """
    from perfdash.worker.model_export import ConvertedModel, flattened, shapes_of

    signature, flat, tensors = flattened(module, inputs)
    start = time.perf_counter()
    exported, remarks = exported_for(flat, tensors, job)
    run = _Program(exported.program, round(time.perf_counter() - start, 4))
    shapes = None if exported.why_static is None else shapes_of(tensors)
    return ConvertedModel(signature, run, remarks, shapes)


def exported_for(flat: Any, tensors: Any, job: Job) -> tuple[Any, list[str]]:
    """The program as the case wants it, and remarks: of one size, or with a dynamic batch.

    Raises ExportRefused; also where the case runs several sizes and the model's batch cannot vary.
    """
    from perfdash.worker.model_export import ExportRefused, export, export_static

    is_sized = job.case.scenario == "sizes"
    if not job.case.dynamic and not is_sized:
        return export_static(flat, tensors, "dynamic shapes were not asked for"), []
    batch = job.sizes[0] if is_sized else job.case.batch_size
    exported = export(flat, tensors, batch)
    if exported.why_static is None:
        return exported, []
    remark = f"exported for batch size {batch} only: {exported.why_static}"
    if is_sized:
        raise ExportRefused(f"torch.export cannot vary the batch of this model: {exported.why_static}")
    return exported, [remark]


def complaints(job: Job) -> list[str]:
    """What this torch lacks, or this back end cannot vary."""
    import torch

    is_sized = job.case.scenario == "sizes"
    if is_sized and job.sizes_of != "batch":
        return [f"back end {job.case.backend} varies the batch size only, not the {job.sizes_of} size"]
    if (job.case.dynamic or is_sized) and not hasattr(torch.export.Dim, "DYNAMIC"):
        return [f"torch {torch.__version__} cannot export a varying batch: that needs torch 2.6 or newer"]
    return []


def notes(model: Any) -> list[str]:
    """Whether the batch is fixed, and why."""
    return list(model.notes)


def artifact(model: Any) -> dict[str, Any]:
    """The operators of the program, and the seconds that the export took."""
    calls = sum(node.op == "call_function" for node in model.run.program.graph.nodes)
    return {"kind": "program", "operators": calls, "export_s": model.run.export_s}


def standalone(model: Any, inputs: Any, job: Job) -> dict[str, Any]:
    """Save the program, then load and call it in a fresh process without the model's code."""
    import torch

    from perfdash.worker import standalone_package
    from perfdash.worker.model_export import root_cause

    path = os.path.join(job.scratch, "program.pt2")
    try:
        torch.export.save(model.run.program, path)
    except Exception as error:  # a program with constants of a class of its own
        return {"runs": False, "reason": f"it cannot be saved: {root_cause(error)}"}
    tensors = model.signature.flatten(inputs)
    return standalone_package.trial("program", path, tensors, model.run(*tensors), job)


class _Program:
    """An exported program, called with the input tensors; it returns the output tensors."""

    def __init__(self, program: Any, export_s: float) -> None:
        self.program = program
        self.export_s = export_s
        self._run = program.module()

    def __call__(self, *tensors: Any) -> Any:
        return self._run(*tensors)
