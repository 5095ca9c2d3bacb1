"""Are the compiled outputs right? The judge is a float64 copy of the model.

Compiled passes if it is as close to the judge as eager is, within a factor. All absolute tolerances
scale with outputs that are smaller than one, so that outputs of 1e-6 are not right by being small.
"""

from __future__ import annotations

import math
from typing import Any, Collection, Iterator, Mapping, Optional

import torch

from perfdash.worker.pytree import leaves, structure

_COSINE = 0.99
_OTHER_DIRECTION = 0.1  # relative rmse that `cosine` allows: outputs of another size have the same direction
_GATED = 0.05  # the same without a judge in gradients behind ReLUs, where nobody can tell what rounding does
_ONE_GATE = 1e-2  # a single one of a late layer moves its gradients by that, and few runs of eager's meet it
_JUDGEABLE = 0.5  # of its size: at all of it, no gradient would do as well
_NO_DIGITS = 0.1  # of what a leaf of a group counts as at least
_CHANCE = 1.5  # the largest of a few runs' errors may be exceeded by the next run's


def two_runs_differ(first: Any, second: Any, of_group: float = 0.0) -> Optional[str]:
    """Where two eager runs of one seed differ by more than rounding, None if they do not.

    `of_group`: as in `compare`.
    """
    if structure(first) != structure(second):
        return "the structure of the output differs"
    sizes = _group_sizes(first) if of_group else {}
    for (path, one), (_, two) in zip(leaves(first), leaves(second)):
        if not isinstance(one, torch.Tensor):
            if not _same_value(one, two):
                return f"{path} differs: {one!r}, {two!r}"[:300]
            continue
        # Rounding: some 100 units of the last place in float32, a few where a unit is large.
        allowed = max(1e-5, 4 * torch.finfo(one.dtype).eps) if one.is_floating_point() else 1e-5
        if one.numel() == 0 or same(one, two):
            continue
        one, two = _plain(one), _plain(two)
        if not torch.equal(one.isfinite(), two.isfinite()):
            return f"{path} differs in where it is finite"
        finite = one.isfinite()
        error = (one - two)[finite].abs().max().item() if finite.any() else 0.0
        scale = one[finite].abs().max().item() if finite.any() else 0.0
        scale = max(scale, of_group * sizes.get(_group(path), 0.0))
        if error > allowed * scale:
            return f"{path} differs by {error:.3g} where values reach {scale:.3g}"
    return None


def compare(
    eager: Any,
    compiled: Any,
    judge: Any,
    *,
    tolerance: float,
    factor: float,
    cosine: bool = False,
    of_group: float = 0.0,
    noise: Optional[Mapping[str, float]] = None,
    gated: Collection[str] = (),
    unjudged: float = 0.01,
) -> dict[str, Any]:
    """The verdict on compiled outputs: {status: pass | fail | skipped, metric, value, tolerance, detail}.

    Per leaf: allclose to eager; else rmse(judge, compiled) <= factor * rmse(judge, eager) +
    tolerance / 10; without a judge (None), or with `cosine`, cosine similarity >= 0.99 and relative rmse to
    eager <= `unjudged` (with `cosine` at least 0.1). NaN equals NaN where both have it. The leaf furthest
    beyond, or nearest to, its bound is the one reported.

    `of_group`: a leaf counts as at least this share of the size of its group (all that is under one key
    of the outermost dict). Gradients that are zero but for rounding have no digits that could be right.
    `noise`: of each group, how far eager's leaves are known to get from the judge (relative_errors); no
    leaf need be nearer than that, be eager's own as near as it may; where that is too far to say anything,
    `skipped`. `gated`: groups in which a ReLU's gate
    may be open or shut by rounding: there the whole tolerance counts, and at least 1 %.
    """
    if structure(eager) != structure(compiled):
        return _verdict(False, "structure", None, None, f"{structure(eager)} became {structure(compiled)}")
    judged = dict(leaves(judge)) if judge is not None else {}
    sizes = _group_sizes(eager) if of_group else {}
    worst, worst_ratio = _verdict(True, "equality", None, None, "the model returns nothing"), -1.0
    for (path, one), (_, other) in zip(leaves(eager), leaves(compiled)):
        if isinstance(one, torch.Tensor):
            reference = judged.get(path)
            if reference is not None and reference.shape != one.shape:
                reference = None
            floor = of_group * sizes.get(_group(path), 0.0)
            known = (noise or {}).get(_group(path), 0.0)
            is_gated = any(_group(path) == f"out[{name!r}" for name in gated)
            verdict, ratio = _compare_leaf(
                path, one, other, reference, tolerance, factor, cosine, floor, known, is_gated, unjudged
            )
        else:
            equal = _same_value(one, other)
            verdict = _verdict(equal, "equality", None, None, f"{path}: {one!r} became {other!r}")
            ratio = 0.0 if equal else math.inf
        ratio = {
            "pass": min(ratio, 1.0),
            "skipped": 1.0 + 1e-9,
            "fail": max(ratio, 1.0 + 2e-9),
        }[verdict["status"]]
        if ratio > worst_ratio:
            worst, worst_ratio = verdict, ratio
    return worst


