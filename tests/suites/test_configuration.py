"""Configurations: files, their cases, and what is refused before anything is measured."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from perfdash import topology
from perfdash.errors import UsageError
from perfdash.records import NAMED_DYNAMIC, Case, variation, variation_in_words
from perfdash.settings import resolve
from perfdash.suites.case_selection import select
from perfdash.suites.configuration import (
    chosen,
    configuration_names,
    load_configuration,
    named,
    settings_of_options,
)
from perfdash.suites.suite_file import own_models
from perfdash.topology import PhysicalCore
from perfdash.worker import registry

FREEZING = '{"inductor_config":{"freezing":true}}'


@pytest.fixture
def model(tmp_path):
    (tmp_path / "net.py").write_text("def make(batch_size): ...\n")
    return own_models([f"{tmp_path / 'net.py'}:make"])


def cases(model, folder, **flags):
    """The planned cases of one model under some flags, by configuration."""
    planned = select([model], resolve(flags, environ={}, folder=folder)[0])
    return {each.case.configuration: each for each in planned}


def written(folder, text, name="mine"):
    path = folder / f"{name}.toml"
    path.write_text(text)
    return str(path)


def test_the_shipped_configurations_load_default_first():
    names = configuration_names()
    assert names[0] == "default"
    assert set(names) == {
        "default", "cpp-wrapper", "freezing", "freezing-amp", "dynamic", "dynamic-batch",
        "dynamic-cpp-wrapper", "max-autotune", "cudagraphs", "aot-inductor", "export", "socket",
    }  # fmt: skip
    assert len({str(load_configuration(name).values) for name in names}) == len(names)
    assert load_configuration("default").values == {}
    assert load_configuration("freezing-amp").settings == FREEZING
    assert {name for name in names if load_configuration(name).values.get("dynamic")} == NAMED_DYNAMIC


def test_a_configuration_with_and_without_dynamic_shapes_has_two_names():
    static = Case("timm", "m", configuration="mine", settings='{"bind_memory":true}')
    dynamic = replace(static, dynamic=True)
    assert static.name != dynamic.name
    assert [variation(case.configuration, case.dynamic) for case in (static, dynamic)] == [
        "mine",
        "mine+dynamic",
    ]
    assert variation_in_words("mine", True, static.settings) == [
        "configuration mine+dynamic (bind_memory=True)"
    ]
    assert {variation(name, True) for name in NAMED_DYNAMIC} == NAMED_DYNAMIC


def test_cases_of_a_run_under_several_configurations(model, tmp_path):
    planned = cases(model, tmp_path, configuration=["default,dynamic", "freezing-amp"])
    assert list(planned) == ["default", "dynamic", "freezing-amp"]
    assert planned["default"].case == Case("own", "net.make")
    assert planned["dynamic"].case == Case("own", "net.make", dynamic=True)
    frozen = planned["freezing-amp"]
    assert (frozen.case.dtype, frozen.case.amp_dtype, frozen.case.settings) == ("amp", "bfloat16", FREEZING)
    assert (frozen.inductor_config, planned["default"].inductor_config) == ({"freezing": True}, {})
    assert len({each.case.name for each in planned.values()}) == 3


def test_options_that_equal_a_configuration_measure_it_whatever_they_are_called(model, tmp_path):
    by_options = cases(model, tmp_path, inductor_config=["freezing=1"])
    by_name = cases(model, tmp_path, configuration=["freezing"])
    assert by_options == by_name
    assert cases(model, tmp_path, dynamic=True) == cases(model, tmp_path, configuration=["dynamic"])
    other = cases(model, tmp_path, inductor_config=["freezing=1", "cpp_wrapper=1"])["default"]
    assert other.case.settings == ""  # such options are the run's: part of its testbed
    assert settings_of_options({"inductor_config": {"freezing": True}, "compile_mode": "default"}) is None


def test_old_cases_get_the_name_that_says_most_of_them():
    assert named(Case("s", "m", dynamic=True)).configuration == "dynamic"
    assert named(Case("s", "m", settings=FREEZING)).configuration == "freezing"
    assert named(Case("s", "m", dtype="amp", settings=FREEZING)).configuration == "freezing-amp"
    assert named(Case("s", "m", backend="inductor-max-autotune")).configuration == "default"


def test_what_cannot_be_done_is_skipped_with_the_reason(model, tmp_path):
    assert cases(model, tmp_path, configuration=["cudagraphs"])["cudagraphs"].skip_reason == (
        "configuration cudagraphs is for devices cuda, not for cpu"
    )
    in_training = cases(model, tmp_path, configuration=["freezing"], scenario="training")["freezing"]
    assert in_training.skip_reason == "configuration freezing is for scenarios inference, not for training"
    path = written(tmp_path, 'backend = "to-come"')
    assert cases(model, tmp_path, configuration=[path])["mine"].skip_reason == (
        "this perfdash has no back end to-come, which configuration mine needs"
    )


def test_a_configuration_may_name_a_back_end_of_the_users_own(model, tmp_path):
    (tmp_path / "own.py").write_text("def prepare(module, inputs, job): ...\n")
    path = written(tmp_path, f"backend = '{tmp_path}/own.py'\ninductor_config = {{ freezing = true }}")
    planned = cases(model, tmp_path, configuration=[path])["mine"]
    assert planned.skip_reason is None
    assert (planned.case.backend, planned.backend_file) == ("own", f"{tmp_path}/own.py")


@pytest.mark.parametrize(
    "flags",
    [
        {"configuration": ["cudagraphs"]},
        {"compile_mode": "reduce-overhead"},
        {"compile_mode": "max-autotune"},
    ],
)
def test_generation_is_not_run_through_cuda_graphs(model, tmp_path, flags):
    """The cache is made within the call: the graph of the next step would overwrite it."""

    def reason(**more):
        (planned,) = cases(
            model, tmp_path, **{"device": "cuda", "scenario": "generation", **flags, **more}
        ).values()
        return planned.skip_reason

    why = "CUDA graphs cannot run generation: each step would overwrite the cache that the next one reads"
    assert reason() == reason(backend=["int8-weights-inductor"]) == why
    assert reason(scenario="inference") is None
    assert reason(backend=["eager"]) is None


def test_back_ends_that_do_not_read_a_configuration_s_options_are_skipped_under_it(model, tmp_path):
    """They measured the default once more, as `freezing` and with its tolerance."""

    def planned(**flags):
        chosen = select([looser], resolve(flags, environ={}, folder=tmp_path)[0])
        return {(each.case.backend, each.case.configuration): each for each in chosen}

    (only,) = model.models
    looser = model.model_copy(update={"models": [only.model_copy(update={"tolerance_freezing": 0.08})]})
    backends = ["torchscript,onnxruntime,aot-eager,inductor"]
    both = planned(configuration=["default,freezing,dynamic"], backend=backends)
    skipped = {key: each.skip_reason for key, each in both.items() if each.skip_reason}
    assert set(skipped) == {
        ("torchscript", "freezing"), ("onnxruntime", "freezing"), ("aot-eager", "freezing"),
        ("torchscript", "dynamic"), ("onnxruntime", "dynamic"),
    }  # fmt: skip
    assert skipped["torchscript", "freezing"] == (
        "back end torchscript does not read inductor_config, which configuration freezing sets"
    )
    assert both["inductor", "freezing"].tolerance == 0.08
    assert both["inductor", "freezing"].case.settings == FREEZING
    assert {each.tolerance for key, each in both.items() if key != ("inductor", "freezing")} == {1e-3}
    by_options = planned(inductor_config=["freezing=1"], backend=["torchscript,inductor"])
    assert {key: bool(each.skip_reason) for key, each in by_options.items()} == {
        ("torchscript", "freezing"): True, ("inductor", "freezing"): False,
    }  # fmt: skip
    # Options that equal no configuration are part of the testbed: no series is called by them.
    others = planned(inductor_config=["freezing=1", "cpp_wrapper=1"], backend=["torchscript,inductor"])
    assert not any(each.skip_reason for each in others.values())
    assert {key[0]: each.tolerance for key, each in others.items()} == {"torchscript": 1e-3, "inductor": 0.08}


def test_a_back_end_of_one_s_own_reads_all_options_unless_it_says_which(model, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def prepare(module, inputs, job): ...\n")
    assert not cases(model, tmp_path, configuration=["freezing"], backend=[str(file)])["freezing"].skip_reason
    file.write_text('OPTIONS = ("dynamic",)\n' + file.read_text())
    assert cases(model, tmp_path, configuration=["freezing"], backend=[str(file)])["freezing"].skip_reason
    assert not cases(model, tmp_path, configuration=["dynamic"], backend=[str(file)])["dynamic"].skip_reason


def test_eager_is_measured_under_any_configuration(model, tmp_path):
    """As a bisection of eager's latency does, for an alert of a case that has one."""
    planned = cases(model, tmp_path, configuration=["freezing,dynamic"], backend=["eager"])
    assert [each.skip_reason for each in planned.values()] == [None, None]


