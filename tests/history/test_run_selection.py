from __future__ import annotations

import pytest

from perfdash.detect import curation
from perfdash.errors import UsageError
from perfdash.history.acts import the_run
from perfdash.history.ingest import take_in
from perfdash.history.queries import read_run
from perfdash.history.run_selection import find_run, one_run, select
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


@pytest.fixture
def twice(store):
    """Two machines whose runs of a night have one name: id 1 and 2, 3 and 4."""
    for night in ("2026-11-01", "2026-11-02"):
        take_in(store, [run(night, [row()], host=host) for host in ("farm", "barn")])
    return store


@pytest.mark.parametrize(
    ("word", "ids"),
    [
        ("id:3", [3]),
        ("id:1,id:4", [1, 4]),
        ("2026-11-01", [1, 2]),
        ("2026-11-02,2026-11-01", [1, 2, 3, 4]),
        ("2026-11-01T01-00-00Z_farm", [1, 2]),
    ],
)
def test_runs_of_one_name_are_all_selected_and_an_id_selects_one(twice, word, ids):
    with twice.read() as connection:
        assert [line.id for line in select(connection, word)] == ids


def test_a_name_of_several_runs_is_not_one_run(twice):
    with twice.read() as connection:
        assert find_run(connection, "id:1").host == "farm"
        for find in (find_run, the_run, one_run):
            with pytest.raises(
                UsageError, match=r"Z_farm' means 2 runs; give the id of one of them: id:1 \(.* farm, 1"
            ):
                find(connection, "2026-11-01T01-00-00Z_farm")
        assert one_run(connection, "id:2").host == "barn"
        for word in ("id:9", "id:x", f"id:{2**70}"):
            with pytest.raises(UsageError, match="the latest"):
                find_run(connection, word)
            with pytest.raises(UsageError, match="the latest runs"):
                select(connection, word)


def test_an_excluded_run_is_selected_by_its_id(twice):
    curation.exclude(twice, "id:4", "a fan was broken")
    with twice.read() as connection:
        assert [line.id for line in select(connection, "2026-11-02")] == [3]
        assert [line.id for line in select(connection, "id:4")] == [4]
