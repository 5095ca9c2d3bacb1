"""Decide from pairs of runs what changed between two builds, metric by metric. Pure.

No change is suspected beforehand, so each metric of each case is tested in both directions. The chance of
any false change in the whole comparison is at most FALSE_CHANGE.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median

import numpy as np

from perfdash.detect.comparison import COMPARED, Delta, least_change
from perfdash.detect.confirmation import PairedResult, PairedStatus, passed_pairs, quiet_pairs
from perfdash.stats import confirmation_test
from perfdash.stats.step_likelihood import robust_level

PairedRun = tuple[PairedResult, PairedResult]  # old, new

LEAST_PAIRS, MOST_PAIRS = 3, 8
FALSE_CHANGE = 0.05
_FAILURES = 2  # pairs with a failure, after which a case that fails with both builds is not measured again


def false_alarm_of(cases: int) -> float:
    """The probability of a false change that each test may have (Bonferroni's bound)."""
    return FALSE_CHANGE / (2 * len(COMPARED) * max(cases, 1))


def paired_deltas(pairs: Sequence[PairedRun], false_alarm: float, most: int = MOST_PAIRS) -> dict[str, Delta]:
    """The change of each metric that both builds have, from at most `most` planned pairs.

    A change is significant where the sequential test says that it stands. It is undecided where the interval
    allows both a change that counts and none.
    """
    deltas = {}
    for name in COMPARED:
        passed = passed_pairs(name, pairs)
        if quiet := quiet_pairs(name, passed):
            deltas[name] = _delta(_logs(name, quiet), least_change(name), false_alarm, most)
        elif passed:  # other programs disturbed every pair: its numbers are shown, and decide nothing
            disturbed = _delta(_logs(name, passed), least_change(name), false_alarm, most)
            deltas[name] = disturbed._replace(significant=False, reach=None, pairs=0, undecided=True)
    return deltas


def paired_status(pairs: Sequence[PairedRun]) -> PairedStatus | None:
    """The statuses of a case on both sides; None without a pair in which both have one.

    A side fails where it failed in every pair, or in LEAST_PAIRS of them: one failure may be chance. Where
    both failed now and then, neither is called worse.
    """
    known = [pair for pair in pairs if all(side.has_status for side in pair)]
    if not known:
        return None
    sides = list(zip(*known, strict=True))
    failures = [[result.word for result in side if not result.passed] for side in sides]
    comparable = not all(failures) or all(len(failed) == len(known) for failed in failures)
    words, notes = [], []
    for name, side, failed in zip(("old", "new"), sides, failures, strict=True):
        passed = [result.word for result in side if result.passed]
        fails = failed and (not passed or len(failed) >= LEAST_PAIRS or not comparable)
        words.append(Counter(failed if fails else passed).most_common(1)[0][0])
        if failed and (passed or not comparable):
            kinds = ", ".join(dict.fromkeys(failed))
            notes.append(f"{kinds} in {len(failed)} of {len(known)} pairs of the {name} side")
    return PairedStatus(words[0], words[1], comparable, "; ".join(notes))


def is_enough(pairs: Sequence[PairedRun], false_alarm: float, most: int = MOST_PAIRS) -> bool:
    """Whether more pairs of a case would tell nothing new, or are not allowed."""
    failures = [sum(not side.passed for side in sides) for sides in zip(*pairs, strict=True)]
    if len(pairs) >= most:
        return True
    if any(failures) and not all(failures):  # of one build alone: is it the build?
        return max(failures) >= LEAST_PAIRS
    if sum(not (old.passed and new.passed) for old, new in pairs) >= _FAILURES:
        return True
    if len(pairs) < LEAST_PAIRS:
        return False
    return not any(delta.undecided for delta in paired_deltas(pairs, false_alarm, most).values())


def _logs(name: str, pairs: Sequence[PairedRun]) -> list[tuple[float, float]]:
    return [(math.log(old.values[name]), math.log(new.values[name])) for old, new in pairs]


def _delta(logs: Sequence[tuple[float, float]], least: float, false_alarm: float, most: int) -> Delta:
    ratios = [new - old for old, new in logs]
    test = confirmation_test.decide(
        ratios,
        suspected=math.copysign(1.0, median(ratios)),
        at_least=least,
        minimum_change=math.expm1(least),
        pairs=max(most, 2),
        false_alarm=false_alarm,
    )
    stands = test.decision == "stands"
    same = len(ratios) >= LEAST_PAIRS and -least < test.low and test.high < least
    # The new level by the robust estimate, too: one outlying pair must not give two answers.
    level = robust_level(np.array([old for old, _ in logs]))
    return Delta(
        math.exp(level),
        math.exp(level + test.estimate),
        test.estimate,
        None,
        stands,
        (test.high - test.low) / 2 if math.isfinite(test.high) else None,
        pairs=len(ratios),
        undecided=not stands and not same,
    )
