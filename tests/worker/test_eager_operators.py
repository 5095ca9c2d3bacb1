"""Which operators eager calls, and which of them Python code implements."""

from __future__ import annotations

import pytest

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


@pytest.mark.filterwarnings("ignore")
def test_an_operator_that_python_code_implements_is_named():
    before = profiling.registered_operators()
    assert profiling.registered_since(before) == []
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("gelu", lambda x, approximate="none": x, "CPU")
        assert profiling.registered_since(before) == ["aten::gelu for CPU"]
    finally:
        library._destroy()
