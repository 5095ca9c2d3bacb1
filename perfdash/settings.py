"""Where a setting comes from: flag, then environment (PERFDASH_*), then perfdash.toml, then default."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
    field_validator,
)

from perfdash.errors import UsageError
from perfdash.records import Dtype, Phase

CONFIG_FILE = "perfdash.toml"


class RunSettings(BaseModel):
    """The options of `perfdash run`; the names are those of the flags, with underscores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    suite: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    batch_size: tuple[int, ...] = ()
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: tuple[Dtype, ...] = ()  # with no back end either: the suite's ways; else float32
    amp_dtype: Literal["bfloat16", "float16"] | None = None
    backend: tuple[str, ...] = ()  # the same; else inductor
    scenario: str | None = None  # the suite's, or inference
    threads: int = Field(default=1, ge=1)
    cores: str | None = None
    quick: bool = False
    python: str = sys.executable
    out: Path = Path("runs")
    fail_on: tuple[Literal["accuracy", "failure", "slower", "regression"], ...] = ()
    junit: Path | None = None
    allocator: Literal["steady", "default", "jemalloc", "tcmalloc"] = "steady"
    processes: int | None = Field(default=None, ge=1)
    env: dict[str, str] = {}
    inductor_config: dict[str, Any] = {}
    compile_mode: str | None = None
    dynamic: bool = False
    weights: str = "random"  # random | pretrained | the path of a file
    data: Path | None = None
    optimizer: Literal["sgd", "adam", "none"] | None = None
    timeout: float | None = Field(default=None, gt=0)
    phase_timeout: dict[Phase, PositiveFloat] = {}
    memory_limit: float | None = Field(default=None, gt=0)
    output_limit: float | None = Field(default=None, gt=0)
    retries: int = Field(default=2, ge=0)
    retry_pause: float = Field(default=30.0, ge=0)
    jobs: int | Literal["auto"] = 1
    shard: str | None = None
    costs: str | None = None
    executor: Literal["local", "dask"] = "local"
    scheduler: str | None = None
    torchbench: Path | None = None
    db: str | None = None
    no_history: bool = False

    @property
    def history(self) -> str:
        """The address of the history: beside the runs, unless told otherwise."""
        return self.db or str(self.out / "history.db")

    @field_validator("suite", "model", "models", "batch_size", "dtype", "backend", "fail_on", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        """`a,b` and ["a,b", "c"] as a list: flags repeat, variables hold one text."""
        items = [value] if isinstance(value, (str, int)) else value
        if not isinstance(items, (list, tuple)):
            return value
        return [part.strip() if isinstance(part, str) else part for item in items for part in _split(item)]

    @field_validator("batch_size")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(size < 1 for size in value):
            raise ValueError("a batch size is at least 1")
        return value

    @field_validator("db")
    @classmethod
    def _plain_address(cls, value: str | None) -> str | None:
        return value or None

    @field_validator("jobs", mode="before")
    @classmethod
    def _number_or_auto(cls, value: Any) -> Any:
        if value == "auto" or (str(value).isdigit() and int(value) >= 1):
            return value if value == "auto" else int(value)
        raise ValueError("give a number from 1, or auto")

    @field_validator("env", "inductor_config", "phase_timeout", mode="before")
    @classmethod
    def _pairs(cls, value: Any, info: Any) -> Any:
        """["KEY=VALUE", ...] as a table; values but those of env are read as JSON where they are."""
        if isinstance(value, str):
            value = value.split(",")
        if isinstance(value, (list, tuple)) and info.field_name == "phase_timeout":
            value = [part for item in value for part in _split(item)]
        if not isinstance(value, (list, tuple)):
            return value
        table: dict[str, Any] = {}
        for item in value:
            key, equals, text = str(item).partition("=")
            if not (key and equals):
                raise ValueError(f"{item!r} is not KEY=VALUE")
            table[key] = text if info.field_name == "env" else _literal(text)
        return table


def resolve(
    flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, folder: Path | None = None
) -> tuple[RunSettings, dict[str, str]]:
    """The settings in force, and for each the name of its origin.

    `flags` holds what was given on the command line (None and empty for what was not). Raises
    UsageError that names the flag, variable, or file and key at fault.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(RunSettings.model_fields, "default")
    path = (folder or Path.cwd()) / CONFIG_FILE
    for key, (value, place) in _file_settings(path).items():
        values[key], origins[key] = value, f"{path.name} {place}"
    for key in RunSettings.model_fields:
        variable = f"PERFDASH_{key.upper()}"
        if environ.get(variable):
            values[key], origins[key] = environ[variable], variable
    for key, value in flags.items():
        if value is not None and value is not False and value not in ((), []):
            values[key], origins[key] = value, f"--{key.replace('_', '-')}"
    if origins["db"] != "PERFDASH_DB":
        refuse_password(str(values.get("db") or ""), origins["db"])
    try:
        return RunSettings(**values), origins
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        raise UsageError(f"{origins.get(key, key)}: {_plainly(first)}") from error


def shown(settings: RunSettings) -> dict[str, Any]:
    """The settings as plain JSON values, without what is nobody's business: passwords, secret variables."""
    from urllib.parse import urlsplit

    values = settings.model_dump(mode="json")
    if settings.db and _has_password(settings.db):
        parts = urlsplit(settings.db)
        values["db"] = f"{parts.scheme}://***@{parts.netloc.rpartition('@')[2]}{parts.path}"
    return values


def check_time(text: str, where: str) -> str:
    """A time or the beginning of one, as given. Raises UsageError for what is none."""
    whole = text + "2000-01-01T00:00:00Z"[len(text) :]
    try:
        if not re.fullmatch(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\dZ?)?)?)?)?)?", text):
            raise ValueError
        datetime.fromisoformat(whole)
    except ValueError:
        raise UsageError(
            f"{where} {text!r} is no time; give e.g. 2026-11-21 or 2026-11-21T03:00:00Z"
        ) from None
    return text


