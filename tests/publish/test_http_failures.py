"""What answers mean, whatever is in them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.publish.http_failures import Response, read, refusal, retry_after, wait_asked_for

NOW = 1_800_000_000.0
PRIMARY = "API rate limit exceeded"


@pytest.mark.parametrize(
    ("status", "headers", "message", "seconds"),
    [
        (403, {}, "Resource not accessible by integration", None),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000009"}, "no rights", None),
        (403, {"retry-after": "30"}, "", 30.0),
        (403, {}, "You have triggered an abuse detection mechanism", 60.0),
        (
            403,
            {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000009"},
            "API rate limit exceeded",
            10.0,
        ),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1"}, PRIMARY, 1.0),
        (403, {"x-ratelimit-remaining": "0"}, PRIMARY, 60.0),
        (429, {}, "", 60.0),
        (429, {"retry-after": "soon"}, "", 60.0),
        (429, {"retry-after": "1e300"}, "", 7 * 86400.0),
        (404, {"retry-after": "30"}, "", None),
        (503, {"retry-after": "30"}, "", None),
    ],
)
def test_a_limit_is_told_from_a_refusal(status, headers, message, seconds):
    assert wait_asked_for(Response(status, headers, {"message": message}), NOW) == seconds


def test_a_time_is_seconds_or_a_date():
    assert retry_after(Response(503, {"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}), NOW) == 30.0
    assert retry_after(Response(503, {}), NOW) is None


def test_what_validation_says_is_shown():
    data = {"message": "Validation Failed", "errors": [{"resource": "Issue", "code": "custom"}, "spam", 3]}
    message = str(refusal(read(422, {}, json.dumps(data)), "opening an issue", "ghe"))
    assert message.startswith(
        'opening an issue: ghe answers 422 ("Validation Failed; Issue custom; spam; 3").'
    )


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    st.integers(100, 599),
    st.dictionaries(
        st.sampled_from(["retry-after", "x-ratelimit-remaining", "x-ratelimit-reset", "x-github-sso"]),
        st.text() | st.sampled_from(["0", "nan", "inf", "-1", "1e400", "Mon, 01 Jan 0001 00:00:00 -2359"]),
    ),
    anything | st.fixed_dictionaries({"message": anything, "errors": anything}),
)
def test_no_answer_breaks_anything(status, headers, data):
    answer = read(status, headers, json.dumps(data))
    seconds = wait_asked_for(answer, NOW)
    assert seconds is None or 0 <= seconds <= 7 * 86400 + 1
    assert "\n" not in str(refusal(answer, "this", "host"))
    assert read(status, headers, "<html>").message == ""
    assert read(status, headers, "[" * 100_000).message == ""
