"""Elements of SVG as text, with foreign text escaped and numbers written short.

The SVG is inline, without style and script, since the strict policy (CSP) of Jenkins and of `perfdash serve`
blocks both; site.css styles it by its classes.
"""

from __future__ import annotations

import math
import re
from html import escape

# XML forbids these characters even as escapes (XML 1.0, 2.2): one of them would spoil the whole page.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z")


def quoted(text: object) -> str:
    """Text for an element or an attribute."""
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text)))


def shortened(text: str, length: int) -> str:
    """Text on one line of at most so many characters: beginning and end, as names often differ there."""
    line = " ".join(str(text).split())
    tail = length // 3
    return line if len(line) <= length else f"{line[: length - tail - 1]}…{line[-tail:]}"


def text(x: float, y: float, content: object, classes: str = "", anchor: str = "") -> str:
    """A line of text; anchor: middle or end."""
    words = f' class="{classes}"' if classes else ""
    where = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:g}" y="{y:g}"{words}{where}>{quoted(content)}</text>'


def link(href: str, content: str) -> str:
    """The content within a link, where that is one within the site."""
    return f'<a href="{quoted(href)}">{content}</a>' if stays(href) else content


def stays(href: str) -> bool:
    """Whether an address is relative: no scheme, no other host.

    `javascript:` and `//host` in a foreign name must not become a link.
    """
    return bool(href) and not re.match(r"\s*[/\\]|[^/?#]*:", _CONTROL.sub("", href))


def figure(
    classes: str, prefix: str, width: int, height: int, title: str, summary: str, content: str, **data: object
) -> str:
    """The svg element with its text alternative. Raises ValueError for a prefix that is no identifier.

    An image hides what is in it from a screen reader, so one with links is a group.
    """
    if not _PREFIX.match(prefix):
        raise ValueError(f"{prefix!r} is no beginning of an id")
    role = "group" if "<a " in content else "img"
    attributes = "".join(f' data-{name}="{quoted(value)}"' for name, value in data.items())
    return (
        f'<svg class="drawn {classes}" viewBox="0 0 {width} {height}" role="{role}" '
        f'aria-labelledby="{prefix}-t {prefix}-d"{attributes}>'
        f'<title id="{prefix}-t">{quoted(title)}</title><desc id="{prefix}-d">{quoted(summary)}</desc>'
        f"{content}</svg>"
    )


def number(value: float | None, unit: str = "") -> str:
    """A value with four significant digits, ratios with three decimals."""
    if value is None or not math.isfinite(value):
        return "none"
    size = abs(value)
    if unit == "x":
        return f"{value:.3f}x" if size < 1e4 else f"{value:.3g}x"
    if size >= 1e6 or 0 < size < 1e-4:
        digits = f"{value:.4g}"
    elif size >= 1000:
        digits = f"{value:.0f}"
    else:
        digits = f"{value:.4g}"
    return f"{digits}{unit}" if unit == "%" else f"{digits} {unit}".strip()
