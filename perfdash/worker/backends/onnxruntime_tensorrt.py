"""ONNX Runtime's TensorRT provider on the exported model; what TensorRT refuses runs on CUDA."""

from __future__ import annotations

import os
from typing import Any

from perfdash.records import Job
from perfdash.worker.backends import onnxruntime

PACKAGES = onnxruntime.PACKAGES
MODULES = onnxruntime.MODULES
EXTRA = "onnxruntime-gpu"
DEVICES = ("cuda",)
OPAQUE_ON_GPU = True
DTYPES = onnxruntime.DTYPES
OPTIONS = ()
CAPTURES = False
_ENGINES = "engines"  # the folder beside the model


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The exported model in a session. Its engine is kept in the case's folder, for the other processes."""
    cache = os.path.join(job.scratch, "onnx", _ENGINES)
    tensorrt = {
        "trt_engine_cache_enable": True,
        "trt_engine_cache_path": cache,
        "trt_fp16_enable": job.case.dtype == "float16",
    }
    providers = [("TensorrtExecutionProvider", tensorrt), onnxruntime.cuda_provider(job)]
    return onnxruntime.open_exported(module, inputs, job, providers)


def notes(model: Any) -> list[str]:
    """Return the number of engines, and onnxruntime's notes. Raises Unmeasurable if there are no engines.

    With a dynamic batch the engines are built at the first call, not with the session.
    """
    from perfdash.worker.tensorrt_engines import engine_note

    folder = os.path.join(os.path.dirname(model.run.path), _ENGINES)
    files = os.listdir(folder) if os.path.isdir(folder) else []
    engines = sum(name.endswith(".engine") for name in files)
    return [engine_note(engines, "ONNX Runtime's CUDA provider"), *onnxruntime.notes(model)]
