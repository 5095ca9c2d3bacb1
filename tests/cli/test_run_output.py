"""What `perfdash run` prints at its end: the card, or JSON alone on standard output."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from perfdash.api import Run
from tests.report.results import good, info


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """A run of one model that is not measured: its result is there at once."""
    run = Run(tmp_path / "runs" / "r", info(1), [good("net.make", 0.48, "slower", "processes")])

    def measure_run(prepared, watcher, note):
        watcher.say("A/A null at the start")
        return run

    monkeypatch.setattr("perfdash.runner.run.new_run", lambda settings: SimpleNamespace(settings=settings))
    monkeypatch.setattr("perfdash.api.measure_run", measure_run)
    monkeypatch.setattr("perfdash.report.gates.run_gates", lambda *_: 0)
    return run


def test_card(called, measured):
    done = called("run", "--model", "net.py:make")
    assert done.code == 0
    assert "torch.compile makes net.make SLOWER: 0.48x (0.47 to 0.49)" in done.out
    assert f"Saved in {measured.folder}" in done.out


def test_json_is_alone_on_standard_output(called, measured):
    done = called("run", "--model", "net.py:make", "--json")
    assert done.code == 0
    plain = json.loads(done.out)
    assert plain["folder"] == str(measured.folder)
    assert [result["case"]["model"] for result in plain["results"]] == ["net.make"]
    assert "A/A null at the start" in done.err
    assert "Saved in" in done.err
