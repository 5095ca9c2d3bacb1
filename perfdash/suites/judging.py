"""How a model's outputs are judged, by its suite: tolerances, distances, labelled data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perfdash.errors import UsageError
from perfdash.records import Case
from perfdash.suites.definition import PerDtype

# A setting of the model in its scenario: setting(key, otherwise) (suites.Suite.setting).
Setting = Callable[..., Any]

# Rounding to fewer bits leaves both sides further from the judge, and less alike (dynamo's factors).
_FACTOR: dict[str, float] = {"float32": 2.0, "bfloat16": 3.0, "float16": 3.0, "amp": 3.0}

# The head of transformers' classes that give one label a text.
_TEXT_HEAD = "ForSequenceClassification"
# How far from eager's (relative rmse) outputs may be that are meant to differ, by what they are made of.
_DISTANCE: dict[str, float] = {"bfloat16": 0.05, "amp": 0.05, "float16": 0.02, "int8": 0.2}


def tolerance(setting: Setting, case: Case, freezing: bool) -> float:
    """The tolerance of outputs that should equal eager's; freezing has one of its own."""
    plain = _per_dtype(setting("tolerance", 1e-3), case.dtype, 1e-3)
    frozen = setting("tolerance_freezing", plain)
    freezes = case.backend == "inductor-freezing" or (
        case.backend == "inductor-max-autotune" and case.device == "cpu"
    )
    return float(frozen if freezing or freezes else plain)


def distance_bound(
    setting: Setting, dtype: str, baseline: str | None, lossy: bool, variant: Mapping[str, Any]
) -> float | None:
    """The allowed distance to eager's outputs, where they differ by intent (dtype, integers)."""
    autocast = bool(variant.get("autocast"))
    if not lossy and baseline is None and not autocast:
        return None
    kind = "int8" if lossy else "amp" if autocast else dtype
    own: dict[str, float] = setting("distance", {})
    return own.get(kind, _DISTANCE[kind])


def labelled_data(
    setting: Setting, loader: str, target: str, given: str | None
) -> tuple[str | None, str | None]:
    """The kind of labelled data that the model is scored on, and where it lies if it is the user's."""
    kind: str | None = setting("data")
    if kind == "digits":
        return kind, None
    if given is None:
        return None, None
    if kind is None and loader in ("timm", "torchvision"):
        kind = "images"
    elif kind is None and loader == "transformers" and target.endswith(_TEXT_HEAD):
        kind = "text"
    return (kind, given) if kind == kind_of(given) else (None, None)


def kind_of(data: str) -> str:
    """What a user's folder or file of labelled data holds. Raises UsageError where it is not there."""
    path = Path(data)
    if not path.exists():
        raise UsageError(f"--data {data}: there is no such folder or file")
    return "text" if path.is_file() or (path / "data.csv").is_file() else "images"


def _per_dtype(value: PerDtype, dtype: str, otherwise: float) -> float:
    if isinstance(value, dict):
        # Its keys are literals, and dtype is one of them, which its type does not tell.
        return value.get(dtype, otherwise)  # type: ignore[call-overload,no-any-return]
    return value


def factor(setting: Setting, dtype: str) -> float:
    """How many times eager's own error the compiled one may be."""
    return _per_dtype(setting("factor", _FACTOR), dtype, _FACTOR[dtype])
