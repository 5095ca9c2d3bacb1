"""Where a setting comes from: flag, then environment (PERFDASH_*), then perfdash.toml, then default."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from perfdash.errors import UsageError
from perfdash.owners import Owners, read_owners
from perfdash.records import Option
from perfdash.run_options import RunOptions, run_options, without_none
from perfdash.series_rules import SeriesRule, read_rules
from perfdash.suggestions import did_you_mean
from perfdash.validation_messages import in_words

CONFIG_FILE = "perfdash.toml"
_EXAMPLES = {
    "env": "OMP_DYNAMIC=FALSE",
    "inductor_config": "freezing=true",
    "phase_timeout": "compile=600",
}


def validated_type(kind: Any, option: Option) -> Any:
    """The type of an option with its bounds, for pydantic. Bounds of a table hold for its values.

    A table of anything has values that JSON has, too: plans and records are JSON.
    """
    bounds = Field(gt=option.above, ge=option.at_least, allow_inf_nan=option.infinite or None)
    if get_origin(kind) is dict:
        key, value = get_args(kind)
        within: Any = JsonValue if value is Any else Annotated[value, bounds]
        return dict[key, within]  # type: ignore[valid-type]  # a type that is made here, for pydantic
    return Annotated[kind, bounds]


if TYPE_CHECKING:

    class _Declared(RunOptions, BaseModel): ...

else:
    _Declared = create_model(
        "_Declared",
        **{
            name: (validated_type(kind, option), default)
            for name, (kind, option, default) in run_options().items()
        },
    )


class RunSettings(_Declared):
    """The options of `perfdash run`, validated; the names are those of the flags, with underscores."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def history(self) -> str:
        """The address of the history: beside the runs, unless told otherwise."""
        return self.db or str(self.out / "history.db")

    @field_validator("*", mode="before")
    @classmethod
    def _from_text(cls, value: Any, info: Any) -> Any:
        """Lists and tables as flags, which repeat, and variables, which hold one text, give them."""
        kind = get_origin(without_none(cls.model_fields[info.field_name].annotation))
        if kind is tuple:
            return _items(value)
        return _table(value, info.field_name) if kind is dict else value

    @field_validator("batch_size")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(size < 1 for size in value):
            raise ValueError(f"{min(value)} is no batch size: give 1 or more")
        return value

    @field_validator("line")
    @classmethod
    def _plain_name(cls, value: str | None) -> str | None:
        if value and not re.fullmatch(r"[A-Za-z0-9._+/-]{1,60}", value):
            raise ValueError(f"{value!r} is no name of a line: give up to 60 letters, digits and . _ + / -")
        return value or None

    @field_validator("db")
    @classmethod
    def _plain_address(cls, value: str | None) -> str | None:
        return value or None

    @field_validator("wait", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        """Seconds of 90, "90s", "30m" and "2h"."""
        if value is None:
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value).strip())
        if match is None:
            raise ValueError(f"{value!r} is no time: give one like 90s, 30m or 2h")
        return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]

    @field_validator("jobs", mode="before")
    @classmethod
    def _number_or_auto(cls, value: Any) -> Any:
        if value == "auto" or (str(value).isdigit() and int(value) >= 1):
            return value if value == "auto" else int(value)
        raise ValueError(f"{value!r} is no number of cases: give 1 or more, or auto")


