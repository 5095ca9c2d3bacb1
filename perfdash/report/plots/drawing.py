"""The style, colours, text and files that all plots share.

Plots of the same numbers are equal to the byte, whatever the user's matplotlib settings are.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from perfdash.redaction import redact

# Okabe and Ito 2008: told apart whatever a reader's colour vision. Yellow is left out: faint on white.
BLACK, BLUE, VERMILLION, GREEN = "#000000", "#0072B2", "#D55E00", "#009E73"
PURPLE, ORANGE, SKY, GREY = "#CC79A7", "#E69F00", "#56B4E9", "#767676"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P")
WIDTH = 8.5  # inches
_FONT = "DejaVu Sans"  # comes with matplotlib
_STYLE: dict[Any, Any] = {
    "font.family": [_FONT],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "figure.dpi": 130,
    "savefig.dpi": 130,
    "svg.fonttype": "none",  # text stays text: it can be searched and copied
    "svg.hashsalt": "perfdash",
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
}


@dataclass(frozen=True)
class Picture:
    """A figure and its file name without ending, which is unique within a run."""

    name: str
    title: str
    figure: Figure


@contextlib.contextmanager
def look() -> Iterator[None]:
    """Set perfdash's style while plots are drawn and encoded; it holds for the whole process."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def encoded(picture: Picture) -> dict[str, bytes]:
    """The PNG and SVG files of a picture, without date or version.

    The same numbers give the same bytes.
    """
    # Finding the places takes longer than drawing. savefig() would find them, and draw once more to do so.
    if layout := picture.figure.get_layout_engine():
        layout.execute(picture.figure)
        picture.figure.set_layout_engine(None)
    files = {}
    for form, metadata in (
        ("png", {"Title": picture.title, "Software": None}),
        ("svg", {"Title": picture.title, "Date": None, "Creator": "perfdash"}),
    ):
        file = io.BytesIO()
        picture.figure.savefig(file, format=form, metadata=metadata)
        files[f"{picture.name}.{form}"] = file.getvalue()
    return files


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(FT2Font(font_manager.findfont(_FONT)).get_charmap())


def shown(text: str, longest: int = 44) -> str:
    """A name fit to draw: characters missing in the font escaped, the middle cut.

    Every text from elsewhere is drawn by way of this, so a secret is replaced here, before the cut.
    """
    plain = "".join(
        char
        if ord(char) in _glyphs() and unicodedata.category(char)[0] != "C"
        else char.encode("unicode_escape", errors="replace").decode()
        for char in redact(text)
    )
    if len(plain) <= longest:
        return plain
    half = (longest - 1) // 2
    return f"{plain[: longest - 1 - half]}…{plain[-half:]}"


def file_word(text: str) -> str:
    """A name as part of a file name, with a digest if it was changed."""
    text = redact(text)
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:60]
    if word == text:
        return word
    return f"{word}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:6]}".strip("-")


def heading(figure: Figure, title: str, lines: Sequence[str]) -> None:
    """Draw a title in the upper left corner and an explanation below."""
    text = "\n".join([title, *lines])
    figure.suptitle(text, x=0.01, ha="left", fontsize=8.5, linespacing=1.4)


def log_scale(axis: Axes, which: str, low: float, high: float) -> None:
    """Set a logarithmic axis from `low` to `high` (above zero) with plain numbers as ticks."""
    ticks = log_ticks(low, high)
    getattr(axis, f"set_{which}scale")("log")
    getattr(axis, f"set_{which}lim")(low, high)
    scaled = getattr(axis, f"{which}axis")
    scaled.set_minor_locator(NullLocator())
    scaled.set_major_locator(FixedLocator(ticks))
    scaled.set_major_formatter(FixedFormatter([number(tick) for tick in ticks]))


def log_ticks(low: float, high: float, most: int = 9) -> list[float]:
    """Round numbers from `low` to `high`, at most `most`."""
    steps = (
        [round(0.02 * n, 2) for n in range(25, 101)],
        [round(0.05 * n, 2) for n in range(4, 61)],
        [round(0.1 * n, 1) for n in range(2, 61)],
        [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0],
        [float(f"{d}e{k}") for k in range(-13, 17) for d in (1, 1.5, 2, 3, 5, 7)],
        [float(f"{d}e{k}") for k in range(-13, 17) for d in (1, 2, 5)],
        [float(f"{d}e{k}") for k in range(-13, 17) for d in (1, 3)],
        *([float(f"1e{k}") for k in range(-15, 17, stride)] for stride in (1, 2, 3, 5)),
    )
    fine = steps[:4] if low >= 0.2 and high <= 6 else ()
    for candidates in (*fine, *steps[4:]):
        ticks = [tick for tick in candidates if low <= tick <= high]
        if 2 <= len(ticks) <= most:
            return ticks
    return ticks or [low]


def number(value: float) -> str:
    """A tick's number: 1, 0.05, 1,500, 2e+07."""
    return f"{value:,.0f}" if 1000 <= value < 1e7 else f"{value:g}"
