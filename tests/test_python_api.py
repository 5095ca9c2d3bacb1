"""The Python API: what it returns, what it refuses, and that the examples of docs/api.md run."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import perfdash
from perfdash import api
from perfdash.history.ingest import take_in
from perfdash.history.store import open_store
from perfdash.metrics import NUMBERS
from perfdash.records import Case, Failure, Measurement, Result, RunInfo, Speedup, Status
from perfdash.runner import run_journal
from perfdash.runner.notebook_model import notebook_model
from perfdash.runner.run import new_run
from perfdash.runner.run_journal import RunJournal, read_info, read_saved
from perfdash.settings import RunSettings
from tests.history import made
from tests.repositories import Repository

ROOT = Path(__file__).parents[1]


def result(model="resnet18", **case):
    return Result(
        Case("timm", model, **case),
        "2026-11-01T01:00:00Z",
        12.0,
        Status.PASS,
        eager_ms=Measurement(20.0, 19.9, 20.1, 20.0, 0.1, 30),
        backend_ms=Measurement(10.0, 9.9, 10.1, 10.0, 0.1, 30),
        speedup=Speedup(2.0, 1.9, 2.1, "faster", "processes"),
        capture={"graphs": 1, "calls_captured": 5},
        compilation_s=30.0,
    )


@pytest.fixture
def saved(tmp_path):
    """Save a run below tmp_path/runs; its folder."""

    def save(*results, name="2026-11-01T01-00-00Z_farm"):
        (tmp_path / "runs").mkdir(exist_ok=True)
        journal = RunJournal.create(tmp_path / "runs")
        environment = {"host_class": "Xeon x 100", "cpu": "Xeon", "worker": {"torch": "2.15.0"}}
        info = RunInfo(
            journal.folder.name, "2026-11-01T01:00:00Z", "farm", ["perfdash"], {}, environment,
            len(results), "0.2.0", state="done", plan={"uid": name},
        )  # fmt: skip
        journal.write_info(info)
        for one_result in results:
            journal.append(one_result)
        journal.close()
        return journal.folder

    return save


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"torch", "numpy", "pandas", "pydantic", "sqlalchemy", "typer", "rich", "cloudpickle", "inspect"}
    code = f"import sys, perfdash; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_an_unknown_one_is_an_attribute_error():
    assert all(getattr(perfdash, name) for name in perfdash.__all__)
    assert set(perfdash.__all__) <= set(dir(perfdash))
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        perfdash.mesure  # noqa: B018


def test_a_run_is_loaded_by_folder_name_and_last(saved, tmp_path):
    folder = saved(result("resnet18"), result("vgg16"))
    for word in (folder, folder.name, "last"):
        run = perfdash.load(word, out=tmp_path / "runs")
        assert [one_result.case.model for one_result in run] == ["resnet18", "vgg16"]
    assert len(run) == 2
    assert run["vgg16"].speedup.value == 2.0
    with pytest.raises(perfdash.UsageError, match="no run"):
        perfdash.load("nothing", out=tmp_path / "runs")


def test_a_model_measured_in_several_ways_is_found_by_its_case(saved):
    run = perfdash.load(saved(result(batch_size=1), result(batch_size=8), result("vgg16")))
    with pytest.raises(KeyError, match="2 ways"):
        run["resnet18"]
    with pytest.raises(KeyError, match="there are: resnet18, vgg16"):
        run["resnet19"]
    assert [one_result.case.batch_size for one_result in run.find("res*", batch_size=8)] == [8]
    assert len(run.find(dtype="float32")) == 3
    with pytest.raises(perfdash.UsageError, match="a case has no 'batchsize'"):
        run.find(batchsize=8)


def test_a_run_as_a_frame_has_the_numbers_by_their_columns(saved):
    frame = perfdash.load(saved(result(), Result(Case("timm", "bad"), "t", 1.0, Status.CRASH))).to_frame()
    good, bad = frame.to_dict("records")
    assert (good["model"], good["status"], good["verdict"]) == ("resnet18", "pass", "faster")
    assert (good["eager_ms"], good["backend_ms"], good["compilation_s"]) == (20.0, 10.0, 30.0)
    assert (good["speedup_low"], good["speedup"], good["speedup_high"]) == (1.9, 2.0, 2.1)
    assert bad["status"] == "crash"
    assert frame["speedup"].isna().tolist() == [False, True]


def test_the_frame_of_a_run_has_all_numbers_and_no_other_column(saved):
    parts = {"backend": {"forward": {"median": 3.0}, "backward": {"median": 4.0}}}
    trained = replace(result(), parts_ms=parts, accuracy={"status": "pass"})
    frame = perfdash.load(saved(trained)).to_frame()
    assert list(frame.columns[-len(NUMBERS) :]) == list(NUMBERS)
    assert "accuracy" not in frame  # the status has it
    assert frame.loc[0, ["forward_ms", "backward_ms"]].tolist() == [3.0, 4.0]


def test_the_frame_of_a_run_says_which_pass_counts_in_no_mean_and_what_is_cpu_time(saved):
    conditions = {"clock": "cpu"}
    limited = replace(result("a"), capture={"graphs": 3, "recompile_limit": "reached"}, conditions=conditions)
    frame = perfdash.load(saved(limited, result("b"))).to_frame()
    assert frame["remark"].fillna("").tolist() == ["recompile limit", ""]
    assert frame["clock"].fillna("").tolist() == ["cpu", ""]


def test_a_run_is_shown_in_plain_text_and_escaped_in_a_notebook(saved):
    run = perfdash.load(saved(result("<script>alert(1)</script>")))
    assert "pass, 2.000x [1.900, 2.100] faster" in repr(run)
    shown = run._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown


def test_an_empty_run_is_shown_too(saved):
    run = perfdash.load(saved())
    assert "0 of 0 cases" in repr(run)
    assert "0 of 0 cases" in run._repr_html_()


def make(batch_size):
    raise AssertionError("never called in this process")


class Maker:
    def make(self, batch_size):
        raise AssertionError


def test_a_function_is_named_by_its_file():
    assert api.target_of(make) == f"{Path(__file__).resolve()}:make"
    assert api.target_of("net.py:make") == "net.py:make"
    assert api.target_of(Path("net.py:make")) == "net.py:make"


def of_a_cell():
    """A function as a notebook defines it: no file has it."""
    names = {"__name__": "__main__"}
    exec("def make(batch_size): raise AssertionError('never called in this process')", names)
    return names["make"]


@pytest.mark.parametrize("model", [lambda size: None, Maker().make, of_a_cell()])
def test_a_function_that_no_file_has_at_its_top_level_has_no_target(model):
    assert api.target_of(model) is None


VARIANTS = """
import functools

