"""docs/reproduce.md: every command of a run is understood, and every row says whether it was seen."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
COMMANDS = dict.fromkeys(re.findall(r"`perfdash (run --[^`]+)`", DOCUMENT))
SEEN = re.compile(r"(part |CPU |)seen\b|unseen\b|not available")
ROWS = [line for line in DOCUMENT.splitlines() if line.startswith("| ") and not line.startswith("| row |")]


def test_the_document_has_its_rows():
    assert len(COMMANDS) >= 10
    assert len(ROWS) >= 40


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_is_understood(called, words):
    ran = called(*shlex.split(words), "--dry-run", "--json")
    assert ran.code == 0, ran.err
    assert '"cases"' in ran.out


@pytest.mark.parametrize("row", [row for row in ROWS if not row.startswith("| ---")])
def test_a_row_says_whether_it_was_seen(row):
    last = row.rstrip("| ").rpartition("|")[2].strip()
    assert SEEN.match(last), last
