"""Import the dashboard comment of pytorch's benchmarks/dynamo: Markdown tables by suite and metric.

Written by runner.py (prepare_message, generate_executive_summary) and posted, for the Inductor CPU
dashboard, to pytorch/pytorch issue 93531: a heading `Performance Dashboard for float32 precision --
Single-core Single-thread`, below it `torchbench suite with float32 precision` with the tables
`Performance speedup`, `Accuracy`, `Compilation latency (sec)`, `Peak Memory Compression Ratio`, columns
name, bs and one for each compiler. The pass counts in the executive summary must equal those of the tables;
otherwise the comment was cut off or edited.

`read_page` reads tables drawn with borders (`+---+`, as tabulate and prettytable write them) and tables of
Markdown. The title of a table is the last line of text before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfdash.history.importers import dynamo_vocabulary
from perfdash.history.importers.foreign_files import (
    FileBeginning,
    FilePlace,
    checked_batch_size,
    checked_name,
    lines,
    shown,
    whole_text,
)
from perfdash.history.importers.import_options import ImportOptions, run_row
from perfdash.history.results import Imported, Row
from perfdash.records import PASSING, Case

NAME = "dynamo-dashboard"
TITLE = "the dynamo dashboard's comment in Markdown (`## torchbench suite with float32 precision`)"
_SUITE = re.compile(r"(?P<suite>\w+) suite with (?P<dtype>\w+) precision")
_BEGIN = re.compile(r"^\s*#+\s+\w+ suite with \w+ precision", re.MULTILINE)
_METRICS = {
    "performance speedup": "speedup",
    "accuracy": "accuracy",
    "compilation latency (sec)": "compilation_latency",
    "peak memory compression ratio": "compression_ratio",
}
_HARDWARE = re.compile(r"run these experiments on (.{1,200}?)\.(?:\s|$)")
_CPU = re.compile(r"\b(CPU|Xeon|EPYC|Graviton|Neoverse)", re.IGNORECASE)
_GPU = re.compile(r"\b(A100|H100|H200|V100|T4|NVIDIA|CUDA|GPU)", re.IGNORECASE)
_PASSED = re.compile(r"\d+%, (\d+)/(\d+)")
_BORDER = re.compile(r"\+([-=:]+\+)+")
_RULE = re.compile(r"\|(\s*:?-+:?\s*\|)+")
_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*")
_FENCE = re.compile(r"(```+|~~~+).*")
_MOST_ROWS = 200_000
_SETTING = ("device", "dtype", "amp_dtype", "threads", "scenario")  # what all cases of a section share

Cells = dict[tuple[str, str], tuple[FilePlace, int, str]]  # (model, compiler) -> place, batch size, cell


def recognises(sample: FileBeginning) -> bool:
    return bool(_BEGIN.search(sample.head)) and "|" in sample.head


def read(paths: Sequence[Path], options: ImportOptions) -> list[Imported]:
    """One run for each comment."""
    return [_run(path, options) for path in paths]


def _run(path: Path, options: ImportOptions) -> Imported:
    whole_text(path)  # checks the limit of a document, which is lower than that of `lines`
    page = read_page((FilePlace(path, number), text) for number, text in lines(path, end_needed=False))
    suites: dict[tuple[str, ...], dict[str, Cells]] = {}
    for table in page.tables:
        if table.headings and _SUITE.fullmatch(table.headings[-1]) and table.columns[:2] == ["name", "bs"]:
            _take(table, suites.setdefault(table.headings, {}))
    if not suites:
        raise FilePlace(path).wrong("no table of a suite in it: nothing to import")
    rows: list[Row] = []
    environment: dict[str, Any] = {}
    published: list[dict[str, Any]] = []
    hardware = ""
    for section in dict.fromkeys(headings[:-1] for headings in suites):
        hardware = _hardware(page, section)
        common = _common(FilePlace(path), page, section, hardware, options)
        rows_by_suite: dict[str, list[Row]] = {}
        for headings, tables in suites.items():
            if headings[:-1] == section:
                suite_rows = _rows(FilePlace(path), headings[-1], tables, common, options)
                rows_by_suite.setdefault(suite_rows[0].case.suite, []).extend(suite_rows)
                rows += suite_rows
        if sums := _check_summary(page, section, rows_by_suite):
            case = next(iter(rows_by_suite.values()))[0].case
            setting = {name: getattr(case, name) for name in _SETTING}
            published.append({**setting, "tables": sums})
    cases: dict[Case, Row] = {}
    for row in rows:
        if row.case in cases:
            first = cases[row.case].details["origin"]["line"]
            line = row.details["origin"]["line"]
            raise FilePlace(path, line).wrong(f"the same case is in line {first} too: remove one of them")
        cases[row.case] = row
    if published:
        environment["published"] = published
    if hardware:
        environment["cpu" if rows[0].case.device == "cpu" else "gpu"] = hardware
    run = run_row(
        NAME,
        path.stem,
        [path],
        options,
        host_class=shown(hardware) or None,
        harness=dynamo_vocabulary.HARNESS,
        environment=environment,
    )
    return Imported(run, tuple(rows))


def _take(table: MarkdownTable, tables: dict[str, Cells]) -> None:
    metric = _METRICS.get(table.title.lower())
    if metric is None:
        raise table.where.wrong(
            f"the table's title is {shown(table.title, 60)!r}, not one of: {', '.join(_METRICS)}"
        )
    if metric in tables:
        raise table.where.wrong(f"a second table of {metric} for {table.headings[-1]}: remove one")
    compilers = table.columns[2:]
    if not compilers or len(set(compilers)) < len(compilers):
        raise table.where.wrong("the table needs columns name, bs and one for each compiler: correct it")
    cells = tables[metric] = {}
    for where, (model, size, *compiler_cells) in table.rows:
        model = checked_name(model, where, "the model's name")
        for compiler, cell in zip(compilers, compiler_cells, strict=True):
            if (model, compiler) in cells:
                line = cells[model, compiler][0].line
                raise where.wrong(f"{shown(model, 80)} again, it is in line {line} too: remove one of them")
            cells[model, compiler] = where, checked_batch_size(size, where), cell


def _texts(page: Page, section: tuple[str, ...]) -> str:
    return " ".join(text for _, headings, text in page.texts if headings[: len(section)] == section)


def _hardware(page: Page, section: tuple[str, ...]) -> str:
    match = _HARDWARE.search(_texts(page, section))
    return match[1].strip() if match else ""


def _common(
    where: FilePlace, page: Page, section: tuple[str, ...], hardware: str, options: ImportOptions
) -> Case:
    """The setting that all cases below one heading share."""
    text = _texts(page, section)
    device = "cpu" if _CPU.search(hardware) else "cuda" if _GPU.search(hardware) else None
    scenario = (
        "training"
        if "forward and backward pass" in text
        else "inference"
        if "iteration of forward pass" in text
        else None
    )
    is_single = "single-thread" in " ".join(section).lower()
    if is_single and options.threads not in (None, 1):
        raise where.wrong(f"says single-thread, but --threads is {options.threads}: leave it out")
    threads = 1 if is_single else options.threads
    if threads is None:
        raise where.wrong("its heading does not say single-thread: give --threads")
    return Case(
        suite="",
        model="",
        device=options.agreed("device", device, where),
        threads=threads,
        scenario=options.agreed("scenario", scenario, where),
    )


def _rows(
    where: FilePlace, heading: str, tables: dict[str, Cells], common: Case, options: ImportOptions
) -> list[Row]:
    match = _SUITE.fullmatch(heading)
    assert match is not None
    for metric in ("speedup", "accuracy"):
        if metric not in tables:
            raise where.wrong(f"no table of {metric} for {shown(heading, 80)!r}: it seems cut off")
    dtype = options.agreed("dtype", match["dtype"], where)
    amp_dtype = options.amp_dtype if dtype == "amp" else None
    keys = list(dict.fromkeys(key for metric in _METRICS.values() for key in tables.get(metric, {})))
    if not keys:
        raise where.wrong(f"the tables of {shown(heading, 80)!r} are empty: nothing to import")
    rows = []
    for model, compiler in keys:
        of_compiler = {m: cells[model, compiler] for m, cells in tables.items() if (model, compiler) in cells}
        case = vars(common) | {
            "suite": dynamo_vocabulary.suite(match["suite"]),
            "model": model,
            "dtype": dtype,
            "amp_dtype": amp_dtype,
            "backend": checked_name(compiler, where, "the compiler").replace("_", "-"),
        }
        rows.append(_row(of_compiler, case))
    return rows


def _row(cells: dict[str, tuple[FilePlace, int, str]], case: dict[str, Any]) -> Row:
    sizes = {size for _, size, _ in cells.values() if size}
    where = next(iter(cells.values()))[0]
    if len(sizes) > 1:
        raise where.wrong(f"batch sizes {sorted(sizes)} in different tables for one model: correct them")
    notes = [] if sizes else ["batch size 0 in the file: the model did not get that far"]
    numbers = {
        metric: dynamo_vocabulary.number_or_nothing(cell, place, metric)
        for metric, (place, _, cell) in cells.items()
        if metric != "accuracy"
    }
    performance = dynamo_vocabulary.measured(numbers, where, case["device"])
    accuracy = None
    if "accuracy" in cells:
        place, _, word = cells["accuracy"]
        accuracy = dynamo_vocabulary.status(word, place)
    status = dynamo_vocabulary.ended(accuracy, performance.ran, checked=True, timed=True, notes=notes)
    details: dict[str, Any] = {"origin": where.origin}
    if "accuracy" in cells:
        details["accuracy"] = {"status": cells["accuracy"][2]}
    if notes or performance.notes:
        details["notes"] = notes + performance.notes
    return Row(
        case=Case(**case | {"batch_size": max(sizes, default=0)}),
        status=str(status),
        values=performance.values,
        others=performance.others,
        details=details,
    )


def _check_summary(
    page: Page, section: tuple[str, ...], rows_by_suite: dict[str, list[Row]]
) -> dict[str, Any]:
    """The executive summary, after comparing its pass counts with the tables.

    Empty for a section of several precisions, whose sums belong to no single setting.
    """
    published: dict[str, Any] = {}
    for table in page.tables:
        if table.headings[: len(section)] != section or table.columns[:1] != ["Compiler"]:
            continue
        for where, (compiler, *cells) in table.rows:
            for word, cell in zip(table.columns[1:], cells, strict=True):
                suite = dynamo_vocabulary.suite(word)
                published.setdefault(table.title, {}).setdefault(suite, {})[compiler] = cell
                if match := _PASSED.fullmatch(cell):
                    _compare(where, suite, compiler.replace("_", "-"), match, rows_by_suite)
    precisions = {(row.case.dtype, row.case.amp_dtype) for rows in rows_by_suite.values() for row in rows}
    return published if len(precisions) == 1 else {}


def _compare(
    where: FilePlace, suite: str, backend: str, counts: re.Match[str], rows_by_suite: dict[str, list[Row]]
) -> None:
    rows = [row for row in rows_by_suite.get(suite, []) if row.case.backend == backend]
    # The harness counts a case as passed if its accuracy passed and it was timed.
    passed = sum(row.status in set(map(str, PASSING)) and "speedup" in row.values for row in rows)
    if (str(passed), str(len(rows))) != counts.groups():
        raise where.wrong(
            f"the summary says {counts[1]} of {counts[2]} pass for {shown(suite, 40)}, "
            f"the tables {passed} of {len(rows)}: import the comment whole and unedited"
        )


@dataclass
class MarkdownTable:
    """A table. `headings`: the headings above it, the outermost first; rows with their places."""

    where: FilePlace
    headings: tuple[str, ...]
    title: str
    columns: list[str]
    rows: list[tuple[FilePlace, list[str]]] = field(default_factory=list)


@dataclass
class Page:
    """The tables of a text, and its other lines except headings."""

    tables: list[MarkdownTable]
    texts: list[tuple[FilePlace, tuple[str, ...], str]]  # place, headings above it, the line


def read_page(lines: Iterable[tuple[FilePlace, str]]) -> Page:
    """Read the tables of a text. Raises UsageError for a table that is cut off or damaged."""
    page = Page([], [])
    headings: list[tuple[int, str]] = []
    title, fence = "", ""
    drawn: _Drawn | None = None
    pipes: MarkdownTable | None = None
    before: tuple[FilePlace, str] | None = None  # the previous line, perhaps the head of a table
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
            # A fence of backticks ends with backticks, one of tildes with tildes. It contains no headings.
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
    """Read a table with borders around its head and below its rows."""

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
