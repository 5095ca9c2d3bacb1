"""The likelihood of a step between any two neighbours in a row of measured builds.

A value is the level of its side (good or bad) + the bias of its build + noise. All three are unknown and are
integrated over on grids, so that uncertainty widens the answer. Yes-or-no answers (crashed, wrong output)
have a model of their own, and the host's drift, common to all builds, is estimated and removed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy import special

from perfdash.stats.intervals import CONFIDENCE, Array

TAILS = 4.0  # degrees of freedom of the noise: an outlier counts little (Lange, Little and Taylor 1989)
INFORMATION = (TAILS + 1) / (TAILS + 3)  # of a value on its level, relative to Gaussian noise
BIASES = (0.0, 0.25, 0.5, 1.0)  # spread between builds of one side, in deviations of the noise
BIAS_WEIGHTS = (0.55, 0.28, 0.13, 0.04)
REACH = 10.0  # deviations within which a step lies: the prior cost of assuming one
TRUSTED = 10.0  # degrees of freedom at most of a deviation known from other nights
RESOLUTION = 1e-3  # a smaller spread counts as none: 0.1 % for values that are logs
LUMPED = 0.25  # share of values equal to their build's median from which median distances are too small
_SCALES = 9  # points of the grid of deviations
_FINE = 4  # points of the grid of levels in a deviation
_LEVELS = 200  # points between the extreme builds at most: larger steps need no finer grid
_CHUNK = 30  # factors that are multiplied before a logarithm is taken


@dataclass(frozen=True)
class KnownNoise:
    """The standard deviation of a measurement on other nights, and its degrees of freedom."""

    sd: float
    df: float = TRUSTED


@dataclass(frozen=True)
class Evidence:
    """The evidence of M builds in order, the first good and the last bad.

    cut (M - 1,): log likelihood of a step between the builds k and k + 1. none: of no step at all.
    step: bad less good level, with its 95 % interval, at the likeliest cut. sd: of the noise. bias: of a
    build, by which builds of one side differ.
    """

    cut: Array
    none: float
    step: float
    low: float
    high: float
    sd: float
    bias: float


@dataclass(frozen=True)
class _Grid:
    """levels (G,), evenly spaced; scales (S,); weights (S, R): log prior of scale and bias."""

    levels: Array
    scales: Array
    weights: Array
    spacing: float


def weigh(
    values: Sequence[Sequence[float]],
    *,
    known: KnownNoise | None = None,
    resolution: float = RESOLUTION,
    biases: Sequence[float] = BIASES,
    bias_weights: Sequence[float] = BIAS_WEIGHTS,
) -> Evidence:
    """Weigh M >= 2 builds, each with at least one finite value (a log, or of even noise).

    Likelihoods are Student's t with 4 degrees of freedom; the deviation has a flat prior in its log
    (with `known`: a scaled inverse chi-squared), levels a flat one, the bias is Gaussian of 0, 1/4, 1/2
    or 1 deviation. Levels of both sides are integrated over apart (Barry and Hartigan 1993, J. Am.
    Statist. Ass. 88, 309, for one change point). Raises ValueError for builds without values.
    """
    data = [np.asarray(build, dtype=float) for build in values]
    if len(data) < 2 or any(len(build) == 0 or not np.all(np.isfinite(build)) for build in data):
        raise ValueError("two builds or more are wanted, each with finite values")
    grid = _grid(data, known, resolution, bias_weights)
    own = _own(data, grid)
    by_build = _biased(own, grid, biases)  # (S, R, M, G)
    before = np.cumsum(by_build, axis=2)
    total = before[:, :, -1:, :]
    before, after = before[:, :, :-1, :], (total - before)[:, :, :-1, :]
    good, good_mean, good_square = _integrated(before, grid)
    bad, bad_mean, bad_square = _integrated(after, grid)
    whole = log_sum(total[:, :, 0, :], axis=-1)
    price = np.log(grid.spacing / (REACH * grid.scales))[:, None]
    joint = good + bad + (grid.weights + price)[:, :, None]  # (S, R, M - 1)
    cut = log_sum(joint, axis=(0, 1))
    none = float(log_sum(whole + grid.weights))
    best = int(np.argmax(cut))
    share = np.exp(joint[:, :, best] - cut[best])
    difference = bad_mean[:, :, best] - good_mean[:, :, best]
    spread = bad_square[:, :, best] + good_square[:, :, best]
    step = float(np.sum(share * difference))
    variance = float(np.sum(share * (spread + (difference - step) ** 2)))
    half = -float(special.ndtri((1 - CONFIDENCE) / 2)) * math.sqrt(variance)
    squares = share * (grid.scales**2)[:, None]
    return Evidence(
        cut,
        none,
        step,
        step - half,
        step + half,
        math.sqrt(np.sum(squares)),
        math.sqrt(np.sum(squares * np.square(biases))),
    )


def robust_level(values: Array) -> float:
    """The median of the values; of three or more, one Huber step towards the mean."""
    middle = float(np.median(values))
    if len(values) < 3:
        return middle
    reach = 2.5 * 1.4826 * float(np.median(np.abs(values - middle)))
    return middle + float(np.mean(np.clip(values - middle, -reach, reach)))


def lumped(values: Sequence[Sequence[float]]) -> float:
    """The spread of rounded values, which the median distance would take for exact.

    0 if few values are equal, or all are. A distance larger than that of the two ends is an outlier, and
    counts as that.
    """
    away = np.concatenate([_away(np.asarray(build, dtype=float)) for build in values])
    apart = away[away > 0]
    if not len(apart) or len(apart) > (1 - LUMPED) * len(away):
        return 0.0
    ends = abs(median(values[-1]) - median(values[0]))
    usual = median(apart.tolist())
    return float(min(usual, ends) if ends > 0 else usual) * math.sqrt(len(apart) / len(away))


def _grid(
    data: list[Array], known: KnownNoise | None, resolution: float, bias_weights: Sequence[float]
) -> _Grid:
    scale, df = _scale(data)
    known_df = min(known.df, TRUSTED) if known else 0.0
    if known:
        scale = math.sqrt((known_df * known.sd**2 + df * scale**2) / (known_df + df))
    # One or two values of a build may lie anywhere.
    firm = [data[0], data[-1], *(build for build in data if len(build) > 2)]
    middles = [median(build.tolist()) for build in firm]
    low, high = min(middles), max(middles)
    scale = max(scale, resolution, (high - low) * _FINE / _LEVELS)
    # The fewer values, the wider the grid of deviations.
    reach = min(1.4, max(0.45, 3.5 / math.sqrt(max(df + known_df, 1))))
    spacing = scale / _FINE
    scales = np.maximum(scale * np.exp(np.linspace(-reach, reach, _SCALES)), max(resolution, spacing))
    weights = np.log(np.asarray(bias_weights))[None, :] + np.zeros((_SCALES, 1)) - math.log(_SCALES)
    if known:
        prior = -known_df * np.log(scales) - known_df * known.sd**2 / (2 * scales**2)
        weights = weights + (prior - log_sum(prior))[:, None]
    pad = 5 * scale
    half = math.ceil((high - low + 2 * pad) / spacing / 2)
    levels = (low + high) / 2 + spacing * np.arange(-half, half + 1)
    return _Grid(levels, scales, weights, spacing)


def _scale(data: list[Array]) -> tuple[float, float]:
    """A robust deviation within builds, and its degrees of freedom; the centre of the grid."""
    together = np.concatenate([_away(build) for build in data])
    return (1.3 * median(together.tolist()), float(len(together))) if len(together) else (0.0, 0.0)


def _away(values: Array) -> Array:
    """The distances of a build's values from their median."""
    if len(values) < 2:
        return np.zeros(0)
    # Without the smallest: the median itself, or half a pair's distance, would make the scale too small.
    distances: Array = np.sort(np.abs(values - median(values.tolist())))[1:]
    return distances * math.sqrt(len(values) / (len(values) - 1))


