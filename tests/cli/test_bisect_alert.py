"""`perfdash bisect --alert`: what the history says of model, metric and range, and what it learns."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

import perfdash
from perfdash import topology
from perfdash.bisection.alert_range import recipe_of_alert
from perfdash.bisection.completion import Typist, completed
from perfdash.bisection.request import (
    NOTES,
    WENT_BACK,
    complete_from_alert,
    in_shell_of_night,
    planned_case,
    refuse_other_files,
    run_settings,
)
from perfdash.detect.causes import gather_in_causes
from perfdash.errors import UsageError
from perfdash.history import alert_store, schema
from perfdash.history.store import open_store
from perfdash.report import reproduce
from perfdash.report.alert_text import what
from perfdash.runner import host
from perfdash.topology import PhysicalCore
from perfdash.worker.own_files import digest_of_text
from tests.cli.alert_histories import environment_said, history, recorded_facts, told_commits
from tests.history.made import with_worker
from tests.repositories import Repository

FLAGS = dict.fromkeys(
    ["alert", "recipe", "good", "bad", "metric", "suite", "model", "batch_size", "device", "dtype",
     "amp_dtype", "backend", "scenario", "dynamic", "threads", "allocator", "weights", "compile_mode", "env",
     "inductor_config", "torchbench", "db", "out"]
)  # fmt: skip


# With the options that only what is measured needs.
BISECT = FLAGS | dict.fromkeys(["cores", "python", "timeout", "processes", "no_history"])


def filled(flags, command):
    """As the command calls it."""
    return complete_from_alert(flags, command, reproduce, lambda evidence: what(evidence.alert))


def test_model_metric_and_range_come_from_the_alert(tmp_path):
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)])
    flags = {**FLAGS, "alert": 1, "recipe": "git", "db": db, "threads": 4}
    options = filled(flags, None)
    assert (options["good"], options["bad"]) == ("a" * 40, "b" * 40)
    assert (options["metric"], options["model"]) == ("backend", "resnet18")
    assert options["threads"] == 4  # what the user says comes first


def test_a_secret_of_that_night_is_asked_for_and_its_other_variables_stay(tmp_path):
    setting = {"env": {"API_TOKEN": "***", "FAST": "1"}}
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)], setting)
    flags = {**FLAGS, "alert": 1, "recipe": "git", "db": db}
    with pytest.raises(UsageError, match="give --env API_TOKEN="):
        filled(flags, None)
    options = filled({**flags, "env": ["API_TOKEN=x"]}, None)
    assert options["env"] == ["API_TOKEN=x", "FAST=1"]


def test_all_that_changes_the_number_is_as_it_was(tmp_path):
    config = {"freezing": False, "cpp.threads": 2, "triton.x": "y"}
    setting = {"allocator": "jemalloc", "compile_mode": "default", "inductor_config": config}
    case = {"dtype": "amp", "amp_dtype": "float16", "batch_size": 3, "threads": 2, "dynamic": True}
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)], setting, case)
    settings = run_settings(filled({**BISECT, "alert": 1, "recipe": "git", "db": db}, None), "backend")
    assert settings.inductor_config == config
    assert (settings.allocator, settings.compile_mode) == ("jemalloc", "default")
    assert (settings.dtype, settings.amp_dtype, settings.batch_size) == (("amp",), "float16", (3,))
    assert (settings.threads, settings.dynamic, settings.backend) == (2, True, ("inductor",))


def test_defaults_of_that_night_come_before_the_environment_of_today(tmp_path, monkeypatch):
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)])
    monkeypatch.setenv("PERFDASH_ALLOCATOR", "jemalloc")
    settings = run_settings(filled({**BISECT, "alert": 1, "recipe": "git", "db": db}, None), "backend")
    assert (settings.allocator, settings.weights) == ("steady", "random")
    of_today = {
        "AMP_DTYPE": "float16", "BIND_MEMORY": "1", "COMPILE_MODE": "max-autotune", "DYNAMIC": "1",
        "ENV": "ONEDNN_MAX_CPU_ISA=AVX2", "INDUCTOR_CONFIG": "freezing=true", "OPTIMIZER": "none",
        "CONFIGURATION": "default,freezing", "MODEL": "net.py:make",
    }  # fmt: skip
    for name, value in of_today.items():
        monkeypatch.setenv(f"PERFDASH_{name}", value)
    settings = run_settings(filled({**BISECT, "alert": 1, "recipe": "git", "db": db}, None), "backend")
    assert (settings.amp_dtype, settings.bind_memory, settings.compile_mode) == (None, False, None)
    assert (settings.dynamic, settings.env, settings.inductor_config) == (False, {}, {})
    assert (settings.optimizer, settings.configuration) == (None, ())
    assert (settings.suite, settings.model, settings.models) == (("timm",), (), ("resnet18",))


def test_typed_flags_come_before_the_night_and_today(tmp_path, monkeypatch):
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)])
    monkeypatch.setenv("PERFDASH_COMPILE_MODE", "default")
    typed = {"compile_mode": "max-autotune", "dynamic": True, "env": ["FAST=1"]}
    flags = filled({**BISECT, "alert": 1, "recipe": "git", "db": db, **typed}, None)
    settings = run_settings(flags, "backend")
    assert (settings.compile_mode, settings.dynamic, settings.env) == ("max-autotune", True, {"FAST": "1"})


def test_the_case_has_the_variables_of_the_nights_shell(tmp_path):
    """Also those of which the setting of a run knows nothing, such as TORCHINDUCTOR_FREEZING in a crontab."""
    setting = {"env": {"MKL_CBWR": "AVX2"}}
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)], setting)
    of_shell = {"MKL_CBWR": "SSE2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "4", "HF_HOME": "/gone"}
    recorded_facts(db, {"variables": of_shell})
    flags = filled({**BISECT, "alert": 1, "recipe": "git", "db": db}, None)
    own = run_settings(flags, "backend").env
    variables, notes = in_shell_of_night(own, flags, {"HF_HOME": "/here"})
    assert (own, variables) == ({"MKL_CBWR": "AVX2"}, {"ONEDNN_MAX_CPU_ISA": "AVX2"})
    assert notes == [
        "measured with variables of the shell of 2026-11-02T01-00-00Z_farm: ONEDNN_MAX_CPU_ISA=AVX2"
    ]
    same_shell = in_shell_of_night(own, flags, {**of_shell, "OMP_NUM_THREADS": "8"})
    assert same_shell == (variables, [])
    with pytest.raises(
        UsageError, match="TORCHINDUCTOR_FREEZING is set in this shell, and was not set when 2"
    ):
        in_shell_of_night(own, flags, {"TORCHINDUCTOR_FREEZING": "1"})


@pytest.mark.slow
def test_a_command_has_the_variables_of_the_nights_shell(called, tmp_path, monkeypatch):
    """Those that the recipe sets are its own: neither set as in the night nor refused."""
    repository = Repository(tmp_path / "repo")
    commits = [repository.commit(f"change {n}", {"bad": str(n)}) for n in range(2)]
    db = history(tmp_path / "h.db", list(map(environment_said, commits)))
    recorded_facts(db, {"variables": {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "SSE2"}})
    (tmp_path / "own.toml").write_text(
        'name = "own"\ntitle = "t"\nkind = "commits"\nenv = { MKL_CBWR = "AVX", OMP_A = "1" }\n'
    )
    monkeypatch.setattr(host, "relevant_variables", lambda _: {"OMP_A": "2"})
    script = 'test "$ONEDNN_MAX_CPU_ISA$MKL_CBWR$OMP_A" = AVX2AVX1 && grep -q 0 bad'
    words = ["--alert", "1", "--recipe", "own.toml", "--repo", "repo", "--db", db, "--no-confirm"]
    ran = called("bisect", *words, "--", "sh", "-c", script, env={"PERFDASH_BUILD_CACHE": "cache"})
    assert "with variables of the shell of 2026-11-02T01-00-00Z_farm: ONEDNN_MAX_CPU_ISA=AVX2\n" in ran.err
    assert f"found {commits[1][:10]}" in ran.out, ran.err


def test_a_night_that_recorded_no_variables_is_measured_in_this_shell(tmp_path):
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)])
    recorded_facts(db, {})
    shell = {"TORCHINDUCTOR_FREEZING": "1"}
    for given in ({"alert": 1, "recipe": "git"}, {"alert": 1, "recipe": "git", "good": "a", "bad": "b"}):
        flags = filled({**BISECT, **given, "db": db}, None)
        assert in_shell_of_night((), flags, shell) == ({}, [])
    assert in_shell_of_night((), BISECT, shell) == ({}, [])


def test_one_case_is_bisected_where_todays_runs_have_several_configurations(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFDASH_CONFIGURATION", "default,freezing")
    case = {"suite": "timm", "model": "lcnet_050"}
    assert measured(tmp_path, case, ()).case.batch_size == 4
    frozen = {"configuration": "freezing", "settings": '{"inductor_config":{"freezing":true}}'}
    of_configuration = {**case, **frozen}
    db = history(
        tmp_path / "f.db", [environment_said("a" * 40), environment_said("b" * 40)], None, of_configuration
    )
    flags = filled({**BISECT, "alert": 1, "recipe": "git", "db": db}, None)
    assert planned_case(run_settings(flags, "backend")).inductor_config == {"freezing": True}


def test_the_limits_are_those_of_the_nights_command_line(tmp_path, monkeypatch):
    """A model that the night ended after 60 s of compiling compiles to its end under other limits."""
    monkeypatch.setenv("PERFDASH_TIMEOUT", "7200")
    monkeypatch.setenv("PERFDASH_OUTPUT_LIMIT", "8")
    case = {"suite": "timm", "model": "lcnet_050"}
    ran = ("--timeout", "120", "--phase-timeout=compile=60", "--phase-timeout", "accuracy=50",
           "--memory-limit", "2")  # fmt: skip
    builds = [environment_said("a" * 40), environment_said("b" * 40)]
    status = {"kind": "status", "metric": None, "change": None}
    db = history(tmp_path / "h.db", builds, None, case, ran, **status)
    of_alert = {**BISECT, "alert": 1, "recipe": "git", "db": db}
    planned = planned_case(run_settings(filled(of_alert, None), "status"))
    assert (planned.timeout_s, planned.memory_limit_bytes) == (120.0, 2 << 30)
    assert (planned.phase_timeouts["compile"], planned.phase_timeouts["accuracy"]) == (60.0, 50.0)
    assert planned.output_limit_bytes == 8 << 20, "the night's command line has none"
    typed = planned_case(run_settings(filled({**of_alert, "timeout": 300.0}, None), "status"))
    assert typed.timeout_s == 300.0


@pytest.mark.parametrize("named", [sys.executable, "/gone/bin/python"])
def test_builds_are_laid_over_the_interpreter_of_the_night(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    builds = [environment_said("a" * 40), environment_said("b" * 40)]
    db = history(tmp_path / "h.db", builds, None, None, ("--python", named))
    lines = []
    typist = Typist([], reproduce, lambda evidence: what(evidence.alert), lines.append)
    flags = {**BISECT, "repo": None, "wheels": None, "alert": 1, "recipe": "git", "db": db}
    python = completed(flags, None, typist)[0]["python"]
    if named == sys.executable:
        assert (python, lines) == (named, [f"Interpreter: {named}, that of alert 1 (--python takes another)"])
    else:
        assert (python, lines) == (
            None,
            [f"{named}, the interpreter of alert 1, is not there: this one is taken"],
        )
    lines.clear()
    assert completed({**flags, "python": "python3"}, None, typist)[0]["python"] == "python3"
    assert lines == []


def test_an_interpreter_by_a_relative_path_is_named_by_its_whole_path(tmp_path, monkeypatch):
    """It may be another one than the night's, which began in another folder."""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    builds = [environment_said("a" * 40), environment_said("b" * 40)]
    db = history(tmp_path / "h.db", builds, None, None, ("--python", "venv/python"))
    lines = []
    typist = Typist([], reproduce, lambda evidence: what(evidence.alert), lines.append)
    flags = {**BISECT, "repo": None, "wheels": None, "alert": 1, "recipe": "git", "db": db}
    python = f"{tmp_path}/venv/python"
    assert completed(flags, None, typist)[0]["python"] == python
    assert lines == [
        f"Interpreter: {python}, by the relative path of alert 1: another one if its night began in another "
        "folder (--python takes another)"
    ]


