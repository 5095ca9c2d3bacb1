"""One forward pass at each of several sizes, all by one compiled artefact.

The inputs of a side are a dict: the inputs of each size by the size's name. A step calls the model at every
size in turn, and its parts are the sizes. Only the sized dimension of the compiled side's inputs is marked
dynamic; the first size compiles. After the timing `further` measures what that costs beside artefacts of one
size, and what dynamo does without marks.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import traceback
import types
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from perfdash.records import Job, Status
from perfdash.worker import compilation, failures, latency_sampling, pytree
from perfdash.worker.eager_and_compiled import BothSides, ModelSide
from perfdash.worker.failures import Unmeasurable
from perfdash.worker.scenarios import inference

set_mode = inference.set_mode
context = inference.context

Marks = List[Tuple[torch.Tensor, int]]
_FIXED = re.compile(r"specialized it to be a constant \((\d+)\)|inferred to be a constant \((\d+)\)")
_SHARED = (
    "the model has graph breaks: dynamo compiles its functions one by one, and would use those of the "
    "dynamic artefact again"
)
_FEW = 3  # sizes that are tried without marks: the third shows whether the second one's code serves


def all_inputs(job: Job, inputs: Any, load: Callable[[Job], Any]) -> Dict[str, Any]:
    """The inputs of each size by name (`batch 4`); `inputs` are those of the case's own batch size.

    load: the loader's function. Raises Unmeasurable where the model has no such size, or its inputs stay the
    same at each.
    """
    of, every = job.sizes_of, {}
    for size in job.sizes:
        other = _job_of_size(job, size)
        is_own = of == "batch" and size == job.case.batch_size
        try:
            every[f"{of} {size}"] = inputs if is_own else load(other)[1]
        except Exception as error:
            if "memory" in str(error).lower():
                raise
            raise Unmeasurable(
                Status.SKIPPED, f"the model does not take {of} size {size}: {type(error).__name__}: {error}"
            ) from error
    shapes = [[tuple(tensor.shape) for tensor in pytree.tensors_in(one)] for one in every.values()]
    if any(len(one) != len(shapes[0]) for one in shapes) or any(shapes.count(one) > 1 for one in shapes):
        raise Unmeasurable(Status.SKIPPED, f"the model's inputs do not grow with the {of} size")
    return every


def example(inputs: Dict[str, Any]) -> Any:
    """The inputs of the first size, which a back end prepares the model for."""
    return next(iter(inputs.values()))


def before_compile(side: ModelSide, step: SizedStep) -> None:
    """Mark the dimensions that differ between sizes as dynamic.

    A dimension of 1 is not marked: dynamo compiles for 1 by itself, whatever is marked.
    """
    inputs = side.inputs
    marked: Marks = []
    for tensors in zip(*(list(pytree.tensors_in(one)) for one in inputs.values())):
        shapes = [tensor.shape for tensor in tensors]
        for dim in range(min(len(shape) for shape in shapes)):
            if len({shape[dim] for shape in shapes}) > 1:
                marked += [(tensor, dim) for tensor in tensors if tensor.shape[dim] > 1]
    for tensor, dim in marked:
        torch._dynamo.mark_dynamic(tensor, dim)
    step.marked = marked


def make_step(model: Any, side: ModelSide, device: Any) -> SizedStep:
    """The step of `model` over all sizes of the side's inputs."""
    steps = {
        name: inference.make_step(model, replace(side, inputs=one, pristine=one), device)
        for name, one in side.inputs.items()
    }
    return SizedStep(steps, device)


