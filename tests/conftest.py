"""Fixtures: the command as a user runs it, and records to work on."""

from __future__ import annotations

import gc
import os

# Until the tests begin: nothing that is imported or collected ends, and looking for it takes seconds.
gc.disable()
# Before numpy and torch are imported, here and in what tests start: two test processes whose linear
# algebra spins on both cores are ten times slower than two with one thread each.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import atexit
import functools
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tests.effort  # noqa: F401 (the profile of hypothesis)
from perfdash.records import Result, RunInfo
from perfdash.runner import cpu_quota
from perfdash.runner.cores import available_cores, sibling_groups
from perfdash.runner.run_journal import read_info, read_results
from tests.command_client import MEASURING
from tests.command_server import CommandServer
from tests.lazy import note_imports
from tests.stores import address, postgres, postgres_address, postgres_made, store  # noqa: F401 (fixtures)
from tests.warm_workers import WarmSubprocess

HERE = Path(__file__).parent
# Relative where PATH has `.venv/bin` and not the whole path: tests start it in other folders.
sys.executable = os.path.abspath(sys.executable)
# The quota of this container, if any, is that of all tests.
cpu_quota.CGROUPS = Path("/nowhere")


_server = CommandServer()


def physical_cores() -> list[int]:
    """A hardware thread of each physical core: two of one core would wait for the lock of each other's."""
    return [group[0] for group in sibling_groups(available_cores())]


