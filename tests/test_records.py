import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.history.pass_rates_and_means import is_counted
from perfdash.history.results import from_result
from perfdash.records import (
    SCHEMA,
    Case,
    Failure,
    Job,
    Measurement,
    Result,
    Speedup,
    Status,
    job_from_json,
    result_from_json,
    to_json,
)

FIXTURES = Path(__file__).parent / "fixtures"
text = st.text(max_size=20)
number = st.floats(allow_nan=False, allow_infinity=False)
cases = st.builds(Case, suite=text, model=text, batch_size=st.integers(1, 4096), dynamic=st.booleans())
results = st.builds(
    Result,
    case=cases,
    started=text,
    wall_s=number,
    status=st.sampled_from(Status),
    error=st.none() | st.builds(Failure, type=text, message=text, tail=st.lists(text)),
    eager_ms=st.none() | st.builds(Measurement, number, number, number, number, number, st.integers(0, 9)),
    speedup=st.none() | st.builds(Speedup, number, number, number, text),
    weights_bytes=st.none() | st.integers(0),
    phases_s=st.dictionaries(text, number),
)


@given(results)
def test_a_result_survives_its_json(result):
    assert result_from_json(json.loads(json.dumps(to_json(result)))) == result


@given(
    st.builds(Job, case=cases, loader=text, target=text, scratch=text, inputs=st.dictionaries(text, number))
)
def test_a_job_survives_its_json(job):
    assert job_from_json(json.loads(json.dumps(to_json(job)))) == job


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("result_schema*.json")), ids=lambda p: p.stem)
def test_records_of_every_schema_still_load(path):
    result = result_from_json(json.loads(path.read_text()))
    assert result.case.model == "lcnet_050"
    assert result.status is Status.PASS
    assert result.speedup.verdict == "faster"


def test_there_is_a_fixture_of_this_schema():
    assert (FIXTURES / f"result_schema{SCHEMA}.json").is_file()


def test_a_newer_schema_is_refused():
    with pytest.raises(ValueError, match="update perfdash"):
        result_from_json({"schema": SCHEMA + 1})


@pytest.mark.parametrize("data", [{}, {"case": {}}, {"case": {"suite": "a", "model": "b"}, "status": "pass"}])
def test_a_broken_record_is_one_clear_error(data):
    with pytest.raises(ValueError, match="not a perfdash result record"):
        result_from_json(data)


def test_case_names_are_files_and_differ():
    first = Case("timm", "vit/base:x y")
    assert re.fullmatch("timm_vit-base-x-y_cpu_float32_bs1_t1_inference_inductor-[0-9a-f]{8}", first.name)
    assert Case("timm", "vit_base-x").name == "timm_vit-base-x_cpu_float32_bs1_t1_inference_inductor"
    assert (
        Case("s", "m", dtype="amp", amp_dtype="float16").name
        != Case("s", "m", dtype="amp", amp_dtype="bfloat16").name
    )
    assert Case("s", "m", dynamic=True).name != Case("s", "m").name
    models = ["a/b", "a-b", "a:b", "a b", ".a", "a", "a.", "/", "\u65e5", "\ud800"]
    assert len({Case("s", model).name for model in models}) == len(models)


def test_the_name_of_a_case_is_short_enough_for_a_file():
    long = [Case("s", "m" * 300 + end).name for end in ("", "x")]
    assert long[0] != long[1]
    assert all(len(name) <= 160 for name in (*long, Case("s" * 200, "m", backend="b" * 99).name))


@pytest.mark.parametrize(
    ("backend", "capture", "captured"),
    [
        ("inductor", {"graphs": 1, "calls_captured": 9}, True),
        ("inductor", {"graphs": 0, "calls_captured": 0}, False),
        ("aot-eager", {"graphs": 0}, False),
        ("mine", {"graphs": 1, "calls_captured": 0}, False),
        ("inductor-mine", {}, True),  # CAPTURES = False: unknown, as in the means
        ("eager", {"graphs": 0, "calls_captured": 0}, True),
    ],
)
def test_a_pass_without_captured_calls_is_marked_for_every_back_end_as_the_means_leave_it_out(
    backend, capture, captured
):
    result = Result(Case("s", "m", backend=backend), "t", 1.0, Status.PASS, capture=capture)
    assert result.marked_status == ("pass" if captured else "pass (nothing captured)")
    assert is_counted(from_result(result)) == captured