class SizedStep:
    """Called, it runs each size once and returns the outputs by size.

    first: of the first call, the seconds and the graphs that dynamo compiled, by size. A first call in which
    dynamo raises because the model fixes a size raises BeginAnew; the next one compiles for each size.
    fixed_at: what dynamo says where the model fixes a size that was marked dynamic; None where it does not.
    """

    def __init__(self, steps: Dict[str, Callable[[], Any]], device: Any) -> None:
        self._steps, self._device = steps, device
        self.parts = tuple(steps)
        self.marks: List[List[Any]] = []
        self.first: Dict[str, Dict[str, Any]] = {}
        self.fixed_at: Optional[str] = None
        self.marked: Marks = []

    def __call__(self) -> Dict[str, Any]:
        """The outputs by size."""
        if not self.first:
            return self._first_call(lambda outputs: outputs)
        marks, outputs = [self._device.mark()], {}
        for name, step in self._steps.items():
            outputs[name] = step()
            marks.append(self._device.mark())
        self.marks.append(marks)
        return outputs

    def observe(self) -> Dict[str, Any]:
        """Copies of the outputs by size, made before the next call: with CUDA graphs it overwrites them."""
        if not self.first:
            return self._first_call(pytree.detach)
        return {name: pytree.detach(step()) for name, step in self._steps.items()}

    def _first_call(self, kept: Callable[[Any], Any]) -> Dict[str, Any]:
        outputs, first = {}, {}
        for name, step in self._steps.items():
            graphs, start = compilation.compiled_graphs(), time.perf_counter()
            try:
                returned = step()
            except Exception as error:
                fixed_at = fixed_size(error) if self.marked else None
                if fixed_at is None:
                    raise
                self.fixed_at = fixed_at
                self._only_advise()
                raise compilation.BeginAnew(self) from error
            self._device.synchronize()
            first[name] = {
                "seconds": round(time.perf_counter() - start, 4),
                "graphs": compilation.compiled_graphs() - graphs,
            }
            outputs[name] = kept(returned)
        self.first = first
        return outputs

    def _only_advise(self) -> None:
        """Make the marks advice: dynamo then compiles for each size that the model fixes."""
        for tensor, _ in self.marked:
            for name in ("_dynamo_dynamic_indices", "_dynamo_dynamic_range"):
                with contextlib.suppress(AttributeError):
                    delattr(tensor, name)
        for tensor, dim in self.marked:
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
        self.marked = []


def fixed_size(error: BaseException) -> Optional[str]:
    """The size that a model fixes, in words, from dynamo's error; None for any other error."""
    link: Optional[BaseException] = error
    while link is not None:
        if type(link).__name__ == "ConstraintViolationError" or "Constraints violated" in str(link):
            match = _FIXED.search(str(link))
            return (
                f"it fixes the size at {match.group(1) or match.group(2)}" if match else "it fixes the size"
            )
        link = link.__cause__ or link.__context__
    return None


def further(comparison: BothSides) -> Iterator[Dict[str, Any]]:
    """Yield the event `sizes` as it grows: the first calls, what one size alone costs, and what no marks do.

    static: pairs of the artefact of each size alone (`static_ns`) with the dynamic one (`dynamic_ns`), a row
    a pair and a column a size, and the seconds of their first calls, from empty caches. automatic: the first
    calls of sizes in turn without any mark, from empty caches; a back end without dynamo has none. Both are
    compiled on the cores on which the dynamic one was. left: the names of what is still to be measured.
    failed: by name, why it was not. Faults of the machine are raised.
    """
    step = comparison.compiled_step
    assert isinstance(step, SizedStep)
    work = {"static": lambda: _beside_static(comparison, step)}
    if getattr(comparison.backend, "CAPTURES", True):
        work["automatic"] = lambda: _automatic(comparison)
    facts: Dict[str, Any] = {
        "of": comparison.job.sizes_of,
        "sizes": list(comparison.job.sizes),
        "first": step.first,
        "fixed": step.fixed_at,
        "failed": {},
    }
    if "automatic" in work and compilation.has_graph_breaks():
        facts["failed"] = dict.fromkeys(work, _SHARED)
        work = {}
    for place, name in enumerate(work):
        yield {**facts, "left": list(work)[place:]}
        try:
            with comparison.uncounted():
                facts[name] = work[name]()
        except Exception as error:
            if failures.classify("sizes", error) is Status.INFRA_ERROR:
                raise
            traceback.print_exc()
            facts["failed"] = {**facts["failed"], name: f"{type(error).__name__}: {error}"[:300]}
    yield {**facts, "left": []}


def _beside_static(comparison: BothSides, step: SizedStep) -> Dict[str, Any]:
    steps, first_s = {}, {}
    # The dynamic artefact's code may be that of one of these: its caches would hide what compiling costs.
    caches = _empty_caches(os.path.join(comparison.job.scratch, "static"))
    compilers = comparison.job.inductor_config.get("compile_threads")
    with compilation.on_cores(comparison.job.compile_cores, compilers), caches:
        for name, one in _unmarked(comparison.compiled_side.inputs).items():
            scratch = os.path.join(comparison.job.scratch, name.replace(" ", "-"))
            graphs, start = compilation.compiled_graphs(), time.perf_counter()
            own = replace(comparison.job, scratch=scratch)
            steps[name], uncounted_s = _own_step(comparison, name, one, own)
            steps[name]()
            comparison.device.synchronize()
            first_s[name] = round(max(0.0, time.perf_counter() - start - uncounted_s), 4)
            _refuse_shared_code(step, name, compilation.compiled_graphs() - graphs)
    static = SizedStep(steps, comparison.device)
    static()
    figures = latency_sampling.sample_pairs(
        static, step, comparison.device, comparison.job.sampling, comparison.job.seed
    )
    return {
        "first_s": first_s,
        "static_ns": figures["eager_parts_ns"],
        "dynamic_ns": figures["backend_parts_ns"],
        "clean": figures["clean"],
        "times_s": figures["times_s"],
    }


