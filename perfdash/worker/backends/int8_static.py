"""Static INT8 on the CPU: torchao's PT2E with the x86 quantiser, calibrated, compiled by inductor."""

from __future__ import annotations

import warnings
from typing import Any, Sequence

from perfdash.records import Job, Status
from perfdash.worker.backends import inductor_freezing

PACKAGES = ("torchao",)
MODULES = (
    "torch.export._trace",
    "torchao.quantization.pt2e.quantize_pt2e",
    "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer",
)
EXTRA = "torchao"
DTYPES = ("float32",)
DEVICES = ("cpu",)
OPTIONS = inductor_freezing.OPTIONS
LOSSY = True
complaints = inductor_freezing.complaints
vector_isa = inductor_freezing.vector_isa


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The quantised program, compiled with freezing, which packs the int8 weights.

    Raises RuntimeError where torch.export cannot capture the model, Unmeasurable where the quantiser
    finds nothing in it.
    """
    import torch
    import torch._dynamo.config

    from perfdash.worker.failures import Unmeasurable
    from perfdash.worker.int8_calibration import calibration_batches
    from perfdash.worker.model_export import ConvertedModel, export, fixed_batch, flattened

    signature, flat, tensors = flattened(module, inputs)
    # Without the layers that strict capture records, the quantiser cannot find its patterns in a ResNet.
    exported = export(flat, tensors, job.case.batch_size, strict=True)
    batches, remark = calibration_batches(inputs, job)
    quantized = _quantize(exported.program, [signature.flatten(batch) for batch in batches])
    layers, of, weights = _quantized_layers(quantized)
    if not layers:
        raise Unmeasurable(
            Status.SKIPPED, "no convolution or linear layer in it that the x86 quantiser takes"
        )
    share = weights / max(1, sum(parameter.numel() for parameter in module.parameters()))
    remarks = [
        remark,
        f"{layers} of {of} convolution and linear layers are int8, with {share:.0%} of the parameters",
    ]
    fixed, shapes = fixed_batch(exported.why_static, tensors, job.case.batch_size)
    remarks += fixed
    # For a second batch size inductor would compile with a symbol for it, and fail at int8 convolutions:
    # it takes their channels-last output for a contiguous one. So each size is compiled on its own.
    torch._dynamo.config.automatic_dynamic_shapes = False
    return ConvertedModel(signature, inductor_freezing.prepare(quantized, tensors, job), remarks, shapes)


def held_tensors(model: Any) -> list[Any]:
    """The constants of the compiled code: packed int8 weights, scales, and what stayed float32."""
    return inductor_freezing.held_tensors(model.run)


def notes(model: Any) -> list[str]:
    """What it was calibrated on, and how much of the model is quantised."""
    return list(model.notes)


def _quantize(program: Any, batches: Sequence[Any]) -> Any:
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    with torch.no_grad(), warnings.catch_warnings():
        # torchao copies tensors in ways that torch warns of.
        warnings.filterwarnings("ignore", message="To copy construct from a tensor", category=UserWarning)
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        observed = prepare_pt2e(program.module(), quantizer)
        for tensors in batches:
            observed(*tensors)
        return convert_pt2e(observed)


def _quantized_layers(graph_module: Any) -> tuple[int, int, int]:
    """How many convolutions and linear layers take quantised weights and inputs; of how many; and the
    number of these weights. A recurrent layer is none of them: it stays as it is.
    """
    every = [
        node for node in graph_module.graph.nodes if str(node.target).startswith(("aten.conv", "aten.linear"))
    ]
    taken = [
        node
        for node in every
        if all("dequantize" in str(getattr(source, "target", "")) for source in node.args[:2])
    ]
    return len(taken), len(every), sum(_weights(graph_module, node.args[1]) for node in taken)


def _weights(graph_module: Any, node: Any) -> int:
    """How many numbers the constant holds that a dequantised weight comes from."""
    import operator

    while node.op != "get_attr" and node.args:
        node = node.args[0]
    return int(operator.attrgetter(node.target)(graph_module).numel()) if node.op == "get_attr" else 0
