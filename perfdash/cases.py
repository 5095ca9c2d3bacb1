"""Suite TOML -> cases: reading and checking the file, selecting models, expanding settings."""

from __future__ import annotations

import difflib
import fnmatch
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from perfdash.bundled import bundled
from perfdash.errors import UsageError
from perfdash.records import Case, Job, Sampling
from perfdash.worker import registry

Dtype = Literal["float32", "bfloat16", "float16", "amp"]
PerDtype = float | dict[Dtype, float]
DTYPES = ("float32", "bfloat16", "float16", "amp")
DEVICES = ("cpu", "cuda")
# Rounding to fewer bits leaves both sides further from the judge, and less alike (dynamo's factors).
_FACTOR: dict[str, float] = {"float32": 2.0, "bfloat16": 3.0, "float16": 3.0, "amp": 3.0}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BatchSize(_Strict):
    """Batch sizes by where the model runs: on one CPU thread, on several, on a GPU."""

    one_thread: int = Field(default=1, ge=1)
    cpu: int = Field(default=1, ge=1)
    cuda: int = Field(default=1, ge=1)


class Skip(_Strict):
    """Why a model is not measured, and on which devices (all by default)."""

    reason: str
    devices: tuple[Literal["cpu", "cuda"], ...] = DEVICES  # type: ignore[assignment]


class Settings(_Strict):
    """What `[defaults]` and each `[[models]]` may set; None leaves it to the level above."""

    batch_size: BatchSize | None = None
    tolerance: PerDtype | None = None
    tolerance_freezing: float | None = None  # instead of it, where inductor freezes the weights
    factor: PerDtype | None = None
    cosine: bool | None = None
    check_accuracy: bool | None = None
    inputs: dict[str, Any] | None = None
    env: dict[str, str] | None = None
    timeout_s: float | None = Field(default=None, gt=0)
    memory_limit_gb: float | None = Field(default=None, gt=0)
    skip: Skip | None = None

    @field_validator("batch_size", mode="before")
    @classmethod
    def _one_number_for_all(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"one_thread": value, "cpu": value, "cuda": value}
        return value


class Model(Settings):
    """One model: its name here, and what the loader knows it by where that differs."""

    name: str = Field(min_length=1)
    target: str | None = None
    quick: bool = False


class Suite(_Strict):
    """A suite file."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    loader: str
    title: str = ""
    dynamo_name: str | None = None  # the suite's name in the dynamo runners' file names
    defaults: Settings = Settings()
    models: tuple[Model, ...]
    path: Path

    @field_validator("models")
    @classmethod
    def _names_are_unique(cls, models: tuple[Model, ...]) -> tuple[Model, ...]:
        names = [model.name for model in models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"listed twice: {', '.join(twice)}")
        return models

    def setting(self, model: Model, key: str, otherwise: Any = None) -> Any:
        """A setting of a model: its own, else the suite's default, else `otherwise`."""
        for level in (model, self.defaults):
            if getattr(level, key) is not None:
                return getattr(level, key)
        return otherwise


@dataclass(frozen=True)
class Planned:
    """A case with all that is needed to measure it, or the reason why it is not measured."""

    case: Case
    loader: str
    target: str
    inputs: dict[str, Any]
    tolerance: float
    factor: float
    cosine: bool
    check_accuracy: bool
    env: dict[str, str]
    timeout_s: float
    memory_limit_bytes: int | None
    skip_reason: str | None = None

    def job(self, *, scratch: str, sampling: Sampling, **options: Any) -> Job:
        """The worker's order for this case."""
        return Job(
            case=self.case,
            loader=self.loader,
            target=self.target,
            inputs=self.inputs,
            tolerance=self.tolerance,
            factor=self.factor,
            cosine=self.cosine,
            check_accuracy=self.check_accuracy,
            timeout_s=self.timeout_s,
            memory_limit_bytes=self.memory_limit_bytes,
            scratch=scratch,
            sampling=sampling,
            **options,
        )


@dataclass(frozen=True)
class Selection:
    """What of a suite to measure, and how: the options of `perfdash run`, checked."""

    models: tuple[str, ...] = ()
    quick: bool = False
    batch_sizes: tuple[int, ...] = ()
    device: str = "cpu"
    dtypes: tuple[str, ...] = ("float32",)
    amp_dtype: str | None = None
    threads: int = 1
    scenario: str = "inference"
    backends: tuple[str, ...] = ("inductor",)
    dynamic: bool = False
    env: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = None
    freezing: bool = False


def suite_names() -> list[str]:
    """The suites that ship with perfdash."""
    return sorted(path.stem for path in bundled("suites").glob("*.toml"))


def load_suite(name_or_path: str) -> Suite:
    """A suite by name or by the path of its file. Raises UsageError that names file, line or key."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = bundled("suites") / f"{name_or_path}.toml"
        if not path.is_file():
            near = _near(name_or_path, suite_names())
            raise UsageError(
                f"no suite named {name_or_path!r}{near}; there are: {', '.join(suite_names())} "
                "(a file of your own is given by its path, ending in .toml)"
            )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"suite file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"suite file {path} is not valid TOML: {error}") from error
    try:
        suite = Suite(**data, path=path.resolve())
    except ValidationError as error:
        raise UsageError(_explain(path, data, error)) from error
    except TypeError as error:
        raise UsageError(f"suite file {path}: {error}") from error
    if registry.canonical(suite.loader) not in registry.names("loaders"):
        raise UsageError(
            f"suite file {path}: key 'loader': no loader named {suite.loader!r}; "
            f"there are: {', '.join(registry.names('loaders'))}"
        )
    return suite


def own_model(target: str) -> Suite:
    """A suite of one model of the user's own, from `file.py:function`."""
    file, _, function = target.rpartition(":")
    if not file or not function:
        raise UsageError(f"--model {target!r}: give it as file.py:function")
    model = Model(name=f"{Path(file).stem}.{function}", target=target)
    return Suite(name="own", loader="python", models=(model,), path=Path.cwd() / "own.toml")


