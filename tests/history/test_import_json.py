"""The benchmark database's JSON, torchbench's userbenchmark metrics and its regression YAML."""

import json
from pathlib import Path

import pytest

from perfdash.errors import UsageError
from perfdash.history import importers as importing
from perfdash.history.importers import ImportOptions
from perfdash.records import Case

FILES = Path(__file__).parents[1] / "fixtures" / "imports"
TOLD = ImportOptions(started="2024-02-03", threads=1, host="box")


def read(paths, options=None):
    """importers.read, told what no file says unless the test tells it."""
    return importing.read(paths, options or ImportOptions(started="mtime", threads=1, host="box"))


def record(metric="speedup", values=(1.5,), **changes):
    base = {
        "benchmark": {
            "name": "TorchInductor",
            "mode": "inference",
            "dtype": "float32",
            "extra_info": {"device": "cpu", "batch_size": 1},
        },
        "model": {"name": "m", "backend": "inductor", "origins": ["torchbench"]},
        "metric": {"name": metric, "benchmark_values": list(values)},
    }
    return base | changes


@pytest.fixture
def written(tmp_path):
    """Writes a value as JSON, or text as it is; the path."""

    def write(value, name="metrics.json"):
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write


def test_database_one_run_a_commit():
    first, second = read([FILES / "benchmark_database.jsonl"], ImportOptions(threads=1))
    assert (first.run.name, second.run.name) == (
        "2023-11-14T22-13-20Z_benchmark_database 0123456789",
        "2023-11-15T22-13-20Z_benchmark_database fedcba9876",
    )
    assert (first.run.started, second.run.started) == ("2023-11-14T22:13:20Z", "2023-11-15T22:13:20Z")
    assert (first.run.host, first.run.host_class) == ("gpu-7", "linux.aws.h100 x86_64 NVIDIA H100 1")
    assert first.run.environment["worker"] == {"torch": "2.6.0", "torch_git_version": "0123456789abcdef"}
    (row,) = first.rows
    assert row.case == Case("timm", "resnet50", "cuda", "bfloat16", 16)
    assert row.status == "pass"
    assert row.values == {"speedup": 1.5, "backend_ms": 4.0, "eager_ms": 6.0}
    assert [run.rows[0].details["origin"]["line"] for run in (first, second)] == [1, 4]


def test_database_units_and_unknown_metrics():
    ((row,),) = (run.rows for run in read([FILES / "benchmark_database.json"], TOLD))
    assert row.case == Case("phone", "edsr", batch_size=0, backend="xnnpack-q8")
    assert row.values == {"backend_ms": 2.0, "backend_peak_bytes": 333_200_000}
    assert row.samples == {"backend_ms": (2.0, 1.0, 3.0)}
    assert row.others == {"load_time": 12.0}
    assert row.details["units"] == {"latency": "us", "peak_memory": "mb", "load_time": "ms"}


def test_database_columns_of_the_dynamo_runners(written):
    records = [
        record("speedup", [2.0]),
        record("abs_latency", [3.0]),
        record("compilation_latency", [-0.5]),
        record("compression_ratio", [1.25]),
        record("eager_peak_mem", [97.0]),
        record("unique_graphs", [1]),
        record("latency", [5.0]),
        record("accuracy", [1])
        | {"metric": {"name": "accuracy", "extra_info": {"benchmark_values": ["OOM"]}}},
    ]
    (run,) = read([written(records)], TOLD)
    (row,) = run.rows
    assert row.status == "oom"
    assert row.values == {
        "speedup": 2.0, "backend_ms": 3.0, "eager_ms": 6.0, "compression_ratio": 1.25, "graphs": 1,
    }  # fmt: skip
    assert row.others == {"latency": 5.0}  # no unit: ms or s?


def with_unit(metric, value, unit):
    return record(metric={}) | {"metric": {"name": metric, "unit": unit, "benchmark_values": [value]}}


