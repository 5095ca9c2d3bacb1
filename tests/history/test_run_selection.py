from __future__ import annotations

import pytest

from perfdash.errors import UsageError
from perfdash.history.ingest import take_in
from perfdash.history.queries import read_run, select
from tests.history.made import row, run


@pytest.fixture
def filled(store):
    take_in(
        store,
        [
            run("2026-10-30", [row()], torch="2.14.0+cpu", git="abcdef0123" * 4),
            run("2026-11-01", [row()], torch="2.14.0+cpu", git="abcdef0123" * 4),
            run("2026-11-02", [row()], torch="2.15.0", git="1234567890" * 4),
            run("2026-11-03", [row()], torch="2.15.0", git="1234567890" * 4, host_class="EPYC x 8"),
        ],
    )
    return store


@pytest.mark.parametrize(
    ("word", "days"),
    [
        ("last", ["11-03"]),
        ("2026-11-02T01-00-00Z_farm", ["11-02"]),
        ("2026-11-02", ["11-02"]),
        ("2026-11-02T01-00", ["11-02"]),
        ("2026-11-02T01:00:00Z..", ["11-02", "11-03"]),
        ("2026-11", ["11-01", "11-02", "11-03"]),
        ("2026-10-30..2026-11-01", ["10-30", "11-01"]),
        ("..2026-11-01", ["10-30", "11-01"]),
        ("2026-11-02..", ["11-02", "11-03"]),
        ("torch==2.14.0", ["10-30", "11-01"]),
        ("2.14.0+cpu", ["10-30", "11-01"]),
        ("1234567", ["11-02", "11-03"]),
        ("2026-11-02T01-00-00Z_farm, 2026-10-30, 2026-10", ["10-30", "11-02"]),
    ],
)
def test_what_words_mean(filled, word, days):
    with filled.read() as connection:
        assert [line.started[5:10] for line in select(connection, word)] == days


def test_one_class_of_hosts(filled):
    with filled.read() as connection:
        assert [line.started[5:10] for line in select(connection, "last", host_class="Xeon x 100")] == [
            "11-02"
        ]
        (only,) = select(connection, "2026-11-03", host_class="EPYC x 8")
        assert read_run(connection, only).rows[0].case.model == "resnet18"


@pytest.mark.parametrize(
    "word", ["2025", "2.16", "deadbeef", "", "x..y", "2026-11-02,", "2026-11-02,2025", "'; drop table runs"]
)
def test_words_that_mean_nothing(filled, word):
    with filled.read() as connection, pytest.raises(UsageError, match="the latest runs: 2026-"):
        select(connection, word)
