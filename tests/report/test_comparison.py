"""Two runs side by side; PERFDASH_UPDATE_GOLDEN=1 writes the golden file anew."""

import os
from dataclasses import replace

from test_tables import GOLDEN, failed, good, info

from perfdash.records import Status
from perfdash.report.comparison import comparison

OLD = [
    good("same", 1.4, "faster"),
    good("slower", 1.5, "faster"),
    good("noisy", 1.2, "faster", basis="within"),
    good("breaks", 1.1, "faster"),
    good("gone", 1.0, "equivalent"),
    good("other_batch", 1.0, "equivalent", batch_size=1),
]
NEW = [
    good("slower", 1.2, "faster"),
    good("same", 1.41, "faster"),
    good("noisy", 1.6, "faster", basis="within"),
    failed("breaks", Status.CRASH, "compile", "ended by SIGSEGV in phase compile"),
    good("appeared", 1.0, "equivalent"),
    good("other_batch", 2.0, "faster", batch_size=8),
]


def test_golden():
    later = replace(info(6), id="2026-11-22T00-00-00Z_host")
    text = comparison(OLD, NEW, info(6), later) + "\n"
    path = GOLDEN / "comparison.txt"
    if os.environ.get("PERFDASH_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_only_what_is_beyond_both_intervals_is_marked():
    text = comparison(OLD, NEW, info(6), info(6))
    marked = [line.split("|")[1].strip() for line in text.splitlines() if "beyond" in line]
    assert marked == ["slower"]


def test_nothing_in_common():
    text = comparison(OLD[:1], NEW[:1], info(1), info(1))
    assert "0 cases in both" in text
    assert "no case passes in both" in text
