"""A night: one run with what changed in it. Every report is made from this value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from perfdash.detect.alert_evidence import gather
from perfdash.detect.alert_states import as_fixed
from perfdash.detect.comparison import ComparedRuns, Comparison
from perfdash.detect.curation import LATEST
from perfdash.detect.findings import has_several_machines
from perfdash.detect.heartbeat import nightlies_of, problems_before
from perfdash.detect.later_nights import BACK, WITHOUT_NOISE, shown
from perfdash.detect.nights import (
    NEARBY_RUNS,
    begins_in_the_future,
    comparable_nights,
    first_latest_day,
    ids_before,
    is_a_night,
    later_judged_first,
    other_machine,
    previous_run,
    were_beside,
)
from perfdash.explain.case_sides import why_of_cause
from perfdash.history import alert_store, nightlies, schema
from perfdash.history.alert_store import FIXED, Alert
from perfdash.history.pass_rates_and_means import is_disturbed, setting_of, summarize
from perfdash.history.queries import (
    Panel,
    RunLine,
    cases_by_id,
    list_runs,
    panel,
    read_run,
    settings_of_run,
    testbed_of,
)
from perfdash.history.results import Imported, Row, RunRow
from perfdash.metrics import JUDGED_COUNTS
from perfdash.records import DISTURBED, NOT_MEASURED, PASSING, Status
from perfdash.report.cause_text import ReportedCause, counts, of_changes, reported, sort_causes
from perfdash.report.changes import (
    APPEARED,
    ChangeEnd,
    Machine,
    RunChange,
    of_alert,
    of_comparison,
    ordered,
    without_lost,
)
from perfdash.report.comparison_text import of_builds, of_eager
from perfdash.stats.machine_levels import machine_levels
from perfdash.stats.nightly_test import REFERENCE, WINDOWS

RUN_BEFORE = "the run before"  # the title of a baseline that nobody named
_NIGHTLIES = 200  # the latest of each job, among which a missing one is sought
_FEWEST = 3  # earlier nights that stats.nightly_test needs to judge a number
_REFERENCE_RUNS = WINDOWS + REFERENCE - 1  # before a night, by which it judges it
_NOT_MEASURED = {str(status) for status in NOT_MEASURED}
_AT_ONCE = ("accuracy", "capture")  # behind statuses and counts, which are held against the night before
# Methods whose names do not say which numbers they measure.
_NAMED = {"own_threads": "latency beside threads of a back end's own"}


@dataclass(frozen=True)
class Night:
    """A run with what changed in it.

    `causes`: the worst first. `against` names the baseline. `baseline`: the runs that its mean speedup is
    compared with, and as their title what the table of suites calls them: those of a named baseline, or the
    run before, of the same machine if there is one. `untold` says why nothing was compared, `caution` which
    numbers were not, `eager` that its latency moved, which moves speedups; `refused` says why a gate against
    a named baseline decides nothing; `nightly` is one line on missing or broken nightlies before it.
    `builds` says how two builds that were measured in turn differ; then the numbers of the rows are levels
    over all quiet pairs.
    """

    imported: Imported
    causes: tuple[ReportedCause, ...] = ()
    against: str = ""
    untold: str | None = None
    caution: str | None = None
    eager: str = ""
    refused: str | None = None
    nightly: str | None = None
    baseline: ComparedRuns | None = None
    builds: str = ""

    @property
    def changes(self) -> tuple[RunChange, ...]:
        """All changes of its causes, sorted by group, then by size; those of other testbeds too."""
        return tuple(ordered(member for cause in self.causes for member in cause.members))

    @property
    def run(self) -> RunRow:
        return self.imported.run

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.imported.rows

    @property
    def testbed(self) -> str:
        """The digest of the testbed, by which the site names its pages."""
        return self.run.testbed_digest


def headline(night: Night) -> str:
    """Count the regressions and failures in a few words; also the title of the page."""
    if not night.rows:
        return "Nothing was measured"
    count, expected = len(night.rows), night.run.expected
    words = [f"incomplete ({count} of {expected} cases)"] if expected and count < expected else []
    lost = sum(row.status == str(Status.INFRA_ERROR) for row in night.rows)
    if lost:
        words.append(f"{lost} case{'' if lost == 1 else 's'} failed because of the machine")
        if all(row.status in _NOT_MEASURED for row in night.rows):
            return f"Nothing was measured: {', '.join(words)}"
    passed, attempted = pass_count(night)
    if attempted and not passed:
        words.append("no case passes")
    words += counts(night.causes)
    if not night.causes:
        words.append("not compared with other runs" if night.untold else _quiet(night))
    elif all(cause.acknowledged for cause in night.causes):
        words.append(_quiet(night, " but what is acknowledged"))
    text = ", ".join(words)
    return text[0].upper() + text[1:]


def case_count(night: Night) -> str:
    """The number of results, and of planned cases where some are missing."""
    count, expected = len(night.rows), night.run.expected
    return f"{count} of {expected}" if expected and expected != count else str(count)


def pass_count(night: Night) -> tuple[int, int]:
    """The number of cases that pass, and of those that were measured with their outputs checked."""
    of = summarize(night.rows)
    return of.passed, of.attempted


def not_tonight(night: Night) -> str:
    """How many cases the hours of the run left out, in words; empty without any."""
    left_out = sum(row.status == Status.NOT_TONIGHT for row in night.rows)
    if not left_out:
        return ""
    were = "was" if left_out == 1 else "were"
    return f"{left_out} of {len(night.rows)} cases {were} not measured tonight: the hours went to others"


def compared_with(night: Night) -> list[str]:
    """Sentences that name the baseline, and what could not be compared."""
    sentences = []
    if night.untold:
        sentences.append(f"No changes are reported: {night.untold}.")
    elif night.against:
        sentences.append(f"Compared with {night.against}.")
    if night.builds:
        sentences.append(night.builds)
    if night.caution:
        sentences.append(f"Not reported: {night.caution}.")
    if night.eager:
        sentences.append(night.eager)
    return sentences


def noise_floor(run: RunRow) -> str:
    """The noise of a run in words: smaller differences mean nothing."""
    worst = (run.noise.get("null") or {}).get("worst")
    between = (run.noise.get("between_processes") or {}).get("relative_sd")
    parts = [f"a model against itself is off by at most {worst:.2%}"] if worst is not None else []
    if between is not None:
        parts.append(f"one process differs from the next by {between:.2%} (standard deviation)")
    return "; ".join(parts) or "not measured"


def gpus_of(run: RunRow) -> str:
    """The names of the run's GPUs, each once; empty without any."""
    environment = run.environment
    return str(environment.get("gpu") or ", ".join(dict.fromkeys(map(str, environment.get("gpus") or ()))))


