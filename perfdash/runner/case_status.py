"""Decide the status of a case, and whether the machine may have caused a failure. Pure.

The environment's faults are measured again, a model's own never are. What tells them apart is here.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from perfdash.records import Failure, Result, Status
from perfdash.runner.messages import ProcessOutcome
from perfdash.suites.case_selection import Planned

StatusOfCase = tuple[Status, str | None, Failure | None]

_EAGER_PHASES = ("start", "load", "eager")
_AFTERWARDS = ("sizes", "instances")  # phases after the timing, each with an event of its name
_EDITED = "EditedModel"
_OUT_OF_MEMORY = "OutOfMemory"
_BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'"
_CUDA_ERROR = re.compile(
    r"CUDA error|CUDA driver error|cudaError|CUBLAS_STATUS|CUDNN_STATUS|\[CUDA\]|AcceleratorError"
)
_ACCURACY_STATUS = {
    "pass": Status.PASS,
    "fail": Status.FAIL_ACCURACY,
    "skipped": Status.PASS_DUE_TO_SKIP,
    "eager_two_runs_differ": Status.EAGER_TWO_RUNS_DIFFER,
    "no_finite_output": Status.NO_FINITE_OUTPUT,
}


def status_of(outcome: ProcessOutcome) -> StatusOfCase:
    """(status, failed phase, failure) of a case's main process; the failure without its log.

    A case that ended in a phase after its timing was measured before: see failure_in.
    """
    return _of_measured(outcome) if _ended_afterwards(outcome) else _of_end(outcome)


def is_measured(outcome: ProcessOutcome) -> bool:
    """Whether a process has measured its case, however a phase after its timing ended."""
    return outcome.find("done") is not None or _ended_afterwards(outcome)


def failure_in(phase: str, outcome: ProcessOutcome) -> Failure | None:
    """Why the case ended in a phase after its timing; None where it did not."""
    return _of_end(outcome)[2] if _last_phase(outcome) == phase and _ended_afterwards(outcome) else None


def _ended_afterwards(outcome: ProcessOutcome) -> bool:
    """Whether a process ended in a phase that costs nothing of what was measured before.

    In `sizes` the machine's faults do cost it: the case is measured again, its memory was still to come.
    """
    phase = _last_phase(outcome)
    if phase not in _AFTERWARDS or outcome.find("done"):
        return False
    status, _, failure = _of_end(outcome)
    return phase != "sizes" or not _is_from_outside(status, failure)


def _is_from_outside(status: Status, failure: Failure | None) -> bool:
    """Whether the machine, or someone on it, caused a failure."""
    return status is Status.INFRA_ERROR or (
        status is Status.CRASH and failure is not None and failure.type == "SIGKILL"
    )


def _last_phase(outcome: ProcessOutcome) -> str:
    phase = outcome.find("phase")
    return str(phase["name"]) if phase else "start"


def _of_measured(outcome: ProcessOutcome) -> StatusOfCase:
    lost = outcome.find("eager_lost")
    accuracy = outcome.find("accuracy") or {"status": "skipped"}
    if lost and accuracy["status"] != "fail":  # the back end was measured without it
        failure = Failure(lost["type"], lost["message"], limit=memory_limit(outcome))
        return Status(lost["status"]), lost["phase"], failure
    return _ACCURACY_STATUS[accuracy["status"]], None, None


def _of_end(outcome: ProcessOutcome) -> StatusOfCase:
    where = _last_phase(outcome)
    out_of_memory = Status.EAGER_OOM if where in _EAGER_PHASES else Status.OOM
    if outcome.limit:
        return _past_limit(outcome, where)
    if outcome.frozen:
        message = f"a process of it had been stopped (SIGSTOP) in phase {where}; it was ended"
        return Status.INFRA_ERROR, where, Failure("Frozen", message)
    failed = outcome.find("failed")
    if failed:
        status = Status(failed["status"])
        if outcome.oom_killed == "limit":  # it killed a compiler, say, and the model's process told of that
            status = out_of_memory
        limit = memory_limit(outcome) if status in (Status.OOM, Status.EAGER_OOM) else None
        return status, failed["phase"], Failure(failed["type"], failed["message"], limit=limit)
    if outcome.find("done"):
        return _of_measured(outcome)
    if outcome.status is None:
        return Status.INFRA_ERROR, where, Failure("WorkerLost", f"the fork parent ended, in phase {where}")
    number = _signal(outcome)
    if number is None:
        return Status.CRASH, where, Failure("NoAnswer", f"the process ended in phase {where} without a word")
    if number == signal.SIGKILL and outcome.oom_killed == "limit":
        limit = memory_limit(outcome)
        return out_of_memory, where, Failure("MemoryLimit", _limit_message(limit, where), limit=limit)
    if number == signal.SIGKILL and outcome.oom_killed:
        return out_of_memory, where, Failure(_OUT_OF_MEMORY, "killed by the kernel: out of memory")
    if number == signal.SIGABRT and any(_BAD_ALLOC in line for line in outcome.tail):
        # Thrown where no one could catch it: in a thread of OpenMP's.
        return out_of_memory, where, Failure("BadAlloc", f"std::bad_alloc ended it in phase {where}")
    name = signal.Signals(number).name if number in signal.Signals.__members__.values() else str(number)
    return Status.CRASH, where, Failure(name, f"ended by {name} in phase {where}")


def is_worth_a_retry(result: Result, neighbours: bool) -> bool:
    """Whether the case is to be measured again.

    An infra_error; a SIGKILL that no limit explains, since it comes from outside; with other cases
    beside it (`neighbours`), also memory that the whole machine ran out of. An edit of the model stays one.
    """
    if is_edited(result):
        return False
    if _is_from_outside(result.status, result.error):
        return True
    return neighbours and _lacked_memory(result)


def most_retries(result: Result, before: Sequence[Mapping[str, Any]], retries: int, neighbours: bool) -> int:
    """How often the case is measured again, with those before; `retries` at most.

    Without other cases beside it, the memory of the whole machine is worth one: another program may have
    taken it, but a model that fills it by itself does so every time.
    """
    if is_worth_a_retry(result, neighbours):
        return retries
    if not _lacked_memory(result):
        return 0
    others = [attempt for attempt in before if (attempt.get("error") or {}).get("type") != _OUT_OF_MEMORY]
    return min(retries, len(others) + 1)


def _lacked_memory(result: Result) -> bool:
    """Whether the kernel killed the case, since the whole machine had no memory left."""
    kind = result.error.type if result.error else None
    return kind == _OUT_OF_MEMORY and result.status in (Status.OOM, Status.EAGER_OOM)


def is_edited(result: Result) -> bool:
    """Whether a case has no numbers since a file of the user's model was edited (edited_in)."""
    return result.error is not None and result.error.type == _EDITED