@pytest.mark.parametrize("name", registry.names("backends"))
def test_every_back_end_of_perfdash_says_which_options_it_reads(name):
    assert set(registry.backend_facts(name).OPTIONS) <= {"compile_mode", "dynamic", "inductor_config"}


def test_an_edited_configuration_starts_a_new_series(model, tmp_path):
    path = written(tmp_path, "inductor_config = { max_fusion_size = 8 }")
    first = cases(model, tmp_path, configuration=[path])["mine"].case
    written(tmp_path, "inductor_config = { max_fusion_size = 16 }")
    second = cases(model, tmp_path, configuration=[path])["mine"].case
    assert first != second
    assert first.configuration == second.configuration == "mine"


def test_socket_takes_the_threads_of_a_socket_and_binds_them(model, tmp_path, monkeypatch):
    made = [PhysicalCore((core,), core // 4, core // 4) for core in range(12)]
    monkeypatch.setattr(
        topology, "available", lambda asked: [c for c in made if c.first in (asked or range(12))]
    )
    planned = cases(model, tmp_path, configuration=["default,socket"])
    assert (planned["default"].case.threads, planned["default"].case.settings) == (1, "")
    assert (planned["socket"].case.threads, planned["socket"].case.options) == (4, {"bind_memory": True})
    assert cases(model, tmp_path, configuration=["socket"], cores="4-6")["socket"].case.threads == 3
    assert cases(model, tmp_path, configuration=["socket"], device="cuda")["socket"].skip_reason


def test_dynamic_batch_runs_several_sizes_of_suites_for_inference(model, tmp_path):
    planned = cases(model, tmp_path, configuration=["default,dynamic-batch"])
    assert planned["dynamic-batch"].case == Case(
        "own",
        "net.make",
        scenario="sizes",
        configuration="dynamic-batch",
        settings='{"sizes_of":"batch"}',
    )
    assert (planned["dynamic-batch"].sizes, planned["dynamic-batch"].sizes_of) == ((2, 4, 8), "batch")
    assert (planned["default"].case.scenario, planned["default"].sizes) == ("inference", ())
    training = model.model_copy(update={"scenario": "training"})
    skipped = cases(training, tmp_path, configuration=["default,dynamic-batch"])["dynamic-batch"]
    assert skipped.skip_reason == "configuration dynamic-batch is for scenarios inference, not for training"


def test_a_configuration_may_give_the_sizes(model, tmp_path):
    path = written(tmp_path, 'scenario = "sizes"\nsizes = [1, 4]')
    planned = cases(model, tmp_path, configuration=[path])["mine"]
    assert (planned.sizes, planned.case.options) == ((1, 4), {"sizes": [1, 4]})
    assert cases(model, tmp_path, configuration=[path], sizes=["1,4"])["mine"] == planned
    refused = "--sizes 2,8: configuration mine sets it to [1, 4]; leave one of the two out"
    with pytest.raises(UsageError, match=re.escape(refused)):
        cases(model, tmp_path, configuration=[path], sizes=["2,8"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"configuration": ["dynamic-batch"], "scenario": "training"},
            "--scenario training: configuration dynamic-batch sets it to sizes; leave one of the two out",
        ),
        (
            {"configuration": ["socket"], "threads": 3},
            "--threads 3: configuration socket sets it to ",
        ),
        ({"configuration": ["dynamc"]}, "no configuration named 'dynamc' (did you mean dynamic"),
        (
            {"configuration": ["freezing"], "inductor_config": ["freezing=0"]},
            "--inductor-config freezing=0: configuration freezing sets freezing to true; leave one",
        ),
        (
            {"configuration": ["default", "freezing-amp"], "dtype": ["float32"]},
            "--dtype float32: configuration freezing-amp sets it to amp; leave one",
        ),
        (
            {"configuration": ["default", "dynamic"], "dynamic": True},
            "with the options of this run default and dynamic measure the same (net.make)",
        ),
        (
            {"configuration": ["/nowhere/mine.toml"]},
            "--configuration /nowhere/mine.toml: the file /nowhere/mine.toml cannot be read",
        ),
    ],
)
def test_contradictions_are_refused(model, tmp_path, flags, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        cases(model, tmp_path, **flags)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dynamc = true", "unknown key 'dynamc' (did you mean dynamic?)"),
        ("threads = 0", "key 'threads': 0 must be at least 1"),
        ('dtype = "float8"', "key 'dtype'"),
        ('scenario = "sizes"\nsizes = 8', "key 'sizes'"),
        ('scenario = "infer"', "key 'scenario': no scenario named 'infer'; there are: "),
        ('scenarios = ["infer"]', "key 'scenarios': no scenario named 'infer'; there are: "),
        ('name = "x"', "key 'name': a configuration is named by its file"),
        ("dynamic = ", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_file_and_key(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match=re.escape(message)) as refused:
        load_configuration(path)
    assert str(refused.value).startswith(f"configuration file {path}")


def test_two_configurations_of_one_name_or_with_equal_keys_are_refused(tmp_path):
    (tmp_path / "other").mkdir()
    first = written(tmp_path, 'compile_mode = "default"')
    with pytest.raises(UsageError, match="two files are called mine"):
        chosen([first, written(tmp_path / "other", 'compile_mode = "max-autotune"')])
    with pytest.raises(UsageError, match="dynamic and same set the same"):
        chosen(["dynamic", written(tmp_path, "dynamic = true", "same")])
    with pytest.raises(UsageError, match="dynamic is one of perfdash's own"):
        load_configuration(written(tmp_path, "dynamic = true", "dynamic"))


def test_secrets_of_a_configuration_are_not_in_its_cases(tmp_path):
    path = written(tmp_path, 'env = { HF_TOKEN = "hf_abcdefghijklmnopqrstuvwxyz", OMP_PROC_BIND = "close" }')
    settings = load_configuration(path).settings
    assert "hf_abc" not in settings
    assert '"OMP_PROC_BIND":"close"' in settings
