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
from typing import Any, Optional

from perfdash.records import Job
from perfdash.worker.backends import export, inductor

SCENARIOS = ("inference", "sizes")
DTYPES = ("float32", "bfloat16", "float16")
OPTIONS = inductor.OPTIONS
CAPTURES = False
OPAQUE_ON_GPU = True  # the package takes its weights' memory from CUDA itself
vector_isa = inductor.vector_isa
Layout = tuple[list[str], list[str]]  # shape and strides, as in _layouts


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
    package = _Package(path, facts["seconds"], facts["layouts"])
    return ConvertedModel(signature, package, facts["remarks"], shapes)


def _compile(flat: Any, tensors: Any, job: Job, path: str, options: dict[str, Any]) -> dict[str, Any]:
    """Export and compile to a package at `path`; returns {is_dynamic, remarks, seconds, layouts}."""
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
        "layouts": _layouts(exported.program),
    }


def _layouts(program: Any) -> list[Layout]:
    """The shape and strides of each input that the program was compiled for, as text: `s0`, `16*s0`, `4`."""
    inputs = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.name in inputs]
    return [([str(size) for size in value.shape], [str(step) for step in value.stride()]) for value in values]


class _Package:
    """A loaded package, called with the input tensors; it returns the output tensors.

    The machine code reads an input by the strides that it was compiled for and checks none, so an input with
    other ones is copied before. Raises ValueError if the input differs along a dimension that was expanded.
    """

    def __init__(self, path: str, seconds: dict[str, float], layouts: list[Layout]) -> None:
        import torch._inductor

        self.path = path
        start = time.perf_counter()
        self._run = torch._inductor.aoti_load_package(path)
        self.seconds = {**seconds, "load_s": round(time.perf_counter() - start, 4)}
        self._layouts = layouts
        # By shapes and strides of the inputs: for each the strides of its copy, None where it needs none.
        self._other_strides: dict[Any, list[Optional[list[int]]]] = {}

    def __call__(self, *tensors: Any) -> Any:
        """The outputs, always as a sequence."""
        key = tuple([(tensor.shape, tensor.stride()) for tensor in tensors])
        others = self._other_strides.get(key)
        if others is None:
            others = [_other_strides(tensor, layout) for tensor, layout in zip(tensors, self._layouts)]
            self._other_strides[key] = others if any(others) else []
        if others:
            tensors = tuple(
                _with_strides(tensor, other) if other else tensor for tensor, other in zip(tensors, others)
            )
        made = self._run(*tensors)
        return made if isinstance(made, (list, tuple)) else (made,)

    def again(self) -> _Package:
        """The same package loaded once more."""
        return _Package(self.path, self.seconds, self._layouts)


def _other_strides(tensor: Any, layout: Layout) -> Optional[list[int]]:
    """The strides that the package reads this input by, None if it has them."""
    values = {name: size for name, size in zip(layout[0], tensor.shape) if name.isidentifier()}
    for name, stride in zip(layout[1], tensor.stride()):
        if name.isidentifier():  # a symbol of its own: the package takes it from the input
            values.setdefault(name, stride)
    functions = {"__builtins__": {}, "Max": max, "Min": min}
    try:
        wanted = [int(eval(text, functions, values)) for text in layout[1]]  # sympy's text, as in 16*s0
    except NameError:  # a symbol of another input
        return None
    fits = all(size < 2 or own == stride for size, own, stride in zip(tensor.shape, tensor.stride(), wanted))
    return None if fits else wanted


def _with_strides(tensor: Any, strides: list[int]) -> Any:
    """A copy of the tensor with these strides. Raises ValueError if 0 is one of a dimension that varies."""
    import torch

    from perfdash.worker.output_comparison import same

    part = tensor[tuple(slice(None) if stride else slice(0, 1) for stride in strides)]
    copy = torch.empty_strided(part.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(part)
    copy = copy.expand(tensor.shape)
    if 0 in strides and not same(copy, tensor):
        raise ValueError(
            f"called with strides {tuple(tensor.stride())} and compiled for {tuple(strides)}: this input was "
            "expanded in the example, and is not here"
        )
    return copy