def spoils_gpu(outcomes: Sequence[ProcessOutcome]) -> bool:
    """Whether a case may have left a GPU in another state: a CUDA error, a process that was ended."""
    for outcome in outcomes:
        failed = outcome.find("failed") or outcome.find("eager_lost")
        if outcome.status != 0 or outcome.limit or outcome.frozen:
            return True
        if failed and _CUDA_ERROR.search(f"{failed['type']}: {failed['message']}"):
            return True
    return False


def check_isa(result: Result, outcomes: Sequence[ProcessOutcome], expected: str | None) -> None:
    """Sets the status to infra_error where a process compiled the case for other vector instructions.

    The compiler was killed, or the disk full, just when inductor tried out what it can compile.
    """
    captures = [(outcome.find("compiled") or {}).get("capture", {}) for outcome in outcomes]
    compiled_for = [isa for capture in captures if (isa := capture.get("vector_isa"))]
    vector_isa = next((isa for isa in compiled_for if isa != expected), None)
    if result.capture and expected and vector_isa:  # none is recorded of a back end that compiles nothing
        result.status = Status.INFRA_ERROR
        result.failed_phase = "compile"
        message = f"compiled for {vector_isa}, where inductor compiles for {expected} on this machine"
        result.error = Failure("OtherCode", message)


