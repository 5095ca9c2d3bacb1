"""Cases that only one side of a comparison has: which vanished, and how the sides differ. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields

from perfdash.detect.nights import has_enough_cases
from perfdash.history.pass_rates_and_means import setting_of
from perfdash.history.results import Imported
from perfdash.records import Case

_NOT_RUN = "it did not run their configuration or setting"
_INCOMPLETE = "it is not complete"
_FEW = "it has less than half of the cases"


def why_missing(
    only_old: Sequence[Case], both: int, old: Sequence[Imported], new: Sequence[Imported]
) -> dict[Case, str]:
    """Why the new side lacks each case of `only_old`, to follow "as"; empty if the case vanished.

    A case vanished where complete runs of its configuration lack it. `both`: the number of common cases. Of
    the old side count runs that measured a setting of the new side: a night may have a run per setting.
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
    return {**dict.fromkeys(only_old, _NOT_RUN), **dict.fromkeys(expected, why)}


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
