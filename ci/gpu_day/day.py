"""Run a day on a GPU in pieces, as planning.py plans it; ci/gpu_day.sh starts it and says how it is used.

What was done is in OUT/day.json, written after every event: a piece that is killed loses nothing, and the
next call goes on. Results of a run are in OUT/runs/STEP; an unfinished run is resumed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import planning

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 20.0  # for an interrupted run to end its case and to write its results
_BEAT_S = 2.0
PERFDASH = tuple(os.environ.get("PERFDASH_DAY_COMMAND", f"{sys.executable} -m perfdash").split())


class Day:
    """The state of a day, in its folder."""

    def __init__(self, out: Path, device: str, minutes: float) -> None:
        self.out, self.path = out, out / "day.json"
        out.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self.state: dict[str, Any] = json.loads(self.path.read_text())
            if self.state["device"] != device:
                sys.exit(_usage(f"{out} is a day on {self.state['device']}: give another --out"))
            self.state["minutes"] = minutes
            for known in self.state["steps"].values():
                if known["state"] == "failed" and known.get("code") == 3:  # the machine may be mended since
                    known["state"] = "left"
        else:
            self.state = {
                "device": device,
                "minutes": minutes,
                "started": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
                "host": socket.gethostname().split(".")[0],
                "spent_s": 0.0,
                "cuts": [],
                "steps": {},
            }
        self.save()

    def save(self) -> None:
        """Write the state, whole or not at all."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.state, indent=1))
        os.replace(part, self.path)

    def step(self, step: planning.Step) -> dict[str, Any]:
        """What is known of a step."""
        new = {"what": step.what, "state": "left", "spent_s": 0.0, "expected_s": 0.0, "items": []}
        known: dict[str, Any] = self.state["steps"].setdefault(step.name, new)
        return known

    def spend(self, known: dict[str, Any], seconds: float) -> None:
        """Count seconds; written at once, so that a killed piece has counted them."""
        known["spent_s"] += seconds
        self.state["spent_s"] += seconds
        self.save()

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left, beside those for tables and plots."""
        left: float = self.state["minutes"] * 60 - self.state["spent_s"] - planning.FINISH_S
        return left


def main(words: list[str]) -> int:
    """The exit code, as ci/gpu_day.sh lists them."""
    parser = argparse.ArgumentParser(prog="ci/gpu_day.sh", add_help=False)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("gpu-day"))
    parser.add_argument("--piece", action="store_true")
    parser.add_argument("--piece-minutes", type=float, default=8.0)
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--plan", action="store_true")
    given = parser.parse_args(words)
    if given.minutes <= 0 or given.piece_minutes <= 0:
        return _usage("--minutes and --piece-minutes are above 0")
    steps = planning.steps(given.device)
    if given.plan:
        kept, cuts = planning.fit(steps, given.minutes * 60 - planning.FINISH_S)
        for step in kept:
            print(
                f"{step.expected_s / 60:5.1f} min  {step.name}: {step.what} {' '.join(step.items)}".rstrip()
            )
        _say_cuts(cuts)
        return 0
    out = given.out.absolute()
    if given.archive and given.archive.exists() and not out.exists():
        _unpack(given.archive, out)
    day = Day(out, given.device, given.minutes)
    deadline = time.monotonic() + given.piece_minutes * 60 if given.piece else float("inf")
    try:
        is_done = work(day, steps, deadline)
        if is_done:
            finish(day)
    except KeyboardInterrupt:
        print("Interrupted; call it again to go on", file=sys.stderr)
        return 130
    finally:
        write_summary(day)
        if given.archive:
            _pack(out, given.archive)
    if not is_done:
        print(f"This piece is over; call it again to go on. So far: {day.state['spent_s'] / 60:.1f} minutes")
        return 0
    print(f"Done: {out / 'README.md'}")
    return verdict(day)


def work(day: Day, steps: tuple[planning.Step, ...], deadline: float) -> bool:
    """Run the steps that are left until the piece or the budget ends; whether none is left."""
    while True:
        left = [step for step in steps if day.step(step)["state"] in ("left", "running")]
        begun = [step for step in left if day.step(step)["state"] == "running"]
        waiting = [step for step in left if step not in begun]
        finished = [
            (known["expected_s"], known["spent_s"])
            for known in day.state["steps"].values()
            if known["state"] == "done"
        ]
        pace = planning.pace_of(finished)
        rest_s = sum(
            max(0.0, day.step(step)["expected_s"] * pace - day.step(step)["spent_s"]) for step in begun
        )
        kept, cuts = planning.fit(waiting, day.left_s - rest_s, pace)
        if not begun and not kept:  # only now: where steps are quicker than expected, more of them fit
            for cut in cuts:
                day.step(next(step for step in waiting if step.name == cut.step))["state"] = "left out"
            day.state["cuts"] += map(str, cuts)
            _say_cuts(cuts)
            day.save()
            return True
        step = (begun or kept)[0]
        known = day.step(step)
        if step in kept:
            shortened = [cut for cut in cuts if cut.step == step.name]
            day.state["cuts"] += map(str, shortened)
            _say_cuts(shortened)
            known.update(items=list(step.items), expected_s=step.expected_s)
        limit_s = min(day.left_s if not step.must else max(day.left_s, 60.0), deadline - time.monotonic())
        if limit_s < min(planning.SHORTEST_S, step.expected_s * pace):
            if deadline - time.monotonic() <= limit_s:
                return False
            known["state"] = "cut short" if known["spent_s"] else "left out"
            day.state["cuts"].append(f"{step.name}: {known['state']}, the minutes are used")
            continue
        run(day, step, known, limit_s)
        if step.must and step.runs and known["state"] == "failed":
            print("Nothing can be measured here; mend that, and call it again", flush=True)
            return True
        if time.monotonic() >= deadline - planning.SHORTEST_S:
            return all(day.step(step)["state"] not in ("left", "running") for step in steps)


def run(day: Day, step: planning.Step, known: dict[str, Any], limit_s: float) -> None:
    """Run a step, or what is left of it, for at most so long; its state says how it ended."""
    folder = day.out / "runs" / step.name
    command = [sys.executable, *step.command()]
    if PERFDASH[:1] != (sys.executable,) and not step.runs:
        command = [*PERFDASH, *step.command()]
    unfinished, before = None, 0
    if step.runs:
        unfinished = unfinished_run(folder, known.get("given_up", ()))
        before = _cases_of(unfinished)
        ordered = planning.replace(step, items=tuple(known["items"])).command()
        words = ["--resume", str(unfinished)] if unfinished else [*ordered, "--out", str(folder)]
        words += ["--wait", "2m"]  # for the cores of a piece that was killed just now
        command = [*PERFDASH, "run", *words]
    known["state"] = "running"
    day.save()
    print(f"== {step.name}: {step.what} (at most {limit_s / 60:.1f} minutes)", flush=True)
    log = day.out / "logs" / f"{step.name}.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as output:
        code = watch(day, known, command, output, max(1.0, limit_s - GRACE_S))
    known["code"] = code
    # 1 is a gate's of a run, and doctor's where it warns; of any other step it is a failure.
    is_good = code == 0 or (code == 1 and (step.runs or step.name == "doctor"))
    if code not in (None, 130) and not is_good and step.must:
        print(f"   exit code {code}; its last lines:", *_tail(log), sep="\n   ", flush=True)
    if unfinished and code in (2, 3) and _cases_of(unfinished) == before:
        # Its plan or the environment has changed since: what it measured is kept, and a new run begins.
        known.setdefault("given_up", []).append(unfinished.name)
        print(f"   {unfinished.name} cannot be resumed: measured anew", flush=True)
    elif code is None or code == 130:  # ended by the limit: what it measured is kept
        known["state"] = "running" if step.runs else "cut short"
    else:
        known["state"] = "done" if is_good else "failed"
        if code == 3:  # so does a new run: the machine is to blame, and what was given up may go on
            known.pop("given_up", None)
    day.save()


def _cases_of(run: Path | None) -> int:
    """How many cases a run has a result of."""
    return len(_latest(run / "results.jsonl")) if run else 0


def watch(day: Day, known: dict[str, Any], command: list[str], output: Any, limit_s: float) -> int | None:
    """Run a command for at most so long, and count its seconds. None where it had to be ended."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
        start_new_session=True, preexec_fn=_end_with_parent,
    )  # fmt: skip
    start = last = time.monotonic()
    ended = False
    try:
        while True:
            try:
                code = child.wait(_BEAT_S)
            except subprocess.TimeoutExpired:
                code = None
            now = time.monotonic()
            day.spend(known, now - last)
            last = now
            if code is not None:
                return None if ended else code
            if now - start > limit_s + 3 * GRACE_S:
                os.killpg(child.pid, signal.SIGKILL)
            elif now - start > limit_s and not ended:
                ended = True
                child.send_signal(signal.SIGINT)  # perfdash ends the case and keeps what was measured
    except BaseException:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        raise


