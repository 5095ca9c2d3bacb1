"""The nightly test: which series of a host changed by more than noise.

Its values are logs of one metric on one class of hosts: a row for each series, a column for each night.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from perfdash.metrics import MINIMUM_CHANGE
from perfdash.stats.host_shift import HOST, Shift, host_shift, tonights_shift
from perfdash.stats.intervals import Array
from perfdash.stats.noise_level import (
    Counts,
    Flags,
    NoiseLevel,
    Tails,
    as_normal,
    excess_spread,
    noise_level,
    row_medians,
)

WINDOWS = 10  # the longest window, nights
REFERENCE = 60  # nights in the baseline
CLIP = 5.0  # deviations at which one night's value is clipped
# The same in windows of LONG nights or more, if more than FREQUENT of the nights are OUTLYING: there the
# number of nights makes a change certain, and outliers among them would make it doubtful.
LONG_CLIP, LONG = 3.0, 3
FREQUENT, OUTLYING = 0.005, 3.5
CANDIDATES = 0.115  # share of unchanged series that become candidates by tonight alone
SUSPECT_P = 0.01  # largest p over all windows of a candidate, and of a suspect
DISCOVERY_RATE = 0.1
FLOOR = 0.002  # least relative standard deviation between nights
_RHO_STEP = 0.05  # between the autocorrelations for which the search is corrected
_GRID = 0.05  # deviations between the changes that `sensitivity` tries
MOST_P = 0.0004  # largest p of an alarm, however few or many series are judged (benchmarks/alarm.py)
_HEAVY_TAIL = 3  # degrees of freedom of the heaviest noise that one night is held against

__all__ = ["FLOOR", "HOST", "NightTest", "Shift", "discoveries", "judge"]


@dataclass(frozen=True)
class NightTest:
    """The test of a night: arrays (S,) in the order of the rows.

    judged: has a value tonight and on 3 earlier nights; otherwise numbers are NaN and flags False.
    alarm: certain without re-measurement. suspect: no alarm, but within the false-discovery rate, or
    tonight's value alone is rare in heavy-tailed noise.
    candidate: worth re-measuring tonight; alarms and suspects are among them. with_host: changed only by the
    host's `shift`; no candidate. window: the number of nights since the change. change: log of the window
    over the baseline (positive = larger), without the host's shift if the series followed it; for a candidate
    that changed with the host by another amount, with it.
    score: the change without the shift, in standard errors. p: two-sided, corrected for the windows
    searched. heavy_p: p of tonight's value alone in heavy-tailed noise. repeat: the probability that one more
    night of an unchanged series shows half of the change. baseline: log level before, without shifts of the
    host. host (S, T): the host's `state` (HostShift) on the last T nights. sd, df: standard deviation of one
    night's log and its degrees of freedom, for the re-measurement.
    """

    judged: Flags
    candidate: Flags
    suspect: Flags
    alarm: Flags
    with_host: Flags
    score: Array
    p: Array
    heavy_p: Array
    change: Array
    repeat: Array
    window: Counts
    baseline: Array
    host: Array
    sd: Array
    df: Array
    shift: Shift


def judge(
    values: Array,
    *,
    start: Counts | None = None,
    within: Array | None = None,
    machines: Array | None = None,
    minimum_change: float | Array = MINIMUM_CHANGE,
    candidates: float = CANDIDATES,
) -> NightTest:
    """Judge the last night of `values` (S, T): logs, NaN = missing; 70 nights at most.

    `start` (S,): column of the first night that counts (the night of the last accepted change).
    `minimum_change`: the least change that counts, of all series or of each (S,). `within` (S, T): variance
    of each value within its night, NaN where unknown. `machines` (S,): variance of the levels of the machines
    (machine_levels), where the nights are of several. Each series' last 1 to 10 nights are compared with up
    to 60 nights before those ten; scores are clipped (Huber 1964). In autocorrelated noise a window's first
    night counts most (`_window_weights`). The best window's p is corrected for the search. A series is an
    alarm within the false-discovery rate over the series (Benjamini and Hochberg 1995)
    and with a p of at most MOST_P, which does not depend on their number. `candidates`: the share of
    nights that deviate as far by chance, estimated from the host's own nights. It sets the cost of
    re-measuring whatever the noise: about 7.5 runs times the share, per series and night.
    Raises ValueError for shapes that do not fit.
    """
    values, within = _recent(values, start, within)
    present = np.isfinite(values)
    history = present[:, :-1].sum(axis=1)
    judged = present[:, -1] & (history >= 3)
    # The nights of the longest window stay out of the baseline; a short history has a shorter longest window.
    guard = np.clip((history - 3) // 2, 0, WINDOWS - 1)
    later = np.cumsum(present[:, ::-1], axis=1)[:, ::-1] - present
    old = present & (later > guard[:, None])
    shifts = host_shift(values, old, FLOOR)
    noise = noise_level(np.where(old, values - shifts.own, np.nan), floor=FLOOR)
    if machines is not None:
        noise = replace(noise, machines=machines / noise.sd**2)
    shift = tonights_shift(shifts.night, noise, present, judged, WINDOWS)
    raw = values - noise.level[:, None]
    net = raw - shifts.own
    scores = net / _deviation(noise, within, old)
    wide = excess_spread(np.where(noise.constant[:, None], np.nan, scores))
    tonight, best, unclipped = _windows(net, scores / wide, noise, judged, guard + 1)

    least = np.log1p(np.broadcast_to(np.asarray(minimum_change, dtype=float), judged.shape))
    age = shift.nights if least.size and abs(shift.change) >= np.median(least) else 0
    quiet, first, onset = _beside(net, raw, noise, best.window, age, least)
    # Not relevant: a series that made the host's shift, or stayed, and has not changed since.
    relevant = judged & ~(quiet & (first <= onset + 1)) & (np.abs(best.change) >= least)
    # A series that moved with about half of the series raises no alarm: it may be a shift of the host.
    discovered = relevant & discoveries(best.p, DISCOVERY_RATE) & ~shifts.group[:, -1]
    alarm = discovered & (best.p <= MOST_P)
    lasting = relevant & (best.p <= SUSPECT_P)
    far = _usual_reach(_pooled_news(noise, ~noise.quiet, CLIP), candidates)
    alone = judged & (np.abs(unclipped) >= far) & (np.abs(tonight.change) >= least) & ~lasting
    if age <= 2:
        alone &= ~quiet
    candidate = lasting | alone
    heavy_p = _heavy_tailed_p(net / wide, noise)
    far_off = heavy_p <= min(SUSPECT_P, DISCOVERY_RATE / max(int(judged.sum()), 1))
    suspect = (discovered & lasting) | (candidate & far_off)
    suspect &= ~alarm & ~shifts.group[:, -1]
    window = np.where(alone, 1, best.window)
    # A candidate by tonight alone is described by tonight alone.
    change = np.where(alone, tonight.change, best.change)
    together = candidate & (np.abs(np.where(alone, values.shape[1] - 1, first) - onset) <= 1)
    since = np.arange(values.shape[1]) >= np.where(alone, values.shape[1] - 1, first)[:, None]
    return NightTest(
        judged=judged,
        candidate=candidate,
        suspect=suspect,
        alarm=alarm,
        with_host=judged & quiet & shifts.followed[:, -1] & ~candidate,
        score=np.where(alone, tonight.score, best.score),
        p=best.p,
        heavy_p=heavy_p,
        change=np.where(together, row_medians(np.where(since, raw, np.nan)), change),
        repeat=np.where(judged, _repeat(change, noise), np.nan),
        window=window,
        baseline=noise.level,
        host=shifts.state,
        sd=np.where(judged, noise.sd, np.nan),
        df=noise.df,
        shift=shift,
    )


@dataclass(frozen=True)
class Sensitivity:
    """How small a change of each series (S,) is found.

    sd: standard deviation of one night's log; count: nights. least (S, N): the least log change that raises
    an alarm by itself after each number of nights without re-measurement; infinite if none does.
    """

    sd: Array
    count: Counts
    least: Array


def sensitivity(
    values: Array,
    nights: Sequence[int],
    *,
    start: Counts | None = None,
    minimum_change: float | Array = MINIMUM_CHANGE,
) -> Sensitivity:
    """The least change of each series that `judge` finds after so many nights (at most WINDOWS).

    `values` (S, T), `start` and `minimum_change` as in `judge`. The nights are taken to be as noisy as those
    before, and the false-discovery rate, which depends on what else changes that night, is left out.
    """
    values, _ = _recent(values, start, None)
    present = np.isfinite(values)
    noise = noise_level(
        np.where(present, values - host_shift(values, present, FLOOR).own, np.nan), floor=FLOOR
    )
    clips = _clips(noise)[np.asarray(nights, dtype=np.int64) - 1]
    tails = _tails(noise, clips)
    most = np.clip((noise.count - 3) // 2, 0, WINDOWS - 1) + 1
    minimum = np.log1p(np.broadcast_to(np.asarray(minimum_change, dtype=float), noise.sd.shape))
    least = np.full((len(values), len(nights)), np.inf)
    lengths = np.asarray(nights, dtype=np.int64)
    has = np.arange(WINDOWS + 1) <= lengths[:, None]
    weights = _window_weights(np.broadcast_to(has, (len(values), *has.shape)), noise)
    for place, length in enumerate(nights):
        independent = weights.independent[:, place : place + 1]
        for deviations in np.arange(clips[place], 0, -_GRID):  # from the largest down: p grows
            score = as_normal(deviations / weights.error[:, place], noise.df)
            p = _p(tails, clips[place : place + 1], score[:, None], independent)[:, 0]
            found = (_searched(p, most, _neighbours(noise)) <= MOST_P) & (most >= length) & (noise.count >= 3)
            least[found, place] = deviations * noise.sd[found]
    return Sensitivity(noise.sd, noise.count, np.maximum(least, minimum[:, None]))


def _beside(
    net: Array, raw: Array, noise: NoiseLevel, window: Counts, age: int, least: Array
) -> tuple[Flags, Counts, int]:
    """Which series only made the host's shift, or stayed, since a step of the host.

    `age`: nights since the step, 0 without one. Returns that flag (S,), the column at which each series'
    window begins (S,), and the column of the host's step.
    """
    width, present = net.shape[1], np.isfinite(net)
    later = np.cumsum(present[:, ::-1], axis=1)[:, ::-1]
    first = width - 1 - np.argmax((later >= window[:, None])[:, ::-1], axis=1)
    if not age:
        return np.zeros(len(net), dtype=bool), first, -width
    nights = min(age, WINDOWS)
    has = present[:, -nights:]
    count = np.maximum(has.sum(axis=1), 1)
    spread = noise.inflation[np.arange(len(net)), count - 1] / count + noise.level_variance
    reach = np.maximum(least, 3 * noise.sd * np.sqrt(spread))
    means = [np.where(has, part[:, -nights:], 0.0).sum(axis=1) / count for part in (net, raw)]
    return np.minimum(*np.abs(means)) < reach, first, width - age


@dataclass(frozen=True)
class _WindowTest:
    """The test of a window for each series (S,), as in NightTest."""

    score: Array
    p: Array
    change: Array
    window: Counts


def _windows(
    net: Array, scores: Array, noise: NoiseLevel, judged: Flags, most: Counts
) -> tuple[_WindowTest, _WindowTest, Array]:
    """The tests of tonight alone and of the best window, and a score (S,) that is not clipped.

    That is the score of tonight alone, clipped only if the night before was as far off. The p of the best
    window is corrected for the search. `most` (S,): the longest window of each series.
    `net`, `scores` (S, T): each night minus the baseline, as a log and in deviations.
    """
    longest = min(WINDOWS, net.shape[1])
    lengths = np.arange(1, longest + 1)
    # Columns of each window: the night before it, its nights, and NaN. There may be no night before.
    columns = net.shape[1] - lengths[:, None] + np.arange(longest + 1)
    around = ((0, 0), (1, longest))
    part, change = (np.pad(each, around, constant_values=np.nan)[:, columns] for each in (scores, net))
    has = np.isfinite(part)
    clips = _clips(noise)[:longest]
    count = np.maximum(has[..., 1:].sum(axis=-1), 1)
    # A window must not overlap its baseline, and one that begins with a missing night adds nothing.
    used = judged[:, None] & has[..., 1] & (count <= most[:, None])
    weights = _window_weights(has, noise)
    part = np.where(has, part, 0.0)
    clipped = np.clip(part, -clips[:, None], clips[:, None])
    score = as_normal((clipped * weights.weights).sum(axis=-1) / weights.error, noise.df[:, None])
    p = np.where(used, _p(_tails(noise, clips), clips, score, weights.independent), np.nan)
    # With few degrees of freedom five deviations are nothing rare, so the first night that is far off is not
    # clipped. A second one belongs to the same step.
    near = np.abs(part[:, 0, 0]) < clips[0]
    clipped[near, 0, 1] = part[near, 0, 1]
    unclipped = as_normal(
        (clipped[:, 0] * weights.weights[:, 0]).sum(axis=-1) / weights.error[:, 0], noise.df
    )
    rows = np.arange(len(net))

    def test(window: Counts, p: Array) -> _WindowTest:
        level = row_medians(np.where(has[rows, window, 1:], change[rows, window, 1:], np.nan))
        none = np.where(used[rows, window], 0.0, np.nan)
        return _WindowTest(score[rows, window] + none, p, level + none, count[rows, window])

    best = np.argmin(np.where(np.isfinite(p), p, np.inf), axis=1)
    searched = _searched(p[rows, best], most, _neighbours(noise))
    return test(np.zeros_like(best), p[:, 0]), test(best, searched), unclipped


@dataclass(frozen=True)
class _WindowWeights:
    """How the nights of each of W windows make the estimate of its change.

    weights (S, W, L + 1): the first is that of the night before the window. error (S, W): standard error of
    the estimate, that of the level included, in deviations of one night. independent (S, W): as many
    independent nights of equal weight have tails like those of the estimate.
    """

    weights: Array
    error: Array
    independent: Counts


def _window_weights(has: Flags, noise: NoiseLevel) -> _WindowWeights:
    """The weights of generalised least squares in autoregressive noise of order 1 (Prais and Winsten 1954).

    `has` (S, W, L + 1): which nights have a value, the night before the window first. What that night lets
    expect is taken off the window's first night, which then tells the most of a change; a later night counts
    by what is new in it. Without autocorrelation the estimate is the mean. The error follows from
    the autocorrelation at all lags, so it holds where the noise is of another kind.
    """
    rho = np.zeros(has.shape)
    rho[..., 1:] = np.where(has[..., :-1], _neighbours(noise)[:, None, None], 0.0)
    shift = 1 - rho  # of what is new in a night, by a change of 1
    shift[..., :2] = 0.0, 1.0
    variance = 1 - rho**2
    new = np.where(has, shift / variance, 0.0)
    total = np.maximum((new * shift).sum(axis=-1), 1e-9)
    weights = new.copy()
    weights[..., :-1] -= new[..., 1:] * rho[..., 1:]
    weights /= total[..., None]
    # Of each two nights; nights farther apart than is known have the correlation of the farthest.
    nights = np.arange(has.shape[-1])
    apart = np.minimum(np.abs(nights[:, None] - nights), noise.correlation.shape[1])
    correlation = np.insert(noise.correlation, 0, 1.0, axis=1)[:, apart]
    squared = np.sum(weights @ correlation * weights, axis=-1)
    # The variance of the level is infinite without any night.
    of_level = weights.sum(axis=-1) ** 2 * np.minimum(noise.level_variance, 1e9)[:, None]
    error = np.sqrt(np.maximum(squared, 1 / total) + of_level)
    parts = new**2 * variance
    independent = np.rint(parts.sum(axis=-1) ** 2 / np.maximum(np.sum(parts**2, axis=-1), 1e-9))
    return _WindowWeights(weights, error, np.maximum(independent, 1).astype(np.int64))


def _clips(noise: NoiseLevel) -> Array:
    """Deviations at which the nights of a window are clipped, for windows of 1 to WINDOWS nights (WINDOWS,).

    The residuals of quiet series, in units of the floor, are near 0 and would hide the outliers of others.
    """
    pooled = _pooled(noise, ~noise.quiet)
    has_outliers = len(pooled) > 0 and float(np.mean(np.abs(pooled) > OUTLYING)) > FREQUENT
    return np.where(has_outliers & (np.arange(1, WINDOWS + 1) >= LONG), LONG_CLIP, CLIP)


def _tails(noise: NoiseLevel, clips: Array) -> list[tuple[Flags, dict[float, Tails]]]:
    """Noisy and quiet series, where there are such, each with the tails of what is new in their nights.

    The tails are by the deviations at which the nights are clipped: each of `clips`.
    """
    used = np.unique(clips).tolist()
    return [
        (rows, {clip: Tails(_pooled_news(noise, rows, clip), clip, WINDOWS) for clip in used})
        for rows in (~noise.quiet, noise.quiet)
        if rows.any()
    ]


def _p(
    tails: list[tuple[Flags, dict[float, Tails]]], clips: Array, score: Array, independent: Counts
) -> Array:
    """The p of each series' score in each window (S, W), by the tails of its kind and the window's clip."""
    p = np.ones_like(score)
    for rows, of_kind in tails:
        for clip in np.unique(clips):
            chosen = rows[:, None] & (clips == clip)
            p[chosen] = of_kind[clip].p(score[chosen], independent[chosen])
    return p


def _recent(values: Array, start: Counts | None, within: Array | None) -> tuple[Array, Array | None]:
    """The last nights as floats; NaN where missing or before the series' start.

    Nights before the first value of any series (measured by another method) are left out, because they would
    count as nights without a shift of the host.
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != 2 or values.shape[1] < 1:
        raise ValueError(f"values: series by nights are wanted, not the shape {values.shape}")
    if within is not None and np.shape(within) != values.shape:
        raise ValueError(f"within has the shape {np.shape(within)}, values {values.shape}")
    if start is not None and np.shape(start) != values.shape[:1]:
        raise ValueError(f"start has the shape {np.shape(start)}, and there are {len(values)} series")
    usable = np.isfinite(values)
    if start is not None:
        usable &= np.arange(values.shape[1])[None, :] >= np.asarray(start)[:, None]
    values = np.where(usable, values, np.nan)[:, -(WINDOWS + REFERENCE) :]
    empty = int(np.argmax(np.append(np.isfinite(values[:, :-1]).any(axis=0), True)))
    values = values[:, empty:]
    return values, None if within is None else np.asarray(within, dtype=float)[:, -values.shape[1] :]


