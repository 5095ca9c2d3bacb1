"""Options of inductor that this torch would take without a word, and misread."""

from __future__ import annotations

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

inductor = lazy("perfdash.worker.backends.inductor")


def complaints(**config):
    job = Job(case=Case("own", "m"), loader="python", target="m", inductor_config=config)
    return inductor.complaints(job)


@pytest.mark.parametrize(("key", "value", "wanted"), [
    ("freezing", "off", "true or false"),
    ("freezing", "1,cpp_wrapper=1", "true or false"),
    ("freezing", 2, "true or false"),
    ("triton.cudagraphs", "yes", "true or false"),
    ("max_fusion_size", "many", "a number"),
    ("max_fusion_size", True, "a number"),
])  # fmt: skip
def test_a_value_of_another_kind_is_refused(key, value, wanted):
    """Any text is true: freezing=off turned freezing on."""
    assert complaints(**{key: value}) == [f"inductor's configuration key {key!r} is {wanted}, not {value!r}"]


def test_values_of_the_right_kind_are_taken():
    right = {"freezing": True, "cpp_wrapper": 0, "max_fusion_size": 16, "triton.cudagraphs": False}
    assert complaints(**right, **{"max_autotune_gemm_backends": "ATEN", "cpp.simdlen": 512}) == []
    assert complaints(compile_threads=None) == []
    (unknown,) = complaints(**{"triton.nothing": 1})
    assert "inductor has no configuration key 'triton.nothing'" in unknown


def test_the_modes_are_listed_once_each():
    job = Job(case=Case("own", "m"), loader="python", target="m", compile_mode="fast")
    (message,) = inductor.complaints(job)
    start, _, modes = message.partition("; there are: ")
    assert start == "torch.compile has no mode 'fast'"
    listed = modes.split(", ")
    assert listed[0] == "default"
    assert len(listed) == len(set(listed)) > 1
