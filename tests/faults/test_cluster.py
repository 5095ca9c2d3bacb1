"""A Dask cluster of worker processes on this machine, some of which are killed in mid-case."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from perfdash.records import Status
from perfdash.runner.run_journal import read_all, read_info, read_results
from tests.faults.running import Run, children, left_over, two_cores

pytestmark = [pytest.mark.slow, pytest.mark.machine, two_cores, pytest.mark.timeout(900)]

MODELS = Path(__file__).with_name("models.py")


def suite(path: Path, models: dict[str, str]) -> str:
    tables = [f'[[models]]\nname = "{name}"\ntarget = "{MODELS}:{target}"' for name, target in models.items()]
    path.write_text('name = "cluster"\nloader = "python"\n' + "\n".join(tables) + "\n")
    return str(path)


class Cluster:
    """A scheduler and workers, each a process with a nanny that starts it again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder = folder
        self.log = folder / "dask.log"
        self.address = f"tcp://127.0.0.1:{port}"
        self.scheduler = self.start("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
        self.nannies: list[subprocess.Popen] = []

    def start(self, *arguments: str) -> subprocess.Popen:
        log = self.log.open("a")
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            log.close()

    def add_worker(self) -> None:
        options = ["--nthreads", "1", "--resources", "slot=1", "--no-dashboard"]
        self.nannies.append(self.start("worker", self.address, *options))

    def workers(self) -> list[int]:
        """Process ids of the workers proper: those that perfdash runs in."""
        processes = []
        for nanny in self.nannies:
            for pid in children(nanny.pid):
                try:
                    command = Path("/proc", str(pid), "cmdline").read_bytes()
                except OSError:
                    continue
                if b"spawn_main" in command:
                    processes.append(pid)
        return processes

    def is_whole(self) -> bool:
        """Whether two workers run, and as many have registered as have been started."""
        said = self.log.read_text()
        return len(self.workers()) == 2 and said.count("Registered to") >= 2 + said.count("killed by signal")

    def measuring(self) -> list[int]:
        """Those of them with a case under way: worker, watchdog, fork parent, case."""
        return [
            worker
            for worker in self.workers()
            for watchdog in children(worker)
            for parent in children(watchdog)
            if children(parent)
        ]

    def stop(self) -> None:
        for process in [*self.nannies, self.scheduler]:
            for pid in [*self.workers(), process.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("dask"))
    for _ in range(2):
        made.add_worker()
    yield made
    made.stop()


@pytest.fixture
def cluster(processes, tmp_path):
    """Two workers that the scheduler knows, also where some were killed before; runs are in a new folder."""
    deadline = time.monotonic() + 400
    while not processes.is_whole():
        assert time.monotonic() < deadline, processes.log.read_text()
        time.sleep(0.1)
    processes.folder = tmp_path
    return processes


def begin(cluster: Cluster, request, *arguments: str) -> Run:
    run = Run(
        "run",
        "--executor",
        "dask",
        "--scheduler",
        cluster.address,
        "--retry-pause",
        "0.5",
        *arguments,
        cwd=cluster.folder,
    )
    request.addfinalizer(run.kill)
    return run


def strike(find, number=signal.SIGKILL, timeout_s=400) -> int:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for pid in find():
            os.kill(pid, number)
            return pid
        time.sleep(0.02)
    raise AssertionError("nothing to strike")


def rows(folder: Path) -> tuple[Counter, dict[str, Status]]:
    counts = Counter(result.case.model for result in read_all(folder))
    return counts, {result.case.model: result.status for result in read_results(folder)}


def test_workers_killed_in_mid_case_cost_no_row(cluster, request):
    """Nor does a case that takes its worker with it, the last one: a crash, and the rest goes on."""
    names = {**{f"small{number}": "small" for number in range(8)}, "poison": "poison"}
    path = suite(cluster.folder / "s.toml", names)
    run = begin(cluster, request, "--suite", path, "--backend", "aot_eager", "--processes", "1")
    run.until(r"^\[1/9\]")
    struck = [strike(cluster.measuring)]
    run.until(r"^\[3/9\] .*\(\d+ s\)")
    struck.append(strike(cluster.measuring))
    run.until(r"^\[5/9\] .*\(\d+ s\)")

    # The runner itself, at a moment when cases are under way; then the rest.
    strike(cluster.measuring, signal.SIGCONT)
    run.kill()
    first = run.text
    (folder,) = [path for path in (cluster.folder / "runs").iterdir() if path.is_dir()]
    before = len(read_results(folder))
    run = begin(cluster, request, "--resume", "last", "--retries", "1")
    assert run.ends() == 0, run.text
    counts, statuses = rows(folder)
    assert counts == dict.fromkeys(names, 1)
    assert statuses == {name: Status.CRASH if name == "poison" else Status.PASS for name in names}
    assert f"{9 - before} of 9 cases to measure" in run.text
    passed = [result for result in read_results(folder) if result.status is Status.PASS]
    assert len({result.conditions["cores"][0] for result in passed}) == 2, "two slots"
    lost = re.findall(r"small\d: .*the Dask worker that measured it was lost\): measured again", first)
    assert len(lost) == 2, first
    # Where this process slept, the first of its two tries was in the run that was killed.
    killed = re.findall("poison: infra_error .*measured again", first + run.text)
    assert len(killed) == 1, "one more try, then no other worker"
    for pid in [*struck, *cluster.workers()]:
        assert left_over(pid) == []


def test_the_loss_of_the_scheduler_leaves_a_run_to_go_on_with(cluster, request):
    names = {f"small{number}": "small" for number in range(3)}
    path = suite(cluster.folder / "s.toml", names)
    run = begin(cluster, request, "--suite", path, "--backend", "aot_eager", "--processes", "1")
    run.until(r"^\[1/3\] .*\(\d+ s\)")
    cluster.scheduler.kill()
    assert run.ends(300) == 3
    assert "the Dask scheduler at" in run.text
    assert "is gone" in run.text
    assert "Traceback" not in run.text
    (folder,) = [path for path in (cluster.folder / "runs").iterdir() if path.is_dir()]
    assert read_info(folder).state == "failed"
    for pid in cluster.workers():
        assert left_over(pid) == []
    again = Run("run", "--resume", "last", "--executor", "local", "--jobs", "1", cwd=cluster.folder)
    request.addfinalizer(again.kill)
    assert again.ends() == 0, again.text
    assert rows(folder)[0] == dict.fromkeys(names, 1)