def edited_in(
    planned: Planned, outcomes: Sequence[ProcessOutcome], executed: dict[str, str]
) -> Failure | None:
    """The failure of a case whose processes did not all execute the same files of the user's; else None.

    `executed`: digests of files by path, as processes before executed them; it gets those of this case.
    """
    folder = planned.folder_of_files
    edited = dict.fromkeys(
        str(folder / name)
        for outcome in outcomes
        for name, digest in (outcome.find("loaded") or {}).get("own_files", {}).items()
        if executed.setdefault(str(folder / name), digest) != digest
    )
    if not edited:
        return None
    message = (
        f"{', '.join(edited)} was edited during the run, or differs between hosts: this case is of another "
        "model than those before, or its processes were of two models, so its numbers are not kept. Put the "
        "file back and measure the case again (perfdash run: --resume with --retry infra_error; "
        "compare-builds: --resume), or start a new run"
    )
    return Failure(_EDITED, message)


def final_status(result: Result, attempts: Sequence[Mapping[str, Any]]) -> Status:
    """The final status of a case after its last attempt.

    A case that took its worker with it every time is the one to blame.
    """
    kinds = [(attempt.get("error") or {}).get("type") for attempt in attempts]
    lost = result.error is not None and result.error.type == "WorkerLost"
    return Status.CRASH if lost and kinds and set(kinds) == {"WorkerLost"} else result.status


def memory_limit(outcome: ProcessOutcome) -> dict[str, object] | None:
    """The limit of memory that a process ran under, as in records.Failure."""
    if outcome.memory_limit_bytes is None:
        return None
    return {"what": "memory", "scope": "case", "limit": outcome.memory_limit_bytes, "unit": "bytes"}


def _past_limit(outcome: ProcessOutcome, where: str) -> StatusOfCase:
    limit = outcome.limit or {}
    text = _limit_message(limit, where)
    if limit["what"] == "memory":
        status = Status.EAGER_OOM if where in _EAGER_PHASES else Status.OOM
        return status, where, Failure("MemoryLimit", text, limit=limit)
    if limit["what"] == "output":
        status = {"load": Status.MODEL_FAIL_TO_LOAD, "eager": Status.EAGER_FAIL_TO_RUN}.get(
            where, Status.FAIL_TO_RUN
        )
        return status, where, Failure("OutputLimit", text, limit=limit)
    if outcome.frozen:
        message = f"a process of it had been stopped (SIGSTOP) when its time was up: {text}"
        return Status.INFRA_ERROR, where, Failure("Frozen", message, limit=limit)
    return Status.TIMEOUT, where, Failure("Timeout", text, limit=limit)


def _limit_message(limit: dict[str, object] | None, where: str) -> str:
    """The message for a limit that was exceeded."""
    if limit is None:
        return f"killed for its memory in phase {where}"
    value = float(str(limit["limit"]))
    if limit["what"] == "time":
        whose = f"phase {where}" if limit["scope"] == "phase" else "the case"
        return f"{whose} took longer than its limit of {value:g} s; ended in phase {where}"
    if limit["what"] == "output":
        return f"printed more than its limit of {value / 2**20:g} MiB, in phase {where}"
    return f"needed more memory than its limit of {value / 2**30:.2f} GiB, in phase {where}"


def _signal(outcome: ProcessOutcome) -> int | None:
    """The signal that ended the case's process, or the child in which it measures eager."""
    died = outcome.find("died")
    if died and died["signal"]:
        return int(died["signal"])
    if outcome.status is not None and os.WIFSIGNALED(outcome.status):
        return os.WTERMSIG(outcome.status)
    return None
