"""Something is killed, frozen, torn or filled at every turn; after resuming, every case has one result."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from perfdash.records import Status
from perfdash.runner.run_journal import is_being_measured, read_all, read_info, read_results
from tests.faults.running import (
    BAD,
    CASES,
    GOOD,
    Run,
    below,
    compilers,
    hit,
    left_over,
    two_cores,
    write_suite,
)

pytestmark = [pytest.mark.slow, pytest.mark.machine, two_cores, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A disk of 8 MB."""
    folder = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    subprocess.run(mount, check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def story(disk, tmp_path_factory, request):
    """One run through all of it. What was seen on the way is checked by the tests below."""
    folder = tmp_path_factory.mktemp("faults")
    suite = write_suite(folder / "faults.toml")
    seen = SimpleNamespace(disk=disk, exits=[], left=[], texts=[])

    def start(*arguments: str) -> Run:
        # Attempts count over all sessions of a run, and one case may be hit in each of them.
        words = ["--out", str(disk), "--retry-pause", "1", "--retries", "20", *arguments]
        run = Run("run", *words, cwd=folder)
        request.addfinalizer(run.kill)
        return run

    def over(run: Run, code: int) -> None:
        seen.exits.append(code)
        seen.texts.append(run.text)
        seen.left += left_over(run.process.pid)

    # Workers, fork parent, compiler; then the parent itself.
    run = start("--suite", str(suite), "--backend", "aot_eager", "--processes", "1", "--jobs", "2")
    run.until(rf"^\[1/{CASES}\]")
    (seen.folder,) = disk.iterdir()
    # Often: the first blow may hit a try of what the machine can do, and the next compiler comes soon.
    run.strike(lambda: compilers(run.process.pid), until="measured again", within_s=0.5)
    run.strike(run.cases, until="ended by SIGKILL")
    run.strike(run.fork_parents, until="the fork parent ended")
    run.until(rf"^\[4/{CASES}\] .*\(\d+ s\)")
    run.strike(run.cases, number=signal.SIGSTOP, until="had been stopped", within_s=25)
    run.kill()
    over(run, run.process.returncode)
    seen.state_after_kill = read_info(seen.folder).state, is_being_measured(seen.folder)

    # A power cut tears the last line.
    journal = seen.folder / "results.jsonl"
    seen.before_tearing = len(read_results(seen.folder))
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-60])
    seen.after_tearing = len(read_results(seen.folder))

    # The disk fills up.
    filler = disk / "filler"
    run = start("--resume", str(seen.folder))
    run.until(rf"^\[{seen.after_tearing + 1}/{CASES}\]")
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    over(run, run.ends())
    filler.unlink()
    seen.after_full_disk = len(read_results(seen.folder))

    # The watchdog and all else that carries the worker's name at one blow: the compilers are without both.
    run = start("--resume", str(seen.folder))
    run.until(rf"^\[{seen.after_full_disk + 1}/{CASES}\]")
    deadline = time.monotonic() + 240
    while not compilers(run.process.pid):
        assert run.process.poll() is None, run.text
        assert time.monotonic() < deadline, f"nothing is compiled in:\n{run.text}"
        time.sleep(0.01)
    started = below(run.process.pid)
    for pid in [*run.watchdogs(), *run.fork_parents(), *run.cases()]:
        hit(pid, signal.SIGKILL)
    blow = time.monotonic()
    seen.left += left_over(run.process.pid, among=started)
    # The run itself goes while it starts other workers.
    time.sleep(max(0.0, blow + 3 - time.monotonic()))
    run.kill()
    over(run, run.process.returncode)

    run = start("--resume", str(seen.folder))
    run.until(rf"^\[{len(read_results(seen.folder)) + 1}/{CASES}\]")
    run.strike(run.cases, until="ended by SIGKILL")
    over(run, run.ends(900))
    seen.last = run
    return seen


def test_every_case_has_exactly_one_result(story):
    assert story.exits == [-signal.SIGKILL, 3, -signal.SIGKILL, 0], story.texts
    assert Counter(r.case.model for r in read_all(story.folder)) == dict.fromkeys([*GOOD, *BAD], 1)
    assert read_info(story.folder).state == "done"


def test_the_statuses_are_those_of_a_quiet_night(story):
    statuses = {name: set() for name in [*GOOD, *BAD]}
    for result in read_results(story.folder):
        statuses[result.case.model].add(result.status)
    assert statuses == {
        **{name: {Status.PASS} for name in GOOD},
        **{name: {Status.EAGER_OOM} for name in BAD},
    }


def test_no_process_is_left(story):
    assert story.left == []


def test_a_killed_run_is_known_as_such(story):
    assert story.state_after_kill == ("running", False)


def test_what_was_torn_is_measured_again_and_nothing_else(story):
    assert story.after_tearing == story.before_tearing - 1 >= 3
    assert "cannot be written: No space left on device" in story.texts[1]
    assert "--resume" in story.texts[1]
    assert story.after_full_disk >= story.after_tearing


def test_attempts_are_reported(story):
    """They are in the records of the cases that were hit, also those of sessions that were killed."""
    attempts = {
        (attempt["status"], attempt["error"]["type"])
        for result in read_results(story.folder)
        for attempt in result.attempts
    }
    assert {("crash", "SIGKILL"), ("infra_error", "Frozen")} <= attempts
    text = story.texts[0]
    for message in ("ended by SIGKILL", "the fork parent ended", "had been stopped (SIGSTOP)"):
        assert f"{message}" in text
    assert re.search(r"^compiles\d: infra_error \(.*\): measured again", text, re.MULTILINE)


def test_memory_limits_are_reported(story):
    for result in read_results(story.folder):
        if result.case.model in BAD:
            assert result.error.limit == {
                "what": "memory",
                "scope": "case",
                "limit": int(1.5 * 2**30),
                "unit": "bytes",
            }
            assert result.failed_phase == "eager"
            assert result.weights_bytes == 0, "what was measured before is kept"


def test_its_sessions_are_reported(story):
    """Of those that were killed, and the one that could not write, nobody could say more."""
    states = [session["state"] for session in read_info(story.folder).sessions]
    assert states == ["running", "running", "running", "done"]