def test_nothing_is_compiled_where_eager_changed(tmp_path):
    db = history(
        tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)], metric="eager_ms"
    )
    flags = filled({**BISECT, "alert": 1, "recipe": "git", "db": db}, None)
    assert run_settings(flags, flags["metric"]).backend == ("eager",)
    flags = filled({**BISECT, "alert": 1, "recipe": "git", "db": db, "metric": "speedup"}, None)
    assert run_settings(flags, flags["metric"]).backend == ("inductor",)


def test_eager_is_measured_beside_the_back_end_where_it_cannot_be_measured_alone(tmp_path):
    case = {"suite": "timm", "model": "lcnet_050", "scenario": "sizes"}
    db = history(
        tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)], None, case,
        metric="eager_ms",
    )  # fmt: skip
    of_alert = filled({**BISECT, "alert": 1, "recipe": "git", "db": db}, None)
    typed = {**BISECT, "suite": "timm", "model": "lcnet_050"}
    suite = tmp_path / "mine.toml"
    suite.write_text('name = "mine"\nloader = "timm"\nscenario = "sizes"\n[[models]]\nname = "lcnet_050"\n')
    of_suite = {**typed, "suite": str(suite)}
    of_configuration = {**typed, "configuration": "dynamic-batch"}
    for flags in (of_alert, {**typed, "scenario": "sizes"}, of_suite, of_configuration):
        assert planned_case(run_settings(flags, "eager")).case.backend == "inductor"
    with_backend = {**typed, "configuration": ["aot-inductor"]}
    assert planned_case(run_settings(with_backend, "eager")).case.backend == "aot-inductor"
    named = {**of_suite, "scenario": "inference"}
    assert planned_case(run_settings(named, "eager")).case.backend == "eager"


