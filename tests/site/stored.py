"""Histories that were never measured, for the pages made of them."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from perfdash.history.ingest import take_in
from perfdash.history.results import Imported, Row
from perfdash.history.store import Store
from perfdash.records import Case
from perfdash.site.build import build
from tests.history.made import run

FIRST = date(2026, 1, 5)  # a Monday
NAMES = ["resnet18", "swin_base", "ghostnet_100"]
HOSTILE = [
    "a|b", "<script>alert(1)</script>", "`rm -rf`", "\N{ROCKET} model", "two\nlines", "x" * 300,
    "bell\x07 esc\x1b[31m", "&amp; \"quoted\" 'single'", "../../etc/passwd", "{{ 7 * 7 }}", "%2e%2e/..",
    "#?&=",
]  # fmt: skip


def result(
    case: Case,
    level: float = 10.0,
    *,
    night: int = 0,
    status: str = "pass",
    other_values: Mapping[str, float] | None = None,
    **values: float,
) -> Row:
    """A result with all that a real one has; its numbers differ from night to night."""
    backend = level * (1 + 0.01 * math.sin(7.0 * night + len(case.model)))
    eager = 1.3 * level * (1 + 0.01 * math.cos(5.0 * night))
    speedup = eager / backend
    numbers = {
        "eager_ms": eager, "eager_ms_low": eager * 0.99, "eager_ms_high": eager * 1.01,
        "backend_ms": backend, "backend_ms_low": backend * 0.99, "backend_ms_high": backend * 1.01,
        "speedup": speedup, "speedup_low": speedup * 0.97, "speedup_high": speedup * 1.03,
        "compilation_s": 30.0, "compilation_cpu_s": 44.0, "compression_ratio": 1.1, "eager_peak_bytes": 5e7,
        "backend_peak_bytes": 4.5e7, "graphs": 1, "graph_breaks": 0, "calls_captured": 80, "fallbacks": 0,
        "wall_s": 60.0,
    }  # fmt: skip
    samples = {"eager_ms": (eager, eager * 1.01), "backend_ms": (backend, backend * 1.02)}
    details = {"conditions": {"core": 3}}
    if status != "pass":
        message = f"no <b>kernel</b> for {case.model}"
        details = {"error": {"type": "Error", "message": message}, "failed_phase": "compile"}
        numbers, samples = {"wall_s": 3.0}, {}
    return Row(
        case,
        status,
        {**numbers, **values},
        verdict="faster",
        basis="pooled",
        others=other_values or {},
        samples=samples,
        details=details,
    )


def night(number: int, names: list[str] = NAMES, **other) -> Imported:
    """The run of a night: each model in two settings. `other` replaces fields of the run."""
    cases = [Case("timm", name, threads=threads) for name in names for threads in (1, 4)]
    rows = [result(case, 10.0 + place, night=number) for place, case in enumerate(cases)]
    return run(str(FIRST + timedelta(days=number)), rows, git=f"{number // 7:040x}", **other)


def fill(store: Store, nights: range, **other) -> None:
    take_in(store, [night(number, **other) for number in nights])


def built(store: Store, folder: Path, **other) -> Path:
    """The site of a store, in one process."""
    build(store, folder, **{"jobs": 1, **other})
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """All that a reader gets of a site: bytes by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".perfdash-site" not in path.relative_to(folder).parts[0]
    }


def fresh(store: Store, folder: Path, **other) -> dict[str, bytes]:
    """What a build from nothing gives."""
    shutil.rmtree(folder, ignore_errors=True)
    return files(built(store, folder, **other))


class Page(HTMLParser):
    """A page as its tags: (name, attributes); text; and what is open that should be closed."""

    VOID = ("meta", "link", "br", "input", "hr", "img", "path", "circle", "line", "rect")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, {name: value or "" for name, value in attributes}))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open, f"</{tag}> without a beginning"
            assert self.open[-1] == tag, f"</{tag}> ends <{self.open[-1]}>"
            self.open.pop()

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]


def pages(folder: Path) -> Iterator[tuple[Path, Page]]:
    for path in sorted(folder.rglob("*.html")):
        yield path, Page(path)


def check(folder: Path) -> int:
    """Fails on anything that a static host under a strict policy would not serve; the number of pages."""
    pages_by_path = {path.resolve(): page for path, page in pages(folder)}
    for path, page in pages_by_path.items():
        assert not page.open, (path, page.open)
        assert len(page.ids) == len(set(page.ids)), path
        assert path.stat().st_size < 1_000_000, path
        for tag, attributes in page.tags:
            here = (path, tag, attributes)
            assert "style" not in attributes, here
            assert not [name for name in attributes if name.startswith("on")], here
            assert tag not in ("style", "iframe", "object", "base", "form"), here
            if tag == "script":
                assert "src" in attributes or attributes.get("type") == "application/json", here
            for name in ("href", "src", "xlink:href"):
                if name in attributes:
                    _resolves(path, attributes[name], pages_by_path, here)
    return len(pages_by_path)


def is_link_to_commits(target: str) -> bool:
    """The only links that leave the site are those to the commits of a package."""
    return (
        re.fullmatch(r"https://github\.com/[\w/.-]+/compare/[0-9a-f]{12}\.\.\.[0-9a-f]{12}", target)
        is not None
    )


def _resolves(path: Path, target: str, pages_by_path: dict[Path, Page], here: object) -> None:
    parts = urlsplit(target)
    if is_link_to_commits(target):
        return
    assert not parts.scheme, here
    assert not parts.netloc, here
    assert not target.startswith("/"), here
    there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    assert there.is_file(), here
    if parts.fragment:
        assert parts.fragment in pages_by_path[there].ids, here
