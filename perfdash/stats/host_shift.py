"""Separate the shift of the whole host from changes of single series.

A change of the machine or its software shifts many series at once, but seldom all. The median over the series
then lies between those that moved and those that did not, and is the change of neither. So a night with an
unusual median is fitted by a mixture of two groups of series: one that moved and one that stayed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from perfdash.stats.intervals import Array
from perfdash.stats.noise_level import Flags, NoiseLevel, row_medians

HOST = 20  # series that are needed to estimate a shift
SHIFT_P = 0.001  # largest p of a shift that is reported
_MAD = 1.4826
_PRIOR = 5  # nights at the host's median spread that are added to each series' own
_SCALE = 0.9  # scale of the Student's t(4) that has the quartiles of a normal of deviation 1
_ROUNDS = 20
_TOGETHER = 10  # nights on either side that help to decide which series moved
_BESIDE = 5  # nights before a further step that show from where it began
_MEDIAN = math.pi / 2  # variance of a median over that of a mean
_EVIDENCE = 6.0  # twice the log likelihood ratio from which two groups are preferred to one
_UNDIVIDED = 0.95  # share of series that moved, where there is no second group


@dataclass(frozen=True)
class FurtherStep:
    """A step of a host that was shifted the same way: from the shift `before`, by a log change; p, nights."""

    before: float
    change: float
    p: float
    nights: int


@dataclass(frozen=True)
class Shift:
    """The shift that most series made together tonight: log change, p, number of nights.

    `nights`: the number of latest nights with the shift, including tonight; 0 if p is above SHIFT_P.
    `further`: the last step of a host that was shifted before; None if there is none.
    """

    change: float = 0.0
    p: float = 1.0
    nights: int = 0
    further: FurtherStep | None = None


@dataclass(frozen=True)
class HostShift:
    """The shifts of a host, for S series and T nights.

    night (T,): the shift that most series made. own (S, T): the shift that each series made with others.
    state (S, T): the same on nights with an unusual median, and 0 on all others, so that an unshifted series
    is as it was measured. All three are relative to the usual night of `values`; the difference of two nights
    is not. followed (S, T): the series made the night's shift. group (S, T): the series moved with about half
    of the others, so that it is unclear whether the host moved.
    """

    night: Array
    own: Array
    state: Array
    followed: Flags
    group: Flags


def host_shift(values: Array, old: Flags, floor: float) -> HostShift:
    """Estimate the host's shifts from `values` (S, T): logs, NaN = missing.

    `old` (S, T): the nights from which levels and spreads are estimated. The shift of a night is the place of
    the group with more than half of the series. The members of a group are estimated also from up to ten
    nights on either side whose groups are as far apart. A night with fewer than HOST series has the shifts of
    the last night with enough, if its series are no farther from their levels without them, otherwise 0.
    """
    own = np.zeros_like(values)
    groups = None
    for _ in range(2):  # levels are estimated better once the shifts are removed
        away, spread = _standing(values, own, old, floor)
        centre = _weighted_median(away, spread)
        enough = np.isfinite(away).sum(axis=0) >= HOST
        centre[~enough] = 0.0
        night = centre.copy()
        own = np.broadcast_to(centre, values.shape).copy()
        state = np.zeros_like(values)
        followed, group = np.zeros((2, *values.shape), dtype=bool)
        moved = np.flatnonzero(enough & _off(away, spread))
        if not len(moved):
            break
        groups = _Groups.fit(away[:, moved], spread, centre[moved], moved)
        chance = groups.far_chance()
        present = np.isfinite(away[:, moved])
        count = np.maximum(present.sum(axis=0), 1)
        share = np.where(present, chance, 0.0).sum(axis=0) / count
        doubt = np.sqrt(np.where(present, chance * (1 - chance), 0.0).sum(axis=0)) / count
        # A share of about a half counts as most, so that a change of the host is not reported per series.
        most = share + doubt + 0.25 / count > 0.5
        far = chance > 0.5
        night[moved] = np.where(most, groups.far, groups.near)
        # The place of the stayed group is unreliable with few members; then it is taken as 0.
        stayed = groups.near * np.where(most, np.clip((1 - share - 0.1) / 0.2, 0.0, 1.0), 1.0)
        own[:, moved] = state[:, moved] = np.where(most & far, groups.far, stayed)
        followed[:, moved] = most & far
        group[:, moved] = ~most & (share + 2 * doubt > 0.5) & far
        few, source = _lasting(away, own, enough, moved)
        night[few] = night[source]
        for part in (own, state, followed, group):
            part[:, few] = part[:, source]
    return HostShift(night, own, state, followed, group)


def _lasting(
    away: Array, own: Array, enough: Flags, moved: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The nights with few series on which an earlier shift lasts, and the night of that shift for each.

    Few series do not show a shift of the host, but they show whether the one before is over: then they are
    nearer to their levels without it.
    """
    last = np.maximum.accumulate(np.where(enough, np.arange(len(enough)), 0))
    few = np.flatnonzero(~enough & np.isin(last, moved))
    source = last[few]
    distance, before = (row_medians(np.abs(part).T) for part in (away[:, few], away[:, few] - own[:, source]))
    lasts = before <= distance
    return few[lasts], source[lasts]


