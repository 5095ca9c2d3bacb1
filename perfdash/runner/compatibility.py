"""Refuse to measure, resume or merge what would fail every case or mix unlike numbers.

Numbers from unlike hosts, packages or methods are never mixed.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfdash import methods
from perfdash.detect.environment_changes import (
    CPU_CAPABILITY,
    CPU_CAPABILITY_VARIABLE,
    NOT_OF_A_BUILD,
    gpu_facts,
)
from perfdash.errors import MachineError, UsageError
from perfdash.history.results import BY_HOST, VOLATILE
from perfdash.records import Result
from perfdash.runner import host
from perfdash.runner.allocator import refuse_missing_library
from perfdash.runner.cores import slots_needed, slots_of
from perfdash.runner.launcher import NOT_FROM_THE_SHELL, Launch, refuse_missing_torch
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned
from perfdash.worker import numa

# Facts of the host (host.facts) and of the measured interpreter (hello) that numbers depend on.
_HOST = (
    "host_class", "cores", "sockets", "smt", "governor", "turbo", "huge_pages", "cpu_limit", "libc",
    "compiler", CPU_CAPABILITY,
)  # fmt: skip
_GPU = ("name", "driver", "memory_bytes", "power_limit_w", "ecc", "most_sm_mhz")  # of gpus.facts
_WORKER = ("python", "torch", "torch_git_version", "torch_cuda")
# Recorded variables that change no number: they name folders and files, devices, the hub of models, or what
# the scripts in ci/ install. They differ between hosts and between shells.
_PLACES = re.compile(
    r"\w+_(DIR|DIRECTORY|PATH|HOME|OUT|TRACE)|PYTHONPATH|HF_\w+|NVIDIA_\w+|"
    r"CUDA_VISIBLE_DEVICES|TORCH(_WITH|_INDEX|_REPO)?"
)
_MAY_BE_UNKNOWN = ("vector_isa", CPU_CAPABILITY, *(f"gpu {name}" for name in _GPU))
_SHOWN = 12


def fingerprint(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The part of run.json's `environment` that must agree, flat: {name: value}."""
    worker = environment.get("worker", {})
    packages, commits = (
        # pip only installs: its version changes no number.
        {name: value for name, value in (worker.get(kind) or {}).items() if name != "pip"}
        for kind in ("packages", "commits")
    )
    return {
        **{name: environment.get(name) for name in _HOST},
        **{name: worker.get(name) for name in _WORKER},
        "gpus": environment.get("gpus"),
        **gpu_fingerprint(environment),
        "vector_isa": environment.get("vector_isa"),
        **{f"package {name}": version for name, version in packages.items()},
        **{f"commit of {name}": commit for name, commit in commits.items()},
        **{
            f"variable {name}": value
            for name, value in measured_variables(environment.get("variables", {})).items()
            if name != CPU_CAPABILITY_VARIABLE  # compared as a fact of the host
        },
    }


