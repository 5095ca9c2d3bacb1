"""perfdash confirm on a real run: two interpreters stand for two builds, one slower by a known factor."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from tests.cli.two_builds import FAST_MS, MODELS, SLOW_MS, interpreter
from tests.conftest import perfdash

pytestmark = pytest.mark.slow

RUN = ["run", "--model", f"{MODELS}:busy", "--backend", "aot_eager", "--processes", "1"]


def earlier_nights(folder: Path, count: int) -> None:
    """Copies of a run as nights before it, with more noise in the latencies than a busy machine adds."""
    info = json.loads((folder / "run.json").read_text())
    results = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for night in range(count):
        started = f"2026-01-{night + 1:02}T01:00:00Z"
        name = f"2026-01-{night + 1:02}_night"
        target = folder.parent / name
        target.mkdir()
        settings = {**info["configuration"], "no_history": False}
        plan = {**info["plan"], "uid": name}
        night_info = {**info, "id": name, "started": started, "configuration": settings, "plan": plan}
        (target / "run.json").write_text(json.dumps(night_info))
        lines = []
        for result in results:
            factor = 1 + 0.04 * ((night * 7) % 5 - 2)
            for side in ("eager_ms", "backend_ms"):
                for key in ("median", "ci_low", "ci_high"):
                    result[side][key] *= factor
            lines.append(json.dumps(result))
        (target / "results.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """A history of nights under the fast build, and last night's run under the slow one."""
    home = tmp_path_factory.mktemp("confirm")
    fast = interpreter(home / "fast", FAST_MS)
    slow = interpreter(home / "slow", SLOW_MS)
    ran = perfdash(*RUN, "--python", fast, "--no-history", cwd=home, quickly=True)
    assert ran.code == 0, ran.err
    first = ran.folder
    earlier_nights(first, 12)
    shutil.rmtree(first)
    ran = perfdash("history", "import", "runs", cwd=home, quickly=True)
    assert ran.code == 0, ran.err
    ran = perfdash(*RUN, "--python", slow, cwd=home, quickly=True)
    assert ran.code == 0, ran.err
    return home, fast, slow, ran.out.split("Saved in ")[1].split()[0]


def test_a_build_that_no_night_measured_is_refused(nights, tmp_path):
    home, fast, _, run = nights
    with open_store(str(home / "runs" / "history.db")) as store, store.write() as connection:
        connection.exec_driver_sql("update environments set torch_git_version = 'f' || torch_git_version")
    try:
        done = perfdash("confirm", run, "--good-python", fast, cwd=home, quickly=True)
        assert done.code == 2
        assert "the run measured" in done.err
        with open_store(str(home / "runs" / "history.db")) as store, store.read() as connection:
            assert list_runs(connection)[-1].judged, "a dismissal needs the alert"
    finally:
        with open_store(str(home / "runs" / "history.db")) as store, store.write() as connection:
            connection.exec_driver_sql(
                "update environments set torch_git_version = substr(torch_git_version, 2)"
            )
    done = perfdash("confirm", run, "--good-python", str(tmp_path / "none"), cwd=home, quickly=True)
    assert done.code == 3
    assert "no interpreter" in done.err
    assert not os.path.exists(home / run / "confirm.jsonl"), "nothing was measured"


def test_what_stands_is_confirmed_and_what_does_not_is_dismissed(nights):
    home, fast, slow, run = nights
    alerts = json.loads(perfdash("regressions", "--json", cwd=home, quickly=True).out)
    before = {(alert["metric"], alert["state"]) for alert in alerts}

    # Against a good build that is as slow as the new one: it was the machine.
    done = perfdash("confirm", run, "--good-python", slow, cwd=home, quickly=True)
    assert done.code == 0, done.err
    assert "compiled latency: dismissed" in done.out
    assert "eager latency: dismissed" in done.out

    # Against what was really fast, it stands.
    words = ("--good-python", fast, "--fail-on", "regression", "--json")
    done = perfdash("confirm", run, *words, cwd=home, quickly=True)
    assert done.code == 1, done.err
    assert "are measured again" in done.err
    decisions = {decision["metric"]: decision for decision in json.loads(done.out)["decisions"]}
    of_compiled = decisions["backend_ms"]
    assert of_compiled["decision"] == "confirmed"
    assert 1.5 < of_compiled["suspected_ratio"] < 4
    alerts = json.loads(perfdash("regressions", "--json", cwd=home, quickly=True).out)
    after = {alert["metric"]: alert for alert in alerts}
    assert after["backend_ms"]["state"] == "confirmed", before
    again = after["backend_ms"]["details"]["remeasured"]
    assert 1.5 < again["ratio"] < 4
    assert 1.0 < again["low"] < again["ratio"] < again["high"]
    lines = (Path(home) / run / "confirm.jsonl").read_text().splitlines()
    assert {json.loads(line)["side"] for line in lines} == {"old", "new"}
    assert perfdash("regressions", "--fail-on", "regression", cwd=home, quickly=True).code == 1
