"""One declaration makes a flag, a variable, keys of both kinds of TOML file, and a field of the job."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfdash import records
from perfdash.cli import app
from perfdash.errors import UsageError
from perfdash.records import Job, ProcessOptions, Specification, declared_options, job_from_json, to_json
from perfdash.run_options import run_options
from perfdash.runner.messages import options_of
from perfdash.settings import RunSettings, resolve
from perfdash.suites.case_selection import select
from perfdash.suites.suite_file import load_suite

# A value of each option of a case that is not its default.
VALUES = {
    "inputs": {"size": [3, 8, 8]}, "cosine": True, "check_accuracy": False, "loss": "mean",
    "optimizer": "adam", "new_tokens": 7, "cache": "static", "until_oom": True,
    "tf32": True,
    "sizes": (3, 5), "sizes_of": "sequence",
}  # fmt: skip

# A new option as it is declared in records.Specification. SCRIPT runs perfdash with that text in place.
NEW = """    sparsity: Annotated[
        float, Option("Share of weights that are zero.  [default: the suite's, or 0.5]", at_least=0)
    ] = 0.5
    until_oom"""
SCRIPT = """
import json, sys, types
from pathlib import Path
import perfdash
records = types.ModuleType("perfdash.records")
sys.modules["perfdash.records"] = perfdash.records = records
exec(compile(Path(sys.argv[1]).read_text(), sys.argv[1], "exec"), records.__dict__)
from typer.testing import CliRunner
from perfdash.cli import app
from perfdash.settings import resolve
from perfdash.suites.case_selection import select
from perfdash.suites.suite_file import load_suite

def job(environ, **flags):
    settings = resolve({"models": ["m"], **flags}, environ=environ, folder=Path(sys.argv[2]))[0]
    planned = select([load_suite(sys.argv[2] + "/mine.toml")], settings)[0]
    return records.job_from_json(records.to_json(planned.job())).sparsity

Path(sys.argv[2], "empty").mkdir()
print(json.dumps({
    "help": CliRunner().invoke(app, ["run", "--help"], terminal_width=200).output,
    "suite": job({}),
    "variable": job({"PERFDASH_SPARSITY": "0.25"}),
    "flag": job({"PERFDASH_SPARSITY": "0.25"}, sparsity=0.0),
    "refused": CliRunner().invoke(app, ["run", "--sparsity", "-1"]).exception.args[0],
}))
Path(sys.argv[2], "perfdash.toml").write_text("[run]\\nsparsity = 0.75\\n")
print(json.dumps(job({})))
"""
SUITE = """
name = "mine"
loader = "timm"
[[models]]
name = "m"
"""


@pytest.fixture
def suite(tmp_path):
    """A function from a model's keys to its job."""

    def job(keys: str, **flags):
        path = tmp_path / "mine.toml"
        path.write_text(SUITE + keys)
        settings = RunSettings(models=("m",), **flags)
        return job_from_json(to_json(select([load_suite(str(path))], settings)[0].job()))

    return job


def test_every_option_of_a_case_is_tried_here():
    assert set(VALUES) == set(declared_options(Specification))


@pytest.mark.parametrize("name", declared_options(Specification))
def test_a_key_of_a_suite_reaches_the_worker(name, suite):
    training = declared_options(Specification)[name][1].training
    value = json.dumps(VALUES[name]).replace(":", " =").replace('"size"', "size")
    keys = f"training = {{ {name} = {value} }}" if training else f"{name} = {value}"
    job = suite(keys, scenario="training")
    assert getattr(job, name) == VALUES[name] != getattr(suite("", scenario="training"), name)
    if training:
        with pytest.raises(UsageError, match=f"unknown key 'models.0.{name}'"):
            suite(f"{name} = {value}")


@pytest.mark.parametrize("name", [n for n, (_, o) in declared_options(Specification).items() if o.help])
def test_a_setting_reaches_the_worker_before_the_suite(name, suite):
    scenario = {"scenario": "sizes"} if name.startswith("sizes") else {}
    assert getattr(suite("", **{name: VALUES[name]}, **scenario), name) == VALUES[name]


def test_sizes_are_refused_where_they_cannot_be(suite):
    for name in ("sizes", "sizes_of"):
        with pytest.raises(UsageError, match="--sizes and --sizes-of are for --scenario sizes"):
            suite("", **{name: VALUES[name]})
    for sizes in ((3,), (3, 3), (0, 2)):
        with pytest.raises(UsageError, match="give two or more different sizes of at least 1"):
            suite("", sizes=sizes, scenario="sizes")
    with pytest.raises(UsageError, match="--instances counts samples of one size"):
        suite("", scenario="sizes", instances="1x1")
    for allocator in ("jemalloc", "tcmalloc"):
        with pytest.raises(UsageError, match=f"--allocator {allocator} is for the timing of one artefact"):
            suite("", scenario="sizes", allocator=allocator)
        assert suite("", allocator=allocator)
    assert suite("", scenario="sizes", allocator="default").sizes == (2, 4, 8)
    assert suite("", scenario="sizes").sizes == (2, 4, 8)


def test_every_option_is_a_flag_with_its_help():
    shown = " ".join(CliRunner().invoke(app, ["run", "--help"], terminal_width=200).output.split())
    for name, (_, option, _) in run_options().items():
        assert f"--{name.replace('_', '-')} " in shown
        assert " ".join(option.help.split()) in shown


def test_every_option_is_a_setting():
    assert list(RunSettings.model_fields) == list(run_options())
    assert resolve({}, environ={}, folder=Path("/nonexistent"))[0] == RunSettings()


def test_the_fields_of_a_job_keep_their_defaults_without_a_flag(suite):
    for name in declared_options(Job):
        field = Job.__dataclass_fields__[name]
        default = getattr(suite(""), name)
        assert default == (field.default_factory() if callable(field.default_factory) else field.default)


@pytest.mark.slow
def test_a_new_option_is_one_line(tmp_path):
    text = Path(records.__file__).read_text()
    assert text.count("    until_oom") == 1
    (tmp_path / "records.py").write_text(text.replace("    until_oom", NEW))
    (tmp_path / "mine.toml").write_text(SUITE + "sparsity = 0.125")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "records.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(records.__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    first, from_file = map(json.loads, done.stdout.splitlines())
    assert "  --sparsity " in first["help"]
    assert "Share of weights that are zero." in first["help"]
    assert (first["suite"], first["variable"], first["flag"], from_file) == (0.125, 0.25, 0.0, 0.75)
    assert first["refused"] == "--sparsity: -1.0 must be at least 0"


def test_an_interpreter_that_is_given_is_the_build_that_is_measured():
    own, other = RunSettings(), RunSettings(python="/other/bin/python")
    assert [options_of(settings).of_build for settings in (own, other)] == [False, True]
    assert options_of(own, of_build=True).of_build


def test_options_of_the_process_reach_the_worker_by_their_names():
    by_name = {"allocator": "default", "bind_memory": True}
    options = options_of(RunSettings(**by_name))
    assert {name: getattr(options, name) for name in by_name} == by_name
    assert {field.name for field in fields(ProcessOptions)} <= {field.name for field in fields(Job)}
