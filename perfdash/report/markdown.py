"""Foreign text in GitHub Markdown, and Markdown as HTML.

Nothing in a model's name or an error message becomes a mention, a link, an image, HTML or a new row.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from markdown_it import MarkdownIt

from perfdash.redaction import redact

# Characters that hide or reorder text: control characters, line ends, bidirectional overrides, zero width.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")

# Of a repository or a page, without what ends a sentence: https://h/x, git@h:o/r.git.
_ADDRESS = re.compile(r"""(\w+://[^\s<>"'`]*[\w/]|[\w.-]+@[\w.-]+:[^\s<>"'`]*[\w/])""")

_IN_ADDRESS = "%/:?#@!$&'*+,;=[]~"  # beside letters and digits; no blank, bracket, bar or backtick


def plain(text: object, longest: int = 200) -> str:
    """Text on one line, invisible characters escaped, cut with an ellipsis if too long."""
    line = _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", str(text))
    # The beginning of a secret would no longer be known as one.
    return line if len(line) <= longest else redact(line)[: longest - 1] + "…"


def code(text: object, longest: int = 200) -> str:
    """A code span, in which GitHub interprets nothing."""
    line = plain(text, longest)
    if not line.strip():
        return ""
    # A fence longer than any run of backticks in it (CommonMark 6.1).
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    pad = " " if line[0] in "` " or line[-1] in "` " else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def escaped(text: object, longest: int = 500) -> str:
    """Text that stays text: special characters are escaped, mentions and references broken."""
    line = escape(plain(text, longest), quote=False)
    # Underscores within a word mean nothing (CommonMark 6.2), so that it can be copied as it is.
    special = r"[\\`*{}\[\]|~$]|(?<!\w)_+|_+(?!\w)"
    return _without_references(re.sub(special, lambda match: "".join(f"\\{c}" for c in match[0]), line))


def escaped_hint(text: object, longest: int = 500) -> str:
    """Text that stays text; its addresses are code spans, so that they can be copied."""
    parts = _ADDRESS.split(plain(text, longest))
    return "".join((code if number % 2 else escaped)(part, longest) for number, part in enumerate(parts))


def in_html(text: object) -> str:
    """Text that stays text within an HTML block, where Markdown is not read: see `escaped`."""
    return _without_references(escape(plain(text, 500), quote=False))


def _without_references(line: str) -> str:
    # GitHub looks for names, numbers and links in what is shown: an empty comment between is not shown.
    return re.sub(r"@(?=\w)|#(?=\d)|(?i:gh-)(?=\d)|(?i:www)(?=\.)|:(?=//)", r"\g<0><!-- -->", line)


def link(text: str, address: str | None) -> str:
    """A link around Markdown `text`; without an address the text alone.

    What would end the address is percent-encoded; what is encoded already stays so.
    """
    return f"[{text}]({quote(address, _IN_ADDRESS, errors='replace')})" if address else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]], align: str = "") -> str:
    """A Markdown table; `align` has l or r for each column.

    Each cell is Markdown on one line.
    """
    marks = {"l": ":---", "r": "---:"}
    rule = [marks.get(letter, "---") for letter in align.ljust(len(head))]
    lines = [head, rule, *rows]
    # A bar ends a cell even within a code span, unless it is escaped.
    return "\n".join(
        "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", c) for c in line) + " |" for line in lines
    )


def fenced(text: str) -> str:
    """A code block."""
    fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence}\n{text}\n{fence}"


def folded(title: str, body: str) -> str:
    """A section that opens at a click; `title` is HTML."""
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"


STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 72rem; padding: 0 1rem; }
pre, table { overflow-x: auto; font-size: 12px; line-height: 1.35; }
table { border-collapse: collapse; display: block; }
td, th { border: 1px solid #8886; padding: .2rem .5rem; text-align: left; vertical-align: top; }
.right { text-align: right; }
figure { margin: 1rem 0; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; }
@media (max-width: 640px) { figure svg { max-width: none; min-width: 700px; } }
summary { cursor: pointer; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()


def document(title: str, text: str, *, style: str | None = None) -> str:
    """Markdown as one HTML file without scripts. HTML in it stays, so foreign text must be escaped.

    `style`: the address of a file with STYLE, where the page may hold none (Jenkins' policy); else inline.
    The page's own policy lets in this style and nothing else.
    """
    look = f'<link rel="stylesheet" href="{escape(style)}">' if style else f"<style>{STYLE}</style>"
    allowed = "'self' file:" if style else f"'sha256-{_STYLE_HASH}'"
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = parser.parse(text)
    for token in tokens:  # of a number's column; the policy lets in no style of an element
        if token.attrs.pop("style", None) == "text-align:right":
            token.attrSet("class", "right")
    body = parser.renderer.render(tokens, parser.options, {})
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"style-src {allowed}; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        f"{look}\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
