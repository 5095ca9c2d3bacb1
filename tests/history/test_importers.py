"""The dynamo runners' CSV pairs, and how a file finds its importer."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.errors import UsageError
from perfdash.history import importers as importing
from perfdash.history.importers import ImportOptions, importers, recognise
from perfdash.history.pass_rates_and_means import is_counted, remark, summarize
from perfdash.records import Case, Measurement, Result, Speedup, Status
from perfdash.runner import dynamo_csv_writer

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = FIXTURES / "imports"
STEM = "inductor_timm_models_float32_inference_cpu"
TOLD = ImportOptions(started="2024-02-03T04:05:06+01:00", host="box", host_class="box x 8", threads=4)


def read(paths, options=None):
    """importers.read, told what no file says unless the test tells it."""
    return importing.read(paths, options or ImportOptions(started="mtime", threads=1, host="box"))


def by_model(run):
    return {row.case.model: row for row in run.rows}


@pytest.fixture
def csv(tmp_path):
    """Writes lines as a file of a pair; the path."""

    def write(*lines, kind="performance", stem=STEM):
        path = tmp_path / f"{stem}_{kind}.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.mark.parametrize(
    ("name", "importer"),
    [
        (f"imports/{STEM}_performance.csv", "dynamo-csv"),
        (f"imports/{STEM}_accuracy.csv", "dynamo-csv"),
        ("imports/old_harness.csv", "dynamo-csv"),
        ("imports/benchmark_database.json", "benchmark-database"),
        ("imports/benchmark_database.jsonl", "benchmark-database"),
        ("imports/metrics-20230420004336.json", "userbenchmark"),
        ("imports/regression-20240507000000.yaml", "userbenchmark-regression"),
        ("inductor_cpu_dashboard.md", "dynamo-dashboard"),
    ],
)
def test_a_format_is_recognised_by_content_not_by_name(name, importer, tmp_path):
    renamed = tmp_path / "anything.bin"
    shutil.copy(FIXTURES / name, renamed)
    assert importer == recognise(renamed).NAME


def test_importers_have_what_a_registration_needs():
    registered = importers()
    assert len({importer.NAME for importer in registered}) == len(registered) == 5
    assert all(importer.TITLE and importer.__doc__ for importer in registered)


def test_the_pair_is_one_run_whichever_file_is_named():
    performance, accuracy = FILES / f"{STEM}_performance.csv", FILES / f"{STEM}_accuracy.csv"
    (first,), (second,), (both,) = (
        read([performance], TOLD),
        read([accuracy], TOLD),
        read([accuracy, performance, performance], TOLD),
    )
    assert first == second == both
    assert first.content == both.content
    assert first.key == both.key
    run = first.run
    assert run.name == f"2024-02-03T03-05-06Z_{STEM}"
    assert (run.started, run.origin) == ("2024-02-03T03:05:06Z", "dynamo-csv")
    assert (run.host, run.host_class, run.setting) == ("box", "box x 8", {"harness": "dynamo"})
    assert len(first.rows) == 7


def test_rows_of_the_pair():
    (imported,) = read([FILES / f"{STEM}_performance.csv"], TOLD)
    rows = by_model(imported)
    row = rows["lcnet_050"]
    assert row.case == Case("timm", "lcnet_050", "cpu", "float32", 64, 4)
    assert row.status == "pass"
    assert row.values == {
        "speedup": 1.25, "backend_ms": 8.0, "eager_ms": 10.0, "compilation_s": 12.8088,
        "compression_ratio": 0.9643, "graphs": 1, "graph_breaks": 0, "calls_captured": 146,
    }  # fmt: skip
    assert row.others["accuracy_run_compilation_s"] == 9.1
    assert row.details["origin"] == {"file": f"{STEM}_performance.csv", "line": 2}
    assert row.details["accuracy_origin"] == {"file": f"{STEM}_accuracy.csv", "line": 2}
    assert row.details["derived"] == {"eager_ms": "speedup * abs_latency"}
    assert "absolute memory left out" in " ".join(row.details["notes"])
    assert {model: row.status for model, row in rows.items()} == {
        "lcnet_050": "pass",
        "ghostnet_100": "fail_accuracy",
        "botnet26t_256": "fail_to_run",
        "dpn107": "pass_due_to_skip",
        "volo_d1_224": "eager_oom",
        "pit_b_224": "fail_to_run",
        "mixnet_l": "fail_to_run",
    }
    assert rows["ghostnet_100"].values["speedup"] == 1.0058
    assert rows["botnet26t_256"].values == {}
    assert rows["botnet26t_256"].case.batch_size == 64
    assert "compilation_s" not in rows["dpn107"].values
    assert "no row in the performance file" in rows["pit_b_224"].details["notes"][0]
    assert "no row in the accuracy file" in rows["mixnet_l"].details["notes"][0]


def test_memory_is_bytes_on_cuda_and_a_failed_row_may_be_short():
    (imported,) = read(
        [FILES / "inductor_with_cudagraphs_torchbench_amp_training_cuda_performance.csv"],
        ImportOptions(started="mtime", threads=1, host="box"),
    )
    rows = by_model(imported)
    case = rows["alexnet"].case
    assert (case.suite, case.backend, case.scenario) == ("torchbench", "inductor-with-cudagraphs", "training")
    assert rows["alexnet"].values["eager_peak_bytes"] == 5_000_000_000
    assert rows["alexnet"].values["backend_peak_bytes"] == 4_000_000_000
    assert rows["alexnet"].status == "pass_due_to_skip"
    assert (rows["tacotron2"].status, rows["tacotron2"].values) == ("fail_to_run", {})
    assert imported.run.imported["started"].startswith("modification time")


def test_what_the_name_does_not_say_must_be_given():
    path = FILES / "old_harness.csv"
    with pytest.raises(UsageError, match="does not say the dtype: give --dtype, or name the file"):
        read([path])
    options = ImportOptions(
        suite="torchbench",
        dtype="float32",
        scenario="inference",
        backend="inductor",
        started="2024-02-03",
        threads=1,
        host="box",
    )
    (imported,) = read([path], options)
    assert by_model(imported)["resnet18"].case == Case("torchbench", "resnet18")
    assert by_model(imported)["resnet18"].values == {
        "speedup": 1.1615, "compilation_s": 8.449, "compression_ratio": 0.917,
    }  # fmt: skip


def test_what_is_given_and_what_the_name_says_must_agree():
    with pytest.raises(UsageError, match="says suite 'timm', but --suite 'torchbench'"):
        read([FILES / f"{STEM}_performance.csv"], ImportOptions(suite="torchbench", threads=1, host="box"))


def test_a_suite_of_ones_own_is_found_in_the_name_when_given(csv):
    path = csv("dev,name,batch_size,speedup", "cpu,m,1,1.5", stem="aot_eager_my_own_float32_inference_cpu")
    with pytest.raises(UsageError, match="--suite"):
        read([path])
    (imported,) = read([path], ImportOptions(suite="my_own", started="2024-02-03", threads=1, host="box"))
    assert imported.rows[0].case == Case("my_own", "m", backend="aot-eager")


HEADER = "dev,name,batch_size,speedup,abs_latency"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["cpu,a,1,1.5,2", "cpu,b,1,1.5,2", "cpu,a,1,1.5,2"],
            "line 4: a again, it is in line 2 too",
        ),
        (["cpu,a,0,0.0,0.0", "cpu,a,1,1.5,2"], "line 3: a again, it is in line 2 too"),
        (["cpu,a,1,-1.5,2"], "line 2: speedup is -1.5, which cannot be"),
        (["cpu,a,1,1.5,-2"], "line 2: abs_latency is -2, which cannot be"),
        (["cpu,a,1,1.5,1e12"], "line 2: abs_latency is 1e\\+12, which cannot be"),
        (["cpu,a,1,inf,2"], "line 2: speedup is 'inf', not a number"),
        (["cpu,a,1,1_0,2"], "not a number"),
        (["cpu,a,1,\u0661,2"], "not a number"),
        (["cpu,a,1," + "9" * 5000 + ",2"], "not a number"),
        (["cpu,a,1.5,1.5,2"], "batch size 1.5 cannot be"),
        (["cpu,a,-1,1.5,2"], "batch size -1 cannot be"),
        (["cpu,a,1,1.5"], "4 cells under 5 columns: cut off"),
        (["cpu,a,1,1.5,2,3"], "6 cells under 5 columns"),
        (["cpu,,1,1.5,2"], "model's name is ''"),
        (['cpu,"a,1,1.5,2'], "not a line of a CSV"),
        (["cpu,a,1,1.5,2", "cuda,b,1,1.5,2"], "rows of several devices"),
        (["cuda,a,1,1.5,2"], "is named cpu, but its rows say cuda"),
        ([], "no results in it"),
        (['cpu,a,1,1.5,2"x'], "abs_latency is '2\"x', not a number"),
    ],
)
def test_bad_lines_are_refused_with_their_place(csv, lines, message):
    with pytest.raises(UsageError, match=message):
        read([csv(HEADER, *lines)])


@pytest.mark.parametrize(
    "header", ['dev",name,batch_size,speedup', '"dev,name",batch_size,speedup', "name,dev,batch_size,speedup"]
)
def test_a_damaged_header_is_not_recognised(csv, header):
    with pytest.raises(UsageError, match="no file that can be imported"):
        read([csv(header, "cpu,a,1,1.5")])


def test_nan_and_empty_are_not_measured(csv):
    (imported,) = read([csv(HEADER, "cpu,a,0,0.0,nan", "cpu,b,1,1.5,", "cpu,c,1,nan,")])
    rows = by_model(imported)
    assert (rows["a"].status, rows["a"].values) == ("fail_to_run", {})
    assert rows["b"].values == {"speedup": 1.5}
    assert (rows["c"].status, rows["c"].values) == ("fail_to_run", {})


def test_a_cut_off_file_is_refused(csv):
    path = csv(HEADER, "cpu,a,1,1.5,2.25")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UsageError, match="line 2: the last line has no line end"):
        read([path])


def test_accuracy_may_be_checked_with_a_smaller_batch(csv):
    """As torchbench does with the models of `max_batch_size` in its torchbench.yaml."""
    path = csv(HEADER, "cpu,hf_GPT2,8,1.5,2", "cpu,b,4,1.2,2")
    csv("dev,name,batch_size,accuracy", "cpu,hf_GPT2,2,pass", "cpu,b,4,pass", kind="accuracy")
    rows = by_model(read([path])[0])
    assert [(row.case.batch_size, row.status) for row in rows.values()] == [(8, "pass"), (4, "pass")]
    assert rows["hf_GPT2"].details["notes"] == ["accuracy was checked with batch size 2"]
    assert "notes" not in rows["b"].details


def test_files_that_are_no_pair_are_refused(csv):
    path = csv(HEADER, "cpu,a,1,1.5,2")
    csv("dev,name,batch_size,accuracy", "cpu,a,8,pass", kind="accuracy")
    with pytest.raises(UsageError, match="batch size 1, but 8 in"):
        read([path])
    csv(HEADER, "cpu,a,8,1.5,2", kind="accuracy")
    with pytest.raises(UsageError, match="is named accuracy but holds performance"):
        read([path])


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("pass", "pass"), ("eager_1st_run_fail", "eager_fail_to_run"), ("eager_2nd_run_OOM", "eager_oom"),
        ("OOM", "oom"), ("timeout", "timeout"), ("infra_error", "infra_error"), ("0.0000", "fail_to_run"),
        ("eager_two_runs_differ", "eager_two_runs_differ"), ("model_fail_to_load", "model_fail_to_load"),
        ("fail_to_run_at_batch_8", "fail_to_run"), ("fail_batch_invariance_at_4", "fail_accuracy"),
    ],
)  # fmt: skip
def test_status_words(csv, word, status):
    (imported,) = read([csv("dev,name,batch_size,accuracy", f"cpu,a,1,{word}", kind="accuracy")])
    assert imported.rows[0].status == status


def test_an_unknown_status_word_is_not_guessed(csv):
    with pytest.raises(UsageError, match="line 2: accuracy is 'fine', which no version"):
        read([csv("dev,name,batch_size,accuracy", "cpu,a,1,fine", kind="accuracy")])


def test_what_perfdash_writes_comes_back(tmp_path):
    results = [
        Result(Case("timm", "a", batch_size=8), "", 1.0, Status.PASS, speedup=Speedup(1.5, 1, 2, "faster"),
               compilation_s=3.5, compression_ratio=1.25, eager_peak_bytes=10**9,
               backend_peak_bytes=8 * 10**8),
        Result(Case("timm", "b", batch_size=8), "", 1.0, Status.CRASH),
        Result(Case("timm", "c", batch_size=8), "", 1.0, Status.TIMEOUT),
    ]  # fmt: skip
    paths = dynamo_csv_writer.write(tmp_path / "csv", results, {"timm": "timm_models"})
    (imported,) = read(paths)
    rows = by_model(imported)
    assert [row.case for row in imported.rows] == [result.case for result in results]
    assert rows["a"].values == {"speedup": 1.5, "compilation_s": 3.5, "compression_ratio": 1.25}
    assert is_counted(rows["a"])
    assert [row.status for row in imported.rows] == ["pass", "fail_to_run", "timeout"]
    assert rows["b"].values == {}


def test_several_batch_sizes_that_perfdash_writes_come_back(tmp_path):
    results = [
        Result(Case("timm", "a", batch_size=1), "", 1.0, Status.PASS, speedup=Speedup(1.5, 1, 2, "faster")),
        Result(Case("timm", "a", batch_size=64), "", 1.0, Status.FAIL_ACCURACY),
        Result(Case("timm", "b", batch_size=64), "", 1.0, Status.PASS, speedup=Speedup(3.0, 1, 2, "faster")),
    ]
    (imported,) = read(dynamo_csv_writer.write(tmp_path, results, {"timm": "timm_models"}))
    assert [(row.case, row.status, row.values.get("speedup")) for row in imported.rows] == [
        (results[0].case, "pass", 1.5), (results[1].case, "fail_accuracy", None),
        (results[2].case, "pass", 3.0),
    ]  # fmt: skip


def test_rows_of_one_model_are_paired_by_batch_size(csv):
    path = csv(HEADER, "cpu,a,1,1.5,2", "cpu,a,64,1.5,2", "cpu,b,1,1.5,2", "cpu,b,64,1.5,2")
    csv("dev,name,batch_size,accuracy", "cpu,a,64,OOM", "cpu,a,1,pass", "cpu,b,64,pass", kind="accuracy")
    (imported,) = read([path])
    assert [(row.case.model, row.case.batch_size, row.status) for row in imported.rows] == [
        ("a", 1, "pass"), ("a", 64, "oom"), ("b", 64, "pass"), ("b", 1, "fail_to_run"),
    ]  # fmt: skip


def test_configurations_and_disturbed_rows_that_perfdash_writes(tmp_path):
    timed = {
        "speedup": Speedup(1.5, 1, 2, "disturbed"),
        "backend_ms": Measurement(8.0, 8, 8, 8, 0, 1),
        "capture": {"graphs": 1, "calls_captured": 98},
    }
    spoilt = {"disturbed": "during 93% of the pairs: other programs used this core"}
    case = Case("timm", "a")
    results = [
        Result(case, "", 1.0, Status.PASS, conditions=spoilt, **timed),
        Result(replace(case, model="b"), "", 1.0, Status.PASS, **timed),
        Result(replace(case, dynamic=True, configuration="dynamic"), "", 1.0, Status.PASS, **timed),
        Result(replace(case, settings="{}", configuration="freezing-amp"), "", 1.0, Status.PASS),
    ]
    paths = dynamo_csv_writer.write(tmp_path, results, {"timm": "timm_models"})
    default, dynamic, freezing = (paths[place : place + 2] for place in (0, 2, 4))
    (imported,) = read(default)
    assert [row.case for row in imported.rows] == [case, replace(case, model="b")]
    assert [row.verdict for row in imported.rows] == ["disturbed", None]
    assert [is_counted(row) for row in imported.rows] == [False, True]
    assert "other programs used this core" in imported.rows[0].details["notes"][0]
    assert imported.rows[0].values["backend_ms"] == 8.0
    (imported,) = read(dynamic)
    assert [row.case for row in imported.rows] == [replace(case, dynamic=True)]
    assert imported.rows[0].case.configuration == "dynamic"
    with pytest.raises(UsageError, match=r"the configuration 'freezing_amp', .*: import the run"):
        read(freezing, replace(TOLD, dtype="float32", scenario="inference", backend="inductor"))


def test_dynamic_shapes_without_the_configuration_dynamic_come_back(tmp_path):
    case = Case("timm", "a", dynamic=True)
    frozen = replace(case, configuration="freezing", settings='{"inductor_config":{"freezing":true}}')
    results = [Result(one, "", 1.0, Status.PASS) for one in (case, frozen)]
    paths = dynamo_csv_writer.write(tmp_path, results, {"timm": "timm_models"})
    (imported,) = read(paths[:2])
    assert [row.case for row in imported.rows] == [case]
    with pytest.raises(UsageError, match=r"the configuration 'freezing_dynamic', .*: import the run"):
        read(paths[2:])


def test_a_run_with_options_that_change_its_numbers_is_refused(tmp_path):
    results = [Result(Case("timm", "a"), "", 1.0, Status.PASS)]
    options = {"configuration": [], "compile_mode": "max-autotune", "env": {"A": "1"}, "weights": "random"}
    paths = dynamo_csv_writer.write(tmp_path, results, {"timm": "timm_models"}, options)
    for path in paths:
        with pytest.raises(UsageError, match=r"line 2: .*\(compile_mode, env\).*: import the run folder"):
            read([path])
    ordinary = {"configuration": [], "compile_mode": None, "env": {}, "weights": "random"}
    (imported,) = read(dynamo_csv_writer.write(tmp_path, results, {"timm": "timm_models"}, ordinary))
    assert [row.case for row in imported.rows] == [Case("timm", "a")]


def test_a_back_end_with_an_underscore_in_its_name_is_found_when_given(tmp_path):
    case = Case("timm", "a", backend="my_backend")
    results = [Result(case, "", 1.0, Status.PASS)]
    paths = dynamo_csv_writer.write(tmp_path, results, {"timm": "timm_models"})
    (imported,) = read(paths, replace(TOLD, backend="my_backend", threads=1))
    assert [row.case for row in imported.rows] == [case]
    with pytest.raises(UsageError, match="says backend 'my-backend', but --backend 'inductor'"):
        read(paths, replace(TOLD, backend="inductor"))


def test_a_pass_at_the_recompile_limit_counts_in_no_mean_after_it_came_back(tmp_path):
    speedup = Speedup(1.5, 1, 2, "faster")
    captured = {"graphs": 3, "calls_captured": 9}
    limited = captured | {"recompile_limit": "Dynamo recompile limit exceeded"}
    results = [
        Result(Case("timm", name), "", 1.0, Status.PASS, speedup=speedup, capture=capture)
        for name, capture in (("limited", limited), ("other", captured))
    ]
    (imported,) = read(dynamo_csv_writer.write(tmp_path, results, {"timm": "timm_models"}))
    assert [remark(row) for row in imported.rows] == ["recompile limit", None]
    assert imported.rows[0].details["recompile_limit"] == "Dynamo recompile limit exceeded"
    assert summarize(imported.rows).measured == 1


def test_the_recompile_limit_as_a_number_of_another_tool_takes_no_row_out_of_the_means(csv):
    path = csv("dev,name,batch_size,speedup,recompile_limit", "cpu,a,1,1.5,8")
    csv("dev,name,batch_size,accuracy", "cpu,a,1,pass", kind="accuracy")
    (imported,) = read([path])
    assert is_counted(imported.rows[0])
    assert imported.rows[0].others["recompile_limit"] == 8


def test_no_folder_of_a_user_is_kept_in_a_row(tmp_path):
    copy = tmp_path / "secret project"
    copy.mkdir()
    for kind in ("performance", "accuracy"):
        shutil.copy(FILES / f"{STEM}_{kind}.csv", copy)
    (imported,) = read([copy / f"{STEM}_performance.csv"])
    assert not [row for row in imported.rows if "secret" in str(row.details)]
    assert Path(imported.run.source.split(", ")[0]).parent == copy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ImportOptions(threads=1, host="box"),
            "does not say when it was measured: give --started 2026-01-31, or",
        ),
        (ImportOptions(started="mtime", host="box"), "on how many threads it was measured: give --threads"),
        (ImportOptions(started="mtime", threads=1), "on what it was measured: give --host or --host-class"),
    ],
)
def test_what_nobody_says_is_asked_for(options, message):
    with pytest.raises(UsageError, match=message):
        importing.read([FILES / f"{STEM}_performance.csv"], options)
