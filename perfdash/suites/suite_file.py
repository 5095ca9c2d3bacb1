"""Suite files: their keys, their values for one model, and one message for each error.

Also the limits that a model's outputs are judged by, and the labelled data that it is scored on.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    create_model,
    field_validator,
)

from perfdash.errors import UsageError
from perfdash.files import bundled
from perfdash.records import Case, Dtype, Phase, Specification, declared_options
from perfdash.settings import validated_type
from perfdash.suggestions import did_you_mean
from perfdash.validation_messages import predicate
from perfdash.worker import registry

PerDtype = dict[Dtype, NonNegativeFloat]
_TimeLimit = Annotated[float, Field(gt=0, allow_inf_nan=True)]
OWN = "own"  # the suite of the models that --model names
CHECKOUT_SUITE = "torchbench-checkout"  # the suite of a checkout of torchbench (torchbench_checkout.py)
NOTEBOOK = "notebook"  # the loader of models that no file has: perfdash.measure() alone uses it
_WITHOUT_SETTINGS = ("python", "torchbench")  # loaders that read no config and no inputs
DTYPES = ("float32", "bfloat16", "float16", "amp")
DEVICES = ("cpu", "cuda")

# A setting of the model in its scenario: setting(key, otherwise) (suites.Suite.setting).
Setting = Callable[..., Any]

# With fewer bits both sides differ more from the float64 reference (factors of the dynamo runners).
_FACTOR: dict[str, float] = {"float32": 2.0, "bfloat16": 3.0, "float16": 3.0, "amp": 3.0}

_FILE_NAME = r"^[A-Za-z0-9_.-]{1,60}$"

# Ending of transformers' classes that classify a text.
_TEXT_HEAD = "ForSequenceClassification"
# Allowed distance to eager's outputs (relative rmse) where they differ by intent.
_DISTANCE: dict[str, float] = {"bfloat16": 0.05, "amp": 0.05, "float16": 0.02, "int8": 0.2}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class BatchSize(_Strict):
    """Batch sizes of a model on one CPU thread, on several, and on a GPU."""

    one_thread: int = Field(default=1, ge=1)
    cpu: int = Field(default=1, ge=1)
    cuda: int = Field(default=1, ge=1)


class Skip(_Strict):
    """Why a model is not measured, on which devices and in which dtypes (default: all)."""

    reason: str = Field(min_length=1)
    devices: tuple[Literal["cpu", "cuda"], ...] = DEVICES  # type: ignore[assignment]
    dtypes: tuple[Dtype, ...] = DTYPES  # type: ignore[assignment]


class Way(_Strict):
    """A back end, with the dtypes and devices that it runs models in."""

    # For the type checker DEVICES is a tuple of str, here and in Skip.
    backend: str
    dtypes: tuple[Dtype, ...] = Field(default=("float32",), min_length=1)
    devices: tuple[Literal["cpu", "cuda"], ...] = DEVICES  # type: ignore[assignment]


def _keys_of_cases(training: bool) -> type[_Strict]:
    """The keys that a case's specification declares (records.Option), as a model; None where not set."""
    keys: dict[str, Any] = {
        name: (validated_type(kind, option) | None, None)
        for name, (kind, option) in declared_options(Specification).items()
        if option.training == training
    }
    return create_model("_KeysOfCases", __base__=_Strict, **keys)


if TYPE_CHECKING:

    class _Keys(_Strict): ...

    class _TrainingKeys(_Strict): ...

else:
    _Keys, _TrainingKeys = _keys_of_cases(training=False), _keys_of_cases(training=True)


