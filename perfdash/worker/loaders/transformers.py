"""Models of the transformers package by their class, with random weights unless told otherwise.

`config` holds settings of the class's configuration, over that class's defaults; a table where the
configuration holds another one (`text_config = { hidden_size = 64 }`). Its key `pretrained` is the
checkpoint, "owner/name" or a folder, that is loaded where pretrained weights are asked for; then the
checkpoint's own configuration counts and not the other keys. `inputs` is what
perfdash.worker.transformers_inputs takes. Attention is what transformers chooses, as users get it.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from perfdash.records import Job
from perfdash.worker import transformers_inputs
from perfdash.worker.failures import unknown_model

PRELOAD = ("transformers",)


def load(job: Job) -> tuple[Any, dict[str, Any]]:
    """The model and one batch of random inputs by keyword, `use_cache` off.

    Raises LookupError for a class, or a checkpoint, that there is none of, with near names, and
    TypeError for a key that the configuration does not know.
    """
    settings = dict(job.config)
    checkpoint = settings.pop("pretrained", None)
    model_class = _model_class(job.target)
    if job.weights != "pretrained":
        module = model_class(configuration(model_class.config_class, settings))
    elif checkpoint:
        # Read before the weights: not every class takes use_cache as a keyword of from_pretrained.
        config = _without_cache(model_class.config_class.from_pretrained(checkpoint))
        module = model_class.from_pretrained(checkpoint, config=config).float()
    else:
        raise LookupError(
            f"no pretrained weights are named for {job.case.model}: config.pretrained is not set"
        )
    return module, transformers_inputs.draw(module, job.case.batch_size, job.inputs)


def configuration(config_class: Any, settings: dict[str, Any]) -> Any:
    """A configuration with these settings. Raises TypeError for one that it does not know.

    transformers takes any keyword and keeps it unread, so a misspelt one would measure another model.
    """
    _refuse_unknown(config_class(), settings, "")
    return _without_cache(config_class(**settings))


def _model_class(name: str) -> Any:
    import transformers

    found = getattr(transformers, name, None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    known = [each for each in dir(transformers) if "For" in each or each.endswith("Model")]
    raise unknown_model("transformers", name, known)


def _refuse_unknown(default: Any, settings: dict[str, Any], where: str) -> None:
    """Compares with what a configuration holds by default, under whatever names it may be given."""
    known = {
        *(key for key in vars(default) if not key.startswith("_")),
        *inspect.signature(type(default).__init__).parameters,
        *type(default).attribute_map,
        "num_labels",  # a property, kept as the labels' names
    } - {"self", "args", "kwargs"}
    for key, value in settings.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=4, cutoff=0.6)
            hint = f" (near: {', '.join(near)})" if near else ""
            raise TypeError(f"{type(default).__name__} has no setting '{where}{key}'{hint}")
        inner = getattr(default, key, None)
        if isinstance(value, dict) and _is_configuration(inner):
            _refuse_unknown(inner, value, f"{where}{key}.")


def _without_cache(config: Any) -> Any:
    """One forward pass has no use for keys and values to go on with, and making them costs time."""
    if hasattr(config, "use_cache"):
        config.use_cache = False
    for inner in vars(config).values():
        if _is_configuration(inner):
            _without_cache(inner)
    return config


def _is_configuration(value: Any) -> bool:
    import transformers

    return isinstance(value, transformers.PretrainedConfig)
