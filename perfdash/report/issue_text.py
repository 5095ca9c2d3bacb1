"""The text of a regression's issue, and its closing and reopening notes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.history.alert_store import ACCEPTED, DISMISSED, FIXED, INVALID
from perfdash.history.queries import RunLine
from perfdash.records import Case, variation_in_words
from perfdash.report.alert_text import CULPRIT, commit, culprits, model_of, what
from perfdash.report.cause_text import ReportedCause
from perfdash.report.commit_links import commit_ranges
from perfdash.report.markdown import code, escaped, fenced, link, plain, table
from perfdash.report.number_format import percent_change, with_unit
from perfdash.report.reproduce import command_of_run

_TITLE = 200  # GitHub takes 256 characters
_WHY = 600  # characters
_CHANGES = 60
_COMMANDS = 5


def title(evidence: AlertEvidence) -> str:
    """The title in plain text on one line; GitHub renders only backticks in it."""
    change = percent_change(evidence.alert.change)
    text = f"{model_of(evidence.case)}: {what(evidence.alert)}{' ' + change if change else ''}"
    return plain(f"Regression: {text}", _TITLE).replace("`", "'")


def body(
    evidence: AlertEvidence,
    *,
    page: str | None = None,
    error: str | None = None,
    owners: Sequence[str] = (),
    why: str = "",
) -> str:
    """The body in GitHub Markdown.

    `page`: the model's page; `error`: the message of a failing model; `owners`: accounts and teams, which are
    mentioned; `why`: a sentence on why it changed.
    """
    good, bad = evidence.between
    parts = [f"{link(code(model_of(evidence.case)), page)}: {_change(evidence)}", _facts(evidence, good, bad)]
    if why:
        parts.append(f"Why: {escaped(why, _WHY)}")
    if owners:
        parts.append(f"Owners: {' '.join(f'@{owner}' for owner in owners)}")
    if error:
        lines = "\n".join(plain(line, 300) for line in error.strip().splitlines()[:_CHANGES])
        parts.append(f"Error:\n\n{fenced(lines)}")
    parts += [
        f"Commits of {one.package} between the two builds: {one.address}"
        for one in commit_ranges(good, bad)
        if one.address
    ]
    if evidence.changed:
        parts.append(f"What else changed with it (before | after):\n\n{fenced(_first(evidence.changed))}")
    if again := _commands([evidence]):
        parts.append(f"Measure it again:\n\n{fenced(again)}")
    parts.append(
        "perfdash opened this issue. It closes it when this is fixed, and opens it again should it come back "
        "after that. An issue that a person closes stays closed until then."
    )
    return "\n\n".join(parts) + "\n"


def cause_title(cause: ReportedCause) -> str:
    """The title of a cause with several alerts, as `title`."""
    return plain(f"Regression: {cause.headline}", _TITLE).replace("`", "'")


def cause_body(
    cause: ReportedCause,
    members: Sequence[AlertEvidence],
    runs: tuple[RunLine | None, RunLine | None],
    *,
    page: str | None = None,
    owners: Sequence[str] = (),
) -> str:
    """The body of a cause with several alerts, in GitHub Markdown.

    `members`: its alerts, the worst first; `runs`: those around it; `page`: of the cause; `owners`: accounts
    and teams, which are mentioned.
    """
    good, bad = runs
    rows = [
        ["First seen", _run(bad)],
        ["Last run without it", _run(good)],
        ["torch", f"{_torch(good)} .. {_torch(bad)}"],
        ["Evidence", escaped(cause.evidence)],
        ["What moved it", cause.attribution or "not known"],
        *([["Why", escaped(cause.why, _WHY)]] if cause.why else []),
        *(["Bisected", escaped(culprit)] for culprit in cause.culprits),
        *(["Machine", code(name)] for name in cause.machines),
    ]
    if owners:
        rows.append(["Owners", " ".join(f"@{owner}" for owner in owners)])
    parts = [f"{link(f'**{escaped(cause.headline)}**', page)}.", table(["", ""], rows)]
    parts += [
        f"Commits of {one.package} between the two builds: {one.address}"
        for one in commit_ranges(good, bad)
        if one.address
    ]
    parts.append(_member_table(cause))
    if cause.changed:
        parts.append(f"What else changed with it (before | after):\n\n{fenced(_first(cause.changed))}")
    if again := _commands(members):
        parts.append(f"Measure the worst again:\n\n{fenced(again)}")
    parts.append(
        "perfdash opened this issue. It closes it when all of these are fixed, and opens it again should one "
        "come back after that. An issue that a person closes stays closed until then."
    )
    return "\n\n".join(parts) + "\n"


def _commands(members: Sequence[AlertEvidence]) -> str:
    """The commands that measure the first members again, each as a run that measured it did."""
    cases = [(member.case, _measured_by(member)) for member in members if member.case]
    commands = [plain(command_of_run(case, run), 2000) for case, run in cases[:_COMMANDS]]
    return "\n".join(dict.fromkeys(commands))


def _measured_by(member: AlertEvidence) -> RunLine | None:
    """A run that measured the case, with the change if there is one; None where all are pruned."""
    with_it = member.bad or member.seen
    # A case that vanished was measured by the runs before alone.
    return member.good or with_it if member.alert.kind == "vanished" else with_it or member.good


def _member_table(cause: ReportedCause) -> str:
    several = len({member.machine for member in cause.members}) > 1
    rows = [
        [
            code(model_of(member.case)),
            escaped(member.what),
            escaped(member.before),
            escaped(member.after),
            escaped(percent_change(member.change)),
            *([escaped(member.machine.name if member.machine else "")] if several else []),
            escaped(f"alert {member.alert}, {member.state}"),
        ]
        for member in cause.members[:_CHANGES]
    ]
    machine = ["machine"] if several else []
    align = "llrrr" + "l" * len(machine) + "l"
    text = table(["model", "what", "before", "after", "change", *machine, "state"], rows, align)
    hidden = len(cause.members) - len(rows)
    return f"{text}\n\nand {hidden} more" if hidden else text


def _first(lines: Sequence[str]) -> str:
    shown = [plain(line, 300) for line in lines[:_CHANGES]]
    return "\n".join([*shown, *([f"and {len(lines) - _CHANGES} more"] if len(lines) > _CHANGES else [])])


def note(evidence: AlertEvidence) -> str:
    """The note with which the issue is closed or reopened."""
    alert, seen = evidence.alert, evidence.seen
    run = f" in the run {code(seen.name)}" if seen else ""
    if alert.state == FIXED:
        return f"Fixed: back where it was{run}{_built(seen)}."
    if alert.state == DISMISSED:
        return "Dismissed: it did not show again. It was noise."
    act = alert.details.get("act") or {}
    by = f" by {escaped(act.get('who') or '?')}: {escaped(plain(act.get('why') or '', 300))}"
    if alert.state == INVALID:
        return f"Closed as no real change{by}"
    if alert.state == ACCEPTED:
        return f"The new level was accepted{by}"
    return f"It is back{run}{_built(seen)}: {_change(evidence)}"


def blame(evidence: AlertEvidence) -> str:
    """The note that names a culprit found after the issue was opened; or empty."""
    lines = [line for line in culprits(evidence.alert) if line.startswith(CULPRIT)]
    return "\n".join(f"Bisected: {escaped(line)}" for line in lines)


def _change(evidence: AlertEvidence) -> str:
    """Before, after, and the change with its interval and the source of the interval."""
    alert = evidence.alert
    if alert.kind == "status":
        details = alert.details
        return f"status {code(details.get('before') or '?')} → {code(details.get('after') or '?')}."
    if alert.kind == "vanished":
        return "it is no longer measured, though the run was whole."
    levels = [with_unit(alert.metric, value) for value in (alert.before, alert.after)]
    text = escaped(what(alert)) + (f" {levels[0]} → {levels[1]}" if all(levels) else "")
    change = escaped(percent_change(alert.change))
    interval = ""
    if evidence.interval is not None:
        low, high = (escaped(percent_change(end)) for end in evidence.interval)
        interval = f"95 % interval {low} to {high}"
    again = alert.details.get("remeasured")
    if again and again.get("ratio"):
        # The interval is of this figure, not of the nights'.
        measured = escaped(percent_change(math.log(again["ratio"])))
        by = f"{again['pairs']} pairs, both builds in turn"
        return f"{text} by the nights ({change}); measured again: **{measured}** ({interval}; {by})."
    if not change:
        return f"{text}."
    return f"{text}, **{change}** ({interval or 'its interval is not known'})."


def _facts(evidence: AlertEvidence, good: RunLine | None, bad: RunLine | None) -> str:
    alert, case = evidence.alert, evidence.case
    rows = [["Case", _case(case)]] if case else []
    rows.append(["First seen", _run(bad)])
    rows.append(["Last run without it", _run(good)])
    rows.append(["torch", f"{_torch(good)} .. {_torch(bad)}"])
    if evidence.speedup:
        rows.append(
            ["Speedup (eager / compiled)", f"{evidence.speedup[0]:.3f}x → {evidence.speedup[1]:.3f}x"]
        )
    if alert.p is not None and math.isfinite(alert.p):
        rows.append(["Chance of such a change by noise alone", f"{alert.p:.1g}"])
    rows += [["Bisected", escaped(line)] for line in culprits(alert)]
    if run := bad or evidence.seen:
        rows.append(["Machine", code(run.host_class)])
        if run.setting:
            rows.append(["Setting", ", ".join(f"{escaped(k)} {code(v)}" for k, v in run.setting.items())])
    rows.append(["State", f"{escaped(alert.state)}, alert {alert.id}"])
    return table(["", ""], rows)


def _case(case: Case) -> str:
    dtype = f"amp ({case.amp_dtype})" if case.dtype == "amp" else case.dtype
    words = [
        f"suite {code(case.suite)}", f"model {code(case.model)}", escaped(case.device), escaped(dtype),
        f"batch size {case.batch_size}", f"{case.threads} thread{'s' if case.threads != 1 else ''}",
        escaped(case.scenario), escaped(case.backend),
        *map(escaped, variation_in_words(case.configuration, case.dynamic, case.settings)),
    ]  # fmt: skip
    return ", ".join(words)


def _run(run: RunLine | None) -> str:
    return f"{run.started[:10]}, {code(run.name)}" if run else "not known"


def _torch(run: RunLine | None) -> str:
    if run is None:
        return "?"
    version = code(run.torch) if run.torch else ""
    return (
        " ".join(text for text in (version, code(commit(run)) if run.torch_git_version else "") if text)
        or "?"
    )


def _built(run: RunLine | None) -> str:
    return f" (torch {_torch(run)})" if run else ""
