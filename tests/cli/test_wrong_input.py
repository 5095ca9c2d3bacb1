"""Wrong input of every kind: each message says what is wrong, where, and what to do, in one place."""

from __future__ import annotations

import json

import pytest

from perfdash.records import RunInfo, to_json

FILES = {
    "net.py": "def make(batch_size):\n    return None\n",
    "bad.toml": 'loader = "timm"\n[[models]\n',
    "noname.toml": 'title = "x"\n',
    "unknown.toml": 'name = "u"\nloader = "timm"\nmodle = 3\n[[models]]\nname = "x"\n',
    "kind.toml": 'name = "k"\nloader = "timm"\n[[models]]\nname = "resnet18"\nbatch_size = "many"\n',
    "loader.toml": 'name = "l"\nloader = "tim"\n[[models]]\nname = "resnet18"\n',
    "taken.toml": 'name = "timm"\nloader = "timm"\n[[models]]\nname = "resnet18"\n',
    "setting.toml": 'compile_moed = "max-autotune"\n',
    "series.csv": "time,value\n1,2\n2,x\n",
}
OWN = ["run", "--model", "net.py:make"]
# (what is typed, what the message contains)
TABLE = [
    # Commands and options
    (["rnu"], ["no command 'rnu' (did you mean run?)", "`perfdash --help`"]),
    (["history", "improt"], ["no command 'improt'", "did you mean import", "`perfdash history --help`"]),
    (["run", "--modle", "net.py:make"], ["no option --modle (did you mean --model", "`perfdash run --help`"]),
    (["config", "--jsn"], ["no option --jsn (did you mean --json"]),
    (["post"], ["Missing option '--repo'", "`perfdash post --help`"]),
    (["code", "last"], ["Missing argument 'model'", "`perfdash code --help`"]),
    (["serve", "--port", "99999"], ["--port", "65535"]),
    # Models and suites
    (["run"], ["nothing to measure", "--suite NAME", "--model file.py:function"]),
    (["run", "--model", "net.py"], ["--model 'net.py'", "file.py:function"]),
    (["run", "--model", "nothing.py:make"], ["--model nothing.py:make", "there is no file", "nothing.py"]),
    (["run", "--suite", "tim"], ["no suite named 'tim' (did you mean timm?)", "ending in .toml"]),
    (["list", "huginface"], ["no suite named 'huginface'", "did you mean huggingface"]),
    (["run", "--suite", "own.toml"], ["--suite own.toml", "No such file", "own.toml cannot be read"]),
    (["run", "--suite", "bad.toml"], ["bad.toml is not valid TOML", "line 2"]),
    (["run", "--suite", "noname.toml"], ["noname.toml: key 'name' is missing"]),
    (["run", "--suite", "unknown.toml"], ["unknown key 'modle'", "did you mean models"]),
    (["run", "--suite", "kind.toml"], ["kind.toml: key 'models.0.batch_size", "resnet18", "'many' is not a"]),
    (["run", "--suite", "loader.toml"], ["no loader named 'tim' (did you mean timm"]),
    (["run", "--suite", "taken.toml"], ["taken.toml: key 'name': timm is a name of perfdash's own"]),
    (["run", "--suite", "timm", "--models", "resnt18"], ["'resnt18'", "did you mean", "list timm"]),
    # Values of options
    ([*OWN, "--dtype", "fp16"], ["--dtype: 'fp16' is not one of float32, ", "(did you mean float16"]),
    ([*OWN, "--dtype", "bf16"], ["--dtype: 'bf16' is not one of", "(did you mean bfloat16"]),
    ([*OWN, "--device", "gpu"], ["--device: 'gpu' is not one of cpu, cuda (did you mean cuda"]),
    ([*OWN, "--backend", "inductr"], ["no back end named 'inductr' (did you mean inductor", "mine.py"]),
    ([*OWN, "--backend", "mine.py"], ["--backend mine.py", "there is no back end in", "mine.py"]),
    ([*OWN, "--scenario", "infer"], ["--scenario: 'infer' is not one of", "did you mean inference"]),
    ([*OWN, "--batch-size", "many"], ["--batch-size: 'many' is not a whole number"]),
    ([*OWN, "--batch-size", "0"], ["--batch-size: 0 is no batch size: give 1 or more"]),
    ([*OWN, "--threads", "0"], ["--threads: '0' must be at least 1"]),
    ([*OWN, "--cores", "a-b"], ["--cores 'a-b'", "0-3,8"]),
    ([*OWN, "--cores", "9999"], ["--cores: core 9999 is not available", "there are:"]),
    ([*OWN, "--jobs", "none"], ["--jobs: 'none'", "give 1 or more, or auto"]),
    ([*OWN, "--margin", "0"], ["--margin: 0.0 must be more than 0"]),
    ([*OWN, "--timeout", "-1"], ["--timeout: -1.0 must be more than 0"]),
    ([*OWN, "--memory-limit", "inf"], ["--memory-limit: inf is not a finite number"]),
    ([*OWN, "--phase-timeout", "compil=3"], ["'compil' is not one of", "did you mean compile"]),
    ([*OWN, "--phase-timeout", "compile"], ["'compile' is not KEY=VALUE", "compile=600"]),
    ([*OWN, "--env", "FOO"], ["--env: 'FOO' is not KEY=VALUE", "OMP_DYNAMIC=FALSE"]),
    ([*OWN, "--inductor-config", "freezing"], ["'freezing' is not KEY=VALUE", "freezing=true"]),
    ([*OWN, "--configuration", "dynamc"], ["no configuration named 'dynamc' (did you mean dynamic"]),
    ([*OWN, "--configuration", "setting.toml"], ["unknown key 'compile_moed'", "did you mean compile_mode"]),
    ([*OWN, "--configuration", "none.toml"], ["--configuration none.toml", "cannot be read", "No such file"]),
    ([*OWN, "--weights", "nothing.pt"], ["--weights nothing.pt: no such file", "random, pretrained"]),
    ([*OWN, "--data", "nothing.csv"], ["--data", "nothing.csv", "no such folder or file"]),
    ([*OWN, "--wait", "soon"], ["--wait: 'soon' is no time", "90s, 30m or 2h"]),
    ([*OWN, "--shard", "3/2"], ["--shard 3/2", "from 1 to 2"]),
    ([*OWN, "--fail-on", "regresion"], ["'regresion' is not one of", "did you mean regression"]),
    ([*OWN, "--allocator", "jemaloc"], ["'jemaloc' is not one of", "did you mean jemalloc"]),
    ([*OWN, "--junit", "/nowhere/x.xml"], ["--junit /nowhere/x.xml", "there is no folder /nowhere"]),
    # Runs and the history
    (["run", "--resume", "last"], ["no run 'last' in runs", "`perfdash run` makes one"]),
    (["show", "nothing"], ["no run 'nothing' in runs", "--out names another folder"]),
    (["run", "--retry", "oom"], ["--retry needs --resume RUN"]),
    (["compare", "a", "b", "--format", "jsn"], ["--format: 'jsn' is not one of", "did you mean json"]),
    (["report", "--format", "htm"], ["--format: 'htm' is not one of", "did you mean html"]),
    (["plot", "--kind", "speedu"], ["--kind: 'speedu' is not one of", "did you mean speedup"]),
    (["post", "--repo", "a", "--issue", "1"], ["--repo 'a' is not OWNER/NAME", "pytorch/pytorch"]),
    (["notify"], ["--mail-to ADDRESS", "--webhook", "--dry-run"]),
    (["regressions"], ["there is no history runs/history.db yet", "`perfdash run`"]),
    (["history", "prune", "--before", "soon"], ["--before 'soon'", "2026-11-21"]),
    (["history", "export", "a.xyz"], ["'xyz' is not one of parquet, csv, json"]),
    (["history", "import", "nothing"], ["nothing: cannot be read", "check path"]),
    (["detect", "series.csv", "--column", "valu"], ["no column 'valu' (did you mean value"]),
    (["detect", "series.csv", "--column", "value"], ["series.csv, line 3", "'x' is no finite number"]),
    (["nightly", "begin", "--every", "soon"], ["--every 'soon'", "24h, 7d or 90m"]),
    (["nightly", "end", "--state", "okay"], ["--state: 'okay' is not one of ok, partial, failed", "mean ok"]),
    (["bisect", "--recipe", "comand", "--good", "a", "--bad", "b"], ["'comand' (did you mean command"]),
    (["site", "--to", "net.py"], ["--to net.py: it is a file; give a folder"]),
]  # fmt: skip


