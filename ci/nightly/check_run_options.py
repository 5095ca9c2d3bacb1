"""Check the options that a nightly gives to `perfdash run`, `check_run_options.py PARAMETERS -- WORDS`.

`check_run_options.py PARAMETERS --resume WORDS`: those that a resumed nightly gives to its runs. Standard
library only: it runs before perfdash is set up. PARAMETERS are those of the nightly, in one word; a misspelt
one is named in the message. Exit code 2: an option is wrong.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from perfdash.run_options import CHANGED_BY_RESUME, run_options, without_none

_ROOT = Path(__file__).resolve().parents[2]
# What cli/run.py declares itself, and whether a value follows.
_OWN = {"--retry": str, "--find-batch-size": bool, "--json": bool, "--wide": bool, "--debug": bool}


def complaint(parameters: Sequence[str], words: Sequence[str], resumed: bool = False) -> str:
    """What is wrong with the first wrong word, and what to do; empty if all are right."""
    options: dict[str, Any] = {
        f"--{name.replace('_', '-')}": str if option.duration else without_none(kind)
        for name, (kind, option, _) in run_options().items()
    }
    options |= _OWN
    changed = {"--retry", *(f"--{name.replace('_', '-')}" for name in CHANGED_BY_RESUME)}
    waiting = iter(words)
    for word in waiting:
        name, joined, value = word.partition("=")
        if name not in options:
            return _unknown(name, parameters, list(options))
        if name == "--python":
            return (
                "--python: a night measures the torch of TORCH, with UNDER_TEST; the variable PYTHON names "
                "the Python of perfdash's own environment"
            )
        if name == "--retry" and not resumed:
            return "--retry needs --resume: it measures cases of an earlier night again"
        if resumed and name not in changed:
            return f"{name}: a resumed night keeps it; leave it out, or measure all again by --from measure"
        if options[name] is bool:
            if joined:
                return f"{name} takes no value: leave out ={value}"
            continue
        if not joined and (value := next(waiting, None)) is None:
            return f"{name} needs a value"
        if options[name] in (int, float):
            try:
                options[name](value)
            except ValueError:
                return f"{name} {value}: give a {'whole ' if options[name] is int else ''}number"
        choices = _choices(name, options[name])
        for part in value.split(","):
            if choices and part not in choices:
                near = difflib.get_close_matches(part, choices, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                return f"{name} {part}: there are {', '.join(choices)}{hint}"
    return ""


def _choices(name: str, kind: Any) -> list[str]:
    """What an option takes; empty if it takes anything."""
    if name in ("--suite", "--configuration"):
        folder = _ROOT / ("suites" if name == "--suite" else "configurations")
        of_checkout = ["torchbench-checkout"] if name == "--suite" else []
        return sorted(path.stem for path in folder.glob("*.toml")) + of_checkout
    kinds = [kind, *get_args(kind)] if get_origin(kind) is tuple else [kind]
    return [str(choice) for each in kinds if get_origin(each) is Literal for choice in get_args(each)]


def _unknown(name: str, parameters: Sequence[str], options: list[str]) -> str:
    if not name.startswith("-"):
        return f"'{name}' is not an option; ci/nightly.sh --help lists them"
    own = [f"--{parameter.lower().replace('_', '-')}" for parameter in parameters]
    near = difflib.get_close_matches(name, [*own, *options], n=1)
    hint = f"did you mean {near[0]}?" if near else "`perfdash run --help` lists its options"
    return f"there is no option {name}, neither of the nightly nor of perfdash run; {hint}"


def main() -> None:
    parameters, mode, *words = sys.argv[1:]
    if wrong := complaint(parameters.split(), words, resumed=mode == "--resume"):
        print(wrong)
        sys.exit(2)


if __name__ == "__main__":
    main()
