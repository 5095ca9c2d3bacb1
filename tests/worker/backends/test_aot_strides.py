"""AOTInductor: a package has the options of its case, and reads inputs by the strides of its example."""

from __future__ import annotations

import pytest

from perfdash.records import Case, Job
from perfdash.worker import registry
from tests.lazy import lazy

torch = lazy("torch")
inductor = lazy("torch._inductor")
nn = lazy("torch.nn")
modules = lazy("tests.worker.modules")

aot_inductor = lazy("perfdash.worker.backends.aot_inductor")

# How a package reads its inputs is the point, not how fast. Headers cost more than two packages gain by them.
COMPILED_SOON = {"aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False}


def prepared(folder, module, inputs, batch):
    case = Case("s", "m", batch_size=batch, backend="aot-inductor", dynamic=True)
    job = Job(case=case, loader="python", target="m", scratch=str(folder), inductor_config=COMPILED_SOON)
    with torch.no_grad():
        return registry.find("backends", "aot-inductor").prepare(module, inputs, job)


def assert_like_eager(model, module, inputs):
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)


def adds():
    torch.manual_seed(0)
    return modules.Calls(lambda module, x, bias: x.sin() * 2 + bias).eval()


def sequence_first(batch):
    return torch.randn(6, batch, 16).transpose(0, 1)


@pytest.mark.slow
def test_expanded_and_transposed_inputs(tmp_path):
    """And after that the same in other strides, as the batches of labelled data have them."""
    module = adds()
    inputs = (sequence_first(4), torch.randn(1, 1, 16).expand(4, 6, 16))
    model = prepared(tmp_path, module, inputs, 4)
    assert not model.notes
    assert_like_eager(model, module, inputs)
    assert_like_eager(model, module, (sequence_first(7), torch.randn(1, 1, 16).expand(7, 6, 16)))
    x, bias = inputs
    assert_like_eager(model, module, (x.contiguous(), bias.contiguous()))
    assert_like_eager(model, module, (sequence_first(3).contiguous(), bias[:3].contiguous()))
    with pytest.raises(ValueError, match="strides"):
        model(x, torch.randn(4, 6, 16))
    again = prepared(tmp_path, module, inputs, 4)  # another process of the case loads the same file
    assert_like_eager(again, module, (x.contiguous(), bias))
    reopened = aot_inductor.reopen(again)
    assert reopened.run is not again.run
    assert_like_eager(reopened, module, (x.contiguous(), bias))


@pytest.mark.slow
def test_a_batch_of_one_is_exported_as_two(tmp_path):
    module = adds()
    inputs = (sequence_first(1), torch.randn(1, 1, 16).expand(1, 6, 16))
    model = prepared(tmp_path, module, inputs, 1)
    assert_like_eager(model, module, inputs)
    for batch in (2, 5):
        assert_like_eager(model, module, (sequence_first(batch), torch.randn(1, 1, 16).expand(batch, 6, 16)))


@pytest.mark.slow
def test_packages_are_compiled_with_the_options_of_the_case(tmp_path, monkeypatch):
    """The timed one, that of the accuracy check and that which makes the headers: a file each."""
    compiled = {}

    def compile_package(program, *, package_path, inductor_configs):
        assert package_path not in compiled
        compiled[package_path] = inductor_configs

    monkeypatch.setattr(inductor, "aoti_compile_and_package", compile_package)
    monkeypatch.setattr(inductor, "aoti_load_package", lambda path: None)
    mode, config = "max-autotune-no-cudagraphs", {"max_autotune": False, "epilogue_fusion": False}
    job = Job(
        case=Case("s", "m", backend="aot-inductor"), loader="python", target="m", scratch=str(tmp_path),
        compile_mode=mode, inductor_config=config,
    )  # fmt: skip
    backend = registry.find("backends", "aot-inductor")
    module, inputs = nn.Linear(4, 4).eval(), (torch.ones(2, 4),)
    with torch.no_grad():
        model = backend.prepare(module, inputs, job)
        backend.prepare_repeatable(module, inputs, job)
        backend.compile_sample(job)
        backend.prepare(module, inputs, job)  # a further process of the case
    options = {**inductor.list_mode_options(mode), **config}
    assert list(compiled.values()) == [options, {**options, "fallback_random": True}, options]
    assert model.shapes == [(2, 4)], "it takes no other batch"


@pytest.mark.parametrize(("shape", "strides", "own", "wanted"), [
    (("s0", "6"), ("6", "1"), (6, 1), None), (("s0", "6"), ("6", "1"), (1, 4), [6, 1]),
    (("s0", "6"), ("1", "s0"), (6, 1), [1, 4]), (("4", "6"), ("0", "1"), (6, 1), [0, 1]),
    (("s0", "6"), ("6*s1", "s1"), (12, 2), None), (("s0", "6"), ("6*s1", "s1"), (20, 2), [12, 2]),
    (("s0", "6"), ("6*s9", "1"), (6, 1), None),
])  # fmt: skip
def test_strides_that_a_package_reads_an_input_by(shape, strides, own, wanted):
    x = torch.arange(100).as_strided((4, 6), own)
    assert aot_inductor._other_strides(x, (list(shape), list(strides))) == wanted
    if wanted and 0 not in wanted:
        copy = aot_inductor._with_strides(x, wanted)
        assert (list(copy.stride()), copy.tolist()) == (wanted, x.tolist())


def test_a_size_of_one_has_any_stride():
    x = torch.arange(6).as_strided((1, 6), (100, 1))
    assert aot_inductor._other_strides(x, (["1", "6"], ["6", "1"])) is None
