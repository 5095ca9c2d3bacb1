"""A perfdash that only pretends, under ci/nightly.sh: what it was called with, what it is told to answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.ci.nights import NIGHTLY, Night, stamp_environment, variables

# run: leaves a folder with a run.json, as perfdash does. `fail-COMMAND` holds an exit code; `hang` makes a
# run wait for an interrupt. Each call is a line of `calls`; the variables that were secret, of `secrets`.
_PERFDASH = """#!{python} -IS
import json, os, pathlib, signal, sys, time
home, words = pathlib.Path({home!r}), sys.argv[1:]
name = words[0] if words[0] != "nightly" else "heartbeat"
with open(home / "calls", "a") as calls:
    calls.write(" ".join(words) + "\\n")
with open(home / "secrets", "a") as seen:
    kept = [key for key, value in os.environ.items() if "s3cret" in value]
    seen.write(" ".join([name, *sorted(kept)]) + "\\n")
option = lambda flag: words[words.index(flag) + 1] if flag in words else None
fail = home / ("fail-" + name)
if name == "run":
    out = pathlib.Path(option("--out"))
    if "--resume" in words:
        folder = pathlib.Path(option("--resume"))
    else:
        folder = out / f"run{{len(list(out.glob('run*'))) + 1}}"
        folder.mkdir(parents=True)
        plan = {{"shard": option("--shard"), "fingerprint": option("--device")}}
        (folder / "run.json").write_text(json.dumps({{"command": words, "plan": plan}}))
    def interrupted(*_):
        print("Interrupted")
        sys.exit(130)
    signal.signal(signal.SIGINT, interrupted)
    while (home / "hang").exists():
        (home / "hangs").touch()
        time.sleep(0.05)
    if option("--device") and (home / f"fail-run-{{option('--device')}}").exists():
        sys.exit(3)
    print("Saved in", folder)
if name == "merge":
    out = pathlib.Path(option("--out"))
    out = out / f"merged{{len(list(out.glob('merged*'))) + 1}}"
    out.mkdir()
    state = "incomplete" if (home / "incomplete").exists() else "done"
    (out / "run.json").write_text(json.dumps({{"state": state}}))
    print("Saved in", out)
if name == "regressions" and "--json" in words:
    alerts = home / "alerts.json"
    print(alerts.read_text() if alerts.exists() else "[]")
print(name, "did its work", file=sys.stderr)
if fail.exists():
    code = int(fail.read_text())
    print(name, "is told to fail", file=sys.stderr)
    sys.exit(code)
"""


class Stage:
    """A home with an environment .venv whose perfdash pretends."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.venv = home / "venv"
        (self.venv / "bin").mkdir(parents=True)
        (self.venv / "bin" / "python").symlink_to(sys.executable)
        perfdash = self.venv / "bin" / "perfdash"
        # ci/nightly.sh shows a log by `tail`, which looks three times a second whether the stage has ended.
        tools = home / "tools"
        tools.mkdir()
        tail = tools / "tail"
        tail.write_text(f'#!/bin/bash\nexec {shutil.which("tail")} "${{@/--sleep-interval=*/-s.01}}"\n')
        tail.chmod(0o755)
        perfdash.write_text(_PERFDASH.format(python=sys.executable, home=str(home)))
        perfdash.chmod(0o755)
        stamp_environment(self.venv)
        path = f"{tools}:{os.environ['PATH']}"
        self.env = variables(home, PERFDASH_VENV=str(self.venv), PATH=path)

    def fails(self, name: str, code: int = 3) -> Path:
        """From now on this command does; take the file away to mend it."""
        path = self.home / f"fail-{name}"
        path.write_text(str(code))
        return path

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            # Else a bash could not trap Ctrl-C where the tests themselves run in the background.
            ["env", "--default-signal=INT", NIGHTLY, *words],
            cwd=self.home, env={**self.env, **more}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def night(self, *words: str, **more: str) -> Night:
        return self.ended(self.start(*words, **more))

    def ended(self, process: subprocess.Popen[str]) -> Night:
        out, _ = process.communicate(timeout=120)
        nights = sorted((self.home / "runs" / "nightly").glob("2*"))
        return Night(process.returncode, out, nights[-1] if nights else self.home / "none")

    def calls(self, name: str = "") -> list[str]:
        """What perfdash was called with since the last time it was asked, of one command or of all."""
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        return [line for line in lines if line.startswith(name)]
