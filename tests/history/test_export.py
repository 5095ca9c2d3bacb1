from __future__ import annotations

import json

import pandas as pd
import pytest

from perfdash.errors import MachineError
from perfdash.history import export as exporting
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from tests.history.made import nights, row, run


@pytest.fixture
def filled(store):
    take_in(store, nights({"a": [1.25, 2.0, 3.0], "b": [5.0, None, 0.1 + 0.2]}))
    take_in(store, [run("2026-02-01", [row("c,\n<d>", "crash", wall_s=1.0)])])
    return store


@pytest.mark.parametrize("form", exporting.FORMATS)
def test_every_format_holds_every_number(filled, tmp_path, monkeypatch, form):
    monkeypatch.setattr(exporting, "_RUNS_AT_ONCE", 2)
    path = tmp_path / f"all.{form}"
    with filled.read() as connection:
        assert exporting.export(connection, list_runs(connection), path, form) == 6
    if form == "parquet":
        frame = pd.read_parquet(path)
    elif form == "csv":
        frame = pd.read_csv(path)
    else:
        frame = pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])
    assert len(frame) == 6
    assert list(frame["model"]) == ["a", "b", "a", "a", "b", "c,\n<d>"]
    assert frame["backend_ms"].tolist()[:5] == pytest.approx([1.25, 5.0, 2.0, 3.0, 0.1 + 0.2], rel=1e-14)
    assert frame["backend_ms"].isna().tolist() == [False] * 5 + [True]
    assert frame["torch"].tolist() == ["2.15.0"] * 6
    assert [path.name for path in tmp_path.glob("all*")] == [f"all.{form}"], "no part is left"


@pytest.mark.parametrize("form", exporting.FORMATS)
def test_an_empty_history(store, tmp_path, form):
    with store.read() as connection:
        assert exporting.export(connection, [], tmp_path / "all", form) == 0
    assert (tmp_path / "all").exists()


def test_a_file_that_cannot_be_written(filled, tmp_path):
    with filled.read() as connection, pytest.raises(MachineError, match="cannot be written"):
        exporting.export(connection, list_runs(connection), tmp_path / "none" / "all.csv", "csv")
