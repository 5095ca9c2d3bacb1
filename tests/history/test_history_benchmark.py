"""benchmarks/history.py still runs to its end: it uses functions that are renamed and moved."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "history.py"


@pytest.mark.slow
def test_a_small_history_is_made_and_timed(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("history_benchmark", FILE)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    monkeypatch.setattr(benchmark, "SUITES", {"timm": 2})
    monkeypatch.setattr(sys, "argv", [FILE.name, str(tmp_path / "history.db"), "--nights", "3"])
    benchmark.main()
    printed = capsys.readouterr().out
    assert "sqlite: 3 runs, 72 results" in printed
    assert printed.splitlines()[-1].startswith("change points of a year of all series")