def test_a_case_of_configuration_socket_is_bisected_bound_to_its_socket(tmp_path, monkeypatch):
    cores = [PhysicalCore((core,), core % 2, core % 2) for core in range(8)]  # numbered in turns
    monkeypatch.setattr(
        topology, "available", lambda asked: [core for core in cores if core.first in (asked or range(8))]
    )
    case = {"threads": 4, "configuration": "socket", "settings": '{"bind_memory":true}'}
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)], None, case)
    of_alert = filled({**BISECT, "alert": 1, "recipe": "git", "db": db}, None)
    of_name = {**BISECT, "suite": "timm", "model": "rexnet_100", "configuration": ["socket"]}
    for flags in (of_alert, of_name):
        settings = run_settings(flags, "backend")
        assert (settings.threads, settings.bind_memory, settings.cores) == (4, True, "1,3,5,7")
    assert planned_case(run_settings(of_name, "backend")).case.threads == 4


MODEL = """
import torch


def make(batch_size):
    return torch.nn.Linear(8, 8), (torch.randn(batch_size, 8),)
"""
SUITE = 'name = "mine"\nloader = "python"\n[[models]]\nname = "lin"\ntarget = "net.py:make"\n'


def measured(tmp_path, case, ran, files=None, **flags):
    """The case that a bisection would measure of an alert on it. files: digests of the model's."""
    db = tmp_path / "h.db"
    if not db.exists():
        builds = [environment_said("a" * 40), environment_said("b" * 40)]
        history(db, builds, None, {"batch_size": 4, **case}, ran, {"model_files": files} if files else None)
    flags = filled({**BISECT, "alert": 1, "recipe": "git", "db": str(db), **flags}, None)
    planned = planned_case(run_settings(flags, "backend"))
    refuse_other_files(planned, flags)
    return planned


