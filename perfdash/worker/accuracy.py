"""The accuracy check of a case: run both sides, make the float64 judge, decide (output_comparison.py).

A training step that fails is judged a second time, once it is known how far eager gets from itself: beside
ReLUs the rounding of another summation order decides which gradients are zero.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import os
import pickle
import random
import sys
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from perfdash.worker import compilation, failures, held_memory, linux, output_comparison, pytree
from perfdash.worker.device import Cpu
from perfdash.worker.eager_and_compiled import BothSides, ModelSide, as_leaves
from perfdash.worker.shared_eager import SharedEager

_PERTURBED_RUNS = 4  # of eager, from parameters moved by rounding
_REDRAWN_RUNS = 4  # of each side, with other random numbers
# Of a float64 copy on the CPU, where a GPU has no room for it: operations a second of a core, and how long.
_CPU_FLOPS = 2e9
_MOST_ON_CPU_S = 120.0
_NO_MEMORY = "no memory for it: "
_ON_DEVICE = "torch on the GPU"  # a generator
# The relative rmse to eager that outputs may have where no judge could be made, by the case's dtype.
_UNJUDGED = {"float32": 0.01, "float16": 0.02, "bfloat16": 0.05, "amp": 0.05}

Verdict = dict[str, Any]
Judge = Callable[..., Verdict]  # of eager's outputs, the compiled side's, and paths of leaves to leave out


@dataclass
class Reference:
    """What the compiled side is compared with: what eager returned, and the judge if it was made.

    effects: what eager changed of its inputs and buffers. draws: the generators that it draws from; states:
    those of all generators after it (_generator_states). judge: outputs, where it ran if not beside eager,
    why there is none.
    """

    eager: Any
    effects: Dict[str, Any]
    draws: List[str]
    states: Dict[str, str]
    judge: Optional[Tuple[Any, str, str]] = None


def of_case(comparison: BothSides, eager_differs: str | None, shared: SharedEager | None = None) -> Verdict:
    """The event `accuracy`. `eager_differs`: how two eager runs differ, None where they do not.

    shared: where another case of the model may have left its reference. Only a pass is accepted beside that;
    any other verdict is reached again beside the case's own eager.
    """
    if not comparison.job.check_accuracy:
        return {"status": "skipped", "detail": "the suite skips the check for this model"}
    if eager_differs:
        return {"status": "eager_two_runs_differ", "detail": eager_differs}
    # The compiled side's step follows choices that eager's made: of those only the outputs are shared.
    if shared is None or hasattr(comparison.eager_step, "follow"):
        return _verdict(comparison, _reference(comparison))
    values = shared.read("outputs")
    if values is not None:
        source = values.pop("shared_from")
        verdict = _verdict(comparison, Reference(**values))
        if verdict["status"] == "pass":
            return {**verdict, "shared_from": source}
        del values
    reference = _reference(comparison)
    verdict = _verdict(comparison, reference)
    if reference.judge is None or reference.judge[0] is not None:
        shared.write("outputs", vars(reference))
    return verdict


def _reference(comparison: BothSides) -> Reference:
    """What eager returns here, without the judge unless it is clear that there is none.

    A model on a GPU may draw random numbers on the host, too: these are the same in float64.
    """
    device = comparison.device
    comparison.seed()
    before = _generator_states(device)
    eager = comparison.observe_eager(observed)
    states = _generator_states(device)
    draws = [name for name, state in states.items() if state != before.get(name)]
    no_judge = (None, "", "CUDA draws other random numbers in float64")
    return Reference(
        eager,
        comparison.eager_side.changed(),
        draws=draws,
        states=states,
        judge=no_judge if _ON_DEVICE in draws else None,
    )


def _generator_states(device: Any) -> Dict[str, str]:
    """A digest of the state of each random generator that a model may draw from and `seed` sets, by name."""

    def digest(state: bytes) -> str:
        return hashlib.sha256(state).hexdigest()

    states = {"torch": digest(bytes(torch.get_rng_state().tolist()))}
    if device.kind != "cpu":
        states[_ON_DEVICE] = digest(bytes(device.random_state().tolist()))
    if "numpy" in sys.modules:
        states["numpy"] = digest(pickle.dumps(sys.modules["numpy"].random.get_state(legacy=False)))
    states["Python's random"] = digest(repr(random.getstate()).encode())
    return states


def _verdict(comparison: BothSides, reference: Reference) -> Verdict:
    """The verdict on the compiled side; the reference gets its judge, where that is needed and not made."""
    job, seed, scenario = comparison.job, comparison.seed, comparison.scenario
    eager = reference.eager
    seed()
    step = comparison.compiled_step
    compiled = observed(step, follows=comparison.eager_step)
    states = _generator_states(comparison.device)
    compiled_effects = comparison.compiled_side.changed()
    of_group = getattr(scenario, "OF_GROUP", 0.0)
    distance = output_comparison.distance(eager, compiled, of_group)
    unjudged = max(job.tolerance, _UNJUDGED.get(job.case.dtype, 0.01))
    outputs = [_model_outputs(comparison, side) for side in (eager, compiled)]
    if all(map(output_comparison.nothing_finite, outputs)):
        verdict = _by_effects(comparison, reference, compiled_effects, outputs, unjudged)
        return {**verdict, "distance": distance}
    float64_outputs, elsewhere, why_none = None, "", ""
    noise: dict[str, float] = {}  # `judge` keeps this dict: it grows when eager runs again
    judge: Judge
    if job.distance_bound is not None:
        judge = functools.partial(output_comparison.within, bound=job.distance_bound, of_group=of_group)
    else:
        if reference.judge is None:
            reference.judge = _float64_outputs(comparison, reference.states)
        float64_outputs, elsewhere, why_none = reference.judge
        if float64_outputs is not None and of_group:
            noise = output_comparison.relative_errors(eager, float64_outputs, of_group)
        judge = functools.partial(
            output_comparison.compare,
            noise=noise,
            judge=float64_outputs,
            tolerance=job.tolerance,
            factor=job.factor,
            cosine=job.cosine,
            of_group=of_group,
            gated=getattr(scenario, "GATED", ()),
            unjudged=unjudged,
        )
    verdict = judge(eager, compiled)
    torch_draws = [name for name in reference.draws if name in ("torch", _ON_DEVICE)]
    is_repeatable = hasattr(comparison.backend, "prepare_repeatable")
    if verdict["status"] == "fail" and torch_draws and is_repeatable:
        side = comparison.compiled_side
        example = getattr(scenario, "example", lambda inputs: inputs)
        with _compiling_uncounted(comparison):
            model = comparison.backend.prepare_repeatable(side.module, example(side.inputs), job)
            step = scenario.make_step(model, side, comparison.device)
            seed()
            compiled = observed(step, follows=comparison.eager_step)
        states = _generator_states(comparison.device)
        verdict = judge(eager, compiled)
        distance = output_comparison.distance(eager, compiled, of_group)
        verdict["detail"] += "; checked on a second artefact, which draws the random numbers of eager"
        compiled_effects = side.changed()
    # A second artefact that draws other numbers from torch has lost some: a fault.
    own = torch_draws if is_repeatable else []
    others = [
        name for name in reference.draws if name not in own and states.get(name) != reference.states[name]
    ]
    drew_others = False
    if others and verdict["status"] == "fail" and verdict["value"] is not None:  # None: of another structure
        verdict = _beside_other_numbers(comparison, step, eager, compiled, judge, verdict, ", ".join(others))
        drew_others = verdict["status"] == "skipped"
    if verdict["status"] == "fail" and of_group:
        verdict = _judged_again(comparison, verdict, eager, compiled, float64_outputs, noise, judge)
    if (
        why_none.startswith(_NO_MEMORY)
        and job.until_oom
        and not job.cosine
        and verdict["status"] == "pass"
        and verdict["metric"] in ("cosine", "relative_rmse")
    ):
        # The distance to eager alone is weak evidence, and smaller batches of this model were judged.
        verdict["status"] = "skipped"
    if verdict["status"] != "fail" and not job.variant:
        # A back end that converts elsewhere (CAPTURES), or computes in other bits, may update differently.
        exact = getattr(comparison.backend, "CAPTURES", True) and job.distance_bound is None
        exact = exact and not drew_others
        effects = output_comparison.other_effects(
            reference.effects, compiled_effects, exact, job.tolerance, unjudged
        )
        verdict = effects or verdict
    if elsewhere and not why_none:
        verdict["judge_on"] = elsewhere
        verdict["detail"] += f"; the float64 judge ran on {elsewhere}, for want of memory on the GPU"
    if comparison.atomics:
        verdict["atomics"] = comparison.atomics
        verdict["detail"] += (
            "; eager ran with deterministic algorithms: atomic additions alone make two runs of it differ "
            f"({comparison.atomics})"
        )
    if why_none:
        verdict["detail"] += f"; no float64 judge: {why_none}"
        verdict["no_judge"] = why_none
    return {**verdict, "distance": distance}


def _by_effects(
    comparison: BothSides,
    reference: Reference,
    compiled_effects: Dict[str, Any],
    outputs: List[Any],
    unjudged: float,
) -> Verdict:
    """The verdict where no output of either side is finite: of a model that returns None by what it changes.

    outputs: of both sides. Where a model returns NaN, its inputs and buffers prove nothing: where numbers
    overflow depends on how they are rounded. What depends on random numbers is not judged either.
    """
    job = comparison.job
    changed = reference.effects, compiled_effects
    returns_none = all(leaf is None for _, leaf in pytree.leaves(outputs))
    if returns_none and not job.variant and not all(map(output_comparison.nothing_finite, changed)):
        exact = getattr(comparison.backend, "CAPTURES", True) and job.distance_bound is None
        exact = exact and not reference.draws
        effects = output_comparison.other_effects(*changed, exact, job.tolerance, unjudged)
        if effects:
            return effects
        if exact:
            verdict = output_comparison.compare(
                *changed, None, tolerance=job.tolerance, factor=1.0, unjudged=unjudged
            )
            return {**verdict, "detail": f"the model returns nothing; what it changes: {verdict['detail']}"}
    detail = "neither eager nor the compiled side returns a finite number: nothing could be compared"
    return {"status": "no_finite_output", "detail": detail}


@contextlib.contextmanager
def _compiling_uncounted(comparison: BothSides) -> Iterator[None]:
    """What is compiled within is compiled on the cores for that, and is no part of the case's counts."""
    compilers = comparison.job.inductor_config.get("compile_threads")
    with compilation.on_cores(comparison.job.compile_cores, compilers), comparison.uncounted():
        yield


