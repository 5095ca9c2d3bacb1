"""Details and samples in the history: compact, and what they were; stores of before are migrated whole."""

from __future__ import annotations

import json
import math
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from perfdash.history import store
from perfdash.history.compression import pack, packed_json, unpack, unpacked_json
from perfdash.history.generated_code import texts
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs, rows_of
from perfdash.history.store import HEAD, open_store
from tests.history.made import row, run
from tests.stores import earlier_texts

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.dictionaries(st.text(max_size=8), st.lists(NUMBERS, max_size=40), max_size=3))
def test_any_samples_come_back_within_a_step_of_their_deviation(samples):
    back = unpack(pack(samples))
    assert list(back) == list(samples)
    for name, values in samples.items():
        assert len(back[name]) == len(values)
        if not np.isfinite(values).all():
            np.testing.assert_array_equal(back[name], np.asarray(values))
            continue
        spread = float(np.std(values)) if len(values) else 0.0
        for old, new in zip(values, back[name], strict=True):
            assert abs(old - new) <= max(spread / 16 * math.sqrt(len(values)), 1e-6 * abs(old))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_rounding_adds_next_to_nothing_to_the_spread_of_samples(scale):
    values = scale * (50 + np.random.default_rng(0).normal(size=200))
    values[7] = 1000 * scale  # an outlier
    (back,) = unpack(pack({"eager_ms": values})).values()
    assert np.max(np.abs(back - values)) <= scale / 16
    assert np.median(back) == pytest.approx(np.median(values), rel=1e-3)
    assert np.var(back[:7]) == pytest.approx(np.var(values[:7]), rel=0.05)
    assert unpack(pack({"eager_ms": back})) == {"eager_ms": list(back)}, "packed again it is the same"


def test_two_modes_keep_the_spread_within_each():
    quick, slow = (level + 1e-3 * np.random.default_rng(1).normal(size=100) for level in (10.0, 10.5))
    (back,) = unpack(pack({"eager_ms": [*quick, *slow]})).values()
    assert np.std(back[:100]) == pytest.approx(np.std(quick), rel=0.01)


def test_two_hundred_samples_take_about_a_byte_each():
    values = 50 + np.random.default_rng(0).normal(size=100)
    assert len(pack({"eager_ms": values, "backend_ms": values[::-1]})) < 270


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_any_json_comes_back(value):
    assert unpacked_json(packed_json(value)) == value


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(data):
    for read in (unpack, unpacked_json):
        with pytest.raises(ValueError, match="not compressed by perfdash"):
            read(data)


def test_typical_details_take_a_third_of_their_text():
    details = {
        "accuracy": {"status": "pass", "metric": "allclose", "value": 0.00012, "tolerance": 0.001},
        "structure": {"guards": 21, "graph_nodes": 40, "kernel_calls": 12, "fingerprint": "0a1b2c3d4e5f"},
        "conditions": {
            "cpu_pressure": 0.01, "load": 1.07, "involuntary_switches": 12, "clean_fraction": 0.9931,
            "clock": "wall", "pairs": "clean", "torch_threads": 1, "allocator": "steady", "processes": 2,
            "within_variance": 1.2e-7, "l2_flush": False, "core": "3",
        },
    }  # fmt: skip
    assert len(packed_json(details)) < len(json.dumps(details)) / 3


MIGRATION = Path(store.__file__).with_name("migrations") / "versions" / "0010_compression.py"
BEFORE = re.search(r'^down_revision = "(\d+)"', MIGRATION.read_text(), re.MULTILINE).group(1)
SAMPLES = {"eager_ms": tuple(np.linspace(20.0, 21.0, 50)), "backend_ms": (10.0,) * 50}
DETAILS = {"conditions": {"clean_fraction": 1.0}, "notes": ["caf\u00e9"]}


def test_a_store_of_before_keeps_details_samples_and_code(address):
    made = replace(
        row(), details=DETAILS, structure={"kernels": 3}, code={"graph0.py": zlib.compress(b"code")}
    )
    with open_store(address) as opened:
        take_in(opened, [run("2026-11-01", [made, row("vgg")])])
        with opened.write() as connection:
            _as_it_was_before(connection, opened.is_sqlite)
    with open_store(address) as migrated:
        with migrated.read() as connection:
            (line,) = list_runs(connection)
            first, second = rows_of(connection, line.id, whole=True, code=True)
            assert connection.execute(sa.text("select version_num from perfdash_version")).scalar() == HEAD
        assert first.details == DETAILS
        assert first.structure == {"kernels": 3}
        assert texts(first.code) == {"graph0.py": "code"}
        np.testing.assert_allclose(first.samples["eager_ms"], SAMPLES["eager_ms"], atol=0.01)
        assert first.samples["backend_ms"] == SAMPLES["backend_ms"]
        assert (second.details, second.samples, second.code) == ({}, {}, {})
        take_in(migrated, [run("2026-11-02", [replace(made, samples=SAMPLES)])])


def _as_it_was_before(connection, of_sqlite):
    """Details as JSON, samples as 32-bit floats, texts under their digests."""
    number = connection.execute(sa.text("select min(id) from results")).scalar()
    for statement in (
        *earlier_texts("blob" if of_sqlite else "bytea"),
        "insert into artifacts select digest, data from texts",
        "insert into result_artifacts select result_id, name, digest from result_texts "
        "join texts on texts.id = text_id",
        "alter table alerts drop column former_testbed",
        "drop table result_hosts",
        "drop table result_texts",
        "drop table texts",
        "alter table result_details drop column details",
        f"alter table result_details add column details {'JSON' if of_sqlite else 'json'} "
        "not null default '{}'",
        f"update perfdash_version set version_num = '{BEFORE}'",
    ):
        connection.execute(sa.text(statement))
    header = json.dumps({name: len(values) for name, values in SAMPLES.items()}).encode()
    body = b"".join(np.asarray(values, "<f4").tobytes() for values in SAMPLES.values())
    connection.execute(
        sa.text("update result_details set details = :details, samples = :samples where result_id = :number"),
        {
            "details": json.dumps(DETAILS),
            "samples": zlib.compress(len(header).to_bytes(4, "little") + header + body),
            "number": number,
        },
    )
