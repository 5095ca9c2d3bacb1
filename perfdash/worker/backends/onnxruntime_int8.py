"""ONNX Runtime's own static INT8: the exported model with QDQ nodes, calibrated, weights per channel."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any, Iterator, Optional

from perfdash.records import Job, Status
from perfdash.worker.backends import onnxruntime

PACKAGES = onnxruntime.PACKAGES
MODULES = (*onnxruntime.MODULES, "onnxruntime.quantization", "onnxruntime.quantization.shape_inference")
EXTRA = onnxruntime.EXTRA
DEVICES = ("cpu",)
DTYPES = ("float32",)
OPTIONS = ()
LOSSY = True
CAPTURES = False
OWN_THREADS = True
# The kernels of its CPU provider, as the optimised graph names them.
_INTEGER = frozenset(
    {"QLinearConv", "QLinearMatMul", "QGemm", "MatMulInteger", "MatMulIntegerToFloat", "ConvInteger",
     "DynamicQuantizeMatMul"}
)  # fmt: skip
_FLOATING = frozenset({"Conv", "FusedConv", "MatMul", "FusedMatMul", "Gemm", "FusedGemm"})
reopen = onnxruntime.reopen
notes = onnxruntime.notes


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The quantised model in a session.

    Raises RuntimeError where the model cannot be exported, Unmeasurable where nothing is quantised.
    """
    from perfdash.worker.model_export import ConvertedModel, flattened, shapes_of
    from perfdash.worker.onnx_export import onnx_model

    signature, flat, tensors = flattened(module, inputs)
    model = onnx_model(flat, tensors, job)
    path = os.path.join(os.path.dirname(model.path), "int8.onnx")
    done = os.path.join(os.path.dirname(model.path), "int8.json")  # written last
    inspection_s = 0.0
    if os.path.exists(done):
        with open(done) as file:
            remarks = json.load(file)
    else:
        remark = _quantize(model.path, path, signature, inputs, job)
        start = time.perf_counter()
        remarks = [
            remark,
            _describe_integer_layers(path, sum(tensor.numel() for tensor in module.parameters())),
        ]
        inspection_s = time.perf_counter() - start
        with open(done, "w") as file:
            json.dump(remarks, file)
    shapes = shapes_of(tensors)
    session = onnxruntime.OnnxModule(path, ["CPUExecutionProvider"], shapes, signature.outputs, job)
    converted = ConvertedModel(
        signature, session, [*model.notes, *remarks], None if model.dynamic else shapes
    )
    converted.uncounted_s += model.checked_s + inspection_s
    return converted


def _quantize(source: str, path: str, signature: Any, inputs: Any, job: Job) -> str:
    import logging

    import onnx
    from onnxruntime import quantization

    from perfdash.worker.int8_calibration import calibration_batches

    batches, remark = calibration_batches(inputs, job)
    ready = os.path.join(os.path.dirname(path), "ready.onnx")
    logging.getLogger().setLevel(logging.ERROR)  # it warns by the root logger of its own settings
    quantization.quant_pre_process(source, ready, skip_symbolic_shape=True, save_as_external_data=True)
    kinds = {node.op_type for node in onnx.load(ready, load_external_data=False).graph.node}
    quantization.quantize_static(
        ready,
        path,
        _CalibrationReader(ready, [signature.flatten(batch) for batch in batches]),
        quant_format=quantization.QuantFormat.QDQ,
        # As its documentation asks for on x86: its kernels take unsigned activations and signed weights.
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
        # Attention adds a mask of huge negative numbers: 8 bits over that range leave nothing of the rest.
        op_types_to_quantize=["Conv", "MatMul", "Gemm"] if "Softmax" in kinds else None,
        # Without VNNI the products of 8-bit numbers are summed in 16 bits, and overflow.
        reduce_range=not _has_vnni(),
        use_external_data_format=True,
    )
    return remark


def _describe_integer_layers(path: str, parameters: int) -> str:
    """Describe which layers onnxruntime computes in integers: the file only says where it may.

    Raises Unmeasurable where there are none.
    """
    import onnx
    import onnxruntime

    from perfdash.worker.failures import Unmeasurable

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = f"{path}.runs"
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    graph = onnx.load(f"{path}.runs", load_external_data=False).graph
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}
    integer = [node for node in graph.node if node.op_type in _INTEGER]
    layers = len(integer) + sum(node.op_type in _FLOATING for node in graph.node)
    if not integer:
        raise Unmeasurable(
            Status.SKIPPED, "nothing to quantise: no convolution or product that it runs in integers"
        )
    weights = sum(max((sizes.get(name, 0) for name in node.input), default=0) for node in integer)
    return (
        f"{len(integer)} of {layers} convolutions and matrix products run in int8, with "
        f"{weights / max(1, parameters):.0%} of the parameters"
    )


def _has_vnni() -> bool:
    try:
        with open("/proc/cpuinfo") as file:
            return "vnni" in file.read()
    except OSError:  # not Linux
        return False


class _CalibrationReader:
    """The calibration batches as quantize_static reads them (CalibrationDataReader)."""

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