def test_a_model_of_a_file_is_found_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = {"suite": "own", "model": "net.make"}
    ran = ("--model", f"{tmp_path}/net.py:make", "--model", "other.py:make")
    with pytest.raises(UsageError, match=r"net\.py:make, which is not there now: give --model file"):
        measured(tmp_path, case, ran)
    (tmp_path / "net.py").write_text(MODEL)
    planned = measured(tmp_path, case, ran)
    assert (planned.case.model, planned.case.batch_size) == ("net.make", 4)
    assert planned.target == f"{tmp_path}/net.py:make"
    (tmp_path / "copy.py").write_text(MODEL)
    planned = measured(tmp_path, case, ran, model="copy.py:make")
    assert (planned.case.model, planned.case.batch_size) == ("copy.make", 4)


def test_a_model_of_a_file_that_no_command_line_names(tmp_path):
    with pytest.raises(UsageError, match=r"net\.make is a model of a file: give --model file\.py:function"):
        measured(tmp_path, {"suite": "own", "model": "net.make"}, ())


def test_a_suite_of_a_file_is_found_again(tmp_path):
    case, ran = {"suite": "mine", "model": "lin"}, ("--suite", f"timm,{tmp_path}/mine.toml")
    with pytest.raises(UsageError, match=r"mine\.toml, which is not there now: give its file by --suite"):
        measured(tmp_path, case, ran)
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "mine.toml").write_text(SUITE)
    assert measured(tmp_path, case, ran).case.suite == "mine"
    (tmp_path / "moved.toml").write_text(SUITE)
    assert measured(tmp_path, case, (), suite=f"{tmp_path}/moved.toml").case.model == "lin"


