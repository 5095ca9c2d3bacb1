"""DeepSpeed's back end against a stand-in of its package: no GPU is here."""

from __future__ import annotations

import sys
import types

import pytest

from perfdash.records import Case, Job, Status
from perfdash.worker.backends import deepspeed
from perfdash.worker.failures import Unmeasurable
from tests.lazy import lazy

torch = lazy("torch")
nn = lazy("torch.nn")
capabilities = lazy("perfdash.worker.capabilities")
modules = lazy("tests.worker.modules")


JOB = Job(Case("s", "m", device="cuda", dtype="float16", backend="deepspeed"), "python", "")


@pytest.fixture
def package(monkeypatch):
    """The package, which knows the layers of some models; what it was called with."""
    requested = {}

    def init_inference(model, **options):
        requested.update(options)
        if requested["knows"]:
            model[0] = modules.Fused(4, 4)
        return types.SimpleNamespace(module=model)

    fake = types.ModuleType("deepspeed")
    fake.init_inference = init_inference
    monkeypatch.setitem(sys.modules, "deepspeed", fake)
    return requested


def test_a_copy_with_its_kernels(package):
    package["knows"] = True
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = deepspeed.prepare(module, (), JOB)
    assert isinstance(model[0], modules.Fused)
    assert not isinstance(module[0], modules.Fused)
    assert package["dtype"] is torch.float16
    assert package["replace_with_kernel_inject"] is True
    assert len(deepspeed.held_tensors(model)) == 2


def test_a_model_whose_layers_it_does_not_know_is_skipped(package):
    package["knows"] = False
    with pytest.raises(Unmeasurable, match="no kernels for Sequential") as raised:
        deepspeed.prepare(nn.Sequential(nn.Linear(4, 4)), (), JOB)
    assert raised.value.status is Status.SKIPPED


def test_without_the_package_the_row_says_which_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    with pytest.raises(Unmeasurable, match=r"needs deepspeed: install .*extra `deepspeed`") as raised:
        capabilities.refuse(JOB)
    assert raised.value.status is Status.MISSING_DEPENDENCY
