from __future__ import annotations

import json
from pathlib import Path

from perfdash import methods
from perfdash.metrics import NUMBERS
from perfdash.records import Case, Result, Status, result_from_json, to_json
from perfdash.worker import registry

FIXTURES = Path(__file__).parent / "fixtures"
ONES = dict.fromkeys(methods.CURRENT, 1)


def test_every_record_says_by_which_method_it_was_measured():
    plain = json.loads(json.dumps(to_json(Result(Case("s", "m"), "", 0.0, Status.CRASH))))
    assert plain["method"] == methods.CURRENT
    assert plain["schema"] == 4


def test_a_record_of_before_counts_as_version_1_of_every_metric(monkeypatch):
    monkeypatch.setitem(methods.CURRENT, "latency", 7)
    old = result_from_json(json.loads((FIXTURES / "result_schema1.json").read_text()))
    assert old.method == ONES


def test_the_number_of_a_method_is_how_many_meanings_it_has_had():
    assert {name: len(meanings) for name, meanings in methods.MEANINGS.items()} == methods.CURRENT
    assert all(all(meanings) for meanings in methods.MEANINGS.values())


def test_every_metric_of_the_history_has_a_method():
    assert {name for name in NUMBERS if not methods.numbers({}, name)} == {
        "wall_s", "eager_instructions", "backend_instructions",  # evidence, which is never judged
    }  # fmt: skip


def test_only_what_depends_on_a_method_is_another_one_by_its_change():
    now = {**ONES, "latency": 2}
    assert not methods.alike({}, now, "backend_ms")
    assert not methods.alike({}, now, "speedup")
    assert methods.alike({}, now, "backend_peak_bytes")
    assert methods.alike({}, ONES, "backend_ms")
    assert methods.alike(now, now, "backend_ms")
    assert not methods.alike({}, {"capture": 2}, "status")


def test_changes_are_named():
    now = {**ONES, "latency": 2, "memory": 3}
    assert methods.changes({}, now) == ["latency 1 -> 2", "memory 1 -> 3"]
    assert methods.changes({}, now, "speedup") == ["latency 1 -> 2"]
    assert methods.changes({}, ONES) == []


def test_only_cases_with_own_threads_are_measured_otherwise_by_that_method():
    now = {**ONES, "own_threads": 2}
    assert methods.alike({}, now, "backend_ms")
    for column in ("eager_ms", "backend_ms", "speedup"):
        assert not methods.alike({}, now, column, own_threads=True)
    assert methods.alike({}, now, "compilation_s", own_threads=True)
    assert methods.alike({}, now, "status", own_threads=True)
    cases = [("openvino", 2), ("openvino", 1), ("inductor", 2)]
    own = [methods.has_own_threads(Case("s", "m", backend=name, threads=threads)) for name, threads in cases]
    assert own == [True, False, False]


def test_the_back_ends_that_are_measured_otherwise_declare_own_threads():
    assert all(registry.find("backends", name).OWN_THREADS for name in methods.OWN_THREADS)