class Common(_Keys):
    """What may be set in every scenario, beside what a case's specification declares.

    None leaves a key to the level above.
    """

    batch_size: BatchSize | None = None
    batch_sizes: tuple[PositiveInt, ...] | None = None  # all of these, instead of batch_size
    tolerance: PerDtype | None = None
    tolerance_freezing: NonNegativeFloat | None = (
        None  # instead of tolerance, where inductor freezes the weights
    )
    factor: PerDtype | None = None
    distance: dict[Literal["bfloat16", "float16", "amp", "int8"], PositiveFloat] | None = None
    data: Literal["digits", "images", "text"] | None = None  # the labelled data that it can be scored on
    config: dict[str, JsonValue] | None = None  # of the model, as its loader understands it
    env: dict[str, str] | None = None
    timeout_s: _TimeLimit | None = None
    phase_timeout_s: dict[Phase, _TimeLimit] | None = None
    memory_limit_gb: float | None = Field(default=None, gt=0)
    output_limit_mb: float | None = Field(default=None, gt=0)
    cost_s: float | None = Field(default=None, gt=0)  # about how long it takes, for planning
    skip: tuple[Skip, ...] | None = None

    @field_validator("inputs")
    @classmethod
    def _tables_are_by_device(cls, value: Any) -> Any:
        for key, entry in (value or {}).items():
            if isinstance(entry, dict) and set(entry) != set(DEVICES):
                raise ValueError(f"{key} = {entry!r}: a table has one entry for cpu and one for cuda")
        return value

    @field_validator("skip", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @field_validator("batch_size", mode="before")
    @classmethod
    def _one_number_for_all(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"one_thread": value, "cpu": value, "cuda": value}
        return value

    @field_validator("tolerance", "factor", mode="before")
    @classmethod
    def _one_number_for_all_dtypes(cls, value: Any) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return dict.fromkeys(DTYPES, value)
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"{value!r} is neither a number nor a table by dtype")
        return value


class Training(_TrainingKeys, Common):
    """What is set otherwise for training."""


class Settings(Common):
    """What `[defaults]` and each `[[models]]` may set."""

    training: Training | None = None


_Settings = TypeVar("_Settings", bound=Common)


class Model(Settings):
    """One model: its name here, and what the loader knows it by where that differs.

    `parameters` is how many it is known to have: `perfdash check` compares, and a model that cannot
    fit into the machine is told from it before it is loaded.
    """

    name: str = Field(min_length=1)
    target: str | None = None
    # Keys of the configuration that differ on the back end's side; `channels_last` sets the memory format.
    variant: dict[str, JsonValue] | None = None
    loader: str | None = None  # instead of the suite's
    parameters: int | None = Field(default=None, gt=0)
    quick: bool = False


class Suite(_Strict):
    """A suite file."""

    name: str = Field(pattern=_FILE_NAME)
    loader: str = ""  # of the models that name none
    title: str = ""
    dynamo_name: str | None = Field(
        default=None, pattern=_FILE_NAME
    )  # the suite's name in the dynamo runners' file names
    defaults: Settings = Settings()
    # The dtype of eager that every technique is compared with; default: the dtype of the case.
    baseline_dtype: Literal["float32"] | None = None
    scenario: str = "inference"  # of its models, unless --scenario names another
    ways: tuple[Way, ...] = ()  # how its models are run without --backend and --dtype
    models: tuple[Model, ...] = Field(min_length=1)
    path: Path

    @field_validator("models")
    @classmethod
    def _names_are_unique(cls, models: tuple[Model, ...]) -> tuple[Model, ...]:
        names = [model.name for model in models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"listed twice: {', '.join(twice)}")
        files: dict[str, str] = {}
        for name in names:
            other = files.setdefault(_file_name(name), name)
            if other != name:
                raise ValueError(f"{other} and {name} have one file name: rename one of them")
        return models

    def loader_of(self, model: Model) -> str:
        """The name of the loader that the model comes by."""
        return registry.canonical(model.loader or self.loader)

    def setting(
        self,
        model: Model,
        key: str,
        otherwise: Any = None,
        scenario: str = "inference",
        entry: str | None = None,
    ) -> Any:
        """A setting of a model: its own, else the suite's default, else `otherwise`.

        For training what is set for training comes before both. `entry`: of a table by dtype, only this
        entry; where a table does not have it, the next level counts.
        """
        levels: list[Common | None] = [model, self.defaults]
        if scenario == "training":
            levels = [model.training, self.defaults.training, *levels]
        for level in levels:
            value = getattr(level, key, None)
            if entry is not None and isinstance(value, dict):
                value = value.get(entry)
            if value is not None:
                return value
        return otherwise

    def for_check(self) -> Suite:
        """The suite in the smallest of several batch sizes, and in inference instead of scenario `sizes`."""
        return self.model_copy(
            update={
                "scenario": "inference" if self.scenario == "sizes" else self.scenario,
                "defaults": _in_one_size(self.defaults),
                "models": tuple(map(_in_one_size, self.models)),
            }
        )