def test_database_number_in_another_unit_than_its_column(written):
    """150 % is no speedup of 150x, and may mean 1.5x or 2.5x."""
    records = [with_unit("speedup", 150, "%"), record("abs_latency", [3.0])]
    ((row,),) = (run.rows for run in read([written(records)], TOLD))
    assert row.status == "pass_due_to_skip"
    assert (row.values, row.others) == ({"backend_ms": 3.0}, {"speedup": 150.0})
    assert "speedup in %: kept without a column, because that unit is not understood" in row.details["notes"]


@pytest.mark.parametrize("unit", ["x", "X", "ratio"])
def test_database_units_of_a_speedup(written, unit):
    ((row,),) = (run.rows for run in read([written([with_unit("speedup", 1.5, unit)])], TOLD))
    assert (row.values, row.others) == ({"speedup": 1.5}, {})


def test_database_text_in_brackets_that_is_no_unit_belongs_to_the_name(written):
    records = [record("ttft (p50)", [5]), record("ttft (p99)", [9]), record("latency (p50) (us)", [2000])]
    records += [record("latency (ms)", [3]), record("throughput (tokens/s)", [7]), record("cpu (%)", [8])]
    ((row,),) = (run.rows for run in read([written(records)], TOLD))
    assert row.values == {"backend_ms": 3.0}
    assert row.others == {
        "ttft (p50)": 5.0, "ttft (p99)": 9.0, "latency (p50)": 2000.0, "throughput": 7.0, "cpu": 8.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "others"),
    [("ms", {"accuracy_run_compilation_s": 0.009}), ("%", {"compilation_latency": 9.0})],
)
def test_database_unit_of_the_compilation_in_an_accuracy_run(written, unit, others):
    accuracy = {"name": "accuracy", "extra_info": {"benchmark_values": ["pass"]}}
    records = [record() | {"metric": accuracy}, with_unit("compilation_latency", 9.0, unit)]
    ((row,),) = (run.rows for run in read([written(records)], TOLD))
    assert row.others == pytest.approx(others)


def test_database_of_an_accuracy_run(written):
    accuracy = {"name": "accuracy", "extra_info": {"benchmark_values": ["pass"]}}
    records = [record(metric=accuracy), record("compilation_latency", [9.0])]
    records[0]["metric"] = accuracy
    ((row,),) = (run.rows for run in read([written(records)], TOLD))
    assert (row.status, row.values) == ("pass", {})
    assert row.others == {"accuracy_run_compilation_s": 9.0}


def of_model(name, size=8, **metrics):
    """Records of a model; text is a status, as the dynamo runners write it."""
    for metric, value in metrics.items():
        entry = {"benchmark_values": [value]}
        model = {"name": name, "backend": "inductor", "origins": ["timm_models"]}
        base = record(model=model)
        base["metric"] = {"name": metric} | ({"extra_info": entry} if isinstance(value, str) else entry)
        base["benchmark"]["extra_info"]["batch_size"] = size
        yield base


@pytest.fixture
def pair(written):
    """The two files of one night, as the dynamo runners write them beside the CSV pair."""
    counts = {"calls_captured": 98, "unique_graphs": 1, "compilation_latency": 20.0}
    timed = {"speedup": 1.5, "abs_latency": 4.0, **counts}
    failed = {"speedup": 0.0, "abs_latency": 0.0}
    performance = [
        *of_model("wrong", **timed),
        *of_model("right", **timed),
        *of_model("late", None, **failed),
        *of_model("unchecked", **timed),
    ]
    accuracy = [
        *of_model("wrong", accuracy="fail_accuracy", **counts),
        *of_model("right", accuracy="pass", **counts | {"compilation_latency": 9.0}),
        *of_model("late", accuracy="pass", **counts),
        *of_model("crashed", None, accuracy="fail_to_run"),
    ]
    return [
        written(value, f"inductor_timm_models_float32_inference_cpu_{kind}.json")
        for kind, value in (("performance", performance), ("accuracy", accuracy))
    ]


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0,), (1,)])
def test_database_files_of_accuracy_and_performance_are_one_run(pair, order):
    (imported,) = read([pair[place] for place in order], TOLD)
    assert imported.run.name == "2024-02-03T00-00-00Z_inductor_timm_models_float32_inference_cpu"
    assert imported.run.imported["files"] == [path.name for path in pair]
    rows = {row.case.model: row for row in imported.rows}
    assert {model: (row.status, row.case.batch_size) for model, row in rows.items()} == {
        "wrong": ("fail_accuracy", 8), "right": ("pass", 8), "late": ("fail_to_run", 8),
        "unchecked": ("fail_to_run", 8), "crashed": ("fail_to_run", 0),
    }  # fmt: skip
    assert rows["right"].values == {
        "speedup": 1.5, "backend_ms": 4.0, "eager_ms": 6.0, "compilation_s": 20.0, "graphs": 1,
        "calls_captured": 98,
    }  # fmt: skip
    assert rows["right"].others == {"accuracy_run_compilation_s": 9.0}
    assert "no row in the accuracy file" in rows["unchecked"].details["notes"][0]