def nothing_finite(outputs: Any) -> bool:
    """Whether outputs show nothing that could be compared: none at all, or only NaN and infinities.

    Whole numbers and plain values count only where there is nothing floating.
    """
    every = [leaf for _, leaf in leaves(outputs) if leaf is not None]
    tensors = [leaf for leaf in every if isinstance(leaf, torch.Tensor) and leaf.numel()]
    floating = [leaf for leaf in tensors if leaf.is_floating_point() or leaf.is_complex()]
    if floating:
        return not any(bool(_dense(leaf).isfinite().any()) for leaf in floating)
    return not tensors and all(isinstance(leaf, torch.Tensor) for leaf in every)


def other_effects(
    eager: Mapping[str, Optional[torch.Tensor]],
    compiled: Mapping[str, Optional[torch.Tensor]],
    exact: bool,
    tolerance: float,
    unjudged: float,
) -> Optional[dict[str, Any]]:
    """The verdict on what two sides left in inputs and buffers (Side.changed); None where it is the same.

    Not `exact`: only what the compiled side changes and eager does not.
    """
    for path in compiled:
        if path not in eager:
            detail = f"the compiled side changes {path}, which eager leaves as it is"
            return _verdict(False, "effect", None, None, detail)
    if not exact:
        return None
    for path in eager:
        if path not in compiled:
            detail = f"eager changes {path}, the compiled side leaves it as it is"
            return _verdict(False, "effect", None, None, detail)
    verdict = compare(dict(eager), dict(compiled), None, tolerance=tolerance, factor=1.0, unjudged=unjudged)
    if verdict["status"] == "pass":
        return None
    return {**verdict, "detail": f"both sides change it, to other values: {verdict['detail']}"[:1000]}


def relative_errors(eager: Any, judge: Any, of_group: float) -> dict[str, float]:
    """Of each group the largest rmse to the judge over the RMS of a leaf; of leaves above `of_group`.

    Where a ReLU's input is zero but for rounding, its gradient is all or nothing: which leaves that meets,
    and how many, is chance, and another order of summing has it elsewhere. So what eager's leaves show
    together says more of a leaf than its own error does.
    """
    sizes = _group_sizes(eager)
    found: dict[str, float] = {}
    for path, left, right in _floating_pairs(eager, judge):
        size, group = _rms(left), _group(path)
        error = _rms(left - right)
        # One without a right digit is zero but for rounding: no measure for the others.
        if size >= of_group * sizes[group] and error < _rms(right):
            found[group] = max(found.get(group, 0.0), error / size)
    return found


def within(eager: Any, compiled: Any, bound: float, of_group: float = 0.0) -> dict[str, Any]:
    """The verdict where another result is wanted, by fewer bits or integers: as near as `bound`.

    By the relative rmse of `distance`; containers, keys and shapes must agree, dtypes need not. What is
    not floating is not compared: a token may well be another one. `of_group`: as in `compare`.
    """
    found = distance(eager, compiled, of_group)
    if found is None:
        return _verdict(False, "structure", None, None, f"{structure(eager)} became {structure(compiled)}")
    value, cosine = found["relative_rmse"], found["cosine"]
    if value is None or cosine is None:
        return _verdict(
            False, "relative_rmse", None, bound, "NaN or infinity where eager has none, or nothing to compare"
        )
    detail = f"relative rmse to eager {value:.3g}, cosine similarity {cosine:.6f}"
    return _verdict(value <= bound, "relative_rmse", value, bound, detail)


