from __future__ import annotations

import fnmatch
import itertools
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.records import Case
from perfdash.report.full_tables import _generic, _marked
from perfdash.report.reproduce import command, command_of_run, pattern
from perfdash.runner.plan import cut
from perfdash.runner.run import new_info
from perfdash.settings import RunSettings
from perfdash.suites.suite_file import load_suite, own_models, suite_names
from tests.history.made import run
from tests.report.nights import row
from tests.runner.planned import case as planned


def test_a_case_and_the_setting_it_was_measured_in():
    case = Case("timm", "a model; rm -rf", dtype="amp", amp_dtype="bfloat16", threads=4, dynamic=True)
    setting = {"allocator": "jemalloc", "env": {"A": "b c"}, "inductor_config": {"freezing": True}}
    assert command(case, {"tf32": True}).endswith("--tf32")
    assert "tf32" not in command(case, {"tf32": False})  # of perfdash.toml: no option turns it off
    of_kinds = {"side_by_side_of": {"1 thread": [1, 3]}}
    assert command(case, {**setting, "line": "main", "side_by_side": 3, **of_kinds}) == (
        "perfdash run --suite timm --models 'a model; rm -rf' --batch-size 1 --threads 4 --dtype amp "
        "--amp-dtype bfloat16 --dynamic --allocator jemalloc --env 'A=b c' --inductor-config freezing=true "
        "--jobs 3"
    )


@pytest.mark.parametrize(
    "targets",
    [
        ("a_b.py:make", "a-b.py:make"),
        ("one/net.py:make", "two/net.py:make", "net.py:make"),
        ("/one/net.py:make", "/two/net.py:make"),
    ],
)
def test_an_own_model_is_repeated_alone_whatever_its_name_became(targets):
    for model in own_models(targets).models:
        words = command(Case("own", model.name), ran=["--model", ",".join(targets)]).split()
        assert words[2:4] == ["--model", model.target]
        assert words.count("--model") == 1
        assert "--models" not in words


def test_variables_of_the_shell_of_a_run_are_set():
    """A regression may show only with them, and whoever repeats the command has another shell."""
    variables = {"ONEDNN_MAX_CPU_ISA": "AVX2", "A": "shell", "OMP_NUM_THREADS": "8", "HF_HOME": "/hub"}
    shown = command_of_run(Case("timm", "m"), run_in_shell(variables, env={"A": "own"}))
    assert shown.endswith("--dtype float32 --env ONEDNN_MAX_CPU_ISA=AVX2 --env A=own")


def run_in_shell(variables, **setting):
    of_run = run("2026-11-01", (), setting=setting).run
    return replace(of_run, environment={**of_run.environment, "variables": variables})


def test_variables_that_concern_a_machine_are_not_set():
    """Comments are public, and another machine has no such files."""
    variables = {
        "LD_PRELOAD": "libtcmalloc.so", "CC": "gcc-14", "CXX": "/home/alice/bin/g++",
        "CFLAGS": "-I/home/alice", "CXXFLAGS": "-march=native", "TORCH_EXTENSIONS": "/home/alice/x",
        "CUDA_VERSION": "12.8.1", "ONEDNN_MAX_CPU_ISA": "AVX2",
    }  # fmt: skip
    shown = command_of_run(Case("timm", "m"), run_in_shell(variables))
    assert shown.endswith("--dtype float32 --env ONEDNN_MAX_CPU_ISA=AVX2")
    given = command_of_run(Case("timm", "m"), run_in_shell(variables, env={"CC": "gcc-14"}))
    assert given.endswith("--env ONEDNN_MAX_CPU_ISA=AVX2 --env CC=gcc-14")


@pytest.mark.parametrize(
    ("case", "ran", "is_set"),
    [
        (Case("mine", "m"), ["--suite", "mine.toml"], False),
        (Case("mine", "m"), ["--suite", "mine.toml", "--torchbench", "/b"], False),
        (Case("mine", "m"), [], False),  # perfdash.toml named the file
        (Case("timm", "m"), ["--suite", "mine.toml,timm"], True),
        (Case("own", "net.make"), ["--model", "net.py:make"], True),
        (Case("torchbench-checkout", "m"), ["--torchbench", "/b"], True),
        (Case("torchbench-checkout", "m"), ["--suite", "torchbench-checkout,timm"], True),
    ],
)
def test_a_variable_that_a_suite_file_may_set_is_not_set(case, ran, is_set):
    """--env goes before the suite, and the suite before the shell: the night measured with the suite's."""
    of_run = replace(run_in_shell({"TORCHINDUCTOR_FREEZING": "1"}), command=("perfdash", "run", *ran))
    shown = command_of_run(case, of_run)
    assert ("--env TORCHINDUCTOR_FREEZING=1" in shown) == is_set


