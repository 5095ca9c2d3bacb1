"""ONNX Runtime's TensorRT provider on the exported model; what TensorRT refuses runs on CUDA."""

from __future__ import annotations

import os
from typing import Any

from perfdash.records import Job
from perfdash.worker.backends import onnxruntime

PACKAGES = onnxruntime.PACKAGES
EXTRA = "onnxruntime-gpu"
DEVICES = ("cuda",)
OPAQUE_ON_GPU = True
DTYPES = onnxruntime.DTYPES
OPTIONS = ()
CAPTURES = False
notes = onnxruntime.notes


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The exported model in a session. Its engine is kept in the case's folder, for the other processes."""
    cache = os.path.join(job.scratch, "onnx", "engines")
    tensorrt = {
        "trt_engine_cache_enable": True,
        "trt_engine_cache_path": cache,
        "trt_fp16_enable": job.case.dtype == "float16",
    }
    providers = [("TensorrtExecutionProvider", tensorrt), onnxruntime.cuda_provider(job)]
    return onnxruntime.open_exported(module, inputs, job, providers)
