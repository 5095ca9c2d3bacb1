"""What a user asks of `perfdash bisect`: checked, and in the form that the journal keeps."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfdash.errors import UsageError
from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.bisection.recipes import Recipe
    from perfdash.bisection.sources import Where
    from perfdash.metrics import Metric
    from perfdash.settings import RunSettings
    from perfdash.suites.cases import Planned

HIDDEN = "***"
_RUN = (
    "suite", "device", "dtype", "amp_dtype", "backend", "scenario", "dynamic", "threads", "cores",
    "torchbench", "python", "allocator", "weights", "compile_mode", "inductor_config", "env", "timeout",
    "processes", "out", "db", "batch_size", "no_history", "optimizer",
)  # fmt: skip
_LARGEST_FILE = 1 << 20  # of a command: larger ones are data, not scripts


@dataclass(frozen=True)
class BisectionRequest:
    """Plain values. repo, pin_repos: absolute paths. wheels: without a password."""

    good: str
    bad: str
    recipe: str
    repo: str | None = None
    wheels: str | None = None
    first_parent: bool = True
    pin_repos: dict[str, str] = field(default_factory=dict)
    priors: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    jobs: int = 1
    confidence: float = 0.9
    minimum_change: float = 0.0
    confirm: bool = True
    revert: bool = False

    def to_json(self) -> dict[str, Any]:
        """For the journal."""
        return asdict(self)


def read_asked(flags: Mapping[str, Any], command: Sequence[str] | None) -> BisectionRequest:
    """From the command line. Raises UsageError."""
    for name in ("good", "bad"):
        if not flags[name]:
            raise UsageError(f"--{name} is missing: between which two revisions? (good is the older one)")
    repo = flags["repo"]
    recipe = flags["recipe"] or ("command" if command else "git")
    return BisectionRequest(
        good=flags["good"],
        bad=flags["bad"],
        recipe=_absolute_recipe(recipe),
        repo=os.path.abspath(repo.expanduser()) if repo else None,
        wheels=absolute_wheels(flags["wheels"]),
        first_parent=not flags["all_commits"],
        pin_repos={
            name: os.path.abspath(path) for name, path in pairs(flags["pin_repo"], "--pin-repo").items()
        },
        priors={
            pattern: _weight(pattern, text) for pattern, text in pairs(flags["prior"], "--prior").items()
        },
        settings=recipe_settings(flags["settings"]),
        jobs=flags["jobs"] or 1,
        confidence=flags["confidence"] or 0.9,
        minimum_change=flags["minimum_change"] or 0.0,
        confirm=flags["confirm"],
        revert=flags["revert"],
    )


def recipe_settings(given: Sequence[str] | None) -> dict[str, Any]:
    """What --set says, by key. Raises UsageError."""
    return {key: _literal(text) for key, text in pairs(given, "--set").items()}


def asked_from_json(data: Mapping[str, Any]) -> BisectionRequest:
    """The inverse of BisectionRequest.to_json. Raises UsageError for one of a newer perfdash."""
    try:
        return BisectionRequest(**data)
    except TypeError as error:
        raise UsageError(f"it was begun by another perfdash: {error}") from error


def without_secrets(asked: BisectionRequest) -> BisectionRequest:
    """As it may be written down: what is left out is HIDDEN, and asked for when it is resumed."""
    from perfdash.bisection.sources.git_repository import without_credentials
    from perfdash.redaction import mask_secrets

    settings = {}
    for key, value in asked.settings.items():
        pairs_of = [f"{name}={one}" for name, one in value.items()] if isinstance(value, dict) else []
        pairs_of.append(f"{key}={value}")
        settings[key] = value if mask_secrets(pairs_of) == pairs_of else HIDDEN
    wheels = without_credentials(asked.wheels) if asked.wheels else asked.wheels
    return replace(asked, wheels=wheels, settings=settings)


def where(asked: BisectionRequest, python: str, cores: Sequence[int]) -> Where:
    """Where revisions come from and what they are laid over. Raises UsageError."""
    from perfdash.bisection.sources import Where

    found = python if os.sep in python else shutil.which(python)
    if not found or not os.access(found, os.X_OK):
        raise UsageError(f"--python {python}: there is no such interpreter")
    return Where(
        python=Path(os.path.abspath(found)),
        repo=Path(asked.repo) if asked.repo else None,
        links=asked.wheels,
        first_parent=asked.first_parent,
        cores=tuple(cores),
        builders=asked.jobs,
    )


def rungs(asked: BisectionRequest) -> tuple[Recipe, ...]:
    """The recipes, each with the --set that are meant for it. Raises UsageError."""
    from perfdash.bisection.recipes import load_recipes

    found = load_recipes(asked.recipe)
    if len(found) == 1:
        return (found[0].with_settings(asked.settings),) if asked.settings else found
    chosen = []
    for recipe in found:
        mine = {
            key: value
            for key, value in asked.settings.items()
            if key.startswith("versions.") == (recipe.kind == "versions")
        }
        chosen.append(recipe.with_settings(mine) if mine else recipe)
    return tuple(chosen)


def run_settings(flags: Mapping[str, Any], metric: str | None) -> RunSettings:
    """How it is measured, as in `perfdash run`. Raises UsageError."""
    from perfdash.settings import resolve

    said = {name: flags.get(name) for name in _RUN}
    if flags["suite"] and flags["model"]:
        said["models"] = [glob.escape(flags["model"]).replace(",", "?")]  # wildcards and commas name no other
    elif flags["model"]:
        said["model"] = [flags["model"]]
    if metric == "eager" and not flags["backend"]:
        said["backend"] = ["eager"]  # nothing has to be compiled
    settings = resolve(said)[0]
    return settings.model_copy(
        update={"jobs": 1, "executor": "local", "scheduler": None, "shard": None, "costs": None}
    )


def planned_case(settings: RunSettings) -> Planned:
    """The one case that is measured. Raises UsageError where there is none, or several."""
    from perfdash.runner.plan import make_plan

    if not settings.model and not settings.models:
        raise UsageError(
            "what is measured? give --suite S --model M, --model file.py:function, or -- a command"
        )
    cases = make_plan(settings, uncut=True)[0].cases
    if len(cases) != 1:
        names = ", ".join(each.case.name for each in cases[:4])
        raise UsageError(f"one case at a time is bisected, and these are {len(cases)}: {names} ...")
    if cases[0].skip_reason:
        raise UsageError(f"{cases[0].case.model} is not measured: {cases[0].skip_reason}")
    return cases[0]


def harness(
    metric: Metric, planned: Planned | None, command: Sequence[str] | None, settings: RunSettings
) -> str:
    """A digest of all that decides what a measurement says, beside the build: measurements with another
    one must not be mixed with these.
    """
    import perfdash
    from perfdash.records import to_json
    from perfdash.redaction import mask_secrets

    package = Path(perfdash.__file__).parent
    sources = [] if command else [package / name for name in ("records.py", "methods.py")]
    sources += [] if command else sorted((package / "worker").rglob("*.py"))
    if planned and planned.loader == "python":
        sources.append(Path(planned.target.rpartition(":")[0]))
    if planned and planned.backend_file:
        sources.append(Path(planned.backend_file))
    sources += [path for word in command or () if (path := Path(word)).is_absolute() and _is_script(path)]
    case = to_json(planned) if planned else {}
    case["env"] = mask_secrets([f"{key}={value}" for key, value in case.get("env", {}).items()])
    said = {
        "metric": metric.name if command else "",  # any metric is in the record of a case
        "case": case,
        "command": mask_secrets(list(command or ())),
        "processes": settings.processes,
        "allocator": settings.allocator,
        "weights": settings.weights,
        "compile_mode": settings.compile_mode,
        "inductor_config": settings.inductor_config,
        "threads": settings.threads,
        "timeout": settings.timeout,
    }
    digest = hashlib.sha256(dumps(said, sort_keys=True).encode())
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def pairs(given: Sequence[str] | None, flag: str) -> dict[str, str]:
    """["KEY=VALUE", ...] as a table. Raises UsageError."""
    found = {}
    for item in given or ():
        key, equals, text = item.partition("=")
        if not (key and equals):
            raise UsageError(f"{flag} {item!r} is not KEY=VALUE")
        found[key] = text
    return found


def refuse_script_of_the_checkout(command: Sequence[str], repo: str | None) -> None:
    """Raises UsageError for a script by its whole path beside the packages of the user's checkout.

    Python looks beside the script first: the checkout would be measured for every revision.
    """
    if repo is None:
        return
    tops = {os.path.realpath(repo), os.path.realpath(os.path.join(repo, "src"))}
    for word in command:
        if word.endswith(".py") and os.path.isabs(word) and os.path.dirname(os.path.realpath(word)) in tops:
            raise UsageError(
                f"{word} lies in the checkout itself, so Python would import what lies beside it there, and "
                f"not what was built: give it as {os.path.basename(word)} (then each revision's own is run), "
                "or a copy of it elsewhere"
            )


def _weight(pattern: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 < weight < 1e9:
        raise UsageError(
            f"--prior {pattern}={text}: the weight is a number above 0; files without one have 1"
        )
    return weight


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_script(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _LARGEST_FILE


def _absolute_recipe(text: str) -> str:
    """A recipe file of the user's by its whole path, so that it can be gone on with from elsewhere."""
    words = []
    for word in text.split(","):
        file, suffix, argument = word.strip().partition(".toml")
        words.append(
            os.path.abspath(os.path.expanduser(file)) + suffix + argument if suffix else word.strip()
        )
    return ",".join(words)


def absolute_wheels(text: str | None) -> str | None:
    """An address as it is, a folder by its whole path."""
    if not text or "://" in text:
        return text
    return os.path.abspath(os.path.expanduser(text))
