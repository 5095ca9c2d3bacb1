from __future__ import annotations

import math

import pytest

from perfdash.report.number_format import with_unit


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("backend_peak_bytes", 12.3456e9, "12346 MB"),
        ("backend_peak_bytes", 1.23456e9, "1235 MB"),
        ("backend_ms", 9999.7, "10000 ms"),
        ("backend_ms", 45.83, "45.83 ms"),
        ("calls_captured", 10002.0, "10002"),
        ("calls_captured", 2.0, "2"),
        ("speedup", 1.5, "1.500x"),
        ("", 1234567.0, "1234567"),
        ("", -12345.6, "-12346"),
        ("", 1e300, "1e+300"),
        ("", 0.00001234, "1.234e-05"),
        ("", math.nan, ""),
    ],
)
def test_values_with_units(metric, value, text):
    assert with_unit(metric, value) == text
