"""The case's model as an ONNX file in its scratch folder: made once, read by every process of the case."""

from __future__ import annotations

import json
import logging
import os
import time
import warnings
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

import torch

from perfdash.records import Job
from perfdash.worker.model_export import (
    FlatModule,
    Tensors,
    export,
    export_static,
    fixed_batch,
    root_cause,
    with_batch,
)

# Relative rmse to eager beyond which a file is wrong at another batch size, not merely rounded.
_WRONG = {torch.float16: 0.05}
_WRONG_ELSE = 0.01


@dataclass
class OnnxModel:
    """path of the file; inputs and outputs are called input_0, ... and output_0, ..."""

    path: str
    dynamic: bool
    notes: list[str] = field(default_factory=list)
    checked_s: float = 0.0  # the trial of another batch size, which is no part of the conversion


def onnx_model(flat: FlatModule, tensors: Tensors, job: Job) -> OnnxModel:
    """Export the model unless the case has the file already; the batch is dynamic where that works.

    A dynamic batch is tried at another size and compared with eager; if that fails, the file is for the
    case's batch only, and a note says why. Weights lie beside the file, so that they may exceed 2 GB.
    Raises RuntimeError with the cause.
    """
    folder = os.path.join(job.scratch, "onnx")
    done = os.path.join(folder, "done.json")  # written last: a file without it is half a file
    if os.path.exists(done):
        with open(done) as file:
            return OnnxModel(**json.load(file))
    os.makedirs(folder, exist_ok=True)
    model = OnnxModel(os.path.join(folder, "model.onnx"), dynamic=True)
    batch = job.case.batch_size
    exported = export(flat, tensors, batch)
    why = exported.why_static
    if why is None:
        try:
            _write(exported.program, model.path, len(tensors), flat)
            start = time.perf_counter()
            try:
                why = _differs(flat, tensors, batch, model.path)
            finally:
                model.checked_s = time.perf_counter() - start
        except Exception as error:  # the exporter and onnxruntime raise anything; a static export may work
            why = root_cause(error)
        if why is not None:
            exported = export_static(flat, tensors, why)
    if why is not None:
        model.dynamic = False
        model.notes += fixed_batch(why, tensors, batch)[0]
        try:
            _write(exported.program, model.path, len(tensors), flat)
        except Exception as error:  # as above
            raise RuntimeError(f"torch.onnx.export cannot convert this model: {root_cause(error)}") from error
    with open(done, "w") as file:
        json.dump(asdict(model), file)
    return model


def _write(program: Any, path: str, inputs: int, flat: FlatModule) -> None:
    # The exporter and its optimiser log every graph rewrite and warn of torch's own code.
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        made = torch.onnx.export(
            program,
            input_names=[f"input_{index}" for index in range(inputs)],
            output_names=[f"output_{index}" for index in range(len(flat.signature.places))],
            dynamo=True,
            verbose=False,  # else it prints its progress to stdout
        )
        if made is None:
            raise RuntimeError("torch.onnx.export gave no program")
        made.save(path, external_data=True)


def _differs(flat: FlatModule, tensors: Tensors, batch: int, path: str) -> Optional[str]:
    """How the file's outputs differ from eager's at another batch size; None where they do not."""
    import onnxruntime

    other = 3 if batch == 2 else 2
    changed = with_batch(tensors, batch, other)
    with torch.no_grad():
        expected = flat(*changed)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found = session.run(None, feed(session, changed))
    for index, (wanted, array) in enumerate(zip(expected, found)):
        got = torch.as_tensor(array)
        if got.shape != wanted.shape:
            return f"at batch size {other} output {index} is {list(got.shape)}, not {list(wanted.shape)}"
        exact = wanted.cpu().double()
        rmse = float((got.double() - exact).pow(2).mean().sqrt())
        # NaN is off, too.
        if not rmse <= _WRONG.get(wanted.dtype, _WRONG_ELSE) * float(exact.pow(2).mean().sqrt()):
            return f"at batch size {other} output {index} is off by {rmse:.3g}"
    return None


def feed(session: Any, tensors: Tensors) -> dict[str, Any]:
    """Arrays by name for the inputs that the file uses; on the CPU they share the tensors' memory."""
    names = [item.name for item in session.get_inputs()]
    return {name: tensors[place(name)].detach().cpu().numpy() for name in names}


def place(name: str) -> int:
    """The index of the input tensor that has this name in the file."""
    return int(name.rsplit("_", 1)[1])
