"""A command of the user's in a build: its environment, and what of it is written down."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdash.bisection import workbench
from perfdash.bisection.environments import BuiltEnvironment
from perfdash.bisection.measurers import CommandMeasurer, command_environment
from perfdash.bisection.metrics import METRICS, OF_COMMAND, reading_of
from perfdash.bisection.recipes import load_recipes
from perfdash.bisection.request import BisectionRequest
from perfdash.bisection.sources import BuildContext, Revision
from perfdash.bisection.workbench import Setup
from perfdash.detect.findings import NOTHING_CAPTURED
from perfdash.errors import MachineError
from perfdash.records import Case, Result, Status
from perfdash.settings import RunSettings
from tests.runner.planned import PLANNED


@pytest.fixture
def built(tmp_path):
    revision = Revision("c" * 40, "c" * 10, "a change")
    return BuiltEnvironment(
        revision, Path(sys.executable), (tmp_path / "build",), {}, "k", tmp_path, tmp_path, 0.0, False
    )


def test_a_secret_in_the_command_is_given_and_not_written_down(built, tmp_path):
    command = ["env", "DB_PASSWORD=hunter2", "sh", "-c", 'test "$DB_PASSWORD" = hunter2 && exit 130']
    log = tmp_path / "log"
    with pytest.raises(MachineError, match="exit code 130") as raised:
        CommandMeasurer(command, OF_COMMAND["exit-code"]).measure(built, log)
    for text in (str(raised.value), log.read_text()):
        assert "DB_PASSWORD=***" in text
        assert "DB_PASSWORD=hunter2" not in text


def test_a_word_with_blanks_and_quotes_comes_through(built, tmp_path):
    measurer = CommandMeasurer(["printf", "%s\n", "it's $HOME\n7"], OF_COMMAND["stdout"])
    assert measurer.measure(built, tmp_path / "log")[0].value == 7


def test_a_command_that_prints_its_environment_tells_no_secret(built, tmp_path, monkeypatch):
    for name in ("GITHUB_TOKEN", "PERFDASH_DB", "HF_TOKEN"):
        monkeypatch.setenv(name, "s3cret")
    log = tmp_path / "log"
    measurer = CommandMeasurer(["sh", "-c", "env; echo 7"], OF_COMMAND["stdout"])
    assert measurer.measure(built, log)[0].value == 7
    assert "PERFDASH_REVISION=" in log.read_text()
    assert "s3cret" not in log.read_text()


def test_a_command_gets_no_password_of_pip(built, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "https://u:s3cret@h/simple")
    monkeypatch.setenv("UV_PUBLISH_TOKEN", "s3cret")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    environment = command_environment(built, {"MY_TOKEN": "given"})
    assert not {"PIP_INDEX_URL", "UV_PUBLISH_TOKEN"} & set(environment)
    assert (environment["PIP_NO_INDEX"], environment["MY_TOKEN"]) == ("1", "given")


def test_of_pythonpath_the_build_comes_first(built, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/shell")
    environment = command_environment(built, {"PYTHONPATH": "/mine", "A": "b"})
    assert environment["PYTHONPATH"] == f"{tmp_path / 'build'}:/shell:/mine"
    assert environment["A"] == "b"


def setup_of(device, cores):
    planned = replace(PLANNED, loader="timm", target="resnet18")
    request = BisectionRequest("good", "bad", "pypi:timm")
    settings = RunSettings(device=device, cores=cores)
    recipes, context = load_recipes("pypi:timm"), BuildContext(Path(sys.executable))
    return Setup(request, recipes, METRICS["compile"], settings, planned, None, (0,), context)


def test_a_case_on_a_gpu_is_compiled_on_the_spare_cores(monkeypatch):
    monkeypatch.setattr(workbench, "gpus_of", lambda settings: [])
    made = []

    def builds(cores, options, processes, gpu, compile_cores):
        made.append(compile_cores)
        return SimpleNamespace(stop=None)

    monkeypatch.setattr(workbench, "AlternatingBuilds", builds)
    for device, cores in (("cpu", "0-3"), ("cuda", "0-3"), ("cuda", "0")):
        setup_of(device, cores).measurer()
    assert made == [(), (0, 1, 2, 3), ()]


def test_builds_compiled_on_other_cores_are_not_compared():
    digests = [setup_of(*words).harness() for words in (("cuda", "0-3"), ("cuda", "0-2"), ("cuda", "0,4-6"))]
    assert digests[0] != digests[1]
    assert digests[0] == digests[2]


def test_an_edited_file_of_a_torchbench_model_is_another_harness(tmp_path):
    model = tmp_path / "torchbenchmark" / "models" / "dlrm" / "net.py"
    model.parent.mkdir(parents=True)
    (tmp_path / "torchbenchmark" / "__init__.py").write_text("")
    setup = setup_of("cuda", "0")
    case = replace(PLANNED, loader="torchbench", target="dlrm", config={"checkout": str(tmp_path)})
    digests = []
    for text in ("width = 8", "width = 4096", "width = 8"):
        model.write_text(text)
        digests.append(replace(setup, planned=case).harness())
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize(
    ("status", "backend", "capture", "word"),
    [
        (Status.PASS, "inductor", {"calls_captured": 12, "graphs": 1}, "pass"),
        (Status.PASS, "inductor", {"calls_captured": 0, "graphs": 0}, NOTHING_CAPTURED),
        (Status.PASS, "onnxruntime", {}, "pass"),
        (Status.PASS, "eager", {"calls_captured": 0}, "pass"),
        (Status.FAIL_ACCURACY, "inductor", {"calls_captured": 0}, "fail_accuracy"),
    ],
)
def test_the_status_of_a_pass_without_captured_calls_is_that_of_the_nights_alert(
    status, backend, capture, word
):
    case = Case("timm", "resnet18", backend=backend)
    result = Result(case, "2026-11-01T00:00:00Z", 1.0, status, capture=capture)
    assert reading_of(METRICS["status"], result).status == word
    assert reading_of(METRICS["compile"], result).status == str(status)
