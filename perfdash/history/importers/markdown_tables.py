"""Tables in text: drawn ones (`+---+`, as tabulate and prettytable make them) and those of Markdown.

A table knows the headings above it and the last line of text before it, which is its title.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from perfdash.history.importers.text_files import FilePlace

_BORDER = re.compile(r"\+([-=:]+\+)+")
_RULE = re.compile(r"\|(\s*:?-+:?\s*\|)+")
_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*")
_FENCE = re.compile(r"(```+|~~~+).*")
_MOST_ROWS = 200_000


@dataclass
class MarkdownTable:
    """One table: its headings from the outermost in, title, column names, and rows with their place."""

    where: FilePlace
    headings: tuple[str, ...]
    title: str
    columns: list[str]
    rows: list[tuple[FilePlace, list[str]]] = field(default_factory=list)


@dataclass
class Page:
    """The tables of a text and the lines that are none, headings among them."""

    tables: list[MarkdownTable]
    texts: list[tuple[FilePlace, tuple[str, ...], str]]  # place, headings above it, the line


def read_page(lines: Iterable[tuple[FilePlace, str]]) -> Page:
    """The tables of a text. Raises UsageError for one that is cut off or has a row of another width."""
    page = Page([], [])
    headings: list[tuple[int, str]] = []
    title, fence = "", ""
    drawn: _Drawn | None = None
    pipes: MarkdownTable | None = None
    before: tuple[FilePlace, str] | None = None  # the line before, which may be a Markdown table's head
    for where, raw in lines:
        text = raw.strip()
        above = tuple(words for _, words in headings)
        if drawn is not None:
            drawn.line(where, text)
            if drawn.finished:
                page.tables.append(drawn.table)
                drawn = None
            continue
        if pipes is not None:
            if text.startswith("|"):
                _add(pipes, where, _split(text))
                continue
            pipes = None
        if _BORDER.fullmatch(text):
            drawn = _Drawn(MarkdownTable(where, above, title, []))
        elif _RULE.fullmatch(text) and before and before[1].startswith("|"):
            columns = _split(before[1])
            if len(columns) != len(_split(text)):
                raise where.wrong("the table's rule has another number of columns than its head: correct it")
            pipes = MarkdownTable(before[0], above, title, columns)
            page.tables.append(pipes)
        elif mark := _FENCE.fullmatch(text):
            # A fence ends with its own kind; what stands in one is no heading.
            fence = ("" if text.startswith(fence) else fence) if fence else mark[1]
        elif not fence and (heading := _HEADING.fullmatch(text)):
            headings = [(level, words) for level, words in headings if level < len(heading[1])]
            headings.append((len(heading[1]), heading[2]))
            title = ""
        elif text and not text.startswith("|"):
            title = text
            page.texts.append((where, above, text))
        before = (where, text)
    if drawn is not None:
        raise drawn.table.where.wrong("the table that begins here has no end: the file seems cut off")
    return page


def _split(text: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", text.strip().removeprefix("|").removesuffix("|"))
    return [cell.strip().replace("\\|", "|") for cell in cells]


def _add(table: MarkdownTable, where: FilePlace, cells: list[str]) -> None:
    if len(cells) != len(table.columns):
        raise where.wrong(
            f"the row has {len(cells)} cells, the table {len(table.columns)} columns: cut off or damaged"
        )
    if len(table.rows) >= _MOST_ROWS:
        raise where.wrong(f"a table of more than {_MOST_ROWS} rows: import it in parts")
    table.rows.append((where, cells))


class _Drawn:
    """A table with borders around its head and below its rows."""

    def __init__(self, table: MarkdownTable) -> None:
        self.table = table
        self.borders = 1
        self.finished = False

    def line(self, where: FilePlace, text: str) -> None:
        if _BORDER.fullmatch(text):
            self.borders += 1
            if self.borders == 2 and not self.table.columns:
                raise where.wrong("two borders of a table with nothing between them: damaged")
            self.finished = self.borders == 3
        elif text.startswith("|") and text.endswith("|") and len(text) > 1:
            cells = _split(text)
            if self.borders == 1:
                if self.table.columns:
                    raise where.wrong("a table's head of two lines, which is not known here: make it one")
                self.table.columns = cells
            else:
                _add(self.table, where, cells)
        else:
            raise where.wrong("the table before has no end here: cut off or damaged")
