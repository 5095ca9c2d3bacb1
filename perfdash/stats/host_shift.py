"""Separate the shift of the whole host from changes of single series.

A host whose machine or software changes moves many of its series at once, seldom all. The median of
such a night lies between those that moved and those that did not, and is the change of neither. So a
night on which the median is off is taken for a mixture of two groups, one at each end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from perfdash.stats.intervals import Array
from perfdash.stats.noise_level import Flags, NoiseLevel, row_medians

HOST = 20  # so many series tell a common shift
SHIFT_P = 0.001  # p of a shift that is told
_MAD = 1.4826
_PRIOR = 5  # nights of the host's usual spread that are put to each series' own
_SCALE = 0.9  # scale of the Student's t(4) that has the quartiles of a normal of deviation 1
_ROUNDS = 20
_TOGETHER = 10  # nights on either side that tell with a night who moved
_EVIDENCE = 6.0  # twice the log likelihood ratio that two groups need over one
_UNDIVIDED = 0.95  # where no second group shows, so many are taken to have moved


@dataclass(frozen=True)
class Shift:
    """The shift that most series made together tonight: log change, p, number of nights.

    `nights` counts the last nights on which it stood, tonight included; 0 where p is above 0.001.
    """

    change: float = 0.0
    p: float = 1.0
    nights: int = 0


@dataclass(frozen=True)
class HostShift:
    """Of S series and T nights.

    night (T,): what most series did together. own (S, T): the part of it that each series took.
    followed (S, T): took it. group (S, T): moved with others, but perhaps with half of them only:
    whether it is the host that moved cannot be told.
    """

    night: Array
    own: Array
    followed: Flags
    group: Flags


def host_shift(values: Array, old: Flags, floor: float) -> HostShift:
    """Of `values` (S, T; logs, NaN = missing); `old` are the nights that levels and spreads rest on.

    The shift of a night is the place of the group that more than half of the series are in, each of
    them counted once; 0 for a night with fewer than HOST series. Who is in it is told by up to ten
    nights on either side on which the groups lay as far apart.
    """
    own = np.zeros_like(values)
    groups = None
    for _ in range(2):  # once the shifts are out, the levels are better
        away, spread = _standing(values, own, old, floor)
        centre = _weighted_median(away, spread)
        enough = np.isfinite(away).sum(axis=0) >= HOST
        centre[~enough] = 0.0
        night = centre.copy()
        own = np.broadcast_to(centre, values.shape).copy()
        followed, group = np.zeros((2, *values.shape), dtype=bool)
        moved = np.flatnonzero(enough & _off(away, spread))
        if not len(moved):
            break
        groups = _Groups.of(away[:, moved], spread, centre[moved], moved)
        chance = groups.far_chance()
        here = np.isfinite(away[:, moved])
        seen = np.maximum(here.sum(axis=0), 1)
        share = np.where(here, chance, 0.0).sum(axis=0) / seen
        doubt = np.sqrt(np.where(here, chance * (1 - chance), 0.0).sum(axis=0)) / seen
        # About half counts as most: of a night in between neither is told.
        most = share + doubt + 0.25 / seen > 0.5
        far = chance > 0.5
        night[moved] = np.where(most, groups.far, groups.near)
        # Too few that stayed tell no place of theirs: it is where they were.
        stayed = groups.near * np.where(most, np.clip((1 - share - 0.1) / 0.2, 0.0, 1.0), 1.0)
        own[:, moved] = np.where(most & far, groups.far, stayed)
        followed[:, moved] = most & far
        group[:, moved] = ~most & (share + 2 * doubt > 0.5) & far
    return HostShift(night, own, followed, group)


def tonights_shift(shifts: Array, noise: NoiseLevel, present: Flags, judged: Flags, windows: int) -> Shift:
    """Tonight's of the `shifts` (T,) against those more than `windows` nights before: Student's t.

    `present` (S, T): where a value is. A night with fewer than HOST series has no shift to compare with.
    """
    tonight = float(shifts[-1])
    nights = slice(-windows if len(shifts) > 2 * windows else -1)
    before = shifts[nights][present[:, nights].sum(axis=0) >= HOST]
    if tonight == 0 or len(before) < 3 or not judged.any():
        return Shift(tonight)
    # The spread of nights, robustly, and at least what a median over so many series has by chance.
    wobble = 1.4826 * float(np.median(np.abs(before - np.median(before))))
    chance = 1.2533 * float(np.median(noise.sd[judged])) / np.sqrt(judged.sum())
    deviation = float(np.hypot(max(wobble, chance), chance))
    p = float(2 * stats.t.sf(abs(tonight) / deviation, len(before) - 1))
    stood = shifts[::-1] * np.sign(tonight) > abs(tonight) / 2
    return Shift(tonight, p, int(np.argmin(np.append(stood, False))) if p <= SHIFT_P else 0)


def _standing(values: Array, own: Array, old: Flags, floor: float) -> tuple[Array, Array]:
    """Each value's distance from its series' level (S, T), and each spread (S,)."""
    kept = np.where(old, values - own, np.nan)
    level = row_medians(kept)
    spread = _MAD * row_medians(np.abs(kept - level[:, None]))
    nights = old.sum(axis=1)
    has_spread = np.isfinite(spread)
    usual = (
        float(np.median(spread[has_spread & (nights >= 3)])) if (has_spread & (nights >= 3)).any() else 0.0
    )
    # A few nights hardly tell their spread.
    squares = (nights * np.nan_to_num(spread) ** 2 + _PRIOR * usual**2) / (nights + _PRIOR)
    return values - level[:, None], np.maximum(np.sqrt(squares), floor)


def _weighted_median(away: Array, spread: Array) -> Array:
    """(T,) of each night, weighted by 1 / spread; 0 for a night without values."""
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
    """Of some nights (E,): the place of those that stayed and of those that moved, and whose share.

    odds (S, E): log likelihood of the moved over that of the stayed group, of that night alone.
    beside (E, E): nights near enough to each other.
    """

    near: Array
    far: Array
    share: Array
    odds: Array
    beside: Flags

    @classmethod
    def of(cls, away: Array, spread: Array, centre: Array, at: NDArray[np.intp]) -> _Groups:
        """Two groups where that night or its neighbours show them; else one at `centre`."""
        here = np.isfinite(away)
        x = np.where(here, away, 0.0)
        scale = _SCALE * spread[:, None]
        one_group, single = _fit(x, here, scale, centre)
        side = np.sign(row_medians(away.T))
        ordered = np.sort(np.where(here, away * side, np.inf), axis=0)
        nights = np.arange(away.shape[1])
        count = here.sum(axis=0)

        def quantile(q: float) -> Array:
            return np.asarray(ordered[np.floor(q * (count - 1)).astype(int), nights] * side)

        best, share = np.full(len(nights), -np.inf), np.zeros(len(nights))
        pair = np.zeros((2, len(nights)))
        for low, high in ((np.zeros_like(centre), quantile(0.75)), (quantile(0.1), quantile(0.55))):
            places, likelihood, part = _fit_two(x, here, scale, low, high)
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
        odds = np.where(here, _log_t((x - far) / scale) - _log_t((x - near) / scale), 0.0)
        return cls(near, far, share, np.clip(odds, -4.0, 4.0), beside)

    def far_chance(self) -> Array:
        """(S, E) probability that a series was in the group that moved."""
        gap = self.far - self.near
        alike = self.beside & (np.abs(gap[:, None] - gap[None, :]) <= np.abs(gap)[:, None] / 3)
        before = alike @ special.logit(self.share) / alike.sum(axis=1)
        return np.asarray(special.expit(before + self.odds @ alike.T))


def _log_t(r: Array) -> Array:
    return np.asarray(-2.5 * np.log1p(r**2 / 4))


def _fit(x: Array, here: Flags, scale: Array, place: Array) -> tuple[Array, Array]:
    """The place (E,) of one group of Student's t(4) values, and its log likelihood."""
    for _ in range(_ROUNDS):
        weight = np.where(here, 1 / (4 + ((x - place) / scale) ** 2), 0.0) / scale**2
        place = (weight * x).sum(axis=0) / weight.sum(axis=0)
    return place, np.where(here, _log_t((x - place) / scale), 0.0).sum(axis=0)


def _fit_two(x: Array, here: Flags, scale: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Fit two groups by EM: places (2, E), log likelihood (E,), second share (E,)."""
    share = np.full(len(low), 0.5)
    count = here.sum(axis=0)
    pull = 3 * float(np.median(1 / (4 * scale**2)))  # three series at 0: a small group says little
    for _ in range(_ROUNDS):
        r_low, r_high = ((x - low) / scale) ** 2, ((x - high) / scale) ** 2
        second = special.expit(special.logit(share) - 2.5 * (np.log1p(r_high / 4) - np.log1p(r_low / 4)))
        second = np.where(here, second, 0.0)
        share = np.clip(second.sum(axis=0) / count, 0.01, 0.99)
        weight = (here - second) / (4 + r_low) / scale**2
        low = (weight * x).sum(axis=0) / (weight.sum(axis=0) + pull)
        weight = second / (4 + r_high) / scale**2
        high = (weight * x).sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-12)
    both = np.logaddexp(
        np.log1p(-share) + _log_t((x - low) / scale), np.log(share) + _log_t((x - high) / scale)
    )
    return np.array([low, high]), np.where(here, both, 0.0).sum(axis=0), share