def _automatic(comparison: BothSides) -> Dict[str, Any]:
    """Call one artefact without marks at the first sizes, from empty caches: seconds and graphs by size."""
    every = _unmarked(comparison.compiled_side.inputs)
    names = [name for name in every if not name.endswith(" 1")][:_FEW]
    module = _with_own_code(comparison.compiled_side.module, "automatic")
    first: Dict[str, Any] = {}
    caches = _empty_caches(os.path.join(comparison.job.scratch, "automatic"))
    compilers = comparison.job.inductor_config.get("compile_threads")
    with compilation.on_cores(comparison.job.compile_cores, compilers), caches:
        job = replace(comparison.job, case=replace(comparison.job.case, dynamic=False))
        model = comparison.backend.prepare(module, every[names[0]], job)
        for name in names:
            side = replace(comparison.compiled_side, inputs=every[name], pristine=every[name])
            step = inference.make_step(model, side, comparison.device)
            seconds, graphs = [], compilation.compiled_graphs()
            for _ in range(2):  # the second call is steady: what it takes is no part of compiling
                start = time.perf_counter()
                step()
                comparison.device.synchronize()
                seconds.append(time.perf_counter() - start)
            first[name] = {
                "seconds": round(max(0.0, seconds[0] - seconds[1]), 4),
                "graphs": compilation.compiled_graphs() - graphs,
            }
            if name == names[0]:
                _refuse_shared_code(comparison.compiled_step, name, first[name]["graphs"])
    return first


def _own_step(comparison: BothSides, name: str, inputs: Any, job: Job) -> Tuple[Callable[[], Any], float]:
    """A step of an artefact for one size alone, and the seconds that are no part of converting it."""
    module = _with_own_code(comparison.compiled_side.module, name)
    alone = replace(job, sizes=(), case=replace(job.case, dynamic=False, scenario="inference"))
    model = comparison.backend.prepare(module, inputs, alone)
    side = replace(comparison.compiled_side, inputs=inputs, pristine=inputs)
    return inference.make_step(model, side, comparison.device), getattr(model, "uncounted_s", 0.0)


def _refuse_shared_code(step: Any, name: str, graphs: int) -> None:
    """Raise RuntimeError where an artefact compiled nothing, though the dynamic one (`step`) did."""
    if not graphs and any(facts["graphs"] for facts in step.first.values()):
        raise RuntimeError(f"dynamo compiled nothing for {name}: it used code of the dynamic artefact")


def _job_of_size(job: Job, size: int) -> Job:
    if job.sizes_of == "batch":
        return replace(job, case=replace(job.case, batch_size=size))
    if job.sizes_of == "sequence":
        return replace(job, inputs={**job.inputs, "sequence": size})
    return replace(job, inputs={**job.inputs, "size": [3, size, size]})


def _unmarked(inputs: Dict[str, Any]) -> Dict[str, Any]:
    """Copies of the inputs, which bear no marks."""
    return {name: pytree.detach(one) for name, one in inputs.items()}


def _with_own_code(module: Any, name: str) -> Any:
    """A module that calls `module`, with a code object of its own.

    Dynamo keeps what it compiled by code object, and looks through all of it at each call. Only a graph
    without breaks is compiled as a whole under this one; after a break functions are compiled under their
    own code objects, which all artefacts share.
    """

    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return self.inner(*arguments, **keywords)

    code = forward.__code__.replace(co_name=re.sub(r"\W", "_", f"forward_{name}"))
    own = types.FunctionType(code, globals(), "forward", None, forward.__closure__)
    wrapper = type("OfOneSize", (torch.nn.Module,), {"forward": own})()
    wrapper.inner = module
    wrapper.training = module.training
    return wrapper


@contextlib.contextmanager
def _empty_caches(folder: str) -> Iterator[None]:
    """Give inductor an empty cache, on disk and in memory."""
    from torch._inductor import utils

    fresh = getattr(utils, "fresh_cache", None) or getattr(utils, "fresh_inductor_cache", None)
    os.makedirs(folder, exist_ok=True)
    with fresh(dir=folder) if fresh else contextlib.nullcontext():
        yield
