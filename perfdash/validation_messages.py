"""Word the complaints of pydantic for people: what is wrong with the value, and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, time
from typing import Any

from perfdash.suggestions import did_you_mean

_PLAIN = {
    "missing": "is missing",
    "int_parsing": "is not a whole number",
    "int_type": "is not a whole number",
    "int_from_float": "is not a whole number",
    "float_parsing": "is not a number",
    "float_type": "is not a number",
    "finite_number": "is not a finite number",
    "bool_parsing": "is neither true nor false",
    "bool_type": "is neither true nor false",
    "string_type": "is not a text in quotes",
    "string_pattern_mismatch": "is no name: give up to 60 letters, digits and . _ -",
    "invalid-json-value": "is a date or time: write it in quotes",  # TOML has nothing else that JSON has not
    "path_type": "is not the path of a file or folder",
    "dict_type": "is not a table",
    "model_type": "is not a table",
    "tuple_type": "is not a list",
    "list_type": "is not a list",
}
_BOUNDS = {
    "greater_than": ("gt", "must be more than"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be less than"),
    "less_than_equal": ("le", "must be at most"),
}


def in_words(complaint: Mapping[str, Any]) -> str:
    """A sentence about the value, which begins with the value unless that is missing."""
    kind, given = complaint["type"], complaint.get("input")
    if kind == "missing":
        return _PLAIN[kind]
    if kind == "literal_error":
        names = _expected(complaint["ctx"]["expected"])
        return f"{given!r} is not one of {', '.join(names)}{did_you_mean(str(given), names)}"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{_shown(given)} {words} {complaint['ctx'][key]:g}"
    if kind in _PLAIN:
        return f"{_shown(given)} {_PLAIN[kind]}"
    message = complaint["msg"].removeprefix("Value error, ")
    # A message of our own names the value where that helps; pydantic's words never do.
    return str(message) if kind == "value_error" else f"{_shown(given)}: {message}"


def predicate(complaint: Mapping[str, Any]) -> str:
    """What follows the name of a key: ` is missing`, or a colon and the sentence about its value."""
    words = in_words(complaint)
    return f" {words}" if complaint["type"] == "missing" else f": {words}"


def _shown(value: Any) -> str:
    plain = isinstance(value, (int, float, date, time)) and not isinstance(value, bool)
    return str(value) if plain else repr(value)


def _expected(text: str) -> list[str]:
    """The names in pydantic's "'a', 'b' or 'c'"."""
    return [part.strip(" '") for part in text.replace("' or '", "', '").split("', '")]
