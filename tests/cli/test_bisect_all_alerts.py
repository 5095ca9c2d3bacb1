"""`perfdash bisect --all-alerts` on a made repository and history; a stand-in measures the models."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from perfdash.bisection.metrics import Reading
from perfdash.bisection.open_alerts import alert_groups
from perfdash.history import alert_store
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from perfdash.history.results import Imported
from perfdash.history.store import open_store
from perfdash.records import Case
from tests.detect.simulated import judge_last
from tests.history.made import row, run
from tests.repositories import Repository

A, C, D = 9, 18, 9  # the commits that make a, c slower, and d wrong; the file of e is gone
LEVELS = {
    "a": (5.0, 6.0, A),
    "b": (4.0, 4.8, A),
    "c": (3.0, 3.6, C),
    "d": (2.0, 2.0, 99),
    "e": (1.0, 1.2, 15),
}


def text_of(model: str, commit: int) -> str:
    """What a commit's file says of a model: its latency, or its status."""
    before, after, first = LEVELS[model]
    if model == "d" and commit >= D:
        return "fail_accuracy"
    return str(after if commit >= first else before)


class StandIn:
    """Reads a model's file in the build. `left`: measurements until Ctrl-C is pressed."""

    left = 10**6
    measured: ClassVar[list[str]] = []

    def __init__(self, builds, planned, metric):
        self.model, self.dice = planned.case.model, random.Random(planned.case.model)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def stop(self):
        pass

    def measure(self, built, log: Path):
        StandIn.left -= 1
        if StandIn.left < 0:
            raise KeyboardInterrupt
        StandIn.measured.append(self.model)
        (file,) = {path for folder in built.pythonpath for path in Path(folder).glob(f"pkg/{self.model}")}
        text = file.read_text()
        if text.startswith("fail"):
            return Reading(text), {}
        return Reading("pass", float(text) * self.dice.gauss(1, 0.005)), {}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A repository, a suite of five models, and a history of 30 nights; each night after the 20th has three
    commits more."""
    top = tmp_path_factory.mktemp("all")
    repository = Repository(top / "lib")
    commits = [
        repository.commit(
            f"change {n}", {f"pkg/{m}": text_of(m, n) for m in LEVELS} | {"pkg/__init__.py": f"# {n}"}
        )
        for n in range(24)
    ]
    targets = {m: "gone.py" if m == "e" else "net.py" for m in LEVELS}
    (top / "net.py").write_text("".join(f"def {m}(batch_size): ...\n" for m in LEVELS))
    models = "".join(
        f'[[models]]\nname = "{m}"\ntarget = "{top}/{file}:{m}"\n' for m, file in targets.items() if m != "e"
    )
    (top / "mine.toml").write_text(f'name = "mine"\nloader = "python"\n{models}')
    draw = np.random.default_rng(1)
    nights = []
    for night in range(30):
        at = min(23, max(0, (night - 20) * 3))
        rows = []
        for model in LEVELS:
            text = text_of(model, at)
            case = Case("mine", model, batch_size=2, backend="eager")
            noise = float(np.exp(0.008 * draw.standard_normal()))
            rows.append(
                row(of=case, status=text, eager_ms=LEVELS[model][0] * noise)
                if text.startswith("fail") else row(of=case, eager_ms=float(text) * noise)
            )  # fmt: skip
        made = run(
            str(date(2026, 10, 1) + timedelta(days=night)), rows,
            command=("perfdash", "run", "--suite", f"{top}/mine.toml"),
        )  # fmt: skip
        worker = {**made.run.environment["worker"], "packages": {"lib": "1"}, "commits": {"lib": commits[at]}}
        environment = {**made.run.environment, "worker": worker}
        nights.append(Imported(replace(made.run, environment=environment), tuple(rows)))
    with open_store(str(top / "history.db")) as store:
        take_in(store, nights)
        judge_last(store, 10)
    return top, commits


@pytest.fixture
def all_alerts(called, world, monkeypatch, tmp_path):
    """all_alerts(...) as `perfdash bisect --all-alerts ...` in the repository, with a history of its own."""
    top, _ = world
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "history.db").write_bytes((top / "history.db").read_bytes())
    monkeypatch.chdir(top / "lib")
    monkeypatch.setattr("perfdash.bisection.workbench.CaseMeasurer", StandIn)
    monkeypatch.setattr(StandIn, "left", 10**6)
    monkeypatch.setattr(StandIn, "measured", [])
    env = {"PERFDASH_OUT": str(tmp_path / "runs"), "PERFDASH_BUILD_CACHE": str(tmp_path / "cache")}
    return lambda *words: called("bisect", "--all-alerts", *words, env=env)


def causes(ran):
    """Of each cause: how it was bisected, and the culprits."""
    return [
        (cause["how"], [r["id"] for c in (cause["result"] or {}).get("culprits", []) for r in c["revisions"]])
        for cause in json.loads(ran.out)["causes"]
    ]


@pytest.mark.slow
def test_a_dry_run_shows_each_cause(all_alerts):
    ran = all_alerts("--dry-run")
    assert ran.code == 2
    assert re.search(
        r"alert \d+ is of Xeon x 100, and this host is .* x \d+: its change may not show here", ran.err
    )
    assert ran.out.count("nothing was built or measured (--dry-run)") == 3
    assert "e, which" in ran.out or "matches no model" in ran.out


@pytest.mark.slow
def test_each_cause_has_its_culprit_and_one_that_fails_stops_no_other(all_alerts, world, tmp_path):
    _, commits = world
    ran = all_alerts("--json")
    assert ran.code == 2, ran.err  # e is gone
    found = causes(ran)
    assert sorted(how for how, _ in found) == ["bisected", "bisected", "failed", "in passing"]
    assert [culprits for how, culprits in found if how == "in passing"] == [[commits[A]]]
    assert sorted(c for how, culprits in found if how == "bisected" for c in culprits) == sorted(
        [commits[A], commits[C]]
    )
    repeated = json.loads(ran.out)["causes"][0]["result"]["line"]
    assert repeated[2:6] == ["--alert", str(json.loads(ran.out)["causes"][0]["number"]), "--recipe", "git"]
    assert "--all-alerts" not in repeated
    with open_store(str(tmp_path / "runs" / "history.db")) as store, store.read() as connection:
        alerts = alert_store.load(connection)
    assert sum(bool(alert.details.get("bisected")) for alert in alerts) == 3

    StandIn.measured.clear()
    again = all_alerts()
    assert again.code == 2
    assert StandIn.measured == []  # all is in the journals
    assert "4 causes, 3 with a culprit, 1 failed" in again.out
    assert "(as alert " in again.out
    assert (tmp_path / "runs" / "bisections" / "all-alerts.md").read_text() == again.out


@pytest.mark.slow
def test_a_culprit_that_does_not_explain_an_alert_is_not_stored_with_it(all_alerts, tmp_path, monkeypatch):
    """b gets faster where a gets slower: only its own bisection, which is interrupted, may name a culprit."""
    measure, places = StandIn.measure, set()

    def inverted(self, built, log):
        reading, more = measure(self, built, log)
        if self.model != "b":
            return reading, more
        places.add(tuple(built.pythonpath))
        if len(places) > 2:  # no longer the two builds around the culprit of a
            raise KeyboardInterrupt
        return replace(reading, value=16 / reading.value), more

    monkeypatch.setattr(StandIn, "measure", inverted)
    ran = all_alerts("--json")
    assert ran.code == 130, ran.err
    assert len(places) == 3
    with open_store(str(tmp_path / "runs" / "history.db")) as store, store.read() as connection:
        alerts = alert_store.load(connection)
    notes = [alert.details["bisected"] for alert in alerts if "bisected" in alert.details]
    unfinished = [note for note in notes if not note["finished"]]
    assert [note["culprits"] for note in unfinished] == [[]]
    assert unfinished[0]["word"].startswith("not finished")


@pytest.mark.slow
def test_a_culprit_that_could_not_be_stored_is_stored_by_the_same_command(all_alerts, tmp_path, monkeypatch):
    """The server of the history was away when the bisections ended."""

    def unreachable(*_):
        raise RuntimeError("the server is away")

    def bisected():
        with open_store(str(tmp_path / "runs" / "history.db")) as store, store.read() as connection:
            return [alert.details["bisected"] for alert in alert_store.load(connection)
                    if "bisected" in alert.details]  # fmt: skip

    with monkeypatch.context() as patch:
        patch.setattr("perfdash.report.bisection_files.save_to_history", unreachable)
        ran = all_alerts("--json")
    assert bisected() == []
    (line, *_) = [line for line in ran.err.splitlines() if "not in the history" in line]
    folder = tmp_path / "runs" / "bisections"
    assert line.startswith(
        "The bisection is saved, but not in the history: the server is away. To store it: perfdash bisect "
        f"--resume {folder}"
    )
    StandIn.measured.clear()
    all_alerts("--no-history")
    assert bisected() == []
    all_alerts()
    stored = bisected()
    assert (len(stored), StandIn.measured) == (3, [])
    assert all(note["culprits"] for note in stored)


@pytest.mark.slow
def test_ctrl_c_then_the_same_command_goes_on(all_alerts, world, tmp_path):
    _, commits = world
    whole: list[str] = []
    for rest in (3, 17, 10**6):
        StandIn.left = rest
        StandIn.measured.clear()
        ran = all_alerts("--json")
        whole += StandIn.measured
        if rest < 10**6:
            assert ran.code == 130, ran.err
            assert "The same command continues." in ran.err
    assert sorted(c for _, culprits in causes(ran) for c in culprits) == sorted(
        [commits[A], commits[A], commits[C]]
    )
    journals = list((tmp_path / "runs" / "bisections").glob("*/journal.jsonl"))
    assert len(journals) == 3  # none was begun twice
    events = [json.loads(line)["event"] for path in journals for line in path.read_text().splitlines()]
    assert events.count("measured") + events.count("confirm") == len(whole)


@pytest.mark.parametrize(("words", "why"), [
    (["--good", "a"], "each alert says what is measured, so --good does not go with it"),
    (["--metric", "eager"], "so --metric does not go with it"),
    (["--", "true"], "so a command after -- does not go with it"),
])  # fmt: skip
def test_what_does_not_go_with_it(all_alerts, words, why):
    ran = all_alerts(*words)
    assert ran.code == 2
    assert why in ran.err


def test_no_alert_is_open(all_alerts, tmp_path):
    with open_store(str(tmp_path / "empty.db")):
        pass
    ran = all_alerts("--db", str(tmp_path / "empty.db"))
    assert (ran.code, ran.out) == (0, "")
    assert "No alert is open." in ran.err


def test_of_a_cause_on_two_machines_the_alert_of_this_one_is_bisected(tmp_path, monkeypatch):
    """The other's step is the larger one by its noise, and may not show here at all."""
    nights = [
        run(str(date(2026, 10, 1) + timedelta(days=night)), [row(eager_ms=5.0 if night < 3 else level)],
            git=f"{min(night, 3):040x}", host=name, host_class=name)
        for night in range(6) for name, level in (("here x 8", 5.5), ("there x 64", 9.0))
    ]  # fmt: skip
    with open_store(str(tmp_path / "h.db")) as store:
        take_in(store, nights)
        with store.write() as connection:
            for bed in {line.testbed_id for line in list_runs(connection)}:
                runs = [line for line in list_runs(connection) if line.testbed_id == bed]
                change = float(np.log((5.5 if runs[0].host == "here x 8" else 9.0) / 5.0))
                alert = alert_store.Alert(
                    "metric", bed, 1, "eager_ms", alert_store.OPEN, 1, runs[2].id, runs[3].id, runs[5].id,
                    "2026-10-04", "2026-10-04", change=change, details={"sd": 0.01},
                )  # fmt: skip
                alert_store.save(connection, alert)
    with open_store(str(tmp_path / "h.db")) as store, store.read() as connection:
        for here, chosen in (("here x 8", "here"), ("there x 64", "there"), ("a third x 2", "there")):
            (group,) = alert_groups(connection, here)
            assert len(group.members) == 2
            assert group.chosen.bad.host == {"here": "here x 8", "there": "there x 64"}[chosen]
