"""TensorRT in INT8: calibrated by NVIDIA's ModelOpt after training, exported, compiled by torch_tensorrt.

Written by their documentation; no GPU has run it yet.
"""

from __future__ import annotations

import copy
from typing import Any

from perfdash.records import Job

PACKAGES = ("torch_tensorrt", "modelopt")
EXTRA = "tensorrt-int8"
DEVICES = ("cuda",)
OPAQUE_ON_GPU = True
DTYPES = ("float32",)
OPTIONS = ()
LOSSY = True
CAPTURES = False


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """A quantised copy as engines, for the shapes of the inputs only.

    Calibrated as every static INT8 here (worker/int8_calibration). Raises RuntimeError that says which step
    refused the model, Unmeasurable if no engine was built.
    """
    import modelopt.torch.quantization as quantization
    import torch
    import torch_tensorrt
    from modelopt.torch.quantization.utils import export_torch_mode

    from perfdash.worker.int8_calibration import calibration_batches
    from perfdash.worker.model_export import (
        ConvertedModel,
        ExportRefused,
        export_static,
        flattened,
        root_cause,
        shapes_of,
    )
    from perfdash.worker.tensorrt_engines import engine_note, engines_among

    signature, flat, tensors = flattened(copy.deepcopy(module), inputs)
    batches, remark = calibration_batches(inputs, job)

    def calibrate(model: Any) -> None:
        for batch in batches:
            model(*signature.flatten(batch))

    step = "ModelOpt"
    try:
        with torch.no_grad():
            quantized = quantization.quantize(flat, quantization.INT8_DEFAULT_CFG, forward_loop=calibrate)
            with export_torch_mode():
                exported = export_static(quantized, tensors, "engines are built for one size")
                step = "torch_tensorrt"
                compiled = torch_tensorrt.dynamo.compile(
                    exported.program,
                    inputs=list(tensors),
                    enabled_precisions={torch.int8},
                    min_block_size=1,
                    disable_tf32=not job.tf32,  # as eager's
                )
    except ExportRefused:
        raise
    except Exception as error:  # both raise any type
        raise RuntimeError(f"{step} refused this model: {root_cause(error)}") from error
    engines = engine_note(engines_among(compiled.modules()))
    remarks = [engines, remark, f"engines for batch size {job.case.batch_size} only"]
    return ConvertedModel(signature, compiled, remarks, shapes_of(tensors))


def notes(model: Any) -> list[str]:
    """The number of engines, what it was calibrated on, and that the shapes are fixed."""
    return list(model.notes)