def distances(eager: Any, compiled: Any, of_group: float = 0.0) -> dict[str, float]:
    """The relative rmse of each floating leaf that both have, as in `distance`."""
    sizes = _group_sizes(eager) if of_group else {}
    found: dict[str, float] = {}
    for path, left, right in _floating_pairs(eager, compiled):
        scale = max(_rms(left), of_group * sizes.get(_group(path), 0.0))
        error = _rms(left - right)
        found[path] = error / scale if scale else float(error > 0)
    return found


def _floating_pairs(ones: Any, others: Any) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """The floating leaves that both have in one shape, by path."""
    known = dict(leaves(others))
    for path, one in leaves(ones):
        other = known.get(path)
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            continue
        if one.shape == other.shape and one.is_floating_point() and one.numel():
            yield path, _plain(one), _plain(other)


def distance(eager: Any, compiled: Any, of_group: float = 0.0) -> Optional[dict[str, Optional[float]]]:
    """How far the outputs are from eager's: {relative_rmse, cosine}, each of its worst floating leaf.

    relative_rmse is rms(compiled - eager) / rms(eager), over what is finite in eager. Both are None where
    the other is not finite there, or nothing finite and floating was returned. None where containers,
    shapes or kinds of leaves differ. `of_group`: as in `compare`.
    """
    sizes = _group_sizes(eager) if of_group else {}
    compared = False
    ones, others = list(leaves(eager)), list(leaves(compiled))
    if [path for path, _ in ones] != [path for path, _ in others]:
        return None
    worst, lowest = 0.0, 1.0
    for (path, one), (_, other) in zip(ones, others):
        if isinstance(one, torch.Tensor) != isinstance(other, torch.Tensor):
            return None
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            continue
        if one.shape != other.shape:
            return None
        if not (one.is_floating_point() or one.is_complex() or one.is_quantized) or one.numel() == 0:
            continue
        left, right = _plain(one), _plain(other)
        finite = left.isfinite()
        left, right = left[finite], right[finite]
        if not bool(right.isfinite().all()):
            return {"relative_rmse": None, "cosine": None}
        if left.numel() == 0:
            continue
        compared = True
        error, scale = _rms(left - right), max(_rms(left), of_group * sizes.get(_group(path), 0.0))
        # Against an output of zeros no error is small; one of the size of the output says so.
        relative = error / scale if scale else float(error > 0)
        norms = (left.norm() * right.norm()).item()
        cosine = (left * right).sum().item() / norms if norms else float(error == 0)
        worst, lowest = max(worst, relative), min(lowest, cosine)
    return {"relative_rmse": worst, "cosine": lowest} if compared else {"relative_rmse": None, "cosine": None}


def _compare_leaf(
    path: str,
    eager: torch.Tensor,
    compiled: torch.Tensor,
    judge: Optional[torch.Tensor],
    tolerance: float,
    factor: float,
    cosine: bool,
    floor: float = 0.0,
    noise: float = 0.0,
    gated: bool = False,
    unjudged: float = 0.01,
) -> tuple[dict[str, Any], float]:
    """The verdict on one tensor, and value / bound (over 1: wrong)."""
    if not (eager.is_floating_point() or eager.is_complex() or eager.is_quantized):
        wrong = int((_dense(eager) != _dense(compiled)).sum().item())
        verdict = _verdict(wrong == 0, "elements_differ", wrong, 0, f"{path}: {wrong} elements differ")
        return verdict, math.inf if wrong else 0.0
    one, other = _plain(eager), _plain(compiled)
    same_special = (one.isnan() == other.isnan()) & ((one.isinf() == other.isinf()) | one.isnan())
    same_special &= ~(one.isinf() & other.isinf()) | (one == other)
    if not bool(same_special.all()):
        count = int((~same_special).sum().item())
        return _verdict(
            False, "not_finite", count, 0, f"{path}: NaN or infinity not in the same {count} places"
        ), math.inf
    finite = one.isfinite()
    note = (
        "" if bool(finite.all()) else f"; {int((~finite).sum().item())} values are NaN or infinite in eager"
    )
    one, other = one[finite], other[finite]
    if one.numel() == 0:
        return _verdict(True, "allclose", 0.0, tolerance, f"{path}: nothing finite to compare{note}"), 0.0
    size = max(floor, _rms(one))
    scale = min(1.0, size)
    alone = max(unjudged, _GATED) if gated else unjudged
    if cosine:
        return _beside_eager(path, one, other, size, max(alone, _OTHER_DIRECTION), note)
    if bool(((one - other).abs() <= tolerance * scale + tolerance * one.abs()).all()):
        value, bound, metric = _rms(one - other), tolerance * scale, "allclose"
        verdict = _verdict(True, metric, value, bound, f"{path}: rmse to eager {value:.3g}{note}")
        return verdict, 0.0 if not bound else value / bound
    if judge is None:
        return _beside_eager(path, one, other, size, alone, note)
    reference = _plain(judge)[finite]
    eager_error, value = _rms(reference - one), _rms(reference - other)
    if not (math.isfinite(eager_error) and math.isfinite(value)):
        return _beside_eager(path, one, other, size, alone, note + "; the judge is not finite")
    slack = (max(tolerance, _ONE_GATE) if gated else tolerance / 10) * scale
    by_chance = factor * _CHANCE * noise * _rms(one)
    bound = max(factor * eager_error, min(by_chance, _JUDGEABLE * _rms(one))) + slack
    if _rms(reference) < eager_error:  # zero but for rounding: eager has no digit right, nor need the other
        bound = max(bound, _NO_DIGITS * floor)
    of_all = (
        f" (its others' relative to their size up to {noise:.2g})" if by_chance > factor * eager_error else ""
    )
    detail = (
        f"{path}: rmse to the float64 judge {value:.3g}, eager's {eager_error:.3g}{of_all}, "
        f"scale of the output {_rms(one):.3g}{note}"
    )
    verdict = _verdict(value <= bound, "rmse_to_float64", value, bound, detail)
    if bound < value <= by_chance + slack:  # a gradient left out would be no further away
        verdict |= {"status": "skipped", "detail": f"{detail}; not judged: eager's are as far away"[:1000]}
    return verdict, value / bound if bound else math.inf


