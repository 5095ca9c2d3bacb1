"""What a nightly has to leave in the history.

`heartbeat.py expected SUITES DTYPES` reads devices and threads, a line each, and prints the expected results:
suite, device, dtype and, if it is known, threads. `heartbeat.py recorded FOLDERS...` prints those of the runs
that belong in the history.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from perfdash.errors import UsageError
from perfdash.settings import resolve
from perfdash.suites.case_selection import ways
from perfdash.suites.torchbench_checkout import suite_named

# Settings that choose among the cases of a suite, or keep a run out of the history.
_CHOOSING = ("configuration", "models", "no_history", "shard")


def expected(suites: Sequence[str], dtypes: Sequence[str], cells: Iterable[str]) -> list[str]:
    """The results of the cells ("DEVICE THREADS"), by the settings that `perfdash run` takes.

    None if PERFDASH_* or perfdash.toml choose among the cases. Raises UsageError for wrong settings.
    """
    lines = []
    for device, threads in map(str.split, cells):
        known = "" if threads == "socket" else threads  # how many a socket has is known where it is measured
        settings = resolve({"device": device, "dtype": dtypes, "threads": known or None})[0]
        if any(getattr(settings, name) for name in _CHOOSING):
            return []
        for given in suites:
            try:
                suite = suite_named(given, settings.torchbench)
            except UsageError:  # a file or checkout of another machine: name and dtypes are not known here
                continue
            measured = dict.fromkeys(dtype for _, dtype in ways(suite, settings, settings.backend))
            lines += [f"{suite.name} {device} {dtype} {known}".rstrip() for dtype in measured]
    return lines


def is_recorded(folder: str) -> bool:
    """Whether a run belongs in the history: a shard or a run with --no-history is not missed there."""
    try:
        info: dict[str, Any] = json.loads(Path(folder, "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return not (info.get("plan", {}).get("shard") or info.get("configuration", {}).get("no_history"))


def main() -> None:
    mode, *words = sys.argv[1:]
    if mode == "recorded":
        lines = list(filter(is_recorded, words))
    else:
        suites, dtypes = (word.replace(",", " ").split() for word in words)
        try:
            lines = expected(suites, dtypes, sys.stdin)
        except UsageError as error:
            sys.exit(str(error))
    sys.stdout.buffer.write(b"".join(os.fsencode(line) + b"\n" for line in lines))


if __name__ == "__main__":
    main()