def tonights_shift(shifts: Array, noise: NoiseLevel, present: Flags, judged: Flags, windows: int) -> Shift:
    """Test the last of the `shifts` (T,) against earlier ones by Student's t.

    The last `windows` nights before it are left out, and nights with fewer than HOST series. `present`
    (S, T): where a value is.
    """
    tonight = float(shifts[-1])
    nights = slice(-windows if len(shifts) > 2 * windows else -1)
    before = shifts[nights][present[:, nights].sum(axis=0) >= HOST]
    if tonight == 0 or len(before) < 3 or not judged.any():
        return Shift(tonight)
    # The spread over nights, by the median distance, is at least the standard error of a median over series.
    wobble = 1.4826 * float(np.median(np.abs(before - np.median(before))))
    chance = 1.2533 * float(np.median(noise.sd[judged])) / np.sqrt(judged.sum())
    deviation = float(np.hypot(max(wobble, chance), chance))
    p = float(2 * stats.t.sf(abs(tonight) / deviation, len(before) - 1))
    if p > SHIFT_P:
        return Shift(tonight, p)
    stood = shifts[::-1] * np.sign(tonight) > abs(tonight) / 2
    measured = np.flatnonzero(present.sum(axis=0) >= HOST)
    further = _further_step(shifts, measured, deviation, len(before) - 1, windows)
    return Shift(tonight, p, int(np.argmin(np.append(stood, False))), further)


def _further_step(
    shifts: Array, measured: NDArray[np.intp], deviation: float, df: int, windows: int
) -> FurtherStep | None:
    """The step of the last nights from the nights just before them, where these were shifted the same way.

    The median of the last 1 to `windows` nights less that of the _BESIDE nights before them, by Student's t,
    as that of these nights; each of the last nights is beyond the middle of the two. p is corrected for the
    search. measured: the nights with enough series.
    """
    best = None
    if not len(measured) or measured[-1] != len(shifts) - 1:
        return None
    nights = shifts[measured] * np.sign(shifts[-1])
    for window in range(1, min(windows, len(nights) - _BESIDE) + 1):
        recent, earlier = nights[-window:], nights[-window - _BESIDE : -window]
        before, after = float(np.median(earlier)), float(np.median(recent))
        is_shifted = stats.t.sf(before / (deviation * math.sqrt(_MEDIAN / _BESIDE)), df) <= SHIFT_P / 2
        if not is_shifted or np.any(recent <= (before + after) / 2):
            continue
        error = deviation * math.sqrt(_MEDIAN * (1 / window + 1 / _BESIDE))
        p = min(float(2 * stats.t.sf((after - before) / error, df)) * windows, 1.0)
        if p <= SHIFT_P and (best is None or p < best.p):
            sign = float(np.sign(shifts[-1]))
            since = len(shifts) - int(measured[-window])
            best = FurtherStep(sign * before, sign * (after - before), p, since)
    return best


def _standing(values: Array, own: Array, old: Flags, floor: float) -> tuple[Array, Array]:
    """Each value's distance from its series' level (S, T), and each spread (S,)."""
    old_values = np.where(old, values - own, np.nan)
    level = row_medians(old_values)
    spread = _MAD * row_medians(np.abs(old_values - level[:, None]))
    nights = old.sum(axis=1)
    has_spread = np.isfinite(spread)
    usual = (
        float(np.median(spread[has_spread & (nights >= 3)])) if (has_spread & (nights >= 3)).any() else 0.0
    )
    # The spread of few nights is uncertain, so it is shrunk towards the host's median spread.
    squares = (nights * np.nan_to_num(spread) ** 2 + _PRIOR * usual**2) / (nights + _PRIOR)
    return values - level[:, None], np.maximum(np.sqrt(squares), floor)


def _weighted_median(away: Array, spread: Array) -> Array:
    """Median (T,) of each night, weighted by 1 / spread; 0 for a night without values."""
    weight = np.where(np.isfinite(away), 1 / spread[:, None], 0.0)
    order = np.argsort(np.where(weight > 0, away, np.inf), axis=0)
    reached = np.cumsum(np.take_along_axis(weight, order, axis=0), axis=0)
    middle = np.argmax(reached >= reached[-1] / 2, axis=0)
    median: Array = np.take_along_axis(away, np.take_along_axis(order, middle[None, :], axis=0), axis=0)[0]
    return np.nan_to_num(median)


def _off(away: Array, spread: Array) -> Flags:
    """Nights (T,) on which about half of the series or more may have moved visibly."""
    median = np.abs(row_medians(away.T))
    usual = float(np.median(spread))
    chance = 1.2533 * usual / np.sqrt(np.maximum(np.isfinite(away).sum(axis=0), 1))
    return np.asarray(np.nan_to_num(median) > np.maximum(3 * chance, 0.4 * usual))


