"""Models of a torchbench checkout: which of its files they are made of."""

import sys
from types import SimpleNamespace

import pytest

from perfdash.records import Status
from perfdash.worker.failures import Unmeasurable
from tests.checkouts import write_checkout
from tests.lazy import lazy

torch = lazy("torch")


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A model of a checkout. What it imports is gone at the end, but torch, which is imported only once."""
    torch.ones(1)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    checkout = write_checkout(tmp_path / "benchmark")
    case = SimpleNamespace(batch_size=2, device="cpu", scenario="inference")
    return SimpleNamespace(
        target="plain", case=case, config={"checkout": str(checkout)}, scratch=str(tmp_path / "scratch")
    )


def test_the_files_of_a_model_are_those_of_the_checkout_that_it_imported(job, tmp_path):
    from perfdash.worker.loaders import torchbench

    package = tmp_path / "benchmark" / "torchbenchmark"
    (package / "util.py").write_text("size = 4\n")
    model = package / "models" / "plain" / "__init__.py"
    model.write_text(f"from torchbenchmark.util import size\n{model.read_text()}")
    sources = {
        f"torchbenchmark/{name}": (package / name).read_text()
        for name in ("__init__.py", "models/__init__.py", "models/plain/__init__.py", "util.py")
    }
    torchbench.load(job)
    (package / "util.py").write_text("size = 5\n")
    assert torchbench.files(job) == sources, "as the model imported them"
    assert torchbench.is_own(job, str(package / "util.py"))
    assert not torchbench.is_own(job, str(tmp_path / "benchmark" / ".venv/lib/site-packages/x.py"))


@pytest.mark.parametrize(
    ("scenario", "test"), [("inference", "eval"), ("sizes", "eval"), ("training", "train")]
)
def test_a_model_is_built_for_its_test(job, tmp_path, scenario, test):
    from perfdash.worker.loaders import torchbench

    model = tmp_path / "benchmark" / "torchbenchmark" / "models" / "plain" / "__init__.py"
    inputs = "[torch.rand(self.batch_size, 4)]"
    text = model.read_text()
    assert inputs in text
    model.write_text(text.replace(inputs, "{self.test: torch.rand(self.batch_size, 4)}"))
    job.case.scenario = scenario
    assert list(torchbench.load(job)[1]) == [test]


def test_what_is_not_trained_is_skipped_in_training_alone(job):
    from perfdash.worker.loaders import torchbench

    job.target = "not_trained"
    torchbench.load(job)
    job.case.scenario = "training"
    with pytest.raises(Unmeasurable, match=r"metadata\.yaml: training is not implemented on cpu") as refusal:
        torchbench.load(job)
    assert refusal.value.status is Status.SKIPPED