def _group(path: str) -> str:
    """The path of what is under one key of the outermost container: `out['gradients']`."""
    return path.partition("]")[0]


def _group_sizes(outputs: Any) -> dict[str, float]:
    """The RMS of all floating elements of each group, finite ones."""
    squares: dict[str, float] = {}
    counts: dict[str, int] = {}
    for path, leaf in leaves(outputs):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            values = _plain(leaf)
            values = values[values.isfinite()]
            name = _group(path)
            squares[name] = squares.get(name, 0.0) + float(values.square().sum())
            counts[name] = counts.get(name, 0) + values.numel()
    return {name: math.sqrt(total / max(1, counts[name])) for name, total in squares.items()}


def _same_value(one: Any, two: Any) -> bool:
    """Equal plain values (NaN to NaN); objects that compare by identity are taken as equal."""
    by_identity: Any = object.__eq__
    if type(one).__eq__ is by_identity:
        return True
    return bool(one == two) or bool(one != one and two != two)


def _beside_eager(
    path: str, one: torch.Tensor, other: torch.Tensor, size: float, bound: float, note: str
) -> tuple[dict[str, Any], float]:
    """The verdict on a tensor that eager's alone can be held against: its direction, and its distance.

    The cosine does not see another size: twice the right output has 1.000.
    """
    norms = (one.norm() * other.norm()).item()
    cosine = (one * other).sum().item() / norms if norms else float(bool((one == other).all()))
    error = _rms(one - other)
    relative = error / size if size else float(error > 0)
    detail = f"{path}: relative rmse to eager {relative:.3g}, cosine similarity {cosine:.6f}{note}"
    turned, away = (1 - cosine) / (1 - _COSINE), relative / bound
    if turned > away:
        return _verdict(cosine >= _COSINE, "cosine", cosine, _COSINE, detail), turned
    return _verdict(relative <= bound, "relative_rmse", relative, bound, detail), away


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """torch.equal, also of sparse tensors, which it refuses; NaN equals NaN."""
    one, two = _dense(one), _dense(two)
    if torch.equal(one, two):
        return True
    if one.shape != two.shape or not one.is_floating_point():
        return False
    return bool(((one == two) | (one.isnan() & two.isnan())).all())


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Any tensor as a flat dense float64 one on the CPU."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = _dense(tensor)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.to("cpu", torch.float64).flatten()


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt().item()) if values.numel() else 0.0


def _verdict(
    passed: bool, metric: str, value: Optional[float], tolerance: Optional[float], detail: str
) -> dict[str, Any]:
    return {
        "status": "pass" if passed else "fail",
        "metric": metric,
        "value": value,
        "tolerance": tolerance,
        "detail": detail[:1000],
    }