def _deviation(noise: NoiseLevel, within: Array | None, old: Flags) -> Array:
    """Standard deviation of each value, between and within nights: (S, T) or (S, 1)."""
    variance = noise.sd[:, None] ** 2
    if within is None:
        return np.sqrt(variance)
    present = old & np.isfinite(within)
    usual = np.where(present, within, 0.0).sum(axis=1) / np.maximum(present.sum(axis=1), 1)
    usual = np.where(present.any(axis=1), usual, np.nan)[:, None]
    # The spread between past nights includes their usual variance within a night; a noisier night adds the
    # excess. A spread below the usual variance within a night is smaller by chance, so the latter is used.
    known = np.isfinite(usual)
    more = np.nan_to_num(np.maximum(0.0, within - np.where(known, usual, variance)))
    deviation: Array = np.sqrt(np.maximum(variance, np.where(known, usual, 0.0)) + more)
    return deviation


def _pooled(noise: NoiseLevel, rows: Flags) -> Array:
    """All residuals of some series, scaled up because the level was fitted to them."""
    left = np.sqrt(np.maximum(1 - noise.fitted_variance, 0.25))
    residuals: Array = (noise.residuals / left[:, None])[rows]
    return residuals[np.isfinite(residuals)]


def _pooled_news(noise: NoiseLevel, rows: Flags, clip: float) -> Array:
    """What is new in each night of some series: its residual less what the night before lets expect.

    The residuals are scaled up as by `_pooled` and clipped; what is new is in its own standard deviations.
    """
    left = np.sqrt(np.maximum(1 - noise.fitted_variance, 0.25))
    residuals = np.clip((noise.residuals / left[:, None])[rows], -clip, clip)
    rho = np.zeros(residuals.shape)
    rho[:, 1:] = np.where(np.isfinite(residuals[:, :-1]), _neighbours(noise)[rows][:, None], 0.0)
    before = np.pad(np.nan_to_num(residuals[:, :-1]), ((0, 0), (1, 0)))
    news: Array = (residuals - rho * before) / np.sqrt(1 - rho**2)
    return news[np.isfinite(news)]


