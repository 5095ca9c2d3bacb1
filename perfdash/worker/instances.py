"""Several processes that run one case at once, each on cores of its own: throughput, and the slowest.

`run_at_once` starts an interpreter for each instance, which loads the model and compiles it (from the caches
of the case), and then orders all of them to call one side at the same time. No instance shares memory with
another, as in a server that has a process for each set of cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import Any, Callable, Dict, List, Sequence

from perfdash.records import Job, job_from_json

SECONDS = 3.0  # that the calls of a side are counted for
_EDGE_S = 0.3  # before and after these all instances run, and nothing is counted
_START = (
    "import json, sys; order = json.loads(sys.stdin.readline()); sys.path[:] = order['paths']; "
    "from perfdash.worker.instances import serve; serve(order)"
)


class InstanceFailed(Exception):
    """An instance ended, or reported an error."""


def run_at_once(job: Job, seconds: float = SECONDS) -> Dict[str, Any]:
    """The figures of `Result.instances`: each side called by all instances at once.

    It never raises for an instance that fails: the case was measured already.
    """
    facts: Dict[str, Any] = {
        "count": len(job.instance_cores),
        "threads": job.case.threads,
        "cores": [list(cores) for cores in job.instance_cores],
    }
    with contextlib.ExitStack() as stack:
        try:
            started = [stack.enter_context(_Instance(job, cores)) for cores in job.instance_cores]
            for instance in started:
                instance.answer()  # loaded and compiled
            sides = {side: _side(started, side, seconds) for side in ("eager", "backend")}
        except (InstanceFailed, OSError) as error:
            return {**facts, "failed": str(error)}
    return {**facts, **figures(sides, job.case.batch_size)}


def figures(sides: Dict[str, List[Dict[str, float]]], batch_size: int) -> Dict[str, Any]:
    """Throughput in samples a second and the slowest instance's median, by side, and their ratio.

    sides: by side {calls, seconds, median_ms} of each instance.
    """
    made: Dict[str, Any] = {}
    for side, answers in sides.items():
        medians = [round(answer["median_ms"], 6) for answer in answers]
        throughput = sum(batch_size * answer["calls"] / answer["seconds"] for answer in answers)
        made[side] = {"throughput": round(throughput, 4), "slowest_ms": max(medians), "median_ms": medians}
    made["speedup"] = round(made["backend"]["throughput"] / made["eager"]["throughput"], 6)
    return made


def _side(started: Sequence[_Instance], side: str, seconds: float) -> List[Dict[str, float]]:
    for instance in started:
        instance.order({"side": side, "seconds": seconds})
    return [instance.answer() for instance in started]


class _Instance:
    """A process that was started on some cores. Use as a context manager: it is ended at the end."""

    def __init__(self, job: Job, cores: Sequence[int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        plain = asdict(replace(job, role="replica", instance_cores=()))
        paths = [path for path in sys.path if path]
        self.order({"job": plain, "cores": list(cores), "paths": paths, "parent": os.getpid()})

    def __enter__(self) -> _Instance:
        return self

    def __exit__(self, *error: object) -> None:
        # Closed, not read to their end: a process that the model has forked may hold the pipes open.
        with contextlib.suppress(BrokenPipeError), self._process:
            self._process.kill()

    def order(self, message: Dict[str, Any]) -> None:
        """Send a message; an instance that has ended is noticed by `answer`."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def answer(self) -> Dict[str, Any]:
        """Its next answer. Raises InstanceFailed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise InstanceFailed(f"an instance ended with code {self._process.wait()}; the log has its words")
        answer: Dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise InstanceFailed(str(answer["error"]))
        return answer


def serve(order: Dict[str, Any]) -> None:
    """Be an instance: load, compile, and call a side whenever it is ordered."""
    os.sched_setaffinity(0, order["cores"])  # before torch is imported: it counts the cores
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the model prints goes to the case's log
    from perfdash.worker import failures, linux
    from perfdash.worker.case import CaseProcess

    linux.die_with_parent(order["parent"])
    try:
        case = CaseProcess(job_from_json(order["job"]), lambda *name, **facts: None)
        case.begin()
        with case.scenario.context(case.job):
            with case.phase("compile"):
                case.compile()
            if case.job.allocator == "steady":
                linux.malloc_steady()
            answers.write(json.dumps({"ready": True}) + "\n")
            for line in sys.stdin:
                message = json.loads(line)
                step = case.eager_step if message["side"] == "eager" else case.compiled_step
                with case.pinned():
                    counted = count_calls(step, case.device.synchronize, message["seconds"])
                answers.write(json.dumps(counted) + "\n")
    except BaseException as error:
        failed = failures.describe("compile", error)
        print(failed["traceback"], file=sys.stderr, flush=True)
        answers.write(json.dumps({"error": f"{failed['type']}: {failed['message'][:300]}"}) + "\n")


def count_calls(
    step: Callable[[], Any],
    synchronize: Callable[[], None],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Dict[str, float]:
    """Call a step for some seconds: {calls, seconds, median_ms} of the calls that begin within them.

    It is called before and after them as well, so that no instance has the machine for itself.
    """
    begin = clock() + _EDGE_S
    while clock() < begin:
        step()
        synchronize()
    times: List[float] = []
    first = before = clock()
    while before - first < seconds or not times:
        step()
        synchronize()
        after = clock()
        times.append(after - before)
        before = after
    elapsed = before - first
    end = before + _EDGE_S
    while clock() < end:
        step()
        synchronize()
    return {"calls": len(times), "seconds": elapsed, "median_ms": 1e3 * statistics.median(times)}
