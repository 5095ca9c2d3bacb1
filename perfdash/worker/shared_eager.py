"""What cases that differ in their configuration alone share of eager, in a folder of their slot.

Eager's memory, whether it repeats itself, its outputs and those of the float64 judge depend on the model, not
on the configuration of the back end. The first case of a model writes them, the next ones read them. Latency
is not shared: each case samples eager between its own calls.

A file is named by a digest of everything that eager depends on: the job, the weights and the inputs byte by
byte, the model's own file, torch and the packages of the back end, which may change eager where they are
imported. The slot adds the interpreter, the environment, the cores and the allocator (runner/slot.py). A file
holds tensors and plain values alone and is read as such: nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import shutil
from dataclasses import replace
from typing import Any, Callable, Dict, Optional

import torch

from perfdash.records import Job
from perfdash.worker import held_memory, pytree
from perfdash.worker.eager_and_compiled import ModelSide

# Fields of a job that only the compiled side reads, or the rule that judges its outputs; and the folders of
# one process. A field that is added to a job is part of the digest unless it is named here.
_NOT_OF_EAGER = (
    "compile_mode", "inductor_config", "tolerance", "factor", "cosine", "no_code",
    "scratch", "machine_cache", "folder", "group", "shared",
)  # fmt: skip
_MOST_BYTES = 512 << 20  # of the tensors in a file
_SHARE_OF_DISK = 0.1  # of what is free, that a file may take


class SharedEager:
    """The shared values of one eager side, by kind: `memory` and `outputs`."""

    def __init__(self, folder: str, digest: str, case: str) -> None:
        """`case`: the name of the case that is measured, which its values are marked with."""
        self._folder, self._digest, self._case = folder, digest, case

    def read(self, kind: str) -> Optional[Dict[str, Any]]:
        """What another case has written, with `shared_from`, the name of that case; None without.

        A file that cannot be read counts as none: the case then measures for itself.
        """
        try:
            plain = torch.load(self._path(kind), map_location="cpu", weights_only=True)
            values: Dict[str, Any] = pytree.from_plain(plain)
        except Exception:
            return None
        return values

    def write(self, kind: str, values: Dict[str, Any]) -> None:
        """Share values with the cases that follow.

        What is too large, or holds other objects than tensors and plain values, is not shared.
        """
        path = self._path(kind)
        with contextlib.suppress(Exception):
            size = sum(tensor.nbytes for tensor in pytree.tensors_in(values))
            if size > min(_MOST_BYTES, _SHARE_OF_DISK * shutil.disk_usage(self._folder).free):
                return
            unfinished = f"{path}.part"
            torch.save(pytree.to_plain({**values, "shared_from": self._case}), unfinished)
            os.replace(unfinished, path)

    def _path(self, kind: str) -> str:
        return os.path.join(self._folder, f"{self._digest}.{kind}")


def open_shared(job: Job, side: ModelSide, backend: Any) -> Optional[SharedEager]:
    """What the eager side shares with other cases; None where it shares nothing.

    Call it before the first step, which may change weights and inputs. Nothing is shared on a GPU, where
    eager is measured in the process of the case, nor by a case that grows until memory ends.
    """
    if not job.shared or job.role not in ("full", "untimed") or job.case.device != "cpu" or job.until_oom:
        return None
    try:
        digest = digest_of(job, side, backend)
    except Exception:  # tensors without plain bytes, torchao's Float8Tensor asserts; no such file
        return None
    return SharedEager(job.shared, digest, job.case.name)


def memory_facts(shared: Optional[SharedEager], measure: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
    """What `measure` returns of eager's memory, or what another case has measured."""
    facts = shared.read("memory") if shared else None
    if facts is None:
        facts = measure()
        if shared:
            shared.write("memory", facts)
    return facts


def digest_of(job: Job, side: ModelSide, backend: Any) -> str:
    """A digest of what the results of an eager side depend on.

    Raises any Exception for tensors whose bytes cannot be read, and OSError for such a file.
    """
    case = replace(job.case, backend="", dynamic=False, configuration="", settings="")
    fields = dataclasses.asdict(replace(job, case=case))
    for name in _NOT_OF_EAGER:
        del fields[name]
    facts = {
        "job": fields,
        "packages": sorted(getattr(backend, "PACKAGES", ())),
        "torch": [torch.__version__, torch.version.git_version, platform.python_version()],
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=repr).encode())
    file = job.target.rpartition(":")[0]
    if os.path.isfile(file):
        with open(file, "rb") as stream:
            digest.update(stream.read())
    weights = [*held_memory.weights(side.module), *held_memory.unregistered_tensors(side.module)]
    for tensor in [*weights, *pytree.tensors_in(side.inputs)]:
        digest.update(repr((tuple(tensor.shape), tensor.stride(), tensor.dtype)).encode())
        plain = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        digest.update(memoryview(plain.numpy()))
    return digest.hexdigest()
