"""Configurations: named settings under which cases are run, one TOML file each (`configurations/`).

A file holds options of `perfdash run` by their names: those of a case, not of the machine or the selection.
Read here, and refused where they contradict the options of the run.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WrapValidator,
    create_model,
)

from perfdash.errors import UsageError
from perfdash.files import bundled
from perfdash.records import DEFAULT_CONFIGURATION, Case, Option, Specification, declared_options
from perfdash.redaction import mask_variables
from perfdash.run_options import configuration_keys, without_none
from perfdash.settings import RunSettings, threads_of_a_socket, validated_type
from perfdash.suggestions import did_you_mean
from perfdash.validation_messages import predicate
from perfdash.worker import registry

_LONGEST = 1000  # characters of a case's settings: they are part of a key in the history
# Options that are fields of a case: the others are in its `settings`.
OF_A_CASE = frozenset({"backend", "dtype", "amp_dtype", "threads", "dynamic", "scenario"})


def _of_one_case(name: str, kind: Any) -> Any:
    """The type of an option of one case: an item of what a run takes several of, e.g. dtypes."""
    is_list = get_origin(kind) is tuple and name not in declared_options(Specification)
    return get_args(kind)[0] if is_list else kind


def _with_words(kind: Any, option: Option) -> Any:
    """The type of an option that also takes its words, as they are."""
    if not option.words:
        return kind

    def word_or(value: Any, check: Any) -> Any:
        return value if value in option.words else check(value)

    return Annotated[kind, WrapValidator(word_or), PlainSerializer(lambda value: value)]


if TYPE_CHECKING:

    class _ConfigurationKeys(BaseModel): ...

else:
    _ConfigurationKeys = create_model(
        "_ConfigurationKeys",
        __config__=ConfigDict(extra="forbid", frozen=True),
        **{
            name: (
                _with_words(validated_type(_of_one_case(name, without_none(kind)), option), option) | None,
                None,
            )
            for name, (kind, option) in configuration_keys().items()
        },
    )


class Configuration(_ConfigurationKeys):
    """A configuration file. `devices`, `scenarios`: those it is for; elsewhere its cases are skipped.

    The other keys are options of a run, None where it leaves the run's.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=60)
    title: str = ""
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")
    scenarios: tuple[str, ...] = ()

    @functools.cached_property
    def values(self) -> dict[str, Any]:
        """The options that it sets, as plain values, by name."""
        return self.model_dump(mode="json", include=set(configuration_keys()), exclude_none=True)

    @functools.cached_property
    def settings(self) -> str:
        """What it sets beside the fields of a case, as JSON; empty for nothing: Case.settings."""
        options = {key: value for key, value in self.values.items() if key not in OF_A_CASE}
        return _as_text({**options, "env": mask_variables(options.get("env", {}))})

    def reason_against(self, case: Case, scenario: str) -> str | None:
        """Why a case cannot be run under it; None where it can. `scenario`: without the configuration."""
        for key, value, taken in (
            ("devices", case.device, self.devices),
            ("scenarios", scenario, self.scenarios),
        ):
            if taken and value not in taken:
                return f"configuration {self.name} is for {key} {', '.join(taken)}, not for {value}"
        backend = self.values.get("backend", "")
        if backend and not backend.endswith(".py") and case.backend not in registry.names("backends"):
            return f"this perfdash has no back end {case.backend}, which configuration {self.name} needs"
        return None

    def applied(self, settings: RunSettings) -> RunSettings:
        """The settings of a run as its cases under this configuration have them.

        Raises UsageError where the run's options say otherwise, or set a key of a table once more.
        """
        changed: dict[str, Any] = {}
        for key, value in self.values.items():
            flag = f"--{key.replace('_', '-')}"
            given, usual = getattr(settings, key), RunSettings.model_fields[key].default
            if key == "threads":
                if settings.instances:
                    raise UsageError(
                        f"--instances {settings.instances} sets the threads, and so does configuration "
                        f"{self.name}; leave one of the two out"
                    )
                value = threads_of_a_socket(settings.cores) if value == "socket" else value
            if isinstance(value, dict):
                if twice := sorted(set(given) & set(value)):
                    raise UsageError(
                        f"{flag} {twice[0]}={given[twice[0]]}: configuration {self.name} sets {twice[0]} to "
                        f"{_spelled(value[twice[0]])}; leave one of the two out"
                    )
                changed[key] = {**given, **value}
                continue
            value = tuple(value) if isinstance(value, list) else value
            several = isinstance(given, tuple) and not isinstance(value, tuple)
            given_one = given[0] if several and len(given) == 1 else given
            if given != usual and given_one != value:
                said = ",".join(map(str, given)) if isinstance(given, tuple) else _spelled(given)
                raise UsageError(
                    f"{flag} {said}: configuration {self.name} sets it to {_spelled(value)}; leave one of "
                    "the two out"
                )
            changed[key] = (value,) if several else value
        return settings.model_copy(update=changed)


def _as_text(options: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in options.items() if value not in (None, {}, "")}
    return json.dumps(rest, sort_keys=True, separators=(",", ":")) if rest else ""


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def configuration_names() -> list[str]:
    """The configurations that ship with perfdash: `default` first, the others in alphabetical order."""
    names = sorted(path.stem for path in bundled("configurations").glob("*.toml"))
    return sorted(names, key=lambda name: name != DEFAULT_CONFIGURATION)


