"""ONNX Runtime's own static INT8: the exported model with QDQ nodes, calibrated, weights per channel."""

from __future__ import annotations

import json
import os
from typing import Any, Iterator, Optional

from perfdash.records import Job, Status
from perfdash.worker.backends import onnxruntime

PACKAGES = onnxruntime.PACKAGES
EXTRA = onnxruntime.EXTRA
DEVICES = ("cpu",)
DTYPES = ("float32",)
LOSSY = True
CAPTURES = False
reopen = onnxruntime.reopen
notes = onnxruntime.notes


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The quantised model in a session.

    Raises RuntimeError where the model cannot be exported, Unmeasurable where nothing is quantised.
    """
    from perfdash.worker.flat import Converted, Flat, Structure, shapes_of
    from perfdash.worker.onnx_export import onnx_model

    structure = Structure(module, inputs)
    tensors = structure.flatten(inputs)
    model = onnx_model(Flat(module, structure).eval(), tensors, job)
    path = os.path.join(os.path.dirname(model.path), "int8.onnx")
    done = os.path.join(os.path.dirname(model.path), "int8.json")  # written last
    if os.path.exists(done):
        with open(done) as file:
            remarks = json.load(file)
    else:
        remarks = _quantize(model.path, path, structure, inputs, job)
        with open(done, "w") as file:
            json.dump(remarks, file)
    shapes = shapes_of(tensors)
    session = onnxruntime.Session(path, ["CPUExecutionProvider"], shapes, structure.outputs, job)
    converted = Converted(structure, session, [*model.notes, *remarks], None if model.dynamic else shapes)
    converted.uncounted_s = model.checked_s
    return converted


def _quantize(source: str, path: str, structure: Any, inputs: Any, job: Job) -> list[str]:
    import logging

    import onnx
    from onnxruntime import quantization

    from perfdash.worker.calibration import calibration_batches
    from perfdash.worker.failures import Unmeasurable

    batches, remark = calibration_batches(inputs, job)
    ready = os.path.join(os.path.dirname(path), "ready.onnx")
    logging.getLogger().setLevel(logging.ERROR)  # it warns by the root logger of what it was told to do
    quantization.quant_pre_process(source, ready, skip_symbolic_shape=True, save_as_external_data=True)
    kinds = {node.op_type for node in onnx.load(ready, load_external_data=False).graph.node}
    quantization.quantize_static(
        ready,
        path,
        _Reader(ready, [structure.flatten(batch) for batch in batches]),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        # Attention adds a mask of huge negative numbers: 8 bits over that range leave nothing of the rest.
        op_types_to_quantize=["Conv", "MatMul", "Gemm"] if "Softmax" in kinds else None,
        # Without VNNI the products of 8-bit numbers are summed in 16 bits, and overflow.
        reduce_range=not _has_vnni(),
        use_external_data_format=True,
    )
    graph = onnx.load(path, load_external_data=False).graph
    layers, of = _quantized_layers(graph)
    if not layers:
        raise Unmeasurable(Status.SKIPPED, "no convolution or matrix product with weights in it to quantise")
    return [remark, f"{layers} of {of} convolutions and matrix products are int8"]


def _quantized_layers(graph: Any) -> tuple[int, int]:
    """How many convolutions and matrix products take dequantised inputs; of how many."""
    from_int8 = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    found = [
        all(name in from_int8 for name in node.input[:2])
        for node in graph.node
        if node.op_type in ("Conv", "MatMul", "Gemm")
    ]
    return sum(found), len(found)


def _has_vnni() -> bool:
    try:
        with open("/proc/cpuinfo") as file:
            return "vnni" in file.read()
    except OSError:  # not Linux
        return False


class _Reader:
    """What quantize_static asks for its calibration batches, as a CalibrationDataReader."""

    def __init__(self, path: str, batches: list[Any]) -> None:
        import onnx

        names = [item.name for item in onnx.load(path, load_external_data=False).graph.input]
        self._feeds = self._all(names, batches)

    @staticmethod
    def _all(names: list[str], batches: list[Any]) -> Iterator[dict[str, Any]]:
        from perfdash.worker.onnx_export import place

        for tensors in batches:
            yield {name: tensors[place(name)].numpy() for name in names}

    def get_next(self) -> Optional[dict[str, Any]]:
        return next(self._feeds, None)
