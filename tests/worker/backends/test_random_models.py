"""Models that draw random numbers, under inductor's other modes: they are checked on a second artefact."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from perfdash.records import Case, Job, Sampling
from tests.lazy import lazy

np = lazy("numpy")
torch = lazy("torch")
nn = lazy("torch.nn")
compiler_caches = lazy("perfdash.worker.compiler_caches")
modules = lazy("tests.worker.modules")
registry = lazy("perfdash.worker.registry")
worker_case = lazy("perfdash.worker.case")

pytestmark = pytest.mark.slow
SHORT = Sampling(min_pairs=3, max_pairs=3, min_s=0.0, budget_s=0.0)
SECOND = "checked on a second artefact, which draws the random numbers of eager"


@pytest.fixture(autouse=True)
def own_settings(monkeypatch):
    """Back ends set inductor's configuration for the process, which is a case's own."""
    import torch._inductor.config as inductor

    freezing = inductor.freezing
    monkeypatch.setattr(compiler_caches, "use_in", lambda scratch, shared: None)
    yield
    inductor.freezing = freezing
    torch._dynamo.reset()


def measured(tmp_path, monkeypatch, module, inputs, backend, scenario):
    """The events of a case by name."""
    monkeypatch.setattr(registry.find("loaders", "python"), "load", lambda job: (module, inputs))
    events = {}
    case = Case("s", "m", backend=backend, scenario=scenario)
    job = replace(Job(case, "python", "", sampling=SHORT), scratch=str(tmp_path))
    worker_case.run_case(job, lambda event, **facts: events.update({event: facts}))
    assert "done" in events, events.get("failed")
    return events


TRAINED = """
import json, sys
from perfdash.records import Case, Job, Sampling
from perfdash.worker.case import run_case
sampling = Sampling(min_pairs=3, max_pairs=3, min_s=0.0, budget_s=0.0)
case = Case("s", "m", backend="inductor-max-autotune", scenario="training")
events = {}
job = Job(case, "python", sys.argv[1], sampling=sampling, scratch=sys.argv[2])
run_case(job, lambda event, **facts: events.update({event: facts}))
print(json.dumps(events.get("accuracy") or events))
"""


def test_dropout_in_training_under_max_autotune(tmp_path, command_server):
    """In a process of its own: where an earlier test trained, autograd's threads forbid to fork."""
    model = tmp_path / "net_with_dropout.py"
    model.write_text(
        "import torch\nfrom torch import nn\n\n\ndef make(batch_size):\n"
        "    torch.manual_seed(0)\n"
        "    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(32, 8))\n"
        "    return net, (torch.randn(16, 32),)\n"
    )
    (tmp_path / "scratch").mkdir()
    out = command_server.workers.run_script(TRAINED, f"{model}:make", str(tmp_path / "scratch"))
    accuracy = json.loads(out.splitlines()[-1])
    assert accuracy["status"] == "pass", accuracy
    assert SECOND in accuracy["detail"]


@pytest.mark.parametrize("backend", ["inductor-freezing", "inductor-max-autotune"])
def test_dropout_of_frozen_weights_counts_them_once(tmp_path, monkeypatch, backend):
    torch.manual_seed(0)
    convolution = nn.Conv2d(128, 256, 3)
    # Before it: frozen convolutions return channels last, and are then masked in another order than eager's.
    module = nn.Sequential(modules.Calls(lambda module, x: nn.functional.dropout(x)), convolution)
    inputs = (torch.randn(2, 128, 8, 8),)
    events = measured(tmp_path, monkeypatch, module, inputs, backend, "inference")
    assert events["accuracy"]["status"] == "pass", events["accuracy"]
    assert SECOND in events["accuracy"]["detail"]
    needed = inputs[0].nbytes + sum(weight.nbytes for weight in convolution.parameters())
    assert events["memory"]["held_bytes"] == pytest.approx(needed, rel=0.03)


@pytest.mark.parametrize(("backend", "draws"), [
    ("inductor", "numpy"), ("inductor", "Python's random"), ("onnxruntime", "torch"),
])  # fmt: skip
def test_random_numbers_that_a_back_end_cannot_repeat(tmp_path, monkeypatch, backend, draws):
    def forward(module, x):
        if draws == "torch":
            return x + torch.randn_like(x)
        return x + (
            torch.from_numpy(np.random.randn(16, 32)).float() if draws == "numpy" else random.random()
        )

    inputs = (torch.randn(16, 32),)
    events = measured(tmp_path, monkeypatch, modules.Calls(forward), inputs, backend, "inference")
    # Dynamo draws from Python's generator itself, and hands the number over.
    expected = "pass" if draws == "Python's random" else "skipped"
    assert events["accuracy"]["status"] == expected, events["accuracy"]
    assert expected == "pass" or f"({draws})" in events["accuracy"]["detail"]


@pytest.mark.parametrize(("backend", "forward", "status"), [
    ("openvino", lambda module, x: nn.functional.dropout(x), "fail"),  # it leaves dropout out
    ("onnxruntime", lambda module, x: nn.functional.dropout(x), "skipped"),
    ("onnxruntime", lambda module, x: (torch.rand([]), x.sin())[1], "pass"),
])  # fmt: skip
def test_a_back_end_that_leaves_dropout_out_is_wrong(tmp_path, monkeypatch, backend, forward, status):
    pytest.importorskip(backend)
    inputs = (torch.randn(16, 32),)
    events = measured(tmp_path, monkeypatch, modules.Calls(forward), inputs, backend, "inference")
    assert events["accuracy"]["status"] == status, events["accuracy"]
