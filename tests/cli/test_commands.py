"""The command as a user types it: what it prints, its exit codes, wrong input."""

import json
import os
import zipfile

import pytest

from perfdash.runner.run_journal import read_results


def test_list(command):
    ran = command("list")
    assert ran.code == 0
    assert "timm" in ran.out
    ran = command("list", "timm")
    assert "mobilenetv3_large_100" in ran.out
    (suite,) = json.loads(command("list", "timm", "--json").out)
    assert suite["source"].endswith("timm.toml")
    keys = {"name", "loader", "target", "parameters", "batch_size", "batch_sizes", "quick", "skip"}
    assert keys == set(suite["models"][0])


def test_list_has_the_batch_sizes_of_the_suites_scenario(command, tmp_path):
    (tmp_path / "mine.toml").write_text("""
name = "mine"
loader = "timm"
scenario = "training"
[defaults]
training = { batch_size = 8, skip = { reason = "untrainable", devices = ["cuda"] } }
[[models]]
name = "one"
[[models]]
name = "many"
batch_sizes = [1, 2, 64]
""")
    lines = [line.split() for line in command("list", "mine.toml").out.splitlines()]
    assert [line[:4] for line in lines[1:]] == [["one", "8", "8", "8"], ["many", "1,2,64", "timm", "skipped"]]
    models = json.loads(command("list", "mine.toml", "--json").out)[0]["models"]
    assert [model["batch_sizes"] for model in models] == [None, [1, 2, 64]]
    assert models[0]["batch_size"] == {"one_thread": 8, "cpu": 8, "cuda": 8}


def test_config_shows_origins(command, tmp_path):
    (tmp_path / "perfdash.toml").write_text("[run]\nthreads = 2\n")
    values = json.loads(
        command("config", "--json", env={"PERFDASH_DEVICE": "cuda", "PERFDASH_ENV": "HF_TOKEN=s3cret"}).out
    )
    assert values["threads"] == {"value": 2, "origin": "perfdash.toml [run] threads"}
    assert values["device"] == {"value": "cuda", "origin": "PERFDASH_DEVICE"}
    assert values["env"]["value"] == {"HF_TOKEN": "***"}


@pytest.mark.slow
def test_doctor(command):
    ran = command("doctor")
    assert ran.code == 0, ran.err
    assert "torchvision" in ran.out
    ran = command("doctor", "--python", "/bin/false")
    assert ran.code == 3


