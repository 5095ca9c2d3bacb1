"""The level of each machine of a class beside the others: what it does to all series, and to single ones.

Machines of one class share noise, not levels. A series' nights on several machines become comparable once the
level of each machine is taken out; how well that is known depends on its nights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import special

from perfdash.stats.host_shift import HOST
from perfdash.stats.intervals import Array
from perfdash.stats.noise_level import row_medians

_OF_MEDIAN = np.pi / 2  # variance of a median over that of a mean
_MAD = 1.4826
_FEWEST = 2  # nights of a machine that tell its level of a series by themselves
_REFERENCE = 3  # nights of the machine with most of them
_WELL = 10  # nights on each of two machines in turn, from which a series may be unlike the others
_UNLIKE, _FAR = 0.02, 0.1  # share of such series on a machine, and the standard deviation of their offsets
_LEAST = 1e-18  # variance of an offset of series without noise
_WINDOW = 10  # nights whose machines the last night's test may rest on
# Machines of one night among the latest nights, from which on their names say nothing: containers.
_NAMELESS, _LATELY = 3, 5


@dataclass(frozen=True)
class MachineLevels:
    """offset (S, T): log level of each value's machine over the reference machine's; NaN: not known yet.

    variance (S,): of the offsets of the last nights' machines, the largest, as squared logs. machines: their
    names; none where all nights count as of one machine. reference (S,): the place of each series' reference
    machine among them. levels, variances (S, machines): the offset of each machine and its variance.
    """

    offset: Array
    variance: Array
    machines: tuple[str, ...] = ()
    reference: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    levels: Array = field(default_factory=lambda: np.zeros((0, 0)))
    variances: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def reference_of(self, row: int) -> str | None:
        """The reference machine of a series; None where all nights count as of one machine."""
        return self.machines[self.reference[row]] if self.machines else None

    def level_of(self, row: int, machine: str | None) -> tuple[float, float]:
        """A machine's offset in a series and the offset's variance; NaN if they are not known."""
        if not self.machines:
            return 0.0, 0.0
        if machine not in self.machines:
            return math.nan, math.nan
        place = self.machines.index(machine)
        return float(self.levels[row, place]), float(self.variances[row, place])


Machines = Sequence[str] | NDArray[np.object_]


def numbers_of_machines(machines: Machines) -> NDArray[np.intp]:
    """The number of each night's machine (T,), or of each result's (S, T), in order of their first nights.

    All 0 where the names change every night (containers), or no machine has three nights: then all nights
    count as of one machine.
    """
    return _numbered(machines)[1]


def _numbered(machines: Machines) -> tuple[list[str], NDArray[np.intp]]:
    """The names of the machines, in order of their first nights, and numbers_of_machines."""
    given = np.asarray(machines, dtype=object).T
    places: dict[str, int] = {}
    numbers = np.array([places.setdefault(name, len(places)) for name in given.ravel()], dtype=np.intp)
    numbers, names = numbers.reshape(given.shape).T, list(places)
    if not names:
        return names, numbers
    measured = np.stack([(np.atleast_2d(numbers) == place).any(axis=0) for place in range(len(names))])
    one = _are_nameless(measured) or measured.sum(axis=1).max() < _REFERENCE
    return names, np.zeros_like(numbers) if one else numbers


def are_nameless(nights: Sequence[Collection[str]]) -> bool:
    """Whether the names of machines change every night (containers), and so do not tell machines.

    `nights`: the machines of each of the latest nights.
    """
    names = sorted({name for night in nights for name in night})
    return _are_nameless(np.array([[name in night for night in nights] for name in names], dtype=bool))


def _are_nameless(measured: NDArray[np.bool_]) -> bool:
    """`are_nameless`; `measured` (machines, nights): whether a machine measured on a night."""
    of_named = measured[measured.sum(axis=1) > 1, -_LATELY:].any(axis=0)
    return int((~of_named).sum()) >= _NAMELESS


def machine_levels(
    values: Array, machines: Machines, start: NDArray[np.int64] | None = None
) -> MachineLevels:
    """The levels of the machines of `values` (S, T): logs, NaN = missing; the last night counts for none.

    `machines` (T,) or (S, T): the machine of each night, or of each value. `start` (S,): the first night that
    counts. The reference of a series is the machine with most of its nights. A machine's offset in a series
    is drawn towards its median offset, by as much as its series agree (empirical Bayes; Efron and Morris
    1975). The median is over the series of all reference machines, whose differences are removed first. A
    series that is clearly unlike the others keeps its own offset, once the machines measured in turn for ten
    nights each. With fewer than 20 series each has its own. A machine without nights before is not
    comparable; nor, with fewer than 20 series, one with a single night. `numbers_of_machines` decides which
    nights are of one machine.
    """
    names, numbers = _numbered(machines)
    count, width = values.shape
    if not numbers.any():
        return MachineLevels(np.zeros(values.shape), np.zeros(count))
    of_value = np.broadcast_to(numbers, values.shape)
    on = [of_value == machine for machine in range(len(names))]
    known = np.array(values, dtype=float)
    known[:, -1] = np.nan
    if start is not None:
        known[np.arange(width)[None, :] < np.asarray(start)[:, None]] = np.nan
    parts = [_earlier(np.where(mine, known, np.nan)) for mine in on]
    known = np.select(on, parts, np.nan)
    nights = np.stack([np.isfinite(part).sum(axis=1) for part in parts], axis=1)
    medians = np.stack([row_medians(part) for part in parts], axis=1)
    sd = _spread(known - np.take_along_axis(medians, of_value, axis=1))
    reference = np.argmax(nights, axis=1)
    common = int(np.argmax(np.bincount(reference, weights=nights.any(axis=1), minlength=len(names))))
    reference = np.where(nights.any(axis=1), reference, common)
    rows = np.arange(count)
    level, most = medians[rows, reference], nights[rows, reference]
    beside = _beside(medians, nights, common)[reference]
    # Series whose reference machine has few series in common with the usual one are drawn by themselves.
    group = np.where(np.isfinite(beside), common, reference)
    beside = np.nan_to_num(beside)
    on_reference = np.isfinite(known) & (of_value == reference[:, None])
    offset = np.full((count, len(names)), np.nan)
    variance = np.zeros((count, len(names)))
    for machine in range(len(names)):
        own = reference == machine
        raw = medians[:, machine] - level
        # The median of one or two nights is their mean.
        worse = np.where(nights[:, machine] > 2, _OF_MEDIAN, 1.0)
        error = sd**2 * (worse / np.maximum(nights[:, machine], 1) + _OF_MEDIAN / np.maximum(most, 1))
        tells = (nights[:, machine] > 0) & (most >= _REFERENCE) & ~own
        several = nights[:, machine] >= _FEWEST
        well = _in_turn(np.isfinite(parts[machine]), on_reference) >= _WELL
        for part in np.unique(group):
            of = group == part
            offset[of, machine], variance[of, machine] = _drawn(
                raw[of], beside[of], error[of], tells[of], several[of], well[of]
            )
        offset[own, machine], variance[own, machine] = 0.0, 0.0
    last = np.take_along_axis(variance, of_value[:, -_WINDOW:], axis=1).max(axis=1)
    of_values = np.take_along_axis(offset, of_value, axis=1)
    return MachineLevels(of_values, last, tuple(names), reference, offset, variance)


def _earlier(values: Array) -> Array:
    """The nights of one machine that tell its level: the first half, or all but the last nine if more.

    A change of the last nights would be taken for the machine's level otherwise.
    """
    present = np.isfinite(values)
    count = present.sum(axis=1)
    used = np.maximum(np.maximum(-(-count // 2), count - _WINDOW + 1), _FEWEST)
    return np.where(np.cumsum(present, axis=1) <= used[:, None], values, np.nan)


def _in_turn(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The nights (S,) on which two machines measured in turn, of the one with fewer.

    `one`, `other` (S, T): the nights of each. Where one machine took over from the other for good, what
    changed in a series since then may be a change of the series as well.
    """

    def during(nights: NDArray[np.bool_]) -> NDArray[np.bool_]:
        begun, goes_on = (np.maximum.accumulate(part, axis=1) for part in (nights, nights[:, ::-1]))
        return np.asarray(begun & goes_on[:, ::-1])

    return np.asarray(np.minimum((one & during(other)).sum(axis=1), (other & during(one)).sum(axis=1)))


