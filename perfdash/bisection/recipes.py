"""Recipes: TOML files in `bisect/` that say how revisions are listed and built.

A recipe is plain data; sources/ and environments/ use it. An error names the file and the key.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from perfdash.errors import UsageError
from perfdash.files import bundled
from perfdash.suggestions import did_you_mean
from perfdash.validation_messages import in_words, predicate

_ARGUMENT = "{argument}"


class _RecipeTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class VersionsRecipe(_RecipeTable):
    """The table [versions]: the listed versions of a package, and how dependencies are met.

    dependencies: `base` uses the base interpreter's, and a version that needs others cannot be built; `add`
    installs others beside it; `ignore` does not check.
    """

    package: str = Field(min_length=1)
    pre: bool = False  # also pre-releases and nightlies
    only_binary: bool = False  # only wheels, no source distributions
    order: Literal["version", "date"] = "version"  # date: of `dev20261101` in the version
    dependencies: Literal["base", "add", "ignore"] = "base"
    link: str | None = None  # with {package} and {version}
    time_limit_s: float = Field(default=1800.0, gt=0)
    commit_file: str | None = None  # the file in a wheel that names the commit it was built from
    wheels: str | None = None  # where the wheels are, unless --wheels says otherwise
    commit_pattern: str | None = None  # a regular expression with one group that finds the commit in it

    @field_validator("commit_pattern")
    @classmethod
    def _one_group(cls, value: str | None) -> str | None:
        try:
            if value is not None and re.compile(value).groups != 1:
                raise ValueError("needs exactly one group, ( )")
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        return value


class BuildRecipe(_RecipeTable):
    """The table [build]: a shell command or script that builds a commit.

    It installs into $PREFIX; with `in_place` the worktree is the environment. `incremental` keeps the
    worktree with its ignored files for the next commit.
    """

    command: str | None = Field(default=None, min_length=1)
    script: str | None = Field(default=None, min_length=1)
    in_place: bool = False
    incremental: bool = False
    time_limit_s: float = Field(default=3600.0, gt=0)
    gib_per_job: float = Field(default=2.0, gt=0)  # memory of one compiler, for MAX_JOBS
    disk_gib: float = Field(default=0.5, ge=0)  # free space that a build needs, until one was measured
    cost_s: float = Field(default=60.0, gt=0)  # duration of a build, until one was measured
    env: dict[str, str] = {}

    @model_validator(mode="after")
    def _one_of_each(self) -> BuildRecipe:
        if (self.command is None) == (self.script is None):
            raise ValueError("give either 'command' or 'script'")
        if self.in_place and self.incremental:
            raise ValueError(
                "'in_place' and 'incremental' exclude each other: the next build would change it"
            )
        return self


class Overlay(_RecipeTable):
    """The table [overlay]: files that are copied over a finished build if nothing else differs.

    Patterns as in .gitignore's `**`; `rebuild` are exceptions. `into` maps folders of the repository to
    folders of the environment; files in no such folder are not installed.
    """

    paths: tuple[str, ...] = Field(min_length=1)
    rebuild: tuple[str, ...] = ()
    into: dict[str, str] = {"": ""}


class Pin(_RecipeTable):
    """A table [[pins]]: a dependency whose commit is in a file or a submodule."""

    name: str = Field(min_length=1)
    repository: str = Field(min_length=1)
    file: str | None = None
    submodule: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Pin:
        if (self.file is None) == (self.submodule is None):
            raise ValueError("give either 'file' or 'submodule'")
        return self

    @property
    def place(self) -> str:
        """The path in the repository that holds the commit."""
        return self.file or self.submodule or ""


class Recipe(_RecipeTable):
    """A recipe file. `kind` names its modules: sources/KIND_source.py and environments/KIND_builder.py."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    title: str = ""
    kind: Literal["versions", "commits"]
    versions: VersionsRecipe | None = None
    build: BuildRecipe | None = None
    overlay: Overlay | None = None
    ignore: tuple[str, ...] = ()  # files that no build contains
    pins: tuple[Pin, ...] = ()
    submodules: bool = True
    pythonpath: Literal["auto"] | tuple[str, ...] = "auto"  # folders of the environment
    env: dict[str, str] = {}  # of the measured process
    exclusive: bool = False  # a measurement may change the worktree: one at a time
    path: Path
    argument: str = ""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Recipe:
        if (self.kind == "versions") != (self.versions is not None):
            raise ValueError("the table [versions] goes with kind = 'versions', and only with it")
        if self.kind == "versions" and (self.build or self.overlay or self.pins):
            raise ValueError("[build], [overlay] and [[pins]] go with kind = 'commits'")
        if self.overlay and self.exclusive:
            raise ValueError("[overlay] and 'exclusive' exclude each other: what is laid over would change")
        if self.overlay and not self.build:
            raise ValueError("[overlay] needs a [build] to lay it over")
        return self

    @property
    def script(self) -> Path | None:
        """The build's script, absolute."""
        return self.path.parent / self.build.script if self.build and self.build.script else None

    def identity(self) -> dict[str, Any]:
        """The keys that decide an environment's content, as JSON: all but names and costs."""
        content = self.model_dump(mode="json", exclude={"name", "title", "path", "argument", "pins"})
        for table, costs in (("build", ("time_limit_s", "gib_per_job", "disk_gib", "cost_s")),
                            ("versions", ("link", "order", "pre", "time_limit_s", "commit_file",
                                          "commit_pattern", "wheels"))):  # fmt: skip
            for key in costs:
                (content[table] or {}).pop(key, None)
        if self.script:
            content["script"] = hashlib.sha256(self.script.read_bytes()).hexdigest()
        return content

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """The recipe with other values of some keys: {"build.time_limit_s": 7200}. Raises UsageError."""
        data = self.model_dump(exclude_unset=True)
        for key, value in settings.items():
            *tables, last = key.split(".")
            inner = data
            for table in tables:
                inner = inner.setdefault(table, {})
                if not isinstance(inner, dict):
                    raise UsageError(f"recipe {self.name}: {table!r} in {key!r} is no table")
            inner[last] = value
        return _validated(data, f"recipe {self.name} with {', '.join(settings)}")