def _in_one_size(settings: _Settings) -> _Settings:
    update: dict[str, Any] = {}
    if settings.batch_sizes:
        update["batch_sizes"] = (min(settings.batch_sizes),)
    if training := getattr(settings, "training", None):
        update["training"] = _in_one_size(training)
    return settings.model_copy(update=update)


class OwnModels(Suite):
    """The models that --model names, or one of a notebook: no file lists them, so --models selects none."""


def suite_names() -> list[str]:
    """The suites that ship with perfdash."""
    return sorted(path.stem for path in bundled("suites").glob("*.toml"))


def load_suite(name_or_path: str) -> Suite:
    """A suite by name or by the path of its file. Raises UsageError that names file, line or key."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = bundled("suites") / f"{name_or_path}.toml"
        if not path.is_file():
            hint = did_you_mean(name_or_path, suite_names())
            raise UsageError(
                f"no suite named {name_or_path!r}{hint}; there are: {', '.join(suite_names())} "
                "(a file of your own is given by its path, ending in .toml)"
            )
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise UsageError(
            f"--suite {name_or_path}: the file {path.absolute()} cannot be read: {error.strerror}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"suite file {path} is not valid TOML: {error}") from error
    try:
        suite = Suite(**data, path=path.resolve())
    except ValidationError as error:
        raise UsageError(_explain(path, data, error)) from error
    except TypeError as error:
        raise UsageError(f"suite file {path}: {error}") from error
    shipped = bundled("suites") / f"{suite.name}.toml"
    is_taken = shipped.is_file() or suite.name in (OWN, CHECKOUT_SUITE)
    if is_taken and not (shipped.is_file() and shipped.read_text(encoding="utf-8") == text):
        raise UsageError(
            f"suite file {path}: key 'name': {suite.name} is a name of perfdash's own: give it another, "
            "because results belong to the series of their suite's name"
        )
    if suite.scenario not in registry.names("scenarios"):
        raise UsageError(
            f"suite file {path}: key 'scenario': no scenario named "
            f"{suite.scenario!r}{did_you_mean(suite.scenario, registry.names('scenarios'))}; "
            f"there are: {', '.join(registry.names('scenarios'))}"
        )
    for way in suite.ways:
        if registry.canonical(way.backend) not in registry.names("backends"):
            raise UsageError(
                f"suite file {path}: key 'ways': no back end named "
                f"{way.backend!r}{did_you_mean(way.backend, registry.names('backends'))}; "
                f"there are: {', '.join(registry.names('backends'))}"
            )
    for model in suite.models:
        loader = suite.loader_of(model)
        if not loader:
            raise UsageError(f"suite file {path}: key 'loader' is required, or one at model {model.name!r}")
        loaders = [name for name in registry.names("loaders") if name != NOTEBOOK]
        if loader not in loaders:
            raise UsageError(
                f"suite file {path}: key 'loader' (model {model.name!r}): no loader named "
                f"{loader!r}{did_you_mean(loader, loaders)}; there are: {', '.join(loaders)}"
            )
        if loader in _WITHOUT_SETTINGS:
            _refuse_unread(suite, model, loader)
    return suite


def _refuse_unread(suite: Suite, model: Model, loader: str) -> None:
    """Raise UsageError for a setting that the loader ignores: two models that differ by it would be one."""
    has_data = suite.setting(model, "data") is not None
    unread = [key for key in model.variant or () if key != "channels_last"]
    key = f"variant.{unread[0]}" if unread else None
    for scenario in ("inference", "training"):
        for name in ("config",) if has_data else ("config", "inputs"):
            if suite.setting(model, name, scenario=scenario):
                key = name
    if key:
        is_of_defaults = getattr(suite.defaults, key, None) and not getattr(model, key, None)
        of_defaults = f" or, of [defaults], set {key} = {{}} for this model" if is_of_defaults else ""
        raise UsageError(
            f"suite file {suite.path}: key '{key}' (model {model.name!r}): the loader {loader} makes a model "
            "of its target and batch size alone, so this would measure the same model as without the key: "
            f"remove it{of_defaults}, and give the model a target of its own if it differs from others"
        )


def own_models(targets: Sequence[str]) -> Suite:
    """A suite of models of the user's own, each from `file.py:function`; one that is given twice once."""
    models: dict[tuple[Path, str], Model] = {}
    names: set[str] = set()
    for target in targets:
        file, _, function = target.rpartition(":")
        if not file or not function:
            raise UsageError(f"--model {target!r}: give it as file.py:function")
        path = Path(os.path.abspath(file))
        if (path, function) in models:
            continue
        places = (path.stem, Path(file).with_suffix(""), path.name, path.with_suffix(""), path)
        name = next(name for place in places if _file_name(name := f"{place}.{function}") not in names)
        names.add(_file_name(name))
        models[path, function] = Model(name=name, target=target, quick=True)
    return OwnModels(name=OWN, loader="python", models=tuple(models.values()), path=Path.cwd() / "own.toml")