def decorated(function):
    @functools.wraps(function)
    def other(batch_size):
        return function(batch_size)
    return other

makes = {}
for width in (64, 512):
    def make(batch_size, width=width): ...
    makes[width] = make

@decorated
def shown(batch_size): ...

if True:
    @decorated
    def chosen(batch_size): ...
else:
    def chosen(batch_size): ...
"""


def test_a_function_has_a_target_only_where_its_file_has_it_under_its_name(tmp_path, monkeypatch):
    (tmp_path / "variants.py").write_text(VARIANTS)
    monkeypatch.syspath_prepend(tmp_path)
    variants = importlib.import_module("variants")
    assert api.target_of(variants.makes[512]) == f"{tmp_path / 'variants.py'}:make"
    assert api.target_of(variants.shown) == f"{tmp_path / 'variants.py'}:shown"
    assert api.target_of(variants.chosen) == f"{tmp_path / 'variants.py'}:chosen"
    assert api.target_of(variants.makes[64]) is None
    assert api.target_of(variants.decorated(variants.make)) is None
    monkeypatch.delitem(sys.modules, "variants")
    importlib.import_module("variants")
    assert api.target_of(variants.makes[512]) is None, "the file has another one now"


SCRIPT = """
import functools, lib
from perfdash import UsageError, api

