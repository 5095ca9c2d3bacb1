"""The fresh process: what it refuses to import, and what it says of a file that does not load."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from perfdash.records import Case, Job
from perfdash.worker import standalone_package
from tests.lazy import lazy

torch = lazy("torch")
model_export = lazy("perfdash.worker.model_export")
modules = lazy("tests.worker.modules")


def test_the_models_libraries_cannot_be_imported():
    finder = standalone_package._Refuse(["timm", "perfdash"])
    with pytest.raises(ModuleNotFoundError, match=r"timm\.models is not imported here"):
        finder.find_spec("timm.models")
    assert finder.find_spec("torch.nn") is None


@pytest.mark.parametrize(
    ("loader", "target", "packages"),
    [
        ("timm", "resnet18", {"perfdash", "timm"}),
        ("python", "/models/mine.py:net", {"perfdash", "mine"}),
        ("python", "/models/torch.py:net", {"perfdash"}),
        ("python", "/models/random.py:net", {"perfdash"}),
    ],
)
def test_the_libraries_of_a_loader_are_refused_and_torch_is_not(loader, target, packages):
    torch.ones(1)
    job = Job(case=Case("s", "m"), loader=loader, target=target)
    libraries = set(standalone_package._libraries(job))
    assert packages <= libraries
    assert libraries.isdisjoint({"torch", "random"})


def test_tensors_come_back_with_strides_and_values(tmp_path):
    tensors = [
        torch.arange(24.0).reshape(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
        torch.tensor(True),
        torch.empty(0, 3, dtype=torch.bfloat16),
        torch.randn(3, 4, dtype=torch.bfloat16).t(),
    ]
    described = standalone_package._write(tensors, str(tmp_path / "inputs"))
    for tensor, back in zip(tensors, map(standalone_package._read, described), strict=True):
        assert torch.equal(tensor, back)
        assert tensor.stride() == back.stride()
        assert tensor.dtype == back.dtype


@pytest.mark.slow
def test_a_file_that_does_not_load_is_a_reason_and_no_error(tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"no package")
    job = Job(case=Case("s", "m"), loader="python", target="a.py:b", scratch=str(tmp_path))
    facts = standalone_package.trial("program", str(path), (torch.ones(2),), (torch.ones(2),), job)
    assert facts["runs"] is False
    assert facts["package_bytes"] == 10
    assert facts["reason"]
    assert "\n" not in facts["reason"]


@pytest.mark.parametrize(
    ("device", "tf32", "switches"),
    [
        ("cuda", True, (True, True)),
        ("cuda", False, (False, False)),
        ("cpu", False, (False, True)),  # as torch has them by itself
    ],
)
def test_the_file_runs_under_the_tf32_setting_of_the_case(
    tmp_path, monkeypatch, tf32_switches, device, tf32, switches
):
    orders = []

    def started(command, input, **more):
        orders.append(json.loads(input))
        return SimpleNamespace(stdout="perfdash:{}", returncode=0)

    def loaded(path):
        seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return SimpleNamespace(module=lambda: lambda *inputs: list(inputs))

    path = tmp_path / "model.pt2"
    path.write_bytes(b"")
    job = Job(Case("s", "m", device=device), "python", "a.py:b", scratch=str(tmp_path), tf32=tf32)
    with monkeypatch.context() as replaced:
        replaced.setattr(standalone_package.subprocess, "run", started)
        standalone_package.trial("program", str(path), (torch.ones(2),), (torch.ones(2),), job)
    seen = []
    monkeypatch.setattr(torch.export, "load", loaded)
    assert standalone_package._load_and_call(orders[0])["equal"]
    assert seen == [switches]


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize("tf32", [False, True])
def test_a_product_has_the_same_outputs_in_the_fresh_process(tmp_path, tf32_switches, tf32):
    from perfdash.worker import device

    device.use_tf32(tf32)
    inputs = (torch.randn(256, 256, device="cuda"),)
    model = torch.nn.Linear(256, 256, device="cuda").eval()
    program = torch.export.export(model, inputs)
    torch.export.save(program, tmp_path / "model.pt2")
    with torch.no_grad():
        outputs = (program.module()(*inputs),)
    job = Job(Case("s", "m", device="cuda"), "python", "a.py:b", scratch=str(tmp_path), tf32=tf32)
    facts = standalone_package.trial("program", str(tmp_path / "model.pt2"), inputs, outputs, job)
    assert facts["equal"], facts


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        (
            "Could not guard on data-dependent expression Eq(u0, 1)",
            "a branch depends on the values of a tensor",
        ),
        (".numpy() is not supported for tensor subclasses.", "the model leaves torch for other code"),
        ("something new", ""),
    ],
)
def test_the_exporters_reason_is_in_plain_words_with_the_place(message, plain):
    def forward():
        raise RuntimeError(message)

    try:
        forward()
    except RuntimeError as error:
        reason = model_export.plain_reason(error)
    assert reason.startswith(plain)
    assert message in reason
    assert "test_standalone_package.py:" in reason
    assert "(forward)" in reason


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_torch_without_the_api_says_which_one_has_it(monkeypatch, dynamic):
    from perfdash.worker.backends import aot_inductor, export

    job = Job(case=Case("s", "m", backend="aot-inductor", dynamic=dynamic), loader="python", target="a.py:b")
    assert not aot_inductor.complaints(job)
    assert not export.complaints(job)
    monkeypatch.delattr(torch.export.Dim, "DYNAMIC")
    assert bool(export.complaints(job)) is dynamic
    monkeypatch.delattr(torch._inductor, "aoti_compile_and_package")
    (message,) = aot_inductor.complaints(job)
    assert message.endswith("cannot make AOTInductor packages: they need torch 2.5 or newer")