def _usual_reach(residuals: Array, share: float) -> float:
    """The deviation that this share of nights exceeds; Gaussian for fewer than 1000 residuals."""
    if len(residuals) < 1000:
        return float(stats.norm.isf(share / 2))
    return float(np.quantile(np.abs(residuals), 1 - share))


def _repeat(change: Array, noise: NoiseLevel) -> Array:
    """The probability (S,) that one more night without a change deviates half as far the same way.

    The share of the host's nights that do, counting one more: of the nights of its quiet series, or of the
    others. Where nights are autocorrelated, by the normal distribution given a night with the whole change.
    """
    deviations = np.abs(change) / noise.sd
    result = np.ones_like(deviations)
    for rows in (noise.quiet, ~noise.quiet):
        pool = np.sort(_pooled(noise, rows))
        half = deviations[rows] / 2
        upward = len(pool) - np.searchsorted(pool, half)
        downward = np.searchsorted(pool, -half, side="right")
        result[rows] = (np.where(change[rows] > 0, upward, downward) + 1) / (len(pool) + 1)
    rho = _neighbours(noise)
    given = stats.norm.sf((0.5 - rho) * deviations / np.sqrt(1 - rho**2))
    return np.asarray(np.maximum(result, np.where(noise.constant, 0.0, given)))


