"""The command that repeats the measurement of a case."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from perfdash.history.results import RunRow
from perfdash.records import Case
from perfdash.runner.compatibility import measured_variables
from perfdash.suites.suite_file import load_suite, own_models, suite_names

# Where the models came from, where it was not one of perfdash's own suites.
_SOURCES = ("--suite", "--model", "--torchbench")
# What no setting of a testbed has: when a case is ended, and the interpreter.
_OF_RUN = ("--timeout", "--phase-timeout", "--memory-limit", "--output-limit", "--python")
# What the suites of --model and --torchbench are called.
OWN, CHECKOUT = "own", "torchbench-checkout"
# Variables that concern the machine and its programs, not the measurement. Nor do values that are paths.
_OF_THE_MACHINE = re.compile(r"LD_PRELOAD|CC|CXX|CFLAGS|CXXFLAGS|\w+_VERSION")


def command(case: Case, setting: Mapping[str, Any] | None = None, ran: Sequence[str] = ()) -> str:
    """One line for a shell.

    `setting`: of the testbed; `ran`: the command line of the run.
    """
    source = source_of(case, ran)
    parts = ["perfdash", "run", *source]
    if source[0] != "--model" or len(source) > 2:
        parts += ["--models", pattern(case.model)]
    parts += ["--batch-size", str(case.batch_size)] if case.batch_size else []
    parts += ["--threads", str(case.threads), "--dtype", case.dtype]
    if case.amp_dtype:
        parts += ["--amp-dtype", case.amp_dtype]
    for flag, value, default in (
        ("--device", case.device, "cpu"),
        ("--backend", backend_of(case, ran), "inductor"),
    ):
        parts += [flag, value] if value != default else []
    if {case.scenario, *map(_scenario_of, _suites(source))} != {"inference"}:
        parts += ["--scenario", case.scenario]
    if case.dynamic:
        parts.append("--dynamic")
    return shlex.join([*parts, *_settings(with_options(setting or {}, case))])


def command_of_run(case: Case, run: RunRow | None) -> str:
    """`command` of a run that measured the case, with its setting and the variables of its shell as --env.

    Only variables that hold on any machine. A suite file of the user's own may set variables, which --env
    would replace: then there are none.
    """
    if run is None:
        return command(case)
    variables = {
        name: value
        for name, value in measured_variables(run.facts.get("variables") or {}).items()
        if "/" not in value and not _OF_THE_MACHINE.fullmatch(name)
    }
    if {*_suites(source_of(case, run.command))} - {*suite_names(), CHECKOUT}:
        variables = {}
    return command(case, {**run.setting, "env": {**variables, **run.setting.get("env", {})}}, run.command)


def _suites(source: Sequence[str]) -> list[str]:
    """The suites of source_of."""
    return [word for flag, word in pairwise(source) if flag == "--suite"]


@functools.cache
def _scenario_of(suite: str) -> str | None:
    """The scenario that a shipped suite names; inference for other names.

    None for a file of the user's own: it may be on another host, and it is not opened here.
    """
    if suite.endswith(".toml"):
        return None
    return load_suite(suite).scenario if suite in suite_names() else "inference"


def with_options(setting: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """The setting of a run with what the case's configuration sets; tables are put together."""
    merged = dict(setting)
    for name, value in case.options.items():
        merged[name] = {**merged.get(name, {}), **value} if isinstance(value, dict) else value
    return merged


def pattern(model: str) -> str:
    """The value of --models that matches this model only: wildcards and commas are escaped."""
    return re.sub(r"[][?*]", lambda match: f"[{match[0]}]", model).replace(",", "?")


def source_of(case: Case, ran: Sequence[str]) -> list[str]:
    """The options that select the suite, file, checkout or model that the case came from.

    A suite may be named differently from its file: where no file has its name, all files are given.
    """
    given = _given(ran)
    suites, targets, checkouts = ([word for flag, word in given if flag == wanted] for wanted in _SOURCES)
    if len(given) == 1 and not (suites and not suites[0].endswith(".toml")):
        return list(given[0])
    if case.suite == OWN and targets:
        named = [
            model.target for model in own_models(targets).models if model.target and model.name == case.model
        ]
        return [word for target in named[:1] or targets for word in ("--model", target)]
    checkout = ["--torchbench", checkouts[-1]] if checkouts else []
    if case.suite == CHECKOUT and checkout:
        return checkout
    if case.suite in suites:
        return ["--suite", case.suite, *checkout]
    files = [suite for suite in suites if suite.endswith(".toml")]
    named = [file for file in files if PurePath(file).stem == case.suite][:1]
    return [*(word for file in named or files or [case.suite] for word in ("--suite", file)), *checkout]


def backend_of(case: Case, ran: Sequence[str]) -> str:
    """The back end's name, or the user's own file from the run's command line."""
    words = [word for text in ran for word in text.removeprefix("--backend=").split(",")]
    files = [word for word in words if word.endswith(".py")]
    return next(
        (file for file in files if PurePath(file).stem.replace("_", "-") == case.backend), case.backend
    )


def of_run(ran: Sequence[str]) -> dict[str, Any]:
    """The limits of time, memory and output of a command line, and its interpreter, by their names."""
    options: dict[str, Any] = {}
    for flag, value in _values(ran, _OF_RUN):
        name = flag[2:].replace("-", "_")
        options[name] = [*options.get(name, ()), value] if name == "phase_timeout" else value
    return options


def _given(ran: Sequence[str]) -> list[tuple[str, str]]:
    """(option, value) of each source in a command line."""
    sources = []
    for flag, value in _values(ran, _SOURCES):
        sources += [(flag, part) for part in ([value] if flag == "--torchbench" else value.split(","))]
    return list(dict.fromkeys(sources))


def _values(ran: Sequence[str], flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(option, value) of each of some options in a command line."""
    for place, word in enumerate(ran):
        flag, equals, value = word.partition("=")
        if flag in flags and (equals or place + 1 < len(ran)):
            yield flag, value if equals else ran[place + 1]


_ORDER = ("allocator", "compile_mode", "optimizer", "weights")
_TABLES = ("env", "inductor_config")
# What repeats a number is no night of a line.
_NO_FLAGS = ("side_by_side", "side_by_side_of", "compile_cores", "gpus", "line")


def _settings(setting: Mapping[str, Any]) -> list[str]:
    parts: list[str] = []
    for name in _ORDER:
        if setting.get(name):
            parts += [f"--{name.replace('_', '-')}", str(setting[name])]
    for name in _TABLES:
        parts += [word for pair in as_pairs(setting, name) for word in (f"--{name.replace('_', '-')}", pair)]
    for name in sorted(setting.keys() - {*_ORDER, *_TABLES, *_NO_FLAGS}):
        value = setting[name]
        if value is False:
            continue
        value = ",".join(map(str, value)) if isinstance(value, list) else value
        flag = f"--{name.replace('_', '-')}"
        parts += [flag] if value is True else [flag, str(value)]
    if setting.get("side_by_side"):
        parts += ["--jobs", str(setting["side_by_side"])]
    return parts


def as_pairs(setting: Mapping[str, Any], name: str) -> list[str]:
    """A table of a testbed's setting as KEY=VALUE words that parse to the same values."""
    items = (setting.get(name) or {}).items()
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in items]
