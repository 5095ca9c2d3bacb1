"""Models whose time, memory and kernels are known, on a GPU; on the CPU that the same models run at all."""

from __future__ import annotations

import pytest

from perfdash.records import Status
from tests.conftest import HERE, Ran, perfdash
from tests.lazy import lazy

torch = lazy("torch")
gpu_models = lazy("tests.truth.gpu_models")
SUITE = str(HERE / "truth" / "gpu.toml")


def run(home, *words) -> Ran:
    ran = perfdash("run", "--suite", SUITE, "--no-history", *words, cwd=home, timeout=500, quickly=False)
    assert ran.code == 0, ran.err
    return ran


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Ran:
    return run(tmp_path_factory.mktemp("plain"), "--device", "cuda", "--backend", "aot-eager")


@pytest.mark.cuda
def test_a_known_ratio_of_times(plain):
    assert plain.results["products"].speedup.value == pytest.approx(4.0, rel=0.05)


@pytest.mark.cuda
def test_a_known_peak(plain):
    unit = 4 * gpu_models.UNITS
    assert plain.results["buffers"].eager_peak_bytes == pytest.approx(4 * unit, rel=0.03)


@pytest.mark.cuda
def test_kernels_are_counted_and_launching_them_is_told_apart(plain):
    work = plain.results["additions"].conditions["gpu_work"]["eager"]
    assert work["kernels"] == work["launches"] == gpu_models.ADDITIONS
    assert work["gpu_busy_ms"] < work["launch_ms"], "each kernel is far shorter than its launch"


@pytest.mark.cuda
def test_what_a_cuda_graph_keeps_is_in_the_peak(tmp_path):
    words = ("--device", "cuda", "--models", "products,buffers", "--compile-mode", "reduce-overhead")
    ran = run(tmp_path, *words)
    for name in ("products", "buffers"):
        figures = ran.results[name].memory["backend"]
        assert figures["graph_pool_bytes"] > 0
        assert figures["peak_bytes"] <= figures["reserved_bytes"] + figures["graph_pool_bytes"]
    assert ran.results["buffers"].backend_peak_bytes >= 2 * 4 * gpu_models.UNITS


@pytest.mark.cuda
def test_a_failed_context_does_not_spoil_the_next_case(tmp_path):
    (tmp_path / "broken.py").write_text(
        "import torch\n\n\nclass Reads(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x[torch.full((3,), 1 << 30, device=x.device)]\n\n\n"
        "def reads(batch_size):\n    return Reads(), (torch.ones(8),)\n\n\n"
        "def fine(batch_size):\n    return torch.nn.Linear(8, 8), (torch.ones(4, 8),)\n"
    )
    models = [word for name in ("reads", "fine") for word in ("--model", f"broken.py:{name}")]
    ran = perfdash("run", *models, "--no-history", "--device", "cuda", "--backend", "eager",
                   cwd=tmp_path, timeout=500, quickly=False)  # fmt: skip
    assert ran.results["broken.reads"].status is Status.EAGER_FAIL_TO_RUN
    assert ran.results["broken.fine"].status is Status.PASS


@pytest.mark.cuda
def test_the_driver_reports_what_it_reports(plain):
    readings = plain.results["products"].conditions.get("gpu_readings")
    if readings is None:
        pytest.fail("NVML is missing: install perfdash[gpu]")
    assert readings["xids"] == []
    assert readings["sm_mhz"][1] > 0


@pytest.mark.slow
def test_the_models_are_what_they_say():
    module, inputs = gpu_models.additions(64)
    assert bool((module(*inputs) == gpu_models.ADDITIONS).all())
    assert gpu_models.products(16)[0](*gpu_models.products(16)[1]).shape == (16, 16)
