"""Suites that say how their models are run: ways, baseline, data, training; and back ends of one's own."""

from __future__ import annotations

import pytest

from perfdash.errors import UsageError
from perfdash.runner.messages import weights_of
from perfdash.runner.noise import null_case
from perfdash.runner.plan import cut, differences
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import backend_names, select
from perfdash.suites.suite_file import load_suite

SUITE = """
name = "mine"
loader = "torchvision"
baseline_dtype = "float32"
[[ways]]
backend = "eager"
dtypes = ["float32", "bfloat16", "amp"]
[[ways]]
backend = "int8_dynamic"
devices = ["cpu"]
[[ways]]
backend = "tensorrt"
devices = ["cuda"]
[defaults]
distance = { bfloat16 = 0.5 }
batch_size = 8
training = { batch_size = 2, tolerance = 0.1, loss = "mean" }
[[models]]
name = "a"
[[models]]
name = "words"
loader = "transformers"
target = "BertForSequenceClassification"
data = "text"
training = { batch_size = 3 }
"""


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(SUITE)
    return load_suite(str(path))


def ways(planned):
    return [(entry.case.backend, entry.case.dtype) for entry in planned]


def test_the_ways_of_the_suite_where_none_is_asked_for(suite):
    planned = select([suite], RunSettings(models=("a",)))
    assert ways(planned) == [
        ("eager", "float32"),
        ("eager", "bfloat16"),
        ("eager", "amp"),
        ("int8-dynamic", "float32"),
    ]
    on_gpu = select([suite], RunSettings(models=("a",), device="cuda"))
    assert ("tensorrt", "float32") in ways(on_gpu)
    assert ("int8-dynamic", "float32") not in ways(on_gpu)


def test_what_is_asked_for_comes_in_every_combination(suite):
    planned = select([suite], RunSettings(models=("a",), backend=("inductor", "eager"), dtype=("bfloat16",)))
    assert ways(planned) == [("inductor", "bfloat16"), ("eager", "bfloat16")]
    assert ways(select([suite], RunSettings(models=("a",), dtype=("amp",)))) == [("inductor", "amp")]
    assert ways(select([suite], RunSettings(models=("a",), backend=("eager",)))) == [("eager", "float32")]


def test_only_what_is_meant_to_differ_has_a_bound_for_its_distance(suite):
    planned = select([suite], RunSettings(models=("a",)))
    assert [entry.distance_bound for entry in planned] == [None, 0.5, 0.05, 0.2]
    assert [entry.baseline_dtype for entry in planned] == [None, "float32", "float32", None]


def test_a_back_end_is_skipped_in_what_it_does_not_take(suite):
    (planned,) = select([suite], RunSettings(models=("a",), backend=("int8-dynamic",), dtype=("bfloat16",)))
    assert planned.skip_reason == "back end int8-dynamic is for dtypes float32, not for bfloat16"
    assert not planned.needs_cpp


def test_a_compiler_is_needed_by_what_generates_code(suite):
    planned = select(
        [suite], RunSettings(models=("a",), backend=("eager", "inductor-freezing", "torchscript"))
    )
    assert [entry.needs_cpp for entry in planned] == [False, True, False]


def test_training_has_its_own_settings(suite):
    planned = select([suite], RunSettings(backend=("eager",), scenario="training"))
    assert [(entry.case.batch_size, entry.tolerance) for entry in planned] == [(2, 0.1), (3, 0.1)]
    inference = select([suite], RunSettings(backend=("eager",)))
    assert [(entry.case.batch_size, entry.tolerance) for entry in inference] == [(8, 1e-3), (8, 1e-3)]


def test_data_go_to_the_models_that_take_them(suite, tmp_path):
    images, texts = tmp_path / "images", tmp_path / "texts"
    images.mkdir(), texts.mkdir()
    (texts / "data.csv").write_text("text,label\n")
    kinds = [
        [
            (entry.data, entry.data_path)
            for entry in select([suite], RunSettings(backend=("eager",), data=str(path)))
        ]
        for path in (images, texts, texts / "data.csv")
    ]
    assert kinds[0] == [("images", str(images)), (None, None)]
    assert kinds[1] == [(None, None), ("text", str(texts))]
    assert kinds[2] == [(None, None), ("text", str(texts / "data.csv"))]
    with pytest.raises(UsageError, match="no chosen model"):
        select([suite], RunSettings(models=("words",), backend=("eager",), data=str(images)))
    with pytest.raises(UsageError, match="there is no such folder"):
        select([suite], RunSettings(data=str(tmp_path / "none")))


