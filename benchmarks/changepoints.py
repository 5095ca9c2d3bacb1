"""How often noise is called a change, how well steps are found and dated, by simulation at full size.

    python benchmarks/changepoints.py [SERIES]

Series of 365 nights with 3 % noise of several kinds. Beside perfdash stands plain KernelCPD (linear
kernel, segments of at least 3, penalty 4 ln n sigma^2, sigma from differences), which takes heavy
tails, outliers and autocorrelation for changes. Times are CPU time of this process.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from ruptures import KernelCPD

from perfdash.stats.changepoints import ChangePoint, change_points

NIGHTS, NOISE = 365, 0.03
Logs = NDArray[np.float64]
Kind = Callable[[np.random.Generator, float], Logs]


def autocorrelated(rho: float) -> Kind:
    def make(rng: np.random.Generator, noise: float) -> Logs:
        logs = rng.normal(0, noise * math.sqrt(1 - rho**2), NIGHTS + 100)
        for k in range(1, len(logs)):
            logs[k] += rho * logs[k - 1]
        return logs[100:]

    return make


def outliers(rng: np.random.Generator, noise: float) -> Logs:
    """2 % of the nights are off by ten deviations: + 30 % at 3 %."""
    return rng.normal(0, noise, NIGHTS) + (rng.random(NIGHTS) < 0.02) * noise / NOISE * math.log(1.3)


KINDS: dict[str, Kind] = {
    "Gaussian": lambda rng, noise: rng.normal(0, noise, NIGHTS),
    "Student t3": lambda rng, noise: noise / math.sqrt(3) * rng.standard_t(3, NIGHTS),
    "AR(1) 0.5": autocorrelated(0.5),
    "2 % outliers": outliers,
}
OTHERS: dict[str, Kind] = {
    "AR(1) 0.7": autocorrelated(0.7),
    "AR(1) 0.9": autocorrelated(0.9),
    "white + AR(1) 0.9, equal": lambda rng, noise: (
        math.sqrt(0.5) * (rng.normal(0, noise, NIGHTS) + autocorrelated(0.9)(rng, noise))
    ),
    "two modes 5 % apart, 1 in 5": lambda rng, _: (
        0.05 * (rng.random(NIGHTS) < 0.2) + rng.normal(0, 0.005, NIGHTS)
    ),
    "60 nights five times as noisy": lambda rng, _: rng.normal(0, 0.01 + 0.04 * (np.arange(NIGHTS) >= 305)),
    "drift of 10 %, noise 1 %": lambda rng, _: np.linspace(0, 0.1, NIGHTS) + rng.normal(0, 0.01, NIGHTS),
    "drift of 10 %, noise 3 %": lambda rng, noise: np.linspace(0, 0.1, NIGHTS) + rng.normal(0, noise, NIGHTS),
    "drift of 50 %, noise 1 %": lambda rng, _: np.linspace(0, 0.5, NIGHTS) + rng.normal(0, 0.01, NIGHTS),
    "yearly wave of 5 %, noise 1 %": lambda rng, _: (
        0.05 * np.sin(np.arange(NIGHTS) * 2 * math.pi / 365) + rng.normal(0, 0.01, NIGHTS)
    ),
}


def ours(logs: Logs) -> list[ChangePoint]:
    return change_points(10 * np.exp(logs))


def plain(logs: Logs) -> list[int]:
    """KernelCPD as it comes, its scale from the median absolute difference."""
    sigma = 1.4826 * float(np.median(np.abs(np.diff(logs)))) / math.sqrt(2)
    model = KernelCPD(kernel="linear", min_size=3).fit(logs[:, None])
    return [int(cut) for cut in model.predict(pen=4 * math.log(len(logs)) * sigma**2)[:-1]]


def false_changes(series: int) -> None:
    rng = np.random.default_rng(0)
    print(f"Changes per 1,000 series of {NIGHTS} nights without a step ({series} series each)")
    print("noise                            perfdash  series with any    plain   CPU ms")
    for name, kind in {**KINDS, **OTHERS}.items():
        logs = [kind(rng, NOISE) for _ in range(series if name in KINDS else max(series // 5, 1))]
        start = time.process_time()
        changes = [len(ours(series_logs)) for series_logs in logs]
        spent = (time.process_time() - start) / len(logs)
        naive = sum(len(plain(series_logs)) for series_logs in logs)
        print(
            f"{name:<32} {1000 * np.mean(changes):>8.1f}  {1000 * np.mean(np.array(changes) > 0):>15.1f}"
            f" {naive / len(logs) * 1000:>8.0f}  {spent * 1000:>6.2f}"
        )


def young_steps(series: int) -> None:
    rng = np.random.default_rng(1)
    print(f"\nOne step, so many nights old at the end of the series ({series} series each)")
    print("                      found; of these: dated exactly, within a night, range holds it, its width")
    print("noise         step    age   perfdash                               plain: found, within a night")
    for name, kind in KINDS.items():
        for ratio, noise in ((1.10, 0.03), (1.05, 0.01)):
            for age in (1, 2, 3, 5, 7, 10, 20, 180):
                night = NIGHTS - age
                hits: list[ChangePoint] = []
                naive: list[int] = []
                for _ in range(series):
                    logs = kind(rng, noise)
                    logs[night:] += math.log(ratio)
                    near = [change for change in ours(logs) if abs(change.index - night) <= 5]
                    hits += sorted(near, key=lambda change: abs(change.index - night))[:1]
                    naive += sorted(abs(cut - night) for cut in plain(logs) if abs(cut - night) <= 5)[:1]
                off = np.abs([change.index - night for change in hits])
                held = [change.low <= night <= change.high for change in hits]
                width = np.mean([c.high - c.low + 1 for c in hits]) if hits else math.nan
                print(
                    f"{name:<13} {ratio - 1:.0%}/{noise:.0%} {age:>5}   {len(hits) / series:>6.1%}"
                    f"  {share(off == 0)}  {share(off <= 1)}  {share(held)}  {width:>4.1f}     "
                    f"{len(naive) / series:>6.1%}  {share([off <= 1 for off in naive])}"
                )


def share(good: Sequence[bool] | NDArray[np.bool_]) -> str:
    """Of those found; a dash where they are too few to tell."""
    return f"{np.mean(good):>6.1%}" if len(good) >= 20 else "     -"


def steps_of_a_year(series: int) -> None:
    rng = np.random.default_rng(2)
    print(f"\nTwo or three steps a year of 5 to 15 % up or down at 3 % noise ({series} series each)")
    print("noise          found within 2 nights   others per series   plain: found   others")
    for name, kind in KINDS.items():
        steps = hits = others = plain_hits = plain_others = 0
        for _ in range(series):
            logs = kind(rng, NOISE)
            nights = (np.array([60, 180, 300]) + rng.integers(-40, 41, 3))[: rng.integers(2, 4)]
            for night in nights:
                logs[night:] += rng.choice([-1, 1]) * rng.uniform(0.05, 0.15)
            places, naive = [change.index for change in ours(logs)], plain(logs)
            steps += len(nights)
            hit = sum(any(abs(cut - night) <= 2 for cut in places) for night in nights)
            plain_hit = sum(any(abs(cut - night) <= 2 for cut in naive) for night in nights)
            hits, others = hits + hit, others + len(places) - hit
            plain_hits, plain_others = plain_hits + plain_hit, plain_others + len(naive) - plain_hit
        print(
            f"{name:<13}  {hits / steps:>21.1%}  {others / series:>18.2f}  {plain_hits / steps:>13.1%}"
            f"  {plain_others / series:>7.2f}"
        )


def speed() -> None:
    rng = np.random.default_rng(3)
    logs = [KINDS["AR(1) 0.5"](rng, NOISE) for _ in range(500)]
    for k, series_logs in enumerate(logs):
        series_logs[100 + k % 200 :] += 0.1 * (k % 2)
    start = time.process_time()
    for series_logs in logs:
        ours(series_logs)
    seconds = (time.process_time() - start) / len(logs)
    print(
        f"\n{seconds * 1000:.2f} ms a series of {NIGHTS}: "
        f"{seconds * 1920 * 8:.1f} s of CPU for 1,920 series x 8 metrics"
    )
    start = time.process_time()
    changes = len(ours(np.repeat(rng.uniform(-0.3, 0.3, 20), 500) + rng.normal(0, NOISE, 10_000)))
    print(f"{time.process_time() - start:.2f} s for 10,000 values with {changes} changes of 19", end="; ")
    start = time.process_time()
    ours(rng.normal(0, NOISE, 10_000))
    print(f"{time.process_time() - start:.2f} s without any")


def main() -> None:
    series = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    false_changes(series)
    young_steps(max(series // 10, 1))
    steps_of_a_year(max(series // 10, 1))
    speed()


if __name__ == "__main__":
    main()