@pytest.mark.parametrize(
    ("case", "ran"),
    [
        ({"suite": "own", "model": "net.make"}, ("--model", "net.py:make")),
        ({"suite": "mine", "model": "lin"}, ("--suite", "mine.toml")),
    ],
)
def test_a_file_that_the_night_names_by_a_relative_path_must_be_the_measured_one(
    tmp_path, monkeypatch, case, ran
):
    """Another file of this name, or an edited one, is measured only where the user names it."""
    monkeypatch.chdir(tmp_path)
    files = {"net.py": digest_of_text(MODEL), "generated.py": "gone since"}
    with pytest.raises(UsageError, match=r"not there now.*change to the folder that the night began in"):
        measured(tmp_path, case, ran, files)
    (tmp_path / "mine.toml").write_text(SUITE)
    (tmp_path / "net.py").write_text(MODEL)
    assert measured(tmp_path, case, ran, files).target == f"{tmp_path}/net.py:make"
    (tmp_path / "net.py").write_text(f"{MODEL}# edited")
    why = rf"--alert 1: {tmp_path}/net\.py is not the file that the night measured"
    with pytest.raises(UsageError, match=why):
        measured(tmp_path, case, ran, files)
    named = {"model": "net.py:make"} if case["suite"] == "own" else {"suite": "mine.toml"}
    assert measured(tmp_path, case, ran, files, **named).target == f"{tmp_path}/net.py:make"


def test_an_edited_file_of_an_absolute_path_is_measured(tmp_path):
    (tmp_path / "net.py").write_text(f"{MODEL}# edited")
    ran = ("--model", f"{tmp_path}/net.py:make")
    planned = measured(tmp_path, {"suite": "own", "model": "net.make"}, ran, {"net.py": "0" * 16})
    assert planned.target == f"{tmp_path}/net.py:make"


def test_versions_of_the_recipes_package(tmp_path):
    db = history(
        tmp_path / "h.db", [environment_said("a" * 40, "2.13.0"), environment_said("b" * 40, "2.14.0")]
    )
    options = filled({**FLAGS, "alert": 1, "recipe": "wheels:torch", "db": db}, None)
    assert (options["good"], options["bad"]) == ("2.13.0", "2.14.0")


@pytest.mark.parametrize(("alert", "recipe", "why"), [
    ({}, None, "by --recipe"),
    ({"metric": "eager_peak_bytes"}, "git", "nothing that can be bisected"),
    ({"kind": "host", "case_id": None, "metric": None}, "git", "of the whole host"),
    ({}, "pypi:timm", "both nights measured timm 1.0.31"),
    ({}, "pypi:torchvision", "does not say which torchvision"),
    ({}, "wheels:torch", "both nights measured torch 2.14.0"),
])  # fmt: skip
def test_an_alert_that_says_too_little(tmp_path, alert, recipe, why):
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)], **alert)
    with pytest.raises(UsageError, match=why):
        filled({**FLAGS, "alert": 1, "recipe": recipe, "db": db}, None)


@pytest.mark.parametrize(
    ("before", "after", "recipe"),
    [
        ({"timm": "1.0", "perfdash": "1", "pip": "24.0"}, {"timm": "1.1", "perfdash": "2", "pip": "24.1"}, 0),
        ({"pip": "24.0"}, {"pip": "24.1"}, "no package changed"),
    ],
)
def test_the_recipe_is_not_by_a_package_that_no_build_is_made_of(tmp_path, before, after, recipe):
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("a" * 40)])
    with open_store(db, create=False) as store, store.read() as connection:
        (evidence,) = gather_in_causes(connection, [alert_store.find(connection, 1)])
    own = ({"perfdash": letter * 40} for letter in "ef")
    ends = [
        with_worker(run, packages=packages, commits=commits)
        for run, packages, commits in zip((evidence.good, evidence.bad), (before, after), own, strict=True)
    ]
    evidence = replace(evidence, range=ends)
    if not recipe:
        assert recipe_of_alert(evidence, None, wheels=False) == "pypi:timm"
        return
    with pytest.raises(UsageError, match=recipe):
        recipe_of_alert(evidence, None, wheels=False)


NIGHTLIES = [{"torch": f"2.15.0.dev2026110{n}+cpu", "torchvision": f"0.30.0.dev2026110{n}"} for n in (1, 2)]


