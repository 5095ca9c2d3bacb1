"""Group changes of many series by the date that they share, by the likelihoods of their dates. Pure.

Ranges of possible dates that overlap in a chain would join changes that are far apart; likelihoods do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfdash.stats.intervals import Array
from perfdash.stats.step_likelihood import TAILS

NEAR = 10  # nights before and after the supposed first night on which a change may have happened
_LEVEL = 20  # nights on each side that give the level
NIGHTS_BEFORE = NEAR + _LEVEL + 1  # earlier ones than these do not matter to the dates
IMPOSSIBLE = -60.0  # log likelihood at most of a possible date: finite, so that sums stay so
# Log likelihood that one night weighs, of what it would in independent noise: the noise of neighbouring
# nights is correlated, and its size is estimated. Calibrated by benchmarks/causes.py.
_TRUST = 0.7
_PRICE = 2.0  # log likelihood that a further date costs, beside the choice of the date and of its series
_SURE = 0.95  # probability of a date's range


def date_logs(values: Array, first: int, sd: float) -> Array:
    """Log likelihood that a lasting step came with each night (N,), relative to the likeliest, at most 0.

    values (N,): finite logs of one series; first: the night that its alert gives; sd: of one night's log.
    The levels before and after are the medians around the likeliest night; the noise is Student's t with 4
    degrees of freedom, in which an outlier counts little. Only nights within NEAR of `first` are possible.
    """
    logs = np.full(len(values), IMPOSSIBLE)
    low, high = max(1, first - NEAR), min(len(values) - 1, first + NEAR)
    if low > high:
        return logs
    night = min(max(first, low), high)
    for _ in range(4):  # the levels depend on the night, and it on them
        before = float(np.median(values[max(0, night - _LEVEL) : night]))
        after = float(np.median(values[night : night + _LEVEL]))
        # Each night's gain from lying after the step instead of before it.
        gain = _density((values - after) / sd) - _density((values - before) / sd)
        total = np.cumsum(gain[::-1])[::-1][low : high + 1]
        likeliest = low + int(np.argmax(total))
        if likeliest == night:
            break
        night = likeliest
    logs[low : high + 1] = np.maximum(IMPOSSIBLE + 1, _TRUST * (total - np.max(total)))
    return logs


def _density(z: Array) -> Array:
    density: Array = -(TAILS + 1) / 2 * np.log1p(z * z / TAILS)
    return density


@dataclass(frozen=True)
class DateGroups:
    """label (items,): the group of each item; dates: of each group the log likelihood by date (groups, D)."""

    label: NDArray[np.intp]
    dates: Array


def date_range(logs: Array) -> tuple[int, int, int]:
    """The first, likeliest and last of the dates (D,) that have 95 % of the probability together."""
    weight = np.exp(logs - np.max(logs))
    weight /= weight.sum()
    order = np.argsort(-weight, kind="stable")
    chosen = order[: int(np.searchsorted(np.cumsum(weight[order]), _SURE)) + 1]
    return int(chosen.min()), int(order[0]), int(chosen.max())


def group(logs: Array) -> DateGroups:
    """Group items (items, D) by log likelihood over D common dates.

    As few dates as explain the items: a further date must raise the log likelihood by the price of choosing
    it among all dates, and its items among all items (as in a Dirichlet process, Antoniak 1974). Dates are
    added, moved and dropped until none of it helps; an item that fits two is put to the larger group, in
    proportion to its size.
    """
    items, dates = logs.shape
    if not items:
        return DateGroups(np.zeros(0, dtype=np.intp), np.zeros((0, dates)))
    price = math.log(dates) + math.log(items) + _PRICE
    chosen: list[int] = [int(np.argmax(logs.sum(axis=0)))]
    score = float(logs[:, chosen].max(axis=1).sum()) - price
    while True:
        best, change = score, chosen
        for proposal in _proposals(logs, chosen):
            total = float(logs[:, proposal].max(axis=1).sum()) - price * len(proposal)
            if total > best + 1e-9:
                best, change = total, proposal
        if change is chosen:
            break
        score, chosen = best, change
    label = _assigned(logs, chosen)
    used = np.unique(label)
    label = np.searchsorted(used, label)
    joint = np.stack([logs[label == number].sum(axis=0) for number in range(len(used))])
    return DateGroups(label, joint)


def _proposals(logs: Array, chosen: Sequence[int]) -> list[list[int]]:
    """The chosen dates with the best date more, with each one less, and with each one moved."""
    proposals = [[*chosen, _best_beside(logs, chosen)]]
    for place in range(len(chosen)):
        rest = [*chosen[:place], *chosen[place + 1 :]]
        if rest:
            proposals += [rest, [*rest, _best_beside(logs, rest)]]
    return proposals


def _best_beside(logs: Array, chosen: Sequence[int]) -> int:
    """The date that raises the likelihood most, beside those that are chosen."""
    explained = logs[:, chosen].max(axis=1)
    return int(np.argmax(np.maximum(logs, explained[:, None]).sum(axis=0)))


def _assigned(logs: Array, chosen: Sequence[int]) -> NDArray[np.intp]:
    """The place of each item's date: by likelihood, times the share of the items that the date has."""
    fits = logs[:, chosen]
    label: NDArray[np.intp] = np.argmax(fits, axis=1)
    for _ in range(10):
        share = np.bincount(label, minlength=len(chosen)) / len(label)
        again = np.argmax(fits + np.log(np.maximum(share, 1e-9)), axis=1)
        if np.array_equal(again, label):
            break
        label = again
    return label
