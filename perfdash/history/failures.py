"""The message of a result that failed or was skipped, and its reason in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfdash.history.results import Row


def failure(row: Row) -> dict[str, Any]:
    """Type and message of a failure; an imported file may have only one word."""
    error = row.details.get("error")
    return dict(error) if isinstance(error, Mapping) else {"message": str(error)} if error else {}


def reason(row: Row) -> str:
    """The first line of a failure's message, with the phase that failed; empty without one."""
    phase = row.details.get("failed_phase")
    message = str(failure(row).get("message") or row.details.get("skip_reason") or "")
    first = message.strip().splitlines()[0] if message.strip() else ""
    return f"{first} (in {phase})" if first and phase else first
