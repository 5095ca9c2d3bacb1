"""`perfdash detect` as a user types it."""

import json

import numpy as np
import pytest


def written(folder, values, name="some.csv"):
    rows = "".join(f"2026-01-{k + 1:02d},{value}\n" for k, value in enumerate(values))
    (folder / name).write_text("when,latency\n" + rows)
    return name


@pytest.fixture
def stepped():
    values = 10 * np.exp(np.random.default_rng(3).normal(0, 0.01, 30))
    values[20:] *= 1.2
    return values


def test_json(command, tmp_path, stepped):
    file = written(tmp_path, stepped)
    answer = json.loads(command("detect", file, "--column", "latency", "--time", "when", "--json").out)
    assert set(answer) == {
        "file", "column", "values", "missing", "scale", "noise", "min_change", "changes",
    }  # fmt: skip
    assert (answer["values"], answer["missing"], answer["scale"]) == (30, 0, "ratio")
    (change,) = answer["changes"]
    assert (change["index"], change["line"], change["time"]) == (20, 22, "2026-01-21")
    assert change["range"] == {"low": 20, "high": 20, "after": "2026-01-20", "until": "2026-01-21"}
    assert change["change"] == pytest.approx(0.2, abs=0.02)
    assert change["confidence"] > 0.999
    (alike,) = json.loads(command("detect", file, "--column", "latency", "--json").out)["changes"]
    assert {"time"} == set(change) - set(alike)
    assert alike["range"] == {"low": 20, "high": 20}


def test_table(command, tmp_path, stepped):
    file = written(tmp_path, stepped)
    ran = command("detect", file, "--column", "latency", "--time", "when")
    assert ran.code == 0
    assert "30 values, noise" in ran.out
    (row,) = [line for line in ran.out.splitlines() if line.startswith("|    20 ")]
    assert "2026-01-21" in row
    assert "> 99.99%" in row
    ran = command("detect", file, "--column", "latency", "--min-change", "0.5")
    assert (ran.code, "No change found." in ran.out) == (0, True)


def test_differences_and_too_few_values(command, tmp_path, stepped):
    file = written(tmp_path, stepped - 11)
    ran = command("detect", file, "--column", "latency")
    assert "differences, not ratios" in ran.out
    assert "20 .. 20" in ran.out
    file = written(tmp_path, [1, 2, "", 4])
    ran = command("detect", file, "--column", "latency")
    assert (ran.code, "3 values are too few to find a change: at least 6" in ran.out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.csv", "--column", "latency"], ["nowhere.csv", "No such file"]),
        ([".", "--column", "latency"], ["folder"]),
        (["some.csv", "--column", "latencies"], ["some.csv, line 1", "did you mean latency"]),
        (["some.csv", "--column", "latency", "--time", "then"], ["--time: no column", "did you mean when"]),
        (["some.csv", "--column", "when"], ["line 2", "'2026-01-01' is no finite number"]),
        (["some.csv", "--column", "latency", "--min-change", "-1"], ["--min-change -1"]),
        (["some.csv", "--column", "latency", "--min-change", "nan"], ["--min-change nan"]),
        (["some.csv"], ["--column"]),
    ],
)
def test_wrong_input(command, tmp_path, stepped, arguments, words):
    written(tmp_path, stepped)
    ran = command("detect", *arguments)
    assert (ran.code, ran.out) == (2, "")
    for word in words:
        assert word in ran.err
    assert "Traceback" not in ran.err


def test_weak_changes_are_listed_on_request(command, tmp_path):
    rng = np.random.default_rng(8)
    steps = np.cumsum(rng.normal(0, 0.02, 200))
    steps[80:130] = steps[79] + rng.normal(0, 0.004, 50)
    steps[105:] += 0.04
    (tmp_path / "wander.csv").write_text("latency\n" + "".join(f"{10 * np.exp(v)}\n" for v in steps))
    words = ("detect", "wander.csv", "--column", "latency", "--json")
    plain = json.loads(command(*words).out)["changes"]
    rows = json.loads(command(*words, "--weak").out)["changes"]
    assert [row["index"] for row in rows if not row["weak"]] == [row["index"] for row in plain]
    weak = [row["index"] for row in rows if row["weak"]]
    assert weak
    table = command(*words[:-1], "--weak").out
    assert table.count(" weak |") == len(weak)
