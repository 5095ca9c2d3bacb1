from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from perfdash.errors import MachineError, UsageError
from perfdash.history import export as exporting
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from tests.history.made import nights, row, run
from tests.stores import in_sqlite


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


@in_sqlite
def test_a_pass_that_counts_in_no_mean_is_marked_and_cpu_time_too(store, tmp_path):
    rows = [
        replace(row("a"), details={"recompile_limit": "reached", "conditions": {"clock": "cpu"}}),
        row("b", speedup=1.0, calls_captured=0),
        replace(row("c"), details={"conditions": {"clock": "wall"}}),
        row("d"),
    ]
    take_in(store, [run("2026-02-01", rows)])
    with store.read() as connection:
        exporting.export(connection, list_runs(connection), tmp_path / "all.parquet", "parquet")
    frame = pd.read_parquet(tmp_path / "all.parquet")
    assert frame["remark"].fillna("").tolist() == ["recompile limit", "nothing captured", "", ""]
    assert frame["clock"].fillna("").tolist() == ["cpu", "", "wall", ""]


@pytest.mark.parametrize("form", exporting.FORMATS)
def test_numbers_without_a_column_are_a_last_column(store, tmp_path, monkeypatch, form):
    monkeypatch.setattr(exporting, "_RUNS_AT_ONCE", 1)
    others = {"value": -0.25, 'Größe, "8"': 0.1 + 0.2}
    rows = [replace(row("adam"), values={}, others=others), row("b")]
    take_in(store, [run("2026-01-31", rows[1:]), run("2026-02-01", rows)])
    path = tmp_path / f"all.{form}"
    with store.read() as connection:
        exporting.export(connection, list_runs(connection), path, form)
    if form == "parquet":
        frame = pd.read_parquet(path)
    elif form == "csv":
        frame = pd.read_csv(path)
    else:
        frame = pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])
    assert list(frame["model"]) == ["b", "adam", "b"]
    assert frame.columns[-1] == "others"
    assert frame["others"].isna().tolist() == [True, False, True]
    assert json.loads(frame["others"][1]) == others


@pytest.mark.parametrize("form", exporting.FORMATS)
def test_an_empty_history(store, tmp_path, form):
    with store.read() as connection:
        assert exporting.export(connection, [], tmp_path / "all", form) == 0
    assert (tmp_path / "all").exists()


@in_sqlite
def test_a_link_stays_a_link(filled, tmp_path):
    dated, latest = tmp_path / "2026-02-01.csv", tmp_path / "latest.csv"
    dated.write_text("of the night before")
    latest.symlink_to(dated)
    with filled.read() as connection:
        exporting.export(connection, list_runs(connection), latest, "csv")
    assert latest.is_symlink()
    assert len(pd.read_csv(dated)) == 6


@in_sqlite
@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_pipe_is_written_to(filled, tmp_path, form):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with filled.read() as connection:
        assert exporting.export(connection, list_runs(connection), pipe, form) == 6
    assert os.read(reader, 1 << 16).count(b"timm") == 6
    os.close(reader)
    assert pipe.is_fifo()


@in_sqlite
@pytest.mark.parametrize("form", ["csv", "json"])
def test_an_open_file_is_written_to_where_it_is(filled, tmp_path, form):
    with (tmp_path / "log").open("w+") as log, filled.read() as connection:
        log.write("head\n")
        log.flush()
        exporting.export(connection, list_runs(connection), Path(f"/dev/fd/{log.fileno()}"), form)
        os.write(log.fileno(), b"end\n")
        log.seek(0)
        text = log.read()
    assert text.startswith("head\n")
    assert text.endswith("\nend\n")
    assert text.count("timm") == 6


@in_sqlite
def test_a_pipe_takes_no_parquet(filled, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with filled.read() as connection, pytest.raises(UsageError, match=r"pipe is no file.*csv or json"):
        exporting.export(connection, list_runs(connection), pipe, "parquet")
    assert pipe.is_fifo()


def test_a_file_that_cannot_be_written(filled, tmp_path):
    with filled.read() as connection, pytest.raises(MachineError, match="cannot be written"):
        exporting.export(connection, list_runs(connection), tmp_path / "none" / "all.csv", "csv")