def package_versions(run: RunRow, names: Sequence[str]) -> list[tuple[str, str]]:
    """(name, version) of these installed packages, then of those built from a repository.

    The version has the first digits of the commit where it is known.
    """
    versions, commits = run.packages, run.commits
    return [
        (name, f"{versions[name]} {commits.get(name, '')[:10]}".strip())
        for name in dict.fromkeys([*names, *commits])
        if name in versions
    ]


def _quiet(night: Night, known: str = "") -> str:
    """The headline of a night without changes, or with `known` ones alone; some may not have been judged."""
    found = f"no change{known} was found in what could be compared"
    return found if night.caution else f"nothing changed{known}"


def against(imported: Imported, comparison: Comparison) -> Night:
    """The night of a run that is compared with another side."""
    nothing = comparison.nothing_to_compare
    refused = f"nothing to compare: {nothing}" if nothing else None
    if comparison.nothing_in_common:
        return Night(imported, untold=refused, refused=refused)
    names = [side.run.name for side in comparison.old.runs]
    title = names[0] if len(names) == 1 else f"{comparison.old.title} ({len(names)} runs)"
    cautions = [comparison.untested] if comparison.untested else []
    if comparison.methods:
        cautions.append(f"what was measured by different methods ({', '.join(comparison.methods)})")
    caution = "; ".join(cautions) or None
    changes = of_changes(of_comparison(comparison))
    baseline = replace(comparison.old, title="the baseline")
    if comparison.in_pairs:
        imported = _with_levels(imported, comparison, "new")
        base = tuple(_with_levels(run, comparison, "old") for run in comparison.old.runs)
        baseline = ComparedRuns("the base", base)
    eager = " ".join(of_eager(comparison))
    return Night(
        imported,
        tuple(changes),
        title,
        caution=caution,
        eager=eager,
        refused=refused,
        baseline=baseline,
        builds=" ".join(of_builds(comparison)),
    )


