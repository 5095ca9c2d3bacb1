"""Cases that only one side of a comparison has: which vanished, and how the sides differ. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from perfdash.detect.nights import has_enough_cases, other_machine
from perfdash.history.pass_rates_and_means import setting_of, setting_of_case
from perfdash.history.results import Imported
from perfdash.records import Case

_NOT_RUN = "it did not run their configuration or setting"
_INCOMPLETE = "it is not complete"
_FEW = "it has less than half of the cases"
_GONE_BEFORE = "later complete runs of the old side had no such case"


def why_missing(
    only_old: Sequence[Case], both: int, old: Sequence[Imported], new: Sequence[Imported]
) -> dict[Case, str]:
    """Why each case of `only_old` is missing on the new side, to follow "as"; empty if the case vanished.

    A case vanished where complete runs of its configuration do not have it, and no complete run of the old
    side was without it before. `both`: the number of common cases. Of the old side count runs that measured
    a setting of the new side: a night may have a run per setting. The runs of each side are oldest first.
    """
    configurations = {configuration_of(row.case) for imported in new for row in imported.rows}
    settings = {setting_of(row) for imported in new for row in imported.rows}
    comparable = {
        row.case
        for imported in old
        if not settings.isdisjoint(map(setting_of, imported.rows))
        for row in imported.rows
    }
    expected = [case for case in only_old if case in comparable and configuration_of(case) in configurations]
    if not all(map(_is_whole, new)):
        why = _INCOMPLETE
    else:
        why = "" if has_enough_cases(both, both + len(expected)) else _FEW
    gone = {} if why else dict.fromkeys(_gone_before(expected, old), _GONE_BEFORE)
    return {**dict.fromkeys(only_old, _NOT_RUN), **dict.fromkeys(expected, why), **gone}


def _gone_before(cases: Sequence[Case], runs: Sequence[Imported]) -> list[Case]:
    """The cases that were missing before the end of the old side, whose runs these are.

    Of the machine that measured a case last a later complete run does not have it, but half of the cases of
    its setting.
    """
    last: dict[Case, int] = {}
    sought = set(cases)
    for place in reversed(range(len(runs))):
        if not sought:
            break
        last |= dict.fromkeys(sought.intersection(row.case for row in runs[place].rows), place)
        sought.difference_update(last)
    ends = {case: (place, setting_of_case(case)) for case, place in last.items()}
    is_gone = {end: _has_successor(runs, *end) for end in set(ends.values())}
    return [case for case in cases if is_gone[ends[case]]]


def _has_successor(runs: Sequence[Imported], place: int, setting: tuple[Any, ...]) -> bool:
    """Whether a later complete run of the same machine has half of the cases of the run at `place`.

    Only its cases of this setting count.
    """
    cases = {row.case for row in runs[place].rows if setting_of(row) == setting}
    return any(
        has_enough_cases(len(cases.intersection(row.case for row in later.rows)), len(cases))
        for later in runs[place + 1 :]
        if _is_whole(later) and not other_machine(runs[place].run, later.run)
    )


def missing_in_words(why: Mapping[Case, str], total: int) -> list[str]:
    """How many of `total` cases of the old side are missing without having vanished, and why."""
    return [
        f"{count} of {total} cases of the old side {'is' if count == 1 else 'are'} missing from the new one, "
        f"as {reason}"
        for reason, count in Counter(filter(None, why.values())).items()
    ]


def configuration_of(case: Case) -> tuple[str, str, bool]:
    """The configuration of a case, with dynamic shapes."""
    return case.configuration, case.settings, case.dynamic


def differing_settings(old: Sequence[Case], new: Sequence[Case]) -> str:
    """The settings in which two lists of cases share no value: (batch_size 1 | 8)."""
    parts = []
    for name in (item.name for item in fields(Case)):
        values = [sorted({str(getattr(case, name)) for case in cases}) for cases in (old, new)]
        if all(values) and not set(values[0]) & set(values[1]):
            parts.append(f"{name} {' | '.join(first_few(item) for item in values)}")
    return f" ({'; '.join(parts)})" if parts else ""


def first_few(values: Sequence[str]) -> str:
    """The first three of some texts, and the number of the others."""
    return ", ".join(values[:3]) + (f" and {len(values) - 3} more" if len(values) > 3 else "")


def _is_whole(imported: Imported) -> bool:
    """Whether a run finished with a result for every planned case."""
    run = imported.run
    return run.state == "done" and (run.expected is None or len(imported.rows) >= run.expected)