@pytest.fixture
def files(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)


def test_the_table_is_long():
    assert len(TABLE) >= 45


@pytest.mark.parametrize(("words", "parts"), TABLE, ids=[" ".join(words) for words, _ in TABLE])
def test_message(called, files, words, parts):
    result = called(*words)
    assert (result.code, result.out) == (2, "")
    for part in parts:
        assert part in result.err
    assert result.err.startswith("perfdash: ")
    for foreign in ("Traceback", "Input should be", "Field required", "Error:", "Usage:"):
        assert foreign not in result.err


def test_a_wrong_key_of_the_settings_file(called, tmp_path):
    (tmp_path / "perfdash.toml").write_text("[run]\nthread = 2\n")
    result = called("config")
    assert result.code == 2
    assert "perfdash.toml: [run] has no key 'thread' (did you mean threads" in result.err
    (tmp_path / "perfdash.toml").write_text('[run]\ndtype = "half"\n')
    result = called("config")
    assert "perfdash.toml [run] dtype: 'half' is not one of" in result.err
    assert "did you mean float16" in result.err


def test_a_wrong_variable(called):
    result = called("config", env={"PERFDASH_DEVICE": "gpu"})
    assert (result.code, "PERFDASH_DEVICE: 'gpu' is not one of cpu, cuda" in result.err) == (2, True)


def test_a_resume_with_other_settings(called, tmp_path):
    """One line an option, not one a model, and what to do."""
    folder = tmp_path / "runs" / "2026-11-21T00-00-00Z_host"
    folder.mkdir(parents=True)
    configuration = {"suite": ["timm"], "threads": 1, "dtype": []}
    info = RunInfo("r", "2026-11-21T00:00:00Z", "h", ["perfdash"], configuration, {}, 1, "0")
    (folder / "run.json").write_text(json.dumps(to_json(info)))
    result = called("run", "--resume", "last", "--dtype", "bf16")
    assert (result.code, "did you mean bfloat16" in result.err) == (2, True)
    result = called("run", "--resume", "last", "--threads", "2", "--dtype", "bfloat16")
    assert result.code == 2
    assert result.err.splitlines() == [
        "perfdash: Cannot resume r: its settings differ from this command (then | now):",
        "  --dtype: none | bfloat16",
        "  --threads: 1 | 2",
        "Leave out --dtype, --threads, or start a new run without --resume.",
    ]