def _beside(medians: Array, nights: NDArray[np.intp], common: int) -> Array:
    """The level of each machine over the machine `common`, the median over their series; NaN for too few.

    `medians`, `nights` (S, machines): the level of each series on each machine, and the nights that tell it.
    """
    both = (nights >= _REFERENCE) & (nights[:, [common]] >= _REFERENCE)
    level = row_medians(np.where(both, medians - medians[:, [common]], np.nan).T)
    level = np.where(both.sum(axis=0) >= HOST, level, np.nan)
    level[common] = 0.0
    return level


def _drawn(
    raw: Array,
    beside: Array,
    error: Array,
    tells: NDArray[np.bool_],
    several: NDArray[np.bool_],
    well: NDArray[np.bool_],
) -> tuple[Array, Array]:
    """The offsets of one machine in each series, and their variances.

    `beside`: the level of each series' reference machine over one that all have in common. Where an offset is
    known `well`, a series may be one of the few that are unlike the others: it keeps its own offset then.
    Mean and variance are those of a contaminated normal distribution (Box and Tiao 1968, Biometrika 55, 119).
    """
    if tells.sum() < HOST:
        own = tells & several
        return np.where(own, raw, np.nan), np.where(own, error, 0.0)
    common = raw + beside
    middle = float(np.median(common[tells]))
    spread = (_MAD * float(np.median(np.abs(common[tells] - middle)))) ** 2
    between = max(0.0, spread - float(np.median(error[tells])))
    apart, error = np.where(tells, common - middle, 0.0), np.where(tells, np.maximum(error, _LEAST), 1.0)
    alike, unlike = (prior / (prior + error) for prior in (between, between + _FAR**2))
    odds = np.log(_UNLIKE / (1 - _UNLIKE)) + _log_normal(apart, between + _FAR**2 + error)
    chance = np.where(tells & well, special.expit(odds - _log_normal(apart, between + error)), 0.0)
    share = alike + chance * (unlike - alike)
    variance = share * error + chance * (1 - chance) * ((unlike - alike) * apart) ** 2
    return middle + share * apart - beside, np.where(tells, variance, between)


def _log_normal(x: Array, variance: Array) -> Array:
    """The log density of normal values of mean 0, but for a constant."""
    return -0.5 * (x**2 / variance + np.log(variance))


def _spread(away: Array) -> Array:
    """The standard deviation of a night about its machine's level (S,); of short series the median one."""
    nights = np.isfinite(away).sum(axis=1)
    sd = _MAD * row_medians(np.abs(away))
    long = (nights >= 5) & np.isfinite(sd)
    usual = float(np.median(sd[long])) if long.any() else 0.0
    return np.where(long, np.maximum(sd, usual / 4), usual)
