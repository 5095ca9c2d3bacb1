"""How often the nightly alarm and the re-measurement are wrong, and what they find, by simulation.

    python benchmarks/alarm.py [--series N] [--hosts N] [--months N] [--part NAME ...] [--results FILE]

A part is `steps`, `sizes`, `hosts`, `machines` or `drift`. A cell (a line) that is in FILE is not computed
again, so that the benchmark can be interrupted.

steps: every night of a month (30) is judged as it comes, after 60 nights of history, on hosts of N
independent series. In 5 % of them a step happens on some night, half slower and half faster; the other
95 % are the ones false alerts are counted in, at most one a series and month. A series that is
alerted ends. Noise is of the log, with the sd given: Gaussian; Student's t(3) scaled to that sd;
autoregressive with rho 0.5 and that marginal sd; Gaussian with 2 % of single nights 30 % up.

A re-measured run is taken to be as noisy as a night: each of the two runs of a pair draws anew from
the whole noise, outliers included; of the autoregressive noise the night's own part cancels, and each
run has a fresh Gaussian of the full sd. Real pairs, minutes apart, should be quieter.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfdash.detect.alert_states import lasts
from perfdash.files import write
from perfdash.stats.confirmation_test import decide
from perfdash.stats.drift import drift
from perfdash.stats.machine_levels import machine_levels
from perfdash.stats.nightly_test import NightTest, judge

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
KINDS = ("gaussian", "t3", "autoregressive", "outliers")
HISTORY, MONTH, STEPPED = 60, 30, 0.05


def noise(rng: np.random.Generator, kind: str, sd: Array | float, shape: tuple[int, ...]) -> Array:
    """Noise of a kind, nights along the last axis; sd is one, or one a series as a column."""
    if kind == "t3":
        return rng.standard_t(3, size=shape) * sd / np.sqrt(3)
    drawn = rng.normal(size=shape)
    if kind == "autoregressive":
        for night in range(1, shape[-1]):
            drawn[..., night] = 0.5 * drawn[..., night - 1] + np.sqrt(0.75) * drawn[..., night]
    drawn = drawn * sd
    if kind == "outliers":
        drawn += np.log(1.3) * (rng.random(shape) < 0.02)
    return drawn


@dataclass
class Tally:
    """What happened to the series of one or more hosts in a month each."""

    unchanged: int = 0
    false: int = 0
    runs: int = 0
    judged: int = 0
    delays: dict[str, list[int]] = field(default_factory=lambda: {"slower": [], "faster": []})

    @property
    def false_per_thousand(self) -> float:
        return 1000 * self.false / self.unchanged

    @property
    def runs_per_night(self) -> float:
        return self.runs / max(self.judged, 1)

    def found(self, nights: int, direction: str | None = None) -> float:
        """Share of the steps alerted within so many nights, the first being the step's own."""
        delays = self.delays[direction] if direction else self.delays["slower"] + self.delays["faster"]
        return sum(delay < nights for delay in delays) / max(len(delays), 1)


@dataclass
class Suspects:
    """The suspected series of a host: each with the test that suspected it, and its later nights."""

    first: dict[int, tuple[NightTest, int]] = field(default_factory=dict)

    def alerts(self, judgement: NightTest, tonight: Array) -> Flags:
        """The series with an alert tonight: by the night's test, or by later nights after a suspected one."""
        alerts = judgement.alarm.copy()
        for index, (test, nights) in list(self.first.items()):
            if not np.isfinite(tonight[index]):
                continue
            if (tonight[index] - test.baseline[index]) / test.change[index] <= 0.5:
                del self.first[index]
                continue
            self.first[index] = test, nights + 1
            alerts[index] |= lasts(float(test.repeat[index]), float(test.heavy_p[index]), nights + 1)
        for index in np.flatnonzero(alerts).tolist():
            self.first.pop(index, None)
        for index in np.flatnonzero(judgement.suspect & ~alerts).tolist():
            self.first.setdefault(index, (judgement, 0))
        return alerts


