"""Find the smallest part of a model's graphs that the compiler gets wrong.

Dynamo's graphs are traced to ATen operators with the model's own inputs. A window of operators gets the
values that eager computes before it, is compiled alone, and is judged as whole models are. Bisection finds
the first operator with which the beginning of the graph fails, then the last one from which that still fails.
"""

from __future__ import annotations

import copy
import json
import os
from typing import Any, Callable, Optional

import torch
from torch import fx

from perfdash.records import Job
from perfdash.worker import output_comparison, pytree

FILE = "subgraph.json"
INPUTS = "inputs.pt"
_MOST_BYTES = 4 << 30  # of intermediate values that are kept at once
_UNJUDGED = 0.01


def trace(module: Any, inputs: list[Any]) -> Any:
    """The ATen operators of a dynamo graph, with the casts of an autocast that is entered now."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        return make_fx(module)(*[_copy(value) for value in inputs])


class Graph:
    """The ATen operators of one dynamo graph, with the values that eager computes for them."""

    def __init__(self, traced: Any, inputs: list[Any]) -> None:
        """`inputs`: real tensors. Raises MemoryError where the values are too many to keep."""
        self.values: dict[fx.Node, Any] = {}
        self.nodes = [node for node in traced.graph.nodes if node.op == "call_function"]
        recorder = _Recorder(traced, self.values)
        with torch.no_grad():
            recorder.run(*[_copy(value) for value in inputs])

    def window(self, start: int, end: int) -> tuple[fx.GraphModule, list[Any]]:
        """The operators from `start` to before `end` as a module, and its inputs.

        It returns every tensor that is used after it, or by nothing.
        """
        inside = self.nodes[start:end]
        graph = fx.Graph()
        copies: dict[fx.Node, Any] = {}
        inputs: list[Any] = []
        for node in inside:
            for argument in node.all_input_nodes:
                if argument not in copies and argument not in inside:
                    copies[argument] = graph.placeholder(f"x{len(inputs)}")
                    inputs.append(self.values[argument])
        for node in inside:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        outputs = [node for node in inside if not node.users or set(node.users) - set(inside)]
        outputs = [node for node in outputs if list(pytree.tensors_in([self.values[node]]))]
        graph.output(tuple(copies[node] for node in outputs))
        return fx.GraphModule(torch.nn.Module(), graph), inputs


class _Recorder(fx.Interpreter):
    def __init__(self, module: Any, values: dict[fx.Node, Any]) -> None:
        super().__init__(module)
        self._values, self._bytes = values, 0

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op != "output":
            self._values[n] = _copy(result)  # a later operator may change it in place
            self._bytes += sum(tensor.untyped_storage().nbytes() for tensor in pytree.tensors_in([result]))
            if self._bytes > _MOST_BYTES:
                raise MemoryError(f"the intermediate values take over {_MOST_BYTES >> 30} GiB")
        return result


def smallest(size: int, fails: Callable[[int, int], bool]) -> Optional[tuple[int, int]]:
    """The window that fails, bisected first at its end and then at its start; None where the whole passes.

    `fails(start, end)`. Where failing is not monotone the window still fails, but may not be the smallest.
    """
    if not fails(0, size):
        return None
    low, end = 0, size
    while end - low > 1:
        middle = (low + end) // 2
        low, end = (low, middle) if fails(0, middle) else (middle, end)
    start, high = 0, end
    while high - start > 1:
        middle = (start + high) // 2
        start, high = (middle, high) if fails(middle, end) else (start, middle)
    return start, end


def of_case(capture: Callable[[Any], Callable[[], Any]], back_end: Any, job: Job) -> Optional[dict[str, Any]]:
    """The smallest failing subgraph of a case, written into the job's folder; None where no graph fails.

    `capture(backend)` returns the model's step under a dynamo back end; `back_end`: that of the case.
    """
    graphs: list[tuple[Any, list[Any]]] = []

    def collect(module: Any, example_inputs: Any) -> Any:
        def call(*inputs: Any) -> Any:
            copies = [_copy(value) for value in inputs]
            try:
                traced = trace(module, copies)  # here, where the step has entered autocast
            except Exception as error:  # raised where no earlier graph is wrong
                traced = error
            graphs.append((traced, copies))
            return module(*inputs)

        return call

    capture(collect)()
    for number, (traced, inputs) in enumerate(graphs):
        if isinstance(traced, Exception):
            raise traced
        graph = Graph(traced, inputs)
        verdicts: dict[tuple[int, int], dict[str, Any]] = {}

        def fails(start: int, end: int, graph: Graph = graph, verdicts: Any = verdicts) -> bool:
            window, values = graph.window(start, end)
            verdicts[start, end] = judge(window, values, back_end, job)
            return bool(verdicts[start, end]["status"] == "fail")

        found = smallest(len(graph.nodes), fails)
        if found:
            window, values = graph.window(*found)
            effective_job = getattr(back_end, "effective_job", lambda job: job)
            return _write(
                effective_job(job), window, values, verdicts[found], found, number, len(graph.nodes)
            )
    return None


def judge(window: Any, inputs: list[Any], back_end: Any, job: Job) -> dict[str, Any]:
    """The verdict on a compiled window, beside eager and a float64 copy where that runs."""
    torch._dynamo.reset()
    with torch.no_grad():
        eager = pytree.detach(window(*[_copy(value) for value in inputs]))
        try:
            doubles = [pytree.to_float64(_copy(value)) for value in inputs]
            exact = pytree.detach(_in_float64(window)(*doubles))
        except Exception:  # an operator that has no float64, or reads bits
            exact = None
        compiled = pytree.detach(back_end.prepare(window, inputs, job)(*[_copy(value) for value in inputs]))
    return output_comparison.compare(
        eager,
        compiled,
        exact,
        tolerance=job.tolerance,
        factor=job.factor,
        unjudged=max(job.tolerance, _UNJUDGED),
    )


def _in_float64(window: Any) -> Any:
    """The window with float64 where it names a floating dtype, such as that of a cast by autocast.

    Raises ValueError where it reads the bits of a number: those of float64 are others.
    """

    def wide(argument: Any) -> Any:
        is_narrow = isinstance(argument, torch.dtype) and argument.is_floating_point
        return torch.float64 if is_narrow else argument

    graph = copy.deepcopy(window.graph)
    for node in graph.nodes:
        if node.target is torch.ops.aten.view.dtype:
            raise ValueError(f"{node} reads the bits of a number")
        node.args = fx.node.map_aggregate(node.args, wide)
        node.kwargs = fx.node.map_aggregate(node.kwargs, wide)
    return fx.GraphModule(window, graph)


def _write(
    job: Job,
    window: Any,
    inputs: list[Any],
    verdict: dict[str, Any],
    place: tuple[int, int],
    graph: int,
    size: int,
) -> dict[str, Any]:
    os.makedirs(job.folder, exist_ok=True)
    torch.save(inputs, os.path.join(job.folder, INPUTS))
    document = {
        "torch": torch.__version__,
        "code": window.code,
        "operators": [str(node.target) for node in window.graph.nodes if node.op == "call_function"],
        "place": {"graph": graph, "first": place[0], "operators": size},
        "verdict": verdict,
        "config": job.inductor_config,
        "mode": job.compile_mode,
        "dynamic": job.case.dynamic or None,
        "tolerance": job.tolerance,
        "factor": job.factor,
        "threads": job.case.threads,
        "tf32": job.tf32 if job.case.device == "cuda" else None,
    }
    with open(os.path.join(job.folder, FILE), "w", encoding="utf-8") as file:
        json.dump(document, file)
    return document


def _copy(value: Any) -> Any:
    """The value with tensors of its own, strides kept."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized or 0 in value.stride():
            return value.detach().clone()
        copied = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
        return copied.copy_(value.detach())
    return pytree.map_tensors(value, _copy) if isinstance(value, (list, tuple)) else value