def _heavy_tailed_p(net: Array, noise: NoiseLevel) -> Array:
    """Two-sided p (S,) of tonight's value alone in heavy-tailed noise, by Student's t with few degrees.

    The tails of a small host are known only as far as its nights reach: a value beyond them is no rarer than
    the rarest of them. What is expected after last night's value is taken off (autoregression of order 1).
    `net` (S, T): each night minus the baseline, as a log.
    """
    rho = _neighbours(noise)
    last = np.nan_to_num(net[:, -2]) if net.shape[1] > 1 else 0.0
    deviations = np.abs(net[:, -1] - rho * last) / (noise.sd * np.sqrt(1 - rho**2 + noise.level_variance))
    return np.asarray(2 * stats.t.sf(deviations, np.minimum(np.maximum(noise.df, 0.5), _HEAVY_TAIL)))


def _neighbours(noise: NoiseLevel) -> Array:
    """The correlation (S,) of two nights in a row: the variance of their mean is inflated by 1 + that."""
    return np.asarray(np.clip(noise.inflation[:, 1] - 1, 0, 0.99))


def discoveries(p: Array, rate: float) -> Flags:
    """The discoveries of Benjamini and Hochberg (1995) at a rate; False where p is NaN."""
    tested = np.flatnonzero(np.isfinite(p))
    order = tested[np.argsort(p[tested])]
    passed = np.flatnonzero(p[order] <= rate * np.arange(1, len(order) + 1) / max(len(order), 1))
    discovered = np.zeros(len(p), dtype=bool)
    if passed.size:
        discovered[order[: passed[-1] + 1]] = True
    return discovered


