"""Which operators eager calls, and which of them Python code implements."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from perfdash.worker.loaders import python
from tests.lazy import lazy

torch = lazy("torch")
profiling = lazy("perfdash.worker.profiling")


def test_the_operators_of_a_training_step_are_counted_below_autograd():
    weight = torch.ones(3, 3, requires_grad=True)

    def step():
        torch.nn.functional.gelu(torch.ones(2, 3) @ weight).sum().backward()

    calls = profiling.operators_of(step)
    assert calls["aten.gelu.default"] == calls["aten.gelu_backward.default"] == 1
    assert calls["aten.mm.default"] == 2
    assert list(calls) == sorted(calls)


@pytest.fixture
def registered():
    """Libraries of operators that end with the test."""
    libraries = []

    def library(*arguments):
        libraries.append(torch.library.Library(*arguments))
        return libraries[-1]

    yield library
    for each in libraries:
        each._destroy()


@pytest.mark.filterwarnings("ignore")
def test_an_operator_that_python_code_implements_is_named(registered):
    """Not those that a library defines and implements itself while the model is loaded."""
    before = profiling.RegisteredOperators(object(), None)
    assert before.since() == []
    own = registered("perfdash_lib", "DEF")
    own.define("f(Tensor x) -> Tensor")
    own.impl("f", lambda x: x, "CPU")
    registered("aten", "IMPL").impl("gelu", lambda x, approximate="none": x, "CPU")
    assert before.since() == ["aten::gelu for CPU"]


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (
            'LIBRARY = torch.library.Library("perfdash_mine", "DEF")\n'
            'LIBRARY.define("f(Tensor x) -> Tensor")\n'
            'LIBRARY.impl("f", lambda x: x * 2, "CPU")\n',
            "perfdash_mine::f for CPU",
        ),
        (
            '@torch.library.custom_op("perfdash_mine::g", mutates_args=())\n'
            "def g(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n",
            "perfdash_mine::g for CompositeExplicitAutograd",
        ),
    ],
)
def test_operators_of_the_models_own_file_are_named(tmp_path, monkeypatch, lines, name):
    torch.ones(1)  # a process can import it only once
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    file = tmp_path / "net_with_operators.py"
    file.write_text(f"import torch\n\n{lines}\n\ndef make(batch_size):\n    return torch.nn.ReLU(), ()\n")
    job, other = (
        SimpleNamespace(
            target=f"{path}:make", scratch="/nowhere", of_build=False, case=SimpleNamespace(batch_size=1)
        )
        for path in (file, tmp_path / "other" / "net.py")
    )
    of_this, of_another = (profiling.RegisteredOperators(python, which) for which in (job, other))
    python.load(job)
    assert name in of_this.since()
    assert of_another.since() == []