def _with_levels(imported: Imported, comparison: Comparison, side: str) -> Imported:
    """The run with the levels of a side over all quiet pairs, instead of the numbers of one pair.

    Without the intervals of these numbers and the verdict, which are of one process. A case of which every
    pair was disturbed has the numbers of one pair and that verdict, with which it is in no mean.
    """
    both = {case.case: case for case in comparison.both}
    rows = []
    for row in imported.rows:
        compared = both.get(row.case)
        deltas = compared.deltas if compared else {}
        levels = {name: getattr(delta, side) for name, delta in deltas.items() if delta.pairs}
        dropped = {f"{name}_{part}" for name in levels for part in ("low", "high", "sd")}
        kept = {name: value for name, value in row.values.items() if name not in dropped}
        verdict = None if "speedup" in levels else row.verdict
        if compared and compared.no_latency_tested:
            verdict = DISTURBED
        rows.append(replace(row, values={**kept, **levels}, verdict=verdict))
    return replace(imported, rows=tuple(rows))


def of_history(connection: sa.Connection, imported: Imported) -> Night:
    """The night of a run by the history, with a line on missing nightlies."""
    return replace(_judged(connection, imported), nightly=nightlies_before(connection, imported))


def nightlies_before(connection: sa.Connection, imported: Imported) -> str | None:
    """One line on missing or broken nightlies before this run; None without any."""
    by_job = nightlies.latest_of_jobs(connection, _NIGHTLIES)
    all_nightlies = [nightly for of_job in by_job.values() for nightly in of_job]
    settings = set()
    for row in imported.rows:
        words = f"{row.case.suite} {row.case.device} {row.case.dtype}"
        settings |= {words, f"{words} {row.case.threads}"}
    line = line_of(connection, imported)
    name = line.name if line else imported.run.name
    return problems_before(all_nightlies, nightlies_of(all_nightlies, name, imported.run.started, settings))


