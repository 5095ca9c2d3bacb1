"""The runs that a user names: of run folders, where there is no history."""

from __future__ import annotations

import pytest

from perfdash.records import Result, RunInfo, Status
from perfdash.report.run_lookup import RunLookup, read_folder
from perfdash.runner.run_journal import RunJournal
from tests.history.made import case


def folder(out, day, status, host="farm"):
    """A run folder whose one case ended so."""
    (out / f"night{day}").mkdir(parents=True)
    journal = RunJournal(out / f"night{day}")
    started = f"2026-11-{day:02}T01:00:00Z"
    environment = {"host_class": "Xeon x 100"}
    journal.write_info(RunInfo(journal.folder.name, started, host, ["perfdash"], {}, environment, 1, "0.1"))
    journal.append(Result(case(), started, 1.0, status))
    journal.close()
    return journal.folder


@pytest.mark.parametrize("status", [Status.NOT_TONIGHT, Status.SKIPPED, Status.INFRA_ERROR])
@pytest.mark.parametrize("first", [Status.PASS, Status.CRASH])
def test_the_run_before_measured_the_case(tmp_path, first, status):
    out = tmp_path / "runs"
    folders = [folder(out, day, word) for day, word in enumerate((first, status, Status.PASS), start=1)]
    lookup = RunLookup(out, str(tmp_path / "none.db"), pytest.fail)
    before, note = lookup.previous(read_folder(folders[-1], pytest.fail), case())
    assert before.run.name == folders[0].name
    assert note == ""


@pytest.mark.parametrize(
    ("hosts", "day", "note"),
    [
        (["farm", "barn", "farm"], 1, ""),
        (["mill", "barn", "farm"], 2, "night2 measured it on another machine: barn | farm."),
    ],
)
def test_the_run_before_is_of_the_same_machine_if_it_measured_the_case(tmp_path, hosts, day, note):
    """Machines of a class differ in latency."""
    out = tmp_path / "runs"
    folders = [folder(out, place, Status.PASS, host) for place, host in enumerate(hosts, start=1)]
    lookup = RunLookup(out, str(tmp_path / "none.db"), pytest.fail)
    before, told = lookup.previous(read_folder(folders[-1], pytest.fail), case())
    assert (before.run.name, told) == (f"night{day}", note)
