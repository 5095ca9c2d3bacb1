"""Verdicts on compiled outputs, beside eager's and those of the judge: a float64 copy of the model.

Compiled outputs pass if they are as close to the judge as eager's are, within a factor. Absolute
tolerances shrink with outputs below one: else any output of 1e-6 would pass.
"""

from __future__ import annotations

import math
from typing import Any, Collection, Iterable, Iterator, Mapping, Optional

import torch

from perfdash.worker import pytree
from perfdash.worker.pytree import structure

_COSINE = 0.99
_COSINE_DISTANCE = 0.1  # relative rmse that `cosine` allows: the cosine itself ignores the size of outputs
_GATED = 0.05  # the same for gradients behind ReLUs without a judge, where the effect of rounding is unknown
_ONE_GATE = 1e-2  # a single ReLU gate of a late layer moves its gradients by this, in few runs of eager
_JUDGEABLE = 0.5  # of a leaf's size: an error of the whole size would let a missing gradient pass
_NO_DIGITS = 0.1  # of the least size of a leaf of a group
_CHANCE = 1.5  # the next run may exceed the largest error of a few runs by this factor
_FEW = 4  # of so few integers each may be a near tie
_REDRAWN = 3.0  # the next random numbers may move a leaf by this many times as far as a few others did
_STILL = 1e-5  # relative; what moves less has the same random numbers
_AS_INFINITE = 1e4  # a mask of this size is one: exp(-1e4) is 0; float16 ends at 65504
_NEAR = 0.01  # relative; of a leaf that other numbers move on the compiled side alone, in few runs


def leaves(outputs: Any) -> Iterator[tuple[str, Any]]:
    """(path, leaf) of outputs as pytree.leaves; a plain float is a float64 tensor without dimensions.

    Such a number (a loss as `.item()`) is rounded like the tensor that it was.
    """
    for path, leaf in pytree.leaves(outputs):
        yield path, torch.tensor(leaf, dtype=torch.float64) if isinstance(leaf, float) else leaf


def two_runs_differ(first: Any, second: Any, of_group: float = 0.0) -> Optional[str]:
    """Where two eager runs of one seed differ by more than rounding, None if they do not.

    `of_group`: as in `compare`.
    """
    if structure(first) != structure(second):
        return "the structure of the output differs"
    sizes = _group_sizes(first) if of_group else {}
    for (path, left), (_, right) in zip(leaves(first), leaves(second)):
        if not isinstance(left, torch.Tensor):
            if not _same_value(left, right):
                return f"{path} differs: {left!r}, {right!r}"[:300]
            continue
        # Rounding: some 100 units of the last place in float32, a few where a unit is large.
        allowed = max(1e-5, 4 * torch.finfo(left.dtype).eps) if left.is_floating_point() else 1e-5
        if left.numel() == 0 or same(left, right):
            continue
        left, right = _plain(left), _plain(right)
        if not torch.equal(left.isfinite(), right.isfinite()):
            return f"{path} differs in where it is finite"
        finite = left.isfinite()
        error = (left - right)[finite].abs().max().item() if finite.any() else 0.0
        scale = left[finite].abs().max().item() if finite.any() else 0.0
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
    without: Collection[str] = (),
) -> dict[str, Any]:
    """The verdict on compiled outputs: {status: pass | fail | skipped, metric, value, tolerance, detail}.

    Per leaf: allclose to eager; else rmse(judge, compiled) <= factor * rmse(judge, eager) +
    tolerance / 10; without a judge (None), or with `cosine`, cosine similarity >= 0.99 and relative rmse to
    eager <= `unjudged` (with `cosine` at least 0.1). NaN equals NaN where both have it. Integers: see
    _compare_integers. The leaf furthest beyond, or nearest to, its bound is the one reported.

    `of_group`: a leaf counts as at least this share of the size of its group (everything under one key of
    the outermost dict). Gradients that are zero but for rounding have no digits that could be right.
    `noise`: for each group the error of eager's leaves to the judge (relative_errors); no leaf must be
    nearer than that, even where eager's own leaf is; where that is too far for a verdict: `skipped`.
    `gated`: groups in which rounding may open or shut a ReLU's gate: there the whole tolerance counts, and
    at least 1 %. `without`: paths of leaves that are not compared.
    """
    if structure(eager) != structure(compiled):
        return _verdict(False, "structure", None, None, f"{structure(eager)} became {structure(compiled)}")
    judged = dict(leaves(judge)) if judge is not None else {}
    sizes = _group_sizes(eager) if of_group else {}
    worst, worst_ratio = _verdict(True, "equality", None, None, "the model returns nothing"), -1.0
    for (path, left), (_, right) in zip(leaves(eager), leaves(compiled)):
        if path in without:
            continue
        if isinstance(left, torch.Tensor):
            reference = judged.get(path)
            if not isinstance(reference, torch.Tensor) or reference.shape != left.shape:
                reference = None
            floor = of_group * sizes.get(_group(path), 0.0)
            group_noise = (noise or {}).get(_group(path), 0.0)
            is_gated = any(_group(path) == f"out[{name!r}" for name in gated)
            verdict, ratio = _compare_leaf(
                path,
                left,
                right,
                reference,
                tolerance,
                factor,
                cosine,
                floor,
                group_noise,
                is_gated,
                unjudged,
            )
        else:
            equal = _same_value(left, right)
            verdict = _verdict(equal, "equality", None, None, f"{path}: {left!r} became {right!r}")
            ratio = 0.0 if equal else math.inf
        ratio = {  # the constants come first: they are taken where the ratio is NaN
            "pass": min(1.0, ratio),
            "skipped": 1.0 + 1e-9,
            "fail": max(1.0 + 2e-9, ratio),
        }[verdict["status"]]
        if ratio > worst_ratio:
            worst, worst_ratio = verdict, ratio
    return worst