def _judged(connection: sa.Connection, imported: Imported) -> Night:
    run = line_of(connection, imported)
    if run is None:
        return Night(imported, untold="this run is not in the history")
    if run.excluded is not None:
        return Night(imported, untold=f"this run was excluded from judging: {run.excluded}")
    if begins_in_the_future(run):
        return Night(imported, untold="this run begins in the future, because the clock was wrong")
    if run.judged is None:
        return Night(imported, untold=_why_not_judged(connection, run))
    # A night may consist of many runs, each with settings of its own, as detect.nightly_judging reads it.
    of_its_settings = ids_before(connection, run, settings_of_run(connection, run.id))
    before = of_its_settings or ids_before(connection, run)
    if not before:
        later = later_judged_first(connection, run)
        if later and not were_beside(run, later):
            return Night(imported, untold=_BEFORE_ALL.format(run.started[:10], later[-1].name))
        return Night(imported, untold=_FIRST)
    earlier = list_runs(connection, ids=before[-2 * _REFERENCE_RUNS :])
    shortly = panel(connection, [*earlier[-NEARBY_RUNS:], run], [])
    if not is_a_night(shortly):
        few = "it has too few of the cases of the runs before it"
        return Night(imported, untold=few if of_its_settings else _FIRST)
    alike = [earlier[-NEARBY_RUNS:][place] for place in np.flatnonzero(comparable_nights(shortly))]
    alerts = alerts_of_night(connection, run, imported)
    evidence = gather(connection, [*alerts, *_elsewhere(connection, run)])
    over = [item for item in evidence if _is_fixed_by(item.alert, run)]
    is_open = [item for item in evidence if not _is_fixed_by(item.alert, run)]
    tonight = {alert.id for alert in alerts}
    of_run = [item for item in is_open if item.alert.id in tonight]
    changes = [of_alert(item, run.id) for item in without_lost(over, of_run)]
    back = {alert.case_id for alert in alerts if alert.kind == "vanished"}
    new = [number for number in _new(connection, shortly, run) if number not in back]
    last = ChangeEnd.of(alike[-1])
    changes += [
        RunChange(APPEARED, case, "not measured before", good=last, bad=ChangeEnd.of(run))
        for case in cases_by_id(connection, new).values()
    ]
    baseline = previous_run(run, alike)
    machines = f" ({words})" if (words := other_machine(baseline, run)) else ""
    text = (
        f"the {len(before)} runs before it on this kind of machine; previous run: {baseline.name}{machines}"
    )
    cautions = [
        _judged_late(connection, run),
        _with_few_nights(connection, earlier, shortly),
        _by_new_method(alike, shortly),
        _disturbed(imported.rows),
    ]
    found = reported(
        is_open,
        run.id,
        of_run,
        machines_of_testbeds(connection),
        lambda cause: why_of_cause(connection, cause),
    )
    causes = sort_causes([*found, *of_changes(changes)])
    previous = ComparedRuns(RUN_BEFORE, (read_run(connection, baseline),))
    caution = "; ".join(words for words in cautions if words) or None
    return Night(imported, tuple(causes), text, caution=caution, baseline=previous)


_FIRST = "first run of this kind, nothing to compare it with"
_BEFORE_ALL = (
    "this run began before all others of its kind, on {}, but {} was judged before it (if the clock of this "
    "run was wrong, exclude it)"
)


def _why_not_judged(connection: sa.Connection, run: RunLine) -> str:
    if run.started < first_latest_day(connection, run.testbed_id, LATEST):
        return "this night was not judged, because only those of the latest days are"
    return "this night is not judged yet"


def _judged_late(connection: sa.Connection, run: RunLine) -> str | None:
    """Say that a run changed no alert, or none of numbers, because a later one was judged first."""
    later = later_judged_first(connection, run)
    if not later:
        return None
    what = "changes of numbers" if were_beside(run, later) else "changes"
    return f"{what} that began with this run, because {later[0].name} was judged before it"


def _is_fixed_by(alert: Alert, run: RunLine) -> bool:
    """Whether a run showed an alert's change to be over; one that was fixed later is open in the run."""
    return alert.state == FIXED and alert.details.get("fixed_run_id") == run.id


def _elsewhere(connection: sa.Connection, run: RunLine) -> list[Alert]:
    """The open alerts of other testbeds, which may have the same cause."""
    alerts = alert_store.load(connection, states=alert_store.SHOWN)
    return [alert for alert in alerts if alert.testbed_id != run.testbed_id]


def machines_of_testbeds(connection: sa.Connection) -> dict[int, Machine]:
    """The machine of each testbed, by its number: its host class, with the setting where several share it."""
    table = schema.testbeds
    rows = connection.execute(sa.select(*table.c["id", "digest", "host_class", "setting"])).all()
    testbeds = Counter(row.host_class for row in rows)

    def name_of(host_class: str, setting: Mapping[str, Any]) -> str:
        words = ", ".join(f"{name} {value}" for name, value in sorted(setting.items()))
        return f"{host_class} ({words})" if words and testbeds[host_class] > 1 else host_class

    return {row.id: Machine(row.digest, name_of(row.host_class, row.setting), row.host_class) for row in rows}


