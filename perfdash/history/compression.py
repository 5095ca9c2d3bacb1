"""Compact forms of what each result has: details as compressed JSON, samples in steps of their spread."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from perfdash.files import dumps

_LEVEL = 6  # of zlib: details have a kilobyte, samples some hundred bytes
_FINENESS = 16  # steps of samples in one standard deviation, at least
_FLOATS = 0  # bytes a sample, where the samples are stored as floats
# Text that details share. zlib refuses to read with another one: a new text needs a migration.
_SHARED = (
    b'{"null":null,"false":false,"error":{"type":"RuntimeError","message":"","tail":["failed_phase":"compile"'
    b',"skip_reason":"quality":{"metric":"samples":"artifact":{"bytes":"standalone":{"runs":true,"equal":true'
    b'"sizes":{"instances":{"parts_ms":{"backend":{"forward":{"backward":{"optimizer":{"median":"n":'
    b'"spread_ms":{"eager":{"mean":"stdev":"break_reasons":["recompile_limit":'
    b'"instructions":{"eager":"backend":"loaded":{"load_s":0.,"parameters":'
    b'"compile_phases_s":{"dynamo":0.,"cache":0.0,"aot_autograd":0.,"lowering":0.,"scheduling":0.,"codegen":0.,'
    b'"cpp_compile":"rest":0.,"accuracy":{"status":"pass","metric":"allclose","value":0.0,"tolerance":0.001,'
    b'"detail":"","eager_rmse":"distance":{"relative_rmse":"cosine":1.0},"structure":{"guards":"graph_nodes":'
    b'"kernel_calls":"code_bytes":"version":1,"fingerprint":"kernels":"library_calls":},'
    b'"processes":{"ratios":[1.0,1.1],"within":1e-06},"notes":["conditions":{"cpu_pressure":0.0,"load":1.0,'
    b'"involuntary_switches":1,"clean_fraction":1.0,"clock":"cpu","clock":"wall","pairs":"all","pairs":"clean",'
    b'"no_core":0.0,"steal":0.0,"torch_threads":1,"whole_socket":false,"allocator":"steady","processes":2,'
    b'"within_variance":"l2_flush":false,"slot":0,"host":"core":"cores":"0"}}'
)


def packed_json(value: Any) -> bytes:
    """A JSON value, compressed."""
    packer = zlib.compressobj(_LEVEL, zdict=_SHARED)
    return packer.compress(dumps(value, separators=(",", ":")).encode()) + packer.flush()


def unpacked_json(data: bytes) -> Any:
    """The value of `packed_json`. Raises ValueError for other bytes."""
    return json.loads(_inflated(data))


def _inflated(data: bytes) -> bytes:
    try:
        reader = zlib.decompressobj(zdict=_SHARED)
        text = reader.decompress(data) + reader.flush()
    except zlib.error as error:
        raise ValueError(f"not compressed by perfdash: {error}") from error
    if not reader.eof:
        raise ValueError("not compressed by perfdash: it is cut off")
    return text


class CompressedJson(sa.types.TypeDecorator[Any]):
    """A column of JSON that is only read whole: no query looks into it."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> bytes:
        return packed_json(value)

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> Any:
        return None if value is None else unpacked_json(bytes(value))


def pack(samples: Mapping[str, Sequence[float]]) -> bytes:
    """Pack samples by name, each rounded to a step of at most a 16th of their standard deviation.

    Rounding adds less than 0.04 % to their variance. The step is a power of two; the deviation is that of
    neighbouring samples or that of the middle half, whichever is smaller. Samples without a deviation, or
    that are not finite, are stored as 32-bit floats.
    """
    header, body = [], b""
    for name, values in samples.items():
        given = np.asarray(values, dtype=float)
        exponent = _exponent(given)
        if exponent is None:
            header.append([name, len(given), 0, 0, _FLOATS])
            body += given.astype("<f4").tobytes()
            continue
        steps = np.rint(np.ldexp(given, -exponent)).astype(np.int64)
        lowest = int(steps.min())
        above = (steps - lowest).astype("<u8")
        width = max(1, (int(above.max()).bit_length() + 7) // 8)
        header.append([name, len(given), exponent, lowest, width])
        # The lowest byte of each first, then the next of each: the high ones are mostly zero.
        body += np.ascontiguousarray(above.view(np.uint8).reshape(-1, 8)[:, :width].T).tobytes()
    head = dumps(header, separators=(",", ":")).encode()
    packer = zlib.compressobj(_LEVEL, zdict=_SHARED)
    return packer.compress(len(head).to_bytes(4, "little") + head + body) + packer.flush()


def _exponent(values: np.ndarray[Any, np.dtype[np.float64]]) -> int | None:
    """The exponent of the step, a power of two; None where floats are as good."""
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    ordered, differences = np.sort(values), np.sort(np.abs(np.diff(values)))  # np.quantile takes longer
    middle = float(ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4]) / 2
    neighbours = float(differences[len(differences) // 2]) / math.sqrt(2)
    deviations = [x / 0.6745 for x in (middle, neighbours) if x > 0]
    if not deviations:
        return None
    exponent = math.floor(math.log2(min(deviations) / _FINENESS))
    # Outliers far away would need as many bytes as floats do, and huge numbers would lose digits.
    span = float(ordered[-1] - ordered[0])
    return exponent if span < 2.0 ** min(exponent + 24, 1000) and _is_exact(values, exponent) else None


def _is_exact(values: np.ndarray[Any, np.dtype[np.float64]], exponent: int) -> bool:
    """Whether every value is a whole number of steps that a float holds."""
    return float(np.max(np.abs(values))) < 2.0 ** min(exponent + 52, 1000)


def unpack(blob: bytes) -> dict[str, list[float]]:
    """Unpack a blob of `pack`. Raises ValueError for other bytes."""
    data = _inflated(blob)
    size = int.from_bytes(data[:4], "little")
    samples: dict[str, list[float]] = {}
    start = 4 + size
    for name, count, exponent, lowest, width in json.loads(data[4:start]):
        end = start + count * (width or 4)
        part = np.frombuffer(data[start:end], np.uint8)
        start = end
        if width == _FLOATS:
            samples[name] = part.view("<f4").astype(float).tolist()
            continue
        steps = sum(part.reshape(width, count)[byte].astype(np.int64) << 8 * byte for byte in range(width))
        samples[name] = np.ldexp((steps + lowest).astype(float), exponent).tolist()
    return samples
