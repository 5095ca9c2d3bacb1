"""Which GPUs a run may use, by NVML, by the kernel's files, or by neither; no GPU is needed."""

from __future__ import annotations

import builtins
import sys

import pytest

from perfdash.runner import gpus
from perfdash.runner.gpus import Gpu, Nvml
from tests.runner.nvml import Library

TWO = [Gpu("GPU-8a11"), Gpu("GPU-9b22")]
DIVIDED = [Gpu("GPU-8a11", ("MIG-1", "MIG-2")), Gpu("GPU-9b22")]


@pytest.mark.parametrize(
    ("named", "known", "visible"),
    [
        (None, TWO, ["GPU-8a11", "GPU-9b22"]),
        ("1,0", TWO, ["GPU-9b22", "GPU-8a11"]),
        ("GPU-9b, 0", TWO, ["GPU-9b22", "GPU-8a11"]),
        ("0,0", TWO, ["GPU-8a11"]),
        ("0,-1,1", TWO, ["GPU-8a11"]),
        ("0,7,1", TWO, ["GPU-8a11"]),
        ("", TWO, []),
        ("-1", TWO, []),
        (None, DIVIDED, ["MIG-1", "MIG-2", "GPU-9b22"]),
        ("0", DIVIDED, ["MIG-1", "MIG-2"]),
        ("MIG-2", DIVIDED, ["MIG-2"]),
        (None, [], ["0"]),  # the first, whose lock is better than none
        ("", [], []),
        ("0,1", [], ["0", "1"]),
        ("GPU-8a, 3", [], ["GPU-8a", "3"]),
        (None, [Gpu(""), Gpu("GPU-9b22")], ["0", "GPU-9b22"]),
    ],
)
def test_visible_gpus(named, known, visible):
    assert gpus.visible_gpus(named, known) == visible


def test_gpus_are_listed_by_nvml():
    nvml = Nvml(Library(["GPU-1", "GPU-2"], mig=["MIG-a"]))
    assert gpus.list_gpus(lambda: nvml) == [Gpu("GPU-1", ("MIG-a",)), Gpu("GPU-2")]
    assert nvml.handle("MIG-a") == "GPU-1", "clocks and heat are those of the whole GPU"


def test_without_nvml_they_are_listed_by_the_kernels_files(tmp_path):
    for address, text in (("0000:65:00.0", "GPU UUID:   \t GPU-2\n"), ("0000:17:00.0", "GPU UUID: GPU-1\n")):
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(f"Model: x\n{text}")
    assert gpus.list_gpus(lambda: None, tmp_path) == [Gpu("GPU-1"), Gpu("GPU-2")]


def test_gpus_that_sleep_have_no_uuid_in_the_kernels_files(tmp_path):
    for address in ("0000:17:00.0", "0000:65:00.0"):
        (tmp_path / address).mkdir()
        text = "Model: x\nGPU UUID: \t GPU-????????-????-????-????-????????????\nVideo BIOS: ??\n"
        (tmp_path / address / "information").write_text(text)
    assert gpus.visible_gpus(None, gpus.list_gpus(lambda: None, tmp_path)) == ["0", "1"]


def test_without_those_files_their_device_files_are_counted(tmp_path):
    none = tmp_path / "none"
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpus.list_gpus(lambda: None, none, tmp_path) == [Gpu(""), Gpu("")]
    assert gpus.visible_gpus(None, gpus.list_gpus(lambda: None, none, tmp_path)) == ["0", "1"]
    assert gpus.list_gpus(lambda: None, none, none) == []


def test_without_the_package_or_the_driver_there_is_no_nvml(monkeypatch):
    class NoDriver(Library):
        def nvmlInit(self):
            raise self.NVMLError("library not found")

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    assert gpus.open_nvml() is None
    monkeypatch.delitem(sys.modules, "pynvml")
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name == "pynvml":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert gpus.open_nvml() is None


def test_facts_of_a_gpu_that_tells_little():
    facts = gpus.facts("GPU-1", Nvml(Library(Name="H", EnforcedPowerLimit=700_000, EccMode=(1, 1))))
    assert (facts["name"], facts["driver"], facts["power_limit_w"], facts["ecc"]) == (
        "H",
        "580.1",
        700.0,
        True,
    )
    assert facts["persistence"] is facts["memory_bytes"] is facts["most_sm_mhz"] is None
    assert gpus.facts("GPU-7", Nvml(Library())) == {"uuid": "GPU-7"}