def in_half(function):
    @functools.wraps(function)
    def halved(batch_size):
        return function(batch_size // 2)
    return halved

def make(batch_size): ...
def plain(batch_size): ...
@in_half
def shown(batch_size): ...
later = in_half(plain)
def replaced(batch_size): ...
replaced = in_half(replaced)

def show(function):
    try:
        print(api.target_of(function))
    except UsageError as error:
        print(error)

if __name__ == "__main__":
    make = in_half(make)
    for width in (64, 512):
        def build(batch_size, width=width): ...
        show(build)
    for function in (make, later, plain, shown, replaced, lib.make):
        show(function)
    lib.make = in_half(lib.make)
    show(lib.make)
"""


def test_a_function_has_a_target_only_where_the_file_has_it_in_another_process_too(tmp_path):
    (tmp_path / "lib.py").write_text("def make(batch_size): ...")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    *targets, of_lib, refusal = done.stdout.splitlines()
    in_file = [f"{script}:{name}" for name in ("plain", "shown", "replaced")]
    assert targets == ["None", "None", "None", "None", *in_file]
    assert of_lib == f"{tmp_path / 'lib.py'}:make"
    assert refusal.startswith("make of the module lib was replaced in this process")


def test_a_function_of_a_module_that_was_loaded_by_its_path_has_a_target(tmp_path):
    (tmp_path / "net_by_path.py").write_text("def make(batch_size): ...")
    spec = importlib.util.spec_from_file_location("net_by_path", tmp_path / "net_by_path.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert api.target_of(module.make) == f"{tmp_path / 'net_by_path.py'}:make"


@pytest.mark.parametrize(
    "call",
    [
        lambda: perfdash.measure("net.py:make"),
        lambda: perfdash.run(model=["net.py:make"]),
        lambda: perfdash.bisect("v1", "v2", model="net.py:make"),
    ],
)
def test_a_script_that_measures_whenever_it_is_executed_is_told_to_guard_the_call(
    tmp_path, monkeypatch, call
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFDASH_WORKER", "1.0")
    with pytest.raises(perfdash.UsageError, match="below `if __name__ == '__main__':`"):
        call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", [Maker, print, functools.partial(make, 1)])
def test_what_is_no_function_is_refused_with_an_example(model):
    with pytest.raises(perfdash.UsageError, match=r"is no function.* e\.g\. lambda batch_size: \(net, "):
        perfdash.measure(model)


def test_a_notebook_without_cloudpickle_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(perfdash.UsageError, match=r"pip install cloudpickle.*%%writefile.*'net\.py:make'"):
        perfdash.measure(of_a_cell())
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_pickled_is_told_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lock = threading.Lock()
    with pytest.raises(perfdash.UsageError, match=r"lambda cannot be sent .*cannot pickle '_thread.lock'"):
        perfdash.measure(lambda size: lock)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["suite", "models", "quick", "shard", "hours"])
def test_measure_is_for_one_model(name):
    with pytest.raises(perfdash.UsageError, match=f"{name} chooses among several: use run"):
        perfdash.measure(make, **{name: "timm"})


def test_several_cases_are_refused_before_the_first_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "perfdash.toml").write_text('[run]\nsuite = "timm"\nbatch_size = [1, 8]\n')
    for model in (make, of_a_cell()):
        with pytest.raises(
            perfdash.UsageError, match=r"one case, and these are several: own_[^,]*, own_[^,]*;"
        ):
            perfdash.measure(model, backend="aot-eager")
    assert not list(tmp_path.glob("runs/*"))


def test_a_pickle_goes_to_no_other_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(perfdash.UsageError, match="executor='local'"):
        perfdash.measure(of_a_cell(), executor="dask", scheduler="tcp://127.0.0.1:1")
    assert not list(tmp_path.iterdir())


def test_a_function_of_a_notebook_is_refused_with_instances_before_anything_runs(tmp_path):
    with pytest.raises(perfdash.UsageError, match=r"instances .* write the function into a file"):
        perfdash.measure(lambda size: None, instances="1x1", out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_run_of_a_notebook_is_not_resumed_and_keeps_no_pickle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with notebook_model(lambda size: "a text of the function", "make") as model:
        prepared = new_run(RunSettings(backend=("eager",), no_history=True), model)
        prepared.journal.write_info(prepared.info)
        prepared.journal.close()
    folder = prepared.journal.folder
    assert "notebook.make" in (folder / "plan.json").read_text()
    for path in folder.rglob("*"):
        assert path.is_dir() or b"a text of the function" not in path.read_bytes(), path
    with pytest.raises(
        perfdash.UsageError, match=r"Cannot resume .*defined in a notebook.*measure\(\) again"
    ):
        perfdash.run(resume=folder)
    assert "perfdash.measure() again" in prepared.how_to_resume


def test_a_missing_torch_is_told_before_a_core_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bare = tmp_path / "bare_python"
    bare.write_text(f'#!/bin/sh\nexec {Path(sys.base_prefix) / "bin" / "python3"} -I -S "$@"\n')
    bare.chmod(0o755)
    message = r"torch does not import under .*bare_python.*pip install torch"
    with pytest.raises(perfdash.MachineError, match=message):
        new_run(RunSettings(suite=("timm",), models=("lcnet_050",), backend=("eager",), python=str(bare)))
    with pytest.raises(perfdash.MachineError, match="none_such cannot be started: No such file"):
        new_run(RunSettings(suite=("timm",), models=("lcnet_050",), backend=("eager",), python="none_such"))
    assert not (tmp_path / "runs").exists()


class Prepared(Exception):
    """Instead of measuring."""


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (
            lambda: perfdash.run(
                suite="timm", models=["lcnet*"], backend="eager", env={"A_TOKEN": "x", "B": "1"}
            ),
            "run --suite timm --models 'lcnet*' --backend eager --env 'A_TOKEN=***' --env B=1",
        ),
        (
            lambda: perfdash.measure("net.py:make", "eager", batch_size=8),
            "run --model net.py:make --no-history --batch-size 8 --backend eager",
        ),
        (
            lambda: perfdash.measure("net.py:make", configuration="max-autotune"),
            "run --model net.py:make --no-history --configuration max-autotune",
        ),
        (
            lambda: perfdash.measure("net.py:make"),
            "run --model net.py:make --no-history --backend inductor",
        ),
        (
            lambda: perfdash.measure(lambda size: size, "eager"),
            "run --model 'lambda of a notebook' --no-history --backend eager",
        ),
    ],
)
def test_the_record_of_a_run_has_the_command_that_means_the_call(tmp_path, monkeypatch, call, command):
    """Not that of the kernel of a notebook, in which the call was made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", "kernel.json"])
    (tmp_path / "net.py").write_text("def make(batch_size): ...\n")

    def prepared(run, *_):
        raise Prepared(run)

    monkeypatch.setattr(api, "measure_run", prepared)
    with pytest.raises(Prepared) as caught:
        call()
    run = caught.value.args[0]
    run.journal.close()
    assert shlex.join(run.info.command) == f"perfdash {command}"
    assert run.command == run.info.command


def test_suites_cannot_name_the_loader_of_notebooks(tmp_path):
    suite = tmp_path / "mine.toml"
    suite.write_text('name = "mine"\nloader = "notebook"\n[[models]]\nname = "make"\n')
    with pytest.raises(perfdash.UsageError, match="no loader named 'notebook'; there are: models, python"):
        perfdash.run(suite=str(suite))


def test_one_result_is_shown_in_plain_text_and_escaped_in_a_notebook():
    one = result("<script>")
    assert repr(one).splitlines() == [
        f"{one.case.name}: pass", "  speedup: 2.000x [1.900, 2.100] faster", "  eager: 20 ms",
        "  inductor: 10 ms", "  compilation: 30.0 s",
    ]  # fmt: skip
    failed = Result(
        Case("timm", "bad", backend="<b>"), "t", 1.0, Status.CRASH, failed_phase="compile",
        error=Failure("SIGSEGV", "<i>ended</i>"),
    )  # fmt: skip
    assert repr(failed) == f"{failed.case.name}: crash (SIGSEGV)\n  error: in compile: SIGSEGV: <i>ended</i>"
    shown = failed._repr_html_() + one._repr_html_()
    assert "&lt;i&gt;ended&lt;/i&gt;" in shown
    assert not re.search("<(script|i|b)>", shown)
    assert "nothing captured" in repr(replace(one, capture={"graphs": 0}))


def test_a_history_is_shown_without_its_password(monkeypatch):
    monkeypatch.setenv("PERFDASH_DB", "postgresql://ann:s3cret@host/perf")
    assert repr(perfdash.History()) == "perfdash history postgresql://***@host/perf"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batchsize": 8}, r"no setting 'batchsize' \(did you mean batch_size"),
        ({"dtype": "fp16"}, "--dtype"),
        ({"suite": "nothing"}, "nothing"),
        ({"batch_size": 0}, "give 1 or more"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_measured(tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(perfdash.UsageError, match=message):
        perfdash.run(**settings)
    assert not list(tmp_path.iterdir())


def test_two_runs_are_compared(saved, tmp_path):
    old = perfdash.load(saved(result()))
    slower = result()
    slower.backend_ms = Measurement(12.0, 11.9, 12.1, 12.0, 0.1, 30)
    new = perfdash.load(saved(slower, name="another"))
    compared = perfdash.compare(old, new, out=tmp_path / "runs")
    assert compared.nothing_to_compare is None
    frame = compared.to_frame().set_index("metric")
    assert frame.loc["backend_ms", "ratio"] == pytest.approx(1.2)
    assert "resnet18" in repr(compared)
    assert compared._repr_html_().startswith("<pre>")


EXAMPLE = ["model", "metric", "old", "new", "ratio", "p", "significant"]  # of docs/api.md


def test_a_comparison_as_a_frame_has_the_models_that_broke(saved, tmp_path):
    old = perfdash.load(saved(result(), result("vgg16")))
    crashed = Result(Case("timm", "resnet18"), "t", 1.0, Status.CRASH)
    new = perfdash.load(saved(crashed, result("vgg16"), name="another"))
    frame = perfdash.compare(old, new, out=tmp_path / "runs").to_frame()
    (broken,) = frame[frame.regressed].to_dict("records")
    assert [broken[name] for name in ("model", "metric", "old_status", "new_status")] == [
        "resnet18", "status", "pass", "crash"
    ]  # fmt: skip
    assert frame[frame.significant]["model"].tolist() == ["resnet18"]
    assert "status" not in set(frame[frame.model == "vgg16"]["metric"])


def test_a_comparison_as_a_frame_has_its_columns_also_without_a_number(saved, tmp_path):
    old = perfdash.load(saved(Result(Case("timm", "resnet18"), "t", 1.0, Status.CRASH)))
    for new in (old, perfdash.load(saved(result("vgg16"), name="another"))):
        frame = perfdash.compare(old, new, out=tmp_path / "runs").to_frame()
        assert frame[EXAMPLE].shape[1] == len(EXAMPLE)
        assert frame[frame.significant][["model"]].empty
        assert frame[frame.regressed][["model"]].empty
    assert perfdash.load(saved()).to_frame()[["model", "status", "speedup"]].empty


@pytest.mark.parametrize("state", ["running", "failed", "interrupted"])
def test_a_loaded_run_that_is_not_complete_was_interrupted_unless_it_is_being_measured(saved, state):
    folder = saved(result())
    assert not perfdash.load(folder).interrupted
    info = read_info(folder)
    info.state = state
    journal = RunJournal(folder)
    journal.write_info(info)
    assert not perfdash.load(folder).interrupted
    journal.close()
    assert perfdash.load(folder).interrupted


def test_a_run_that_ends_while_it_is_loaded_was_not_interrupted(saved, monkeypatch):
    folder = saved(result())
    info = read_info(folder)
    info.state = "running"
    journal = RunJournal(folder)
    journal.write_info(info)

    def read(path):
        read_before_its_end = read_saved(path)
        journal.close()
        return read_before_its_end

    monkeypatch.setattr(run_journal, "read_saved", read)
    assert not perfdash.load(folder).interrupted


def test_the_history_as_frames(tmp_path):
    path = tmp_path / "history.db"
    with open_store(str(path)) as store:
        take_in(store, made.nights({"resnet18": [10.0] * 12 + [14.0] * 8}))
    history = perfdash.History(str(path))
    runs = history.runs()
    assert len(runs) == 20
    assert runs["started"].is_monotonic_increasing
    series = history.series("resnet18", "backend_ms")
    assert series["backend_ms"].tolist() == [10.0] * 12 + [14.0] * 8
    alerts = history.regressions()
    assert len(alerts) >= 1
    with pytest.raises(perfdash.UsageError, match="never measured"):
        history.series("resnet19")
    with pytest.raises(perfdash.UsageError):
        perfdash.History(str(tmp_path / "none.db")).runs()


def test_frames_of_a_history_have_their_columns_also_on_a_good_day(tmp_path):
    history = perfdash.History(str(tmp_path / "history.db"))
    with open_store(history.address):
        empty_runs, no_alerts = history.runs(), history.regressions(worse=True)
    with open_store(history.address) as store:
        take_in(store, made.nights({"resnet18": [10.0] * 12 + [14.0] * 8}))
    assert list(empty_runs.columns) == list(history.runs().columns)
    alerts = history.regressions()
    assert len(alerts) >= 1
    assert no_alerts[no_alerts.state == "confirmed"][["case.model", "metric", "good.run"]].empty
    assert list(alerts.columns)[: no_alerts.shape[1]] == list(no_alerts.columns)
    assert all(name.startswith("details.") for name in list(alerts.columns)[no_alerts.shape[1] :])


@pytest.mark.slow
@pytest.mark.timeout(1800)  # it compiles, on a machine that may be busy
def test_the_examples_of_the_documentation_run(tmp_path, command_server):
    """In a process of their own, in the order of the page, sampled a few times, in warm workers."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "api.md").read_text(), re.M | re.S)
    files = [block for block in blocks if re.match(r"# \w+\.py\n", block)]
    for block in files:
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
    examples = "\n".join(block for block in blocks if block not in files)
    assert len(blocks) - len(files) >= 6
    assert "inductor" in examples
    library = Repository(tmp_path / "library")
    for level, change, tag in (
        (10, "first", "v1.0"),
        (10, "same", "b"),
        (15, "slower", "c"),
        (15, "last", "v1.1"),
    ):
        library.commit(change, {"speed.py": f"print({level})  # {change}\n"})
        library.git("tag", tag)
    script = (
        "from tests.few_samples import take_few_samples\n"
        "if __name__ == '__main__':\n"
        "    take_few_samples()\n"
        "    from tests.warm_workers import use_warm_workers\n"
        f"    use_warm_workers({command_server.workers.address!r})\n"
        "    import sys\n"
        + "".join(f"    {line}\n" for line in examples.splitlines())
        + "    assert 'torch' not in sys.modules\n"
        "    assert len(run) == len(other) == 2, run\n"
        "    assert all(one.status == 'pass' for one in [*run, *other, result, wide]), run\n"
        "    assert found.word == 'found' and found.culprits[0].revisions[-1].title == 'slower', found\n"
        "    assert len(fast) == 1\n"
        "    assert perfdash.load('last').folder.name == other.folder.name\n"
        "    assert len(history.runs()) == 2, 'measure() stays out'\n"
    )
    (tmp_path / "examples.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "examples.py"], cwd=tmp_path, capture_output=True, text=True, timeout=1750,
        env={
            **os.environ, "PYTHONPATH": str(ROOT), "PERFDASH_WAIT": "5m",
            "PERFDASH_BUILD_CACHE": str(tmp_path / "cache"),
            "PERFDASH_PROCESSES": "1",  # intervals are not the point
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
