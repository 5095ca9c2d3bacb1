"""Export of the case's model to an ONNX file in its scratch folder.

One process of the case writes the file; all processes of the case read it.
"""

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

# Above this relative rmse to eager, a file is wrong at another batch size, not merely rounded.
_WRONG = {torch.float16: 0.05}
_WRONG_ELSE = 0.01


@dataclass
class OnnxModel:
    """An ONNX file: `path`, and how it was exported.

    Its inputs and outputs are named input_0, ... and output_0, ...
    """

    path: str
    dynamic: bool
    notes: list[str] = field(default_factory=list)
    checked_s: float = 0.0  # seconds of the trial at another batch size, which is no part of the conversion


def onnx_model(flat: FlatModule, tensors: Tensors, job: Job) -> OnnxModel:
    """Export the model to ONNX unless the case has the file already.

    The batch is dynamic where that works: the file is run at another batch size and compared with eager. If
    that fails, the file is for the case's batch size only, and a note says why. Weights lie beside the
    file, so that they may exceed 2 GB. Raises RuntimeError with the cause.
    """
    folder = os.path.join(job.scratch, "onnx")
    done = os.path.join(folder, "done.json")  # written last: without it the export is incomplete
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
        except Exception as error:  # exporter and onnxruntime raise any type; a static export may work
            why = root_cause(error)
        if why is not None:
            exported = export_static(flat, tensors, why)
    if why is not None:
        model.dynamic = False
        model.notes += fixed_batch(why, tensors, batch)[0]
        try:
            _write(exported.program, model.path, len(tensors), flat)
        except Exception as error:  # the exporter raises any type
            raise RuntimeError(f"torch.onnx.export cannot convert this model: {root_cause(error)}") from error
    facts = asdict(model)
    del facts["checked_s"]  # only of this process
    with open(done, "w") as file:
        json.dump(facts, file)
    return model


def _write(program: Any, path: str, inputs: int, flat: FlatModule) -> None:
    # The exporter and its optimiser log every graph rewrite and warn about torch's own code.
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        onnx_program = torch.onnx.export(
            program,
            input_names=[f"input_{index}" for index in range(inputs)],
            output_names=[f"output_{index}" for index in range(len(flat.signature.places))],
            dynamo=True,
            verbose=False,  # otherwise it prints its progress to stdout
        )
        if onnx_program is None:
            raise RuntimeError("torch.onnx.export gave no program")
        onnx_program.save(path, external_data=True)


def _differs(flat: FlatModule, tensors: Tensors, batch: int, path: str) -> Optional[str]:
    """Compare the file's outputs with eager's at another batch size.

    Returns how they differ, None if they agree.
    """
    import onnxruntime

    trial_batch = 3 if batch == 2 else 2
    resized = with_batch(tensors, batch, trial_batch)
    with torch.no_grad():
        expected = flat(*resized)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    outputs = session.run(None, feed(session, resized))
    for index, (eager, array) in enumerate(zip(expected, outputs)):
        output = torch.as_tensor(array)
        if output.shape != eager.shape:
            return (
                f"at batch size {trial_batch} output {index} is {list(output.shape)}, not {list(eager.shape)}"
            )
        exact = eager.cpu().double()
        rmse = float((output.double() - exact).pow(2).mean().sqrt())
        # Negated, so that NaN counts as a difference.
        if not rmse <= _WRONG.get(eager.dtype, _WRONG_ELSE) * float(exact.pow(2).mean().sqrt()):
            return f"at batch size {trial_batch} output {index} is off by {rmse:.3g}"
    return None


def feed(session: Any, tensors: Tensors) -> dict[str, Any]:
    """Return arrays by name for the inputs that the file uses. On the CPU they share the tensors' memory."""
    names = [item.name for item in session.get_inputs()]
    return {name: tensors[place(name)].detach().cpu().numpy() for name in names}


def place(name: str) -> int:
    """Return the index of the input tensor that has this name in the file."""
    return int(name.rsplit("_", 1)[1])