def _searched(p: Array, windows: Counts, rho: Array) -> Array:
    """Correct the least p over some windows for the search.

    `rho` (S,): the correlation of two nights in a row. The result is an upper bound, exact in the tail.
    Worsley (1982), Biometrika 69, 297: P(any) <= sum of P(w) less the sum of P(w and w - 1), for
    windows of Gaussian nights.
    """
    z = stats.norm.isf(np.clip(p, 1e-300, 1.0) / 2)
    factors = np.ones_like(p)
    # Rounded up: windows of more autocorrelated nights have less in common.
    steps = np.ceil(rho / _RHO_STEP - 1e-9).astype(np.int64)
    for step in np.unique(steps):
        grid, extra = _search_factors(float(min(step * _RHO_STEP, 0.99)))
        for count in np.unique(windows[steps == step]):
            rows = (windows == count) & (steps == step)
            factors[rows] = np.interp(z[rows], grid, extra[count - 1])
    return np.minimum(1.0, p * factors)


@functools.cache
def _search_factors(rho: float) -> tuple[Array, Array]:
    """A grid of z, and the factors (k, z) on p for a search over windows 1..k of autocorrelated nights."""
    grid = np.linspace(0, 9, 46)
    step = 0.01
    beyond = grid[:, None] + step * (np.arange(800)[None, :] + 0.5)
    tail = stats.norm.sf(grid)
    density = stats.norm.pdf(beyond)
    new = [np.ones_like(grid)]
    for w in range(2, WINDOWS + 1):
        # What w and w - 1 nights tell of a change, and what both tell (_window_weights without gaps).
        longer, shorter = (1 + (nights - 1) * (1 - rho) ** 2 for nights in (w, w - 1))
        shared = (1 - rho) * (1 + (w - 2) * (1 - rho)) / np.sqrt(longer * shorter)
        both = np.sum(
            density * stats.norm.sf((grid[:, None] - shared * beyond) / np.sqrt(1 - shared**2)), axis=1
        )
        new.append(1 - both * step / tail)
    return grid, np.cumsum(new, axis=0)
