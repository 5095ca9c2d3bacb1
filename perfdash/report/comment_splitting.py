"""Split a Markdown text into comments, each complete by itself. Pure.

What is open at a cut (a folded part, a code block, a table) is closed there and opened again in the next
comment with its head, below its headings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# GitHub's limit is "65536 characters", but endpoints were seen to count bytes, UTF-16 units or code points.
# A text has at least as many UTF-8 bytes as any of these, so bytes are counted, with some margin.
LIMIT = 60_000
_NUMBER = 40  # bytes reserved for "*Part 12 of 13*" and the blank line after it
_HEAD_LINES = 6  # a table of which so many rows come before the second border has no head
_HEAD = 4  # a table's head is repeated if it takes at most 1 / _HEAD of a comment

# Ratings of a cut, the best first: between sections, blocks, rows, lines; never.
_SECTION, _BLOCK, _ROW, _LINE, _NEVER = range(5)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_RULE = re.compile(r"[ |:-]*-[ |:-]*")


@dataclass(frozen=True)
class _Before:
    """The open elements before a line, and the rating of a cut there."""

    headings: tuple[str, ...]  # that hold for the line
    folds: tuple[tuple[str, ...], ...]  # of each <details>: the lines that open it
    fence: str | None
    head: tuple[str, ...]  # of the table
    cut: int

    def opening(self) -> list[str]:
        above = (*((heading,) for heading in self.headings), *self.folds)
        lines = [line for opened in above for line in (*opened, "")]
        return [*lines, *([self.fence] if self.fence else []), *self.head]

    def closing(self) -> list[str]:
        marks = re.match(r" *([`~]+)", self.fence or "")
        border = self.head[:1] if self.fence else ()
        return [*border, *([marks[1]] if marks else []), *["\n</details>"] * len(self.folds)]


def size(text: str) -> int:
    """Bytes in UTF-8; a lone surrogate counts as its replacement character."""
    return len(text.encode("utf-8", "replace"))


def split_text(text: str, limit: int = LIMIT) -> list[str]:
    """Split a text into numbered parts of at most `limit` bytes (1,000 or more)."""
    if size(text) <= limit:
        return [text]
    room = limit - _NUMBER
    lines = [piece for line in text.split("\n") for piece in _pieces(line, room // 4)]
    before = _scan(lines, room // _HEAD)
    cut: list[str] = []
    start = 0
    while start < len(lines):
        end = _end(lines, before, start, room)
        part = "\n".join([*before[start].opening(), *lines[start:end], *before[end].closing()])
        start = end
        if part.strip():
            cut.append(part.strip("\n"))
    return [f"*Part {number} of {len(cut)}*\n\n{part}" for number, part in enumerate(cut, start=1)]


def _end(lines: Sequence[str], before: Sequence[_Before], start: int, room: int) -> int:
    """The end of the part that starts at line `start`.

    Of the cuts that fill at least half of the part, the best place wins (section, block, row, line), then the
    longest part.
    """
    used = _room(before[start].opening())
    fitting: list[tuple[int, int]] = []  # (end, bytes)
    for end in range(start + 1, len(lines) + 1):
        used += size(lines[end - 1]) + 1
        whole = used + _room(before[end].closing())
        if whole > room and fitting:
            break
        fitting.append((end, whole))
    else:
        return len(lines)
    full = [end for end, whole in fitting if whole >= room // 2]
    for ends in (full, [end for end, _ in fitting]):
        best = min(ends, key=lambda end: (before[end].cut, -end), default=None)
        if best is not None and before[best].cut < _NEVER:
            return best
    return fitting[-1][0]


def _room(lines: Sequence[str]) -> int:
    return sum(size(line) + 1 for line in lines)


def _pieces(line: str, most: int) -> list[str]:
    """A line, cut at spaces where possible if it is too long for any part."""
    pieces = []
    while size(line) > most:
        # A cut within a character leaves bytes that are no text: "ignore" drops them, and the character
        # goes to the next piece.
        head = line.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
        space = head.rfind(" ", len(head) // 2)
        at = space + 1 if space >= 0 else len(head)
        pieces.append(line[:at])
        line = line[at:]
    return [*pieces, line]


def _scan(lines: Sequence[str], longest_head: int) -> list[_Before]:
    """The open elements before each line and at the end of the text."""
    reader = _LineReader()
    states = []
    for number, line in enumerate(lines):
        after = lines[number + 1] if number + 1 < len(lines) else ""
        folds, fence, head = tuple(reader.folds), reader.fence, reader.rows_of
        headings = () if number == 0 else reader.headings_of(line)
        cut = reader.inside(line, after) if fence else reader.outside(line, after)
        reader.last = line
        if line.strip():
            reader.words = line
        states.append(
            _Before(
                headings if _room(headings) <= longest_head // 2 else (),
                _short(folds, longest_head),
                fence,
                head if _room(head) <= longest_head else (),
                cut,
            )
        )
    return [*states, _Before((), _short(tuple(reader.folds), longest_head), reader.fence, (), _SECTION)]


def _short(folds: tuple[tuple[str, ...], ...], most: int) -> tuple[tuple[str, ...], ...]:
    """The lines that open folds, without their titles if these are long."""
    long = sum(map(_room, folds)) > most
    return tuple(("<details><summary>...</summary>",) for _ in folds) if long else folds


class _LineReader:
    """Reads lines and keeps track of open folds, code blocks and tables.

    `head`: of a table that is being read; `rows_of`: the head of a table whose rows are being read.
    """

    def __init__(self) -> None:
        self.folds: list[tuple[str, ...]] = []
        self.headings: tuple[str, ...] = ()  # `#`, `##`
        self.fence: str | None = None
        self.head: tuple[str, ...] = ()
        self.rows_of: tuple[str, ...] = ()
        self.last = self.words = ""  # the line before; the last one that was not empty

    def headings_of(self, line: str) -> tuple[str, ...]:
        """The headings above a line, which may itself end some of them."""
        if self.fence or not line.startswith(("# ", "## ")):
            return self.headings
        return (
            ()
            if line.startswith("# ")
            else tuple(heading for heading in self.headings if heading.startswith("# "))
        )

    def inside(self, line: str, after: str) -> int:
        """Rate a cut before a line of a code block.

        Tables in code blocks are prettytable's, with borders of `+---+`.
        """
        first = self.last is self.fence
        if _closes(line, str(self.fence)):
            self.fence, self.head, self.rows_of = None, (), ()
            return _NEVER
        border, row = bool(re.fullmatch(r"\+[-=+]+", line)), line.startswith("|")
        if self.rows_of:
            starts = self.last is self.rows_of[-1]
            if not row and not (border and after.startswith("|")):
                self.rows_of = ()
            return _NEVER if border or (starts and row) else _ROW
        if self.head:
            self.head = (*self.head, line) if border or row else ()
            if border or len(self.head) > _HEAD_LINES:
                self.rows_of, self.head = self.head if border else (), ()
            return _NEVER if border or row else _ROW
        if border and after.startswith("|"):
            self.head = (line,)
        return _NEVER if first or border != bool(self.head) else _ROW

    def outside(self, line: str, after: str) -> int:
        """Rate a cut before a line outside code blocks.

        Tables there are Markdown's, with cells between `|`.
        """
        opened = _FENCE.fullmatch(line)
        if self.rows_of and line.startswith("|"):
            return _NEVER if self.last is self.rows_of[-1] else _ROW
        self.rows_of = ()
        if self.head:
            self.rows_of, self.head = (*self.head, line), ()
            return _NEVER
        within = bool(self.folds)
        titled = self.words and not self.words.startswith(("|", "<")) and not _FENCE.fullmatch(self.words)
        if not within and line.startswith(("# ", "## ")):
            self.headings = (*self.headings_of(line), line)
        if opened and not (opened[1][0] == "`" and "`" in opened[2]):
            self.fence = line
        elif line.startswith("|") and "-" in after and _RULE.fullmatch(after):
            self.head = (line,)
        elif line.startswith("<details") and "</details>" not in line:
            title = (after,) if after.startswith("<summary") and "</summary>" in after else ()
            self.folds.append((line, *title))
        elif line.startswith("</details>"):
            del self.folds[-1:]
            return _NEVER
        if not line.strip() or self.words.startswith(("#", "<details", "<summary")):
            return _NEVER
        if titled and (self.fence or self.head):
            return _NEVER  # the paragraph before it is its title
        if self.words.startswith("</details>") or not self.last.strip():
            return _BLOCK if within else _SECTION
        return _LINE


def _closes(line: str, fence: str) -> bool:
    opened, mark = _FENCE.fullmatch(fence), _FENCE.fullmatch(line)
    if not opened or not mark or mark[2].strip():
        return False
    return mark[1][0] == opened[1][0] and len(mark[1]) >= len(opened[1])
