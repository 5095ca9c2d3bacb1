"""Markdown as one HTML file that needs nothing else: no script, its style in it."""

from __future__ import annotations

from html import escape

from markdown_it import MarkdownIt

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 72rem; padding: 0 1rem; }
pre, table { overflow-x: auto; font-size: 12px; line-height: 1.35; }
table { border-collapse: collapse; display: block; }
td, th { border: 1px solid #8886; padding: .2rem .5rem; text-align: left; vertical-align: top; }
summary { cursor: pointer; }
"""


def document(title: str, text: str) -> str:
    """Markdown as an HTML file. HTML in it stays: what comes from elsewhere must be escaped before."""
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