def resolve(
    flags: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
    folder: Path | None = None,
    *,
    given: Collection[str] = (),
) -> tuple[RunSettings, dict[str, str]]:
    """The settings in force, and for each the name of its origin.

    `flags` holds what was given on the command line (None and empty for what was not). `given`: names of
    flags that come before the variables and the file even where they are empty. Raises UsageError that names
    the flag, variable, or file and key at fault.
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
    if flags.get("model"):  # it replaces the suites of variable and file, and what these select of them
        for key in ("suite",) if flags.get("suite") else ("suite", "models"):
            values.pop(key, None)
            origins[key] = "default"
    for key, value in flags.items():
        if key in given or (value is not None and value is not False and value not in ((), [])):
            values[key], origins[key] = value, f"--{key.replace('_', '-')}"
    if origins["db"] != "PERFDASH_DB":
        refuse_password(str(values.get("db") or ""), origins["db"])
    try:
        return RunSettings(**_on_this_machine(values)), origins
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        raise UsageError(f"{origins.get(key, key)}: {in_words(first)}") from error


def _on_this_machine(values: dict[str, Any]) -> dict[str, Any]:
    """The values with `threads = socket` and `instances` turned into threads and cores. Raises UsageError."""
    instances, takes_socket = values.get("instances"), str(values.get("threads")) == "socket"
    if not instances and not takes_socket:
        return values
    from perfdash import topology

    option = "--instances" if instances else "--threads socket"
    for key, wrong in (("executor", "dask"), ("device", "cuda")):
        if values.get(key) == wrong:
            raise UsageError(f"{option} is for the CPU of this machine, not for --{key} {wrong}")
    if instances and values.get("allocator") in ("jemalloc", "tcmalloc"):
        raise UsageError("--instances runs under perfdash's own settings of malloc: leave --allocator out")
    if str(values.get("jobs", 1)) != "1":
        raise UsageError(f"{option} measures one case at a time: leave --jobs {values['jobs']} out")
    cores = topology.available(topology.parse_cores(str(values["cores"])) if values.get("cores") else None)
    if takes_socket:
        socket = topology.one_socket(cores)
        values = {
            **values,
            "threads": len(socket),
            "cores": topology.format_cores(socket),
            "bind_memory": True,
        }
        cores = [core for core in cores if core.first in socket]
    if instances:
        count, threads = topology.parse_instances(str(instances))
        if not takes_socket and str(values.get("threads", threads)) != str(threads):
            raise UsageError(
                f"--instances {instances} runs {threads} threads each, --threads says {values['threads']}: "
                "leave --threads out, or give --threads socket"
            )
        places = topology.place_instances(cores, count, threads)
        spelled = ",".join(str(core) for place in places for core in place)
        values = {**values, "threads": threads, "cores": spelled, "bind_memory": True}
    return values


def threads_of_a_socket(cores: str | None) -> int:
    """How many threads configuration `socket` has on this machine, among the cores of --cores."""
    from perfdash import topology

    return len(topology.one_socket(topology.available(topology.parse_cores(cores) if cores else None)))


def judging_rules() -> tuple[SeriesRule, ...]:
    """The rules of [[thresholds]] in perfdash.toml. Raises UsageError for wrong ones."""
    path = Path.cwd() / CONFIG_FILE
    return read_rules(_read_toml(path).get("thresholds", []), str(path))


def model_owners() -> Owners:
    """Who owns which models, by [owners] in perfdash.toml. Raises UsageError for wrong ones."""
    path = Path.cwd() / CONFIG_FILE
    return read_owners(_read_toml(path).get("owners", {}), str(path))


class BisectSettings(BaseModel):
    """The table [bisect] of perfdash.toml: what `perfdash bisect` takes where a flag is not given.

    command: measured instead of a model; words, or one text as for a shell.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str | None = None
    repo: Path | None = None
    wheels: str | None = None
    suite: str | None = None
    model: str | None = None
    metric: str | None = None
    command: tuple[str, ...] | None = None

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return shlex.split(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_thing(self) -> BisectSettings:
        if self.command and (self.suite or self.model):
            raise ValueError("give either 'command' or 'suite' and 'model'")
        if self.suite and not self.model:
            raise ValueError("'suite' needs 'model'")
        return self


def bisect_settings() -> BisectSettings:
    """[bisect] of perfdash.toml; PERFDASH_BISECT_<KEY> comes first. Raises UsageError for a wrong one."""
    path = Path.cwd() / CONFIG_FILE
    table = _read_toml(path).get("bisect", {})
    _bisect_table(table, f"{path}: [bisect]")
    named = {key: os.environ.get(f"PERFDASH_BISECT_{key.upper()}") for key in BisectSettings.model_fields}
    return _bisect_table({**table, **{k: v for k, v in named.items() if v}}, "PERFDASH_BISECT_*, [bisect]")


def bisect_origins() -> dict[str, str]:
    """Where each key of bisect_settings that is set comes from."""
    path = Path.cwd() / CONFIG_FILE
    origins = {key: f"{path.name} [bisect] {key}" for key in _read_toml(path).get("bisect", {})}
    variables = {key: f"PERFDASH_BISECT_{key.upper()}" for key in BisectSettings.model_fields}
    return origins | {key: name for key, name in variables.items() if os.environ.get(name)}


def _bisect_table(table: Any, where: str) -> BisectSettings:
    keys = ", ".join(BisectSettings.model_fields)
    if not isinstance(table, dict):
        raise UsageError(f"{where} must be a table; its keys are: {keys}")
    for key in table:
        if key not in BisectSettings.model_fields:
            near = did_you_mean(key, BisectSettings.model_fields)
            raise UsageError(f"{where} has no key {key!r}{near}; there are: {keys}")
    try:
        return BisectSettings(**table)
    except (ValidationError, ValueError) as error:
        if not isinstance(error, ValidationError):
            raise UsageError(f"{where} command: {error}") from error
        first = error.errors()[0]
        key = f" {first['loc'][0]}" if first["loc"] else ""
        raise UsageError(f"{where}{key}: {in_words(first)}") from error


def shown(settings: RunSettings) -> dict[str, Any]:
    """The settings as plain JSON values, without what is nobody's business: passwords, secret variables."""
    from urllib.parse import urlsplit

    values: dict[str, Any] = _with_infinities(settings.model_dump(mode="json"))
    if settings.db and has_password(settings.db):
        parts = urlsplit(settings.db)
        values["db"] = f"{parts.scheme}://***@{parts.netloc.rpartition('@')[2]}{parts.path}"
    return values


def _with_infinities(value: Any) -> Any:
    """JSON has no infinity; RunSettings reads this text as one."""
    if isinstance(value, dict):
        return {key: _with_infinities(entry) for key, entry in value.items()}
    return "inf" if value == math.inf else value


def refuse_password(address: str, where: str) -> None:
    """Raises UsageError for an address with a password where others see it."""
    if has_password(address):
        raise UsageError(
            f"{where}: a password is seen there by others; put the address into PERFDASH_DB, or the "
            "password into PGPASSWORD or ~/.pgpass"
        )


def has_password(address: str) -> bool:
    """Whether the address of a history holds a password."""
    before, at, _ = address.partition("://")[2].rpartition("@")
    return (bool(at) and ":" in before) or "password=" in address.lower()


def _file_settings(path: Path) -> dict[str, tuple[Any, str]]:
    """(value, place in the file) of each setting. Raises UsageError for what the file may not say."""
    data = _read_toml(path)
    for key in data:
        if key not in ("run", "bisect", "torchbench", "thresholds", "owners"):
            raise UsageError(
                f"{path}: unknown table or key {key!r}. Settings of runs belong into [run], the checkout of "
                "torchbench into [torchbench], judging rules into [[thresholds]], owners of models into "
                "[owners], defaults of `perfdash bisect` into [bisect]"
            )
    read_rules(data.get("thresholds", []), str(path))
    read_owners(data.get("owners", {}), str(path))
    _bisect_table(data.get("bisect", {}), f"{path}: [bisect]")
    run = data.get("run", {})
    checkout = data.get("torchbench", {})
    if not isinstance(run, dict):
        raise UsageError(f"{path}: 'run' must be a table")
    for key in run:
        if key not in RunSettings.model_fields:
            keys = ", ".join(RunSettings.model_fields)
            near = did_you_mean(key, RunSettings.model_fields)
            raise UsageError(f"{path}: [run] has no key {key!r}{near}; there are: {keys}")
    if not isinstance(checkout, dict) or set(checkout) - {"path"}:
        raise UsageError(f"{path}: [torchbench] has one key, path: the folder of a checkout")
    settings = {key: (value, f"[run] {key}") for key, value in run.items()}
    if checkout:
        settings["torchbench"] = checkout["path"], "[torchbench] path"
    return settings


def _read_toml(path: Path) -> dict[str, Any]:
    """The file's tables; none without a file. Raises UsageError for a file that cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error


def _items(value: Any) -> Any:
    """`a,b` and ["a,b", "c"] as a list."""
    items = [value] if isinstance(value, (str, int)) else value
    if not isinstance(items, (list, tuple)):
        return value
    return [part.strip() if isinstance(part, str) else part for item in items for part in _split(item)]


def _table(value: Any, name: str) -> Any:
    """["KEY=VALUE", ...] as a table. Values are read as JSON where they are, but not those of env."""
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, (list, tuple)) and name == "phase_timeout":
        value = [part for item in value for part in _split(item)]
    if not isinstance(value, (list, tuple)):
        return value
    table: dict[str, Any] = {}
    for item in value:
        key, equals, text = str(item).partition("=")
        if not (key and equals):
            raise ValueError(f"{item!r} is not KEY=VALUE: write it like {_EXAMPLES.get(name, 'KEY=VALUE')}")
        if name == "inductor_config" and (second := re.search(r",([\w.]+)=", text)):
            raise ValueError(f"{item!r} sets {key} and {second[1]}: give the option once for each")
        table[key] = text if name == "env" else _literal(text)
    return table


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
