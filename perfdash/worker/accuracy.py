"""The accuracy check of a case: run both sides, make the float64 judge, decide (output_comparison.py).

A training step that fails is judged a second time, once it is known how far eager gets from itself: beside
ReLUs the rounding of another summation order decides which gradients are zero.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from dataclasses import replace
from typing import Any, Callable, Iterator

import torch

from perfdash.worker import failures, output_comparison, pytree
from perfdash.worker.eager_and_compiled import Comparison, Side

_PERTURBED_RUNS = 4  # of eager, from parameters moved by rounding
_NO_MEMORY = "no memory for it: "
# The relative rmse to eager that outputs may have where no judge could be made, by the case's dtype.
_UNJUDGED = {"float32": 0.01, "float16": 0.02, "bfloat16": 0.05, "amp": 0.05}

Verdict = dict[str, Any]
Judge = Callable[[Any, Any], Verdict]  # of eager's outputs and the compiled side's


def of_case(comparison: Comparison, eager_differs: str | None) -> Verdict:
    """The event `accuracy`. `eager_differs`: how two eager runs differ, None where they do not."""
    job, seed, scenario = comparison.job, comparison.seed, comparison.scenario
    if not job.check_accuracy:
        return {"status": "skipped", "detail": "the suite skips the check for this model"}
    if eager_differs:
        return {"status": "eager_two_runs_differ", "detail": eager_differs}
    seed()
    state = comparison.device.random_state()
    eager = observed(comparison.eager_step)
    is_random = not torch.equal(comparison.device.random_state(), state)
    eager_effects = comparison.eager_side.changed()
    seed()
    compiled = observed(comparison.compiled_step, follows=comparison.eager_step)
    compiled_effects = comparison.compiled_side.changed()
    of_group = getattr(scenario, "OF_GROUP", 0.0)
    distance = output_comparison.distance(eager, compiled, of_group)
    if all(output_comparison.nothing_finite(_model_outputs(comparison, side)) for side in (eager, compiled)):
        detail = "neither eager nor the compiled side returns a finite number: nothing could be compared"
        return {"status": "no_finite_output", "detail": detail, "distance": distance}
    unjudged = max(job.tolerance, _UNJUDGED.get(job.case.dtype, 0.01))
    float64_outputs, why_none = None, ""
    noise: dict[str, float] = {}  # `judge` keeps this dict: it grows when eager runs again
    judge: Judge
    if job.distance_bound is not None:
        judge = functools.partial(output_comparison.within, bound=job.distance_bound, of_group=of_group)
    else:
        if is_random and comparison.device.kind == "cuda":
            why_none = "CUDA draws other random numbers in float64"
        else:
            float64_outputs, why_none = _float64_outputs(comparison)
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
    if verdict["status"] == "fail" and is_random and hasattr(comparison.backend, "prepare_repeatable"):
        side = comparison.compiled_side
        example = getattr(scenario, "example", lambda inputs: inputs)
        model = comparison.backend.prepare_repeatable(side.module, example(side.inputs), job)
        step = scenario.make_step(model, side, comparison.device)
        seed()
        with comparison.frames.uncounted() if comparison.frames else contextlib.nullcontext():
            compiled = observed(step, follows=comparison.eager_step)
        verdict = judge(eager, compiled)
        distance = output_comparison.distance(eager, compiled, of_group)
        verdict["detail"] += "; checked on a second artefact, which draws the random numbers of eager"
        compiled_effects = side.changed()
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
        effects = output_comparison.other_effects(
            eager_effects, compiled_effects, exact, job.tolerance, unjudged
        )
        verdict = effects or verdict
    if why_none:
        verdict["detail"] += f"; no float64 judge: {why_none}"
        verdict["no_judge"] = why_none
    return {**verdict, "distance": distance}


def observed(step: Any, follows: Any = None) -> Any:
    """Copies of everything that a step is judged by: its outputs, or what its `observe` returns.

    `follows`: the step whose choices it repeats, where it makes choices.
    """
    if follows is not None and hasattr(step, "follow"):
        step.follow(follows)
    return pytree.detach(getattr(step, "observe", step)())


def _model_outputs(comparison: Comparison, observation: Any) -> Any:
    """What the model itself returns, among everything that a step is judged by."""
    name = getattr(comparison.scenario, "OUTPUT", None)
    return observation if name is None else observation[name]


def _float64_outputs(comparison: Comparison) -> tuple[Any, str]:
    """The outputs of a float64 copy of the model, or None and why there are none."""
    eager = comparison.eager_side
    try:
        comparison.seed()  # the parameters, where steps change them
        module = copy.deepcopy(eager.module)
        pytree.cast_module(module, pytree.double)
        exact = replace(comparison.job, case=replace(comparison.job.case, dtype="float64", amp_dtype=None))
        inputs = pytree.to_float64(eager.inputs)
        comparison.seed()
        side = Side(exact, module, inputs, inputs)
        step = comparison.scenario.make_step(module, side, comparison.device)
        return observed(step, follows=comparison.eager_step), ""
    except Exception as error:
        is_shortage = failures.is_out_of_memory(error)
        return None, f"{_NO_MEMORY if is_shortage else ''}{type(error).__name__}: {str(error)[:200]}"


def _perturbed_runs(comparison: Comparison, eps: float | None = None) -> Iterator[Any]:
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
        yield observed(comparison.eager_step)
    comparison.seed()


def _judged_again(
    comparison: Comparison,
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


def _unless_eager_is_as_far(comparison: Comparison, verdict: Verdict, eager: Any, compiled: Any) -> Verdict:
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
