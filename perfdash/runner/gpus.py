"""The NVIDIA GPUs of this machine: which there are, which a run may use, what NVML says of them.

NVML (the package nvidia-ml-py, extra `gpu`) is imported when it is needed; where it or the driver is missing,
facts are unknown. It opens no CUDA context. Neither torch nor CUDA is used here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROC, _DEV = Path("/proc/driver/nvidia/gpus"), Path("/dev")


@dataclass(frozen=True)
class Gpu:
    """A GPU by its UUID; `mig`: the UUIDs of its MIG devices, where it is divided into these."""

    uuid: str
    mig: tuple[str, ...] = ()


class Nvml:
    """NVML, opened. `of` asks it a question whose answer is None where this GPU or driver has none."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def of(self, name: str, *arguments: Any) -> Any:
        """The answer of one of its functions, by name."""
        function = getattr(self.library, name, None)
        if function is None:  # an older nvidia-ml-py
            return None
        try:
            return function(*arguments)
        except self.library.NVMLError:
            return None

    def text(self, name: str, *arguments: Any) -> str | None:
        """The answer as text: older packages return bytes."""
        value = self.of(name, *arguments)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def device(self, uuid: str) -> Any:
        """The handle of a GPU or of a MIG device, whose processes it tells; None if unknown."""
        return self.of("nvmlDeviceGetHandleByUUID", uuid)

    def handle(self, uuid: str) -> Any:
        """The handle of a GPU, or of the GPU that a MIG device is a part of; None if unknown."""
        handle = self.device(uuid)
        if handle is not None and uuid.startswith("MIG"):
            return self.of("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle
        return handle

    def gpus(self) -> list[Gpu]:
        """All GPUs that this process may use, in the order of their PCI addresses."""
        found = []
        for index in range(self.of("nvmlDeviceGetCount") or 0):
            handle = self.of("nvmlDeviceGetHandleByIndex", index)
            uuid = self.text("nvmlDeviceGetUUID", handle) if handle is not None else None
            if uuid:
                found.append(Gpu(uuid, tuple(self._mig_devices(handle))))
        return found

    def _mig_devices(self, handle: Any) -> Iterator[str]:
        mode = self.of("nvmlDeviceGetMigMode", handle)
        if not mode or not mode[0]:
            return
        for index in range(self.of("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            device = self.of("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            uuid = self.text("nvmlDeviceGetUUID", device) if device is not None else None
            if uuid:
                yield uuid


def open_nvml() -> Nvml | None:
    """NVML; None where the package or the driver is missing. It stays open until the process ends."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return Nvml(pynvml)


def list_gpus(nvml: Callable[[], Nvml | None] = open_nvml, proc: Path = _PROC, dev: Path = _DEV) -> list[Gpu]:
    """The GPUs of this machine in the order of their PCI addresses, by NVML or else by the kernel's files.

    Those without a UUID are counted: ones that sleep, whose file has question marks, and all where only the
    device files are there.
    """
    opened = nvml()
    if opened and (found := opened.gpus()):
        return found
    gpus = []
    for folder in sorted(proc.glob("*")):
        with contextlib.suppress(OSError):
            text = (folder / "information").read_text(errors="replace")
            match = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", text, re.MULTILINE)
            gpus.append(Gpu(match[1] if match else ""))
    return gpus or [Gpu("") for path in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]


def visible_gpus(named: str | None, gpus: Sequence[Gpu] | None = None) -> list[str]:
    """The UUIDs that a CUDA_VISIBLE_DEVICES selects, of all GPUs without one; MIG devices one by one.

    Numbers count in the order of PCI addresses. As CUDA does, it ends at the first entry that names nothing.
    What no UUID is known of keeps its number or its words. Where no GPU is known, it is the first.
    """
    known = list_gpus() if gpus is None else list(gpus)
    if named is None:
        words = [str(number) for number in range(max(1, len(known)))]
    else:
        words = [word.strip() for word in named.split(",")]
    visible: list[str] = []
    for word in words:
        if word in ("", "-1"):
            break
        entries = _named(word, known)
        if not entries:
            break
        visible += entries
    return list(dict.fromkeys(visible))


def _named(word: str, gpus: Sequence[Gpu]) -> list[str]:
    """The UUIDs that one entry selects: a number, the beginning of a UUID, or a MIG device."""
    if not gpus:
        return [word]
    if word.isdigit():
        if int(word) >= len(gpus):
            return []
        gpu = gpus[int(word)]
        return list(gpu.mig) or [gpu.uuid or word]
    found = [gpu for gpu in gpus if gpu.uuid and gpu.uuid.lower().startswith(word.lower())]
    if len(found) == 1:
        return list(found[0].mig) or [found[0].uuid]
    return [word]  # a MIG device, or one that only the driver knows


def facts(uuid: str, nvml: Nvml) -> dict[str, Any]:
    """What numbers of a GPU depend on: driver, memory, limits, modes; None where it is unknown."""
    handle = nvml.handle(uuid)
    if handle is None:
        return {"uuid": uuid}
    library, memory = nvml.library, nvml.of("nvmlDeviceGetMemoryInfo", handle)
    ecc = nvml.of("nvmlDeviceGetEccMode", handle)
    clocks = {
        name: nvml.of("nvmlDeviceGetMaxClockInfo", handle, getattr(library, kind))
        for name, kind in (("most_sm_mhz", "NVML_CLOCK_SM"), ("most_memory_mhz", "NVML_CLOCK_MEM"))
    }
    return {
        "uuid": uuid,
        "name": nvml.text("nvmlDeviceGetName", handle),
        "driver": nvml.text("nvmlSystemGetDriverVersion"),
        "memory_bytes": memory.total if memory else None,
        "power_limit_w": _watts(nvml.of("nvmlDeviceGetEnforcedPowerLimit", handle)),
        "default_power_limit_w": _watts(nvml.of("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        "persistence": _flag(nvml.of("nvmlDeviceGetPersistenceMode", handle)),
        "ecc": _flag(ecc[0]) if ecc else None,
        "mig": uuid.startswith("MIG"),
        **clocks,
    }


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1e3


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)
