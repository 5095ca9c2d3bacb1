"""The command that measures a case again as it was measured."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from perfdash.records import Case

# Where the models came from, where it was not one of perfdash's own suites.
_SOURCES = ("--suite", "--model", "--torchbench")


def command(case: Case, setting: Mapping[str, Any] | None = None, ran: Sequence[str] = ()) -> str:
    """One line for a shell. `setting` is that of the testbed; `ran` the command line of the run."""
    source = _source(case, ran)
    parts = ["perfdash", "run", *source]
    if "--model" not in source:
        parts += ["--models", pattern(case.model)]
    parts += ["--batch-size", str(case.batch_size)] if case.batch_size else []
    parts += ["--threads", str(case.threads), "--dtype", case.dtype]
    if case.amp_dtype:
        parts += ["--amp-dtype", case.amp_dtype]
    for flag, value, default in (
        ("--device", case.device, "cpu"),
        ("--backend", case.backend, "inductor"),
        ("--scenario", case.scenario, "inference"),
    ):
        parts += [flag, value] if value != default else []
    if case.dynamic:
        parts.append("--dynamic")
    return shlex.join([*parts, *_settings(setting or {})])


def pattern(model: str) -> str:
    """What --models matches this model with, and nothing else: the option takes wildcards."""
    return re.sub(r"[][?*]", lambda match: f"[{match[0]}]", model)


def _source(case: Case, ran: Sequence[str]) -> list[str]:
    """The suite by its name, or by the file, checkout or model that the run was given alone."""
    given = [(flag, ran[place + 1]) for place, flag in enumerate(ran[:-1]) if flag in _SOURCES]
    if len(given) == 1 and (given[0][0] != "--suite" or given[0][1].endswith(".toml")):
        return list(given[0])
    return ["--suite", case.suite]


def _settings(setting: Mapping[str, Any]) -> list[str]:
    parts: list[str] = []
    for name in ("allocator", "compile_mode", "weights"):
        if setting.get(name):
            parts += [f"--{name.replace('_', '-')}", str(setting[name])]
    for name in ("env", "inductor_config"):
        for key, value in (setting.get(name) or {}).items():
            text = value if isinstance(value, str) else json.dumps(value)
            parts += [f"--{name.replace('_', '-')}", f"{key}={text}"]
    if setting.get("side_by_side"):
        parts += ["--jobs", str(setting["side_by_side"])]
    return parts
