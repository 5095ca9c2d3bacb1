"""Checks before the first case: refuse what would fail every case, or falsify every number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfdash.errors import MachineError, UsageError
from perfdash.runner import compatibility, host
from perfdash.runner.allocator import refuse_missing_library
from perfdash.settings import RunSettings
from perfdash.suites.cases import Planned


def check_slots(introductions: Sequence[Mapping[str, Any]], planned: Sequence[Planned]) -> None:
    """Judge what the slots report of themselves (Slot.introduce).

    Raises MachineError or UsageError where nothing could be measured, or slots are not alike.
    """
    first = compatibility.fingerprint(introductions[0]["environment"])
    for introduction in introductions:
        changes = compatibility.differences(first, compatibility.fingerprint(introduction["environment"]))
        if changes:
            hosts = [each["where"]["host"] for each in (introductions[0], introduction)]
            raise MachineError(
                f"slots on {hosts[0]} and {hosts[1]} are not alike, "
                f"and their numbers are never mixed:\n{compatibility.as_lines(changes)}"
            )
        hello = introduction["environment"]["worker"]
        _refuse_interpreter(hello, planned)
        for probe in introduction["probes"]:
            if planned[0].case.device == "cuda" and not probe["cuda"]:
                raise UsageError(
                    "--device cuda: this torch sees no GPU (`perfdash doctor` says more); "
                    f"torch {hello['torch']}, CUDA {hello['torch_cuda'] or 'not built in'}"
                )
        # With one way that can be measured the others become rows that say why they were not.
        if all(probe["complaints"] for probe in introduction["probes"]):
            complaints = [complaint for probe in introduction["probes"] for complaint in probe["complaints"]]
            raise UsageError("; ".join(dict.fromkeys(complaints)))


def _refuse_interpreter(hello: Mapping[str, Any], planned: Sequence[Planned]) -> None:
    needed = {case.loader for case in planned}
    for package, trouble in hello["missing"].items():
        if "torchvision" in trouble or len(needed) == 1:
            raise MachineError(
                f"{package} does not import under {hello['executable']}: {trouble}; with torch "
                f"{hello['torch']} install torch, torchvision and {package} together, from one place"
            )
    if hello["cuda_initialized"]:
        raise MachineError(
            "importing the libraries has started CUDA, so that no case can be forked: find out "
            "which package does it (a sitecustomize?)"
        )


def check_machine(settings: RunSettings, cases: Sequence[Planned]) -> None:
    """Raise MachineError where this machine lacks what every case needs: an allocator, a compiler."""
    if settings.executor != "local":
        return
    refuse_missing_library(settings.allocator)
    if any(case.needs_cpp for case in cases) and not host.compiler():
        raise MachineError("inductor needs a C++ compiler on the CPU: install g++, or set CXX")
