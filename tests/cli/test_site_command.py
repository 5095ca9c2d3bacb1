"""`perfdash site` as a user runs it."""

from __future__ import annotations

from perfdash.history.ingest import take_in
from perfdash.history.store import open_store
from tests.history.made import row, run


def fill(tmp_path):
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, [run(f"2026-01-0{day}", [row()]) for day in (1, 2)])


def test_it_says_what_it_wrote_and_where(command, tmp_path):
    fill(tmp_path)
    done = command("site", "--to", "site")
    assert done.code == 0, done.err
    assert "8 pages in site" in done.out
    assert "Open site/index.html" in done.out
    assert (tmp_path / "site/index.html").is_file()
    again = command("site", "--to", "site", "--db", "runs/history.db", "--out", "nowhere")
    assert "nothing to update" in again.out


def test_without_a_history(command, tmp_path):
    done = command("site", "--to", "site")
    assert done.code == 2
    assert "there is no history" in done.err
    assert not (tmp_path / "site").exists()


def test_a_folder_of_something_else(command, tmp_path):
    fill(tmp_path)
    done = command("site", "--to", "runs")
    assert done.code == 2
    assert "holds no site of perfdash" in done.err
    assert "Traceback" not in done.err