def of_hosts(environments: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The environment of a run from those of its hosts: the first one, with the facts that differ by host.

    `environments`: each with the host of its run, which an older record does not name itself. Of one host the
    first counts. The entry `by_host` has all hosts, if there are several, each with its values of the facts
    that differ; these are no facts of the run.
    """
    by_host: dict[str, dict[str, Any]] = {}
    for run_host, environment in environments:
        shared = {name: value for name, value in environment.items() if name != BY_HOST}
        own = environment.get(BY_HOST) or {environment.get("host", run_host): {}}
        for place, facts in own.items():
            by_host.setdefault(place, {**shared, **facts})
    merged = dict(environments[0][1])
    if len(by_host) == 1:
        return merged
    merged[BY_HOST] = {place: {} for place in by_host}
    for name in sorted({name for facts in by_host.values() for name in facts}.difference(VOLATILE)):
        values = {place: facts.get(name) for place, facts in by_host.items()}
        known = [value for value in values.values() if value is not None]
        if name in _MAY_BE_UNKNOWN:
            merged[name] = known[0] if known else None
        elif any(isinstance(value, Mapping) for value in known):
            continue  # variables, facts of a GPU: they agree in what numbers depend on
        elif any(value != known[0] for value in values.values() if known):
            merged.pop(name, None)
            for place, value in values.items():
                merged[BY_HOST][place][name] = value
    return merged


def measured_variables(recorded: Mapping[str, str]) -> dict[str, str]:
    """The recorded variables of a shell that numbers depend on: they reach a worker and name no place."""
    return {
        name: value
        for name, value in recorded.items()
        if name not in NOT_FROM_THE_SHELL and not _PLACES.fullmatch(name)
    }


def gpu_fingerprint(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `gpu_facts` that must agree, flat: {"gpu driver": ...}, None where it is unknown."""
    known = gpu_facts(environment)
    return {f"gpu {name}": known.get(f"gpu {name}") for name in _GPU}


def refuse_other_environment(then: Mapping[str, Any], now: Mapping[str, Any], run: str) -> None:
    """Raise MachineError where a run was started in another environment than this one.

    Of the interpreter what would end a run (interpreter_changes) counts, since its other cases are of it.
    """
    if not now.get("gpus"):  # of a run on the CPU an earlier perfdash recorded the GPUs of the host
        then = {**then, "gpus": now.get("gpus")}
    changes = differences(*(fingerprint({**environment, "worker": {}}) for environment in (then, now)))
    changes += interpreter_changes(then.get("worker") or {}, now.get("worker") or {}, same_imports=True)
    if changes:
        raise MachineError(
            f"Cannot resume {run}: its environment differs from this one (then | now):\n{as_lines(changes)}"
        )


def refuse_other_method(results: Iterable[Result], run: str) -> None:
    """Raise UsageError where a run was measured by another method than this perfdash uses."""
    for result in results:
        if changes := methods.changes(result.method, methods.CURRENT):
            raise UsageError(
                f"Cannot resume {run}: perfdash now measures by another method ({', '.join(changes)}), and a "
                "run never mixes two. Start a new run, or resume it with the perfdash that began it."
            )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`name: this | that` for every name whose values differ, missing ones as `none`."""
    names = list(dict.fromkeys([*old, *new]))
    return [
        f"{name}: {_spell(old.get(name))} | {_spell(new.get(name))}"
        for name in names
        if old.get(name) != new.get(name) and not (name in _MAY_BE_UNKNOWN and _unknown(name, old, new))
    ]


def interpreter_changes(first: Mapping[str, Any], now: Mapping[str, Any], same_imports: bool) -> list[str]:
    """What of a measured interpreter changed between two hellos, as of differences().

    Added packages are no change, nor are pip and perfdash. Importing a package may add others to the path
    (setuptools does): without `same_imports` packages that are gone are no change either.
    """
    compared = first.get("packages", {}).keys() - NOT_OF_A_BUILD
    if not same_imports:
        compared &= now.get("packages", {}).keys()

    def of_compared(hello: Mapping[str, Any]) -> dict[str, Any]:
        of_packages = {
            kind: {name: value for name, value in (hello.get(kind) or {}).items() if name in compared}
            for kind in ("packages", "commits")
        }
        return fingerprint({"worker": {**hello, **of_packages}})

    return differences(of_compared(first), of_compared(now))


def as_lines(differences: list[str]) -> str:
    """The differences as indented lines, the first few of many."""
    lines = [f"  {line}" for line in differences[:_SHOWN]]
    if len(differences) > _SHOWN:
        lines.append(f"  ... and {len(differences) - _SHOWN} more")
    return "\n".join(lines)


def _unknown(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return old.get(name) is None or new.get(name) is None


def _spell(value: Any) -> str:
    return "none" if value is None else str(value)


def check_slots(introductions: Sequence[Mapping[str, Any]], planned: Sequence[Planned]) -> None:
    """Judge what the slots report of themselves (Slot.introduce).

    Raises MachineError or UsageError where nothing could be measured, or slots are not alike.
    """
    first = fingerprint(introductions[0]["environment"])
    for introduction in introductions:
        changes = differences(first, fingerprint(introduction["environment"]))
        if changes:
            slots = [slot["where"] for slot in (introductions[0], introduction)]
            places = [slot["host"] for slot in slots]
            if places[0] == places[1]:  # of several GPUs one may be unlike
                places = [f"{slot['host']} ({slot.get('gpu') or slot['cores']})" for slot in slots]
            raise MachineError(
                f"slots on {places[0]} and {places[1]} are not alike, "
                f"and their numbers are never mixed:\n{as_lines(changes)}"
            )
        hello = introduction["environment"]["worker"]
        _refuse_interpreter(hello, planned)
        for probe in introduction["probes"]:
            if planned[0].case.device == "cuda" and not probe["cuda"]:
                raise UsageError(
                    "--device cuda: this torch sees no GPU (`perfdash doctor` says more); "
                    f"torch {hello['torch']}, CUDA {hello['torch_cuda'] or 'not built in'}"
                )
        # If one technique can be measured, the others become results with their reason.
        if all(probe["complaints"] for probe in introduction["probes"]):
            complaints = [complaint for probe in introduction["probes"] for complaint in probe["complaints"]]
            raise UsageError("; ".join(dict.fromkeys(complaints)))
        if unloadable := introduction.get("unloadable"):
            raise UsageError("\n".join(slip_message(target, failed) for target, failed in unloadable.items()))


def slip_message(target: str, failed: Mapping[str, Any]) -> str:
    """Why the function that --model names, or one of a notebook, gives no model, and where it fails."""
    path, colon, _ = target.rpartition(":")
    place = rf'File "{re.escape(path)}", line (\d+)' if colon else rf"line (\d+), in {re.escape(target)}\n"
    lines = re.findall(place, failed.get("traceback", ""))
    # A syntax error names its file and line once more.
    text = re.sub(r" \([^()]*, line \d+\)$", "", failed["message"])
    if failed["type"] == "SyntaxError" and not lines:
        lines = re.findall(r"line (\d+)\)$", failed["message"])
    subject = f"{'--model ' if colon else ''}{target}{f' (line {lines[-1]})' if lines else ''}"
    for name in (target, path):  # messages of the loader begin with one of them
        if text.startswith(f"{name} "):
            return f"{subject} {text.removeprefix(f'{name} ')}"
    if lines or failed["type"] != "TypeError":
        return f"{subject}: {failed['type']}: {text}"
    return (
        f"{subject}: {failed['type']}: {text}; it is called with the batch size and returns (module, inputs)"
    )


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


def check_machine(settings: RunSettings, cases: Sequence[Planned], base_python: str | None = None) -> None:
    """Raise MachineError where this machine lacks what some case needs, before it waits for a core.

    That is torch (also under `base_python`, the interpreter of another build), an allocator, a compiler.
    """
    if settings.executor != "local":
        return
    for python in filter(None, (settings.python, base_python)):
        refuse_missing_torch(Launch(python, (), 1, env=tuple(settings.env.items())))
    refuse_missing_library(settings.allocator)
    binding = [case for case in cases if case.skip_reason is None and slots_needed(settings, case)[1]]
    if settings.bind_memory:
        refuse_unbound_memory(settings, "--bind-memory")
    elif binding:
        refuse_unbound_memory(settings, f"--configuration {binding[0].case.configuration}")
    if any(case.needs_cpp for case in cases) and not host.compiler():
        raise MachineError("inductor needs a C++ compiler on the CPU: install g++, or set CXX")
    triton = [case for case in cases if case.case.device == "cuda" and case.needs_inductor]
    if any(not host.c_compiler({**os.environ, **case.env}) for case in triton):
        raise MachineError(
            "inductor needs a C compiler on a GPU, with which Triton builds a stub of the driver: "
            "install gcc, or set CC"
        )


def refuse_unbound_memory(settings: RunSettings, option: str) -> None:
    """Raise MachineError where this machine does not let a process bind its memory, as `option` asks."""
    refused: list[OSError] = []

    def bind() -> None:
        try:
            numa.bind_memory(slots_of(settings)[0])
        except OSError as error:
            refused.append(error)

    trial = threading.Thread(target=bind)  # the policy ends with its thread
    trial.start()
    trial.join()
    if refused:
        raise MachineError(
            f"{option}: {refused[0].strerror or refused[0]}. In a container it needs the capability "
            "SYS_NICE (docker run --cap-add SYS_NICE); or measure without --bind-memory, --threads socket, "
            "--instances and configuration socket"
        )