def test_database_pairs_of_other_commits_and_other_files_stay_apart(pair, written):
    dependencies = {"pytorch": {"sha": "0123456789abcdef"}}
    records = [{**each, "dependencies": dependencies} for each in json.loads(pair[1].read_text())]
    pair[1].write_text(json.dumps(records))
    other = written([record()], "inductor_timm_models_float32_inference_cpu.json")
    runs = read([other, pair[0]], TOLD)
    assert [sorted({row.status for row in run.rows}) for run in runs] == [
        ["pass_due_to_skip"],
        ["fail_to_run", "pass_due_to_skip"],
        ["fail_accuracy", "fail_to_run", "pass"],
    ]


def pair_of_sizes(written, timed, checked):
    """A pair whose files have these batch sizes of one model."""
    records = [*of_model("hf_GPT2", timed, speedup=1.5, abs_latency=4.0, calls_captured=98)]
    checks = [*of_model("hf_GPT2", checked, accuracy="pass", calls_captured=98)]
    stem = "inductor_torchbench_float32_inference_cpu"
    return [
        written(value, f"{stem}_{kind}.json")
        for kind, value in (("performance", records), ("accuracy", checks))
    ]


def test_database_pair_may_check_accuracy_with_a_smaller_batch(written):
    ((row,),) = (run.rows for run in read(pair_of_sizes(written, 8, 2), TOLD))
    assert (row.status, row.case.batch_size) == ("pass", 8)
    assert row.details["notes"] == ["accuracy was checked with batch size 2"]


def test_database_pair_with_a_larger_batch_for_accuracy_is_refused(written):
    with pytest.raises(UsageError, match=r"batch size 2, but 8 in .*not of one run"):
        read(pair_of_sizes(written, 2, 8), TOLD)


def test_database_pair_with_a_speedup_in_both_files_is_refused(pair):
    pair[1].write_text(pair[0].read_text())
    with pytest.raises(UsageError, match=r"speedup of this case again, it is in .*, line 1 too"):
        read(pair, TOLD)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps([record(), record()]), "speedup of this case again, it is in line 1 too"),
        (json.dumps([record(values=[float("nan")])]), "holds NaN, which is no measurement"),
        (json.dumps([record(values=[float("inf")])]), "holds Infinity"),
        (json.dumps([record(values=[-1])]), "speedup is -1, which cannot be"),
        (json.dumps([record(values=[10**30])]), "speedup is 1e\\+30, which cannot be"),
        (json.dumps([record(values=["1.5"])]), "speedup is '1.5', not a number"),
        (json.dumps([record(values=[True])]), "speedup is 'True', not a number"),
        (json.dumps([record(values=[])]), "no list of numbers, or empty"),
        (json.dumps([record(values=[12345])]).replace("12345", "9" * 5000), "a number of 5000 digits"),
        (json.dumps([record(values=[12345])]).replace("12345", "1e999"), "1e999, too large"),
        (json.dumps([record(model={"name": "a\0b"})]), "a NUL or an unpaired surrogate"),
        (json.dumps([record(model={"name": "\ud800"})]), "a NUL or an unpaired surrogate"),
        (json.dumps([record(model={"name": "a\nb"})]), r"model\.name is .*, not a name"),
        (json.dumps([record(model={"name": ["m"]})]), "model.name"),
        (json.dumps([record(benchmark=[])]), "benchmark is no JSON object"),
        (json.dumps([record(benchmark={"name": "x"})]), "does not say the dtype: give --dtype"),
        (json.dumps([record(), 7]), "not a record with a metric"),
        (json.dumps([record(), {"repo": "x"}]), "not a record with a metric"),
        (json.dumps([record()])[:-1], "the list seems cut off|',' or '\\]' expected"),
        (json.dumps(record())[:-1], "line 1: not valid JSON"),
        (json.dumps(record()) + "\n\n{", "line 3: not valid JSON"),
        (json.dumps(record())[:-1] + ', "metric": {}}', "'metric' twice in one object"),
        (json.dumps(record())[:-1] + ', "x": ' + "[" * 200_000, "nested too deeply"),
        (json.dumps([record(timestamp=1e18)]), "give --started"),
        (json.dumps([record(runners=[1])]), "runners is no list of objects"),
    ],
)
def test_database_bad_records_are_refused(written, text, message):
    with pytest.raises(UsageError, match=message):
        read([written(text)])


