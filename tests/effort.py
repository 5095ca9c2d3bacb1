"""How much chance is tried: `ci/test.sh --thorough` sets TEST_EFFORT=10, else it is 1.

`tests/conftest.py` imports this before any test file: @given takes the profile that is loaded then.
"""

from __future__ import annotations

import os

from hypothesis import settings

EFFORT = int(os.environ.get("TEST_EFFORT", "1"))
# How busy the machine is must not decide: no deadline for an example. Nor may chance, unless it is asked for.
settings.register_profile("effort", deadline=None, derandomize=EFFORT == 1, max_examples=50 * EFFORT)
settings.load_profile("effort")


def trials(number: int) -> int:
    """So many simulated trials or examples, times the effort."""
    return number * EFFORT