def nothing_finite(outputs: Any) -> bool:
    """Whether outputs hold nothing that could be compared: none at all, or only NaN and infinities.

    Whole numbers and plain values count only where there is nothing floating.
    """
    values = [leaf for _, leaf in pytree.leaves(outputs) if leaf is not None]
    tensors = [leaf for leaf in values if isinstance(leaf, torch.Tensor) and leaf.numel()]
    floating = [leaf for leaf in tensors if leaf.is_floating_point() or leaf.is_complex()]
    if floating:
        return not any(bool(_dense(leaf).isfinite().any()) for leaf in floating)
    plain = [leaf for leaf in values if not isinstance(leaf, torch.Tensor)]
    return not tensors and all(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in plain)


def other_effects(
    eager: Mapping[str, Optional[torch.Tensor]],
    compiled: Mapping[str, Optional[torch.Tensor]],
    exact: bool,
    tolerance: float,
    unjudged: float,
) -> Optional[dict[str, Any]]:
    """The verdict on what two sides changed in inputs and buffers (Side.changed); None where it is the same.

    Without `exact` only what the compiled side changes and eager does not is a fault.
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
    """For each group the largest relative rmse of a leaf to the judge, over leaves above `of_group`.

    Where a ReLU's input is zero but for rounding, its gradient is all or nothing. Which leaves this affects,
    and how many, is chance: another summation order affects others. So the errors of all leaves of a group
    say more about a leaf than its own error does.
    """
    sizes = _group_sizes(eager)
    errors: dict[str, float] = {}
    for path, left, right in _floating_pairs(eager, judge):
        size, group = _rms(left), _group(path)
        error = _rms(left - right)
        # A leaf without a right digit is zero but for rounding: no measure for the others.
        if size >= of_group * sizes[group] and error < _rms(right):
            errors[group] = max(errors.get(group, 0.0), error / size)
    return errors


def within(
    eager: Any, compiled: Any, bound: float, of_group: float = 0.0, without: Collection[str] = ()
) -> dict[str, Any]:
    """The verdict where fewer bits or integers are intended: the relative rmse to eager is within `bound`.

    Containers, keys and shapes must agree, dtypes need not. Only floating leaves are compared: another
    token is no fault. NaN and infinities must be where eager has them (_keeps_special). Without floating
    leaves, integers pass if they are equal, and fail if most of them differ; else `skipped`. `of_group`,
    `without`: as in `compare`.
    """
    measured = distance(eager, compiled, of_group, without)
    if measured is None:
        return _verdict(False, "structure", None, None, f"{structure(eager)} became {structure(compiled)}")
    if not any(_is_inexact(leaf) and leaf.numel() for path, leaf in leaves(eager) if path not in without):
        return _only_integers(eager, compiled, without)
    for (path, left), (_, right) in zip(leaves(eager), leaves(compiled)):
        if _is_inexact(left) and path not in without:
            not_finite = _not_finite(path, _keeps_special(_plain(left), _plain(right)))
            if not_finite:
                return not_finite
    value, cosine = measured["relative_rmse"], measured["cosine"]
    if value is None or cosine is None:
        return _verdict(False, "relative_rmse", None, bound, "nothing finite to compare")
    detail = f"relative rmse to eager {value:.3g}, cosine similarity {cosine:.6f}"
    return _verdict(value <= bound, "relative_rmse", value, bound, detail)


def _only_integers(eager: Any, compiled: Any, without: Collection[str]) -> dict[str, Any]:
    """The verdict of `within` on outputs of the same structure without floating values.

    Where fewer bits are intended, near ties fall otherwise, and no bound says how many there are.
    """
    wrong, count = 0, 0
    for (path, left), (_, right) in zip(leaves(eager), leaves(compiled)):
        if path in without:
            continue
        if isinstance(left, torch.Tensor):
            wrong, count = wrong + _differing(left, right), count + left.numel()
        else:
            wrong, count = wrong + (not _same_value(left, right)), count + 1
    detail = f"{wrong} of {count} elements differ from eager's; there are no floating outputs"
    if 0 < wrong <= max(count / 2, _FEW):
        detail += "; not judged: a lower precision may give another label or order"
        return {**_verdict(True, "elements_differ", wrong, 0, detail), "status": "skipped"}
    return _verdict(wrong == 0, "elements_differ", wrong, 0, detail)


def distances(eager: Any, compiled: Any, of_group: float = 0.0) -> dict[str, float]:
    """The relative rmse of each floating leaf that both have, as in `distance`."""
    sizes = _group_sizes(eager) if of_group else {}
    relative: dict[str, float] = {}
    for path, left, right in _floating_pairs(eager, compiled):
        scale = max(_rms(left), of_group * sizes.get(_group(path), 0.0))
        error = _rms(left - right)
        relative[path] = error / scale if scale else float(error > 0)
    return relative


def random_leaves(eager: Any, compiled: Any, of_eager: Iterable[Any], of_compiled: Iterable[Any]) -> set[str]:
    """The paths of the leaves whose distance to eager's is explained by other random numbers.

    of_eager, of_compiled: what both sides return with other numbers. A leaf is explained if, in
    one run at least, the compiled side is about as near to eager as two runs of eager are to each other. One
    run is enough, because a model may take a rare branch in the first run alone. Where eager differs in every
    run, the compiled side must differ, too: else it has lost the numbers.
    """
    first, made = dict(leaves(eager)), dict(leaves(compiled))
    furthest = dict.fromkeys(first, 0.0)
    always = set(first)  # leaves that differ in every run of eager
    previous: dict[str, Any] = {}
    for other in of_eager:
        now = dict(leaves(other))
        for path, leaf in first.items():
            moved = _apart(leaf, now.get(path))
            furthest[path] = max(furthest[path], moved)
            if path in always and path in previous:
                moved = _apart(previous[path], now.get(path))
            if moved <= _STILL:
                always.discard(path)
        previous = now
    explained = {
        path for path, leaf in first.items() if _apart(leaf, made[path]) <= _REDRAWN * furthest[path]
    }
    lost = always
    for other in of_compiled:
        if not lost and len(explained) == len(first):
            break
        now = dict(leaves(other))
        moving = {
            path
            for path in first
            if (path in lost or path not in explained) and _apart(made[path], now.get(path)) > _STILL
        }
        lost = lost - moving
        for path in moving - explained:
            if _apart(first[path], now.get(path)) <= max(_REDRAWN * furthest[path], _NEAR):
                explained.add(path)
    return explained - lost


def _apart(left: Any, right: Any) -> float:
    """How far two leaves are apart: rmse relative to the size of the first, or the share that differs.

    Infinite for other shapes, and where NaN or infinity is in other places.
    """
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        is_same = (
            not isinstance(left, torch.Tensor) and type(left) is type(right) and _same_value(left, right)
        )
        return 0.0 if is_same else math.inf
    if left.shape != right.shape:
        return math.inf
    if not _is_inexact(left):
        return _differing(left, right) / max(1, left.numel())
    left, right = _plain(left), _plain(right)
    if not (bool(left.isfinite().all()) and bool(right.isfinite().all())):
        if not bool(_same_special(left, right).all()):
            return math.inf
        finite = left.isfinite()
        left, right = left[finite], right[finite]
    error, size = _rms(left - right), _rms(left)
    return error / size if size else float(error > 0)


def _floating_pairs(first: Any, second: Any) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """The floating leaves that both have in the same shape, by path."""
    by_path = dict(leaves(second))
    for path, left in leaves(first):
        right = by_path.get(path)
        if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
            continue
        if left.shape == right.shape and left.is_floating_point() and left.numel():
            yield path, _plain(left), _plain(right)


def distance(
    eager: Any, compiled: Any, of_group: float = 0.0, without: Collection[str] = ()
) -> Optional[dict[str, Optional[float]]]:
    """How far the outputs are from eager's: {relative_rmse, cosine}, each of its worst floating leaf.

    relative_rmse is rms(compiled - eager) / rms(eager), over the values that are finite in eager. Both are
    None where the compiled values are not finite there, or no finite floating value was returned. None
    where containers, shapes or kinds of leaves differ. `of_group`, `without`: as in `compare`.
    """
    sizes = _group_sizes(eager) if of_group else {}
    compared = False
    kinds = [
        [(path, isinstance(leaf, torch.Tensor)) for path, leaf in pytree.leaves(outputs)]
        for outputs in (eager, compiled)
    ]
    if kinds[0] != kinds[1]:
        return None
    worst, lowest = 0.0, 1.0
    for (path, left), (_, right) in zip(leaves(eager), leaves(compiled)):
        if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
            continue
        if left.shape != right.shape:
            return None
        if not _is_inexact(left) or left.numel() == 0 or path in without:
            continue
        left, right = _plain(left), _plain(right)
        finite = left.isfinite()
        left, right = left[finite], right[finite]
        if not bool(right.isfinite().all()):
            return {"relative_rmse": None, "cosine": None}
        if left.numel() == 0:
            continue
        compared = True
        error, scale = _rms(left - right), max(_rms(left), of_group * sizes.get(_group(path), 0.0))
        # No error is small beside an output of zeros: it counts as an error of the output's whole size.
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
    if not _is_inexact(eager):
        return _compare_integers(path, eager, compiled, judge, factor)
    left, right = _plain(eager), _plain(compiled)
    if not_finite := _not_finite(path, _same_special(left, right)):
        return not_finite, math.inf
    finite = left.isfinite()
    note = (
        "" if bool(finite.all()) else f"; {int((~finite).sum().item())} values are NaN or infinite in eager"
    )
    left, right = left[finite], right[finite]
    if left.numel() == 0:
        return _verdict(True, "allclose", 0.0, tolerance, f"{path}: nothing finite to compare{note}"), 0.0
    size = max(floor, _rms(left))
    scale = min(1.0, size)
    alone = max(unjudged, _GATED) if gated else unjudged
    if cosine:
        return _beside_eager(path, left, right, size, max(alone, _COSINE_DISTANCE), note)
    if bool(((left - right).abs() <= tolerance * scale + tolerance * left.abs()).all()):
        value, bound, metric = _rms(left - right), tolerance * scale, "allclose"
        verdict = _verdict(True, metric, value, bound, f"{path}: rmse to eager {value:.3g}{note}")
        return verdict, 0.0 if not bound else value / bound
    if judge is None:
        return _beside_eager(path, left, right, size, alone, note)
    reference = _plain(judge)[finite]
    eager_error, value = _rms(reference - left), _rms(reference - right)
    if not (math.isfinite(eager_error) and math.isfinite(value)):
        return _beside_eager(path, left, right, size, alone, note + "; the judge is not finite")
    slack = (max(tolerance, _ONE_GATE) if gated else tolerance / 10) * scale
    by_chance = factor * _CHANCE * noise * _rms(left)
    bound = max(factor * eager_error, min(by_chance, _JUDGEABLE * _rms(left))) + slack
    if _rms(reference) < eager_error:  # zero but for rounding: eager has no right digit
        bound = max(bound, _NO_DIGITS * floor)
    of_all = (
        f" (its others' relative to their size up to {noise:.2g})" if by_chance > factor * eager_error else ""
    )
    detail = (
        f"{path}: rmse to the float64 judge {value:.3g}, eager's {eager_error:.3g}{of_all}, "
        f"scale of the output {_rms(left):.3g}{note}"
    )
    verdict = _verdict(value <= bound, "rmse_to_float64", value, bound, detail)
    if bound < value <= by_chance + slack:  # a gradient left out would be no further away
        verdict |= {"status": "skipped", "detail": f"{detail}; not judged: eager's are as far away"[:1000]}
    return verdict, value / bound if bound else math.inf


def _same_special(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Where two tensors are NaN both or neither, and the same infinity or none."""
    same_special = (left.isnan() == right.isnan()) & ((left.isinf() == right.isinf()) | left.isnan())
    return same_special & (~(left.isinf() & right.isinf()) | (left == right))


