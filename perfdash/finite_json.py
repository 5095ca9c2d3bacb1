"""JSON without NaN and infinities, for which it has no word. Standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """A copy with NaN and infinities as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def dumps(value: Any, **options: Any) -> str:
    """`value` as JSON text; options are those of json.dumps."""
    return json.dumps(finite(value), allow_nan=False, **options)
