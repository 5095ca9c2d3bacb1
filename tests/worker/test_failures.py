import errno

import pytest

from perfdash.records import Status
from perfdash.worker import linux
from perfdash.worker.failures import Unmeasurable, classify, describe


class LocalEntryNotFoundError(FileNotFoundError):
    pass


class OutOfMemoryError(RuntimeError):
    pass


class Fail(Exception):
    """onnxruntime's exceptions are no RuntimeErrors."""

    __module__ = "onnxruntime.capi.onnxruntime_pybind11_state"


def chained(outer, inner):
    try:
        try:
            raise inner
        except Exception as error:
            raise outer from error
    except Exception as error:
        return error


@pytest.mark.parametrize(
    ("phase", "error", "status"),
    [
        ("load", RuntimeError("Unknown model (x)"), Status.MODEL_FAIL_TO_LOAD),
        ("load", ModuleNotFoundError("no timm"), Status.MISSING_DEPENDENCY),
        ("load", LocalEntryNotFoundError("offline"), Status.NEEDS_NETWORK),
        ("load", chained(OSError("cannot load weights"), ConnectionError("refused")), Status.NEEDS_NETWORK),
        ("load", MemoryError(), Status.EAGER_OOM),
        ("eager", RuntimeError("shape mismatch"), Status.EAGER_FAIL_TO_RUN),
        ("eager", OutOfMemoryError("CUDA out of memory"), Status.EAGER_OOM),
        ("compile", RuntimeError("lowering failed"), Status.FAIL_TO_RUN),
        ("compile", chained(RuntimeError("backend failed"), OutOfMemoryError("CUDA")), Status.OOM),
        ("memory", RuntimeError("DefaultCPUAllocator: can't allocate memory"), Status.OOM),
        (
            "compile",
            Fail("[ONNXRuntimeError] : 1 : FAIL : Failed to allocate memory for requested buffer of size 9"),
            Status.OOM,
        ),
        ("latency", Fail("[ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory"), Status.OOM),
        ("latency", Fail("[ONNXRuntimeError] : 1 : FAIL : bad input"), Status.FAIL_TO_RUN),
        (
            "latency",
            RuntimeError("Exception from src: Failed to allocate 288000000 bytes of memory"),
            Status.OOM,
        ),
        ("latency", ValueError("out of memory is the model's own word"), Status.FAIL_TO_RUN),
        ("compile", OSError(errno.ENOSPC, "No space left on device"), Status.INFRA_ERROR),
        (
            "compile",
            chained(
                RuntimeError("C++ compile error"), RuntimeError("Killed signal terminated program cc1plus")
            ),
            Status.INFRA_ERROR,
        ),
        ("load", Unmeasurable(Status.INFRA_ERROR, "no CUDA"), Status.INFRA_ERROR),
        ("eager", RuntimeError("CUDA error: uncorrectable ECC error encountered"), Status.INFRA_ERROR),
        ("load", RuntimeError("CUDA error: system not yet initialized"), Status.INFRA_ERROR),
        ("compile", RuntimeError("CUDA error: an illegal memory access was encountered"), Status.FAIL_TO_RUN),
        ("compile", ConnectionError("the model's own"), Status.FAIL_TO_RUN),
    ],
)
def test_statuses(phase, error, status):
    assert classify(phase, error) is status


def test_a_message_of_one_word_has_the_type_before_it():
    said = [describe("eager", error)["message"] for error in (KeyError("weight"), SystemExit(0), KeyError())]
    assert said == ["KeyError: 'weight'", "SystemExit: 0", "KeyError"]
    assert describe("eager", ValueError("two words"))["message"] == "two words"


@pytest.mark.parametrize(("share", "status"), [
    (0.0, Status.FAIL_TO_RUN), (0.5, Status.FAIL_TO_RUN), (0.9, Status.OOM),
])  # fmt: skip
@pytest.mark.parametrize("text", ["could not create a primitive", "can't start new thread"])
def test_what_may_be_memory_is_where_little_of_it_is_left(monkeypatch, text, share, status):
    monkeypatch.setattr(linux, "share_of_data_limit", lambda: share)
    assert classify("latency", RuntimeError(text)) is status
    message = "could not create a primitive descriptor for a matmul primitive"
    assert classify("latency", RuntimeError(message)) is Status.FAIL_TO_RUN


def test_the_share_of_a_limit():
    assert linux.share_of_data_limit() == 0.0, "none is set for tests"
