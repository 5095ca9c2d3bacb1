"""OpenVINO's CPU plug-in on the program that torch.export made."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from perfdash.records import Job

PACKAGES = ("openvino",)
MODULES = (
    "torch.export._trace",
    "openvino.frontend.pytorch.torchdynamo.export_decompositions",
    "openvino.frontend.pytorch.fx_decoder",
    "openvino.tools.ovc.moc_frontend.offline_transformations",
    "openvino._offline_transformations",
)
EXTRA = "openvino"
DTYPES = ("float32", "bfloat16")
OPTIONS = ()
DEVICES = ("cpu",)
CAPTURES = False
OWN_THREADS = True

# openvino sends usage figures over the network through this package, already when it is imported; without
# the package it uses a stub. Set here, because the worker imports PACKAGES before it calls prepare. None in
# sys.modules makes an import fail, which its type does not allow.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The model compiled for the shapes of the inputs; for others it is compiled when they come.

    Raises RuntimeError that says what could not be converted.
    """
    from perfdash.worker.model_export import ConvertedModel, fixed_batch, flattened, shapes_of

    signature, flat, tensors = flattened(module, inputs)
    path, why_static = _file(flat, tensors, job)
    remarks, shapes = fixed_batch(why_static, tensors, job.case.batch_size)
    return ConvertedModel(signature, _Compiled(path, shapes_of(tensors), job), remarks, shapes)


def reopen(model: Any) -> Any:
    """A second model, read from the same file and compiled for the case's shapes."""
    return model.reopened()


def notes(model: Any) -> list[str]:
    """Whether the batch is fixed, and why."""
    return list(model.notes)


def _file(flat: Any, tensors: Any, job: Job) -> Any:
    """(path of the model in the case's folder, why its batch is fixed or None); made once a case."""
    import openvino

    from perfdash.worker.model_export import export, root_cause

    folder = os.path.join(job.scratch, "openvino")
    path, done = os.path.join(folder, "model.xml"), os.path.join(folder, "done.json")
    if os.path.exists(done):
        with open(done) as file:
            return path, json.load(file)
    os.makedirs(folder, exist_ok=True)
    exported = export(flat, tensors, job.case.batch_size)
    try:
        model = openvino.convert_model(exported.program)
    except Exception as error:  # it has many classes of its own
        raise RuntimeError(f"openvino cannot convert this model: {root_cause(error)}") from error
    openvino.save_model(model, path, compress_to_fp16=False)
    with open(done, "w") as file:  # written last: a model without it is half a model
        json.dump(exported.why_static, file)
    return path, exported.why_static


class _Compiled:
    """Called with the input tensors; it keeps one compiled model for each combination of shapes."""

    def __init__(self, path: str, shapes: Any, job: Job) -> None:
        self._made_of = (path, shapes, job)
        self._requests: dict[Any, Any] = {}
        self._request(shapes)

    def __call__(self, *tensors: Any) -> list[Any]:
        import torch

        from perfdash.worker.model_export import shapes_of

        request = self._request(shapes_of(tensors))
        shared = {index: _shared(tensor) for index, tensor in enumerate(tensors)}
        # Without share_outputs it would copy all outputs into a result that nobody reads.
        request.infer(shared, share_inputs=True, share_outputs=True)
        made = []
        for output in request.model_outputs:
            # Copied, for the next call writes into the same memory. bfloat16 comes as float16 bits.
            tensor = torch.from_numpy(request.get_tensor(output).data.copy())
            made.append(tensor.view(torch.bfloat16) if _is_bfloat16(output) else tensor)
        return made

    def again(self) -> _Compiled:
        """A second session with the same settings."""
        return _Compiled(*self._made_of)

    def _request(self, shapes: Any) -> Any:
        key = tuple(shapes)
        if key not in self._requests:
            self._requests[key] = self._compile(shapes)
        return self._requests[key]

    def _compile(self, shapes: Any) -> Any:
        import openvino

        path, _, job = self._made_of
        core = openvino.Core()
        model = core.read_model(path)
        if len(model.inputs) != len(shapes):
            raise RuntimeError(f"openvino kept {len(model.inputs)} of the model's {len(shapes)} inputs")
        model.reshape({model.input(index): list(shape) for index, shape in enumerate(shapes)})
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": job.case.threads,
            # By default it computes float32 models in bfloat16 where the processor can.
            "INFERENCE_PRECISION_HINT": "f32" if job.case.dtype == "float32" else "bf16",
            # The worker has its cores already; pinning again would move them for eager as well.
            "ENABLE_CPU_PINNING": False,
        }
        return core.compile_model(model, "CPU", settings).create_infer_request()


def _is_bfloat16(output: Any) -> bool:
    import openvino

    return bool(output.get_element_type() == openvino.Type.bf16)


def _shared(tensor: Any) -> Any:
    """The tensor's memory as openvino's tensor; numpy has no bfloat16, so that goes as bits."""
    import openvino
    import torch

    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return openvino.Tensor(tensor.view(torch.int16).numpy(), list(tensor.shape), openvino.Type.bf16)
    return openvino.Tensor(tensor.numpy(), shared_memory=True)