def test_data_are_for_inference(suite, tmp_path):
    selection = RunSettings(models=("a",), backend=("eager",), data=str(tmp_path), scenario="training")
    with pytest.raises(UsageError, match="no chosen model"):
        select([suite], selection)


def test_the_null_is_always_the_same_small_model(suite, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("SCENARIOS = ('training',)\ndef prepare(module, inputs, job):\n    return module\n")
    selection = RunSettings(
        models=("a",), backend=(str(mine),), dtype=("amp",), scenario="training", threads=2
    )
    (like,) = select([suite], selection)
    null = null_case(like)
    assert (null.case.scenario, null.case.dtype, null.case.amp_dtype, null.case.threads) == (
        "inference",
        "float32",
        None,
        2,
    )
    assert (null.backend_file, null.loss, null.variant, null.baseline_dtype) == (None, None, {}, None)


def test_a_plan_of_before_these_settings_is_the_same_plan(suite):
    plan = cut(select([suite], RunSettings(models=("a",), backend=("inductor",))), [], None)
    old = plan.to_json()
    for entry in old["cases"]:
        for key in ("optimizer", "variant", "new_tokens", "cache", "until_oom", "backend_file", "data"):
            del entry[key]
        for key in ("settings", "configuration"):
            del entry["case"][key]
    assert differences(old, plan.to_json()) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('backend = "eager"', 'backend = "eagre"', "no back end named 'eagre'"),
        ('dtypes = ["float32"', 'dtype = ["float32"', r"unknown key 'ways.0.dtype' \(did you mean dtypes"),
        ('baseline_dtype = "float32"', 'baseline_dtype = "int8"', "baseline_dtype"),
        ("loss = ", "los = ", r"unknown key 'defaults.training.los' \(did you mean loss\?\)"),
        ("bfloat16 = 0.5", "bfloat16 = 0", "distance"),
    ],
)
def test_what_is_wrong_with_it_is_named(tmp_path, old, new, words):
    path = tmp_path / "suite.toml"
    path.write_text(SUITE.replace(old, new))
    with pytest.raises(UsageError, match=words):
        load_suite(str(path))


def test_a_back_end_of_ones_own_is_a_file(suite, tmp_path, monkeypatch):
    mine = tmp_path / "my_way.py"
    mine.write_text("DTYPES = ('float32',)\ndef prepare(module, inputs, job):\n    return module\n")
    monkeypatch.chdir(tmp_path)
    assert backend_names(RunSettings(backend=["my_way.py", "int8_dynamic"])) == (
        str(mine),
        "int8-dynamic",
    )
    planned = select([suite], RunSettings(models=("a",), backend=(str(mine),), dtype=("float32", "amp")))
    assert [entry.case.backend for entry in planned] == ["my-way", "my-way"]
    assert [bool(entry.skip_reason) for entry in planned] == [False, True]
    assert {entry.backend_file for entry in planned} == {str(mine)}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("none.py", None, "there is no back end"),
        ("empty.py", "x = 1\n", "has no function prepare"),
        ("broken.py", "def prepare(:\n", "SyntaxError"),
        ("eager.py", "def prepare(module, inputs, job): ...\n", "is one of perfdash's own"),
    ],
)
def test_a_file_that_is_no_back_end_is_refused(tmp_path, name, text, words):
    if text:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=words):
        backend_names(RunSettings(backend=[str(tmp_path / name)]))


def test_weights_are_a_word_or_a_file(tmp_path, monkeypatch):
    (tmp_path / "w.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert weights_of(RunSettings()) == "random"
    assert weights_of(RunSettings(weights="w.safetensors")) == str(tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match="no such file; it is random, pretrained, or a file"):
        weights_of(RunSettings(weights="pretraind"))


def test_a_variant_under_autocast_is_judged_by_its_distance():
    suite = load_suite("training-variants")
    bounds = {entry.case.model: entry.distance_bound for entry in select([suite], RunSettings())}
    assert bounds["resnet50_autocast"] == 0.5
    assert bounds["resnet50_channels_last"] is None
