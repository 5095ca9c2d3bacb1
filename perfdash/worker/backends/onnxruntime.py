"""ONNX Runtime on the model that torch.onnx.export made: its CPU or CUDA provider."""

from __future__ import annotations

from typing import Any, Sequence

from perfdash.records import Job, Status

PACKAGES = ("onnxruntime", "onnx", "onnxscript")
MODULES = (
    "torch.export._trace",
    "torch.export._patches",
    "torch.onnx._internal.exporter._compat",
    "torch.onnx._internal.exporter._torchlib.ops",
    "onnxscript._framework_apis.torch_2_11",
    "onnxscript.function_libs.torch_lib.ops",
)
EXTRA = "onnxruntime"
EXTRA_ON_GPU = "onnxruntime-gpu"
OPAQUE_ON_GPU = True
DEVICES = ("cpu", "cuda")
# No bfloat16: numpy, through which onnxruntime takes and gives its tensors, has none, and its CPU
# provider has kernels for a few operators only. complaints() has more about float16.
DTYPES = ("float32", "float16")
OPTIONS = ()
CAPTURES = False
OWN_THREADS = True


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """The exported model in a session. Raises RuntimeError that says what could not be converted."""
    providers: list[Any] = [cuda_provider(job)] if job.case.device == "cuda" else ["CPUExecutionProvider"]
    return open_exported(module, inputs, job, providers)


def cuda_provider(job: Job) -> tuple[str, dict[str, str]]:
    """The CUDA provider with eager's TF32 setting; by itself it would use TF32."""
    return "CUDAExecutionProvider", {"use_tf32": str(int(job.tf32))}


def open_exported(module: Any, inputs: Any, job: Job, providers: Sequence[Any]) -> Any:
    """The module exported (once a case), in a session with these providers."""
    from perfdash.worker.model_export import ConvertedModel, flattened, shapes_of
    from perfdash.worker.onnx_export import onnx_model

    signature, flat, tensors = flattened(module, inputs)
    model = onnx_model(flat, tensors, job)
    shapes = shapes_of(tensors)
    session = OnnxModule(model.path, providers, shapes, signature.outputs, job)
    converted = ConvertedModel(signature, session, model.notes, None if model.dynamic else shapes)
    converted.uncounted_s += model.checked_s
    return converted


def complaints(job: Job) -> list[str]:
    """The case's settings that this back end does not support."""
    if job.case.device == "cpu" and job.case.dtype == "float16":
        return [
            "onnxruntime's CPU provider computes float16 in float32, between casts: no float16 to measure"
        ]
    return []


def reopen(model: Any) -> Any:
    """A second session on the same file. Its arena grows to what a call needs with the first call."""
    return model.reopened()


def notes(model: Any) -> list[str]:
    """Whether the batch is fixed, and why; with int8, what is quantised."""
    return list(model.notes)


class OnnxModule:
    """An inference session, called with the input tensors; it returns the output tensors.

    providers: in order of preference; shapes: of the inputs at the case's batch size; outputs: (shape,
    dtype) of each then. Raises Unmeasurable where the first provider is missing or does not start.
    """

    def __init__(
        self, path: str, providers: Sequence[Any], shapes: Sequence[Any], outputs: Sequence[Any], job: Job
    ) -> None:
        import onnxruntime

        from perfdash.worker.failures import Unmeasurable

        self.path = path
        self._made_of = (path, providers, shapes, outputs, job)
        first = providers[0] if isinstance(providers[0], str) else providers[0][0]
        if first not in onnxruntime.get_available_providers():
            raise Unmeasurable(
                Status.MISSING_DEPENDENCY,
                f"this onnxruntime has no {first}: install onnxruntime-gpu instead of onnxruntime",
            )
        self._session = onnxruntime.InferenceSession(path, _options(job), providers=list(providers))
        if self._session.get_providers()[0] != first:
            raise Unmeasurable(
                Status.FAIL_TO_RUN, f"{first} is there but did not start; the log has its words"
            )
        self._shapes = list(shapes)
        self._outputs = list(outputs)
        self._on_gpu = job.case.device == "cuda"

    def __call__(self, *tensors: Any) -> list[Any]:
        import torch

        from perfdash.worker.onnx_export import feed

        if self._on_gpu:
            return self._call_on_gpu(tensors)
        return [torch.as_tensor(array) for array in self._session.run(None, feed(self._session, tensors))]

    def again(self) -> OnnxModule:
        """A second session with the same settings."""
        return OnnxModule(*self._made_of)

    def _call_on_gpu(self, tensors: Any) -> list[Any]:
        """onnxruntime reads and writes torch's own memory on the GPU."""
        import torch

        from perfdash.worker.model_export import shapes_of
        from perfdash.worker.onnx_export import place

        tensors = [tensor.detach().contiguous() for tensor in tensors]  # held until the call has ended
        binding = self._session.io_binding()

        def bind(attach: Any, name: str, tensor: Any) -> None:
            where = (tensor.device.type, tensor.device.index or 0)
            attach(name, *where, _numpy_type(tensor.dtype), tuple(tensor.shape), tensor.data_ptr())

        for item in self._session.get_inputs():
            bind(binding.bind_input, item.name, tensors[place(item.name)])
        has_known_shapes = shapes_of(tensors) == self._shapes
        made = []
        for item, (shape, dtype) in zip(self._session.get_outputs(), self._outputs):
            if has_known_shapes:
                made.append(torch.empty(shape, dtype=dtype, device=tensors[0].device))
                bind(binding.bind_output, item.name, made[-1])
            else:  # another batch size, as in scoring: only onnxruntime knows the shapes
                binding.bind_output(item.name, "cpu")
        torch.cuda.current_stream().synchronize()  # onnxruntime has a stream of its own
        self._session.run_with_iobinding(binding)
        if has_known_shapes:
            return made
        return [torch.as_tensor(array).to(tensors[0].device) for array in binding.copy_outputs_to_cpu()]


def _options(job: Job) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.case.threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    # Within a call the threads spin, as torch's OpenMP threads do. After it they must stop: they would take
    # the cores from eager, whose sample comes next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def _numpy_type(dtype: Any) -> Any:
    import torch

    return torch.empty(0, dtype=dtype).numpy().dtype.type