def month(
    rng: np.random.Generator,
    tally: Tally,
    kind: str,
    sd: float | None,
    step: float,
    *,
    series: int = 2000,
    remeasured: bool = True,
    missing: float = 0.0,
    month: int = MONTH,
    **options: float,
) -> None:
    """One host for a month, into the tally. sd None: a series' own, log-uniform 0.5 % to 4 %."""
    spread = np.exp(rng.uniform(np.log(0.005), np.log(0.04), (series, 1))) if sd is None else sd
    values = rng.uniform(0, 5, (series, 1)) + noise(rng, kind, spread, (series, HISTORY + month))
    sds = np.broadcast_to(spread, (series, 1))[:, 0]
    when = np.full(series, 10**6)
    change = np.zeros(series)
    stepped = rng.choice(series, round(STEPPED * series), replace=False)
    when[stepped] = HISTORY + rng.integers(0, month - 5, len(stepped))
    change[stepped] = np.log1p(step) * np.where(np.arange(len(stepped)) % 2, 1, -1)
    values += change[:, None] * (np.arange(HISTORY + month) >= when[:, None])
    values[rng.random(values.shape) < missing] = np.nan
    alerted = np.full(series, -1)
    suspects = Suspects()
    run_kind = "gaussian" if kind == "autoregressive" else kind
    for night in range(HISTORY, HISTORY + month):
        judgement = judge(values[:, : night + 1], **options)
        tally.judged += int(judgement.judged.sum())
        if remeasured:
            alerts = np.zeros(series, dtype=bool)
            for index in np.flatnonzero(judgement.candidate):
                true = change[index] if night >= when[index] else 0.0
                pairs: list[float] = []
                decision = "more"
                while decision == "more":
                    new, old = noise(rng, run_kind, float(sds[index]), (2,))
                    pairs.append(true + new - old)
                    decision = decide(
                        pairs,
                        suspected=judgement.change[index],
                        sd=judgement.sd[index],
                        df=judgement.df[index],
                    ).decision
                tally.runs += 2 * len(pairs)
                alerts[index] = decision == "stands"
        else:
            alerts = suspects.alerts(judgement, values[:, night])
        right = (night >= when) & (np.sign(judgement.change) == np.sign(change))
        alerted[alerts & right] = night
        # An alert before the step or the other way is false; such a series says nothing of power.
        alerted[alerts & ~right] = -2
        values[alerts] = np.nan
    unchanged = change == 0
    tally.unchanged += int(unchanged.sum())
    tally.false += int((unchanged & (alerted != -1)).sum())
    for name, sign in (("slower", 1), ("faster", -1)):
        for index in np.flatnonzero((np.sign(change) == sign) & (alerted != -2)):
            tally.delays[name].append(int(alerted[index] - when[index]) if alerted[index] >= 0 else 10**6)


def drifts(rng: np.random.Generator, kind: str, sd: float, slope: float, series: int) -> tuple[float, ...]:
    """Judged weekly for 20 weeks after 60 nights: false per 1,000 series-months, share found, delay.

    A tenth of the series drifts from the end of the history on. The delay is the median in nights.
    """
    nights = HISTORY + 140
    values = noise(rng, kind, sd, (series, nights))
    moving = np.arange(series) < series // 10
    values[moving] += slope * np.maximum(0, np.arange(nights) - HISTORY)
    first = np.full(series, 10**6)
    for night in range(HISTORY, nights, 7):
        flags = drift(values[:, : night + 1]).drifting
        first = np.where(flags, np.minimum(first, night - HISTORY), first)
    seen = first < 10**6
    false = 1000 * float(np.mean(seen[~moving])) / (140 / 30)
    delay = float(np.median(first[moving][seen[moving]])) if seen[moving].any() else np.nan
    return false, float(np.mean(seen[moving])), delay


@dataclass(frozen=True)
class Together:
    """A step of a host in a share of its series: who was alarmed in the nights after it, and what told."""

    movers: int
    unmoved: int
    shift_alerts: int


def together(
    rng: np.random.Generator,
    kind: str,
    sd: float,
    share: float,
    *,
    series: int,
    step: float = 0.08,
    nights: int = 20,
    missing: float = 0.0,
) -> Together:
    """Counts a series once in so many nights; told: nights on which the shift of the host is told."""
    values = rng.uniform(0, 5, (series, 1)) + noise(rng, kind, sd, (series, HISTORY + nights))
    moved = np.arange(series) < round(share * series)
    values[moved, HISTORY:] += np.log1p(step)
    values[rng.random(values.shape) < missing] = np.nan
    alarmed = np.zeros(series, dtype=bool)
    shift_alerts = 0
    for night in range(HISTORY, HISTORY + nights):
        judgement = judge(values[:, : night + 1])
        alarmed |= judgement.alarm
        shift_alerts += judgement.shift.nights > 0 and abs(judgement.shift.change) >= np.log(1.02)
    return Together(int((alarmed & moved).sum()), int((alarmed & ~moved).sum()), shift_alerts)


