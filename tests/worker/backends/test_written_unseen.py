"""Back ends that no machine here can run, against stand-ins of their libraries; LLM.int8() for real."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from perfdash.records import Case, Job, Status
from perfdash.worker import registry
from perfdash.worker.failures import Unmeasurable
from tests.lazy import lazy

torch = lazy("torch")
transformers = lazy("transformers")
modules = lazy("tests.worker.modules")


def job(backend: str, **more) -> Job:
    return Job(case=Case("s", "m", batch_size=4, backend=backend, **more), loader="python", target="a.py:b")


class Script:
    """A traced module whose graph calls so many engines."""

    def __init__(self, script, engines) -> None:
        self._script = script
        self.inlined_graph = "%4 : Tensor[] = tensorrt::execute_engine(%3, %1)\n" * engines

    def __call__(self, *tensors):
        return self._script(*tensors)


class Calls(list):
    """The arguments that the stand-ins got; `engines`: how many engines they build for a model."""

    engines = 2


@pytest.fixture
def tensorrt(monkeypatch) -> Calls:
    """A torch_tensorrt and a modelopt that keep their arguments and convert nothing."""
    calls = Calls()

    def compile_script(script, **settings):
        calls.append(settings)
        return Script(script, calls.engines)

    def compile_program(program, **settings):
        calls.append(settings)
        return modules.WithEngines(program.module(), calls.engines)

    def compile_module(module, **settings):
        calls.append(settings)
        return modules.WithEngines(module, calls.engines).forward

    def quantize(model, configuration, forward_loop):
        forward_loop(model)
        calls.append(configuration)
        return model

    library = ModuleType("torch_tensorrt")
    library.Input = lambda shape, dtype: (shape, dtype)
    runtime = SimpleNamespace(TorchTensorRTModule=modules.Engine)
    library.compile = compile_script
    library.dynamo = SimpleNamespace(compile=compile_program, runtime=runtime)
    monkeypatch.setitem(sys.modules, "torch_tensorrt.dynamo", library.dynamo)
    monkeypatch.setattr("torch.compile", compile_module)
    names = ("modelopt", "modelopt.torch", "modelopt.torch.quantization", "modelopt.torch.quantization.utils")
    parts = {name: ModuleType(name) for name in names}
    quantization = parts["modelopt.torch.quantization"]
    quantization.quantize, quantization.INT8_DEFAULT_CFG = quantize, "int8"
    parts["modelopt.torch.quantization.utils"].export_torch_mode = contextlib.nullcontext
    parts["modelopt"].torch, parts["modelopt.torch"].quantization = parts["modelopt.torch"], quantization
    for name, module in {"torch_tensorrt": library, **parts}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def test_tensorrt_through_torchscript_gets_shapes_and_dtype(tensorrt):
    module, inputs = modules.Mlp().eval(), {"x": torch.randn(4, 16), "scale": torch.tensor([2.0])}
    backend = registry.find("backends", "tensorrt-torchscript")
    model = backend.prepare(module, inputs, job("tensorrt-torchscript", device="cuda"))
    assert tensorrt[0]["ir"] == "ts"
    assert tensorrt[0]["inputs"] == [((4, 16), torch.float32), ((1,), torch.float32)]
    assert tensorrt[0]["enabled_precisions"] == {torch.float32}
    with torch.no_grad():
        assert torch.equal(model(**inputs)["out"].logits, module(**inputs)["out"].logits)
    assert backend.notes(model) == ["2 TensorRT engines", "engines for batch size 4 only"]
    with pytest.raises(ValueError, match="converted for"):
        model(x=torch.randn(8, 16), scale=torch.tensor([2.0]))


@pytest.mark.slow
def test_tensorrt_int8_is_calibrated_before_it_is_exported(tensorrt):
    module, inputs = modules.Lstm().eval(), (torch.randn(4, 8, 8),)
    backend = registry.find("backends", "tensorrt-int8")
    model = backend.prepare(module, inputs, job("tensorrt-int8", device="cuda"))
    assert tensorrt[0] == "int8"
    assert tensorrt[1]["enabled_precisions"] == {torch.int8}
    with torch.no_grad():
        assert torch.allclose(model(*inputs), module(*inputs), atol=1e-6)
    assert backend.notes(model)[0] == "2 TensorRT engines"
    assert backend.notes(model)[1].startswith("calibrated on 16 batches of 4")


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("name", ["tensorrt", "tensorrt-torchscript", "tensorrt-int8"])
def test_engines_have_the_tf32_setting_of_eager(tensorrt, name, tf32):
    with_tf32 = replace(job(name, device="cuda"), tf32=tf32)
    registry.find("backends", name).prepare(modules.Lstm().eval(), (torch.randn(4, 8, 8),), with_tf32)
    settings = tensorrt[-1].get("options", tensorrt[-1])
    assert settings["disable_tf32"] is not tf32


def test_tensorrt_fails_where_an_engine_cannot_be_built(tensorrt):
    backend = registry.find("backends", "tensorrt")
    model = backend.prepare(modules.Lstm().eval(), (), job("tensorrt", device="cuda"))
    assert tensorrt[0]["options"]["pass_through_build_failures"] is True
    assert backend.notes(model) == ["2 TensorRT engines"]


@pytest.mark.parametrize("name", ["tensorrt", "tensorrt-torchscript", "tensorrt-int8"])
def test_a_model_without_engines_is_skipped(tensorrt, name):
    tensorrt.engines = 0
    backend = registry.find("backends", name)
    with pytest.raises(Unmeasurable, match="no engine for this model: what ran would be eager") as caught:
        backend.notes(
            backend.prepare(modules.Lstm().eval(), (torch.randn(4, 8, 8),), job(name, device="cuda"))
        )
    assert caught.value.status is Status.SKIPPED


def test_engines_of_onnxruntime_are_files_beside_the_model(tmp_path):
    backend = registry.find("backends", "onnxruntime-tensorrt")
    model = SimpleNamespace(run=SimpleNamespace(path=str(tmp_path / "model.onnx")), notes=["fixed"])
    with pytest.raises(Unmeasurable, match="would be ONNX Runtime's CUDA provider") as caught:
        backend.notes(model)
    assert caught.value.status is Status.SKIPPED
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "TRTKernel_graph_0_0.engine").touch()
    (tmp_path / "engines" / "TRTKernel_graph_0_0.profile").touch()
    assert backend.notes(model) == ["1 TensorRT engine", "fixed"]


@pytest.mark.parametrize("backend", ["tensorrt-torchscript", "tensorrt-int8"])
def test_a_refusal_names_the_step(tensorrt, monkeypatch, backend):
    def refuse(*arguments, **settings):
        raise ValueError("no engine for this")

    monkeypatch.setattr(sys.modules["torch_tensorrt"], "compile", refuse)
    monkeypatch.setattr(sys.modules["torch_tensorrt"], "dynamo", SimpleNamespace(compile=refuse))
    with pytest.raises(
        RuntimeError, match="torch_tensorrt refused this model: ValueError: no engine for this"
    ):
        registry.find("backends", backend).prepare(
            modules.Lstm().eval(), (torch.randn(4, 8, 8),), job(backend, device="cuda")
        )


@pytest.mark.filterwarnings("ignore:MatMul8bitLt")
@pytest.mark.slow
def test_llm_int8_is_near_eager_and_holds_int8():
    torch.manual_seed(0)
    settings = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=64, vocab_size=100)
    module = transformers.GPT2LMHeadModel(settings).eval()
    tokens = {"input_ids": torch.randint(0, 100, (2, 8))}
    backend = registry.find("backends", "llm-int8")
    model = backend.prepare(module, tokens, job("llm-int8"))
    with torch.no_grad():
        eager, mine = module(**tokens).logits, model(**tokens).logits
    assert 0 < float((eager - mine).norm() / eager.norm()) < 0.05
    assert sum(tensor.dtype == torch.int8 for tensor in backend.held_tensors(model)) >= 4
    assert backend.notes(model)[0].startswith("LLM.int8() in 4 linear layers")
    with pytest.raises(Unmeasurable, match="is no decoder of transformers") as caught:
        backend.prepare(modules.Tiny(), (), job("llm-int8"))
    assert caught.value.status is Status.SKIPPED


def test_a_wheel_that_names_its_commit_is_known_by_it(tmp_path):
    from perfdash.worker.__main__ import _distributions

    def distribution(name: str, text: str) -> SimpleNamespace:
        (tmp_path / name).mkdir()
        (tmp_path / name / "version.py").write_text(text)
        return SimpleNamespace(
            metadata={"Name": name}, version="1", locate_file=tmp_path.joinpath, read_text=lambda file: None
        )

    commit = "f12281517f1b2f6255904639b027c9436f3e5008"
    every = [
        distribution("torchvision", f"__version__ = '1'\ngit_version = '{commit}'\n"),
        distribution("torchaudio", "git_version = 'Unknown'\n"),
        distribution("timm", f"git_version = '{commit}'\n"),
    ]
    versions, commits, repositories = _distributions(every)
    assert set(versions) == {"torchvision", "torchaudio", "timm"}
    assert commits == {"torchvision": commit}
    assert repositories == {"torchvision": "https://github.com/pytorch/vision"}