def _keeps_special(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """_same_special of fewer bits: an infinity may become the largest number of a short dtype.

    Such a number is beyond all others of eager's tensor, and so far away that it masks as infinity does.
    """
    finite = left[left.isfinite()]
    furthest = max(_AS_INFINITE, finite.abs().max().item() if finite.numel() else 0.0)
    return _same_special(left, right) | (left.isinf() & (right * left.sign() > furthest))


def _not_finite(path: str, is_kept: torch.Tensor) -> Optional[dict[str, Any]]:
    """The verdict on a leaf where NaN and infinities are not kept everywhere; None where they are."""
    if bool(is_kept.all()):
        return None
    count = int((~is_kept).sum().item())
    return _verdict(False, "not_finite", count, 0, f"{path}: NaN or infinity not in the same {count} places")


def _compare_integers(
    path: str, eager: torch.Tensor, compiled: torch.Tensor, judge: Optional[torch.Tensor], factor: float
) -> tuple[dict[str, Any], float]:
    """The verdict on labels, indices or masks, and value / bound (over 1: wrong).

    They pass if they equal eager's, or differ from the judge's in as many places as eager's do, within
    three standard deviations of such a count; up to `factor` times as many are `skipped`. A count ignores
    how far away a value is, so this is stricter than for floating leaves.
    """
    wrong = _differing(eager, compiled)
    if not wrong or judge is None or judge.dtype != eager.dtype:
        verdict = _verdict(wrong == 0, "elements_differ", wrong, 0, f"{path}: {wrong} elements differ")
        return verdict, math.inf if wrong else 0.0
    count, of_eager, value = eager.numel(), _differing(judge, eager), _differing(judge, compiled)
    # One value everywhere, or the right values in another order, differ in at least so many places.
    at_random = count - int(_dense(judge).unique(return_counts=True)[1].max().item())
    by_chance = of_eager + 3 * math.sqrt(of_eager)
    bound = min(factor * of_eager, by_chance, at_random / 2)
    # Of eager's right elements at least one in `factor`: else anything is possible where eager has few.
    most = min(factor * of_eager, count - (count - of_eager) / factor, count - 1)
    detail = (
        f"{path}: {value} of {count} elements differ from the float64 judge's, {of_eager} of eager's; "
        f"{wrong} differ between the two"
    )
    verdict = _verdict(value <= bound, "elements_differ", value, bound, detail)
    if bound < value <= most:
        verdict |= {"status": "skipped", "detail": f"{detail}; not judged: eager's are nearly as far away"}
    return verdict, value / bound if bound else (math.inf if value else 0.0)


def _differing(left: torch.Tensor, right: torch.Tensor) -> int:
    """In how many elements two tensors differ."""
    return int((_dense(left).cpu() != _dense(right).cpu()).sum().item())


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


def _same_value(left: Any, right: Any) -> bool:
    """Equal plain values (NaN to NaN); objects that compare by identity are taken as equal."""
    by_identity: Any = object.__eq__
    if type(left).__eq__ is by_identity:
        return True
    return bool(left == right) or bool(left != left and right != right)


def _beside_eager(
    path: str, left: torch.Tensor, right: torch.Tensor, size: float, bound: float, note: str
) -> tuple[dict[str, Any], float]:
    """The verdict on a tensor without a judge: its direction and its distance, beside eager's.

    The cosine ignores the size: twice the right output has 1.000.
    """
    norms = (left.norm() * right.norm()).item()
    cosine = (left * right).sum().item() / norms if norms else float(bool((left == right).all()))
    error = _rms(left - right)
    relative = error / size if size else float(error > 0)
    detail = f"{path}: relative rmse to eager {relative:.3g}, cosine similarity {cosine:.6f}{note}"
    turned, away = (1 - cosine) / (1 - _COSINE), relative / bound
    if turned > away:
        return _verdict(cosine >= _COSINE, "cosine", cosine, _COSINE, detail), turned
    return _verdict(relative <= bound, "relative_rmse", relative, bound, detail), away


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """torch.equal that also takes sparse tensors; NaN equals NaN."""
    left, right = _dense(left), _dense(right)
    if torch.equal(left, right):
        return True
    if left.shape != right.shape or not left.is_floating_point():
        return False
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def _is_inexact(leaf: Any) -> bool:
    """Whether a leaf is a tensor of floating, complex or quantised values, which rounding moves."""
    return isinstance(leaf, torch.Tensor) and (
        leaf.is_floating_point() or leaf.is_complex() or leaf.is_quantized
    )


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
