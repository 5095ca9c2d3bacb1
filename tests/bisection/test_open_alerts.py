"""Which open alerts lie in the range of a bisection."""

import pytest

from perfdash.bisection.open_alerts import _overlap_of_versions


@pytest.mark.parametrize(("good", "bad", "first", "last", "answer"), [
    ("2.15.0", "2.16.0", "2.14.0+cpu", "2.15.0+cpu", False),
    ("2.14.0", "2.15.0", "2.15.0+cpu", "2.16.0+cpu", False),
    ("2.14.0+cpu", "2.15.0+cpu", "2.15.0", "2.16.0", False),
    ("2.14.0", "2.15.0", "2.14.0+cpu", "2.15.0+cpu", True),
    ("2.13.0", "2.16.0", "2.14.0+cpu", "2.15.0+cpu", True),
    ("1.0+1", "1.0+3", "1.0+2", "1.0+4", True),
    ("1.0+1", "1.0+2", "1.0+2", "1.0+3", False),
    ("2026-11-01", "2026-11-03", "2.15.0.dev20261102+cpu", "2.15.0.dev20261104+cpu", True),
    ("2026-11-01", "2026-11-03", "2.14.0", "2.15.0", False),
])  # fmt: skip
def test_ranges_of_versions_overlap(good, bad, first, last, answer):
    assert _overlap_of_versions(good, bad, first, last) is answer