def _with_few_nights(connection: sa.Connection, earlier: Sequence[RunLine], shortly: Panel) -> str | None:
    """Count the cases whose numbers cannot be judged yet, for want of nights before or of their machine.

    `earlier`: the last runs before the night, of which `shortly` has the newest, and the night itself.
    """
    few, elsewhere = _not_judged(shortly)
    if not (few | elsewhere).any():
        return None
    # Most cases are known from the last runs; only of the others are all runs read that the judge reads. The
    # level of each of several machines comes from all cases.
    runs = [*earlier[-_REFERENCE_RUNS:], shortly.runs[-1]]
    few_ids = [shortly.case_ids[place] for place in np.flatnonzero(few)]
    whole = panel(connection, runs, [], None if has_several_machines(runs) else few_ids)
    few, elsewhere = _not_judged(whole)
    passed = int(shortly.passed[:, -1].sum())
    if few.sum() == passed:
        most = whole.passed[few, :-1].sum(axis=1).max()
        return f"numbers of all cases, which need {_FEWEST} nights before (there are at most {most})"
    machines = ", ".join(sorted(set(whole.machines[elsewhere, -1])))
    # Cases that were measured before, but hardly in these runs: another job takes their places.
    rare = few & ((whole.statuses[:, :-1] != "").sum(axis=1) < _FEWEST)
    older = earlier[:-_REFERENCE_RUNS][-_REFERENCE_RUNS:]
    rare_ids = [whole.case_ids[place] for place in np.flatnonzero(rare)]
    is_crowded = bool(older and rare_ids and panel(connection, older, [], rare_ids).case_ids)
    advice = (
        f" among the last {_REFERENCE_RUNS} runs: give the job of fewer cases a line of its own (`--line`)"
        if is_crowded
        else ""
    )
    needed = [
        (few, f"{_FEWEST} nights before{advice}"),
        (elsewhere, f"more nights before on {machines}"),
    ]
    cautions = [
        f"numbers of {cases.sum()} of {passed} cases, which need {nights}"
        for cases, nights in needed
        if cases.any()
    ]
    return "; ".join(cautions) or None


