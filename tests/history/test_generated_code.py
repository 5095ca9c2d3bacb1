"""Structure and code in the history: every text once, gone with the last run that has it."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
import sqlalchemy as sa

from perfdash.detect import curation
from perfdash.history import maintenance, schema
from perfdash.history.generated_code import texts
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs, rows_of
from tests.history.made import row, run
from tests.stores import made_store

NIGHTS = ("2026-11-01", "2026-11-02")


def with_code(night, text, fingerprint="f", model="resnet18"):
    code = {"graph0.py": zlib.compress(text.encode())} if text else {}
    structure = {"kernels": [{"name": "cpp_fused_add_0"}], "fingerprint": fingerprint}
    return run(night, [replace(row(model), structure=structure, code=code)])


def stored(store):
    with store.read() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(schema.texts)).scalar_one()


def read(store, night):
    with store.read() as connection:
        (line,) = list_runs(connection, since=night, until=night)
        (result,) = rows_of(connection, line.id, code=True)
        (plain,) = rows_of(connection, line.id, whole=True)
    assert (plain.structure, plain.code) == ({}, {})
    return result.structure, texts(result.code)


@pytest.fixture
def filled(store):
    take_in(store, [with_code(NIGHTS[0], "same"), with_code(NIGHTS[1], "same")])
    return store


def test_unchanged_code_and_structure_are_stored_once(filled):
    assert stored(filled) == 2
    take_in(filled, [with_code("2026-11-03", "other", "g")])
    assert stored(filled) == 4
    assert read(filled, NIGHTS[1]) == (
        {"kernels": [{"name": "cpp_fused_add_0"}], "fingerprint": "f"}, {"graph0.py": "same"},
    )  # fmt: skip
    assert read(filled, "2026-11-03")[1] == {"graph0.py": "other"}


def test_prune_and_remove_take_what_no_run_has_any_more(filled):
    take_in(filled, [with_code("2026-11-03", "other", "g")])
    with filled.read() as connection:
        first, second, third = list_runs(connection)
    maintenance.prune(filled, [first], samples_only=True)
    maintenance.prune(filled, [first])
    assert stored(filled) == 4
    curation.remove(filled, third)
    assert stored(filled) == 2
    assert read(filled, NIGHTS[1])[1] == {"graph0.py": "same"}
    maintenance.prune(filled, [second])
    assert stored(filled) == 0


def test_a_run_that_was_resumed_replaces_its_code(filled):
    again = with_code(NIGHTS[1], "other", "g")
    later = replace(again, run=replace(again.run, ended=f"{NIGHTS[1]}T09:00:00Z"))
    assert take_in(filled, [later]) == ["replaced"]
    assert read(filled, NIGHTS[1])[1] == {"graph0.py": "other"}
    assert stored(filled) == 4


def test_merge_copies_structure_and_code(filled, tmp_path):
    with made_store(tmp_path / "other.db") as other:
        maintenance.merge(other, filled)
        assert read(other, NIGHTS[0]) == read(filled, NIGHTS[0])
        assert stored(other) == 2