def refuse_password(address: str, where: str) -> None:
    """Raises UsageError for an address with a password where others see it."""
    if _has_password(address):
        raise UsageError(
            f"{where}: a password is seen there by others; put the address into PERFDASH_DB, or the "
            "password into PGPASSWORD or ~/.pgpass"
        )


def _has_password(address: str) -> bool:
    before, at, _ = address.partition("://")[2].rpartition("@")
    return (bool(at) and ":" in before) or "password=" in address.lower()


def _file_settings(path: Path) -> dict[str, tuple[Any, str]]:
    """(value, place in the file) of each setting. Raises UsageError for what the file may not say."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    for key in data:
        if key not in ("run", "torchbench"):
            raise UsageError(
                f"{path}: unknown table or key {key!r}; settings of runs stand in [run], "
                "a checkout of torchbench in [torchbench]"
            )
    run = data.get("run", {})
    checkout = data.get("torchbench", {})
    if not isinstance(run, dict):
        raise UsageError(f"{path}: 'run' must be a table")
    for key in run:
        if key not in RunSettings.model_fields:
            known = ", ".join(RunSettings.model_fields)
            raise UsageError(f"{path}: [run] has no key {key!r}; there are: {known}")
    if not isinstance(checkout, dict) or set(checkout) - {"path"}:
        raise UsageError(f"{path}: [torchbench] has one key, path: the folder of a checkout")
    settings = {key: (value, f"[run] {key}") for key, value in run.items()}
    if checkout:
        settings["torchbench"] = checkout["path"], "[torchbench] path"
    return settings


def _split(item: Any) -> list[Any]:
    return item.split(",") if isinstance(item, str) else [item]


def _literal(text: str) -> Any:
    spelled = {"True": True, "False": False, "None": None}
    if text in spelled:
        return spelled[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _plainly(complaint: Any) -> str:
    given = complaint.get("input")
    if complaint["type"] == "literal_error":
        return f"{given!r} is not one of {complaint['ctx']['expected']}"
    return f"{given!r}: {complaint['msg']}"