def stay_on(core: int) -> None:
    """Pin this process, and let it know: a test that chooses cores itself gets this one too."""
    os.sched_setaffinity(0, {core})
    available_cores.cache_clear()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--own-core", action="store_true", help="each process of -n stays on a core of its own")


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests a cache and locks of their own, and with --own-core each process a core.

    With --own-core tests measure side by side: what they start inherits the core, and locks no other. A run
    of somebody else on the same core does not keep them from measuring.

    What a shell starts in the background ignores Ctrl-C, and so would all that a test starts and interrupts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker and "PERFDASH_CACHE" not in os.environ:
        os.environ["PERFDASH_CACHE"] = tempfile.mkdtemp(prefix="perfdash-tests-cache-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop("PERFDASH_CACHE"), ignore_errors=True))
    if not worker:
        os.environ["PERFDASH_LOCKS"] = f"tests {os.getpid()}"
    if not worker and (count := config.getoption("numprocesses", None)):
        if config.getoption("--own-core") and count > len(physical_cores()):
            raise pytest.UsageError(f"--own-core: physical cores here: {len(physical_cores())}; give -n auto")
        _server.share()
    if worker and config.getoption("--own-core"):
        stay_on(physical_cores()[int(worker.removeprefix("gw"))])


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """`-n auto --own-core`: a process on each of two cores, or one where there are no two."""
    return min(2, len(physical_cores())) if config.getoption("--own-core") else None


@functools.cache
def _locks_all_cores(file: str) -> bool:
    """Whether a file has a test marked `machine`; the scheduler asks for each test."""
    return "mark.machine" in (HERE.parent / file).read_text()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`: a file to a process, and all files with tests that need all cores to one of them."""
    from xdist.scheduler import LoadFileScheduling

    class MachineApart(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "machine" if _locks_all_cores(file) else file

    return MachineApart(config, log) if config.getvalue("dist") == "loadfile" else None


# Tests that start many processes come after those of pure functions, so that most faults show at once.
LATE = tuple(
    f"tests/{name}/" for name in ("bisection/environments", "ci", "cli", "jenkins", "runner", "serve")
)
# Folders of tests that measure nothing: their slow ones run beside those that need all cores, which wait for
# half of their time.
UNMEASURED = tuple(
    f"tests/{name}/"
    for name in ("charts", "detect", "history", "publish", "report", "serve", "site", "stats", "suites")
)
# Slow files go to the processes of -n as they come: the longest first, so that none ends after the others.
LONGEST = (
    "tests/truth/test_truth.py", "tests/worker/models/", "tests/test_wheel.py", "tests/test_notebook.py",
    "tests/test_python_api.py", "tests/worker/backends/", "tests/truth/", "tests/cli/",
    "tests/worker/test_compiler_caches.py",
    "tests/worker/test_gates_of_gradients.py", "tests/worker/test_case_structure.py",
    "tests/runner/test_launcher.py", "tests/worker/test_instances.py", "tests/bisection/environments/",
    "tests/explain/", "tests/ci/",
)  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
    """Every second process of -n collects from the last file to the first.

    pytest compiles a file anew where nobody has; so each process finds half of them compiled by the other.
    """
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if int(worker.removeprefix("gw")) % 2 and isinstance(collector, pytest.Session | pytest.Directory):
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Adds the mark `unmeasured`, sorts, and sees to it that a file says which marks it has."""
    for item in items:
        if item.nodeid.startswith(UNMEASURED):
            item.add_marker("unmeasured")

    @functools.cache
    def size(path: Path) -> int:
        return path.stat().st_size

    def order(item: pytest.Item) -> tuple[int, bool, int, tuple[str, ...]]:
        places = (place for place, name in enumerate(LONGEST) if item.nodeid.startswith(name))
        place = next(places, len(LONGEST))
        slow = item.get_closest_marker("slow") is not None
        late = item.nodeid.startswith(LATE) and not slow
        # The largest files first, so that no process begins one when the others are about to end.
        return (place if slow else 0, late, -size(item.path) if slow or late else 0, item.path.parts)

    items.sort(key=order)
    texts: dict[Path, str] = {}
    for item in items:
        if item.get_closest_marker("machine") is not None and item.get_closest_marker("slow") is None:
            raise pytest.UsageError(f"{item.nodeid}: what is marked machine is marked slow, too")
        for name in ("slow", "machine"):
            if item.get_closest_marker(name) is not None:
                text = texts.setdefault(item.path, item.path.read_text())
                if f"mark.{name}" not in text:
                    raise pytest.UsageError(
                        f"{item.nodeid}: write mark.{name} in its file: ci/test.sh looks for it"
                    )


def pytest_collection_finish() -> None:
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    # What is sampled in this process freezes all and lets it go again.
    gc.freeze = gc.unfreeze = lambda: None


_begun: Path | None = None
_measures_nothing = False
_freeze, _unfreeze = gc.freeze, gc.unfreeze


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What was imported and collected stays: no collection of garbage visits it from the next file on.

    The worker collects garbage before each measurement, which takes half a second where torch is imported.
    """
    global _begun, _measures_nothing
    _measures_nothing = {"slow", "unmeasured"} <= {mark.name for mark in item.iter_markers()}
    if item.path != _begun:
        _begun = item.path
        gc.collect()
        _freeze()


class ShowFailures:
    """Shows a failure when it happens, not after all other tests; the details follow at the end."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            lines = getattr(getattr(report.longrepr, "reprcrash", None), "message", "").splitlines()
            self._terminal.write_line("")
            self._terminal.write_line(f"FAILED {report.nodeid} ({report.when}): {''.join(lines[:1])[:200]}")


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("numprocesses", None):
        gc.enable()  # this process collects nothing: its workers do
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        session.config.pluginmanager.register(ShowFailures(terminal))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    note_imports(report.nodeid)


@dataclass
class Ran:
    """What a command printed and left."""

    code: int
    out: str
    err: str
    pid: int
    runs: Path

    @property
    def folder(self) -> Path:
        """The one run folder that it made."""
        (info,) = self.runs.glob("*/run.json")
        return info.parent

    @property
    def results(self) -> dict[str, Result]:
        return {result.case.model: result for result in read_results(self.folder)}

    @property
    def every(self) -> list[Result]:
        """All of them, where a model was measured in several ways."""
        return read_results(self.folder)

    @property
    def info(self) -> RunInfo:
        return read_info(self.folder)


def pytest_unconfigure() -> None:
    _server.close()
    # Some libraries complain of objects that are never freed. Not before pytest itself has ended: it collects
    # garbage five times.
    atexit.register(_unfreeze)


def perfdash(
    *arguments: str,
    cwd: Path,
    env: dict[str, str] | None = None,
    timeout: float = 580,
    quickly: bool = False,
    warm: bool = False,
) -> Ran:
    """Runs the command in `cwd` with runs in `cwd/runs`, in a process of its own.

    warm: it measures in a worker that is warm (tests/warm_workers.py), where how one starts is not the point.
    quickly: there, too, and it samples a few times only.
    """
    if _measures_nothing and arguments[:1] in MEASURING:
        raise RuntimeError("A slow test of this folder measures beside others: see UNMEASURED")
    variables = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("PERFDASH_") or key in ("PERFDASH_CACHE", "PERFDASH_LOCKS")
    }
    variables |= env or {}
    if _server.can_run(variables):
        return Ran(*_server.run([*arguments], cwd, variables, timeout, quickly, warm), cwd / "runs")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.few_samples" if quickly else "perfdash", *arguments],
        cwd=cwd,
        env={**variables, **({"PYTHONPATH": str(HERE.parent)} if quickly else {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return Ran(process.returncode, out, err, process.pid, cwd / "runs")


@pytest.fixture
def command(tmp_path: Path):
    """perfdash(..., quickly=True) in a temporary folder."""

    def run(*arguments: str, **options) -> Ran:
        return perfdash(*arguments, cwd=tmp_path, quickly=True, **options)

    return run


@pytest.fixture(scope="session")
def command_server() -> CommandServer:
    return _server


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process starts as workers are warm ones."""
    from perfdash.runner import launcher

    monkeypatch.setattr(launcher, "subprocess", WarmSubprocess(_server.workers.address))
