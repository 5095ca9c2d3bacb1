"""Failures of the dynamo runners, which write batch size 0 for a model that failed before it had one."""

from __future__ import annotations

import pytest

from perfdash.detect.nightly_judging import judge_new
from perfdash.history import ingest
from perfdash.history.alert_store import LIVE, STATES, load
from perfdash.history.importers import ImportOptions, read
from perfdash.history.ingest import KNOWN, REPLACED, TAKEN_IN, take_in
from perfdash.history.maintenance import merge
from perfdash.history.queries import cases_by_id, list_runs, rows_of
from tests.stores import made_store

STEM = "inductor_timm_models_float32_inference_cpu"
PASSES = {"lcnet_050": (64, 1.2, "pass")}
FAILS = {"lcnet_050": (0, 0.0, "fail_to_run")}
OTHERS = {"dpn107": (8, 1.3, "pass"), "nfnet_l0": (8, 1.1, "pass"), "sebotnet33ts_256": (0, 0.0, "OOM")}


@pytest.fixture
def night(tmp_path):
    """night(day, models) is the run of a pair of files with these models: (batch size, speedup, status)."""

    def write(day, models):
        started = f"2026-11-{day:02}"
        (folder := tmp_path / started).mkdir(exist_ok=True)
        files = {"performance": ["dev,name,batch_size,speedup"], "accuracy": ["dev,name,batch_size,accuracy"]}
        for model, (size, speedup, status) in (OTHERS | models).items():
            files["performance"].append(f"cpu,{model},{size},{speedup}")
            files["accuracy"].append(f"cpu,{model},{size},{status}")
        paths = []
        for kind, lines in files.items():
            paths.append(folder / f"{STEM}_{kind}.csv")
            paths[-1].write_text("\n".join(lines) + "\n")
        return read(paths, ImportOptions(started=started, host="box", threads=1))

    return write


def sizes(store, model="lcnet_050"):
    """The batch sizes of a model over the nights; None where it has no result."""
    with store.read() as connection:
        nights = [rows_of(connection, line.id) for line in list_runs(connection)]
    return [next((row.case.batch_size for row in rows if row.case.model == model), None) for rows in nights]


def alerts(store, states=STATES):
    judge_new(store)
    with store.read() as connection:
        loaded = load(connection, states=states)
        cases = cases_by_id(connection, [alert.case_id for alert in loaded])
    return [(alert.kind, cases[alert.case_id].model, alert.direction, alert.state) for alert in loaded]


def test_a_failure_is_a_night_of_its_model_and_its_repair_no_alert(store, night):
    for day in (1, 2):
        take_in(store, night(day, PASSES))
        assert alerts(store) == []
    take_in(store, night(3, FAILS))
    assert alerts(store) == [("status", "lcnet_050", 1, "new")]
    take_in(store, night(4, PASSES))
    assert alerts(store) == [("status", "lcnet_050", 1, "dismissed")]
    assert sizes(store) == [64, 64, 64, 64]
    assert sizes(store, "sebotnet33ts_256") == [0, 0, 0, 0]  # nothing is known of it
    assert take_in(store, night(3, FAILS)) == [KNOWN]


def test_a_failure_gets_the_size_of_a_later_night_where_no_earlier_one_has_any(store, night):
    take_in(store, night(1, FAILS))
    take_in(store, night(2, FAILS))
    assert sizes(store) == [0, 0]
    assert alerts(store) == []
    assert take_in(store, night(3, PASSES)) == [TAKEN_IN]
    assert sizes(store) == [64, 64, 64]
    assert ("vanished", "lcnet_050") not in [alert[:2] for alert in alerts(store)]


def test_a_failure_gets_the_size_of_the_last_run_before_it(store, night):
    take_in(store, night(1, PASSES))
    take_in(store, night(2, {"lcnet_050": (128, 1.2, "pass")}))
    take_in(store, night(4, PASSES))
    take_in(store, night(3, FAILS))
    assert sizes(store) == [64, 128, 128, 64]
    assert take_in(store, night(1, FAILS | {"dpn107": (0, 0.0, "fail_to_run")})) == [REPLACED]  # corrected
    assert sizes(store) == [64, 128, 128, 64]
    assert sizes(store, "dpn107") == [8, 8, 8, 8]


@pytest.fixture
def judged_without_sizes(store, night, monkeypatch):
    """A history as perfdash made it until failures got the size of their model: the last night fails."""
    with monkeypatch.context() as patched:
        patched.setattr(ingest, "_with_known_sizes", lambda connection, testbed, started, rows: tuple(rows))
        patched.setattr(ingest, "_give_size_to_stored_failures", lambda *arguments: None)
        for day, models in ((1, PASSES), (2, PASSES), (3, FAILS)):
            take_in(store, night(day, models))
            judge_new(store)
    assert sizes(store) == [64, 64, 0]
    assert alerts(store) == [("vanished", "lcnet_050", 1, "new")]
    return store


def test_a_failure_that_was_judged_without_its_size_is_still_an_alert(judged_without_sizes, night):
    take_in(judged_without_sizes, night(4, FAILS))
    assert sizes(judged_without_sizes) == [64, 64, 64, 64]
    assert alerts(judged_without_sizes, LIVE) == [("status", "lcnet_050", 1, "confirmed")]


def test_a_failure_that_was_judged_without_its_size_is_an_alert_where_it_is_merged(
    judged_without_sizes, night, tmp_path
):
    merged = made_store(tmp_path / "merged.db")
    merge(merged, judged_without_sizes)
    assert sizes(merged) == [64, 64, 64]
    assert alerts(merged, LIVE) == [("status", "lcnet_050", 1, "new")]
    take_in(merged, night(4, FAILS))
    assert alerts(merged, LIVE) == [("status", "lcnet_050", 1, "confirmed")]


def test_a_failure_is_judged_again_once_an_earlier_night_has_its_size(store, night):
    take_in(store, night(3, FAILS))
    assert alerts(store) == []
    take_in(store, night(2, PASSES))
    assert sizes(store) == [64, 64]
    assert alerts(store) == [("status", "lcnet_050", 1, "new")]