def test_version(command):
    assert command("--version").out.startswith("perfdash 0.")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run"], 2, ["--suite NAME", "--model file.py:function"]),
        (["run", "--suite", "tim"], 2, ["'tim'", "did you mean timm"]),
        (["run", "--suite", "nowhere.toml"], 2, ["nowhere.toml", "No such file"]),
        (["run", "--suite", "timm", "--models", "mobilnet"], 2, ["matches no model", "did you mean mobile"]),
        (["run", "--suite", "timm", "--backend", "inductr"], 2, ["--backend", "'inductr'", "inductor"]),
        (["run", "--suite", "timm", "--dtype", "float8"], 2, ["--dtype", "'float8'"]),
        (["run", "--suite", "timm", "--device", "tpu"], 2, ["--device", "'tpu'"]),
        (["run", "--suite", "timm", "--threads", "4096"], 2, ["--threads 4096", "cores"]),
        (["run", "--suite", "timm", "--threads", "one"], 2, ["--threads", "whole number"]),
        (["run", "--suite", "timm", "--cores", "9999"], 2, ["9999"]),
        (["run", "--suite", "timm", "--out", "/proc/nowhere"], 2, ["--out /proc/nowhere"]),
        (["run", "--suite", "timm", "--python", "/nowhere"], 3, ["/nowhere", "--python"]),
        (["run", "--suite", "timm", "--sweet"], 2, ["--sweet"]),
        (["run", "--model", "nowhere.py:f"], 2, ["nowhere.py"]),
        (["run", "--suite", "timm", "--shard", "5/4"], 2, ["--shard 5/4", "from 1 to 4"]),
        (["run", "--suite", "timm", "--shard", "1/999"], 2, ["--shard 1/999", "only", "cases"]),
        (["run", "--suite", "timm", "--jobs", "4096"], 2, ["--jobs 4096", "has room for"]),
        (["run", "--suite", "timm", "--jobs", "many"], 2, ["--jobs", "'many'", "give 1 or more, or auto"]),
        (["run", "--suite", "timm", "--phase-timeout", "cooking=3"], 2, ["--phase-timeout", "cooking"]),
        (["run", "--suite", "timm", "--memory-limit", "0"], 2, ["--memory-limit"]),
        (["run", "--suite", "timm", "--costs", "nowhere"], 2, ["no run 'nowhere'"]),
        (["run", "--suite", "timm", "--retry", "crash"], 2, ["--retry needs --resume"]),
        (["run", "--resume", "last"], 2, ["no run 'last'"]),
        (["run", "--suite", "timm", "--executor", "dask"], 2, ["needs --scheduler"]),
        (["run", "--suite", "timm", "--scheduler", "tcp://127.0.0.1:1"], 2, ["needs --executor dask"]),
        (["run", "--suite", "timm", "--executor", "dask", "--scheduler", "x://"], 2, ["x://", "tcp://host"]),
        (["merge-shards", "nowhere", "nothing"], 2, ["no run 'nowhere'"]),
        (["show"], 2, ["no run 'last'"]),
        (["list", "tim"], 2, ["did you mean timm"]),
        (["dance"], 2, ["dance"]),
    ],
)
def test_wrong_input_is_one_clear_message(command, arguments, code, words):
    ran = command(*arguments)
    assert ran.code == code, ran.err
    for word in words:
        assert word in ran.err
    assert "Traceback" not in ran.err
    assert not ran.out or arguments[0] != "run" or "Saved" not in ran.out


@pytest.mark.slow
def test_device_and_options_that_this_torch_has_not(command):
    import torch

    if not torch.cuda.is_available():
        ran = command("run", "--suite", "timm", "--models", "lcnet_050", "--device", "cuda")
        assert (ran.code, "sees no GPU" in ran.err) == (2, True)
    ran = command("run", "--suite", "timm", "--models", "lcnet_050", "--inductor-config", "freezng=1")
    assert (ran.code, "no configuration key 'freezng'" in ran.err) == (2, True)
    ran = command("run", "--suite", "timm", "--models", "lcnet_050", "--compile-mode", "fastest")
    assert (ran.code, "no mode 'fastest'" in ran.err) == (2, True)


def test_debug_shows_the_traceback(command):
    assert "Traceback" in command("--debug", "run", "--suite", "tim").err


MODEL = """
import torch

def linear(batch_size):
    return torch.nn.Linear(64, 64), (torch.randn(batch_size, 64),)

def keyword(batch_size):
    class Two(torch.nn.Module):
        def forward(self, a, b):
            return {"sum": a + b, "product": a * b}
    return Two(), {"a": torch.ones(batch_size), "b": torch.ones(batch_size)}

def wide(batch_size):
    return torch.nn.Linear(1024, 1024), (torch.randn(256, 1024),)

def random(batch_size):
    class Random(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(x, training=True)
    return Random(), (torch.randn(1000),)

def broken(batch_size):
    class Broken(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("a line\\nand another")
    return Broken(), (torch.randn(2),)

def typo(batch_size):
    return torch.nn.Linaer(64, 64), (torch.randn(batch_size, 64),)

def wrong(batch_size):
    return torch.nn.Linear(64, 64)

def none():
    return wrong(1)
"""


