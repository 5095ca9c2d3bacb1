"""Which runs are of one testbed, by how many cases they measured side by side."""

import pytest

from perfdash.history import results
from perfdash.records import RunInfo


def slots(count: int, threads: int = 1, host: str = "farm") -> list[dict]:
    return [
        {"slot": number, "host": host, "cores": [number * threads + core for core in range(threads)]}
        for number in range(count)
    ]


def info(*sessions: dict) -> RunInfo:
    return RunInfo(
        id="r", started="2026-11-01T00:00:00Z", host="farm", command=["perfdash", "run"], configuration={},
        environment={"host_class": "Xeon x 16"}, cases=1, perfdash="0.1", sessions=list(sessions),
    )  # fmt: skip


def digest(*sessions: dict) -> str:
    return results.from_run(info(*sessions), [], "").run.testbed_digest


NARROW, WIDE = {"slots": slots(15)}, {"slots": slots(3, threads=4)}
ONE_SOCKET = {"slots": slots(1, threads=8), "bind_memory": True}
FOUR, REDUCED = {"slots": slots(4)}, {"slots": slots(4), "at_once": 1}


ALONE, TWO, FOUR_AT_ONCE, FIFTEEN = "11d5d612fbaa", "0f1ab52b0743", "0972d4a4bf98", "795a083ab9ca"


@pytest.mark.parametrize(
    ("sessions", "begins"),
    [
        ([], ALONE),
        ([{"slots": []}], ALONE),
        ([{"slots": slots(1)}], ALONE),
        ([{"slots": slots(1)}, ONE_SOCKET], ALONE),
        ([FOUR], FOUR_AT_ONCE),
        ([FOUR, FOUR, {"slots": []}], FOUR_AT_ONCE),
        ([{"slots": slots(4), "at_once": 2}], TWO),
        ([{"slots": slots(2, host="a") + slots(2, host="b")}], TWO),
        ([NARROW], FIFTEEN),
        ([NARROW, WIDE], FIFTEEN),
        ([NARROW, ONE_SOCKET], FIFTEEN),
        ([{"slots": slots(2, threads=8)}, ONE_SOCKET], TWO),
    ],
)
def test_ordinary_runs_keep_the_testbeds_that_histories_have(sessions, begins):
    """The digests that these runs had before the setting of a run could name its kinds of slots."""
    assert digest(*sessions).startswith(begins)
    assert digest(*reversed(sessions)).startswith(begins)


def test_a_run_of_several_kinds_of_slots_of_which_one_was_reduced_has_another_testbed():
    ordinary = digest(NARROW, WIDE)
    reduced_wide = info(NARROW, {**WIDE, "at_once": 1})
    reduced_narrow = info({**NARROW, "at_once": 7}, WIDE)
    assert results.testbed(reduced_wide)[1] == {
        "side_by_side": 15,
        "side_by_side_of": {"1 thread": [15], "4 threads": [1]},
    }
    assert results.testbed(reduced_narrow)[1] == {
        "side_by_side": 7,
        "side_by_side_of": {"1 thread": [7], "4 threads": [3]},
    }
    assert len({ordinary, *(digest(*each.sessions) for each in (reduced_wide, reduced_narrow))}) == 3


def test_a_run_whose_sessions_differ_has_a_testbed_of_its_own():
    """Resumed, or merged from shards, in any order: some cases had one neighbour, others three."""
    mixed = {"side_by_side": 4, "side_by_side_of": {"1 thread": [1, 4]}}
    other_host = {"slots": slots(4, host="other")}
    assert results.testbed(info(FOUR, REDUCED))[1] == results.testbed(info(REDUCED, FOUR))[1] == mixed
    assert (
        results.testbed(info(REDUCED, other_host))[1]
        == results.testbed(info(other_host, REDUCED))[1]
        == mixed
    )
    assert results.testbed(info(NARROW, ONE_SOCKET, {**ONE_SOCKET, "slots": slots(2, threads=8)}))[1] == {
        "side_by_side": 15,
        "side_by_side_of": {"1 thread": [15], "8 bound threads": [1, 2]},
    }