def test_suites_of_perfdash_set_no_variables():
    """The command that repeats a case of theirs sets those of the night's shell."""
    for suite in map(load_suite, suite_names()):
        for model, scenario in itertools.product(suite.models, ("inference", "training")):
            assert not suite.setting(model, "env", scenario=scenario), (suite.name, model.name)


def test_what_is_as_always_is_not_reported():
    assert command(Case("timm", "x", backend="aot-eager", device="cuda", scenario="training")) == (
        "perfdash run --suite timm --models x --batch-size 1 --threads 1 --dtype float32 --device cuda "
        "--backend aot-eager --scenario training"
    )


def test_inference_is_named_where_the_suite_has_another_scenario(tmp_path):
    suite = tmp_path / "mine.toml"
    suite.write_text('name = "mine"\nloader = "timm"\nscenario = "training"\n[[models]]\nname = "m"\n')
    for name in suite_names():
        words = command(Case(name, "m")).split()
        assert ("--scenario" in words) == (load_suite(name).scenario != "inference"), name
    for file in (str(suite), "gone.toml"):
        shown = command(Case("mine", "m"), {}, ("perfdash", "run", "--suite", file))
        assert shown.endswith("--scenario inference")


def test_no_file_of_the_recorded_command_is_opened(monkeypatch):
    def is_file(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", is_file)
    for suite, *ran in (
        ("own", "--model", "/home/a/net.py:make"),
        ("torchbench-checkout", "--torchbench", "/home/a/tb"),
        ("n" * 300, "--suite", "n" * 300),
    ):
        assert "--scenario" not in command(Case(suite, "net.make"), {}, ("perfdash", "run", *ran))


def test_where_the_model_came_from():
    own = command(Case("net", "make"), {}, ("perfdash", "run", "--model", "net.py:make", "--threads", "1"))
    assert own.startswith("perfdash run --model net.py:make --batch-size 1")
    suite = command(Case("mine", "x"), {}, ("perfdash", "run", "--suite", "my.toml"))
    assert suite.startswith("perfdash run --suite my.toml --models x ")


def test_a_name_is_no_wildcard():
    for name in ("a[b]c", "what?*", "plain", "a,b"):
        assert fnmatch.fnmatchcase(name, pattern(name))
        assert not fnmatch.fnmatchcase(name + "x", pattern(name))
        assert "," not in pattern(name)  # `run` would read two


@pytest.mark.parametrize(
    ("case", "ran", "source"),
    [
        (Case("mine", "m"), ["--suite=my.toml"], "--suite my.toml --models m"),
        (Case("my", "m"), ["--suite", "my.toml", "--suite", "timm"], "--suite my.toml --models m"),
        (Case("mine", "m"), ["--suite", "my.toml", "--suite", "timm"], "--suite my.toml --models m"),
        (Case("timm", "m"), ["--suite", "my.toml", "--suite", "timm"], "--suite timm --models m"),
        (Case("b", "m"), ["--suite=x/a.toml,x/b.toml"], "--suite x/b.toml --models m"),
        (
            Case("mine", "m"),
            ["--suite", "a.toml", "--suite", "b.toml"],
            "--suite a.toml --suite b.toml --models m",
        ),
        (
            Case("mine", "m"),
            ["--torchbench=../tb", "--suite", "my.toml"],
            "--suite my.toml --torchbench ../tb --models m",
        ),
        (
            Case("torchbench-checkout", "m"),
            ["--torchbench", "../tb", "--suite", "torchbench-checkout"],
            "--torchbench ../tb --models m",
        ),
        (Case("own", "net.b"), ["--model", "net.py:a", "--model=net.py:b"], "--model net.py:b"),
        (Case("own", "x/net.a"), ["--model", "net.py:a", "--model", "x/net.py:a"], "--model x/net.py:a"),
        (Case("timm", "m"), ["--suite"], "--suite timm --models m"),
    ],
)
def test_one_source_of_several(case, ran, source):
    shown = command(case, {}, ("perfdash", "run", *ran))
    scenario = " --scenario inference" if ".toml" in source else ""  # a file may name another
    assert shown == f"perfdash run {source} --batch-size 1 --threads 1 --dtype float32{scenario}"


def generic(rows, *ran):
    return _generic(rows, [command(case_row.case, {}, ("perfdash", "run", *ran)) for case_row in rows])


REST = "--threads 1 --dtype float32"


def test_commands_alike_are_one():
    rows = [row("NAME", "NAME", batch_size=2), row("NAME", "b c", batch_size=2)]
    assert generic(rows) == f"perfdash run --suite NAME --models NAME --batch-size 2 {REST}"
    assert generic(rows, "--suite", "NAME.toml").startswith("perfdash run --suite NAME.toml --models NAME ")
    assert generic(rows[1:], "--suite", "NAME.toml") == (
        f"perfdash run --suite NAME.toml --models 'b c' --batch-size 2 {REST} --scenario inference"
    )
    sizes = [row("timm", f"m{size}", batch_size=size) for size in range(1, 41)]
    assert generic(sizes) == f"perfdash run --suite timm --models NAME --batch-size SIZE {REST}"
    assert generic([row("timm", "m"), row("timm", "m", batch_size=2)]).split()[4:8] == (
        ["--models", "m", "--batch-size", "SIZE"]
    )


def test_commands_left_out_are_counted():
    rows = [row("timm", "m", threads=count) for count in range(1, 26)]
    *lines, last = generic(rows).splitlines()
    assert lines == [command(case_row.case) for case_row in rows[:20]]
    assert last == "# and 5 more: perfdash report --format json has the command of each case"
    assert shlex.split(last, comments=True) == []


def test_what_failed_is_no_pass_with_nothing_captured():
    bare = {"graphs": 0, "calls_captured": 0, "graph_breaks": 0}
    assert _marked([row("timm", "broken", status="fail_to_run", **bare)]) == ""
    assert _marked([row("timm", "a", backend="eager", **bare)]) == ""
    assert "(1): `b`" in _marked([row("timm", "b", **bare)])


def test_marked_models_of_one_name_are_counted_by_suite():
    bare = {"graphs": 0, "calls_captured": 0, "graph_breaks": 0}
    rows = [row("timm", "b", **bare), row("timm", "b", batch_size=8, **bare)]
    assert "(1): `timm/b`" in _marked([*rows, row("huggingface", "b")])
    marked = _marked([*rows, row("timm", "c", **bare), row("huggingface", "b", **bare)])
    assert "(3): `timm/b`, `c`, `huggingface/b`" in marked


@pytest.mark.parametrize(
    ("case", "settings", "typed", "shown"),
    [
        (Case("own", "net.make"), {"model": "net.py:make"}, [], "--model net.py:make --batch-size"),
        (Case("own", "net.make"), {"model": "net.py:make"}, ["--suite=timm"], "--model net.py:make --batch"),
        (Case("mine", "m"), {"suite": "mine.toml"}, [], "--suite mine.toml --models m"),
        (Case("mine", "m"), {"suite": "mine.toml"}, ["--model=a.py:b"], "--suite mine.toml --models m"),
        (Case("x", "m"), {"suite": "x.toml"}, ["--suite=x.toml"], "--suite x.toml --models m"),
        (Case("torchbench-checkout", "m"), {"torchbench": "/b"}, [], "--torchbench /b --models m"),
        (Case("timm", "m", backend="my-own"), {"backend": "my_own.py"}, [], "--suite timm --models m"),
    ],
)
def test_what_perfdash_toml_or_a_variable_selected_is_repeated(
    tmp_path, monkeypatch, case, settings, typed, shown
):
    """The command of such a run does not name it, and another folder has another perfdash.toml."""
    monkeypatch.chdir(tmp_path)
    Path("my_own.py").write_text("def prepare(module, inputs, job): ...\n")
    typed = ["perfdash", "run", *typed]
    loader = "torchbench" if case.suite == "torchbench-checkout" else "timm"
    plan = cut([planned("a", loader=loader, config={"checkout": "/b"})], [1.0], None)
    ran = new_info("r", RunSettings(**settings), plan, {}, typed).command
    assert ran[: len(typed)] == typed
    repeated = command(case, {}, ran)
    assert repeated.startswith(f"perfdash run {shown}")
    assert ("--backend my_own.py" in repeated) == (case.backend == "my-own")


def test_a_checkout_that_no_case_needs_and_typed_sources_are_not_recorded():
    plan = cut([planned("a")], [1.0], None)
    settings = RunSettings(suite=("x.toml",), backend=("inductor",), torchbench="/b")
    typed = ["perfdash", "run", "--suite=x.toml"]
    assert new_info("r", settings, plan, {}, typed).command == typed