@pytest.mark.parametrize(
    ("before", "after", "recipe"),
    [
        ({}, {}, "nightly"),
        ({"triton": "3.5.0+git7416ffcb"}, {"triton": "3.5.1+git0a5d6d47"}, "nightly"),
        ({"timm": "1.0"}, {"timm": "1.1"}, "torch .* changed, e.g. --recipe nightly"),
        ({"torch": "2.15.0"}, {"torch": "2.15.0"}, "wheels:torchvision"),
        ({"torchvision": "0.30.0"}, {"torch": "2.15.0", "torchvision": "0.30.0"}, "wheels:torch"),
    ],
)
def test_torch_and_other_nightlies_that_change_with_it_are_bisected_by_nights(
    tmp_path, before, after, recipe
):
    db = history(tmp_path / "h.db", [environment_said("a" * 40, each["torch"]) for each in NIGHTLIES])
    with open_store(db, create=False) as store, store.read() as connection:
        (evidence,) = gather_in_causes(connection, [alert_store.find(connection, 1)])
    evidence = replace(
        evidence,
        range=[
            with_worker(run, packages={**night, **more}, torch={**night, **more}["torch"])
            for run, night, more in zip(
                (evidence.good, evidence.bad), NIGHTLIES, (before, after), strict=True
            )
        ],
    )
    if " " not in recipe:
        assert recipe_of_alert(evidence, None, wheels=False) == recipe
        return
    with pytest.raises(UsageError, match=recipe):
        recipe_of_alert(evidence, None, wheels=False)


@pytest.mark.parametrize("good", [None, "2.15.0.dev20261101"])
def test_the_recipes_index_of_builds_for_the_cpu_is_not_taken_for_a_model_on_a_gpu(
    tmp_path, monkeypatch, good
):
    monkeypatch.chdir(tmp_path)
    builds = [environment_said("a" * 40, each["torch"]) for each in NIGHTLIES]
    db = history(tmp_path / "h.db", builds, None, {"device": "cuda"})
    typist = Typist([], reproduce, lambda evidence: what(evidence.alert), lambda line: None)
    flags = {**BISECT, "repo": None, "wheels": None, "alert": 1, "recipe": "nightly", "db": db}
    flags |= {"good": good, "bad": good and "2.15.0.dev20261102"}
    with pytest.raises(UsageError, match=r"--wheels is missing.*builds for the CPU only"):
        completed(flags, None, typist)
    assert completed({**flags, "wheels": "/wheels"}, None, typist)[0]["wheels"] == "/wheels"
    if good:  # the alert is found by its range
        with pytest.raises(UsageError, match=r"--wheels is missing.*builds for the CPU only"):
            completed({**flags, "alert": None}, None, typist)
    index = "https://download.pytorch.org/whl/nightly/cu130"
    own = (Path(perfdash.__file__).parents[1] / "bisect" / "nightly.toml").read_text()
    (tmp_path / "own.toml").write_text(own.replace("https://download.pytorch.org/whl/nightly/cpu", index))
    assert completed({**flags, "recipe": "own.toml"}, None, typist)[0]["wheels"] == index


LIB = {"commits": {"lib": "c" * 40}}, {"commits": {"lib": "d" * 40}}
OF_LIB = "lib cccccccccc -> dddddddddd"


@pytest.mark.parametrize(
    ("versions", "torch", "why"),
    [
        (
            "11",
            "aa",
            f"--alert 1: between its nights {OF_LIB} changed: give a clone of the package to search, --repo",
        ),
        (
            "12",
            "aa",
            f"timm 1 -> 2, {OF_LIB} changed, e.g. --recipe pypi:timm, or give a clone of the package to",
        ),
        ("11", "ab", f"{OF_LIB}, torch aaaaaaaaaa -> bbbbbbbbbb changed: give a clone"),
    ],
)
def test_a_package_at_another_commit_has_changed(tmp_path, versions, torch, why):
    """Its version is the same: only the commit tells."""
    db = history(tmp_path / "h.db", [environment_said(letter * 40) for letter in torch])
    with open_store(db, create=False) as store, store.read() as connection:
        (evidence,) = gather_in_causes(connection, [alert_store.find(connection, 1)])
    runs = zip((evidence.good, evidence.bad), LIB, versions, strict=True)
    ends = [with_worker(run, packages={"lib": "1", "timm": timm}, **lib) for run, lib, timm in runs]
    with pytest.raises(UsageError) as raised:
        recipe_of_alert(replace(evidence, range=ends), None, wheels=False)
    assert why in str(raised.value)


@pytest.fixture
def library(tmp_path):
    """A repository of a library under test, and three of its commits."""
    made = Repository(tmp_path / "lib")
    return made, [made.commit(f"change {n}") for n in range(3)]


def ends(db, repo):
    options = filled({**FLAGS, "alert": 1, "recipe": "git", "db": db, "repo": repo}, None)
    return options["good"], options["bad"]