def test_userbenchmark_cpu():
    (run,) = read([FILES / "metrics-20230420004336.json"])
    assert run.run.name == "2023-04-20T00-43-36Z_cpu metrics-20230420004336"
    assert run.run.started == "2023-04-20T00:43:36Z"
    assert run.run.environment["worker"]["torch_git_version"].startswith("de1114554c")
    eager, compiled, unknown = run.rows
    assert eager.case == Case("torchbench", "alexnet", dtype="unspecified", batch_size=0, backend="eager")
    assert (eager.values, eager.others) == ({"eager_ms": 58.25}, {"cmem": 0.416259765625})
    assert eager.details["origin"] == {"file": "metrics-20230420004336.json", "line": 7}
    assert (compiled.case.backend, compiled.case.scenario) == ("inductor", "training")
    assert compiled.values == {"backend_ms": 305.0}
    assert compiled.samples == {"backend_ms": (300.0, 310.0, 305.0)}
    assert (unknown.values, unknown.others) == ({}, {"latency_ms": 335.0})


def test_userbenchmark_refuses_another_back_end_than_the_given():
    with pytest.raises(UsageError, match="line 7: says backend 'eager', but --backend 'inductor'"):
        read(
            [FILES / "metrics-20230420004336.json"],
            ImportOptions(backend="inductor", started="mtime", threads=1, host="box"),
        )


def test_userbenchmark_test_bench():
    (run,) = read([FILES / "metrics-20240506070809.json"])
    assert run.run.host_class == "NVIDIA A100-SXM4-40GB"
    eager, compiled, oom, skipped, nightly, own = run.rows
    assert eager.case == Case("torchbench", "alexnet", "cuda", "unspecified", 0, backend="eager")
    assert (eager.values, eager.others) == ({"eager_ms": 12.5}, {"gpu_peak_mem": 1.5})
    assert compiled.case == Case("torchbench", "alexnet", "cuda", "bfloat16", 8)
    assert compiled.values == {"backend_ms": 6.25}
    assert (oom.status, oom.case.scenario) == ("eager_oom", "training")
    assert (skipped.status, skipped.details["notes"]) == ("skipped", ["not_implemented"])
    assert (nightly.case.model, nightly.values) == ("timm_regnet", {"eager_ms": 20.5})
    assert (own.case.suite, own.case.model, own.others) == (
        "test_bench",
        "Adam, cuda, foreach",
        {"value": -0.25},
    )
    assert own.case.backend == own.case.scenario == "unspecified"