def log_sum(logs: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """log(sum(exp(logs))); scipy's takes several times as long on small arrays."""
    top = np.max(logs, axis=axis, keepdims=True)
    total = np.log(np.sum(np.exp(logs - top), axis=axis, keepdims=True)) + top
    return np.asarray(np.squeeze(total, axis=axis))


def _own(data: list[Array], grid: _Grid) -> Array:
    """(S, M, G): log likelihood of each build for its own level."""
    values = np.concatenate(data)
    squares = np.minimum((values[:, None] - grid.levels[None, :]) ** 2, (1e3 * grid.scales[0]) ** 2)
    precision = 1 / (TAILS * grid.scales**2)
    factors = 1 + squares[None, :, :] * precision[:, None, None]
    starts, owner, at = [], [], 0
    for build, build_values in enumerate(data):
        for first in range(0, len(build_values), _CHUNK):
            starts.append(at + first)
            owner.append(build)
        at += len(build_values)
    logs = np.log(np.multiply.reduceat(factors, starts, axis=1))
    first_chunks = np.searchsorted(owner, np.arange(len(data)))
    counts = np.array([len(build_values) for build_values in data])
    constant = special.gammaln((TAILS + 1) / 2) - special.gammaln(TAILS / 2) - 0.5 * np.log(np.pi * TAILS)
    result: Array = -(TAILS + 1) / 2 * np.add.reduceat(logs, first_chunks, axis=1)
    result += counts[None, :, None] * (constant - np.log(grid.scales))[:, None, None]
    return result


def _biased(own: Array, grid: _Grid, biases: Sequence[float]) -> Array:
    """(S, R, M, G): log likelihood of each build by its side's level, over its bias."""
    size = len(grid.levels)
    top = own.max(axis=-1, keepdims=True)
    plain = np.exp(own - top)
    # A kernel of the distance of two levels, as a matrix without a copy.
    distance = (np.arange(2 * size - 1) - (size - 1)) * grid.spacing
    result = np.empty((len(grid.scales), len(biases), own.shape[1], size))
    for r, bias in enumerate(biases):
        if bias == 0:
            result[:, r] = own
            continue
        kernel = np.exp(-0.5 * (distance[None, :] / (bias * grid.scales[:, None])) ** 2)
        kernel /= kernel.sum(axis=1, keepdims=True)
        matrix = np.lib.stride_tricks.sliding_window_view(kernel, size, axis=1)[:, ::-1, :]
        smooth = np.matmul(plain, np.ascontiguousarray(matrix))
        result[:, r] = np.log(np.maximum(smooth, 1e-300)) + top
    return result


def _integrated(log_density: Array, grid: _Grid) -> tuple[Array, Array, Array]:
    """Log sum over the levels (last axis), and mean and variance of the level."""
    top = log_density.max(axis=-1, keepdims=True)
    density = np.exp(log_density - top)
    total = density.sum(axis=-1)
    mean = density @ grid.levels / total
    # Centred, or rounding of the level would swamp the square.
    centre = grid.levels[len(grid.levels) // 2]
    square = density @ (grid.levels - centre) ** 2 / total - (mean - centre) ** 2
    return np.log(total) + top[..., 0], mean, np.maximum(square, 0.0)


GOOD = (0.3, 10.0)  # Beta prior of the failing share of a good build: nearly none
BAD = (4.0, 0.4)  # and of a bad one: nearly all, but one in two is possible


@dataclass(frozen=True)
class AnswerEvidence:
    """The evidence of the answers of M builds; cut and none as in Evidence.

    fails_good, fails_bad: shares of failing answers on either side.
    """

    cut: Array
    none: float
    fails_good: float
    fails_bad: float


def weigh_answers(answers: Sequence[Sequence[bool]]) -> AnswerEvidence:
    """Weigh the answers (True: fails) of M >= 2 builds.

    The failing share of each side is integrated over (Beta-binomial). Without a change all builds share one.
    Raises ValueError for a build without answers.
    """
    if len(answers) < 2 or any(len(build_answers) == 0 for build_answers in answers):
        raise ValueError("two builds or more are wanted, each with an answer")
    failed = np.array([sum(build_answers) for build_answers in answers], dtype=float)
    passed = np.array([len(build_answers) for build_answers in answers]) - failed
    failed_before, passed_before = np.cumsum(failed), np.cumsum(passed)
    failed_after = failed_before[-1] - failed_before[:-1]
    passed_after = passed_before[-1] - passed_before[:-1]
    cut = _marginal(failed_before[:-1], passed_before[:-1], GOOD) + _marginal(failed_after, passed_after, BAD)
    none = float(_marginal(failed_before[-1:], passed_before[-1:], (0.5, 0.5))[0])
    best = int(np.argmax(cut))
    return AnswerEvidence(
        cut,
        none,
        _mean(failed_before[best], passed_before[best], GOOD),
        _mean(failed_after[best], passed_after[best], BAD),
    )


def _marginal(failed: Array, passed: Array, prior: tuple[float, float]) -> Array:
    total: Array = special.betaln(prior[0] + failed, prior[1] + passed) - special.betaln(*prior)
    return total


def _mean(failed: float, passed: float, prior: tuple[float, float]) -> float:
    return float((prior[0] + failed) / (sum(prior) + failed + passed))


Owners = NDArray[np.intp]  # the index of the build of each value

LEAST = 8  # values below which drift of the host is not estimated
POLISH = 20  # rounds of median polish, after which levels and moves hardly change
STEADY = 0.5  # prior probability that the host does not drift
SIZES = (0.1, 0.5, 2.0, 8.0, 32.0)  # variances of the drift, in variances of the noise
SPANS = (8.0, 40.0)  # correlation lengths of the drift, in measurements
WINSOR = 2.5
LONG_PAUSE = 1000.0  # a gap in the times after which the host may be in another state


def without_host(places: Sequence[int], times: Sequence[float], values: Sequence[float]) -> Array:
    """Remove the host's drift, common to all builds, from measurements of `places` at `times`.

    times: in measurements, with longer gaps after builds. It is a mixed model: levels of builds are fixed,
    the drift is a Gaussian process with an exponential covariance (Robinson 1991, Statist. Sci. 6, 15),
    averaged over its possible sizes by their restricted likelihood. Next to nothing is removed if the host
    seems steady. Outliers are winsorised.
    """
    y = np.asarray(values, dtype=float)
    builds, owner = np.unique(np.asarray(places), return_inverse=True)
    if len(y) < LEAST or len(y) - len(builds) < LEAST // 2:
        return y
    y = y - _moves(owner, times, y)
    middle = _medians(y, owner)
    away = np.abs(y - middle[owner])
    several = np.bincount(owner)[owner] > 1
    scale = 1.4826 * float(np.median(away[several]))
    if scale == 0:
        return y
    model = _HostModel(owner, times)
    host, moves = model.drift(middle[owner] + np.clip(y - middle[owner], -3 * scale, 3 * scale))
    if moves > 0.5:
        # Once more, now that outliers can be separated from the drift.
        rest = y - host
        middle = _medians(rest, owner)
        rest = rest - middle[owner]
        reach = WINSOR * 1.4826 * float(np.median(np.abs(rest[several])))
        host, _ = model.drift(middle[owner] + host + np.clip(rest, -reach, reach))
    return y - host


def _moves(owner: Owners, times: Sequence[float], y: Array) -> Array:
    """The move of the host at each long pause: median polish of builds and sessions.

    It is estimated from builds measured before and after; 0 without any (Tukey 1977, Exploratory Data
    Analysis, ch. 11).
    """
    session = np.cumsum(np.concatenate([[0], np.diff(np.asarray(times, dtype=float)) > LONG_PAUSE / 2]))
    moves = np.zeros(len(y))
    if session[-1] == 0:
        return moves
    sessions = [
        (session == k, (session == k) & np.isin(owner, owner[session < k]))
        for k in range(1, int(session[-1]) + 1)
    ]
    for _ in range(POLISH):
        before = moves.copy()
        rest = y - _medians(y - moves, owner)[owner]
        for mine, measured_before in sessions:
            if np.any(measured_before):
                moves[mine] = np.median(rest[measured_before])
        if np.array_equal(moves, before):
            break
    return moves


def _medians(y: Array, owner: Owners) -> Array:
    order = np.argsort(owner, kind="stable")
    parts = np.split(y[order], np.cumsum(np.bincount(owner))[:-1])
    return np.array([median(part.tolist()) for part in parts])


class _HostModel:
    """The drift that measurements of the builds `owner` at `times` may have, whatever their values are."""

    def __init__(self, owner: Owners, times: Sequence[float]) -> None:
        t = np.asarray(times, dtype=float)
        same = owner[:, None] == owner[None, :]
        self._centre = np.eye(len(t)) - same / same.sum(axis=1)[:, None]
        self._free = len(t) - len(np.unique(owner))
        self._spans = []
        for span in SPANS:
            shape = np.exp(-np.abs(t[:, None] - t[None, :]) / span)
            values, vectors = np.linalg.eigh(self._centre @ shape @ self._centre)
            variances = 1 + np.outer(SIZES, np.maximum(values, 0.0))
            self._spans.append((shape, vectors, variances, np.log(variances).sum(axis=1)))

    def drift(self, y: Array) -> tuple[Array, float]:
        """The drift in each value, and the probability that there is any."""
        rest = self._centre @ y
        prior = np.log((1 - STEADY) / (len(SPANS) * len(SIZES)))
        logs = [np.array([np.log(STEADY) - 0.5 * self._free * np.log(rest @ rest)])]
        parts = [np.zeros((1, len(y)))]
        for shape, vectors, variances, log_determinants in self._spans:
            seen = vectors.T @ rest
            fits = seen / variances  # one row for each size of the drift
            logs.append(prior - 0.5 * log_determinants - 0.5 * self._free * np.log(fits @ seen))
            parts.append(np.array(SIZES)[:, None] * (fits @ vectors.T @ self._centre @ shape))
        joined = np.concatenate(logs)
        weights = np.exp(joined - joined.max())
        weights /= weights.sum()
        return np.asarray(weights @ np.concatenate(parts)), float(1 - weights[0])