def test_the_commits_of_the_package_that_is_in_the_repository(tmp_path, library):
    repository, (first, two, three) = library
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)])
    told_commits(
        db, {"lib": first, "still": two, "other": "c" * 40}, {"lib": three, "still": two, "other": "d" * 40}
    )
    assert ends(db, repository.folder) == (first, three)


@pytest.mark.parametrize(
    ("recipe", "others"),
    [
        ("git", "torch: 2.14.0 aaaaaaaaaa | 2.15.0 aaaaaaaaaa; other: 1.0 cccccccccc | 1.0 dddddddddd"),
        ("pypi:torch", "lib: 1.0 {} | 1.0 {}; other: 1.0 cccccccccc | 1.0 dddddddddd"),
    ],
)
def test_a_note_names_what_changed_too_and_is_not_searched(tmp_path, library, recipe, others):
    repository, (first, _, three) = library
    db = history(tmp_path / "h.db", [environment_said("a" * 40, f"2.1{minor}.0") for minor in (4, 5)])
    told_commits(db, {"lib": first, "other": "c" * 40}, {"lib": three, "other": "d" * 40})
    options = filled({**FLAGS, "alert": 1, "recipe": recipe, "db": db, "repo": repository.folder}, None)
    others = others.format(first[:10], three[:10])
    assert options[NOTES] == [f"alert 1: between its nights this changed, too, and is not searched: {others}"]


def test_a_repository_of_two_packages_that_changed_differently_is_meant_by_neither(tmp_path, library):
    repository, (first, two, three) = library
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("a" * 40)])
    told_commits(db, {"lib": first, "fork": first}, {"lib": two, "fork": three})
    with open_store(db, create=False) as store, store.read() as connection:
        (evidence,) = gather_in_causes(connection, [alert_store.find(connection, 1)])
    with pytest.raises(UsageError, match=r"lib, fork are all of --repo .*give --good and --bad"):
        recipe_of_alert(evidence, repository.folder, wheels=False)


def test_two_packages_of_one_repository_at_one_commit(tmp_path, library):
    repository, (first, two, _) = library
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("a" * 40)])
    told_commits(db, {"lib": first, "lib-extra": first}, {"lib": two, "lib-extra": two})
    assert ends(db, repository.folder) == (first, two)


def test_torchs_commit_where_the_repository_is_torchs(tmp_path, library):
    repository, (first, two, _) = library
    db = history(tmp_path / "h.db", [environment_said(first), environment_said(two)])
    told_commits(db, {"lib": "c" * 40}, {"lib": "d" * 40})
    assert ends(db, repository.folder) == (first, two)


@pytest.mark.parametrize(("back", "asked"), [(True, {}), (True, {"good": "x", "bad": "y"}), (False, {})])
def test_between_nights_that_went_back_to_an_older_commit_the_older_one_is_good(
    tmp_path, library, back, asked
):
    """The alert is then the loss of a change, whoever typed the ends."""
    repository, (first, _, three) = library
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("a" * 40)])
    told_commits(db, *({"lib": commit} for commit in ((three, first) if back else (first, three))))
    given = {**FLAGS, "alert": 1, "recipe": "git", "db": db, "repo": repository.folder, **asked}
    options = filled(given, None)
    assert (options["good"], options["bad"]) == (("x", "y") if asked else (first, three))
    assert options[WENT_BACK] is back
    assert [f"from {three[:10]} back to {first[:10]}" in note for note in options[NOTES]] == [True] * back


@pytest.mark.parametrize(
    ("recipe", "before", "after"),
    [
        ("wheels:torch", "2.14.0", "2.13.0"),
        ("nightly", "2.15.0.dev20261102+cpu", "2.15.0.dev20261101+cpu"),
        ("pypi:torch", "2.14.0", "2.14.0rc1"),
    ],
)
def test_between_nights_that_went_back_to_an_older_version_the_older_one_is_good(
    tmp_path, recipe, before, after
):
    db = history(tmp_path / "h.db", [environment_said("a" * 40, before), environment_said("b" * 40, after)])
    options = filled({**FLAGS, "alert": 1, "recipe": recipe, "db": db}, None)
    assert (options["good"], options["bad"], options[WENT_BACK]) == (after, before, True)