def metrics(**values):
    return {"name": "b", "environ": {}, "metrics": values}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (metrics(a=None), "a is 'None', not a number"),
        (metrics(a={"b": 1}), "not a number"),
        (metrics(a=True), "not a number"),
        (metrics(a=[]), "not a number"),
        (metrics(), "missing or empty"),
        ({**metrics(a=1), "name": ""}, "name is '', not a name"),
        (metrics(**{"test_eval[m-cpu-eager]_latency": -1}), "latency is -1, which cannot be"),
        (metrics(**{"test_eval[m-cpu-eager]_latency": 1,
                    "model=m, test=eval, device=cpu, bs=None, extra_args=[], metric=latencies": 2}),
         "there twice for one case"),
    ],
)  # fmt: skip
def test_userbenchmark_bad_metrics_are_refused(written, document, message):
    with pytest.raises(UsageError, match=message):
        read([written(document)])


def test_regression_has_two_sides():
    control, treatment = read([FILES / "regression-20240507000000.yaml"])
    assert (control.run.started, treatment.run.started) == ("2024-05-06T23:59:59Z", "2024-05-07T00:00:00Z")
    assert control.key != treatment.key
    assert control.run.environment["worker"]["torch_git_version"] == "1111111111"
    assert treatment.run.environment["worker"]["torch_git_version"] == "2222222222"
    assert "only the metrics that changed" in control.run.imported["notes"][0]
    assert [dict(row.values) for row in control.rows] == [{"eager_ms": 20.0}, {"eager_ms": 3.5}]
    assert [row.status for row in control.rows] == ["pass_due_to_skip", "pass"]
    assert [dict(row.values) for row in treatment.rows] == [{"eager_ms": 25.0}, {}]
    assert [row.status for row in treatment.rows] == ["pass_due_to_skip", "fail_to_run"]
    assert control.rows[0].details["origin"] == {"file": "regression-20240507000000.yaml", "line": 12}


def test_regression_reads_numbers_without_a_point(written):
    """PyYAML takes them for text; it writes a point, other programs do not."""
    text = (FILES / "regression-20240507000000.yaml").read_text()
    text = text.replace("control: 20.0", "control: 1e-05").replace("'1111111111'", "1111e11")
    control, _ = read([written(text, "regression-20240507000000.yaml")])
    assert control.rows[0].values == {"eager_ms": 1e-05}
    assert control.run.torch_git_version == "1111e11", "a commit of digits is text"


def test_regression_with_given_times():
    control, treatment = read([FILES / "regression-20240507000000.yaml"], TOLD)
    assert (control.run.started, treatment.run.started) == ("2024-02-02T23:59:59Z", "2024-02-03T00:00:00Z")


HEAD = "name: b\ncontrol_env: {}\ntreatment_env: {}\ndetails:\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "  m: {control: .nan, treatment: 1}\n", "line 5: a value is '.nan', not a number"),
        (HEAD + "  m: {control: 1:30, treatment: 1}\n", "not a number"),
        (HEAD + "  m: {control: 0x10, treatment: 1}\n", "not a number"),
        (HEAD + "  m: {control: 1}\n", "line 5: m has no treatment"),
        (HEAD + "  m: {control: 1, control: 2, treatment: 1}\n", "control is in line 5 too"),
        (HEAD + "  m: 1\n", "m is no mapping"),
        (HEAD + "  m: {control: 1, treatment: !!python/object/apply:os.abort []}\n", "not a number"),
        (HEAD + "  m: &a {control: 1, treatment: 1}\n  n: *a\n", "an alias"),
        (HEAD + "  m: &a {control: *a}\n", "an alias"),
        (HEAD + "  m: {control: 1, treatment: \n", "not valid YAML"),
        (HEAD + "  ? [a]\n  : {control: 1, treatment: 1}\n", "a key that is no text"),
        (HEAD + "  m: " + "[" * 2000 + "\n", "nested too deeply"),
        (HEAD, "no metrics in it"),
        (HEAD + "  m: {control: 1, treatment: 1}\n---\nx: 1\n", "not valid YAML"),
        (HEAD.replace("name: b", "nome: b") + "  m: {control: 1, treatment: 1}\n", "name is 'None'"),
    ],
)
def test_regression_bad_files_are_refused(written, text, message):
    with pytest.raises(UsageError, match=message):
        read([written(text, "regression.yaml")])