def _beside_other_numbers(
    comparison: BothSides,
    step: Any,
    eager: Any,
    compiled: Any,
    judge: Judge,
    verdict: Verdict,
    generators: str,
) -> Verdict:
    """`skipped` where other random numbers explain why the compiled side's `step` failed, else `fail`.

    Both sides run again with other numbers, which shows how far these move each leaf. Leaves that they move
    as far are left out; the others are judged. If the runs are out of memory, nothing is judged.
    """

    def redrawn(run: Callable[[], Any]) -> Iterator[Any]:
        for more in range(1, _REDRAWN_RUNS + 1):
            comparison.seed()
            number = comparison.job.seed + more
            random.seed(number)
            torch.manual_seed(number)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(number)
            yield run()

    of_eager = redrawn(lambda: comparison.observe_eager(observed))
    of_compiled = redrawn(lambda: observed(step, follows=comparison.eager_step))
    why = f"the model draws random numbers ({generators}), which the back end cannot repeat"
    skipped = {**verdict, "status": "skipped", "detail": f"{verdict['detail']}; not judged: {why}"}
    try:
        with _compiling_uncounted(comparison):  # another number may lead to another branch
            random_leaves = output_comparison.random_leaves(eager, compiled, of_eager, of_compiled)
        others = judge(eager, compiled, without=random_leaves)
    except (RuntimeError, MemoryError) as error:
        if not failures.is_out_of_memory(error):
            raise
        return skipped
    finally:
        comparison.seed()
    if others["status"] != "fail":
        return skipped
    why += ", but these do not explain it: other ones move eager less, or the back end returns the same"
    return {**others, "detail": f"{others['detail']}; {why}"}


