"""A user's checkout of torchbench as a suite. Models and batch sizes are read without running code."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfdash.errors import UsageError
from perfdash.suites.suite_file import (
    CHECKOUT_SUITE,
    BatchSize,
    Model,
    Settings,
    Suite,
    Training,
    load_suite,
)
from perfdash.validation_messages import in_words

_FOLDERS = ("models", "canary_models")
_BATCH_SIZE, _TRAINING_BATCH_SIZE = "DEFAULT_EVAL_BSIZE", "DEFAULT_TRAIN_BSIZE"
_NOT_OURS = frozenset({"config", "inputs", "batch_size", "cost_s", "skip"})  # theirs, or unknown
_FIXED = "ALLOW_CUSTOMIZE_BSIZE"


def find_checkout(path: Path | None) -> Path:
    """The folder of a checkout, absolute. Raises UsageError where none is given or the folder is none."""
    if path is None:
        raise UsageError("models of torchbench come from a checkout: give its folder, --torchbench PATH")
    folder = path.expanduser().resolve()
    if not (folder / "torchbenchmark" / "__init__.py").is_file():
        raise UsageError(
            f"{path} is no checkout of torchbench (--torchbench, PERFDASH_TORCHBENCH, or path of "
            "[torchbench] in perfdash.toml): it has no file torchbenchmark/__init__.py; give the folder "
            "that `git clone` made"
        )
    return folder


def suite_named(name: str, checkout: Path | None) -> Suite:
    """A suite by name or by the path of its file, or that of the checkout. Raises UsageError."""
    return checkout_suite(checkout) if name == CHECKOUT_SUITE else load_suite(name)


def needs_checkout(suites: Sequence[Suite]) -> bool:
    """Whether any model of these suites comes from a checkout of torchbench."""
    return any(suite.loader_of(model) == "torchbench" for suite in suites for model in suite.models)


def checkout_suite(path: Path | None) -> Suite:
    """All models of a checkout, each by the loader `torchbench`.

    One that the suite torchbench knows has its tolerances and limits; a batch size of one on one
    thread, the model's own for training or for evaluation elsewhere; the model's own everywhere where it
    allows no other. Raises UsageError without a checkout, and for one without models or with two of one
    file name.
    """
    folder = find_checkout(path)
    ours = load_suite("torchbench")
    by_name = {model.name: model for model in ours.models}
    models = []
    for place in _model_folders(folder):
        settings = _settings(by_name.get(place.name))
        attributes = _class_attributes(place / "__init__.py")
        settings["batch_size"] = _batch_size(attributes, _BATCH_SIZE)
        training = settings.get("training") or Training()
        size = {"batch_size": _batch_size(attributes, _TRAINING_BATCH_SIZE)}
        settings["training"] = training.model_copy(update=size)
        models.append(Model(name=place.name, **settings))
    if not models:
        raise UsageError(f"{folder} has no model below torchbenchmark/models")
    try:
        return Suite(
            name=CHECKOUT_SUITE,
            title="torchbench: the models of a checkout",
            loader="torchbench",
            dynamo_name="torchbench",
            defaults=ours.defaults,
            models=tuple(models),
            path=folder / CHECKOUT_SUITE,
        )
    except ValidationError as error:
        raise UsageError(f"{folder}: {in_words(error.errors()[0])}") from error


def _settings(model: Model | None) -> dict[str, Any]:
    """The settings of our own model that also hold for torchbench's: judging and limits, in training too.

    What cannot be trained here cannot be trained there: its weights are integers.
    """
    if model is None:
        return {}
    settings = {key: getattr(model, key) for key in Settings.model_fields if key not in _NOT_OURS}
    if model.training:
        settings["training"] = model.training.model_copy(update=dict.fromkeys(_NOT_OURS - {"skip"}))
    return settings


def _model_folders(checkout: Path) -> list[Path]:
    """Sorted; of a name that both folders have, the core model."""
    folders: dict[str, Path] = {}
    for kind in _FOLDERS:
        for file in sorted((checkout / "torchbenchmark" / kind).glob("*/__init__.py")):
            folders.setdefault(file.parent.name, file.parent)
    return [folders[name] for name in sorted(folders)]


def _batch_size(attributes: dict[str, Any], name: str) -> BatchSize:
    """From the attributes that class Model sets; one where it inherits them or computes them."""
    own = attributes.get(name)
    size = own if isinstance(own, int) and own > 0 else 1
    one_thread = 1 if attributes.get(_FIXED, True) else size
    return BatchSize(one_thread=one_thread, cpu=size, cuda=size)


def _class_attributes(file: Path) -> dict[str, Any]:
    """The constants that the class Model of a file sets at its top."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return {}  # the worker reports the error
    attributes: dict[str, Any] = {}
    for statement in tree.body:
        if not (isinstance(statement, ast.ClassDef) and statement.name == "Model"):
            continue
        for line in statement.body:
            targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
            value = getattr(line, "value", None)
            if isinstance(value, ast.Constant):
                attributes.update({t.id: value.value for t in targets if isinstance(t, ast.Name)})
    return attributes
