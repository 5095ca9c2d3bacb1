"""A night as one HTML file that needs nothing else: the comment, rendered."""

from __future__ import annotations

from perfdash.report.comment import comment
from perfdash.report.document import document
from perfdash.report.news import headline
from perfdash.report.night import Night


def page(night: Night, *, site_url: str | None = None) -> str:
    """HTML of its own, with its style in it and no script."""
    return document(f"{headline(night)}: {night.run.name}", comment(night, site_url=site_url))