def observed(step: Any, follows: Any = None) -> Any:
    """Copies of everything that a step is judged by: its outputs, or what its `observe` returns.

    `follows`: the step whose choices it repeats, where it makes choices.
    """
    if follows is not None and hasattr(step, "follow"):
        step.follow(follows)
    return pytree.detach(getattr(step, "observe", step)())


def _model_outputs(comparison: BothSides, observation: Any) -> Any:
    """What the model itself returns, among everything that a step is judged by."""
    name = getattr(comparison.scenario, "OUTPUT", None)
    return observation if name is None else observation[name]


def _float64_outputs(comparison: BothSides, states: Dict[str, str]) -> tuple[Any, str, str]:
    """The outputs of a float64 copy of the model, where it ran if not beside eager, or why there are none.

    Where a GPU lacks the memory, the copy runs on the CPU, if that has time and memory for it.
    states: of the generators after eager.
    """
    outputs, why = _tried(comparison, lambda: _judge_on_device(comparison), states)
    device = comparison.device
    if outputs is not None or device.kind == "cpu" or not why.startswith(_NO_MEMORY):
        return outputs, "", why
    device.drop_caches()
    refusal = _cpu_refuses(comparison)
    if refusal:
        return None, "", f"{why}; {refusal}"
    outputs, why_not_there = _tried(comparison, lambda: _judge_on_cpu(comparison), states)
    return outputs, "the CPU", "" if outputs is not None else f"{why}; on the CPU: {why_not_there}"


