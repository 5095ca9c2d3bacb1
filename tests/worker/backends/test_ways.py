"""Every back end that a CPU can run, on modules that convert in a second."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfdash.records import Case, Job, Status
from perfdash.worker import registry
from perfdash.worker.failures import Unmeasurable
from tests.lazy import lazy

torch = lazy("torch")
nn = lazy("torch.nn")
held_memory = lazy("perfdash.worker.held_memory")
shared_state = lazy("perfdash.worker.shared_state")
pytree = lazy("perfdash.worker.pytree")
modules = lazy("tests.worker.modules")


pytestmark = pytest.mark.slow

BACKENDS = ("torchscript", "onnxruntime", "onnxruntime-int8", "openvino", "int8-dynamic")
COMPILED = ("inductor-freezing", "int8-static")


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def case(kind: str, batch: int = 4) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    if kind == "mlp":
        return modules.Mlp().eval(), {"x": torch.randn(batch, 16), "scale": torch.tensor([2.0])}
    if kind == "cnn":
        return cnn().eval(), (torch.randn(batch, 1, 8, 8),)
    return modules.Lstm().eval(), (torch.randn(batch, 8, 8),)


def job(backend: str, folder: Path, batch: int = 4, **more: Any) -> Job:
    about = Case("techniques", "tiny", batch_size=batch, backend=backend, **more)
    return Job(case=about, loader="python", target="tiny", scratch=str(folder))


def find(backend: str) -> Any:
    return registry.find("backends", backend)


def call(model: Any, inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def prepared(backend: str, module: nn.Module, inputs: Any, folder: Path) -> Any:
    with torch.no_grad():
        batch = next(pytree.tensors_in(inputs)).shape[0]
        return find(backend).prepare(module, inputs, job(backend, folder, batch))


@dataclass(frozen=True)
class Converted:
    """A module, what it was before, its inputs, the folder that it was prepared in, and the model."""

    module: nn.Module
    weights_before: dict[str, Any]
    watched: Any
    inputs: Any
    folder: Path
    model: Any


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Any:
    """By back end and kind: what all tests share that only call it."""

    @functools.cache
    def convert(backend: str, kind: str) -> Converted:
        folder = tmp_path_factory.mktemp(backend)
        module, inputs = case(kind)
        before = copy.deepcopy(module.state_dict())
        watched = shared_state.SharedState(module, values=True)
        return Converted(module, before, watched, inputs, folder, prepared(backend, module, inputs, folder))

    return convert


def negated(inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return {name: -tensor for name, tensor in inputs.items()}
    return tuple(-tensor for tensor in inputs)


def assert_like(backend: str, got: Any, wanted: Any) -> None:
    assert pytree.structure(got) == pytree.structure(wanted)
    bound = 0.1 if getattr(find(backend), "LOSSY", False) else 1e-5
    for mine, eager in zip(pytree.tensors_in(got), pytree.tensors_in(wanted), strict=True):
        assert float((mine - eager).norm() / eager.norm()) < bound


@pytest.fixture(autouse=True)
def own_settings():
    """Back ends set torch's configuration for the process, which is a case's own."""
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    before = dynamo.automatic_dynamic_shapes, inductor.freezing
    yield
    dynamo.automatic_dynamic_shapes, inductor.freezing = before
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["mlp", "cnn", "lstm"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_are_those_of_eager(backend, kind, converted):
    made = converted(backend, kind)
    module, inputs, model = made.module, made.inputs, made.model
    first = call(model, inputs)
    expected = pytree.detach(first)
    assert_like(backend, first, call(module, inputs))
    _, other_inputs = case(kind, 3)
    assert_like(backend, call(model, other_inputs), call(module, other_inputs))
    call(model, negated(inputs))  # in the shapes of the first call, whose memory a library may use again
    assert all(
        torch.equal(a, b) for a, b in zip(pytree.tensors_in(first), pytree.tensors_in(expected), strict=True)
    ), "a later call wrote into an earlier result"
    assert all(torch.equal(made.weights_before[name], tensor) for name, tensor in module.state_dict().items())
    assert made.watched.changes() == []
    assert all(isinstance(note, str) for note in getattr(find(backend), "notes", lambda model: [])(model))


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # inductor's lowering of int8
@pytest.mark.parametrize("kind", ["mlp", "cnn", "lstm"])
@pytest.mark.parametrize("backend", COMPILED)
def test_outputs_of_compiled_ways_are_those_of_eager(backend, kind, converted):
    test_outputs_are_those_of_eager(backend, kind, converted)


@pytest.mark.parametrize("backend", ["onnxruntime", "onnxruntime-int8", "openvino"])
def test_a_batch_of_one_may_grow(backend, tmp_path):
    module, inputs = case("cnn", 1)
    model = prepared(backend, module, inputs, tmp_path)
    for batch in (1, 5):
        _, other_inputs = case("cnn", batch)
        assert_like(backend, call(model, other_inputs), call(module, other_inputs))


@pytest.mark.parametrize("backend", ["onnxruntime", "onnxruntime-int8", "openvino"])
def test_reopened_is_just_like_it(backend, converted):
    made = converted(backend, "mlp")
    inputs, model = made.inputs, made.model
    again = find(backend).reopen(model)
    assert again.run is not model.run
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            pytree.tensors_in(call(again, inputs)), pytree.tensors_in(call(model, inputs)), strict=True
        )
    )


@pytest.mark.parametrize("backend", ["onnxruntime", "onnxruntime-int8", "openvino"])
def test_other_processes_of_the_case_read_the_same_file(backend, converted):
    made = converted(backend, "mlp")
    module, inputs, folder, first = made.module, made.inputs, made.folder, made.model
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    second = prepared(backend, module, inputs, folder)
    assert written == {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert find(backend).notes(first) == find(backend).notes(second)
    assert second.uncounted_s == second.signature.seconds  # a trial of the first process took no time here


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_model_of_one_batch_size_says_so(backend, tmp_path):
    module, inputs = modules.FixedBatch().eval(), (torch.randn(4, 8),)
    model = prepared(backend, module, inputs, tmp_path)
    assert_like(backend, call(model, inputs), call(module, inputs))
    assert any("batch size 4 only" in note for note in find(backend).notes(model))
    assert not hasattr(inputs[0], "_dynamo_dynamic_indices"), "the case's own inputs stay as they were"
    with pytest.raises(ValueError, match="converted for"):
        call(model, (torch.randn(8, 8),))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "int8-static"])
def test_control_flow_on_data_is_refused_clearly(backend, tmp_path):
    with pytest.raises(
        RuntimeError, match=r"torch\.export cannot capture this model: .*(guard|data|dynamic)"
    ):
        prepared(backend, modules.Branch().eval(), (torch.randn(2, 4),), tmp_path)


def test_tracing_says_what_it_fixed(tmp_path):
    model = prepared("torchscript", modules.Branch().eval(), (torch.randn(2, 4),), tmp_path)
    assert any("tracing fixed 1 values" in note for note in find("torchscript").notes(model))


def test_a_model_without_layers_to_quantise_is_skipped(tmp_path):
    for backend in ("int8-dynamic", "onnxruntime-int8", "int8-static"):
        with pytest.raises(Unmeasurable, match="quantise") as caught:
            prepared(backend, nn.ReLU().eval(), (torch.randn(2, 4),), tmp_path / backend)
        assert caught.value.status is Status.SKIPPED


def test_how_much_is_quantised_is_reported(converted):
    model = converted("int8-dynamic", "cnn").model
    (note,) = find("int8-dynamic").notes(model)
    assert note.startswith("1 Linear, LSTM and GRU layers quantised, with 9")
    model = converted("onnxruntime-int8", "cnn").model
    (note,) = (note for note in find("onnxruntime-int8").notes(model) if "run in int8" in note)
    assert note.startswith("2 of 2 convolutions and matrix products run in int8")


@pytest.mark.parametrize(("backend", "factor"), [("torchscript", 1.0), ("int8-dynamic", 0.25)])
@pytest.mark.parametrize("layer", ["linear", "lstm"])
def test_held_is_the_weights(backend, factor, layer, tmp_path):
    module = nn.Linear(1024, 1024) if layer == "linear" else nn.LSTM(512, 512)
    inputs = (torch.randn(2, 1024) if layer == "linear" else torch.randn(3, 2, 512),)
    model = prepared(backend, nn.Sequential(module).eval(), inputs, tmp_path)
    call(model, inputs)
    held = sum(held_memory.storage_bytes(find(backend).held_tensors(model)).values())
    size = factor * 4 * sum(parameter.numel() for parameter in module.parameters())
    assert held == pytest.approx(size, rel=0.03)


@pytest.mark.parametrize(("backend", "factor"), [("inductor-freezing", 1.0), ("int8-static", 0.25)])
def test_held_by_compiled_ways_is_the_weights(backend, factor, tmp_path):
    module, inputs = nn.Sequential(nn.Conv2d(256, 512, 3)).eval(), (torch.randn(4, 256, 8, 8),)
    model = prepared(backend, module, inputs, tmp_path)
    call(model, inputs)
    held = sum(held_memory.storage_bytes(find(backend).held_tensors(model)).values())
    assert held == pytest.approx(factor * 4 * 256 * 512 * 9, rel=0.03)


def test_bfloat16_stays_bfloat16(tmp_path):
    module, inputs = case("cnn")
    module, inputs = module.bfloat16(), (inputs[0].bfloat16(),)
    about = job("openvino", tmp_path, dtype="bfloat16")
    model = find("openvino").prepare(module, inputs, about)
    got, wanted = call(model, inputs), call(module, inputs)
    assert got.dtype == torch.bfloat16
    assert float((got - wanted).float().norm() / wanted.float().norm()) < 0.02


def test_openvino_copies_each_output_once(converted):
    made = converted("openvino", "mlp")
    module, inputs, model = made.module, made.inputs, find("openvino").reopen(made.model)
    ((shapes, request),) = model.run._requests.items()
    settings = []

    class Spy:
        def infer(self, *arguments, **keywords):
            settings.append(keywords)
            return request.infer(*arguments, **keywords)

        def __getattr__(self, name):
            return getattr(request, name)

    model.run._requests[shapes] = Spy()
    assert_like("openvino", call(model, inputs), call(module, inputs))
    assert settings == [{"share_inputs": True, "share_outputs": True}]


def test_float16_on_the_cpu_is_no_float16(tmp_path):
    assert "float32" in find("onnxruntime").complaints(job("onnxruntime", tmp_path, dtype="float16"))[0]
    assert find("onnxruntime").complaints(job("onnxruntime", tmp_path)) == []


def test_a_provider_that_is_not_there_is_named(tmp_path):
    module, inputs = case("mlp")
    with pytest.raises(Unmeasurable, match="install onnxruntime-gpu") as caught:
        find("onnxruntime-tensorrt").prepare(module, inputs, job("onnxruntime-tensorrt", tmp_path))
    assert caught.value.status is Status.MISSING_DEPENDENCY


def test_max_autotune_is_a_mode_of_its_own(tmp_path):
    backend = find("inductor-max-autotune")
    assert backend.complaints(job("inductor-max-autotune", tmp_path)) == []
    other = Job(**{**vars(job("inductor-max-autotune", tmp_path)), "compile_mode": "reduce-overhead"})
    assert "max-autotune" in backend.complaints(other)[0]
