"""The report of `perfdash bisect --all-alerts`: each cause with its culprit, or its failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from perfdash.bisection.all_alerts import BISECTED, FAILED, IN_PASSING, KNOWN, GroupOutcome
from perfdash.bisection.result import FOUND
from perfdash.report.bisection_report import main_text
from perfdash.report.markdown import code, escaped, plain, table


def markdown_of_all(outcomes: Sequence[GroupOutcome], left: int = 0) -> str:
    """The report in GitHub Markdown. left: causes that an interruption left out."""
    found = sum(_is_found(outcome) for outcome in outcomes)
    failed = sum(outcome.how == FAILED for outcome in outcomes)
    causes = "1 cause" if len(outcomes) + left == 1 else f"{len(outcomes) + left} causes"
    words = [f"{found} with a culprit"]
    words += [f"{failed} failed"] if failed else []
    words += [f"{left} not begun"] if left else []
    parts = [f"### Open alerts by cause: {causes}, {', '.join(words)}"]
    rows = [
        (str(outcome.number), escaped(outcome.title), str(len(outcome.alerts)), _short(outcome))
        for outcome in outcomes
    ]
    parts.append(table(("alert", "measured", "alerts of the cause", "result"), rows))
    for outcome in outcomes:
        if text := _text(outcome):
            parts += [f"#### Alert {outcome.number}: {escaped(outcome.title)}", text]
    return "\n\n".join(parts) + "\n"


def all_to_json(outcomes: Sequence[GroupOutcome]) -> dict[str, Any]:
    """Plain values, a list of causes; each has the whole result of its bisection."""
    causes = []
    for outcome in outcomes:
        attempt = outcome.attempt
        values = asdict(outcome)
        del values["attempt"], values["exit_code"]
        values["folder"] = attempt.folder if attempt else None
        values["result"] = attempt.result.to_json() if attempt else None
        causes.append(values)
    return {"schema": 1, "causes": causes}


def _is_found(outcome: GroupOutcome) -> bool:
    return outcome.how == KNOWN or (outcome.attempt is not None and outcome.attempt.result.word == FOUND)


def _short(outcome: GroupOutcome) -> str:
    """The result of a cause for a cell of the table."""
    if outcome.how == KNOWN:
        return f"found before: {escaped('; '.join(outcome.culprits), 200)}"
    if outcome.attempt is None:
        return f"{outcome.how}: {escaped(plain(outcome.why.splitlines()[0]), 200)}"
    result = outcome.attempt.result
    labels = ", ".join(code(revision.label) for c in result.culprits for revision in c.revisions[:3])
    shared = f" (as alert {outcome.beside})" if outcome.how == IN_PASSING else ""
    return f"{escaped(result.word)} {labels}".rstrip() + shared


def _text(outcome: GroupOutcome) -> str:
    """What is known of a cause's culprit, and where the whole report lies; empty if that is in the table."""
    attempt = outcome.attempt
    if attempt is None:
        return "" if "\n" not in outcome.why else escaped(outcome.why, 2000)
    parts = [main_text(attempt.result)]
    if outcome.how == IN_PASSING:
        parts.append(
            f"Only the two builds around the culprit of alert {outcome.beside} were measured: they differ "
            "for this alert, too."
        )
    elif outcome.how != BISECTED:
        parts.append("It was interrupted; the same command goes on.")
    parts.append(f"Report: {code(attempt.folder, 400)}")
    return "\n\n".join(parts)
