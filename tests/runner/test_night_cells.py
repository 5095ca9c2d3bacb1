"""How a nightly is cut into cells, and on which agents they run."""

from __future__ import annotations

import json

import pytest

from perfdash.runner.night_cells import agents_of, as_lines, cells_of, main

PARAMETERS = {
    "NIGHT": "night", "OUT": "night/out", "JOB": "perf",
    "SUITES": "timm", "DEVICES": "cpu", "DTYPES": "float32",
    "SHARDS": "1", "CELL_MINUTES": "", "CONFIRM_MINUTES": "45", "BISECT": "yes", "BISECT_HOURS": "4",
}  # fmt: skip


@pytest.mark.parametrize(("more", "names"), [
    ({}, ["timm-cpu-float32-1"]),
    ({"SUITES": " timm,, huggingface "}, ["timm-cpu-float32-1", "huggingface-cpu-float32-1"]),
    ({"SUITES": "a.toml,timm", "SHARDS": "2"},
     ["timm-cpu-float32-1", "timm-cpu-float32-2", "own-cpu-float32-1"]),
    ({"SUITES": "my/suite,b.toml"}, ["own-cpu-float32-1"]),
    ({"DEVICES": "cpu,cuda", "DTYPES": "amp float16"},
     ["timm-cpu-amp-1", "timm-cpu-float16-1", "timm-cuda-amp-1", "timm-cuda-float16-1"]),
    ({"DTYPES": "", "SHARDS": "2"}, ["timm-cpu-1", "timm-cpu-2"]),
    ({"SUITES": ""}, []),
])  # fmt: skip
def test_a_cell_for_each_suite_device_dtype_and_shard(more, names):
    cells = cells_of("measure", PARAMETERS | more, {})
    assert [cell["CELL"] for cell in cells] == names
    assert (
        len({cell["PERFDASH_NIGHTLY"] for cell in cells})
        == len({cell["STASH"] for cell in cells})
        == len(names)
    )
    assert all(cell["LABEL"] == f"perfdash-{cell['DEVICES']}" for cell in cells)


def test_what_a_cell_measures_and_where_it_leaves_it():
    cells = cells_of("measure", PARAMETERS | {"SUITES": "a.toml,timm,b.toml", "SHARDS": "2"}, {})
    assert [(cell["SUITES"], cell["SHARD"]) for cell in cells] == [
        ("timm", "1/2"), ("timm", "2/2"), ("a.toml,b.toml", ""),
    ]  # fmt: skip
    (line, *_) = as_lines(cells).splitlines()
    assert line.split("\t")[0] == "CELL=timm-cpu-float32-1"
    assert dict(word.split("=", 1) for word in line.split("\t")) == cells[0]
    folder = "night/cells/timm-cpu-float32-1"
    assert cells[0]["PERFDASH_NIGHTLY"] == folder
    assert (cells[0]["OUT"], cells[0]["FILES"]) == (f"{folder}/out", f"{folder}/**")
    assert (cells[0]["SECRETS"], cells[0]["PERFDASH_DB"]) == ("", f"{folder}/out/history.db")
    assert "PERFDASH_NO_HISTORY" not in cells[0], "such runs would stay out of the night's history, too"


@pytest.mark.parametrize(("stage", "more", "limits"), [
    ("measure", {}, ("660", "")),
    ("measure", {"CELL_MINUTES": "30"}, ("90", "")),
    ("confirm", {}, ("", "55")),
    ("confirm", {"CONFIRM_MINUTES": "0.5"}, ("", "10")),
    ("bisect", {}, ("", "270")),
    ("bisect", {"BISECT_HOURS": "1.5"}, ("", "120")),
])  # fmt: skip
def test_limits_of_jenkins_are_longer_than_those_of_the_scripts(stage, more, limits):
    (cell,) = cells_of(stage, PARAMETERS | more, {"timm-cpu-float32-1": "xeon"})
    assert (cell["MINUTES"], cell["TOTAL_MINUTES"]) == limits


def test_a_device_is_confirmed_where_it_was_measured():
    agents = {"timm-cuda-amp-1": "gpu", "own-cpu-amp-1": "xeon-2", "timm-cpu-amp-1": "xeon-1"}
    cells = cells_of("confirm", PARAMETERS, agents)
    assert [(cell["CELL"], cell["DEVICE"], cell["LABEL"]) for cell in cells] == [
        ("cpu", "cpu", "xeon-2"), ("cuda", "cuda", "gpu"),
    ]  # fmt: skip
    assert [(cell["JOB"], cell["STAGE"], cell["SECRETS"]) for cell in cells] == [
        ("perf-cpu", "confirm", "PERFDASH_DB"), ("perf-cuda", "confirm", "PERFDASH_DB"),
    ]  # fmt: skip
    assert cells[0]["FILES"] == "night/found-cpu/**, night/**/confirm.jsonl, night/out/bisections/**"
    assert cells_of("confirm", PARAMETERS, {}) == []
    assert cells_of("bisect", PARAMETERS | {"BISECT": "no"}, agents) == []
    names = [cell["STASH"] for stage in ("confirm", "bisect") for cell in cells_of(stage, PARAMETERS, agents)]
    assert len(set(names)) == 4


def test_as_json(tmp_path, monkeypatch, capsys):
    """With the agents' names that the cells have left."""
    (tmp_path / "cells/timm-cpu-float32-1").mkdir(parents=True)
    (tmp_path / "cells/timm-cpu-float32-1/agent").write_text("xeon\n")
    assert agents_of(tmp_path) == {"timm-cpu-float32-1": "xeon"}
    for name, value in (PARAMETERS | {"NIGHT": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    main(["confirm", "--json"])
    (cell,) = json.loads(capsys.readouterr().out)
    assert cell["LABEL"] == "xeon"