def select(suite: Suite, selection: Selection) -> list[Planned]:
    """The cases of a suite. Raises UsageError for a pattern that matches nothing, with near names."""
    for pattern in selection.models:
        if not any(_matches(model.name, pattern) for model in suite.models):
            names = [model.name for model in suite.models]
            raise UsageError(
                f"--models {pattern!r} matches no model of suite {suite.name!r}"
                f"{_near(pattern, names)}; `perfdash list {suite.name}` shows them all"
            )
    chosen = [
        model
        for model in suite.models
        if not selection.models or any(_matches(model.name, p) for p in selection.models)
    ]
    if selection.quick and not selection.models:
        chosen = [model for model in chosen if model.quick]
        if not chosen:
            raise UsageError(f"suite {suite.name!r} marks no model with quick = true")
    return [
        _plan(suite, model, selection, dtype, backend, batch_size)
        for model in chosen
        for dtype in selection.dtypes
        for backend in selection.backends
        for batch_size in (selection.batch_sizes or (_batch_size(suite, model, selection),))
    ]


def _plan(
    suite: Suite, model: Model, selection: Selection, dtype: str, backend: str, batch_size: int
) -> Planned:
    case = Case(
        suite=suite.name,
        model=model.name,
        device=selection.device,
        dtype=dtype,
        batch_size=batch_size,
        threads=selection.threads,
        scenario=selection.scenario,
        backend=registry.canonical(backend),
        dynamic=selection.dynamic,
        amp_dtype=_amp_dtype(selection) if dtype == "amp" else None,
    )
    skip: Skip | None = suite.setting(model, "skip")
    limit = suite.setting(model, "memory_limit_gb")
    return Planned(
        case=case,
        loader=registry.canonical(suite.loader),
        target=_target(suite, model),
        inputs=suite.setting(model, "inputs", {}),
        tolerance=_tolerance(suite, model, selection, dtype),
        factor=_per_dtype(suite.setting(model, "factor", _FACTOR), dtype, _FACTOR[dtype]),
        cosine=suite.setting(model, "cosine", False),
        check_accuracy=suite.setting(model, "check_accuracy", True),
        env={**suite.setting(model, "env", {}), **dict(selection.env)},
        timeout_s=selection.timeout_s or suite.setting(model, "timeout_s", 3600.0),
        memory_limit_bytes=int(limit * 2**30) if limit else None,
        skip_reason=skip.reason if skip and selection.device in skip.devices else None,
    )


def _amp_dtype(selection: Selection) -> str:
    return selection.amp_dtype or ("float16" if selection.device == "cuda" else "bfloat16")


def _target(suite: Suite, model: Model) -> str:
    """The target; a file of the python loader is found relative to the suite file."""
    target = model.target or model.name
    if registry.canonical(suite.loader) != "python":
        return target
    file, _, function = target.rpartition(":")
    path = (suite.path.parent / file).resolve()
    if not file or not path.is_file():
        raise UsageError(
            f"{suite.path}: model {model.name!r}: target {target!r} must be file.py:function, "
            f"and {path} is not a file"
        )
    return f"{path}:{function}"


def _tolerance(suite: Suite, model: Model, selection: Selection, dtype: str) -> float:
    plain = _per_dtype(suite.setting(model, "tolerance", 1e-3), dtype, 1e-3)
    frozen = suite.setting(model, "tolerance_freezing", plain)
    return float(frozen if selection.freezing else plain)


def _batch_size(suite: Suite, model: Model, selection: Selection) -> int:
    sizes: BatchSize = suite.setting(model, "batch_size", BatchSize())
    if selection.device == "cuda":
        return sizes.cuda
    return sizes.one_thread if selection.threads == 1 else sizes.cpu


def _per_dtype(value: PerDtype, dtype: str, otherwise: float) -> float:
    if isinstance(value, dict):
        return value.get(dtype, otherwise)  # type: ignore[call-overload,no-any-return]
    return value


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name.lower(), pattern.lower())


def _near(word: str, names: list[str]) -> str:
    bare = re.sub(r"[*?\[\]]", "", word)
    close = difflib.get_close_matches(bare, names, n=4, cutoff=0.5)
    return f" (near: {', '.join(close)})" if close else ""


def _explain(path: Path, data: dict[str, Any], error: ValidationError) -> str:
    """The first complaint of pydantic with the key as one would write it, and the model's name."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    where = ""
    if len(first["loc"]) >= 2 and first["loc"][0] == "models" and isinstance(first["loc"][1], int):
        model = data["models"][first["loc"][1]]
        named = model.get("name") if isinstance(model, dict) else None
        where = f" (model {named!r})" if named else f" (model number {first['loc'][1] + 1})"
    hint = ""
    if first["type"] == "extra_forbidden":
        allowed = [*Suite.model_fields, *Model.model_fields, *BatchSize.model_fields, *Skip.model_fields]
        hint = _near(str(first["loc"][-1]), allowed)
        return f"suite file {path}: unknown key '{key}'{where}{hint}"
    more = f" ({len(error.errors()) - 1} more)" if len(error.errors()) > 1 else ""
    return f"suite file {path}: key '{key}'{where}: {first['msg']}{more}"
