import csv
from dataclasses import replace

from perfdash.records import Case, Measurement, Result, Speedup, Status
from perfdash.runner import dynamo_csv_writer


def result(model, status, **fields):
    return Result(Case("timm", model, backend=fields.pop("backend", "inductor")), "t", 1.0, status, **fields)


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_files_columns_and_words(tmp_path):
    good = result(
        "good",
        Status.PASS,
        speedup=Speedup(1.25, 1.2, 1.3, "faster", "pooled"),
        backend_ms=Measurement(8.0, 8, 8, 8, 0, 1),
        compilation_s=20.5,
        compression_ratio=1.1,
        eager_peak_bytes=2_200_000_000,
        backend_peak_bytes=2_000_000_000,
        capture={"graphs": 1, "calls_captured": 98, "graph_breaks": 0},
    )
    rows = [
        good,
        result("crashed", Status.CRASH),
        result("big", Status.EAGER_OOM),
        result("left_out", Status.SKIPPED),
        result("good", Status.PASS, backend="aot-eager"),
    ]
    paths = dynamo_csv_writer.write(tmp_path / "csv", rows, {"timm": "timm_models"})
    assert sorted(path.name for path in paths) == [
        "aot_eager_timm_models_float32_inference_cpu_accuracy.csv",
        "aot_eager_timm_models_float32_inference_cpu_performance.csv",
        "inductor_timm_models_float32_inference_cpu_accuracy.csv",
        "inductor_timm_models_float32_inference_cpu_performance.csv",
    ]
    performance = read(paths[0])
    assert [row["name"] for row in performance] == ["good", "crashed", "big"]
    assert performance[0] == {
        "dev": "cpu",
        "name": "good",
        "batch_size": "1",
        "speedup": "1.25",
        "abs_latency": "8.0",
        "compilation_latency": "20.5",
        "compression_ratio": "1.1",
        "eager_peak_mem": "2.2",
        "dynamo_peak_mem": "2.0",
        "calls_captured": "98",
        "unique_graphs": "1",
        "graph_breaks": "0",
        "unique_graph_breaks": "0",
        "autograd_captures": "0",
        "autograd_compiles": "0",
        "cudagraph_skips": "0",
        "disturbed": "",
        "recompile_limit": "",
        "run_options": "",
    }
    assert performance[1]["speedup"] == "0.0"
    accuracy = read(paths[1])
    assert [row["accuracy"] for row in accuracy] == ["pass", "fail_to_run", "eager_1st_run_OOM"]


def test_counts_of_a_back_end_without_dynamo_are_empty(tmp_path):
    timed = result("m", Status.PASS, backend="onnxruntime", speedup=Speedup(1.25, 1.2, 1.3, "faster"))
    for path in dynamo_csv_writer.write(tmp_path, [timed], {}):
        (row,) = read(path)
        assert {row[name] for name in ("calls_captured", "unique_graphs", "graph_breaks")} == {""}


def test_each_configuration_has_files_of_its_own(tmp_path):
    case = Case("timm", "m")
    cases = [
        case,
        replace(case, configuration="dynamic", dynamic=True),
        replace(case, configuration="freezing", settings="inductor_config: freezing=true"),
        replace(case, configuration="freezing", settings="inductor_config: freezing=true", dynamic=True),
    ]
    results = [Result(case, "t", 1.0, Status.PASS) for case in cases]
    paths = dynamo_csv_writer.write(tmp_path, results, {})
    name = "inductor_timm_float32_inference_cpu"
    assert [path.name for path in paths[::2]] == [
        f"{name}_performance.csv", f"{name}_dynamic_performance.csv", f"{name}_freezing_performance.csv",
        f"{name}_freezing_dynamic_performance.csv",
    ]  # fmt: skip
    assert [len(read(path)) for path in paths] == [1] * 8


def test_a_disturbed_row_says_why(tmp_path):
    spoilt = result(
        "spoilt",
        Status.PASS,
        speedup=Speedup(9.0, 1.2, 30.0, "disturbed", "processes"),
        conditions={"disturbed": "other programs used this core during 93% of the pairs"},
    )
    (performance, _) = dynamo_csv_writer.write(tmp_path, [spoilt], {})
    (row,) = read(performance)
    assert row["speedup"] == "9.0"
    assert row["disturbed"] == "other programs used this core during 93% of the pairs"
