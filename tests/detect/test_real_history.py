"""The history of real models with planted changes: what is sealed, what counts as found, what as false."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

import pytest

from perfdash.files import dumps
from perfdash.records import Case, Measurement, Result, Status, to_json

FILE = Path(__file__).parents[2] / "benchmarks" / "real_history.py"
NAMES = [f"model{number}" for number in range(9)]


@pytest.fixture(scope="module")
def player():
    spec = importlib.util.spec_from_file_location("real_history", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("rounds", [60, 45, 3])
def test_six_changes_of_six_models_are_drawn_within_the_rounds(player, rounds):
    planted = player.draw(7, NAMES, rounds)
    assert len({change["case"] for change in planted}) == 6
    assert [(change["kind"], change["size"]) for change in planted] == list(player.PLANTED)
    assert all(1 <= change["round"] <= max(rounds - player.LAST, 2) for change in planted)
    assert planted == player.draw(7, NAMES, rounds) != player.draw(8, NAMES, rounds)


def test_what_was_sealed_stays_and_cannot_be_exchanged(player, tmp_path):
    sealed = player.seal(tmp_path, NAMES, 60)
    assert player.seal(tmp_path, NAMES[:3], 10) == sealed, "drawn once"
    arguments = argparse.Namespace(folder=tmp_path, out=None)
    with pytest.raises(SystemExit, match="are not frozen"):
        player.reveal(arguments)
    (tmp_path / "frozen.json").write_text('{"at": "now", "rounds": 0, "alerts": []}')
    (tmp_path / "planted.json").write_text((tmp_path / "planted.json").read_text().replace("0.2", "0.4"))
    with pytest.raises(SystemExit, match="not what was sealed"):
        player.reveal(arguments)
    (tmp_path / "frozen.json").unlink()


def alert(model, metric, number, *history, direction=1, change=0.1):
    return {
        "model": model, "kind": "metric", "metric": metric, "direction": direction, "state": "new",
        "round": number, "change": change, "history": [list(event) for event in history],
    }  # fmt: skip


PLANTED = [
    {"case": "a", "kind": "slower", "size": 0.1, "round": 30},
    {"case": "b", "kind": "memory", "size": 0.3, "round": 35},
]


def test_found_following_and_false_are_told_apart(player):
    slower = alert("a", "backend_ms", 31, ("suspected", 31), ("new", 33))
    late = alert("a", "eager_ms", 20, ("new", 44))  # dated ten rounds before the change
    before = alert("a", "backend_ms", 28, ("new", 29))
    following = alert("b", "backend_ms", 35, ("new", 37))
    faster = alert("b", "backend_peak_bytes", 36, ("new", 37), direction=-1)
    other = alert("c", "eager_ms", 40, ("suspected", 40), ("new", 41), ("fixed", 43))
    suspected = alert("d", "eager_ms", 50, ("suspected", 50), ("dismissed", 51))
    own, after, false = player.judged(PLANTED, [slower, late, before, following, faster, other, suspected])
    assert own == [[slower, late], []]
    assert after == [following, faster]
    assert false == [before, other]


def test_the_page_says_what_was_found_missed_and_false(player, tmp_path):
    (tmp_path / "rounds").mkdir()
    facts = {"host": "farm", "host_class": "Xeon x 2", "kernel": "6.1", "worker": {"torch": "2.15"}}
    latency = Measurement(10.0, 9.9, 10.1, 10.0, 0.1, 50, [])
    for number in range(1, 41):
        results = [
            Result(Case("suite", model), "2026-01-01T00:00:00Z", 1.0, Status.PASS, eager_ms=latency,
                   backend_ms=latency, conditions={"clock": "cpu"})
            for model in "abc"
        ]  # fmt: skip
        kernel = "6.1" if number < 20 else "6.2"
        text = {"at": f"{number:02}", "environment": {**facts, "kernel": kernel},
                "results": [to_json(result) for result in results]}  # fmt: skip
        (tmp_path / "rounds" / f"{number:04}.json").write_text(dumps(text))
    alerts = [
        alert("a", "backend_ms", 30, ("suspected", 30), ("new", 32)),
        alert("c", "eager_ms", 12, ("new", 13)),
        alert("d", "eager_ms", 12, ("suspected", 13)),
    ]
    page = player.page_of(tmp_path, PLANTED, {"at": "then", "rounds": 40, "alerts": alerts}, "f" * 64)
    assert "| a | slower operator (+10%) | 30 | 1 | 3 | backend_ms +10.5% | 30 |" in page
    assert "| b | more memory (+30%) | 35 | - | - | - | - |" in page
    assert "Found: 1 of 2; missed: 1." in page
    assert "False alerts: 1 in 12 series over 40 rounds (62.5 per 1,000" in page
    assert "- c, eager_ms: +10.5%, from round 12, raised in round 13, now new" in page
    assert "round-0020: kernel: 6.1 | 6.2" in page
    assert "Suspected and never raised: 1." in page
    assert "100% of the measurements were taken by CPU time" in page


def test_rounds_are_stored_once_and_judged(player, tmp_path):
    test_the_page_says_what_was_found_missed_and_false(player, tmp_path)
    for path in sorted((tmp_path / "rounds").glob("*.json"))[5:]:
        path.unlink()
    assert player.store_rounds(tmp_path) == player.store_rounds(tmp_path) == 0
    player.freeze(argparse.Namespace(folder=tmp_path))
    frozen = json.loads((tmp_path / "frozen.json").read_text())
    assert (frozen["rounds"], frozen["alerts"]) == (5, [])


@pytest.mark.parametrize(("kind", "grown"), [("memory", 2 << 20), ("slower", 0), ("break", 0)])
@pytest.mark.slow
def test_planted_modules_give_the_same_answers(player, kind, grown):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(8, 8).eval()
    changed = player.with_change(model, {"kind": kind, "size": 0.5}, 1e-4, 4 << 20)
    inputs = torch.randn(2, 8)
    with torch.no_grad():
        assert torch.equal(changed(inputs), model(inputs))
    if kind == "memory":
        assert sum(buffer.nbytes for buffer in changed.buffers()) == grown