def _end_with_parent() -> None:
    """Have the kernel interrupt this process when the piece is killed, so that it measures no further."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background ignores it
    ctypes.CDLL(None).prctl(1, signal.SIGINT, 0, 0, 0)  # PR_SET_PDEATHSIG


def unfinished_run(folder: Path, given_up: Sequence[str] = ()) -> Path | None:
    """The run in a folder that was begun and not ended, but for those that cannot be resumed."""
    for info in sorted(folder.glob("*/run.json"), reverse=True):
        try:
            state = json.loads(info.read_text()).get("state")
            if state != "done" and info.parent.name not in given_up:
                return info.parent
        except (OSError, ValueError):
            continue
    return None


def finish(day: Day) -> None:
    """Tables and plots of every run, and of a run cut short what it has."""
    for info in sorted((day.out / "runs").glob("*/*/run.json")):
        step, folder = info.parent.parent.name, info.parent
        known = day.state["steps"].setdefault(step, {"what": "", "state": "done", "spent_s": 0.0})
        if known.get("shown") or not (folder / "results.jsonl").exists():
            continue
        tables = day.out / "tables" / f"{step}.md"
        tables.parent.mkdir(exist_ok=True)
        log = day.out / "logs" / "finish.log"
        report = [*PERFDASH, "report", str(folder), "--format", "markdown", "--to", str(tables)]
        plot = [*PERFDASH, "plot", str(folder), "--to", str(day.out / "plots" / step)]
        with log.open("ab") as output:
            for command in (report, plot):
                watch(day, {"spent_s": 0.0}, command, output, planning.FINISH_S)
        known["shown"] = True
        day.save()


def records(day: Day) -> dict[str, list[dict[str, Any]]]:
    """The latest record of each case, by step; a half-written line at the end is left out."""
    by_step: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted((day.out / "runs").glob("*/*/results.jsonl")):
        by_step.setdefault(path.parent.parent.name, {}).update(_latest(path))
    return {step: list(latest.values()) for step, latest in by_step.items()}


def _latest(path: Path) -> dict[str, dict[str, Any]]:
    """The latest record of each case in a results.jsonl; none where there is no such file."""
    latest: dict[str, dict[str, Any]] = {}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
            latest[json.dumps(record["case"], sort_keys=True)] = record
        except (ValueError, KeyError, TypeError):
            continue
    return latest


def write_summary(day: Day) -> None:
    """OUT/README.md, from whatever is there."""
    for info in sorted((day.out / "runs").glob("*/*/run.json")):
        try:
            environment = json.loads(info.read_text())["environment"]
        except (OSError, ValueError, KeyError):
            continue
        day.state["torch"] = (environment.get("worker") or {}).get("torch") or day.state.get("torch")
        day.state["gpu"] = ", ".join(environment.get("gpus") or ()) or day.state.get("gpu")
    day.save()
    (day.out / "README.md").write_text(planning.summary(day.state, records(day)))


def verdict(day: Day) -> int:
    """1 where a known value was missed or a step failed, 3 where nothing could be measured."""
    known = planning.known_values(records(day).get("truth", ()), day.state["device"])
    for row in known:
        if not row["holds"]:
            print(
                f"{row['model']} {row['backend']}: {row['what']} {row['measured']}, known: {row['known']:g}"
            )
    for name, step in day.state["steps"].items():
        if step["state"] == "failed":
            print(f"{name} failed with exit code {step['code']}: {day.out / 'logs' / name}.log")
    states = [step["state"] for step in day.state["steps"].values()]
    if day.state["steps"].get("truth", {}).get("state") == "failed" or "done" not in states:
        return 3
    return int("failed" in states or any(not row["holds"] for row in known))


def _pack(out: Path, archive: Path) -> None:
    """The folder as one file, for a machine that gives back a few files only."""
    part = archive.with_name(f"{archive.name}.part")
    with tarfile.open(part, "w:gz") as packed:
        packed.add(out, arcname=".")
    os.replace(part, archive)


def _unpack(archive: Path, out: Path) -> None:
    out.mkdir(parents=True)
    with tarfile.open(archive) as packed:
        packed.extractall(out, filter="data")


def _say_cuts(cuts: list[planning.Cut]) -> None:
    for cut in cuts:
        print(f"{cut}, since the minutes do not suffice", flush=True)


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-5:]


def _usage(message: str) -> int:
    print(f"ci/gpu_day.sh: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