def load_configuration(name_or_path: str) -> Configuration:
    """A configuration by name or by the path of its file. Raises UsageError that names file and key."""
    path = Path(name_or_path).expanduser()
    if path.suffix != ".toml":
        path = bundled("configurations") / f"{name_or_path}.toml"
        if name_or_path not in configuration_names():
            hint = did_you_mean(name_or_path, configuration_names())
            raise UsageError(
                f"no configuration named {name_or_path!r}{hint}; there are: "
                f"{', '.join(configuration_names())} (a file of your own is given by its path, ending in "
                ".toml)"
            )
    elif path.stem in configuration_names() and path.resolve().parent != bundled("configurations").resolve():
        raise UsageError(
            f"configuration file {path}: {path.stem} is one of perfdash's own: call the file otherwise"
        )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"--configuration {name_or_path}: the file {path.absolute()} cannot be read: {error.strerror}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"configuration file {path} is not valid TOML: {error}") from error
    if "name" in data:
        raise UsageError(f"configuration file {path}: key 'name': a configuration is named by its file")
    try:
        configuration = Configuration(**data, name=path.stem)
    except ValidationError as error:
        raise UsageError(f"configuration file {path}: {_explained(error)}") from error
    return _checked(configuration, path)


def _checked(configuration: Configuration, path: Path) -> Configuration:
    where = f"configuration file {path}: key"
    if configuration.name == DEFAULT_CONFIGURATION and configuration.values:
        key = next(iter(configuration.values))
        raise UsageError(f"{where} '{key}': the configuration default sets nothing; give it another name")
    own = {str(value) for key, value in configuration.values.items() if key == "scenario"}
    if unknown := sorted((own | set(configuration.scenarios)) - set(registry.names("scenarios"))):
        key = "scenarios" if unknown[0] in configuration.scenarios else "scenario"
        raise UsageError(
            f"{where} '{key}': no scenario named {unknown[0]!r}; "
            f"there are: {', '.join(registry.names('scenarios'))}"
        )
    if len(configuration.settings) > _LONGEST:
        raise UsageError(
            f"configuration file {path}: it sets {len(configuration.settings)} characters of options, and "
            f"{_LONGEST} are allowed: put the rest into a back end of your own"
        )
    return configuration


def _explained(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        keys = [*configuration_keys(), "title", "devices", "scenarios"]
        return f"unknown key '{key}'{did_you_mean(key, keys)}; there are: {', '.join(keys)}"
    more = f" ({len(error.errors()) - 1} more)" if len(error.errors()) > 1 else ""
    return f"key '{key}'{predicate(first)}{more}"


def chosen(names: Sequence[str]) -> list[Configuration]:
    """The configurations of a run, in order.

    Raises UsageError, also where two have one name or set the same.
    """
    configurations = [load_configuration(name) for name in dict.fromkeys(names)]
    by_name: dict[str, Configuration] = {}
    by_values: dict[str, Configuration] = {}
    for configuration in configurations:
        if configuration.name in by_name:
            raise UsageError(f"--configuration: two files are called {configuration.name}: rename one")
        by_name[configuration.name] = configuration
        values = json.dumps(configuration.values, sort_keys=True)
        if values in by_values:
            raise UsageError(
                f"--configuration: {by_values[values].name} and {configuration.name} set the same; give one"
            )
        by_values[values] = configuration
    return configurations


@functools.cache
def _shipped() -> tuple[Configuration, ...]:
    return tuple(load_configuration(name) for name in configuration_names())


def settings_of_options(options: Mapping[str, Any]) -> str | None:
    """Case.settings of the shipped configuration that sets just these options; None where there is none.

    A run with `--inductor-config freezing=1` measured what the configuration freezing measures. `options`:
    those of a run that differ from their defaults, without the fields of a case.
    """
    return next((settings for own, settings in _shipped_options() if own == options), None)


@functools.cache
def _shipped_options() -> tuple[tuple[dict[str, Any], str], ...]:
    """What each shipped configuration sets beside the fields of a case, and that as Case.settings."""
    options = [
        ({key: value for key, value in configuration.values.items() if key not in OF_A_CASE}, configuration)
        for configuration in _shipped()
        if configuration.values.get("threads") != "socket"  # a run with --threads socket has bound memory
    ]
    return tuple((own, configuration.settings) for own, configuration in options if own)


def named(case: Case) -> Case:
    """The case with the name of the shipped configuration that has its settings, where it has no name yet.

    Of several the one that says most of the case. A back end alone is no configuration: it has its own name.
    """
    if case.configuration != DEFAULT_CONFIGURATION or not (case.settings or case.dynamic):
        return case
    alike = [
        configuration
        for configuration in _shipped()
        if configuration.settings == case.settings
        and (case.settings or configuration.values.get("dynamic"))
        and all(
            getattr(case, key) == configuration.values[key] for key in OF_A_CASE & configuration.values.keys()
        )
    ]
    if not alike:
        return case
    return replace(case, configuration=max(alike, key=lambda each: len(each.values)).name)
