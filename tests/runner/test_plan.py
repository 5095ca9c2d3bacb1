from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.errors import UsageError
from perfdash.records import Result, Status
from perfdash.runner.plan import (
    cut,
    differences,
    forecast,
    make_plan,
    parse_shard,
    plan_from_json,
    refuse_edited_model,
)
from perfdash.settings import RunSettings
from perfdash.worker import own_files
from tests.checkouts import write_checkout
from tests.runner.planned import CASES, COSTS, case


@given(st.lists(st.floats(0.1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_shards_are_all_cases_once(costs, count):
    cases = [case(f"m{number}") for number in range(len(costs))]
    shards = [cut(cases, costs, (number, count)) for number in range(1, count + 1)]
    assert sorted(index for shard in shards for index in shard.mine) == list(range(len(cases)))
    assert len({shard.fingerprint for shard in shards}) == 1


def test_shards_are_balanced():
    sums = [sum(COSTS[index] for index in cut(CASES, COSTS, (number, 3)).mine) for number in (1, 2, 3)]
    assert max(sums) <= sum(COSTS) / 3 + 1


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_no_shard_is_empty(count):
    costs = [10.0, *[1.0] * 8]
    assert all(cut(CASES, costs, (number, count)).mine for number in range(1, count + 1))


def test_it_is_read_back():
    plan = cut(CASES, COSTS, (2, 3))
    again = plan_from_json(plan.to_json())
    assert (again.costs, again.shard, again.mine) == (plan.costs, plan.shard, plan.mine)
    assert [planned_case.case for planned_case in again.cases] == [
        planned_case.case for planned_case in CASES
    ]
    assert not differences(plan.to_json(), plan_from_json(plan.to_json()).to_json())
    with pytest.raises(UsageError, match="not a plan"):
        plan_from_json({"cases": []})


def test_what_differs_is_reported_but_limits_may():
    old = cut(CASES, COSTS, None).to_json()
    changed = [replace(CASES[0], tolerance=0.5), *CASES[2:], case("new")]
    reasons = differences(old, cut(changed, [], None).to_json())
    assert len(reasons) == 3
    assert any(line.endswith("tolerance: 0.001 | 0.5") for line in reasons)
    assert any("m1" in line and "not now" in line for line in reasons)
    assert any("new" in line and "not planned then" in line for line in reasons)
    slower = [
        replace(planned_case, timeout_s=1.0, memory_limit_bytes=5, cost_s=3.0) for planned_case in CASES
    ]
    assert not differences(old, cut(slower, [], None).to_json())


def test_a_models_own_file_is_known_by_what_it_holds(tmp_path):
    file = tmp_path / "m.py"
    file.write_text("one")
    plan = cut([case("m", loader="python", target=f"{file}:f")], [1.0], None)
    old = plan.to_json()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "m.py").write_text("one")
    moved = cut([case("m", loader="python", target=f"{elsewhere / 'm.py'}:f")], [1.0], None)
    assert not differences(old, moved.to_json())
    assert moved.fingerprint == plan.fingerprint
    file.write_text("two")
    assert "source" in differences(old, plan.to_json())[0]


def test_a_module_beside_a_model_that_was_edited_since_is_refused(tmp_path):
    (tmp_path / "net.py").write_text("import layers\n")
    layers = tmp_path / "layers.py"
    layers.write_text("size = 3\n")
    mine = replace(case("mine"), target=f"{tmp_path}/net.py:make")
    digests = {name: own_files.digest_now(tmp_path / name) for name in ("net.py", "layers.py")}
    results = [Result(planned.case, "t", 1.0, Status.PASS, structure={"model_files": digests})
               for planned in (mine, case("of another plan"))]  # fmt: skip
    refuse_edited_model(results, [mine], "night")
    layers.write_text("size = 4\n")
    with pytest.raises(UsageError, match=rf"Cannot resume night: .* before {layers} was edited"):
        refuse_edited_model(results, [mine], "night")
    layers.unlink()  # as a module that the model itself had written, or that was generated code
    refuse_edited_model(results, [mine], "night")


def test_a_file_of_a_checkout_that_was_edited_since_is_refused(tmp_path):
    tasks = tmp_path / "torchbenchmark" / "tasks.py"
    tasks.parent.mkdir()
    tasks.write_text("one\n")
    planned = case("m", loader="torchbench", target="m", config={"checkout": str(tmp_path)})
    digests = {"torchbenchmark/tasks.py": own_files.digest_now(tasks)}
    results = [Result(planned.case, "t", 1.0, Status.PASS, structure={"model_files": digests})]
    refuse_edited_model(results, [planned], "night")
    tasks.write_text("two\n")
    with pytest.raises(UsageError, match=rf"Cannot resume night: .* before {tasks} was edited"):
        refuse_edited_model(results, [planned], "night")


def test_a_model_of_perfdash_that_changed_since_is_refused():
    """Another perfdash may build another network under the same name."""
    name = "perfdash/worker/models/dcgan.py"
    planned = case("dcgan", loader="models", target="dcgan")
    digests = {name: own_files.digest_now(Path(own_files.__file__).parent / "models/dcgan.py")}
    results = [Result(planned.case, "t", 1.0, Status.PASS, structure={"model_files": digests})]
    refuse_edited_model(results, [planned], "night")
    digests[name] = "0123456789abcdef"
    with pytest.raises(UsageError, match=rf"Cannot resume night: .* before \S+/{name} was edited"):
        refuse_edited_model(results, [planned], "night")


def test_secrets_are_not_kept():
    plan = cut([case("m", env={"HF_TOKEN": "hunter2", "OMP_PROC_BIND": "close"})], [1.0], None)
    assert "hunter2" not in str(plan.to_json())
    assert "close" in str(plan.to_json())


@pytest.mark.parametrize("text", ["5/4", "0/4", "1", "a/b", "1/", "-1/4", "1/4/4"])
def test_shards_that_are_none(text):
    with pytest.raises(UsageError, match="--shard"):
        parse_shard(text)


def test_a_checkout_counts_by_its_files_and_not_by_its_place(tmp_path):
    def plan(folder, text):
        model = tmp_path / folder / "torchbenchmark" / "models" / "m"
        model.mkdir(parents=True)
        (model / "__init__.py").write_text(text)
        (tmp_path / folder / "torchbenchmark" / "__init__.py").touch()
        config = {"checkout": str(tmp_path / folder)}
        return cut([case("m", loader="torchbench", target="m", config=config)], [], None).to_json()

    first, same, other = plan("a", "1"), plan("b", "1"), plan("c", "2")
    assert not differences(first, same)
    (difference,) = differences(first, other)
    assert "source" in difference


def test_a_stated_size_may_be_put_right():
    old, new = (cut([case("m", parameters=number)], [], None).to_json() for number in (1, 2))
    assert not differences(old, new)


def test_the_forecast_takes_cases_of_other_threads_one_at_a_time():
    """--jobs is for the run's own threads; those of configuration socket have the machine for themselves."""
    own = [case("a"), case("b")]
    wider = [replace(each, case=replace(each.case, threads=2)) for each in own]
    plan = cut([*own, *wider], [3600.0] * 4, None)
    hours = forecast(RunSettings(jobs=2), plan)["hours"]
    assert hours == {"work": 4.0, "until_the_last_shard_ends": 3.0}


def test_two_suites_of_one_name_are_refused(tmp_path):
    """A case names its suite: the models of the second one would be missing from the plan."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.py").touch()
        (tmp_path / folder / "mine.toml").write_text(
            'name = "team"\nloader = "python"\n[[models]]\nname = "net"\ntarget = "net.py:make"\n'
        )
    first, second = (str(tmp_path / folder / "mine.toml") for folder in ("a", "b"))
    with pytest.raises(UsageError) as refusal:
        make_plan(RunSettings(suite=(first, second)))
    assert all(text in str(refusal.value) for text in (first, second, "named 'team'"))
    plan, _ = make_plan(RunSettings(suite=(first, first)))
    assert len(plan.cases) == 1


def test_two_suites_of_one_dynamo_name_have_files_of_their_own(tmp_path):
    checkout = write_checkout(tmp_path / "benchmark")
    names = [
        make_plan(RunSettings(suite=suites, torchbench=checkout), uncut=True)[1]
        for suites in (("torchbench-checkout",), ("timm", "torchbench", "torchbench-checkout", "timm"))
    ]
    assert names == [
        {"torchbench-checkout": "torchbench"},
        {"timm": "timm_models", "torchbench": "torchbench", "torchbench-checkout": "torchbench-checkout"},
    ]


def test_a_suite_of_perfdash_keeps_its_dynamo_name_beside_one_of_a_user(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'name = "mine"\nloader = "timm"\ndynamo_name = "timm_models"\n[[models]]\nname = "resnet18"\n'
    )
    for suites in (("timm", str(mine)), (str(mine), "timm")):
        _, names = make_plan(RunSettings(suite=suites), uncut=True)
        assert names == {"timm": "timm_models", "mine": "mine"}


def test_a_suite_that_is_named_as_the_files_of_another_has_files_of_its_own(tmp_path):
    files = [tmp_path / f"{name}.toml" for name in ("timm_models", "timm_models_2")]
    for file in files:
        file.write_text(f'name = "{file.stem}"\nloader = "timm"\n[[models]]\nname = "resnet18"\n')
    _, names = make_plan(RunSettings(suite=("timm", *map(str, files))), uncut=True)
    assert names == {
        "timm": "timm_models", "timm_models": "timm_models_2", "timm_models_2": "timm_models_2_2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "words"), [("my_nets", "both named 'my_nets'"), ("my-nets", "named 'my_nets' and 'my-nets'")]
)
def test_suites_of_one_file_name_are_refused(tmp_path, name, words):
    """The generated code of a case is kept under its name, where `_` and `-` are the same."""
    files = [tmp_path / "a.toml", tmp_path / "b.toml"]
    for file, suite in zip(files, ("my_nets", name), strict=True):
        file.write_text(f'name = "{suite}"\nloader = "timm"\n[[models]]\nname = "resnet18"\n')
    with pytest.raises(UsageError, match=rf"a\.toml and {files[1]} are {words}; change the key 'name'"):
        make_plan(RunSettings(suite=tuple(map(str, files))), uncut=True)


@pytest.mark.parametrize(
    ("suite", "models", "words"),
    [
        ("torchbench", "dlrm", "dlrm"),
        ("torchbench", "dlrm,dcgan,BERT_pytorch,drq", "BERT_pytorch, dcgan, dlrm and 1 more"),
        ("huggingface", "AlbertForQuestionAnswering", "AlbertForQuestionAnswering"),
        ("huggingface", "BigBird,AlbertForQuestionAnswering", None),
        ("techniques", "digits_cnn", None),
        ("torchbench", "resnet18", None),
        ("torchbench", "dlrm,resnet18", None),
    ],
)
def test_pretrained_weights_that_no_loader_knows_are_refused(suite, models, words):
    settings = RunSettings(suite=(suite,), models=models, weights="pretrained")
    if words is None:
        assert make_plan(settings)[0].cases
    else:
        with pytest.raises(UsageError, match=f"--weights pretrained: .* to download for {words}[.] L"):
            make_plan(settings)


def test_pretrained_weights_of_own_models_alone_are_refused(tmp_path):
    """Nobody downloads any: the function's weights would be measured, and recorded as pretrained."""
    (tmp_path / "net.py").touch()
    own = {"model": (f"{tmp_path}/net.py:make",)}
    for settings, notebook in ((own, None), ({}, "net")):
        with pytest.raises(UsageError, match=r"net[.a-z]*, whose functions make their weights\."):
            make_plan(RunSettings(**settings, weights="pretrained"), notebook=notebook)
    weights = tmp_path / "weights.pt"
    weights.touch()
    assert make_plan(RunSettings(**own, weights=str(weights)))[0].cases
    assert make_plan(RunSettings(**own, suite=("timm",), quick=True, weights="pretrained"))[0].cases


def test_scenario_sizes_takes_once_more_for_each_size():
    settings = RunSettings(suite=("timm",), models="lcnet_050", configuration=("default", "dynamic-batch"))
    default, dynamic_batch = make_plan(settings)[0].cases
    assert dynamic_batch.sizes == (2, 4, 8)
    assert dynamic_batch.cost_s == 4 * default.cost_s
