"""JSON without NaN and infinities."""

import json
import math
from types import MappingProxyType

from perfdash.finite_json import dumps


def test_what_is_not_finite_is_null():
    value = {"a": [math.nan, math.inf, (-math.inf, 1.5)], "b": MappingProxyType({"c": math.nan})}
    assert json.loads(dumps(value)) == {"a": [None, None, [None, 1.5]], "b": {"c": None}}