def _file_name(model: str) -> str:
    """What the names of files have of a model's name: `a_b` and `a-b` are the same there."""
    return Case(suite="", model=model).name


def notebook_model(name: str) -> Suite:
    """The suite of one model that a function of a notebook makes."""
    model = Model(name=f"notebook.{name}", target=name, quick=True)
    return OwnModels(name=OWN, loader=NOTEBOOK, models=(model,), path=Path.cwd() / "own.toml")


def _explain(path: Path, data: dict[str, Any], error: ValidationError) -> str:
    """The first complaint of pydantic, with the file's key and the model's name."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in _keys_of(data, first))
    where = ""
    if len(first["loc"]) >= 2 and first["loc"][0] == "models" and isinstance(first["loc"][1], int):
        model = data["models"][first["loc"][1]]
        named = model.get("name") if isinstance(model, dict) else None
        where = f" (model {named!r})" if named else f" (model number {first['loc'][1] + 1})"
    hint = ""
    if first["type"] == "extra_forbidden":
        tables = (Suite, Model, Training, BatchSize, Skip, Way)
        allowed = [name for table in tables for name in table.model_fields]
        hint = did_you_mean(str(first["loc"][-1]), allowed)
        return f"suite file {path}: unknown key '{key}'{where}{hint}"
    more = f" ({len(error.errors()) - 1} more)" if len(error.errors()) > 1 else ""
    return f"suite file {path}: key '{key}'{where}{predicate(first)}{more}"


def _keys_of(data: Any, complaint: Mapping[str, Any]) -> list[str | int]:
    """The keys that lead to a wrong value; within values of JSON pydantic also names their types."""
    if complaint["type"] not in ("finite_number", "invalid-json-value"):
        return list(complaint["loc"])
    keys: list[str | int] = []
    for key in complaint["loc"]:
        with contextlib.suppress(KeyError, IndexError, TypeError):
            data = data[key]
            keys.append(key)
    return keys


def tolerance(setting: Setting, case: Case, freezing: bool) -> float:
    """The tolerance of outputs that should equal eager's; frozen weights have one of their own.

    freezing: whether the case's options ask for it. Inductor freezes nothing in training.
    """
    plain = setting("tolerance", 1e-3, entry=case.dtype)
    frozen = setting("tolerance_freezing", plain)
    freezes = freezing or case.backend == "inductor-freezing"
    freezes = freezes or (case.backend == "inductor-max-autotune" and case.device == "cpu")
    return float(frozen if freezes and case.scenario != "training" else plain)


def distance_bound(
    setting: Setting, dtype: str, baseline: str | None, lossy: bool, variant: Mapping[str, Any]
) -> float | None:
    """The allowed distance to eager's outputs, where they differ by intent (dtype, integers)."""
    autocast = bool(variant.get("autocast"))
    if not lossy and baseline is None and not autocast:
        return None
    kind = "int8" if lossy else "amp" if autocast else dtype
    bound: float = setting("distance", _DISTANCE[kind], entry=kind)
    return bound


def inputs_on(device: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model's inputs on a device: of `{ cpu = 256, cuda = 1024 }` the device's entry."""
    return {key: value[device] if isinstance(value, dict) else value for key, value in inputs.items()}


def labelled_data(
    setting: Setting, loader: str, target: str, given: str | None
) -> tuple[str | None, str | None]:
    """The kind of a model's labelled data, and the path of the user's data."""
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


def factor(setting: Setting, dtype: str) -> float:
    """How many times eager's own error the compiled one may be."""
    times: float = setting("factor", _FACTOR[dtype], entry=dtype)
    return times