def recipe_names() -> list[str]:
    """The names of the recipes that ship with perfdash."""
    return sorted(path.stem for path in bundled("bisect").glob("*.toml"))


def load_recipes(text: str) -> tuple[Recipe, ...]:
    """Load a recipe (`git`, `pypi:timm`, `own.toml`), or the rungs of a ladder (`nightly,git`).

    The coarse rung is first. Raises UsageError for a wrong file, and for rungs that do not fit together.
    """
    rungs = tuple(load_recipe(word.strip()) for word in text.split(","))
    for upper in rungs[:-1]:
        if upper.versions is None or upper.versions.commit_file is None:
            raise UsageError(
                f"--recipe {text}: the upper rungs of a ladder list versions that say which commit they were "
                f"built from (commit_file), and {upper.name!r} does not; there is: nightly,git"
            )
    if len(rungs) > 1 and rungs[-1].kind != "commits":
        raise UsageError(f"--recipe {text}: the last rung of a ladder lists commits, as git does")
    return rungs


def load_recipe(word: str) -> Recipe:
    """Load a recipe by `name`, `name:argument`, or the path of its file. Raises UsageError."""
    path, argument = _file_of(word)
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"recipe file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"recipe file {path} is not valid TOML: {error}") from error
    if _ARGUMENT in text and not argument:
        raise UsageError(f"--recipe {word}: name the package, as in {word}:NAME")
    if argument and _ARGUMENT not in text:
        raise UsageError(f"--recipe {word}: {path.stem} takes nothing after the colon")
    if argument and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", argument):
        raise UsageError(f"--recipe {word}: {argument!r} is no name of a package")
    data = _filled(data, argument)
    return _validated({**data, "path": path.resolve(), "argument": argument}, f"recipe file {path}")


def _file_of(word: str) -> tuple[Path, str]:
    """A recipe's file, and the argument after the colon."""
    own = re.fullmatch(r"(.+\.toml)(?::(.*))?", word)
    if own:
        return Path(own[1]).expanduser(), own[2] or ""
    name, _, argument = word.partition(":")
    path = bundled("bisect") / f"{name}.toml"
    if name not in recipe_names():
        raise UsageError(
            f"no recipe named {name!r}{did_you_mean(name, recipe_names())}; "
            f"there are: {', '.join(recipe_names())} "
            "(a file of your own is given by its path, ending in .toml)"
        )
    return path, argument


def _filled(value: Any, argument: str) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, argument) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, argument) for inner in value]
    return value.replace(_ARGUMENT, argument) if isinstance(value, str) else value


def _validated(data: Mapping[str, Any], where: str) -> Recipe:
    try:
        recipe = Recipe(**data)
    except ValidationError as error:
        raise UsageError(f"{where}: {_complaint(error.errors())}") from error
    except TypeError as error:
        raise UsageError(f"{where}: {error}") from error
    if recipe.script and not recipe.script.is_file():
        raise UsageError(f"{where}: key 'build.script': there is no file {recipe.script}")
    return recipe


def _complaint(errors: Sequence[Any]) -> str:
    """The first error of pydantic, with the key as in the file."""
    first = errors[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key '{key}'"
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"key '{key}'{predicate(first)}{more}" if key else f"{in_words(first)}{more}"