def _tried(comparison: BothSides, work: Callable[[], Any], states: Dict[str, str]) -> tuple[Any, str]:
    """What `work` returns, from the start that eager had; else None and why it failed.

    A float64 number takes more of the generator than a float32 one (rand, randn; dropout's masks are the
    same). Such outputs are far from eager's, and beside that distance any outputs would pass.
    """
    try:
        comparison.seed()  # the parameters, where steps change them
        with comparison.uncounted():
            outputs = work()
    except Exception as error:
        is_shortage = failures.is_out_of_memory(error)
        return None, f"{_NO_MEMORY if is_shortage else ''}{type(error).__name__}: {str(error)[:200]}"
    after = _generator_states(comparison.device)
    if any(after.get(name) != state for name, state in states.items() if name != _ON_DEVICE):
        return None, "in float64 the model draws other random numbers"
    return outputs, ""


def _judge_on_device(comparison: BothSides) -> Any:
    eager = comparison.eager_side
    module = copy.deepcopy(eager.module)
    pytree.cast_module(module, pytree.double)
    return _judge(comparison, module, pytree.to_float64(eager.inputs), comparison.device)


def _judge_on_cpu(comparison: BothSides) -> Any:
    """The float64 copy in the host's memory, with as many threads as the case may compile with."""
    eager, threads = comparison.eager_side, torch.get_num_threads()

    def to_host(tensor: torch.Tensor) -> torch.Tensor:
        return pytree.double(tensor.detach().to("cpu", copy=True))

    # A deep copy of the module on the GPU would lack the same memory again: its tensors are replaced.
    replaced: dict[int, Any] = {}
    for tensor in [*held_memory.weights(eager.module), *held_memory.unregistered_tensors(eager.module)]:
        moved: Any = to_host(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            moved = torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
        replaced[id(tensor)] = moved
    module = copy.deepcopy(eager.module, replaced)
    inputs = pytree.map_tensors(eager.inputs, to_host)
    try:
        with compilation.on_cores(comparison.job.compile_cores):
            cores = len(comparison.job.compile_cores or os.sched_getaffinity(0))
            torch.set_num_threads(cores)
            return _judge(comparison, module, inputs, Cpu(cores))
    finally:
        torch.set_num_threads(threads)


def _judge(comparison: BothSides, module: Any, inputs: Any, device: Any) -> Any:
    job = comparison.job
    case = replace(job.case, dtype="float64", amp_dtype=None, device=device.kind)
    comparison.seed()
    inputs = as_leaves(inputs, comparison.eager_side.inputs)
    side = ModelSide(replace(job, case=case), module, inputs, inputs)
    return observed(comparison.scenario.make_step(module, side, device), follows=comparison.eager_step)


def _cpu_refuses(comparison: BothSides) -> str | None:
    """Why the float64 copy is not tried on the CPU: it would take too long, or too much of its memory."""
    from torch.utils.flop_counter import FlopCounterMode

    # The peak until now is that of the attempt beside eager, which filled the GPU.
    comparison.device.reset_peak()
    try:
        with FlopCounterMode(display=False) as counter:
            observed(comparison.eager_step)
    except Exception as error:
        return f"its time on the CPU could not be estimated: {type(error).__name__}"
    finally:
        comparison.seed()
    short = 8 / min((t.element_size() for t in comparison.eager_side.module.parameters()), default=4)
    needed = short * comparison.device.peak()[0]
    available = linux.available_bytes()
    if comparison.job.memory_limit_bytes:
        available = min(available, comparison.job.memory_limit_bytes)
    if needed > available:
        return f"the CPU has {available / 2**30:.1f} GiB for it and would need {needed / 2**30:.1f}"
    cores = max(1, len(comparison.job.compile_cores))
    expected_s = counter.get_total_flops() / (cores * _CPU_FLOPS)
    if expected_s > _MOST_ON_CPU_S:
        return f"it would take about {expected_s:.0f} s on {cores} cores of the CPU"
    return None


def _perturbed_runs(comparison: BothSides, eps: float | None = None) -> Iterator[Any]:
    """What eager returns when each parameter is moved by up to `eps`, by default in its last place.

    Another summation order moves gradients as much, so one run of eager shows only one chance result, and
    the back end must not be judged by that alone.
    """
    generator = torch.Generator().manual_seed(comparison.job.seed)
    for _ in range(_PERTURBED_RUNS):
        comparison.seed()
        with torch.no_grad():
            for tensor in comparison.eager_side.module.parameters():
                if tensor.is_floating_point():
                    noise = torch.rand(tensor.shape, generator=generator).mul_(2).sub_(1)
                    noise = noise.mul_(eps or torch.finfo(tensor.dtype).eps).add_(1).to(tensor.device)
                    tensor.copy_((tensor * noise).to(tensor.dtype))
        yield comparison.observe_eager(observed)
    comparison.seed()


def _judged_again(
    comparison: BothSides,
    verdict: Verdict,
    eager: Any,
    compiled: Any,
    float64_outputs: Any,
    noise: dict[str, float],
    judge: Judge,
) -> Verdict:
    """The verdict on a failed training step, with eager's own noise known.

    If eager's further runs are out of memory, the verdict does not change.
    """
    of_group = comparison.scenario.OF_GROUP
    try:
        if float64_outputs is not None:
            for perturbed in _perturbed_runs(comparison):
                errors = output_comparison.relative_errors(perturbed, float64_outputs, of_group)
                for group, error in errors.items():
                    noise[group] = max(error, noise.get(group, 0.0))
                del perturbed  # else two runs are in memory at once
            verdict = judge(eager, compiled)
            verdict["detail"] += "; eager was asked again, its parameters moved in their last place"
        elif comparison.job.distance_bound is not None and verdict["value"] is not None:
            verdict = _unless_eager_is_as_far(comparison, verdict, eager, compiled)
    except (RuntimeError, MemoryError) as error:
        if not failures.is_out_of_memory(error):
            raise
        verdict["detail"] += "; no memory was left to ask eager again"
    return {**verdict, "detail": verdict["detail"][:1000]}


def _unless_eager_is_as_far(comparison: BothSides, verdict: Verdict, eager: Any, compiled: Any) -> Verdict:
    """`skipped` where rounding moves eager itself about as far as the compiled side is away.

    Every tensor beyond the bound counts; eager's parameters are moved by as much as the short dtype rounds.
    Gradients of a deep network with random weights are then those of another network: no verdict.
    """
    job, of_group = comparison.job, comparison.scenario.OF_GROUP
    name = job.case.amp_dtype or (job.case.dtype if job.case.dtype.endswith("float16") else "bfloat16")
    distances = output_comparison.distances(eager, compiled, of_group)
    beyond = {path: value for path, value in distances.items() if not value <= (job.distance_bound or 0.0)}
    reached = dict.fromkeys(beyond, 0.0)
    for perturbed in _perturbed_runs(comparison, torch.finfo(getattr(torch, name)).eps / 2):
        moved = output_comparison.distances(eager, perturbed, of_group)
        reached = {path: max(reach, moved.get(path, 0.0)) for path, reach in reached.items()}
        del perturbed
    if not beyond or any(not value <= 2 * reached[path] for path, value in beyond.items()):
        return verdict
    furthest = max(beyond, key=beyond.__getitem__)
    why = f"with its parameters moved as {name} rounds, eager itself is {reached[furthest]:.2g} away"
    detail = f"{verdict['detail']}; not judged: {why} ({furthest})"
    return {**verdict, "status": "skipped", "detail": detail}