@dataclass(frozen=True)
class _Groups:
    """The groups of series that stayed and that moved, for E nights.

    near, far (E,): the places of the stayed and of the moved group. share (E,): of the series in the moved
    group. odds (S, E): log likelihood ratio moved / stayed, by that night alone. beside (E, E): pairs of
    nights at most _TOGETHER nights apart.
    """

    near: Array
    far: Array
    share: Array
    odds: Array
    beside: Flags

    @classmethod
    def fit(cls, away: Array, spread: Array, centre: Array, at: NDArray[np.intp]) -> _Groups:
        """Fit two groups where a night or its neighbours show them; otherwise one at `centre`."""
        present = np.isfinite(away)
        x = np.where(present, away, 0.0)
        scale = _SCALE * spread[:, None]
        one_group, single = _fit(x, present, scale, centre)
        side = np.sign(row_medians(away.T))
        ordered = np.sort(np.where(present, away * side, np.inf), axis=0)
        nights = np.arange(away.shape[1])
        count = present.sum(axis=0)

        def quantile(q: float) -> Array:
            return np.asarray(ordered[np.floor(q * (count - 1)).astype(int), nights] * side)

        best, share = np.full(len(nights), -np.inf), np.zeros(len(nights))
        pair = np.zeros((2, len(nights)))
        for low, high in ((np.zeros_like(centre), quantile(0.75)), (quantile(0.1), quantile(0.55))):
            places, likelihood, part = _fit_two(x, present, scale, low, high)
            better = likelihood > best
            best = np.where(better, likelihood, best)
            pair = np.where(better, places, pair)
            share = np.where(better, part, share)
        swapped = np.abs(pair[0]) > np.abs(pair[1])
        near, far = np.where(swapped, pair[::-1], pair)
        share = np.where(swapped, 1 - share, share)
        two = (
            (2 * (best - single) > _EVIDENCE)
            & (np.abs(far - near) > 1.5 * float(np.median(spread)))
            & (np.abs(near) < np.abs(far) / 2)
        )
        near = np.where(two, near, 0.0)
        far = np.where(two, far, one_group)
        share = np.clip(np.where(two, share, _UNDIVIDED), 0.02, 0.98)
        beside = np.abs(at[:, None] - at[None, :]) <= _TOGETHER
        for night in np.flatnonzero(~two):
            around = beside[night] & two & (far * far[night] > 0)
            if around.sum() > (beside[night] & ~two).sum() and far[night] / np.median(far[around]) < 0.8:
                far[night], share[night] = np.median(far[around]), np.median(share[around])
        odds = np.where(present, _log_t((x - far) / scale) - _log_t((x - near) / scale), 0.0)
        return cls(near, far, share, np.clip(odds, -4.0, 4.0), beside)

    def far_chance(self) -> Array:
        """(S, E) probability that a series was in the group that moved."""
        gap = self.far - self.near
        alike = self.beside & (np.abs(gap[:, None] - gap[None, :]) <= np.abs(gap)[:, None] / 3)
        before = alike @ special.logit(self.share) / alike.sum(axis=1)
        return np.asarray(special.expit(before + self.odds @ alike.T))


def _log_t(r: Array) -> Array:
    return np.asarray(-2.5 * np.log1p(r**2 / 4))


def _fit(x: Array, present: Flags, scale: Array, place: Array) -> tuple[Array, Array]:
    """Fit one group of Student's t(4) values: its place and its log likelihood, both (E,)."""
    for _ in range(_ROUNDS):
        weight = np.where(present, 1 / (4 + ((x - place) / scale) ** 2), 0.0) / scale**2
        place = (weight * x).sum(axis=0) / weight.sum(axis=0)
    return place, np.where(present, _log_t((x - place) / scale), 0.0).sum(axis=0)


def _fit_two(x: Array, present: Flags, scale: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Fit two groups of Student's t(4) values by EM.

    Returns their places (2, E), the log likelihood (E,), and the share of the second group (E,).
    """
    share = np.full(len(low), 0.5)
    count = present.sum(axis=0)
    # As if three more series stayed at 0, so that a small group cannot move its place far.
    pull = 3 * float(np.median(1 / (4 * scale**2)))
    for _ in range(_ROUNDS):
        r_low, r_high = ((x - low) / scale) ** 2, ((x - high) / scale) ** 2
        second = special.expit(special.logit(share) - 2.5 * (np.log1p(r_high / 4) - np.log1p(r_low / 4)))
        second = np.where(present, second, 0.0)
        share = np.clip(second.sum(axis=0) / count, 0.01, 0.99)
        weight = (present - second) / (4 + r_low) / scale**2
        low = (weight * x).sum(axis=0) / (weight.sum(axis=0) + pull)
        weight = second / (4 + r_high) / scale**2
        high = (weight * x).sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-12)
    both = np.logaddexp(
        np.log1p(-share) + _log_t((x - low) / scale), np.log(share) + _log_t((x - high) / scale)
    )
    return np.array([low, high]), np.where(present, both, 0.0).sum(axis=0), share
