"""Backward passes captured as they run, through the command."""

from __future__ import annotations

import pytest

from perfdash.records import Case, Job, Status
from perfdash.worker.backends import inductor_compiled_autograd as backend
from tests.conftest import HERE
from tests.lazy import lazy

torch = lazy("torch")
nn = lazy("torch.nn")


@pytest.mark.slow
def test_the_backward_pass_is_handed_to_the_compiler():
    graphs = []

    def keep(graph):
        graphs.append(graph)
        return graph

    module = nn.Linear(4, 4)
    model = backend.CompiledWithBackward(module, keep)
    inputs = torch.randn(3, 4)
    with model.backward_context():
        model(inputs).sum().backward()
    assert len(graphs) == 1
    torch.testing.assert_close(module.bias.grad, torch.full((4,), 3.0))


@pytest.mark.slow
def test_it_is_for_training_only():
    assert backend.SCENARIOS == ("training",)
    assert backend.complaints(Job(Case("s", "m"), "python", "", compile_mode="none such"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_training_step_by_it(command):
    backend_name = "inductor-compiled-autograd"
    file = HERE / "truth" / "training_models.py"
    ran = command(
        "run", "--model", f"{file}:dropout", "--model", f"{file}:wrong_gradient", "--scenario", "training",
        "--backend", backend_name, "--batch-size", "8", "--processes", "1", timeout=880,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    dropout = ran.results["training_models.dropout"]
    assert dropout.status is Status.PASS, dropout.accuracy or dropout.error
    assert set(dropout.parts_ms["backend"]) == {"forward", "backward", "optimizer"}
    assert ran.results["training_models.wrong_gradient"].status is Status.FAIL_ACCURACY
