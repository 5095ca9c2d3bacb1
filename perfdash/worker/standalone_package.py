"""Load an exported model in a fresh process without the model's code, and compare its outputs.

`trial` writes inputs and outputs of this process as plain bytes and starts this file as a script. The script
imports torch alone: the libraries that the model comes from, and perfdash, cannot be imported there.
"""

from __future__ import annotations

import importlib.abc
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Optional, Sequence

if TYPE_CHECKING:
    from perfdash.records import Job

_LIMIT_S = 600.0


def trial(kind: str, path: str, inputs: Sequence[Any], outputs: Sequence[Any], job: Job) -> dict[str, Any]:
    """Call a file of a `kind` (package: AOTInductor's; program: torch.export's) in a fresh process.

    inputs, outputs: the tensors of a call in this process. Returns package_bytes, runs, and where it ran:
    import_s (of torch), load_s, first_call_s, grown_bytes (of resident memory), equal,
    largest_difference; else reason. It never raises: the case was measured already.
    """
    folder = os.path.join(job.scratch, "standalone")
    os.makedirs(folder, exist_ok=True)
    facts: dict[str, Any] = {"package_bytes": os.path.getsize(path), "runs": False}
    order = {
        "kind": kind,
        "path": path,
        "paths": [entry for entry in sys.path if entry],
        "forbidden": _libraries(job),
        "threads": job.case.threads,
        "tf32": job.tf32 if job.case.device == "cuda" else None,
        "inputs": _write(inputs, os.path.join(folder, "inputs")),
        "outputs": _write(outputs, os.path.join(folder, "outputs")),
    }
    command = [sys.executable, "-I", os.path.abspath(__file__)]
    try:
        done = subprocess.run(
            command, input=json.dumps(order), stdout=subprocess.PIPE, text=True, cwd=folder, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return {**facts, "reason": f"it took more than {_LIMIT_S:.0f} s"}
    except OSError as error:
        return {**facts, "reason": f"the process did not start: {error}"}
    try:
        answer = json.loads(done.stdout.rpartition("perfdash:")[2])
    except ValueError:
        return {**facts, "reason": f"the process ended with code {done.returncode}; the log has its words"}
    return {**facts, **answer}


def _libraries(job: Job) -> list[str]:
    """Packages that the fresh process must do without: perfdash and those of the model's loader."""
    from perfdash.worker import registry

    packages = {"perfdash", *registry.preload(job.loader)} - {"torch"}
    if job.loader == "python":
        from pathlib import Path

        from perfdash.worker.loaders import python

        packages.add(python.module_name(Path(job.target.rpartition(":")[0])))
    return sorted(name.partition(".")[0] for name in packages)


def _write(tensors: Sequence[Any], stem: str) -> list[dict[str, Any]]:
    """Write each tensor's bytes to a file; returns path, dtype, shape, stride and device of each."""
    described = []
    for index, tensor in enumerate(tensors):
        import torch

        path = f"{stem}_{index}"
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        with open(path, "wb") as file:
            file.write(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        described.append(
            {
                "path": path,
                "dtype": str(tensor.dtype).rpartition(".")[2],
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
                "device": str(tensor.device),
            }
        )
    return described


def _read(described: dict[str, Any]) -> Any:
    """The tensor that _write has described, with its strides, on its device."""
    import torch

    dtype = getattr(torch, described["dtype"])
    tensor = torch.empty_strided(described["shape"], described["stride"], dtype=dtype)
    if tensor.numel():
        with open(described["path"], "rb") as file:
            values = torch.frombuffer(bytearray(file.read()), dtype=dtype)
        tensor.copy_(values.reshape(described["shape"]))
    return tensor.to(described["device"])


class _Refuse(importlib.abc.MetaPathFinder):
    """Refuse to import the model's libraries."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"{name} is not imported here: the model has to run without it")


def _resident_bytes() -> Optional[int]:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _load_and_call(order: dict[str, Any]) -> dict[str, Any]:
    """What `trial` returns, in the fresh process."""
    start = time.perf_counter()
    import torch

    if order["kind"] == "package":
        import torch._inductor.package
    else:
        import torch.export
    facts: dict[str, Any] = {"import_s": round(time.perf_counter() - start, 4)}
    torch.set_num_threads(order["threads"])
    if order["tf32"] is not None:  # a case on a GPU; torch itself allows it in convolutions alone
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = order["tf32"]
    inputs = [_read(described) for described in order["inputs"]]
    expected = [_read(described) for described in order["outputs"]]
    before, start = _resident_bytes(), time.perf_counter()
    if order["kind"] == "package":
        model: Any = torch._inductor.aoti_load_package(order["path"])
    else:
        model = torch.export.load(order["path"]).module()
    facts["load_s"] = round(time.perf_counter() - start, 4)
    with torch.no_grad():
        start = time.perf_counter()
        made = model(*inputs)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        facts["first_call_s"] = round(time.perf_counter() - start, 4)
    after = _resident_bytes()
    if before is not None and after is not None:
        facts["grown_bytes"] = max(0, after - before)
    outputs = list(made) if isinstance(made, (list, tuple)) else [made]
    if len(outputs) != len(expected) or any(a.shape != b.shape for a, b in zip(outputs, expected)):
        return {**facts, "reason": "it returns tensors of other shapes"}
    facts["equal"] = all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in zip(outputs, expected))
    differences = [
        float((a.double() - b.double()).abs().max()) for a, b in zip(outputs, expected) if a.numel()
    ]
    facts["largest_difference"] = max(differences, default=0.0)
    return {**facts, "runs": True}


def main() -> None:
    """Read the order from the standard input and print the answer as JSON after a mark."""
    order = json.loads(sys.stdin.read())
    sys.path[:] = order["paths"]
    sys.meta_path.insert(0, _Refuse(order["forbidden"]))
    try:
        answer = _load_and_call(order)
    except Exception as error:  # whatever the package raises is the answer
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        answer = {"reason": f"{type(error).__name__}: {' '.join(lines[:2])[:300]}"}
    if answer.get("largest_difference") != answer.get("largest_difference"):
        answer["largest_difference"] = None  # NaN, which JSON does not have
    print("perfdash:" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
