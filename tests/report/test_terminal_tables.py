"""Golden files of what is printed; PERFDASH_UPDATE_GOLDEN=1 writes them anew, to be read in the diff."""

import pytest

from perfdash.records import Status
from perfdash.report.terminal_tables import details, one_line, phase_table, summary
from tests.report.golden_files import golden
from tests.report.results import a_night, failed, good, info


def all_failed():
    return [
        failed("one", Status.MODEL_FAIL_TO_LOAD, "load", "Unknown model"),
        failed("two", Status.TIMEOUT, "compile", "not done in time"),
    ]


def two_backends():
    return [
        good("fast", 1.4, "faster", batch_size=8),
        good("fast", 1.0, "equivalent", backend="aot-eager", batch_size=8),
        good("fast", 1.9, "faster", dtype="bfloat16", batch_size=8),
    ]


def check(name, text):
    golden(f"{name}.txt", text + "\n")


@pytest.mark.parametrize(
    ("name", "results", "state"),
    [
        ("night", a_night(), "done"),
        ("all_failed", all_failed(), "done"),
        ("two_backends", two_backends(), "interrupted"),
    ],
)
def test_summary(name, results, state):
    check(f"summary_{name}", summary(results, info(len(results), state)))


def test_the_summary_names_commits_of_packages():
    run = info(4)
    packages = {"lib": "1.0", "numpy": "2"}
    run.environment["worker"] = {
        **run.environment["worker"],
        "packages": packages,
        "commits": {"lib": "c" * 40},
    }
    line = summary(a_night(), run).splitlines()[1]
    assert line.endswith(f", lib 1.0 {'c' * 10}")


def test_phases():
    check("phases", phase_table(a_night()[:5]))


def test_details():
    check("details", "\n\n".join(details(result) for result in a_night()[:5:4]))


def test_lines_of_a_log():
    check("lines", "\n".join(one_line(result) for result in a_night()))


def test_a_null_far_out_of_bounds_stands_above_all_numbers():
    disturbed = info(7)
    disturbed.noise["null"]["worst"] = 0.176
    text = summary(a_night(), disturbed)
    assert text.index("WARNING: this machine was disturbed") < text.index("Pass rate")
    assert "off by 17.6%" in text
    assert "WARNING" not in summary(a_night(), info(7))


@pytest.mark.parametrize(
    ("session", "words"), [({}, "in 2 slots, cores 0 + 1"), ({"at_once": 1}, "in 1 of 2 slots")]
)
def test_slots_that_the_null_gave_up_are_not_counted(session, words):
    run = info(7)
    run.sessions = [{"slots": [{"host": "h", "cores": [core]} for core in (0, 1)], **session}]
    assert words in summary(a_night(), run).splitlines()[0]
