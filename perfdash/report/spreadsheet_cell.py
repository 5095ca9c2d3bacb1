"""A cell of a CSV file that no spreadsheet runs as a formula."""

from __future__ import annotations

import sys
from typing import Any

from perfdash.report.markdown import plain


def inert(cell: Any) -> Any:
    """A text that stays text: an apostrophe before a formula, invisible characters and line ends escaped.

    Names come from the suite files and imported files of others. Numbers are returned as they are.
    """
    if not isinstance(cell, str):
        return cell
    line = plain(cell, sys.maxsize)
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") else line
