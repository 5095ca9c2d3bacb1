import json
import math

import pytest

from perfdash.errors import UsageError
from perfdash.files import dumps
from perfdash.settings import RunSettings, resolve, shown


def test_precedence_and_origins(tmp_path):
    (tmp_path / "perfdash.toml").write_text('[run]\nthreads = 2\ndevice = "cuda"\nsuite = "timm"\n')
    environ = {"PERFDASH_THREADS": "3", "PERFDASH_BACKEND": "eager,inductor"}
    settings, origins = resolve({"threads": 4, "models": ["a,b", "c"], "quick": False}, environ, tmp_path)
    assert settings.threads == 4
    assert settings.device == "cuda"
    assert settings.suite == ("timm",)
    assert settings.backend == ("eager", "inductor")
    assert settings.models == ("a", "b", "c")
    assert origins["threads"] == "--threads"
    assert origins["backend"] == "PERFDASH_BACKEND"
    assert origins["device"] == "perfdash.toml [run] device"
    assert origins["dtype"] == origins["quick"] == "default"


def test_a_model_of_the_command_line_replaces_the_suites_of_variable_and_file(tmp_path):
    """The model alone is meant; a night's suites have runs of their own."""
    (tmp_path / "perfdash.toml").write_text('[run]\nsuite = "huggingface"\nmodels = "Bert*"\n')
    for environ in ({}, {"PERFDASH_SUITE": "timm"}):
        settings, origins = resolve({"model": ["net.py:make"]}, environ, tmp_path)
        assert (settings.suite, settings.models, origins["suite"]) == ((), (), "default")
        both, _ = resolve({"model": ["net.py:make"], "suite": ["techniques"]}, environ, tmp_path)
        assert (both.suite, both.models) == (("techniques",), ("Bert*",))


def test_tables(tmp_path):
    flags = {"env": ["A=1", "B=x=y"], "inductor_config": ["freezing=True", "max_autotune=false", "x.y=3"]}
    settings, _ = resolve(flags, {}, tmp_path)
    assert settings.env == {"A": "1", "B": "x=y"}
    assert settings.inductor_config == {"freezing": True, "max_autotune": False, "x.y": 3}


@pytest.mark.parametrize(
    ("flags", "environ", "file", "words"),
    [
        ({"threads": 0}, {}, "", ["--threads", "0"]),
        ({"processes": 0}, {}, "", ["--processes", "0"]),
        ({"timeout": 0.0}, {}, "", ["--timeout", "0"]),
        ({"device": "gpu"}, {}, "", ["--device", "'gpu'", "cpu, cuda", "did you mean cuda"]),
        ({"dtype": ["fp32"]}, {}, "", ["--dtype", "'fp32'", "did you mean float32?"]),
        ({}, {"PERFDASH_THREADS": "many"}, "", ["PERFDASH_THREADS", "'many'"]),
        ({}, {}, "[run]\nthreads = 0\n", ["perfdash.toml [run] threads"]),
        ({}, {}, "[run]\nthread = 1\n", ["perfdash.toml", "'thread'", "threads"]),
        ({}, {}, "[runs]\n", ["perfdash.toml", "'runs'"]),
        ({}, {}, "[run\n", ["perfdash.toml", "line 1"]),
        ({"env": ["NOVALUE"]}, {}, "", ["--env", "KEY=VALUE"]),
        (
            {"inductor_config": ["freezing=1,cpp_wrapper=1"]},
            {},
            "",
            ["--inductor-config", "sets freezing and cpp_wrapper: give the option once for each"],
        ),
        ({"batch_size": ["0"]}, {}, "", ["--batch-size", "0 is no batch size: give 1 or more"]),
        ({"fail_on": ["weather"]}, {}, "", ["--fail-on", "'weather'"]),
    ],
)
def test_a_wrong_value_names_its_origin(tmp_path, flags, environ, file, words):
    (tmp_path / "perfdash.toml").write_text(file)
    with pytest.raises(UsageError) as caught:
        resolve(flags, environ, tmp_path)
    for word in words:
        assert word in str(caught.value)


def test_a_checkout_of_torchbench_has_a_table_of_its_own(tmp_path):
    (tmp_path / "perfdash.toml").write_text('[torchbench]\npath = "benchmark"\n[run]\nthreads = 2\n')
    settings, origins = resolve({}, {}, tmp_path)
    assert str(settings.torchbench) == "benchmark"
    assert origins["torchbench"] == "perfdash.toml [torchbench] path"
    (tmp_path / "perfdash.toml").write_text('[torchbench]\nfolder = "benchmark"\n')
    with pytest.raises(UsageError, match=r"\[torchbench\] has one key, path"):
        resolve({}, {}, tmp_path)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0), (7, 7.0)]
)
def test_a_wait_is_a_time(text, seconds):
    assert resolve({"wait": text}, environ={})[0].wait == seconds
    assert resolve({}, environ={})[0].wait is None


@pytest.mark.parametrize("text", ["soon", "2 days", "-3m", "1h30"])
def test_a_wait_that_is_no_time_is_refused(text):
    with pytest.raises(UsageError, match=r"--wait: .*like 90s, 30m or 2h"):
        resolve({"wait": text}, environ={})


@pytest.mark.parametrize("option", ["timeout", "phase_timeout", "hours"])
def test_a_time_limit_may_be_infinite(option):
    given, limit = ("compile=inf", {"compile": math.inf}) if option == "phase_timeout" else ("inf", math.inf)
    settings = resolve({option: given}, environ={})[0]
    recorded = json.loads(dumps(shown(settings)))
    assert getattr(settings, option) == getattr(RunSettings(**recorded), option) == limit, (
        "also of a resumed run"
    )
