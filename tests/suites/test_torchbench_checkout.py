"""A checkout of torchbench as a suite."""

import pytest

from perfdash.errors import UsageError
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import select
from perfdash.suites.suite_file import CHECKOUT_SUITE
from perfdash.suites.torchbench_checkout import checkout_suite, find_checkout
from tests.checkouts import write_checkout


@pytest.fixture
def checkout(tmp_path):
    return write_checkout(tmp_path / "benchmark")


def test_models_and_batch_sizes(checkout):
    suite = checkout_suite(checkout)
    assert suite.name == CHECKOUT_SUITE
    assert suite.dynamo_name == "torchbench"
    sizes = {m.name: (m.batch_size.one_thread, m.batch_size.cpu, m.batch_size.cuda) for m in suite.models}
    assert sizes["plain"] == (1, 8, 8)
    assert sizes["fixed"] == (16, 16, 16), "a model that allows no other batch size has its own everywhere"
    assert "strange" in sizes, "canary models as well"
    assert "__pycache__" not in sizes


def test_a_model_we_know_is_judged_as_ours_but_built_as_theirs(checkout):
    for name in ("squeezenet1_1", "broken"):
        folder = checkout / "torchbenchmark" / "models" / name
        folder.mkdir()
        (folder / "__init__.py").write_text(
            "class Model:\n    DEFAULT_EVAL_BSIZE = 5" + " (" * (name != "squeezenet1_1")
        )
    suite = checkout_suite(checkout)
    planned = {p.case.model: p for p in select([suite], RunSettings(torchbench=checkout, dtype=("amp",)))}
    assert planned["broken"].case.batch_size == 1, "what cannot be read is told by the worker"
    assert planned["squeezenet1_1"].loader == "torchbench"
    assert planned["squeezenet1_1"].target == "squeezenet1_1"
    assert planned["squeezenet1_1"].parameters is None
    assert planned["squeezenet1_1"].config == {"checkout": str(checkout)}
    assert planned["squeezenet1_1"].tolerance > planned["plain"].tolerance


def test_in_training_a_model_we_know_has_its_own_batch_size_and_inputs(checkout):
    folder = checkout / "torchbenchmark" / "models"
    for name, body in {
        "Background_Matting": "DEFAULT_TRAIN_BSIZE = 4\n    ALLOW_CUSTOMIZE_BSIZE = False",
        "Unknown_Fixed": "DEFAULT_TRAIN_BSIZE = 7\n    ALLOW_CUSTOMIZE_BSIZE = False",
        "densenet121": "DEFAULT_TRAIN_BSIZE = 512",
        "hf_BigBird": "",
    }.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"class Model:\n    DEFAULT_EVAL_BSIZE = 64\n    {body}\n")
    suite, names = checkout_suite(checkout), ("B*_*", "Unknown*", "dense*", "hf*", "plain")

    def sizes(**options):
        cases = select([suite], RunSettings(torchbench=checkout, models=names, **options))
        return {p.case.model: p.case.batch_size for p in cases}

    assert sizes(threads=4, scenario="training") == {
        "Background_Matting": 4, "Unknown_Fixed": 7, "densenet121": 512, "hf_BigBird": 1, "plain": 16,
    }  # fmt: skip
    assert sizes(scenario="training") == {
        "Background_Matting": 4, "Unknown_Fixed": 7, "densenet121": 1, "hf_BigBird": 1, "plain": 1,
    }  # fmt: skip
    assert sizes(threads=4) == {**dict.fromkeys(sizes(), 64), "plain": 8}, "evaluation keeps its own"
    settings = RunSettings(torchbench=checkout, scenario="training", models=names)
    planned = {p.case.model: p for p in select([suite], settings)}
    assert not any(p.inputs or p.skip_reason for p in planned.values())
    assert (planned["densenet121"].tolerance, planned["densenet121"].loss) == (1e-3, "mean")


def test_a_model_of_integer_weights_is_not_trained(checkout):
    name = "mobilenet_v2_quantized_qat"
    folder = checkout / "torchbenchmark" / "models" / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    settings = RunSettings(torchbench=checkout, scenario="training", models=(name,))
    (planned,) = select([checkout_suite(checkout)], settings)
    assert "no gradient" in planned.skip_reason


def test_models_of_one_file_name_are_refused(checkout):
    for name in ("a_b", "a-b"):
        folder = checkout / "torchbenchmark" / "models" / name
        folder.mkdir()
        (folder / "__init__.py").touch()
    with pytest.raises(UsageError, match=f"{checkout}: a-b and a_b have one file name: rename one"):
        checkout_suite(checkout)


def test_refused(tmp_path, checkout):
    with pytest.raises(UsageError, match=r"no checkout of torchbench.*torchbenchmark/__init__\.py"):
        find_checkout(tmp_path)
    with pytest.raises(UsageError, match="--torchbench PATH"):
        checkout_suite(None)
    with pytest.raises(UsageError, match=r"come from a checkout.*--torchbench PATH"):
        select([checkout_suite(checkout)], RunSettings())
    empty = tmp_path / "empty"
    (empty / "torchbenchmark").mkdir(parents=True)
    (empty / "torchbenchmark" / "__init__.py").touch()
    with pytest.raises(UsageError, match="has no model"):
        checkout_suite(empty)