@pytest.mark.slow
def test_a_model_of_ones_own(command, tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    ran = command(
        "run", "--model", "mine.py:linear", "--model", "mine.py:keyword", "--backend", "aot_eager",
        "--batch-size", "4", "--env", "HF_TOKEN=s3cret", "--env", "OMP_PROC_BIND=false",
        "--fail-on", "accuracy,failure",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert set(ran.results) == {"mine.linear", "mine.keyword"}
    for result in ran.results.values():
        assert result.status.value == "pass"
        assert result.case.batch_size == 4
        assert result.conditions["core"] == [max(os.sched_getaffinity(0))]
        assert result.eager_ms.n == len(result.eager_ms.samples) > 20
        assert result.conditions["processes"] >= 2
    assert "Saved in runs" in ran.out
    for path in ran.folder.rglob("*"):
        if zipfile.is_zipfile(path):  # the model's file and the generated code
            with zipfile.ZipFile(path) as parts:
                assert not any(b"s3cret" in parts.read(name) for name in parts.namelist())
        elif path.is_file():
            assert b"s3cret" not in path.read_bytes()
    info = ran.info
    assert info.state == "done"
    assert info.environment["worker"]["torch_git_version"]
    assert info.configuration["env"]["HF_TOKEN"] == "***"

    for arguments in (["show"], ["show", "last", "--phases"], ["show", ran.folder.name, "--model", "*key*"]):
        shown = command(*arguments)
        assert shown.code == 0
        assert "mine.keyword" in shown.out
    assert command("show", "last", "--model", "nothing").code == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("typo", ["mine.py:typo (line 29): AttributeError", "Linaer"]),
        ("wrong", ["must return (module, inputs)", "It returned an object of type Linear"]),
        ("none", ["takes 0 positional arguments", "it is called with the batch size"]),
        ("missing", ["mine.py:missing has no function 'missing'"]),
    ],
)
def test_a_slip_in_ones_own_model_is_reported_before_anything_is_measured(command, tmp_path, function, words):
    (tmp_path / "mine.py").write_text(MODEL)
    ran = command("run", "--model", "mine.py:linear", "--model", f"mine.py:{function}")
    assert ran.code == 2, ran.out
    for word in [f"--model {tmp_path}/mine.py:{function}", *words]:
        assert word in ran.err
    assert "null" not in ran.err
    assert "Traceback" not in ran.err
    assert not list((tmp_path / "runs").glob("*_*"))


@pytest.mark.slow
@pytest.mark.machine
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_threads(command, tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    arguments = ["run", "--model", "mine.py:wide", "--threads", "2", "--timeout", "120", "--out"]
    words = ["--backend", "aot-eager", "--dtype", "float32,bfloat16,amp", "--processes", "1"]
    three = command(*arguments, "three", *words)
    one = command(*arguments, "one", "--processes", "2")  # inductor
    assert (three.code, one.code) == (0, 0), three.err + one.err
    results = [
        result for name in ("three", "one") for result in read_results(next((tmp_path / name).glob("*_*")))
    ]
    assert [r.case.dtype for r in results] == ["float32", "bfloat16", "amp", "float32"]
    for result in results:
        assert result.status.value == "pass", result.accuracy
        assert len(result.conditions["core"]) == result.conditions["torch_threads"] == 2
        assert result.capture["graphs"] == 1
    assert [result.conditions["processes"] for result in results] == [1, 1, 1, 2]


@pytest.mark.slow
def test_a_random_model_is_checked_with_the_random_numbers_of_eager(command, tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    ran = command("run", "--model", "mine.py:random", "--processes", "1")
    (result,) = ran.results.values()
    assert result.status.value == "pass"
    assert "random numbers of eager" in result.accuracy["detail"]


@pytest.mark.slow
def test_gates(command, tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    ran = command("run", "--model", "mine.py:broken", "--backend", "eager", "--fail-on", "failure")
    assert ran.code == 1
    assert "--fail-on failure: 1 of 1: own/mine.broken bs 1" in ran.err
    assert ran.results["mine.broken"].error.message == "a line\nand another"
