"""Quality on labelled data: macro F1 and top-1 accuracy of eager and the back end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Optional

import torch
from torch import Tensor

from perfdash.records import Status
from perfdash.worker import failures, pytree, registry
from perfdash.worker.eager_and_compiled import BothSides, ModelSide

# The prediction for a sample whose logits hold NaN.
NO_CLASS = -1


@dataclass
class Labelled:
    """A labelled data set, which is read in batches.

    `batches(size)` yields (inputs, labels) on the CPU; the last batch may be smaller. inputs: a tuple or
    dict of tensors as the model takes them, the batch in dimension 0; labels: (n,) integers from 0. Reading
    may add notes.
    """

    samples: int
    classes: Optional[int]
    batches: Callable[[int], Iterator[tuple[Any, Tensor]]]
    notes: list[str] = field(default_factory=list)


def of_case(comparison: BothSides) -> dict[str, Any]:
    """Return the event `quality`: the scores of both sides, or why there are none."""

    def caller(side: ModelSide, model: Any) -> Callable[[Any], Any]:
        expected = pytree.structure(side.inputs)

        def call(inputs: Any) -> Any:
            converted = side.convert_inputs(inputs)
            # Another structure would cause a recompile, and the scored artefact must be the timed artefact.
            if pytree.structure(converted) != expected:
                raise ValueError(f"the data give {pytree.structure(converted)}, the model takes {expected}")
            return comparison.scenario.make_step(model, side.with_inputs(converted), comparison.device)()

        return call

    try:
        return score(
            caller(comparison.eager_side, comparison.eager_side.module),
            caller(comparison.compiled_side, comparison.compiled_model),
            registry.find("datasets", comparison.job.data or "").open_data(comparison.job),
            comparison.job.case.batch_size,
        )
    except Exception as error:  # invalid data must not stop the rest of the case
        if failures.classify("quality", error) in (Status.OOM, Status.INFRA_ERROR):
            raise
        return {"reason": f"{type(error).__name__}: {str(error)[:500]}"}


def score(
    eager: Callable[[Any], Any],
    backend: Callable[[Any], Any],
    data: Labelled,
    batch_size: int,
) -> dict[str, Any]:
    """Compute `Result.quality` of eager and the back end over all the data.

    Both callables take inputs as data.batches yields them, and always full batches: a partial batch is
    filled up with its own first rows, so that its shape causes no recompile, and only its real rows count.
    Raises ValueError for outputs without logits and for labels without a logit.
    """
    labels: list[Tensor] = []
    predictions: dict[str, list[Tensor]] = {"eager": [], "back end": []}
    classes = 0
    with torch.no_grad():
        for inputs, batch_labels in data.batches(batch_size):
            rows = len(batch_labels)
            whole = filled_up(inputs, rows, batch_size)
            for name, model in (("eager", eager), ("back end", backend)):
                # Each model gets a copy, because it may change its inputs.
                batch_logits = logits(model(pytree.detach(whole)))
                classes = classes or batch_logits.shape[1]
                if tuple(batch_logits.shape) != (batch_size, classes):
                    raise ValueError(
                        f"the logits of the {name} have shape {tuple(batch_logits.shape)}, "
                        f"not ({batch_size}, {classes})"
                    )
                _check_labels(batch_labels, classes)
                predictions[name].append(predicted(batch_logits[:rows]))
            labels.append(batch_labels)
    if not labels:
        raise ValueError("there are no samples in the data")
    return _summary(
        torch.cat(labels),
        torch.cat(predictions["eager"]),
        torch.cat(predictions["back end"]),
        classes,
        data,
    )


def logits(outputs: Any) -> Tensor:
    """Return the logits (batch, classes) among a model's outputs.

    The logits are the tensor itself, the field `logits` of a dict or object, or the first floating tensor
    with two dimensions of a tuple. Raises ValueError if the outputs have none.
    """
    candidate = outputs
    if isinstance(outputs, dict) and "logits" in outputs:
        candidate = outputs["logits"]
    elif isinstance(getattr(outputs, "logits", None), Tensor):
        candidate = outputs.logits
    elif isinstance(outputs, (tuple, list)):
        candidate = next((output for output in outputs if _are_logits(output)), outputs)
    if not _are_logits(candidate):
        raise ValueError(
            "quality needs logits (batch, classes), floating: a tensor, the field `logits`, or one of a "
            f"tuple; the model returns {_described(candidate)}"
        )
    return candidate


def predicted(values: Tensor) -> Tensor:
    """Return the class with the largest logit of each row, on the CPU.

    (n, classes) -> (n,); NO_CLASS where a logit is NaN.
    """
    values = values.detach().to("cpu", torch.float64)
    return values.argmax(1).masked_fill(values.isnan().any(1), NO_CLASS)


def filled_up(inputs: Any, rows: int, batch_size: int) -> Any:
    """Repeat the first rows of the inputs until the batch is full.

    The inputs have `rows` rows; the result has `batch_size` rows.
    """
    if rows == batch_size:
        return inputs
    index = torch.arange(batch_size) % rows
    return pytree.map_tensors(inputs, lambda tensor: tensor[index] if tensor.dim() else tensor)


def macro_f1(labels: Tensor, predictions: Tensor, classes: int) -> float:
    """Return macro F1, the mean over classes of 2 TP / (2 TP + FP + FN).

    Labels and predictions are (n,). The mean is over the classes that appear in either, as in
    scikit-learn's f1_score(average="macro"); NO_CLASS is not a class. It is the "averaged F1" of Opitz and
    Burst, Macro F1 and Macro F1, arXiv:1911.03347.
    """
    # Only the diagonal and the margins of the confusion matrix, because the matrix is classes x classes.
    right = torch.bincount(labels[labels == predictions], minlength=classes).double()
    actual = torch.bincount(labels, minlength=classes).double()
    claimed = torch.bincount(predictions[predictions != NO_CLASS], minlength=classes).double()
    either = actual + claimed  # 2 TP + FP + FN
    present = either > 0
    return float((2 * right[present] / either[present]).mean())


def top1(labels: Tensor, predictions: Tensor) -> float:
    """Return the share of (n,) predictions that equal their label."""
    return float((labels == predictions).double().mean())


def _summary(labels: Tensor, eager: Tensor, backend: Tensor, classes: int, data: Labelled) -> dict[str, Any]:
    notes = list(data.notes)
    if data.classes is not None and data.classes != classes:
        notes.append(
            f"the data have {data.classes} classes, the model {classes}: the labels are taken as the first "
            f"{data.classes} of the model's classes"
        )
    for name, predictions in (("eager", eager), ("the back end", backend)):
        count = int((predictions == NO_CLASS).sum())
        if count:
            notes.append(f"{name} gives NaN for {count} of {len(labels)} samples; they count as wrong")
    return {
        "metric": "f1",
        "value": macro_f1(labels, backend, classes),
        "eager_value": macro_f1(labels, eager, classes),
        "samples": len(labels),
        "top1": top1(labels, backend),
        "eager_top1": top1(labels, eager),
        "agreement": float((eager == backend).double().mean()),
        "classes": classes,
        "notes": notes,
    }


def _check_labels(labels: Tensor, classes: int) -> None:
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise ValueError(
            f"label {int(outside[0])} is none of the model's {classes} classes (0 to {classes - 1}); so it "
            f"is for {len(outside)} of {len(labels)} samples of a batch: take a model with as many classes "
            "as the data, or mend the labels"
        )


def _are_logits(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 2 and value.is_floating_point() and value.shape[1] > 0


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).replace('torch.', '')}"
    if isinstance(value, dict):
        return f"a {type(value).__name__} with {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {', '.join(map(_described, value)) or 'nothing'}"
    return f"a {type(value).__name__}"
