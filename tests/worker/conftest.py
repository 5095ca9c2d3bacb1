"""Fixtures: a process that has compiled nothing, as that of each case."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """The worker takes what its process has compiled before the back end for the model's own doing."""
    if utils := sys.modules.get("torch._dynamo.utils"):
        utils.counters.clear()
