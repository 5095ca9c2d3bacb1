"""Models of torchvision and timm by name, and those written here."""

import hashlib
import importlib
import sys
from pathlib import Path

import pytest

from perfdash.records import Case, Job, Status
from perfdash.worker import loaded_files, registry
from perfdash.worker.failures import Unmeasurable, classify
from perfdash.worker.loaders import models
from tests.lazy import lazy

ROOT = Path(__file__).parents[3]
torch = lazy("torch")
torchbench = lazy("perfdash.worker.loaders.torchbench")


def job(loader, target, batch_size=2, **settings):
    case = Case("s", target, batch_size=batch_size)
    return Job(case=case, loader=loader, target=target, scratch="", **settings)


def load(loader, target, **settings):
    torch.manual_seed(0)
    return registry.find("loaders", loader).load(job(loader, target, **settings))


@pytest.mark.parametrize(("loader", "target"), [("torchvision", "squeezenet1_1"), ("timm", "lcnet_050")])
def test_size_and_seed(loader, target):
    module, (images,) = load(loader, target, inputs={"size": [3, 64, 96]})
    assert images.shape == (2, 3, 64, 96)
    again, (other,) = load(loader, target, inputs={"size": [3, 64, 96]})
    assert torch.equal(images, other)
    for first, two in zip(module.parameters(), again.parameters(), strict=True):
        assert torch.equal(first, two)
    with torch.no_grad():
        assert module.eval()(images).shape == (2, 1000)


def test_the_files_of_a_model_of_perfdash_are_known(monkeypatch):
    """Those that it imports as well, and no others."""
    for module in ("cyclegan", "dcgan"):
        importlib.import_module(f"perfdash.worker.models.{module}")
    monkeypatch.delitem(sys.modules, "perfdash.worker.models.yolov3", raising=False)
    digests = models.digests()
    for module in ("cyclegan", "dcgan"):
        text = (ROOT / f"perfdash/worker/models/{module}.py").read_bytes()
        assert digests[f"perfdash/worker/models/{module}.py"] == hashlib.sha256(text).hexdigest()[:16]
    assert "perfdash/worker/models/yolov3.py" not in digests
    found, texts = loaded_files.of_model(models, job("models", "cyclegan"))
    assert found == {"model_files": digests}
    assert texts == {}, "these are in every installed perfdash"


@pytest.mark.parametrize(("loader", "target"), [("torchvision", "squeezenet1_1"), ("timm", "lcnet_050")])
def test_configuration(loader, target):
    module, (images,) = load(loader, target, config={"num_classes": 7}, inputs={"size": [3, 64, 64]})
    with torch.no_grad():
        assert module.eval()(images).shape == (2, 7)


@pytest.mark.parametrize(
    ("loader", "target", "near"),
    [
        ("torchvision", "resnet1", "resnet18"),
        ("timm", "lcnet_05", "lcnet_050"),
        ("models", "tacotron", "tacotron2"),
    ],
)
def test_an_unknown_name_has_near_ones(loader, target, near):
    with pytest.raises(LookupError, match=f"has no model '{target}' .did you mean .*{near}") as caught:
        load(loader, target)
    assert classify("load", caught.value) is Status.MODEL_FAIL_TO_LOAD


@pytest.mark.parametrize("name", models.names())
def test_every_file_of_models_is_a_model(name):
    module = importlib.import_module(f"perfdash.worker.models.{name}")
    assert callable(module.build)
    assert module.build.__doc__, "what it takes, with shapes"


@pytest.mark.parametrize(
    ("metadata", "skipped"),
    [
        (None, []),
        ({"not_implemented": None}, []),
        ({"not_implemented": [{"device": "cpu"}]}, ["eval", "train"]),
        ({"not_implemented": [{"device": "cuda"}, {"device": "cpu", "test": "train"}]}, ["train"]),
        ({"not_implemented": [{"device": "cpu", "test": "eval"}]}, ["eval"]),
        ({"not_implemented": [{"test": "eval"}]}, ["eval"]),
    ],
)
def test_what_torchbench_says_of_a_device(metadata, skipped):
    tests = [test for test in ("eval", "train") if torchbench.not_implemented(metadata, "cpu", test)]
    assert tests == skipped


def test_a_skip_that_only_the_loader_knows_is_a_skip():
    assert classify("load", Unmeasurable(Status.SKIPPED, "why")) is Status.SKIPPED


@pytest.mark.parametrize("target", ["shufflenet_v2_x1_0", "mobilenet_v3_large"])
def test_the_images_matter(target):
    """With untrained statistics, outputs of these are the same for all images but for rounding."""
    module, (images,) = load("torchvision", target, inputs={"size": [3, 96, 96]})
    with torch.no_grad():
        first, other = module.eval()(images), module(torch.randn_like(images))
    assert (first - other).norm() > 0.05 * first.norm()


@pytest.mark.slow
def test_quantised_weights_count():
    """What quantised layers keep packed is in no parameter."""
    from perfdash.worker import held_memory

    module, (images,) = load("models", "quantized_qat", config={"model": "resnet18"})
    assert not list(module.parameters())
    held = sum(held_memory.storage_bytes(held_memory.weights(module)).values())
    assert 11.6e6 < held < 13e6, "11.7 million weights of a byte"
    with torch.no_grad():
        first, other = module.eval()(images), module(torch.randn_like(images))
    assert (first - other).norm() > 0.05 * first.norm()


def test_a_model_without_published_weights_is_not_measured_as_pretrained():
    """It would be recorded as pretrained, with random weights."""
    with pytest.raises(LookupError, match="no pretrained weights are known for lennard_jones: leave"):
        load("models", "lennard_jones", weights="pretrained")
