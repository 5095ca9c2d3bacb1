"""What is asked of the outputs of both sides: are they right, and how good are they on labelled data."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator

import torch

from perfdash.records import Job, Status
from perfdash.worker import failures, output_comparison, pytree, quality, registry
from perfdash.worker.device import Cpu, Cuda
from perfdash.worker.eager_and_compiled import Side

_NEARBY = 4  # runs of eager from parameters nearby
_NO_MEMORY = "no memory for it: "
# How far from eager's (relative rmse) outputs may be where no judge could be made, by the case's dtype.
_UNJUDGED = {"float32": 0.01, "float16": 0.02, "bfloat16": 0.05, "amp": 0.05}


@dataclass
class Compared:
    """Both sides, ready to run. `model` is what the back end made; `seed` sets all that is random."""

    job: Job
    scenario: Any
    backend: Any
    device: Cpu | Cuda
    baseline: Side
    own: Side
    model: Any
    eager_step: Callable[[], Any]
    backend_step: Callable[[], Any]
    seed: Callable[[], None]


def accuracy_of(compared: Compared, eager_differs: str | None) -> dict[str, Any]:
    """The event `accuracy`. `eager_differs`: how two eager runs differ, None where they do not."""
    job, seed = compared.job, compared.seed
    if not job.check_accuracy:
        return {"status": "skipped", "detail": "the suite skips the check for this model"}
    if eager_differs:
        return {"status": "eager_two_runs_differ", "detail": eager_differs}
    seed()
    state = compared.device.random_state()
    eager = observed(compared.eager_step)
    is_random = not torch.equal(compared.device.random_state(), state)
    effects = compared.baseline.changed()
    seed()
    other = observed(compared.backend_step, follows=compared.eager_step)
    own_effects = compared.own.changed()
    of_group = getattr(compared.scenario, "OF_GROUP", 0.0)
    distance = output_comparison.distance(eager, other, of_group)
    if all(output_comparison.nothing_finite(_shown(compared, each)) for each in (eager, other)):
        detail = "neither eager nor the compiled side returns a finite number: nothing could be compared"
        return {"status": "no_finite_output", "detail": detail, "distance": distance}
    unjudged = max(job.tolerance, _UNJUDGED.get(job.case.dtype, 0.01))
    judge, why_none = None, ""
    noise: dict[str, float] = {}  # the same dict to the end: it grows when eager is asked again
    judged: Callable[[Any, Any], dict[str, Any]]
    if job.distance_bound is not None:
        judged = functools.partial(output_comparison.within, bound=job.distance_bound, of_group=of_group)
    else:
        if is_random and compared.device.kind == "cuda":
            why_none = "CUDA draws other random numbers in float64"
        else:
            judge, why_none = _judge(compared)
        if judge is not None and of_group:
            noise = output_comparison.relative_errors(eager, judge, of_group)
        judged = functools.partial(
            output_comparison.compare,
            noise=noise,
            judge=judge,
            tolerance=job.tolerance,
            factor=job.factor,
            cosine=job.cosine,
            of_group=of_group,
            gated=getattr(compared.scenario, "GATED", ()),
            unjudged=unjudged,
        )
    verdict = judged(eager, other)
    if verdict["status"] == "fail" and is_random and hasattr(compared.backend, "prepare_repeatable"):
        own = compared.own
        model = compared.backend.prepare_repeatable(own.module, own.inputs, job)
        step = compared.scenario.make_step(model, own, compared.device)
        seed()
        again = observed(step, follows=compared.eager_step)
        verdict, distance = judged(eager, again), output_comparison.distance(eager, again, of_group)
        verdict["detail"] += "; checked on a second artefact, which draws the random numbers of eager"
        other, own_effects = again, compared.own.changed()
    if verdict["status"] == "fail" and of_group:
        verdict = _asked_again(compared, verdict, eager, other, judge, noise, judged)
    if (
        why_none.startswith(_NO_MEMORY)
        and job.until_oom
        and not job.cosine
        and verdict["status"] == "pass"
        and verdict["metric"] in ("cosine", "relative_rmse")
    ):
        # As far as it goes, which is not far: smaller batches of it were judged.
        verdict["status"] = "skipped"
    if verdict["status"] != "fail" and not job.variant:
        # What is converted elsewhere (CAPTURES), or computes in other bits, is not held to eager's updates.
        exact = getattr(compared.backend, "CAPTURES", True) and job.distance_bound is None
        verdict = (
            output_comparison.other_effects(effects, own_effects, exact, job.tolerance, unjudged) or verdict
        )
    if why_none:
        verdict["detail"] += f"; no float64 judge: {why_none}"
        verdict["no_judge"] = why_none
    return {**verdict, "distance": distance}


def _shown(compared: Compared, observation: Any) -> Any:
    """What the model itself returns of all that a step is judged by."""
    name = getattr(compared.scenario, "OUTPUT", None)
    return observation if name is None else observation[name]


def _nearby(compared: Compared, eps: float | None = None) -> Iterator[Any]:
    """What eager does when its parameters are moved by up to `eps`, else in their last place.

    As another order of summing moves what comes of them: by what is chance in one run of eager's, the back
    end must not be judged.
    """
    generator = torch.Generator().manual_seed(compared.job.seed)
    for _ in range(_NEARBY):
        compared.seed()
        with torch.no_grad():
            for tensor in compared.baseline.module.parameters():
                if tensor.is_floating_point():
                    noise = torch.rand(tensor.shape, generator=generator).mul_(2).sub_(1)
                    noise = noise.mul_(eps or torch.finfo(tensor.dtype).eps).add_(1).to(tensor.device)
                    tensor.copy_((tensor * noise).to(tensor.dtype))
        yield observed(compared.eager_step)
    compared.seed()


def _asked_again(
    compared: Compared,
    verdict: dict[str, Any],
    eager: Any,
    other: Any,
    judge: Any,
    noise: dict[str, float],
    judged: Callable[[Any, Any], dict[str, Any]],
) -> dict[str, Any]:
    """The verdict on a training step that failed, once it is known how far eager gets from itself.

    Memory that only this lacks leaves it as it was.
    """
    of_group = compared.scenario.OF_GROUP
    try:
        if judge is not None:
            for nearby in _nearby(compared):
                for group, error in output_comparison.relative_errors(nearby, judge, of_group).items():
                    noise[group] = max(error, noise.get(group, 0.0))
                del nearby
            verdict = judged(eager, other)
            verdict["detail"] += "; eager was asked again, its parameters moved in their last place"
        elif compared.job.distance_bound is not None and verdict["value"] is not None:
            verdict = _beyond_judging(compared, verdict, eager, other)
    except (RuntimeError, MemoryError) as error:
        if not failures.is_out_of_memory(error):
            raise
        verdict["detail"] += "; no memory was left to ask eager again"
    return {**verdict, "detail": verdict["detail"][:1000]}


def _beyond_judging(compared: Compared, verdict: dict[str, Any], eager: Any, other: Any) -> dict[str, Any]:
    """`skipped` where eager, its parameters moved by as much as fewer bits round, gets about as far in every
    tensor that is further away than is allowed.

    Gradients of a deep network with random weights are then another network's: nothing can be said.
    """
    job, of_group = compared.job, compared.scenario.OF_GROUP
    name = job.case.amp_dtype or (job.case.dtype if job.case.dtype.endswith("float16") else "bfloat16")
    found = output_comparison.distances(eager, other, of_group)
    beyond = {path: value for path, value in found.items() if not value <= (job.distance_bound or 0.0)}
    reached = dict.fromkeys(beyond, 0.0)
    for nearby in _nearby(compared, torch.finfo(getattr(torch, name)).eps / 2):
        moved = output_comparison.distances(eager, nearby, of_group)
        reached = {path: max(reach, moved.get(path, 0.0)) for path, reach in reached.items()}
        del nearby
    if not beyond or any(not value <= 2 * reached[path] for path, value in beyond.items()):
        return verdict
    furthest = max(beyond, key=beyond.__getitem__)
    why = f"with its parameters moved as {name} rounds, eager itself is {reached[furthest]:.2g} away"
    detail = f"{verdict['detail']}; not judged: {why} ({furthest})"
    return {**verdict, "status": "skipped", "detail": detail}


def observed(step: Any, follows: Any = None) -> Any:
    """Copies of all that a step is judged by: its outputs, or what it says of itself.

    `follows`: the step whose choices it is to make again, where it makes choices.
    """
    if follows is not None and hasattr(step, "follow"):
        step.follow(follows)
    return pytree.detach(getattr(step, "observe", step)())


def _judge(compared: Compared) -> tuple[Any, str]:
    """The outputs of a float64 copy of the model, or None and why there is none."""
    baseline = compared.baseline
    try:
        compared.seed()  # the parameters, where steps change them
        module = copy.deepcopy(baseline.module)
        pytree.cast_module(module, pytree.double)
        exact = replace(compared.job, case=replace(compared.job.case, dtype="float64", amp_dtype=None))
        inputs = pytree.to_float64(baseline.inputs)
        compared.seed()
        side = Side(exact, module, inputs, inputs)
        step = compared.scenario.make_step(module, side, compared.device)
        return observed(step, follows=compared.eager_step), ""
    except Exception as error:
        lost = failures.is_out_of_memory(error)
        return None, f"{_NO_MEMORY if lost else ''}{type(error).__name__}: {str(error)[:200]}"


def quality_of(compared: Compared) -> dict[str, Any]:
    """The event `quality`: how often each side is right on labelled data; or why that cannot be told."""

    def caller(side: Side, model: Any) -> Callable[[Any], Any]:
        expected = pytree.structure(side.inputs)

        def call(inputs: Any) -> Any:
            prepared = side.prepared(inputs)
            # Else it would be compiled anew, and another artefact be scored than the one that is timed.
            if pytree.structure(prepared) != expected:
                raise ValueError(f"the data give {pytree.structure(prepared)}, the model takes {expected}")
            return compared.scenario.make_step(model, side.with_inputs(prepared), compared.device)()

        return call

    try:
        data = registry.find("datasets", compared.job.data or "").open_data(compared.job)
        return quality.score(
            caller(compared.baseline, compared.baseline.module),
            caller(compared.own, compared.model),
            data,
            compared.job.case.batch_size,
        )
    except Exception as error:  # whatever is wrong with the data: the rest is measured all the same
        if failures.classify("quality", error) in (Status.OOM, Status.INFRA_ERROR):
            raise
        return {"reason": f"{type(error).__name__}: {str(error)[:500]}"}