@pytest.mark.parametrize("package", [None, "torchvision"])
def test_commits_of_a_nightly_branch_stand_for_those_of_main(tmp_path, library, package):
    """Each nightly is one commit, which a robot makes of that night's main: it is nobody's change."""
    repository, (first, _, three) = library
    repository.git("checkout", "--quiet", "--orphan", "nightly")
    nightlies = [
        repository.commit(f"2026-11-0{day} nightly release ({of})")
        for day, of in enumerate((first, three), 1)
    ]
    told = [environment_said(commit) for commit in (nightlies if package is None else "ab")]
    db = history(tmp_path / "h.db", told)
    if package:
        told_commits(db, *({package: commit} for commit in nightlies))
    assert ends(db, repository.folder) == (first, three)


def test_two_nightlies_of_one_commit_have_no_range(tmp_path, library):
    repository, (first, *_) = library
    repository.git("checkout", "--quiet", "--orphan", "nightly")
    nightlies = [repository.commit(f"2026-11-0{day} nightly release ({first})") for day in (1, 2)]
    db = history(tmp_path / "h.db", list(map(environment_said, nightlies)))
    with pytest.raises(UsageError, match=f"both nights measured commit {first}: it was something else"):
        ends(db, repository.folder)


@pytest.mark.parametrize(("old", "new", "why"), [
    ({"lib": 0, "fork": 0}, {"lib": 1, "fork": 2}, "lib, fork are all of --repo"),
    ({"lib": 0}, {"lib": 0}, "no package came to another commit of --repo .*other commits: torch"),
    ({"lib": "c" * 40}, {"lib": "d" * 40}, r"other commits: lib, torch \(git fetch"),
    ({}, {"lib": 1}, "no package came to another commit"),
])  # fmt: skip
def test_commits_that_are_none_or_several(tmp_path, library, old, new, why):
    repository, commits = library
    db = history(tmp_path / "h.db", [environment_said("a" * 40), environment_said("b" * 40)])
    told_commits(
        db,
        *({name: commits[c] if isinstance(c, int) else c for name, c in side.items()} for side in (old, new)),
    )
    with pytest.raises(UsageError, match=why):
        ends(db, repository.folder)


@pytest.mark.slow
def test_the_alert_learns_how_far_a_bisection_came_that_was_not_finished(command, tmp_path):
    repository = Repository(tmp_path / "repo")
    commits = [repository.commit(f"change {n}", {"bad": str(int(n >= 5))}) for n in range(40)]
    db = history(tmp_path / "h.db", [environment_said(commits[0]), environment_said(commits[39])])
    env = {"PERFDASH_BUILD_CACHE": str(tmp_path / "cache")}
    words = ["--alert", "1", "--recipe", "command", "--repo", "repo", "--db", db, "--max-builds", "3"]
    measures = ["--", "grep", "-q", "0", "bad"]

    def bisected():
        with open_store(db, create=False) as store, store.read() as connection:
            return alert_store.find(connection, 1).details["bisected"]

    assert command("bisect", *words, *measures, env=env).code == 0
    half = bisected()
    assert not half["finished"]
    assert half["word"].startswith("not finished")
    assert command("bisect", "--resume", "last", env=env).code == 0
    found = bisected()
    assert found["finished"]
    assert found["culprits"][0]["commits"][0]["id"] == commits[5]
    # Another one that is not finished takes nothing away.
    env = {"PERFDASH_BUILD_CACHE": str(tmp_path / "another cache")}
    assert command("bisect", *words, *measures, env=env).code == 0
    assert bisected() == found


@pytest.mark.slow
def test_the_alert_learns_the_culprit(command, tmp_path):
    repository = Repository(tmp_path / "repo")
    commits = [repository.commit(f"change {n}", {"bad": str(int(n >= 5))}) for n in range(10)]
    db = history(tmp_path / "h.db", [environment_said(commits[0]), environment_said(commits[9])])
    words = ["--alert", "1", "--recipe", "command", "--repo", "repo", "--db", db]
    ran = command(
        "bisect",
        *words,
        "--",
        "grep",
        "-q",
        "0",
        "bad",
        env={"PERFDASH_BUILD_CACHE": str(tmp_path / "cache")},
    )
    assert ran.code == 0, ran.err
    with open_store(db, create=False) as store, store.read() as connection:
        (made,) = connection.execute(sa.select(schema.bisections).where(schema.bisections.c.alert_id == 1))
        alert = alert_store.find(connection, 1)
        last = alert_store.events(connection, 1)[-1]
    assert made.culprit == commits[5]
    assert alert.details["bisected"]["culprits"][0]["commits"][0]["id"] == commits[5]
    assert alert.state == alert_store.CONFIRMED
    assert f"found {commits[5][:10]}" in last.note
    assert sys.executable not in ran.out
