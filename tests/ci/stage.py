"""A perfdash that only pretends, under ci/nightly.sh: what it was called with, what it is told to answer."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path

from tests.ci.nights import NIGHTLY, Night, stamp_environment, variables, with_quick_tail

# run: leaves a folder with a run.json, as perfdash does. `fail-COMMAND` holds an exit code; `fail-run-cpu`
# and `fail-run-2-2` make the runs of a device or shard fail; `taken-cpu-1.1.xml` makes that run end without a
# folder; `hang` makes a run wait for an interrupt. Each call is a line of `calls`; the variables that were
# secret, of `secrets`.
# A night calls it a dozen times: it imports what Python has loaded anyway, and json where it needs it.
_PERFDASH = """#!{python} -IS
import os, sys, time
home, words = {home!r}, sys.argv[1:]
name = words[0] if words[0] != "nightly" else "heartbeat"
def put(path, text, mode="w"):
    with open(path, mode) as file:
        file.write(text)
def get(path, otherwise):
    if not os.path.exists(path):
        return otherwise
    with open(path) as file:
        return file.read()
def free(out, name):
    paths = (f"{{out}}/{{name}}{{n}}" for n in range(1, 99))
    return next(path for path in paths if not os.path.exists(path))
put(home + "/calls", " ".join(words) + "\\n", "a")
kept = [key for key, value in os.environ.items() if "s3cret" in value]
put(home + "/secrets", " ".join([name, *sorted(kept)]) + "\\n", "a")
option = lambda flag: words[words.index(flag) + 1] if flag in words else None
if name == "run":
    import json
    folder = option("--resume")
    if folder is None:
        if os.path.exists(home + "/taken-" + os.path.basename(option("--junit") or "")):
            print("the cores are taken")
            sys.exit(3)
        folder = free(option("--out"), "run")
        os.makedirs(folder)
        plan = {{"shard": option("--shard"), "fingerprint": option("--device")}}
        put(folder + "/run.json", json.dumps({{"command": words, "plan": plan}}))
    try:
        while os.path.exists(home + "/hang"):
            put(home + "/hangs", "")
            time.sleep(0.05)
    except KeyboardInterrupt:
        print("Interrupted")
        sys.exit(130)
    of_which = (option("--device"), (option("--shard") or "").replace("/", "-"))
    if any(os.path.exists(f"{{home}}/fail-run-{{one}}") for one in of_which if one):
        sys.exit(3)
    print("Saved in", folder)
if name == "merge-shards":
    import json
    out = free(option("--out"), "whole")
    os.mkdir(out)
    state = "incomplete" if os.path.exists(home + "/incomplete") else "done"
    shards = [folder for folder in words[1:] if os.path.exists(folder + "/run.json")]
    sessions = [json.loads(get(folder + "/run.json", "")) for folder in shards]
    merged = {{"state": state, "plan": {{}}, "merged_from": shards, "sessions": sessions}}
    put(out + "/run.json", json.dumps(merged))
    print("Saved in", out)
if name == "history" and "runs" in words:
    print(get(home + "/history.json", '[{{"name": "run1", "testbed_id": 1}}]'))
if name == "regressions" and "--json" in words:
    print(get(home + "/alerts.json", "[]"))
print(name, "did its work", file=sys.stderr)
code = get(home + "/fail-" + name, None)
if code is not None:
    print("perfdash:", name, "is told to fail", file=sys.stderr)
    print("perfdash", *words, file=sys.stderr)  # as post does, to be repeated
    sys.exit(int(code))
"""


class Stage:
    """A home with an environment .venv whose perfdash pretends."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.venv = home / "venv"
        (self.venv / "bin").mkdir(parents=True)
        (self.venv / "bin" / "python").symlink_to(sys.executable)
        perfdash = self.venv / "bin" / "perfdash"
        perfdash.write_text(_PERFDASH.format(python=sys.executable, home=str(home)))
        perfdash.chmod(0o755)
        stamp_environment(self.venv)
        self.env = variables(home, PERFDASH_VENV=str(self.venv), PATH=with_quick_tail(home))

    def copied(self, home: Path) -> Stage:
        """One with the nights of this one, as if they had been in this folder, which is not there yet."""
        shutil.copytree(self.home, home, symlinks=True)
        old, new = str(self.home), str(home)
        for path in home.rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.write_text(path.read_text().replace(old, new))
        stage = copy.copy(self)
        stage.home, stage.venv = home, home / "venv"
        stage.env = {name: value.replace(old, new) for name, value in self.env.items()}
        return stage

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
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
        )  # fmt: skip

    def night(self, *words: str, **more: str) -> Night:
        return self.ended(self.start(*words, **more))

    def script(self, name: str, **more: str) -> subprocess.CompletedProcess[str]:
        """One stage by itself, as it is called by a nightly that has its parameters in the environment."""
        return subprocess.run(
            [NIGHTLY.parent / "nightly" / f"{name}.sh"],
            cwd=self.home, env={**self.env, **more}, text=True, capture_output=True, timeout=400,
        )  # fmt: skip

    def ended(self, process: subprocess.Popen[str]) -> Night:
        out, _ = process.communicate(timeout=400)
        nights = sorted((self.home / "runs" / "nightly").glob("2*"))
        return Night(process.returncode, out, nights[-1] if nights else self.home / "none")

    def calls(self, name: str = "") -> list[str]:
        """What perfdash was called with since the last time it was asked, of one command or of all."""
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        return [line for line in lines if line.startswith(name)]