def unchanged_months(
    rng: np.random.Generator, kind: str, sd: float | None, series: int, months: int, group: int = 1
) -> tuple[int, int, int]:
    """Months without a change, on hosts of `series` series, until there are `months` series-months.

    `group`: series that share half of their noise's variance, as the configurations of one model do. Returns
    the series-months, the series with an alert (by one night, or by later nights after a suspected one), and
    the nights on which a series is suspected.
    """
    hosts = -(-months // series)
    alerted = suspected = 0
    for _ in range(hosts):
        spread = np.exp(rng.uniform(np.log(0.005), np.log(0.04), (series, 1))) if sd is None else sd
        values = noise(rng, kind, spread, (series, HISTORY + MONTH))
        if group > 1:
            shared = noise(rng, kind, 1.0, (-(-series // group), HISTORY + MONTH))
            own = values / np.sqrt(2)
            values = own + np.repeat(shared, group, axis=0)[:series] * spread / np.sqrt(2)
        has_alert = np.zeros(series, dtype=bool)
        suspects = Suspects()
        for night in range(HISTORY, HISTORY + MONTH):
            judgement = judge(values[:, : night + 1])
            has_alert |= suspects.alerts(judgement, values[:, night])
            suspected += int((judgement.suspect & ~has_alert).sum())
        alerted += int(has_alert.sum())
    return hosts * series, alerted, suspected


@dataclass(frozen=True)
class Jumps:
    """Series-months of series that jump between two levels, and of how many there is an alert."""

    months: int
    first: int
    remeasured: int


def jumps(rng: np.random.Generator, sd: float, size: float, series: int, months: int) -> Jumps:
    """Series that jump to the other of two levels with 2 % a night, on hosts of `series`.

    `first`: series with an alert by the nights alone. `remeasured`: series with a candidate
    that stands a re-measurement; both builds of a pair are on the level of the night.
    """
    hosts = -(-months // series)
    first = stood = 0
    for _ in range(hosts):
        flips = np.cumsum(rng.random((series, HISTORY + MONTH)) < 0.02, axis=1) % 2
        values = rng.normal(0, sd, flips.shape) + np.log1p(size) * flips
        alerted, confirmed = np.zeros((2, series), dtype=bool)
        suspects = Suspects()
        for night in range(HISTORY, HISTORY + MONTH):
            judgement = judge(values[:, : night + 1])
            alerted |= suspects.alerts(judgement, values[:, night])
            for index in np.flatnonzero(judgement.candidate & ~confirmed):
                change, spread, df = (
                    float(part[index]) for part in (judgement.change, judgement.sd, judgement.df)
                )
                pairs: list[float] = []
                decision = "more"
                while decision == "more":
                    pairs.append(float(rng.normal(0, sd * np.sqrt(2))))
                    decision = decide(pairs, suspected=change, sd=spread, df=df).decision
                confirmed[index] = decision == "stands"
        first += int(alerted.sum())
        stood += int(confirmed.sum())
    return Jumps(hosts * series, first, stood)


def row(label: str, tally: Tally, remeasured: bool) -> str:
    shares = "  ".join(f"{tally.found(k):6.1%}" for k in (1, 2, 3, 5))
    sides = "  ".join(f"{tally.found(1, side):6.1%}" for side in ("slower", "faster"))
    runs = f"{tally.runs_per_night:5.2f}" if remeasured else "    -"
    return f"{label:<34}{tally.false_per_thousand:>6.2f} ({tally.false:>3})   {shares}   {sides}   {runs}"


Cells = dict[str, str]


def cell(cells: Cells, file: Path | None, name: str, compute: Callable[[np.random.Generator], str]) -> None:
    """Print a line, computed unless the file has it; every cell has a seed of its own."""
    if name not in cells:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
        cells[name] = compute(np.random.default_rng(seed))
        if file is not None:
            write(file, json.dumps(cells, indent=0))
    print(cells[name], flush=True)


def step_line(
    label: str,
    kind: str,
    sd: float | None,
    step: float,
    hosts: int,
    rng: np.random.Generator,
    *,
    series: int,
    remeasured: bool,
    missing: float,
) -> str:
    tally = Tally()
    for _ in range(hosts):
        month(rng, tally, kind, sd, step, series=series, remeasured=remeasured, missing=missing)
    return row(label, tally, remeasured)


def steps(cells: Cells, file: Path | None, series: int, hosts: int) -> None:
    head = (
        f"{'noise':<34}{'false/1,000 (n)':<16}{'night 1':>7}{'by 2':>8}{'by 3':>8}{'by 5':>8}"
        f"{'slower':>10}{'faster':>8}   runs"
    )
    kinds: list[tuple[str, str, float | None, float, float]] = [
        (f"{kind} {sd:.0%}, step {step:.0%}", kind, sd, step, 0.0)
        for sd, step in ((0.03, 0.10), (0.01, 0.05))
        for kind in KINDS
    ]
    kinds += [
        ("gaussian 0.5..4 %, step 10%", "gaussian", None, 0.10, 0.0),
        ("gaussian 3%, 10% missing, step 10%", "gaussian", 0.03, 0.10, 0.1),
    ]
    for remeasured in (True, False):
        word = "with" if remeasured else "without"
        print(f"\n{word} re-measurement, {hosts} x {series} series")
        print(head)
        for label, kind, sd, step, missing in kinds:
            compute = partial(
                step_line, label, kind, sd, step, hosts, series=series, remeasured=remeasured, missing=missing
            )
            cell(cells, file, f"steps {word} {label} {hosts}x{series}", compute)
    print("\nslower, faster: found on the first night; runs: extra runs a series and night")
    print(
        "false alerts per 1,000 series-months of today's detectors, as gaussian/t3/autoregressive/outliers:"
    )
    print("  Otava 160/472/1250/596, ruptures KernelCPD 38/381/1835/902, asv 2/9/0/3")


def size_line(
    label: str,
    kind: str,
    sd: float | None,
    series: int,
    months: int,
    group: int,
    rng: np.random.Generator,
) -> str:
    count, false, suspected = unchanged_months(rng, kind, sd, series, months, group)
    return (
        f"{series:<18}{label:<34}{1000 * false / count:>11.1f} ({false:>4}){1000 * suspected / count:>18.0f}"
    )


def jump_line(series: int, months: int, rng: np.random.Generator) -> str:
    seen = jumps(rng, 0.01, 0.10, series, months)
    return (
        f"{series:<18}{'gaussian 1%, 10%':<34}{1000 * seen.first / seen.months:>18.1f}"
        f"{1000 * seen.remeasured / seen.months:>18.1f}"
    )


def sizes(cells: Cells, file: Path | None, months: int) -> None:
    print(f"\nnothing changes, no re-measurement; per 1,000 series-months, from about {months}")
    print(f"{'series of a host':<18}{'noise':<34}{'false alerts (n)':>18}{'suspected nights':>18}")
    for series in (2000, 200, 20, 5, 1):
        kinds: list[tuple[str, str, float | None, int]] = [(f"{kind} 3%", kind, 0.03, 1) for kind in KINDS]
        if series > 1:
            kinds += [
                ("gaussian 0.5..4 %", "gaussian", None, 1),
                ("t3 0.5..4 %", "t3", None, 1),
                ("gaussian 3%, 4 series share half", "gaussian", 0.03, 4),
            ]
        for label, kind, sd, group in kinds:
            compute = partial(size_line, label, kind, sd, series, months, group)
            cell(cells, file, f"sizes {series} {label} {months}", compute)
    print("\njumps between two levels, 2 % a night; per 1,000 series-months")
    print(f"{'series of a host':<18}{'noise and size':<34}{'by nights alone':>18}{'re-measured':>18}")
    for series in (20, 200):
        cell(cells, file, f"jumps {series} {months}", partial(jump_line, series, months))


def host_line(series: int, sd: float, part: float, hosts: int, rng: np.random.Generator) -> str:
    seen = [together(rng, "gaussian", sd, part, series=series) for _ in range(hosts)]
    movers, unmoved, shift_alerts = (
        np.mean([getattr(outcome, name) for outcome in seen])
        for name in ("movers", "unmoved", "shift_alerts")
    )
    moving = round(part * series)
    return (
        f"{series:<10}{sd:>6.0%}{part:>8.0%}{movers:>12.1f} of {moving:<5}"
        f"{unmoved:>10.1f} of {series - moving:<5}{shift_alerts:>13.1f}"
    )


def hosts_that_move(cells: Cells, file: Path | None, hosts: int) -> None:
    print(f"\nstep of 8 % in a share of a host's series, judged for 20 nights, mean of {hosts} hosts")
    print(
        f"{'series':<10}{'noise':>6}{'moved':>8}{'alarmed of moved':>20}{'of unmoved':>18}{'nights told':>14}"
    )
    for series in (40, 400):
        for sd in (0.01, 0.03):
            for part in (0.0, 0.3, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
                compute = partial(host_line, series, sd, part, hosts)
                cell(cells, file, f"hosts {series} {sd} {part} {hosts}", compute)


def drift_line(kind: str, sd: float, slope: float, series: int, rng: np.random.Generator) -> str:
    false, share, delay = drifts(rng, kind, sd, slope, series)
    return f"{kind:<15} {sd:>4.0%}{slope:>14.2%}{false:>13.2f}{share:>8.1%}{delay:>14.0f}"


def drifting(cells: Cells, file: Path | None, series: int) -> None:
    print(f"\ndrift against the first nights, {series} series, judged weekly for 20 weeks")
    print(f"{'noise':<20}{'drift a night':>14}{'false/1,000':>13}{'found':>8}{'after nights':>14}")
    for kind in KINDS:
        for sd, slope in ((0.03, 0.002), (0.01, 0.0005)):
            compute = partial(drift_line, kind, sd, slope, series)
            cell(cells, file, f"drift {kind} {sd} {slope} {series}", compute)


def new_machine(
    rng: np.random.Generator, series: int, fleets: int, sd: float, own: float, corrected: bool
) -> tuple[float, list[float]]:
    """A machine more in a class: false alerts per 1,000 series in its first ten nights, and steps found.

    The other machine has 60 nights. The new one is 4 % slower, and by `own` off in single series. A step of
    five deviations in 5 % of the series on its third night: the share that is a candidate then, and the share
    alerted by one, two and four nights later. `corrected`: with machine_levels.
    """
    false = stepped = 0
    found = np.zeros(4)
    for _ in range(fleets):
        values = rng.uniform(0, 5, (series, 1)) + noise(rng, "gaussian", sd, (series, HISTORY + 10))
        values[:, HISTORY:] += 0.04 + own * rng.normal(size=(series, 1))
        moved = np.arange(series) < max(1, round(STEPPED * series))
        values[moved, HISTORY + 2 :] += 5 * sd
        machines = ["old"] * HISTORY + ["new"] * 10
        alerted = np.full(series, -1)
        suspects = Suspects()
        candidates = np.zeros(series, dtype=bool)
        for night in range(HISTORY, HISTORY + 10):
            seen, variance = values[:, : night + 1], None
            if corrected:
                levels = machine_levels(seen, machines[: night + 1])
                seen, variance = seen - levels.offset, levels.variance
            judgement = judge(seen, machines=variance)
            alerts = suspects.alerts(judgement, seen[:, night])
            alerted[alerts & (alerted < 0)] = night
            if night == HISTORY + 2:
                candidates = judgement.candidate & moved
        false += int((alerted[~moved] >= 0).sum())
        stepped += int(moved.sum())
        delay = np.where(alerted[moved] >= HISTORY + 2, alerted[moved] - HISTORY - 2, 99)
        found += [candidates.sum(), *((delay <= nights).sum() for nights in (1, 2, 4))]
    unchanged = fleets * (series - max(1, round(STEPPED * series)))
    return 1000 * false / unchanged, [float(share) for share in found / stepped]


def machine_line(
    series: int, fleets: int, sd: float, own: float, corrected: bool, rng: np.random.Generator
) -> str:
    false, found = new_machine(rng, series, fleets, sd, own, corrected)
    shares = "".join(f"{share:>9.0%}" for share in found)
    return f"{series:<10}{sd:>6.0%}{own:>6.0%}{'yes' if corrected else 'no':>8}{false:>13.1f}{shares}"


def machines_that_join(cells: Cells, file: Path | None, fleets: int) -> None:
    print(f"\na machine more in a class, 4 % slower and off in single series, {fleets} times 200 series")
    print(
        f"{'series':<10}{'noise':>6}{'off':>6}{'levels':>8}{'false/1,000':>13}"
        f"{'at once':>9}{'by 2':>9}{'by 3':>9}{'by 5':>9}"
    )
    for series in (200, 10):
        for sd, own in ((0.01, 0.01), (0.01, 0.03), (0.03, 0.01)):
            for corrected in (False, True):
                compute = partial(machine_line, series, fleets * 200 // series, sd, own, corrected)
                cell(cells, file, f"machines {series} {sd} {own} {corrected} {fleets}", compute)


PARTS = ("steps", "sizes", "hosts", "machines", "drift")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--series", type=int, default=2000)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--months", type=int, default=4000, help="series-months of a cell of `sizes`")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--results", type=Path, help="keep the cells here, and go on from them")
    options = parser.parse_args()
    file = options.results
    cells: Cells = json.loads(file.read_text()) if file is not None and file.exists() else {}
    if "steps" in options.part:
        steps(cells, file, options.series, options.hosts)
    if "sizes" in options.part:
        sizes(cells, file, options.months)
    if "hosts" in options.part:
        hosts_that_move(cells, file, 2 * options.hosts)
    if "machines" in options.part:
        machines_that_join(cells, file, 5 * options.hosts)
    if "drift" in options.part:
        drifting(cells, file, options.series)


if __name__ == "__main__":
    main()