def _not_judged(night: Panel) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where a case passed in too few runs before the last; where its machine has too few of them."""
    passed = night.passed
    few = passed[:, -1] & (passed[:, :-1].sum(axis=1) < _FEWEST)
    levels = machine_levels(np.where(passed, 0.0, np.nan), night.machines)
    return few, passed[:, -1] & ~few & np.isnan(levels.offset[:, -1])


def _by_new_method(before: Sequence[RunLine], shortly: Panel) -> str | None:
    """Name the numbers that cannot be judged yet because their method is new. `shortly`: up to the night."""
    since: dict[tuple[int, str], list[str]] = {}
    run, measured = shortly.runs[-1], np.flatnonzero(shortly.statuses[:, -1] != "")
    names = {name for night in before for name in (*night.method, *run.method)}
    if not {shortly.case_ids[row] for row in measured}.intersection(shortly.own_threads):
        names.discard("own_threads")
    for name in sorted(names):
        comparable = [night for night in before if night.method.get(name, 1) == run.method.get(name, 1)]
        needed = 1 if name in _AT_ONCE else _FEWEST
        if len(comparable) < min(needed, len(before)):
            first = comparable[0] if comparable else run
            since.setdefault((needed, first.started[:10]), []).append(_NAMED.get(name, name))
    if not since:
        return None
    return "; ".join(
        f"changes of {', '.join(names)} (measured by a new method since {day}), which need "
        f"{f'{needed} nights' if needed > 1 else 'a night'} before"
        for (needed, day), names in since.items()
    )


def _disturbed(rows: Iterable[Row]) -> str | None:
    """Count the cases whose latencies cannot be judged, because other programs disturbed them."""
    passed = [row for row in rows if row.status in PASSING]
    disturbed = sum(map(is_disturbed, passed))
    if not disturbed:
        return None
    return f"latencies of {disturbed} of {len(passed)} cases, which other programs disturbed"


def line_of(connection: sa.Connection, imported: Imported) -> RunLine | None:
    """The run as the history lists it; None if it does not have it.

    Name and start identify it: an imported file of many nights gives all of them one name.
    """
    bed = testbed_of(connection, imported.run)
    if bed is None:
        return None
    lines = list_runs(connection, name=imported.run.name, testbed_id=bed)
    lines = [line for line in lines if line.started == imported.run.started]
    if not lines:  # a person renamed it in the history; its folder keeps the name
        key = sa.select(schema.runs.c.id).where(schema.runs.c.key == imported.key)
        lines = list_runs(connection, ids=connection.execute(key).scalars().all(), testbed_id=bed)
    return lines[-1] if lines else None


def _new(connection: sa.Connection, shortly: Panel, run: RunLine) -> list[int]:
    """The cases that no earlier run of the testbed had."""
    measured = shortly.statuses != ""
    new = [
        shortly.case_ids[place] for place in np.flatnonzero(measured[:, -1] & ~measured[:, :-1].any(axis=1))
    ]
    results, runs = schema.results, schema.runs
    seen_before: set[int] = set()
    for start in range(0, len(new), 500):
        query = (
            sa.select(results.c.case_id)
            .distinct()
            .join_from(results, runs, results.c.run_id == runs.c.id)
            .where(
                runs.c.excluded.is_(None),
                results.c.case_id.in_(new[start : start + 500]),
                runs.c.testbed_id == run.testbed_id,
                runs.c.started < run.started,
            )
        )
        seen_before.update(connection.execute(query).scalars())
    return [number for number in new if number not in seen_before]


def alerts_of_night(connection: sa.Connection, run: RunLine, imported: Imported) -> Sequence[Alert]:
    """The alerts that were open on a run's night, also if it did not measure their cases, or that it closed.

    Of a testbed that measures several settings, a run each, only those of this run's cases. Of several
    machines, none of a failure that this run's machine does not have.
    """
    runs = schema.runs
    query = sa.select(runs.c.id, runs.c.started).where(runs.c.testbed_id == run.testbed_id)
    place = {row.id: (row.started, row.id) for row in connection.execute(query)}
    tonight = place[run.id]
    measured = {row.case for row in imported.rows}
    settings = {setting_of(row)[1:] for row in imported.rows}
    ended = (*alert_store.NOT_REAL, alert_store.ACCEPTED)
    states = [state for state in alert_store.STATES if state not in ended]
    alerts = alert_store.load(connection, testbed_id=run.testbed_id, states=states)
    cases = cases_by_id(connection, (alert.case_id for alert in alerts if alert.case_id is not None))
    standing = []
    for alert in (_as_on(alert, tonight, place) for alert in alerts):
        bad = place.get(alert.bad_run_id or -1)
        fixed_run = alert.details.get("fixed_run_id") if alert.state == FIXED else None
        last = place.get(fixed_run or alert.seen_run_id or -1)
        case = cases.get(alert.case_id or -1)
        is_measured = case is None or case in measured
        if alert.kind == "vanished" and case is not None:
            is_measured = setting_of(Row(case, "", {}))[1:] in settings
        # An open alert counts even if this night did not report it; the run that first saw it may be pruned.
        stands = alert.state in alert_store.LIVE or (last is not None and last >= tonight)
        if is_measured and stands and (bad is None or bad <= tonight):
            standing.append(alert)
    exact = [alert for alert in standing if alert.kind in WITHOUT_NOISE and not _is_fixed_by(alert, run)]
    results = panel(connection, [run], JUDGED_COUNTS, [alert.case_id or 0 for alert in exact])
    return [alert for alert in standing if alert not in exact or shown(alert, results) != BACK]


def _as_on(alert: Alert, night: tuple[str, int], places: Mapping[int, tuple[str, int]]) -> Alert:
    """An alert as on a night before its change returned, if it was open or fixed on it; else as it is.

    `places`: of the testbed's runs, by id, as `night` is one.
    """
    for number in range(len(alert.details.get("fixed_states", []))):
        earlier = as_fixed(alert, number)
        fixed_run = earlier.details.get("fixed_run_id")
        bad, fixed = places.get(earlier.bad_run_id or -1), places.get(fixed_run or -1)
        if fixed is not None and fixed >= night and (bad is None or bad <= night):
            return replace(earlier, state=FIXED, seen_run_id=fixed_run)
    return alert
