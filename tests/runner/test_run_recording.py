"""What is said of a finished run that the history does not take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.records import Status
from perfdash.runner import run_recording
from perfdash.runner.run_recording import lost_to_the_machine, record
from perfdash.settings import RunSettings
from tests.report.results import good, info


def test_a_run_of_which_the_history_has_a_newer_version_is_no_success(tmp_path):
    settings = RunSettings(db=str(tmp_path / "history.db"))
    run, folder = replace(info(2), plan={"uid": "a"}), tmp_path / "run 1"
    results = [good("a", 2.0, "faster"), good("b", 2.0, "faster")]
    warnings: list[str] = []
    assert record(settings, run, results, folder, warnings.append) == 0
    assert record(settings, run, results, folder, warnings.append) == 0, "known"
    assert warnings == []
    assert record(settings, run, results[:1], folder, warnings.append) == 3
    (warning,) = warnings
    assert warning.startswith("The run is saved, but the history keeps the version that it has")
    assert f"perfdash history remove {run.id} --yes && perfdash history import '{folder}'" in warning


def test_a_merge_that_replaces_another_or_has_a_shard_of_another_night_is_named(tmp_path):
    settings = RunSettings(db=str(tmp_path / "history.db"))
    warnings: list[str] = []

    def merged(name, shards, speedup=2.0):
        run = replace(info(1), id=name, merged_from=list(shards), merged_uids=list(shards))
        results = [good("a", speedup, "faster")]
        return record(settings, run, results, tmp_path / name, warnings.append)

    assert (merged("night", "abc"), warnings) == (0, [])
    assert merged("again", "abd", 2.5) == 0
    assert warnings.pop().startswith("again replaces night in the history (started ")
    assert merged("next", "efa") == 3
    (warning,) = warnings
    assert "next has 1 of the 3 shards of again, which is in the history" in warning
    assert "perfdash history remove again --yes" in warning
    assert warning.endswith(f"\nTo import it: perfdash history import {tmp_path / 'next'}")


def test_a_run_is_lost_where_the_machine_failed_in_every_case_that_is_not_skipped():
    passes = good("a", 2.0, "faster")
    lost, skipped = replace(passes, status=Status.INFRA_ERROR), replace(passes, status=Status.SKIPPED)
    assert lost_to_the_machine([lost, lost, skipped]) == 2
    assert lost_to_the_machine([lost, passes]) == 0
    assert lost_to_the_machine([skipped]) == 0
    assert lost_to_the_machine([]) == 0


def test_ctrl_c_while_the_history_is_busy_says_how_to_import_the_run(tmp_path, monkeypatch):
    """Another writer has it, for minutes; all cases are measured by then."""

    def busy(store, runs, warn):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_recording, "take_in", busy)
    warnings: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        record(
            RunSettings(db=str(tmp_path / "history.db")), info(1), [good("a", 2.0, "faster")],
            tmp_path / "run 1", warnings.append,
        )  # fmt: skip
    (warning,) = warnings
    assert warning == (
        "The run is saved, but not in the history: interrupted\n"
        f"To import it: perfdash history import '{tmp_path / 'run 1'}'"
    )
