"""A night as one HTML file that needs nothing else: the comment, rendered."""

from __future__ import annotations

from html import escape

from markdown_it import MarkdownIt

from perfdash.report.comment import comment
from perfdash.report.news import headline
from perfdash.report.night import Night

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 72rem; padding: 0 1rem; }
pre, table { overflow-x: auto; font-size: 12px; line-height: 1.35; }
table { border-collapse: collapse; display: block; }
td, th { border: 1px solid #8886; padding: .2rem .5rem; text-align: left; vertical-align: top; }
summary { cursor: pointer; }
"""


def page(night: Night, *, site_url: str | None = None) -> str:
    """HTML of its own, with its style in it and no script."""
    # HTML in it is the comment's own: what comes from elsewhere is escaped before.
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(comment(night, site_url=site_url))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(headline(night))}: {escape(night.run.name)}</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
